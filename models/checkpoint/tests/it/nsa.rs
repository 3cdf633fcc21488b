//! Configurations of the NSA models of flash-linear-attention, which leave out what is a default.

use checkpoint::{DecoderConfig, Family, NsaConfig, Role};
use insta::assert_snapshot;
use serde_json::{Value, json};

fn parse(change: Value) -> Result<DecoderConfig, String> {
    let mut config = json!({ "model_type": "nsa" });
    config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    DecoderConfig::from_hf_json(&config.to_string(), None).map_err(|error| error.to_string())
}

#[test]
fn absent_fields_are_those_of_the_published_class() {
    let config = parse(json!({})).unwrap();
    assert_eq!((config.family, config.nsa), (Family::Nsa, Some(NsaConfig::new(64, 16, 512))));
    assert_eq!((config.num_heads, config.num_kv_heads, config.head_dim), (64, 4, 32));
    assert_eq!((config.hidden_size, config.num_layers, config.vocab_size), (2048, 24, 32_000));
    // 2048 * 4 * 2 / 3 in whole 256.
    assert_eq!((config.intermediate_size, config.context_length), (5632, 2048));
    assert_eq!((config.rms_norm_eps, config.rope.theta, config.qkv_bias), (1e-6, 10_000.0, false));
    assert_eq!(config.shape(Role::BranchGates(0)), [192, 2048]);
    let other =
        json!({ "hidden_ratio": 2, "hidden_size": 96, "num_heads": 16, "num_kv_heads": 1, "qkv_bias": true });
    let other = parse(other).unwrap();
    assert_eq!((other.intermediate_size, other.qkv_bias, other.group()), (256, true, 16));
}

#[test]
fn fields_that_would_change_the_result_are_refused() {
    let refused = |change| parse(change).unwrap_err();
    assert_snapshot!(refused(json!({ "block_size": 66 })), @"block_size is 66, it must be a multiple of 4 up to 4096");
    assert_snapshot!(refused(json!({ "block_counts": 2 })), @"block_counts is 2, it must be from 3, the blocks that every query selects, to 4096");
    assert_snapshot!(refused(json!({ "window_size": 0 })), @"window_size is 0, it must be at least 1");
    assert_snapshot!(refused(json!({ "hidden_act": "powlu" })), @r#"hidden_act = "powlu" would change the result and is not implemented"#);
    assert_snapshot!(refused(json!({ "attnres_block_size": 4 })), @"attnres_block_size = 4 would change the result and is not implemented");
}
