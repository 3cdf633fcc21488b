//! Kernels and shapes that run, by name.

use anyhow::Result;
use attn_kernels::Variant;
use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::attention::Context;
use attn_kernels::kernel::block_digest::{self, Digest};
use attn_kernels::kernel::hash_codes::{self, HashSource};
use attn_kernels::kernel::quantise::{self, Code, Scale};
use attn_kernels::kernel::top_k::Transform;
use attn_kernels::kernel::v4_compress::{self, EntryShape};
use attn_kernels::kernel::{
    KvDtype, KvShape, apply_sinks, block_score, cache_write, copy_blocks, dequantise, gather_cache,
    hamming_score, latent_write, list_counts, lse_merge, masked_attention, mass_bound, mass_merge,
    nsa_block_score, nsa_probs, prefix_slots, residency, swap_blocks, top_k_transform, vote_blocks,
};
use attn_kernels::self_test::Size;
use models::Dtype;

use super::attention::{self, Heads, Step};
use super::lists::SELECT_BLOCK;
use super::products::Matrix;
use super::prompt::{self, Prompt};
use super::select::{self, Policy};
use super::shapes::Shapes;
use super::work::{Bench, Timed, Work};
use super::{bound, flashprefill, host, mla, pages, xattn};

/// Works that share their data, under one name. The data are made when the item runs, because the data of all items
/// would not fit in memory at once.
pub(super) struct Item {
    pub(super) name: String,
    pub(super) run: Run,
}

type Run = Box<dyn Fn(&Bench) -> Result<Vec<Timed>>>;

/// The items.
#[derive(Default)]
struct Grid {
    items: Vec<Item>,
    /// Kernels that their self-tests describe, and their sizes.
    cases: Vec<(Variant, Size)>,
}

/// Lengths of contexts, numbers of sequences in decode, and lengths of prompts.
struct Sizes {
    contexts: &'static [u32],
    batches: &'static [u32],
    lens: &'static [u32],
}

const FULL: Sizes = Sizes {
    contexts: &[1024, 4096, 8192, 32_768, 131_072],
    batches: &[1, 4, 16, 64],
    lens: &[2048, 8192, 32_768, 131_072],
};
const QUICK: Sizes = Sizes { contexts: &[1024, 8192], batches: &[1, 16], lens: &[2048, 8192] };
/// Sizes that a driver that runs on the CPU does in seconds.
const SOFTWARE: Sizes = Sizes { contexts: &[1024, 4096], batches: &[1, 4], lens: &[512] };

impl Grid {
    fn add(&mut self, name: String, run: impl Fn(&Bench) -> Result<Vec<Timed>> + 'static) {
        self.items.push(Item { name, run: Box::new(run) });
    }

    /// Adds a kernel alone at `size`, which `shape` describes.
    fn case(&mut self, variant: Variant, size: Size, shape: String) {
        self.named(variant.kernel.name, variant, size, shape);
    }

    /// Adds a kernel that is timed alone, under the name `kernel`.
    fn named(&mut self, kernel: &'static str, variant: Variant, size: Size, shape: String) {
        self.cases.push((variant.clone(), size));
        self.add(format!("{kernel} {shape}"), move |bench| {
            bench.alone(Work::of(bench.gpu, kernel, &variant, size, &shape)?)
        });
    }

    /// Adds one step of decode, dense and over selected blocks.
    fn decode(&mut self, heads: Heads, at: [u32; 2], density: f64, policies: &'static [Policy]) {
        let [batch, context] = at;
        self.add(format!("decode {batch} x {context}, {}", heads.name()), move |bench| {
            select::decode(bench, &Step::new(&heads, at, density), policies)
        });
    }

    /// Adds one step of dense decode.
    fn dense(&mut self, heads: Heads, at: [u32; 2]) {
        let [batch, context] = at;
        self.add(format!("decode {batch} x {context}, {}", heads.name()), move |bench| {
            bench.alone(Step::new(&heads, at, 1.0).dense(bench.gpu)?)
        });
    }

    /// Adds one step of decode of sequences of many lengths.
    fn ragged(&mut self, heads: Heads, batch: u32, [least, most]: [u32; 2]) {
        let name = format!("{batch} x {least} to {most} log-uniform");
        let mut step = Step::new(&heads, [batch, most], 1.0);
        (step.size.shortest, step.name) = (Some(least), name.clone());
        self.add(format!("decode {name}, {}", heads.name()), move |bench| {
            bench.alone(step.dense(bench.gpu)?)
        });
    }

    fn prefill(&mut self, heads: Heads, len: u32) {
        self.add(format!("prefill {len}, {}", heads.name()), move |bench| {
            let dense = attention::prefill(bench.gpu, &heads, len, None)?;
            bench.beside(dense, [attention::prefill(bench.gpu, &heads, len, Some(0.25))?])
        });
    }

    /// Adds a prompt with synthetic heads that have a known structure, dense and by each method that selects for its
    /// query blocks.
    fn structured(&mut self, heads: Heads, len: u32) {
        self.add(format!("structured prefill {len}, {}", heads.name()), move |bench| {
            let of = |alpha| move |gpu: &Gpu, prompt: &Prompt| flashprefill::method(gpu, prompt, alpha);
            let [published, lower] = flashprefill::ALPHAS.map(of);
            prompt::prefill(bench, &heads, len, &[&xattn::method, &published, &lower])
        });
        self.add(format!("stride_queries, strided_qk, softmax_block_sum, find_blocks {len}"), move |bench| {
            xattn::kernels(bench, &heads, len)
        });
        self.add(format!("block_mean, block_energy, keep_blocks, attend_means {len}"), move |bench| {
            flashprefill::kernels(bench, &heads, len)
        });
    }
}

const QUEST: &[Policy] = &[Policy::Quest];
const BOTH: &[Policy] = &[Policy::Quest, Policy::Gsa];

/// Returns the kernels that no item of this device measures, each with the reason.
pub(super) fn left_out(gpu: &Gpu) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    if gpu.is_cpu() {
        let most = |sizes: &[u32]| sizes.iter().copied().max().unwrap_or(0);
        let Sizes { contexts, batches, lens } = SOFTWARE;
        let [context, batch, len] = [most(contexts), most(batches), most(lens)];
        let what = "longer contexts, larger batches";
        let reason = format!(
            "a software driver takes minutes for each: contexts end at {context} tokens, batches at {batch}, prompts at {len}"
        );
        all.push((what, reason));
    }
    if !gpu.runs_coop() {
        let (level, subgroups) = (gpu.level(), (gpu.info().subgroup_min_size, gpu.info().subgroup_max_size));
        let reason = format!(
            "they need cooperative matrices of 16 x 16 or 8 x 8, the adapter is at level {level}, subgroups of {subgroups:?}"
        );
        all.push(("kernels of level coop", reason));
    }
    all
}

/// Products and attention over a grid of shapes, or a part of it in quick mode.
pub(super) fn shapes(gpu: &Gpu, quick: bool) -> Vec<Item> {
    let (mut grid, shapes) = (Grid::default(), Shapes::new(gpu, quick));
    for (dtype, hidden) in shapes.layers() {
        grid.add(format!("products of {hidden}, {dtype}"), move |bench| {
            shapes.time_products(bench, dtype, hidden)
        });
    }
    for heads in shapes.heads() {
        grid.add(format!("attention, {}", heads.name()), move |bench| shapes.time_attention(bench, &heads));
    }
    grid.items
}

/// Everything for this device, or a part of it in quick mode.
pub(super) fn items(gpu: &Gpu, quick: bool) -> Vec<Item> {
    let software = gpu.is_cpu();
    let sizes = if software {
        SOFTWARE
    } else if quick {
        QUICK
    } else {
        FULL
    };
    let mut grid = Grid::default();
    let large = |dtype| Heads::new(32, 8, 128, dtype);
    let small = Heads::new(9, 3, 64, KvDtype::F16);
    let main = if software { small } else { large(KvDtype::F16) };
    decode(&mut grid, &sizes, main, software);
    for &len in sizes.lens {
        grid.prefill(main, len);
    }
    let long = [2048, 32_768, 131_072];
    let structured: &[u32] = if software {
        &long[..1]
    } else if quick {
        &long[1..2]
    } else {
        &long[1..]
    };
    for &len in structured {
        grid.structured(main, len);
    }
    for &context in sizes.contexts {
        for batch in if software { [1, 2] } else { [1, 4] } {
            grid.add(format!("mla_decode {batch} x {context}"), move |bench| {
                mla::decode(bench, [batch, context])
            });
        }
    }
    if !software {
        for &context in sizes.contexts {
            for &batch in sizes.batches {
                grid.decode(small, [batch, context], 0.1, QUEST);
            }
        }
        for &len in sizes.lens {
            grid.prefill(small, len);
        }
    }
    if !software {
        products(&mut grid, gpu, main.size());
    }
    around(&mut grid, &sizes, main, software);
    grid.items
}

/// Adds decode of the heads `main` at all sizes, and of other types, block sizes and groups at a few sizes.
fn decode(grid: &mut Grid, sizes: &Sizes, main: Heads, software: bool) {
    for &context in sizes.contexts {
        for &batch in sizes.batches {
            grid.decode(main, [batch, context], 0.1, QUEST);
        }
    }
    let Heads { num_heads, shape } = main;
    let (kv_heads, dim) = (shape.num_kv_heads, shape.head_dim);
    let group = |heads, kv_heads| Heads::new(heads, kv_heads, dim, KvDtype::F16);
    let mut kinds = vec![main.paged(64), main.paged(128)];
    kinds.extend(
        [KvDtype::F32, KvDtype::Fp8, KvDtype::Int8].map(|dtype| Heads::new(num_heads, kv_heads, dim, dtype)),
    );
    // Groups of 8, 1, 7 and 16.
    kinds.extend(if software {
        vec![group(8, 1)]
    } else {
        vec![group(64, 8), group(8, 8), group(28, 4), group(32, 2)]
    });
    let places: &[[u32; 2]] = if software { &[[4, 1024]] } else { &[[1, 131_072], [16, 32_768], [64, 8192]] };
    let largest = sizes.contexts.last().copied().unwrap_or(0);
    for kind in kinds {
        for &at in places.iter().filter(|[_, context]| *context <= largest) {
            grid.dense(kind, at);
        }
    }
    let lens = if software { [128, 2048] } else { [1024, 65_536] };
    grid.ragged(main, if software { 8 } else { 64 }, lens);
    // The budget that published speedups are of.
    let (batch, context) = if software { (2, 4096) } else { (4, largest) };
    grid.decode(main.paged(64), [batch, context], 0.05, BOTH);
}

/// Adds matrix products of the layers of Llama 3 8B, from a few rows to a whole chunk: by cooperative matrices, and
/// by the kernels for devices without them.
fn products(grid: &mut Grid, gpu: &Gpu, size: Size) {
    let matrix = |width, cols, parts| Matrix { width, cols, parts, dtype: Dtype::Q4_K };
    let matrices =
        [matrix(4096, 6144, 1), matrix(4096, 4096, 1), matrix(4096, 14_336, 2), matrix(14_336, 4096, 1)];
    for matrix in matrices {
        let by_matrices: &[u32] = if gpu.runs_coop() { &[8, 64, 96, 192, 512, 2048] } else { &[] };
        for &rows in by_matrices {
            grid.add(format!("product {rows} rows, {}", matrix.name()), move |bench| {
                bench.alone(matrix.product(rows, size).by_matrices(bench.gpu)?)
            });
        }
        for rows in [16, 64, 512, 2048] {
            grid.add(format!("product {rows} rows, {} in f32", matrix.name()), move |bench| {
                bench.alone(matrix.product(rows, size).in_f32(bench.gpu)?)
            });
            grid.add(format!("product {rows} rows, {} by codes", matrix.name()), move |bench| {
                bench.alone(matrix.product(rows, size).by_codes(bench.gpu)?)
            });
        }
    }
}

/// Adds the kernels before and after attention.
fn around(grid: &mut Grid, sizes: &Sizes, main: Heads, software: bool) {
    let rows = if software { 512 } else { 8192 };
    grid.add("fetch_pages".into(), move |bench| bench.alone(pages::fetch(bench.gpu, &main, rows / 4)?));
    grid.add("mla_decode, two caches".into(), move |bench| {
        mla::decode_of_two(bench, if software { 1 } else { 64 })
    });
    of_rows(grid, main, rows);
    for &context in sizes.contexts {
        of_context(grid, main, context);
        grid.add(format!("block_score 4 x {context}"), move |bench| {
            let scores = |policy| select::scores(bench.gpu, &main, policy, [4, context]);
            bench.each([scores(Policy::Quest)?, scores(Policy::Gsa)?])
        });
        grid.add(format!("block_lse, mass_cut 4 x {context}"), move |bench| {
            bench.alone(bound::by_mass(bench.gpu, &main, [4, context])?)
        });
        let (rows, k) = if software { (4, 256) } else { (64, 2048) };
        let k = k.min(context / 2);
        grid.add(format!("top_k of {context}"), move |bench| {
            bench.alone(select::top_k_of(bench.gpu, &main, [rows, context, k])?)
        });
        let size = Size { rows, context, k, ..main.size() };
        let transform = top_k_transform::variant(Transform::Paged);
        grid.case(transform, size, format!("{k} of {context}, {rows} rows"));
        grid.add(format!("index_logits, indexer {context}"), move |bench| mla::indexer(bench, context));
    }
    grid.add("record, submit".into(), host::record);
}

/// Adds kernels whose work grows with the number of rows, blocks or entries.
fn of_rows(grid: &mut Grid, main: Heads, rows: u32) {
    let (heads, shape) = (main.name(), &main.shape);
    let (num_heads, dim) = (main.num_heads, shape.head_dim);
    let of = |rows| Size { rows, ..main.size() };
    grid.case(cache_write::variant(shape), of(rows), format!("{rows} rows, {heads}"));
    let blocks = rows / 4;
    grid.case(copy_blocks::variant(), of(blocks), format!("{blocks} blocks, {heads}"));
    grid.case(swap_blocks::variant(), of(blocks), format!("{blocks} blocks, {heads}"));
    let latents = Size { cache: KvShape { block_size: mla::SHAPE.block_size, ..*shape }, ..of(rows) };
    let name = format!("{rows} rows of {}, f16", mla::SHAPE.width());
    grid.case(latent_write::variant(&mla::SHAPE), latents, name);
    grid.case(apply_sinks::variant(dim), of(rows), format!("{rows} rows of {num_heads} x {dim}"));
    grid.case(lse_merge::variant(dim), of(rows), format!("{} rows of {dim}", rows * num_heads));
    let entry = EntryShape { dim: mla::SHAPE_OF_TWO.latent, rope: 64, windows: 2 };
    for (entries, tokens, windows) in [(rows / 8, 8, 2), (rows / 128, 128, 1)] {
        let name = format!("{entries} entries of {tokens} tokens, {}", entry.dim);
        grid.case(v4_compress::variant(&EntryShape { windows, ..entry }), of(entries), name);
    }
    let (rows, width) = (4 * rows, 1024);
    for code in [Code::Fp8, Code::Int8] {
        let kernels = [quantise::variant(width, code, Scale::PerRow), dequantise::variant(width, code)];
        for variant in kernels {
            let variant = variant.expect("rows are whole units");
            grid.case(variant, of(rows), format!("{rows} rows of {width}, {code:?}"));
        }
    }
}

/// Adds kernels whose work grows with the context.
fn of_context(grid: &mut Grid, main: Heads, context: u32) {
    let (heads, shape) = (main.name(), &main.shape);
    let one = Size { context, ..main.size() };
    let four = Size { batch: 4, ..one };
    grid.case(gather_cache::variant(shape, Context::Full), one, format!("{context}, {heads}"));
    let bits = shape.head_dim;
    let name = format!("{context}, {bits} bits, {heads}");
    grid.case(hash_codes::variant(shape, HashSource::Keys), one, name.clone());
    grid.case(hamming_score::variant(shape, SELECT_BLOCK, bits / 32), one, name);
    let digest = block_digest::variant(shape, Digest::MinMax);
    grid.case(digest, one, format!("min/max of {context}, {heads}"));
    let name = format!("4 x {context}, {heads}, {:.0} % of the blocks", 100.0 * four.density);
    grid.case(masked_attention::variant(shape, SELECT_BLOCK), four, name.clone());
    grid.case(mass_bound::variant(), four, name.clone());
    grid.case(residency::variant(shape, SELECT_BLOCK), four, name);
    let bounds = block_score::with_bounds(shape, main.num_heads, SELECT_BLOCK);
    grid.named("block_score, quest, bounds", bounds, four, format!("4 x {context}, {heads}"));
    let layers = Size { rows: 32, ..four };
    let name = format!("4 x {context}, {heads}, {} layers", layers.rows);
    grid.case(mass_merge::variant(), layers, name);
    // Sizes that NSA was published with.
    let (kernel, stride) = (32, 16);
    let name = format!("4 x {context}, {heads}");
    grid.case(nsa_probs::variant(shape, kernel, stride), four, name.clone());
    grid.case(nsa_block_score::variant(kernel, stride, SELECT_BLOCK), four, name);
    let voters = Size { rows: 128, density: 0.25, ..one };
    let blocks = context.div_ceil(SELECT_BLOCK);
    let name = format!("{} lists of {blocks} blocks, 25 % of the blocks", voters.rows);
    grid.case(vote_blocks::variant(), voters, name.clone());
    grid.case(list_counts::variant(), voters, name);
    let name = format!("16 x {context}, block {}", shape.block_size);
    grid.case(prefix_slots::variant(), Size { batch: 16, ..one }, name);
}

#[cfg(test)]
mod tests {
    use attn_kernels::self_test::{self, Spec};

    use super::*;

    #[test]
    fn cases_state_their_costs_and_hold_all_bindings() {
        let mut grid = Grid::default();
        around(&mut grid, &FULL, Heads::new(32, 8, 128, KvDtype::F16), false);
        assert!(grid.cases.len() > 50);
        for (variant, size) in grid.cases {
            let cases = self_test::cases(&variant, &Spec::sized(size));
            let [case] = &cases[..] else { panic!("{}: {} cases", variant.kernel.name, cases.len()) };
            let name = variant.kernel.name;
            assert!(case.bytes > 0.0, "{name} states no bytes");
            assert_eq!(case.buffers.len(), variant.bindings.len(), "bindings of {name}");
            for params in &case.dispatches {
                let grid = variant.grid_of(params);
                assert!(grid.iter().all(|n| (1..=65_535).contains(n)), "{name}: {grid:?}");
            }
            let given = case.buffers.iter().map(Vec::len).sum::<usize>();
            assert!(given < 1 << 25, "{name}: {given} words are made one by one");
        }
    }
}
