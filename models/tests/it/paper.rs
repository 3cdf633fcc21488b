//! The paper model: KV memory of published models, computed by kvblock from `configs/`, is what `docs/kv-memory.md` says.

use std::fmt::Write;
use std::path::Path;

use attn_kernels::kernel::KvDtype;
use kvblock::{CacheLayout, KvCacheSpec, LayoutOptions, LengthLimits};
use models::{CachePart, DecoderConfig, IndexDtype, KvOptions, KvPlan};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    name: String,
    groups: Vec<Group>,
    /// Cache that full attention would keep.
    dense: Group,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    layers: u32,
    spec: KvCacheSpec,
}

impl Group {
    /// Bytes of one more token, far behind every window.
    fn token_bytes(&self) -> u64 {
        match self.spec.kind.is_full() {
            true => u64::from(self.layers) * self.spec.page_bytes() / u64::from(self.spec.block_size.get()),
            false => 0,
        }
    }

    fn request_bytes(&self, tokens: u32) -> u64 {
        u64::from(self.layers) * self.spec.max_memory_bytes(limits(tokens))
    }
}

const CHUNK: u32 = 2048;

fn limits(tokens: u32) -> LengthLimits {
    LengthLimits::new(tokens).max_batched_tokens(CHUNK)
}

const LENGTHS: [u32; 2] = [128 << 10, 1 << 20];

#[expect(clippy::cast_precision_loss, reason = "for people to read")]
fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

fn row(name: &str, group: &Group) -> String {
    let [short, long] = LENGTHS.map(|tokens| mib(group.request_bytes(tokens)));
    format!("| {name} | {} | {} | {short} | {long} |\n", group.layers, group.token_bytes())
}

fn table(model: &Model) -> String {
    let mut table = format!("### {}\n\n", model.name);
    table += "| group | layers | bytes per token | MiB per request of 128k tokens | of 1M tokens |\n\
         |---|---|---|---|---|\n";
    for group in &model.groups {
        table += &row(&group.name, group);
    }
    let sum = |of: &dyn Fn(&Group) -> u64| model.groups.iter().map(of).sum::<u64>();
    let [short, long] = LENGTHS.map(|tokens| mib(sum(&|group| group.request_bytes(tokens))));
    writeln!(table, "| **all groups** | | {} | {short} | {long} |", sum(&Group::token_bytes)).unwrap();
    let specs: Vec<KvCacheSpec> =
        model.groups.iter().flat_map(|group| vec![group.spec; group.layers as usize]).collect();
    let layout = CacheLayout::plan(&specs, LayoutOptions::HYBRID).unwrap();
    let [short, long] = LENGTHS.map(|tokens| mib(layout.bytes_per_seq(limits(tokens))));
    writeln!(table, "| in one pool of {} block tables | | | {short} | {long} |", layout.groups.len())
        .unwrap();
    table += &row(&format!("*{}*", model.dense.name), &model.dense);
    table
}

#[test]
fn the_paper_model_is_what_kvblock_computes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = std::fs::read_to_string(root.join("../docs/kv-memory.md")).unwrap();
    for name in ["gpt-oss-120b", "llama-4-scout", "deepseek-v3.2", "deepseek-v4-flash"] {
        let text = std::fs::read_to_string(root.join("configs").join(format!("{name}.ron"))).unwrap();
        let table = table(&ron::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}")));
        assert!(docs.contains(&table), "docs/kv-memory.md lacks\n\n{table}");
    }
}

/// The engine's caches of a model of DeepSeek V4 Flash's shape are those of the paper model.
#[test]
fn the_engine_keeps_what_the_paper_model_says() {
    let config = r#"{
        "model_type": "deepseek_v4", "vocab_size": 129280, "hidden_size": 4096, "moe_intermediate_size": 2048,
        "num_hidden_layers": 43, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512,
        "qk_rope_head_dim": 64, "q_lora_rank": 1024, "o_groups": 8, "o_lora_rank": 1024, "n_routed_experts": 256,
        "num_experts_per_tok": 6, "max_position_embeddings": 1048576, "sliding_window": 128, "num_hash_layers": 3,
        "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512, "compress_ratios": [0, 0
    "#;
    let ratios: String = (2..43).map(|layer| if layer % 2 == 0 { ", 4" } else { ", 128" }).collect();
    let config = DecoderConfig::from_hf_json(&format!("{config}{ratios}]}}"), None).unwrap();
    let options = KvOptions::new(KvDtype::F16, 64);
    let plan = KvPlan::new(&config, options).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("configs/deepseek-v4-flash.ron")).unwrap();
    let model: Model = ron::from_str(&text).unwrap();
    let parts = [
        CachePart::Latent,
        CachePart::Entries,
        CachePart::IndexKeys,
        CachePart::Entries,
        CachePart::States,
        CachePart::IndexStates,
        CachePart::States,
    ];
    let bytes = |spec: &KvCacheSpec| (spec.kind, spec.block_size, spec.page_bytes());
    for (group, part) in model.groups.iter().zip(parts) {
        let caches = plan.caches.iter().filter(|cache| cache.part == part);
        let same = caches.filter(|cache| bytes(&cache.spec) == bytes(&group.spec)).count();
        assert_eq!(same, group.layers as usize, "{}", group.name);
    }
    let caches: u32 = model.groups.iter().map(|group| group.layers).sum();
    assert_eq!(plan.caches.len(), caches as usize);
    let specs: Vec<KvCacheSpec> =
        model.groups.iter().flat_map(|group| vec![group.spec; group.layers as usize]).collect();
    let paper = CacheLayout::plan(&specs, LayoutOptions::HYBRID).unwrap();
    assert_eq!(plan.layout.groups.len(), paper.groups.len());
    assert_eq!(plan.block_bytes(), paper.bytes_per_block());
    let names: Vec<String> = (0..plan.layout.groups.len()).map(|group| plan.group_name(group)).collect();
    insta::assert_snapshot!(names.join(", "), @"full, window_128, window_128.1, states_8, states_128");
    // In fp8 as published: a token or an entry takes 584 bytes, and an index key 132.
    let plan = KvPlan::new(&config, KvOptions::new(KvDtype::Fp8, 64)).unwrap();
    let page = |layer, part| plan.cache(layer, part).unwrap().spec.page_bytes();
    assert_eq!([page(0, CachePart::Latent), page(2, CachePart::Entries)], [64 * 584; 2]);
    assert_eq!([page(2, CachePart::IndexKeys), page(3, CachePart::Entries)], [64 * 132, 2 * 584]);
}

/// Every block size from 4 on gives caches that share blocks, whatever the ratios and sizes of heads.
#[test]
fn caches_of_any_ratios_share_blocks() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("tests/fixtures/tiny-deepseek-v4/config.json")).unwrap();
    for ((sparse, heavy), (head_dim, index_dim)) in
        [(4, 32), (4, 128), (2, 8), (6, 10), (8, 4), (1, 1)].into_iter().flat_map(|ratios| {
            [(32, 32), (64, 16), (32, 64), (72, 40)].into_iter().map(move |dims| (ratios, dims))
        })
    {
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config["compress_rate_csa"] = sparse.into();
        config["compress_rate_hca"] = heavy.into();
        config["head_dim"] = head_dim.into();
        config["index_head_dim"] = index_dim.into();
        config["rope_parameters"] = serde_json::json!(null);
        config["partial_rotary_factor"] = 0.25.into();
        let config = DecoderConfig::from_hf_json(&config.to_string(), None).unwrap();
        for (dtype, block_size, recycle) in [KvDtype::F16, KvDtype::F32, KvDtype::Int8, KvDtype::Fp8]
            .into_iter()
            // Of 72 dimensions 18 rotate, which no kernel keeps apart.
            .filter(|dtype| *dtype != KvDtype::Fp8 || head_dim != 72)
            .flat_map(|dtype| [4, 8, 16, 32, 64, 128].map(|size| (dtype, size)))
            .flat_map(|(dtype, size)| [true, false].map(|recycle| (dtype, size, recycle)))
        {
            let options = KvOptions::new(dtype, block_size).recycle(recycle);
            let coded = Some(options.index_dtype(IndexDtype::Fp8)).filter(|_| index_dim != 40);
            for options in [Some(options), coded].into_iter().flatten() {
                shares_blocks(&config, options, &format!("{sparse} and {heavy}, {head_dim} and {index_dim}"));
            }
        }
    }
}

fn shares_blocks(config: &DecoderConfig, options: KvOptions, what: &str) {
    let what = format!("{what}, {options:?}");
    let plan = KvPlan::new(config, options).unwrap_or_else(|error| panic!("{what}: {error}"));
    for cache in &plan.caches {
        let page = plan.layout.tensors[cache.tensor].page_bytes;
        // Slots of tokens and entries count from the start of a buffer.
        let padded = matches!(cache.part, CachePart::States | CachePart::IndexStates);
        let fits = if padded { cache.spec.page_bytes() <= page } else { cache.spec.page_bytes() == page };
        assert!(fits, "{what}: {cache:?} in pages of {page}");
        assert_eq!(page % 16, 0, "{what}");
    }
    assert!(plan.block_sizes().all(|size| size > 0));
}
