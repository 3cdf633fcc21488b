//! Configuration of the families beyond Llama: what their fields mean, and what is refused.

use checkpoint::{
    Activation, BlockNorms, Compressor, DecoderConfig, ExpertPacking, Family, Gate, HyperConfig,
    IndexerConfig, LatentConfig, Mlp, Pairing, QkNorm, Reach, RopeScaling, Router, Score,
};
use insta::assert_snapshot;
use serde_json::{Value, json};

use super::fixture;

/// The configuration of a fixture with other fields; `null` takes a field out.
fn parse(name: &str, change: &Value) -> Result<DecoderConfig, String> {
    let text = std::fs::read_to_string(fixture(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let fields = config.as_object_mut().unwrap();
    for (field, value) in change.as_object().unwrap() {
        fields.remove(field);
        if !value.is_null() {
            fields.insert(field.clone(), value.clone());
        }
    }
    DecoderConfig::from_hf_json(&config.to_string(), None).map_err(|error| error.to_string())
}

#[track_caller]
fn error(name: &str, change: Value) -> String {
    parse(name, &change).expect_err("must be refused")
}

fn reach(config: &DecoderConfig) -> Vec<Reach> {
    config.layers.iter().map(|layer| layer.reach).collect()
}

#[test]
fn the_readme_lists_the_families() {
    let readme = include_str!("../../README.md");
    let list = |names: Vec<&str>| names.join(", ");
    let hf = list(Family::ALL.iter().filter_map(|family| family.model_type()).collect());
    let gguf = list(Family::ALL.iter().filter_map(|family| family.architecture()).collect());
    let row = format!("`config.json` of {hf}; GGUF metadata of {gguf} |");
    assert!(readme.contains(&row), "models/checkpoint/README.md lacks {row:?}");
}

#[test]
fn gpt_oss_has_windows_sinks_biases_and_experts() {
    let config = parse("tiny-gpt-oss", &json!({})).unwrap();
    let window = Reach::Window(16);
    assert_eq!(reach(&config), [window, Reach::Full, window, Reach::Full]);
    assert!(config.sinks && config.qkv_bias && config.o_bias);
    assert!(matches!(config.rope.scaling, RopeScaling::Yarn { truncate: false, .. }));
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.top_k, moe.inner_size, moe.biases), (4, 2, 64, true));
    assert_eq!(moe.router.score, Score::SoftmaxOfChosen);
    assert_eq!(moe.activation, Activation::LimitedSwiglu { alpha: 1.702, limit: 7.0 });
    assert_eq!(moe.packing, ExpertPacking::AlternateColumns);
    // What the configuration class fills in.
    let bare = json!({
        "layer_types": null, "sliding_window": null, "rope_parameters": null, "attention_bias": null, "head_dim": null,
    });
    let bare = parse("tiny-gpt-oss", &bare).unwrap();
    assert_eq!(reach(&bare)[..2], [Reach::Window(128), Reach::Full]);
    assert_eq!((bare.head_dim, bare.rope.theta, bare.qkv_bias), (64, 150_000.0, true));
    assert!(matches!(bare.rope.scaling, RopeScaling::Yarn { factor: 32.0, original_context: 4096.0, .. }));
    let mxfp4 = json!({ "quantization_config": { "quant_method": "mxfp4" } });
    assert!(parse("tiny-gpt-oss", &mxfp4).is_ok());
}

#[test]
fn gemma3_has_windows_with_a_rotation_of_their_own_and_norms_around_both_halves() {
    let config = parse("tiny-gemma3", &json!({})).unwrap();
    let window = Reach::Window(24);
    assert_eq!(reach(&config), [window, window, window, window, window, Reach::Full, window]);
    assert_eq!((config.rope.theta, &config.rope.scaling), (1e6, &RopeScaling::Linear { factor: 8.0 }));
    let local = config.window_rope.clone().unwrap();
    assert_eq!((local.theta, local.scaling), (1e4, RopeScaling::None));
    assert_eq!((config.norms, config.norm_offset), (BlockNorms::Around, 1.0));
    assert_eq!((config.gate, config.qk_norm, config.tie_embeddings), (Gate::GeluTanh, QkNorm::Rms, true));
    assert_eq!((config.embedding_scale, config.scale), (48f32.sqrt(), 1.0 / 32f32.sqrt()));

    // Fields of published configurations, and what the configuration class fills in.
    let old = json!({
        "rope_parameters": null, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "layer_types": null,
        "rope_scaling": { "rope_type": "linear", "factor": 8.0 }, "sliding_window_pattern": 6,
    });
    assert_eq!(parse("tiny-gemma3", &old).unwrap(), config);
    let bare = json!({
        "rope_parameters": null, "layer_types": null, "sliding_window": null, "head_dim": null,
        "query_pre_attn_scalar": null, "tie_word_embeddings": null, "hidden_activation": null,
    });
    let bare = parse("tiny-gemma3", &bare).unwrap();
    assert_eq!(reach(&bare)[4..6], [Reach::Window(4096), Reach::Full]);
    assert_eq!((bare.head_dim, bare.scale, bare.tie_embeddings), (256, 1.0 / 16.0, true));
    assert_eq!((bare.rope.theta, bare.window_rope.unwrap().theta), (1e6, 1e4));

    let refused = |change| error("tiny-gemma3", change);
    assert_snapshot!(refused(json!({ "hidden_activation": "gelu" })), @r#"hidden_activation = "gelu" would change the result and is not implemented"#);
    assert_snapshot!(refused(json!({ "final_logit_softcapping": 30.0 })), @"final_logit_softcapping = 30.0 would change the result and is not implemented");
    assert_snapshot!(refused(json!({ "attention_bias": true })), @"attention_bias = true would change the result and is not implemented");
    assert_snapshot!(refused(json!({ "use_bidirectional_attention": true })), @"use_bidirectional_attention = true would change the result and is not implemented");
}

#[test]
fn phi3_has_windows_and_part_of_a_head_rotates() {
    let config = parse("tiny-phi3", &json!({})).unwrap();
    assert_eq!((config.rope.rotary_dims, config.head_dim), (8, 16));
    assert_eq!(reach(&config), [Reach::Window(24); 3]);
    let bare = json!({ "rope_parameters": null, "sliding_window": null, "rms_norm_eps": null });
    let bare = parse("tiny-phi3", &bare).unwrap();
    assert_eq!((bare.rope.rotary_dims, bare.rms_norm_eps, reach(&bare)[0]), (16, 1e-5, Reach::Full));
    let long = json!({ "rope_parameters": { "rope_type": "longrope" } });
    assert_snapshot!(error("tiny-phi3", long), @"original_max_position_embeddings is missing");
    let none = json!({ "partial_rotary_factor": 0.0, "rope_parameters": null });
    assert_snapshot!(error("tiny-phi3", none), @"partial_rotary_factor is 0, it must be over 0 and at most 1");
}

#[test]
fn gemma2_bounds_scores_and_logits() {
    let config = parse("tiny-gemma2", &json!({})).unwrap();
    assert_eq!((config.score_softcap, config.logit_softcap), (Some(2.0), Some(3.0)));
    assert!((config.scale - 1.0 / 48_f32.sqrt()).abs() < 1e-7);
    assert_eq!(reach(&config)[..2], [Reach::Window(24), Reach::Full]);
    let negative = json!({ "final_logit_softcapping": -1.0 });
    assert_snapshot!(error("tiny-gemma2", negative), @"final_logit_softcapping is -1, it must be finite and over 0");
}

/// A model that sees too: its text model is a section, of which some fields may lie outside.
#[test]
fn text_models_of_multimodal_ones_are_read_alone() {
    let text = std::fs::read_to_string(fixture("tiny-llama4").join("config.json")).unwrap();
    let text: Value = serde_json::from_str(&text).unwrap();
    let outer =
        json!({ "model_type": "llama4", "text_config": text, "eos_token_id": 5, "vision_config": {} });
    let config = DecoderConfig::from_hf_json(&outer.to_string(), None).unwrap();
    let mut plain = parse("tiny-llama4", &json!({})).unwrap();
    plain.eos_ids = vec![5];
    assert_eq!(config, plain);
    let none = json!({ "model_type": "mistral3" }).to_string();
    assert_snapshot!(DecoderConfig::from_hf_json(&none, None).unwrap_err(), @"text_config is missing");
}

#[test]
fn smollm3_has_layers_that_do_not_rotate() {
    let rotary = |config: DecoderConfig| config.layers.iter().map(|layer| layer.rotary).collect::<Vec<_>>();
    let every_fourth = [true, true, true, false, true];
    assert_eq!(rotary(parse("tiny-smollm3", &json!({})).unwrap()), every_fourth);
    let bare = parse("tiny-smollm3", &json!({ "no_rope_layers": null, "layer_types": null })).unwrap();
    assert_eq!((bare.tie_embeddings, reach(&bare)[3]), (true, Reach::Full));
    assert_eq!(rotary(bare), every_fourth);
    let windows = json!({ "use_sliding_window": true, "sliding_window": 8, "layer_types": null });
    let windows = parse("tiny-smollm3", &windows).unwrap();
    assert_eq!(reach(&windows)[2..4], [Reach::Full, Reach::Window(8)]);
    assert_snapshot!(error("tiny-smollm3", json!({ "no_rope_layers": [1] })), @"no_rope_layers is a list of 1, it must be a list of num_hidden_layers");
}

#[test]
fn granite_scales_the_residual_the_other_way_round() {
    let config = parse("tiny-granite", &json!({})).unwrap();
    assert_eq!((config.scale, config.logit_scale), (0.125, 0.125));
    assert!((config.embedding_scale - 12.0 / 0.22).abs() < 1e-4);
    assert!((config.rms_norm_eps - 1e-6 / 0.22 / 0.22).abs() < 1e-10);
    assert_snapshot!(error("tiny-granite", json!({ "residual_multiplier": 0.0 })), @"residual_multiplier is 0, it must be finite and over 0");
    assert_snapshot!(error("tiny-granite", json!({ "logits_scaling": -1.0 })), @"logits_scaling is -1, it must be finite and over 0");
}

#[test]
fn glm4_rotates_half_of_a_head() {
    let config = parse("tiny-glm4", &json!({})).unwrap();
    assert_eq!((config.rope.rotary_dims, config.rope.pairing), (16, Pairing::Interleaved));
    assert_eq!((config.norms, config.qkv_bias, config.o_bias), (BlockNorms::Around, true, false));
    let bare =
        json!({ "rope_parameters": null, "head_dim": null, "rms_norm_eps": null, "attention_bias": null });
    let bare = parse("tiny-glm4", &bare).unwrap();
    assert_eq!((bare.head_dim, bare.rope.rotary_dims, bare.qkv_bias), (128, 64, true));
    assert_eq!(bare.rms_norm_eps, 1.5625e-7);
}

#[test]
fn llama4_has_chunks_and_layers_without_rotation() {
    let config = parse("tiny-llama4", &json!({})).unwrap();
    let chunk = Reach::Chunk(16);
    assert_eq!(reach(&config), [chunk, chunk, chunk, Reach::Full]);
    let rotary: Vec<bool> = config.layers.iter().map(|layer| layer.rotary).collect();
    assert_eq!(rotary, [true, true, true, false]);
    let mlps: Vec<Mlp> = config.layers.iter().map(|layer| layer.mlp).collect();
    assert_eq!(mlps, [Mlp::Dense, Mlp::Experts, Mlp::Dense, Mlp::Experts]);
    assert_eq!((config.qk_norm, config.rope.pairing), (QkNorm::Unweighted, Pairing::Interleaved));
    assert_eq!(config.intermediate_size, 96);
    let moe = config.moe.unwrap();
    assert_eq!((moe.inner_size, moe.shared_size, moe.weighted_input), (48, Some(48), true));
    let temperature = config.temperature.unwrap();
    assert_eq!((temperature.factor(30), temperature.factor(31)), (1.0, 1.0 + 0.1 * 2f64.ln()));
    // What the configuration class fills in.
    let bare = json!({ "layer_types": null, "no_rope_layers": null, "moe_layers": null, "attention_chunk_size": null });
    let bare = parse("tiny-llama4", &bare).unwrap();
    assert_eq!(reach(&bare)[2..], [Reach::Chunk(8192), Reach::Full]);
    assert_eq!(bare.layers.iter().map(|layer| layer.mlp).collect::<Vec<_>>(), mlps);
    let refused = |change| error("tiny-llama4", change);
    assert_snapshot!(refused(json!({ "attention_chunk_size": 0 })), @"attention_chunk_size is 0, it must be at least 1");
    assert_snapshot!(refused(json!({ "no_rope_layers": [1, 0] })), @"no_rope_layers is a list of 2, it must be a list of num_hidden_layers");
    assert_snapshot!(refused(json!({ "floor_scale": 0 })), @"floor_scale is 0, it must be finite and at least 1");
}

#[test]
fn deepseek_v32_has_latents_an_indexer_and_groups_of_experts() {
    let config = parse("tiny-deepseek-v32", &json!({})).unwrap();
    let latent = LatentConfig { q_rank: Some(48), kv_rank: 32, nope_dim: 16, rope_dim: 16, value_dim: 16 };
    assert_eq!(config.latent, Some(latent));
    assert_eq!(config.indexer, Some(IndexerConfig { num_heads: 16, head_dim: 32, top_k: 16 }));
    assert_eq!((config.num_kv_heads, config.head_dim, config.rope.rotary_dims), (1, 32, 16));
    let mlps: Vec<Mlp> = config.layers.iter().map(|layer| layer.mlp).collect();
    assert_eq!(mlps, [Mlp::Dense, Mlp::Experts, Mlp::Experts]);
    let router = config.moe.unwrap().router;
    assert_eq!((router.groups, router.top_groups, router.scale, router.correction), (2, 1, 2.5, true));
    // YaRN widens scores through `mscale_all_dim`, and the cosines not at all.
    let yarn = json!({
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64,
    });
    let yarn = parse("tiny-deepseek-v32", &json!({ "rope_parameters": yarn })).unwrap();
    let mscale = 0.1 * 40f64.ln() + 1.0;
    assert!((f64::from(yarn.scale / config.scale) - mscale * mscale).abs() < 1e-6);
    assert_eq!(yarn.rope.attention_factor(), 1.0);
    let plain = parse("tiny-deepseek-v3", &json!({})).unwrap();
    assert_eq!((plain.latent, plain.indexer, plain.layers.len()), (Some(latent), None, 3));
    let refused = |change| error("tiny-deepseek-v32", change);
    assert_snapshot!(refused(json!({ "kv_lora_rank": 1024 })), @"kv_lora_rank is 1024, it must be a multiple of 8 up to 512");
    assert_snapshot!(refused(json!({ "q_lora_rank": null })), @"q_lora_rank is missing");
    assert_snapshot!(refused(json!({ "index_head_dim": 8 })), @"index_head_dim is 8, it must be at least qk_rope_head_dim");
    assert_snapshot!(refused(json!({ "n_group": 3 })), @"n_group is 3, it must be a divisor of the experts, with enough of them in topk_group groups");
    assert_snapshot!(refused(json!({ "attention_bias": true })), @"attention_bias = true would change the result and is not implemented");
    let kinds = ["dense", "sparse", "hash_moe"];
    assert_snapshot!(refused(json!({ "mlp_layer_types": kinds })), @r#"mlp_layer_types = "hash_moe" would change the result and is not implemented"#);
}

/// V2 Lite: no latent of queries, and the softmax of all experts as weights.
#[test]
fn deepseek_v2_has_queries_without_a_latent() {
    let config = parse("tiny-deepseek-v2", &json!({})).unwrap();
    assert_eq!(config.latent.unwrap().q_rank, None);
    let moe = config.moe.unwrap();
    assert_eq!((moe.top_k, moe.shared_size), (3, Some(64)));
    let router = Router {
        score: Score::Softmax,
        groups: 1,
        top_groups: 1,
        group_top: 1,
        normalise: false,
        scale: 1.3,
        correction: false,
    };
    assert_eq!(moe.router, router);
    let refused = |change| error("tiny-deepseek-v2", change);
    let limited = json!({ "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2 });
    let groups = parse("tiny-deepseek-v2", &limited).unwrap().moe.unwrap().router;
    assert_eq!((groups.groups, groups.top_groups, groups.group_top), (4, 2, 1));
    assert_snapshot!(refused(json!({ "topk_method": "group_limited_greedy", "n_group": null })), @"n_group is missing");
    assert_snapshot!(refused(json!({ "topk_method": "noaux_tc" })), @r#"topk_method = "noaux_tc" would change the result and is not implemented"#);
    assert_snapshot!(refused(json!({ "q_lora_rank": 12 })), @"q_lora_rank is 12, it must be a multiple of 8 up to 65536");
    assert_snapshot!(refused(json!({ "norm_topk_prob": true })), @r#"norm_topk_prob = "true" would change the result and is not implemented"#);
    assert_snapshot!(refused(json!({ "scoring_func": "sigmoid" })), @r#"scoring_func = "sigmoid" would change the result and is not implemented"#);
    assert_snapshot!(error("tiny-deepseek-v32", json!({ "q_lora_rank": null })), @"q_lora_rank is missing");
}

#[test]
fn deepseek_v4_has_windows_compressors_and_streams() {
    let config = parse("tiny-deepseek-v4", &json!({})).unwrap();
    assert_eq!(reach(&config), [Reach::Window(16); 5]);
    let compressed = config.compressed.unwrap();
    let heavy = Some(Compressor { ratio: 32, indexed: false });
    let sparse = Some(Compressor { ratio: 4, indexed: true });
    assert_eq!(compressed.compressors, [None, heavy, sparse, heavy, sparse]);
    assert_eq!((compressed.q_rank, compressed.output_groups, compressed.output_rank), (48, 2, 24));
    assert_eq!((config.rope.theta, compressed.rope.theta), (1e4, 1.6e5));
    assert_eq!((config.rope.rotary_dims, compressed.rope.rotary_dims), (16, 16));
    assert_eq!(config.indexer, Some(IndexerConfig { num_heads: 16, head_dim: 32, top_k: 8 }));
    assert_eq!(config.hyper, Some(HyperConfig { streams: 2, rounds: 20, eps: 1e-6 }));
    assert!(config.sinks);
    let mlps: Vec<Mlp> = config.layers.iter().map(|layer| layer.mlp).collect();
    assert_eq!(mlps, [Mlp::HashedExperts, Mlp::Experts, Mlp::Experts, Mlp::Experts, Mlp::Experts]);
    let moe = config.moe.unwrap();
    assert_eq!((moe.inner_size, moe.shared_size), (32, Some(32)));
    assert_eq!(moe.activation, Activation::LimitedSilu { limit: 10.0 });
    assert_eq!((moe.router.score, moe.router.scale, moe.router.normalise), (Score::SqrtSoftplus, 1.5, true));
}

/// The names of the published files, and what the configuration class fills in.
#[test]
fn deepseek_v4_goes_by_older_names_too() {
    let old = json!({
        "layer_types": null, "mlp_layer_types": null, "compress_rates": null, "rope_parameters": null,
        "partial_rotary_factor": null, "compress_ratios": [0, 128, 4, 128, 4, 0], "num_hash_layers": 1,
        "compress_rate_hca": 32, "qk_rope_head_dim": 16, "rope_theta": 1e4, "compress_rope_theta": 1.6e5,
    });
    let new = parse("tiny-deepseek-v4", &json!({})).unwrap();
    assert_eq!(parse("tiny-deepseek-v4", &old).unwrap(), new);
    let bare = json!({ "layer_types": null, "mlp_layer_types": null, "compress_rates": null });
    let bare = parse("tiny-deepseek-v4", &bare).unwrap();
    let ratios = bare.compressed.unwrap().compressors.into_iter().map(|compressor| compressor.unwrap().ratio);
    assert_eq!(ratios.collect::<Vec<_>>(), [128, 128, 128, 4, 128]);
    let hashed = bare.layers.iter().filter(|layer| layer.mlp == Mlp::HashedExperts).count();
    assert_eq!(hashed, 3);
    // A scaling without sections goes to layers with a compressor, and leaves the length of what it turns alone.
    let yarn = json!({
        "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1,
    });
    let scaled = parse("tiny-deepseek-v4", &json!({ "rope_parameters": yarn })).unwrap();
    let compressed = scaled.compressed.unwrap();
    assert_eq!(scaled.rope, new.rope);
    assert!(matches!(compressed.rope.scaling, RopeScaling::Yarn { factor: 16.0, .. }));
    assert_eq!((compressed.rope.theta, compressed.rope.attention_factor()), (1.6e5, 1.0));
}

#[test]
fn deepseek_v4_configurations_that_make_no_sense_are_named() {
    let refused = |change| error("tiny-deepseek-v4", change);
    assert_snapshot!(refused(json!({ "layer_types": ["sliding_attention"] })), @"layer_types is a list of 1, it must be a list of num_hidden_layers");
    assert_snapshot!(refused(json!({ "layer_types": ["a", "b", "c", "d", "e"] })), @r#"layer_types = "a" would change the result and is not implemented"#);
    assert_snapshot!(refused(json!({ "layer_types": null, "compress_ratios": [4, 4] })), @"compress_ratios is a list of 2, it must be a list of num_hidden_layers or more");
    assert_snapshot!(refused(json!({ "layer_types": null, "compress_ratios": [4, 4, 8, 4, 4] })), @r#"compress_ratios = "8" would change the result and is not implemented"#);
    assert_snapshot!(refused(json!({ "compress_rates": { "compressed_sparse_attention": 4 } })), @"heavily_compressed_attention is missing");
    assert_snapshot!(refused(json!({ "compress_rate_csa": 0 })), @"compress_rates is 0, it must be from 1 to 4096");
    assert_snapshot!(refused(json!({ "sliding_window": 0 })), @"sliding_window is 0, it must be at least 1");
    assert_snapshot!(refused(json!({ "num_key_value_heads": 2 })), @"num_key_value_heads is 2, it must be 1");
    assert_snapshot!(refused(json!({ "head_dim": 1024 })), @"head_dim is 1024, it must be a multiple of 8 up to 512");
    assert_snapshot!(refused(json!({ "o_groups": 3 })), @"o_groups is 3, it must be a divisor of an eighth of num_attention_heads * head_dim");
    assert_snapshot!(refused(json!({ "index_head_dim": 8 })), @"rotary dims is 16, it must be even, from 2 to head_dim and index_head_dim");
    assert_snapshot!(refused(json!({ "hc_mult": 0 })), @"hc_mult is 0, it must be from 1 to 16");
    assert_snapshot!(refused(json!({ "scoring_func": "tanh" })), @r#"scoring_func = "tanh" would change the result and is not implemented"#);
    assert_snapshot!(refused(json!({ "swiglu_limit": 0 })), @"swiglu_limit is 0, it must be finite and over 0");
    assert_snapshot!(refused(json!({ "expert_dtype": "nvfp4" })), @r#"expert_dtype = "nvfp4" would change the result and is not implemented"#);
    assert_snapshot!(refused(json!({ "mlp_bias": true })), @"mlp_bias = true would change the result and is not implemented");
    assert_snapshot!(refused(json!({ "attention_bias": true })), @"attention_bias = true would change the result and is not implemented");
    let half = json!({ "main": { "rope_theta": 1e4 }, "compress": { "rope_type": "default" } });
    assert_snapshot!(refused(json!({ "rope_parameters": half })), @"rope_theta is missing");
}

#[test]
fn qwen3_moe_mixes_dense_layers_and_experts() {
    let change = json!({
        "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [1],
    });
    let config = parse("tiny-qwen3", &change).unwrap();
    let mlps: Vec<Mlp> = config.layers.iter().map(|layer| layer.mlp).collect();
    assert_eq!(mlps, [Mlp::Experts, Mlp::Dense, Mlp::Experts]);
    let router = config.moe.unwrap().router;
    assert_eq!((router.score, router.normalise, router.groups), (Score::Softmax, true, 1));
}

#[test]
fn experts_that_make_no_sense_are_named() {
    let refused = |change| error("tiny-gpt-oss", change);
    assert_snapshot!(refused(json!({ "num_local_experts": null })), @"num_local_experts is missing");
    assert_snapshot!(refused(json!({ "num_local_experts": 5000 })), @"the number of experts is 5000, it must be 1 to 1024");
    assert_snapshot!(refused(json!({ "num_experts_per_tok": 5 })), @"num_experts_per_tok is 5, it must be 1 to the number of experts, at most 64");
    assert_snapshot!(refused(json!({ "layer_types": ["full_attention"] })), @"layer_types is a list of 1, it must be a list of num_hidden_layers");
    assert_snapshot!(refused(json!({ "sliding_window": 0 })), @"sliding_window is 0, it must be at least 1");
    assert_snapshot!(refused(json!({ "quantization_config": { "quant_method": "bitsandbytes" } })), @r#"quantization_config.quant_method = "bitsandbytes": weights stored so are not implemented"#);
    assert_snapshot!(error("tiny-qwen3-moe", json!({ "decoder_sparse_step": 0 })), @"decoder_sparse_step is 0, it must be at least 1");
    assert_snapshot!(error("tiny-qwen3-moe", json!({ "mlp_only_layers": [3] })), @"mlp_only_layers is a list with 3, it must be a list of numbers under num_hidden_layers");
    assert_snapshot!(error("tiny-llama4", json!({ "moe_layers": [1, 4] })), @"moe_layers is a list with 4, it must be a list of numbers under num_hidden_layers");
    // Experts in a family that has none.
    assert_snapshot!(error("tiny-qwen3", json!({ "num_experts": 4 })), @"num_experts = 4 would change the result and is not implemented");
}

/// Fields of other models, or of later versions, that change what is computed.
#[test]
fn fields_that_nobody_here_knows_are_refused() {
    let rope = |field: &str, value: Value| {
        let mut section = json!({ "rope_type": "default", "rope_theta": 1e4 });
        section[field] = value;
        json!({ "rope_parameters": section })
    };
    assert_snapshot!(error("tiny-mistral", rope("llama_4_scaling_beta", json!(0.1))), @"llama_4_scaling_beta in rope_parameters = 0.1 would change the result and is not implemented");
    assert_snapshot!(error("tiny-mistral", rope("full_attention", json!({ "rope_theta": 1e6 }))), @r#"full_attention in rope_parameters = {"rope_theta":1000000.0} would change the result and is not implemented"#);
    assert_snapshot!(error("tiny-mistral", json!({ "rope_scaling": { "factor": 2.0, "rope_type": "linear" } })), @r#"rope_scaling = {"factor":2.0,"rope_type":"linear"} beside other rope_parameters would change the result and is not implemented"#);
    assert_snapshot!(error("tiny-mistral", json!({ "layer_types": ["full_attention", "sliding_attention", "full_attention"] })), @r#"layer_types = "full_attention" would change the result and is not implemented"#);
    assert_snapshot!(error("tiny-llama", json!({ "per_layer_config": { "1": { "head_dim": 8 } } })), @r#"per_layer_config = {"1":{"head_dim":8}} would change the result and is not implemented"#);
    assert_snapshot!(error("tiny-llama", json!({ "head_dim": null, "hidden_size": 66 })), @"hidden_size is 66, it must be a multiple of num_attention_heads");
    assert_snapshot!(error("tiny-qwen3-moe", json!({ "shared_expert_intermediate_size": 64 })), @"shared_expert_intermediate_size = 64 would change the result and is not implemented");
    assert_snapshot!(error("tiny-deepseek-v32", json!({ "scoring_func": "softmax" })), @r#"scoring_func = "softmax" would change the result and is not implemented"#);
    assert_snapshot!(error("tiny-deepseek-v32", json!({ "topk_method": "greedy" })), @r#"topk_method = "greedy" would change the result and is not implemented"#);
    // What published configurations say without a change.
    let published = json!({
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "ep_size": 1,
        "num_nextn_predict_layers": 1, "aux_loss_alpha": 0.001, "seq_aux": true,
    });
    assert!(parse("tiny-deepseek-v32", &published).is_ok());
    assert!(parse("tiny-llama4", &json!({ "attn_temperature_tuning": 4 })).unwrap().temperature.is_some());
    assert!(parse("tiny-llama4", &json!({ "attn_temperature_tuning": 0 })).unwrap().temperature.is_none());
}

#[test]
fn qwen3_moe_has_one_reach_for_all_layers() {
    let windows = json!({ "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2 });
    assert_eq!(reach(&parse("tiny-qwen3-moe", &windows).unwrap()), [Reach::Window(8); 3]);
    // The class has no default for the size of heads.
    assert_eq!(parse("tiny-qwen3-moe", &json!({ "head_dim": null })).unwrap().head_dim, 16);
}
