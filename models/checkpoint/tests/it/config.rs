//! Decoder configuration from both formats.

use checkpoint::{DecoderConfig, Family, Pairing, QkNorm, Reach, RopeScaling};
use insta::{assert_debug_snapshot, assert_snapshot};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{cases, fixture};

fn base(family: &str) -> Value {
    json!({
        "model_type": family, "hidden_act": "silu", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2,
    })
}

/// Returns the reach of the layers of a config.
fn reach(config: &DecoderConfig) -> Vec<Reach> {
    config.layers.iter().map(|layer| layer.reach).collect()
}

fn parse(family: &str, change: Value) -> Result<DecoderConfig, String> {
    let mut config = base(family);
    config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    DecoderConfig::from_hf_json(&config.to_string(), None).map_err(|error| error.to_string())
}

#[track_caller]
fn error(family: &str, change: Value) -> String {
    parse(family, change).expect_err("must be refused")
}

#[test]
fn reads_the_tiny_llama() {
    assert_debug_snapshot!(DecoderConfig::from_hf_dir(fixture("tiny-llama")).unwrap(), @"
    DecoderConfig {
        family: Llama,
        vocab_size: 128,
        hidden_size: 64,
        intermediate_size: 128,
        num_layers: 3,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 16,
        rms_norm_eps: 1e-6,
        rope: Rope {
            theta: 500000.0,
            rotary_dims: 16,
            pairing: Halves,
            scaling: Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context: 128.0,
            },
        },
        window_rope: None,
        context_length: 4096,
        embedding_scale: 1.0,
        norms: Before,
        norm_offset: 0.0,
        gate: Silu,
        logit_scale: 1.0,
        tie_embeddings: true,
        qkv_bias: false,
        o_bias: false,
        qk_norm: None,
        layers: [
            LayerConfig {
                reach: Full,
                rotary: true,
                mlp: Dense,
            },
            LayerConfig {
                reach: Full,
                rotary: true,
                mlp: Dense,
            },
            LayerConfig {
                reach: Full,
                rotary: true,
                mlp: Dense,
            },
        ],
        latent: None,
        indexer: None,
        compressed: None,
        nsa: None,
        hyper: None,
        scale: 0.25,
        temperature: None,
        score_softcap: None,
        logit_softcap: None,
        sinks: false,
        moe: None,
        eos_ids: [],
        bos_id: Some(
            0,
        ),
    }
    ");
}

#[test]
fn families_differ_in_biases_norms_and_windows() {
    let llama = parse("llama", json!({ "attention_bias": true })).unwrap();
    assert_eq!(
        (llama.family, llama.qkv_bias, llama.o_bias, llama.qk_norm),
        (Family::Llama, true, true, QkNorm::None)
    );
    let mistral = parse("mistral", json!({})).unwrap();
    assert_eq!((mistral.qkv_bias, mistral.o_bias, mistral.qk_norm), (false, false, QkNorm::None));
    assert_eq!(reach(&mistral), [Reach::Window(4096); 4]);
    let without = parse("mistral", json!({ "sliding_window": null })).unwrap();
    assert_eq!(reach(&without), [Reach::Full; 4]);
    let narrow = parse("mistral", json!({ "sliding_window": 24 })).unwrap();
    assert_eq!(reach(&narrow), [Reach::Window(24); 4]);
    let qwen2 = parse("qwen2", json!({ "sliding_window": 8 })).unwrap();
    assert_eq!((qwen2.qkv_bias, qwen2.o_bias, qwen2.qk_norm), (true, false, QkNorm::None));
    assert_eq!(reach(&qwen2), [Reach::Full; 4]);
    let qwen3 = json!({ "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 3 });
    let qwen3 = parse("qwen3", qwen3).unwrap();
    assert_eq!((qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim), (false, QkNorm::Rms, 128));
    assert_eq!(reach(&qwen3), [Reach::Full, Reach::Full, Reach::Full, Reach::Window(8)]);
}

#[test]
fn layer_types_decide_the_windows() {
    let kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"];
    let windows = json!({ "use_sliding_window": true, "sliding_window": 24, "layer_types": kinds });
    let config = parse("qwen2", windows).unwrap();
    let window = Reach::Window(24);
    assert_eq!(reach(&config), [window, Reach::Full, window, Reach::Full]);
    let kinds = ["chunked_attention"; 4];
    assert_snapshot!(error("llama", json!({ "layer_types": kinds })), @r#"layer_types = "chunked_attention" would change the result and is not implemented"#);
    assert_snapshot!(error("llama", json!({ "layer_types": ["full_attention"] })), @"layer_types is a list of 1, it must be a list of num_hidden_layers");
}

#[test]
fn old_and_new_rope_fields_mean_the_same() {
    let new = json!({ "rope_parameters": { "rope_type": "linear", "factor": 2.0, "rope_theta": 5e5 } });
    let old = json!({ "rope_theta": 5e5, "rope_scaling": { "type": "linear", "factor": 2 } });
    let new = parse("llama", new).unwrap().rope;
    assert_eq!(new, parse("llama", old).unwrap().rope);
    assert_eq!((new.theta, new.rotary_dims, new.pairing), (5e5, 16, Pairing::Halves));
    assert_eq!(new.scaling, RopeScaling::Linear { factor: 2.0 });
    assert_eq!(parse("llama", json!({ "rope_scaling": null })).unwrap().rope.theta, 10_000.0);
}

#[test]
fn yarn_defaults_follow_the_paper_and_deepseek() {
    let yarn = |change: Value| {
        let mut scaling =
            json!({ "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 128 });
        scaling.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        parse("qwen2", json!({ "rope_scaling": scaling })).unwrap().rope
    };
    assert_debug_snapshot!(yarn(json!({ "truncate": false })).scaling, @"
    Yarn {
        factor: 32.0,
        original_context: 128.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 1.3465735902799727,
        truncate: false,
    }
    ");
    assert_eq!(yarn(json!({ "attention_factor": 1.25 })).attention_factor(), 1.25);
    assert_eq!(yarn(json!({ "mscale": 1.0, "mscale_all_dim": 1.0 })).attention_factor(), 1.0);
    assert_eq!(yarn(json!({ "factor": 0.5 })).attention_factor(), 1.0);
}

#[test]
fn end_tokens_come_from_the_generation_config_first() {
    let ids = |generation: Option<&str>| {
        DecoderConfig::from_hf_json(&base("llama").to_string(), generation).unwrap().eos_ids
    };
    assert_eq!(ids(None), [2]);
    assert_eq!(ids(Some(r#"{ "eos_token_id": [7, 2] }"#)), [7, 2]);
    assert_eq!(ids(Some(r#"{ "eos_token_id": null }"#)), [2]);
    assert_eq!(parse("llama", json!({ "eos_token_id": null })).unwrap().eos_ids, [0_u32; 0]);
}

#[test]
fn refuses_by_name_what_would_change_the_result() {
    assert_snapshot!(error("mamba", json!({})), @r#"model family "mamba" is not implemented (implemented: llama, mistral, ministral, ministral3, qwen2, qwen3, qwen3_moe, gemma2, gemma3_text, phi3, smollm3, granite, olmo2, glm4, gpt_oss, llama4_text, nsa, deepseek_v2, deepseek_v3, deepseek_v32, deepseek_v4)"#);
    assert_snapshot!(error("llama", json!({ "hidden_act": "gelu" })), @r#"hidden_act = "gelu" would change the result and is not implemented"#);
    assert_snapshot!(error("llama", json!({ "mlp_bias": true })), @"mlp_bias = true would change the result and is not implemented");
    assert_snapshot!(error("llama", json!({ "quantization_config": { "quant_method": "gptq" } })), @"quantization_config.bits = null: weights stored so are not implemented");
    assert_snapshot!(error("qwen2", json!({ "rope_scaling": { "type": "dynamic", "factor": 2.0 } })), @r#"rope_type = "dynamic" would change the result and is not implemented"#);
    assert_snapshot!(error("llama", json!({ "rope_parameters": { "partial_rotary_factor": 0.5 } })), @"partial_rotary_factor = 0.5 would change the result and is not implemented");
    assert_snapshot!(error("llama", json!({ "final_logit_softcapping": 30.0 })), @"final_logit_softcapping = 30.0 would change the result and is not implemented");
}

#[test]
fn names_fields_that_make_no_sense() {
    assert_snapshot!(error("llama", json!({ "hidden_size": null })), @"hidden_size is missing");
    assert_snapshot!(error("llama", json!({ "hidden_size": "64" })), @r#"hidden_size is "64", not an integer of 32 bits"#);
    assert_snapshot!(error("llama", json!({ "hidden_size": -64 })), @"hidden_size is -64, not an integer of 32 bits");
    assert_snapshot!(error("llama", json!({ "num_attention_heads": 0 })), @"num_heads is 0, it must be at least 1");
    assert_snapshot!(error("llama", json!({ "num_key_value_heads": 3 })), @"num_heads is 4, it must be a multiple of num_kv_heads");
    assert_snapshot!(error("llama", json!({ "num_hidden_layers": 4_000_000_000_u32 })), @"num_hidden_layers is 4000000000, the limit is 4096");
    assert_snapshot!(error("llama", json!({ "head_dim": 15 })), @"head_dim is 15, it must be a multiple of 8 up to 512");
    assert_snapshot!(error("llama", json!({ "head_dim": 520 })), @"head_dim is 520, it must be a multiple of 8 up to 512");
    assert_snapshot!(error("llama", json!({ "num_attention_heads": 65536, "head_dim": 512 })), @"num_heads * head_dim is 33554432, it must be at most 2^20");
    assert_snapshot!(error("llama", json!({ "rms_norm_eps": -1.0 })), @"rms_norm_eps is -1, it must be finite and not negative");
    assert_snapshot!(error("llama", json!({ "eos_token_id": [2, 100] })), @"eos id is 100, it must be less than vocab_size");
    assert_snapshot!(error("llama", json!({ "eos_token_id": "</s>" })), @r#"eos_token_id is "</s>", not a token id or a list of them"#);
    assert_snapshot!(error("llama", json!({ "rope_theta": 0.0 })), @"rope theta is 0, it must be finite and over 1");
    assert_snapshot!(error("llama", json!({ "rope_scaling": { "rope_type": "llama3", "factor": 8.0 } })), @"low_freq_factor is missing");
    assert_snapshot!(DecoderConfig::from_hf_json("[]", None).unwrap_err(), @"the configuration is not a JSON object: invalid type: sequence, expected a map at line 1 column 0");
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn odd_json_values_never_panic(field in 0_usize..12, value in prop_oneof![
        any::<u64>().prop_map(Value::from), any::<f64>().prop_map(Value::from), Just(json!([])), Just(json!({})),
        Just(json!([[]])), Just(json!("")), Just(json!(true)), Just(Value::Null),
    ]) {
        let mut config = base("qwen3");
        let key = config.as_object().unwrap().keys().nth(field).unwrap().clone();
        config[key] = value.clone();
        let _ = DecoderConfig::from_hf_json(&config.to_string(), Some(&value.to_string()));
        config["rope_parameters"] = value;
        let _ = DecoderConfig::from_hf_json(&config.to_string(), None);
    }
}
