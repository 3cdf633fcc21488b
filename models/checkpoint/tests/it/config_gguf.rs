//! Decoder configuration from the metadata of GGUF files.

use checkpoint::{DecoderConfig, ExpertPacking, Gguf, Pairing, Reach, RopeScaling, Router};
use insta::{assert_debug_snapshot, assert_snapshot};
use proptest::prelude::*;

use super::{
    cases, fixture,
    gguf_writer::{GgufWriter, array_value, f32_value, str_value, string, u32_value, value},
};

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

/// Control tokens by their names, where no key says which token ends a turn; text that looks like one is none.
#[test]
fn ends_of_turns_are_known_by_name() {
    let ends = |tokens: &[(&str, i32)], eot: Option<u32>| {
        let mut file = gguf("llama");
        file.metadata.retain(|(key, _)| key != "tokenizer.ggml.eot_token_id");
        if let Some(id) = eot {
            file.set("tokenizer.ggml.eot_token_id", u32_value(id));
        }
        // Five names among a hundred tokens.
        let name = |id: usize| tokens.get(id).map_or("x", |(name, _)| *name);
        let kind = |id: usize| tokens.get(id).map_or(1, |(_, kind)| *kind);
        let names = (0..100).flat_map(|id| string(name(id))).collect::<Vec<u8>>();
        file.set("tokenizer.ggml.tokens", array_value(8, 100, names));
        let kinds = (0..100).flat_map(|id| kind(id).to_le_bytes()).collect::<Vec<u8>>();
        file.set("tokenizer.ggml.token_type", array_value(5, 100, kinds));
        from_gguf(&file).unwrap().eos_ids
    };
    let gemma = [("<bos>", 3), ("<eos>", 3), ("a", 1), ("<end_of_turn>", 3), ("<|im_end|>", 1)];
    assert_eq!(ends(&gemma, None), [2, 3]);
    assert_eq!(ends(&gemma, Some(7)), [2, 7]);
    let messages = [("<|end|>", 3), ("<|return|>", 3)];
    assert_eq!(ends(&messages, None), [2, 1]);
    assert_eq!(ends(&messages[..1], None), [2, 0]);
    assert_eq!(ends(&[], None), [2]);
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
            pairing: Interleaved,
            scaling: None,
        },
        window_rope: None,
        context_length: 512,
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
        eos_ids: [
            2,
            3,
        ],
        bos_id: None,
    }
    ");
}

/// The configurations of config.json and GGUF agree, once the differences that belong to the formats are taken out.
#[test]
fn gguf_says_what_config_json_says() {
    for name in [
        "tiny-llama",
        "tiny-qwen2",
        "tiny-qwen3",
        "tiny-gemma3",
        "tiny-phi3",
        "tiny-smollm3",
        "tiny-granite",
        "tiny-glm4",
        "tiny-gpt-oss-mxfp4",
    ] {
        let folder = fixture(name);
        let hf = DecoderConfig::from_hf_dir(&folder).unwrap();
        let mut gguf = DecoderConfig::from_gguf(&Gguf::open(folder.join("model.gguf")).unwrap()).unwrap();
        for (gguf, hf) in gguf.rope.inv_freq().iter().zip(hf.rope.inv_freq()) {
            assert!((gguf / hf - 1.0).abs() < 1e-6, "{name}: {gguf} instead of {hf}");
        }
        assert!((gguf.rope.attention_factor() - hf.rope.attention_factor()).abs() < 1e-12, "{name}");
        // Converters lay rows of queries and keys so for some.
        let neighbours = ["tiny-llama", "tiny-smollm3", "tiny-granite", "tiny-glm4"];
        assert_eq!(gguf.rope.pairing == Pairing::Interleaved, neighbours.contains(&name), "{name}");
        gguf.rope.clone_from(&hf.rope);
        // GGUF holds whole weights of norms.
        gguf.norm_offset = hf.norm_offset;
        if let (Some(gguf), Some(hf)) = (&mut gguf.moe, &hf.moe) {
            assert_eq!(gguf.packing, ExpertPacking::Rows);
            gguf.packing = hf.packing;
        }
        // The writer of the fixtures leaves the tokenizer out.
        gguf.bos_id = hf.bos_id;
        gguf.eos_ids.clone_from(&hf.eos_ids);
        assert_eq!(gguf, hf, "{name}");
    }
}

/// Groups of experts, of which old files of the large V2 do not speak.
#[test]
fn gguf_says_how_experts_are_grouped() {
    let folder = fixture("tiny-deepseek-v2-groups");
    let router = |config: DecoderConfig| config.moe.unwrap().router;
    let stated = DecoderConfig::from_gguf(&Gguf::open(folder.join("model.gguf")).unwrap()).unwrap();
    let hf = DecoderConfig::from_hf_dir(&folder).unwrap();
    assert_eq!(router(stated), router(hf));
    let mut old = gguf("deepseek2");
    for (key, n) in [
        ("expert_count", 160),
        ("expert_used_count", 6),
        ("expert_feed_forward_length", 32),
        ("expert_shared_count", 2),
        ("rope.dimension_count", 16),
        ("attention.kv_lora_rank", 32),
        ("attention.key_length", 32),
        ("attention.value_length", 16),
    ] {
        old.set(&format!("deepseek2.{key}"), u32_value(n));
    }
    let groups = |router: Router| (router.groups, router.top_groups, router.group_top);
    assert_eq!(groups(router(from_gguf(&old).unwrap())), (8, 3, 1));
    old.set("deepseek2.expert_count", u32_value(64));
    assert_eq!(groups(router(from_gguf(&old).unwrap())), (1, 1, 1));
    old.set("deepseek2.expert_gating_func", u32_value(2)).set("deepseek2.expert_group_count", u32_value(8));
    assert_eq!(groups(router(from_gguf(&old).unwrap())), (8, 1, 2));
}

#[test]
fn gguf_of_gpt_oss_has_a_pattern_of_windows() {
    let mut writer = gguf("gpt-oss");
    for (key, n) in [("expert_count", 4), ("expert_used_count", 2), ("attention.sliding_window", 16)] {
        writer.set(&format!("gpt-oss.{key}"), u32_value(n));
    }
    let reach = |writer: &GgufWriter| -> Result<Vec<Reach>, String> {
        Ok(from_gguf(writer)?.layers.iter().map(|layer| layer.reach).collect())
    };
    let pattern = "gpt-oss.attention.sliding_window_pattern";
    let (window, full) = (Reach::Window(16), Reach::Full);
    assert_eq!(reach(&writer).unwrap(), [window, full]);
    for (period, want) in
        [(0, [window, window]), (1, [full, full]), (2, [window, full]), (3, [window, window])]
    {
        assert_eq!(reach(writer.set(pattern, u32_value(period))).unwrap(), want, "period {period}");
    }
    assert_eq!(reach(writer.set(pattern, array_value(7, 2, [0, 1]))).unwrap(), [full, window]);
    assert_snapshot!(reach(writer.set(pattern, array_value(7, 1, [0]))).unwrap_err(), @"attention.sliding_window_pattern is an array of 1, it must be an array of block_count");
    assert_snapshot!(reach(writer.set(pattern, str_value("LG"))).unwrap_err(), @r#"metadata gpt-oss.attention.sliding_window_pattern is "LG", not a value of type array of integers"#);
    writer.metadata.retain(|(key, _)| key != pattern);
    assert_snapshot!(reach(writer.set("gpt-oss.expert_gating_func", u32_value(2))).unwrap_err(), @"gpt-oss.expert_gating_func = 2 would change the result and is not implemented");
    writer.set("gpt-oss.expert_gating_func", u32_value(3));
    assert_snapshot!(reach(writer.set("gpt-oss.attention.sliding_window", u32_value(0))).unwrap_err(), @"attention.sliding_window is 0, it must be at least 1");
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
    assert_snapshot!(from_gguf(&gguf("gemma")).unwrap_err(), @r#"model family "gemma" is not implemented (implemented: llama, mistral3, qwen2, qwen3, qwen3moe, gemma2, gemma3, phi3, smollm3, granite, olmo2, glm4, gpt-oss, llama4, deepseek2)"#);
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
}
