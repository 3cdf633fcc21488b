//! Decoder configuration from both formats.

use insta::{assert_debug_snapshot, assert_snapshot};
use models::{DecoderConfig, Family, Gguf, QkNorm, Reach, RopeScaling};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    cases, fixture,
    gguf_writer::{GgufWriter, f32_value, str_value, u32_value, value},
};

fn base(family: &str) -> Value {
    json!({
        "model_type": family, "hidden_act": "silu", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2,
    })
}

/// What the layers of a config see.
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
            interleaved: false,
            scaling: Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context: 128.0,
            },
        },
        context_length: 4096,
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
        hyper: None,
        scale: 0.25,
        temperature: None,
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
    let config = parse("mistral", json!({ "sliding_window": 24, "layer_types": kinds })).unwrap();
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
    assert_eq!((new.theta, new.rotary_dims, new.interleaved), (5e5, 16, false));
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
    assert_snapshot!(error("mamba", json!({})), @r#"model family "mamba" is not implemented (implemented: llama, mistral, qwen2, qwen3, qwen3_moe, gpt_oss, llama4_text, deepseek_v32, deepseek_v4)"#);
    assert_snapshot!(error("llama", json!({ "hidden_act": "gelu" })), @r#"hidden_act = "gelu" would change the result and is not implemented"#);
    assert_snapshot!(error("llama", json!({ "mlp_bias": true })), @"mlp_bias = true would change the result and is not implemented");
    assert_snapshot!(error("llama", json!({ "quantization_config": { "quant_method": "gptq" } })), @r#"quantization_config = {"quant_method":"gptq"} would change the result and is not implemented"#);
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
    assert_snapshot!(error("llama", json!({ "head_dim": 15 })), @"rotary dims is 15, it must be even, from 2 to head_dim");
    assert_snapshot!(error("llama", json!({ "rms_norm_eps": -1.0 })), @"rms_norm_eps is -1, it must be finite and not negative");
    assert_snapshot!(error("llama", json!({ "eos_token_id": [2, 100] })), @"eos id is 100, it must be less than vocab_size");
    assert_snapshot!(error("llama", json!({ "eos_token_id": "</s>" })), @r#"eos_token_id is "</s>", not a token id or a list of them"#);
    assert_snapshot!(error("llama", json!({ "rope_theta": 0.0 })), @"rope theta is 0, it must be finite and over 1");
    assert_snapshot!(error("llama", json!({ "rope_scaling": { "rope_type": "llama3", "factor": 8.0 } })), @"low_freq_factor is missing");
    assert_snapshot!(DecoderConfig::from_hf_json("[]", None).unwrap_err(), @"the configuration is not a JSON object: invalid type: sequence, expected a map at line 1 column 0");
}

fn gguf(arch: &str) -> GgufWriter {
    let mut writer = GgufWriter::empty();
    writer.set("general.architecture", str_value(arch));
    for (key, n) in [
        ("block_count", 2),
        ("context_length", 512),
        ("embedding_length", 64),
        ("feed_forward_length", 128),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ] {
        writer.set(&format!("{arch}.{key}"), u32_value(n));
    }
    writer.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), f32_value(1e-5));
    writer.set("tokenizer.ggml.eos_token_id", u32_value(2));
    writer.set("tokenizer.ggml.eot_token_id", u32_value(3));
    writer.tensor("token_embd.weight", &[64, 100], 1, &[0; 2 * 64 * 100]);
    writer
}

fn from_gguf(writer: &GgufWriter) -> Result<DecoderConfig, String> {
    DecoderConfig::from_gguf(&Gguf::from_bytes(writer.bytes()).unwrap()).map_err(|error| error.to_string())
}

#[test]
fn reads_gguf_metadata() {
    assert_debug_snapshot!(from_gguf(&gguf("llama")).unwrap(), @"
    DecoderConfig {
        family: Llama,
        vocab_size: 100,
        hidden_size: 64,
        intermediate_size: 128,
        num_layers: 2,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 16,
        rms_norm_eps: 1e-5,
        rope: Rope {
            theta: 10000.0,
            rotary_dims: 16,
            interleaved: true,
            scaling: None,
        },
        context_length: 512,
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
        ],
        latent: None,
        indexer: None,
        compressed: None,
        hyper: None,
        scale: 0.25,
        temperature: None,
        sinks: false,
        moe: None,
        eos_ids: [
            2,
            3,
        ],
        bos_id: None,
    }
    ");
}

#[test]
fn gguf_families_differ_in_pairs_biases_and_norms() {
    let mut qwen2 = gguf("qwen2");
    qwen2.tensor("blk.0.attn_q.bias", &[64], 0, &[0; 256]);
    qwen2.tensor("output.weight", &[64, 100], 1, &[0; 2 * 64 * 100]);
    let qwen2 = from_gguf(&qwen2).unwrap();
    assert_eq!((qwen2.rope.interleaved, qwen2.qkv_bias, qwen2.tie_embeddings), (false, true, false));
    let mut qwen3 = gguf("qwen3");
    qwen3.set("qwen3.attention.key_length", u32_value(32)).set("qwen3.attention.value_length", u32_value(32));
    qwen3.tensor("blk.0.attn_q_norm.weight", &[32], 0, &[0; 128]);
    let qwen3 = from_gguf(&qwen3).unwrap();
    assert_eq!((qwen3.head_dim, qwen3.rope.rotary_dims, qwen3.qk_norm), (32, 32, QkNorm::Rms));
}

#[test]
fn gguf_rope_scaling_comes_as_keys_or_as_a_tensor() {
    let mut keys = gguf("llama");
    keys.set("llama.rope.scaling.type", str_value("linear")).set("llama.rope.scaling.factor", f32_value(4.0));
    assert_eq!(from_gguf(&keys).unwrap().rope.scaling, RopeScaling::Linear { factor: 4.0 });
    keys.set("llama.rope.scaling.type", str_value("yarn"));
    keys.set("llama.rope.scaling.original_context_length", u32_value(128));
    assert_debug_snapshot!(from_gguf(&keys).unwrap().rope.scaling, @"
    Yarn {
        factor: 4.0,
        original_context: 128.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 1.138629436111989,
        truncate: true,
    }
    ");
    keys.set("llama.rope.scaling.type", str_value("longrope"));
    assert_snapshot!(from_gguf(&keys).unwrap_err(), @"llama.rope.scaling.type = longrope would change the result and is not implemented");

    let factors = [1.0_f32, 1.0, 1.0, 2.0, 3.0, 4.0, 8.0, 8.0];
    let mut tensor = gguf("llama");
    tensor.tensor("rope_freqs.weight", &[8], 0, &factors.map(f32::to_le_bytes).concat());
    let rope = from_gguf(&tensor).unwrap().rope;
    assert_eq!(rope.scaling, RopeScaling::Factors(factors.to_vec()));
    assert!(rope.inv_freq()[7] < 1e-4);
    let mut short = gguf("llama");
    short.tensor("rope_freqs.weight", &[4], 0, &[1.0_f32; 4].map(f32::to_le_bytes).concat());
    assert_snapshot!(from_gguf(&short).unwrap_err(), @"the number of rope factors is 4, it must be half of the rotary dims");
}

#[test]
fn gguf_defects_are_named() {
    let with = |key: &str, value| from_gguf(gguf("llama").set(key, value)).unwrap_err();
    assert_snapshot!(from_gguf(&gguf("gemma")).unwrap_err(), @r#"model family "gemma" is not implemented (implemented: llama, qwen2, qwen3)"#);
    assert_snapshot!(with("llama.expert_count", u32_value(8)), @"llama.expert_count = 8 would change the result and is not implemented");
    assert_snapshot!(with("llama.attention.sliding_window", u32_value(4096)), @"llama.attention.sliding_window = 4096 would change the result and is not implemented");
    assert_snapshot!(with("llama.use_parallel_residual", value(7, [1])), @"llama.use_parallel_residual = true would change the result and is not implemented");
    assert_snapshot!(with("llama.attention.value_length", u32_value(8)), @"llama.attention.value_length = 8 would change the result and is not implemented");
    assert_snapshot!(with("llama.block_count", u32_value(u32::MAX)), @"num_layers is 4294967295, the limit is 4096");
    assert_snapshot!(with("llama.block_count", str_value("2")), @r#"metadata llama.block_count is "2", not a value of type unsigned integer of 32 bits"#);
    let mut missing = gguf("llama");
    missing.metadata.retain(|(key, _)| key != "llama.context_length");
    assert_snapshot!(from_gguf(&missing).unwrap_err(), @"metadata llama.context_length is missing");
    assert_snapshot!(from_gguf(&GgufWriter::empty()).unwrap_err(), @"metadata general.architecture is missing");
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn mutated_metadata_never_panics(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), scaling in 0_usize..3
    ) {
        let mut writer = gguf("llama");
        writer.set("llama.rope.dimension_count", u32_value(16)).set("llama.rope.freq_base", f32_value(5e5));
        if scaling > 0 {
            let kind = ["linear", "yarn"][scaling - 1];
            writer.set("llama.rope.scaling.type", str_value(kind));
            writer.set("llama.rope.scaling.factor", f32_value(4.0));
        }
        let mut bytes = writer.bytes();
        let header = bytes.len() - writer.data.len();
        for (at, byte) in edits {
            bytes[at.index(header)] = byte;
        }
        if let Ok(file) = Gguf::from_bytes(bytes)
            && let Ok(config) = DecoderConfig::from_gguf(&file)
        {
            let freqs = config.rope.inv_freq();
            prop_assert_eq!(freqs.len(), config.rope.rotary_dims as usize / 2);
            prop_assert!(freqs.iter().all(|freq| freq.is_finite()), "{:?}: {freqs:?}", config.rope);
        }
    }

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
