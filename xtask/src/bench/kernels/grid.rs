//! Kernels and shapes that run, by name.

use std::collections::BTreeSet;

use anyhow::Result;
use attn_kernels::declare::Sizes as ModelSizes;
use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::{KvDtype, block_score};
use attn_kernels::self_test::Size;
use attn_kernels::{Kernel, NamedVariant, Variant};
use models::Dtype;

use super::attention::{self, Heads, Step};
use super::lists::SELECT_BLOCK;
use super::products::Matrix;
use super::prompt::{self, Prompt};
use super::select::{self, Policy};
use super::shapes::Shapes;
use super::work::{Bench, Timed, Work, timed_case};
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

    /// Adds a kernel by its name at `size`, which `shape` describes.
    fn case(&mut self, variant: Variant, size: Size, shape: String) {
        self.named(variant.kernel.name, variant, size, shape);
    }

    /// Adds a kernel that is timed alone, under the name `kernel`.
    fn named(&mut self, kernel: &'static str, variant: Variant, size: Size, shape: String) {
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

/// Sizes for this device, or a part of them in quick mode.
fn sizes(gpu: &Gpu, quick: bool) -> Sizes {
    match gpu.is_cpu() {
        true => SOFTWARE,
        false if quick => QUICK,
        false => FULL,
    }
}

/// Heads of a small model.
fn small() -> Heads {
    Heads::new(9, 3, 64, KvDtype::F16)
}

/// Heads that kernels of all kinds run for.
fn main(gpu: &Gpu) -> Heads {
    if gpu.is_cpu() { small() } else { Heads::new(32, 8, 128, KvDtype::F16) }
}

/// Everything that takes more than a case of one kernel, or many shapes, for this device, or a part of it in quick mode.
/// [`rest`] has the other kernels.
pub(super) fn items(gpu: &Gpu, quick: bool) -> Vec<Item> {
    let (software, sizes, main) = (gpu.is_cpu(), sizes(gpu, quick), main(gpu));
    let mut grid = Grid::default();
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
                grid.decode(small(), [batch, context], 0.1, QUEST);
            }
        }
        for &len in sizes.lens {
            grid.prefill(small(), len);
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
    for &context in sizes.contexts {
        let bounds = block_score::with_bounds(&main.shape, main.num_heads, SELECT_BLOCK);
        let name = format!("4 x {context}, {}", main.name());
        grid.named("block_score, quest, bounds", bounds, of_context(&main, context), name);
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
        grid.add(format!("index_logits, indexer {context}"), move |bench| mla::indexer(bench, context));
    }
    grid.add("record, submit".into(), host::record);
}

/// Kernels that a case alone does not time: those over a chunk of a prompt, whose fastest forms run over one prompt in items, and
/// `fetch_pages`, which reads memory of the host.
const IN_ITEMS: [&str; 15] = [
    "attend_means",
    "block_energy",
    "block_energy_coop",
    "block_mean",
    "block_means",
    "find_blocks",
    "keep_blocks",
    "paged_prefill",
    "paged_prefill_coop",
    "softmax_block_sum",
    "stride_queries",
    "strided_qk",
    "strided_qk_broadcast",
    "strided_qk_coop",
    "fetch_pages",
];

/// Returns the kernels of the catalogues that are not among `dispatched`, by the cases of their self-tests: at a number of rows,
/// or, if their work grows with the context, at each context. Each runs in the first variant of every level.
pub(super) fn rest(gpu: &Gpu, quick: bool, dispatched: &BTreeSet<&str>) -> Vec<Item> {
    let (sizes, main) = (sizes(gpu, quick), main(gpu));
    let Heads { num_heads, shape } = main;
    let model = ModelSizes {
        head_dim: shape.head_dim,
        num_heads,
        num_kv_heads: shape.num_kv_heads,
        block_size: shape.block_size,
    };
    let mut grid = Grid::default();
    for kernel in
        catalogue().filter(|kernel| !dispatched.contains(kernel.name) && !IN_ITEMS.contains(&kernel.name))
    {
        for variant in forms(gpu, kernel, &model) {
            if grows(&variant, &main) {
                for &context in sizes.contexts {
                    let size = of_context(&main, context);
                    let name = format!("{} x {context}, {} rows, {}", size.batch, size.rows, main.name());
                    grid.case(variant.clone(), size, name);
                }
            } else {
                let size = of_rows(&main, gpu.is_cpu());
                grid.case(variant, size, format!("{} rows, {}", size.rows, main.name()));
            }
        }
    }
    grid.items
}

/// The kernels of both catalogues.
pub(super) fn catalogue() -> impl Iterator<Item = &'static Kernel> {
    attn_kernels::catalog().into_iter().chain(models::kernel::catalog())
}

/// Returns the first variant of each level that the device runs.
fn forms(gpu: &Gpu, kernel: &'static Kernel, model: &ModelSizes) -> Vec<Variant> {
    let listed = NamedVariant::list(&[kernel], model).into_iter().map(|named| named.variant);
    let listed = listed.filter(|variant| gpu.profile().suits(variant) && gpu.profile().runs(variant));
    let mut forms: Vec<Variant> = Vec::new();
    for variant in listed {
        if forms.iter().all(|form| form.level != variant.level) {
            forms.push(variant);
        }
    }
    forms
}

/// Whether the work of a variant grows with the context.
fn grows(variant: &Variant, heads: &Heads) -> bool {
    let [short, long] = [1024, 2048].map(|context| {
        let size = Size { rows: 16, width: 64, cols: 64, vocab: 1024, ..of_context(heads, context) };
        timed_case(variant, size).bytes()
    });
    short < long
}

/// Size of a step that decodes with a context, in which lists and layers count as rows.
fn of_context(heads: &Heads, context: u32) -> Size {
    Size { rows: 128, batch: 4, context, k: 2048.min(context / 2), ..heads.size() }
}

/// Size of a step of many rows, with fewer rows of logits.
fn of_rows(heads: &Heads, software: bool) -> Size {
    let [rows, batch, width, vocab] =
        if software { [512, 4, 512, 32_768] } else { [8192, 64, 1024, 131_072] };
    Size { rows, batch, width, cols: 1024, vocab, context: 1024, ..heads.size() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_a_case_to_time() {
        let heads = Heads::new(32, 8, 128, KvDtype::F16);
        let model = ModelSizes::of_heads(128);
        let mut growing = Vec::new();
        for kernel in catalogue().filter(|kernel| !IN_ITEMS.contains(&kernel.name)) {
            let variant = NamedVariant::list(&[kernel], &model).swap_remove(0).variant;
            let size = if grows(&variant, &heads) { of_context(&heads, 8192) } else { of_rows(&heads, true) };
            let (case, name) = (timed_case(&variant, size), kernel.name);
            assert!(case.bytes() >= 256.0, "{name}: {} bytes", case.bytes());
            assert_eq!(case.buffers.len(), variant.bindings.len(), "bindings of {name}");
            for params in &case.dispatches {
                let grid = variant.grid_of(params);
                assert!(grid.iter().all(|n| (1..=65_535).contains(n)), "{name}: {grid:?}");
            }
            let given = case.buffers.iter().map(Vec::len).sum::<usize>();
            assert!(given < 1 << 25, "{name}: {given} words are made one by one");
            if grows(&variant, &heads) {
                growing.push(name);
            }
        }
        insta::assert_snapshot!(growing.join(" "), @"block_digest block_lse block_score block_score_subgroup gather_cache hamming_score hash_codes index_logits index_logits_coop masked_attention mass_bound mass_cut mla_decode mla_decode_coop nsa_attend nsa_block_score nsa_probs paged_decode paged_decode_coop paged_decode_subgroup paged_reduce prefix_slots residency top_k top_k_long top_k_peaks top_k_transform vote_blocks");
    }
}
