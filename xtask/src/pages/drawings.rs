//! Drawings of how KV blocks are held and moved.

use anyhow::{Context, Result};
use kvblock::{
    AttentionKind, BlockId, BlockSize, ExtraKeys, GroupId, HashChain, KvCache, KvCacheConfig, KvCacheSpec,
    KvDtype, LengthLimits, SeqContent, SeqId, SlotRequest, TokenId,
};

use super::svg::{At, Svg};

/// Side of a drawn block.
const CELL: f64 = 38.0;

fn cell(svg: &mut Svg, at: At, class: &str, text: &str) {
    svg.rect(at, At(CELL - 4.0, CELL - 4.0), &format!("{class} cell"));
    let ink = if class == "e" { "mid" } else { "on mid" };
    svg.text(At(at.0 + CELL / 2.0 - 2.0, at.1 + CELL / 2.0 + 3.0), ink, text);
}

/// Draws the block tables of three sequences, two of them with a common prefix, and their pool, as `kvblock`
/// allocates them.
///
/// # Errors
/// If `kvblock` refuses the sequences.
pub(super) fn blocks_of_a_batch() -> Result<String> {
    let block_size = BlockSize::new(4).context("a block has at least one token")?;
    let spec = KvCacheSpec::new(AttentionKind::FULL, block_size, 1, 8, KvDtype::F16);
    let mut cache = KvCache::new(&KvCacheConfig::uniform(16, spec, 1, LengthLimits::new(64)))?;
    let prefix = 0..12;
    let prompts: [Vec<TokenId>; 3] =
        [prefix.clone().chain(100..110).collect(), prefix.chain(200..205).collect(), (300..318).collect()];
    let mut tables = Vec::new();
    for (prompt, seq) in prompts.iter().zip(0..) {
        tables.push(table(&mut cache, SeqId::new(seq), prompt)?);
    }
    let title = "KV blocks of a batch: two requests share the blocks of their common prefix";
    let mut svg = Svg::new(720, 330, title);
    svg.text(At(16.0, 24.0), "head", title);
    svg.text(At(16.0, 56.0), "soft", "Block tables: the block of each four tokens");
    let names = ["request A, 22 tokens", "request B, 17 tokens", "request C, 18 tokens"];
    for ((blocks, name), (class, row)) in tables.iter().zip(names).zip([("a", 0.0), ("b", 1.0), ("c", 2.0)]) {
        let y = 70.0 + row * (CELL + 6.0);
        svg.text(At(16.0, y + 22.0), "", name);
        for (block, x) in blocks.iter().zip(0_u32..) {
            let class = if holders(&tables, *block) > 1 { "d" } else { class };
            cell(&mut svg, At(180.0 + f64::from(x) * CELL, y), class, &format!("b{}", block.get()));
        }
    }
    svg.text(At(16.0, 226.0), "soft", "The pool: each block is in memory once");
    for block in (0..16).map(BlockId::new) {
        let holder = tables.iter().position(|blocks| blocks.contains(&block));
        let class = match (holder, holders(&tables, block)) {
            (Some(_), 2..) => "d",
            (Some(holder), _) => ["a", "b", "c"][holder],
            _ => "e",
        };
        cell(
            &mut svg,
            At(16.0 + f64::from(block.get()) * (CELL + 5.0), 238.0),
            class,
            &format!("b{}", block.get()),
        );
    }
    let mut x = 16.0;
    for (class, text) in
        [("a", "A"), ("b", "B"), ("c", "C"), ("d", "A and B"), ("e", "free, or b0, which is never used")]
    {
        svg.rect(At(x, 296.0), At(12.0, 12.0), class);
        svg.text(At(x + 18.0, 307.0), "soft", text);
        x += if class == "d" { 100.0 } else { 60.0 };
    }
    Ok(svg.finish())
}

/// Allocates the blocks of a prompt and returns them, those of a cached prefix included.
fn table(cache: &mut KvCache, seq: SeqId, prompt: &[TokenId]) -> Result<Vec<BlockId>> {
    let mut chain = HashChain::new(cache.hasher(), ExtraKeys::default());
    chain.extend(prompt);
    let content = SeqContent::new(prompt, chain.hashes());
    let hit = cache.lookup(content);
    let new = u32::try_from(prompt.len())? - hit.num_tokens;
    cache.allocate_slots(SlotRequest::new(seq, content, 0, new).hit(Some(&hit)))?;
    let table = cache.table(seq, GroupId::new(0)).context("slots were allocated")?;
    Ok(table.blocks().to_vec())
}

fn holders(tables: &[Vec<BlockId>], block: BlockId) -> usize {
    tables.iter().filter(|blocks| blocks.contains(&block)).count()
}

/// Draws how a context that exceeds the card is read: dense through a ring of two slots, with a policy through slots for pages.
pub(super) fn ring_and_pages() -> String {
    let title = "A context larger than the card: the ring (dense), and the pages (sparse)";
    let mut svg = Svg::new(720, 400, title);
    svg.text(At(16.0, 24.0), "head", title);
    ring(&mut svg);
    pages(&mut svg);
    svg.finish()
}

/// A row of blocks, each of the class that `class` returns.
fn row(svg: &mut Svg, at: At, count: u32, class: impl Fn(u32) -> &'static str) {
    for block in 0..count {
        svg.rect(At(at.0 + f64::from(block) * 14.0, at.1), At(11.0, 22.0), &format!("{} cell", class(block)));
    }
}

fn ring(svg: &mut Svg) {
    svg.text(
        At(16.0, 56.0),
        "",
        "Dense attention reads every block, so each layer passes through one of two slots.",
    );
    svg.text(At(16.0, 90.0), "soft", "card");
    svg.rect(At(80.0, 70.0), At(200.0, 34.0), "box");
    row(svg, At(88.0, 76.0), 13, |_| "a");
    svg.text(At(180.0, 122.0), "soft mid", "slot 0: layer 7, being attended");
    svg.rect(At(320.0, 70.0), At(200.0, 34.0), "box");
    row(svg, At(328.0, 76.0), 13, |block| if block < 8 { "b" } else { "e" });
    svg.text(At(420.0, 122.0), "soft mid", "slot 1: layer 8, arriving");
    svg.text(At(16.0, 178.0), "soft", "host");
    for (layer, x) in [(6, 80.0), (7, 290.0), (8, 500.0)] {
        row(svg, At(x, 164.0), 13, move |block| match layer {
            8 if block < 8 => "b",
            7 => "a",
            _ => "e",
        });
        svg.text(At(x, 204.0), "soft", &format!("KV of layer {layer}"));
    }
    svg.arrow(At(560.0, 160.0), At(506.0, 108.0));
}

fn pages(svg: &mut Svg) {
    let selected = [0, 5, 11, 12, 20, 29, 38];
    let missing = [11, 29];
    let y = 232.0;
    svg.text(
        At(16.0, y),
        "",
        "A policy selects pages, and only the selected pages that the card does not hold are fetched.",
    );
    svg.text(At(16.0, y + 40.0), "soft", "card");
    svg.rect(At(80.0, y + 20.0), At(186.0, 34.0), "box");
    row(svg, At(88.0, y + 26.0), 12, move |slot| match slot {
        0..5 => "a",
        5 | 6 => "b",
        _ => "e",
    });
    svg.text(At(276.0, y + 42.0), "soft", "slots for pages");
    svg.text(At(16.0, y + 116.0), "soft", "host");
    row(svg, At(80.0, y + 102.0), 40, move |block| match block {
        _ if missing.contains(&block) => "b",
        _ if selected.contains(&block) => "a",
        _ => "e",
    });
    svg.text(At(80.0, y + 142.0), "soft", "KV of one layer and KV head: all pages");
    svg.arrow(At(239.0, y + 98.0), At(164.0, y + 58.0));
    svg.arrow(At(491.0, y + 98.0), At(178.0, y + 58.0));
    for (class, text, row) in
        [("a", "selected, on the card", 0.0), ("b", "selected, fetched now", 1.0), ("e", "not selected", 2.0)]
    {
        svg.rect(At(500.0, y + 14.0 + row * 20.0), At(12.0, 12.0), class);
        svg.text(At(518.0, y + 25.0 + row * 20.0), "soft", text);
    }
}
