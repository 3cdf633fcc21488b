//! The paper model: KV memory of published models, computed by kvblock from `configs/`, is what `docs/kv-memory.md` says.

use std::fmt::Write;
use std::path::Path;

use kvblock::{CacheLayout, KvCacheSpec, LayoutOptions, LengthLimits};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    name: String,
    groups: Vec<Group>,
    /// What full attention would keep.
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
    LengthLimits { max_model_len: tokens, max_batched_tokens: CHUNK }
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
    table += "| group | layers | bytes a token | MiB a request of 128k | of 1M |\n|---|---|---|---|---|\n";
    for group in &model.groups {
        table += &row(&group.name, group);
    }
    let sum = |of: &dyn Fn(&Group) -> u64| model.groups.iter().map(of).sum::<u64>();
    let [short, long] = LENGTHS.map(|tokens| mib(sum(&|group| group.request_bytes(tokens))));
    writeln!(table, "| **all groups** | | {} | {short} | {long} |", sum(&Group::token_bytes)).unwrap();
    let specs: Vec<KvCacheSpec> =
        model.groups.iter().flat_map(|group| vec![group.spec; group.layers as usize]).collect();
    let layout = CacheLayout::plan(&specs, LayoutOptions { hybrid: true, eagle_layer: None }).unwrap();
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
