//! Kernels and shapes that run, by name.

use anyhow::Result;
use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::KvDtype;
use attn_kernels::kernel::quantise::Code;
use models::Dtype;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::attention::{self, Heads, Step};
use super::products::{self, Matrix};
use super::prompt::{self, Prompt};
use super::select::{self, Policy};
use super::work::{Bench, Timed};
use super::{bound, flashprefill, host, masked, mla, nsa, others, pages, xattn};

/// Works that share their data, under one name. Data are made when their turn comes: all at once would not fit in memory.
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

/// Contexts, batches of decode and lengths of prompts.
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

    /// One step of decode, dense and over selected blocks.
    fn decode(&mut self, heads: Heads, at: [u32; 2], density: f64, policies: &'static [Policy]) {
        let [batch, context] = at;
        self.add(format!("decode {batch} x {context}, {}", heads.name()), move |bench| {
            let step = Step::new(bench.gpu, &heads, at)?;
            select::decode(bench, &step, density, policies)
        });
    }

    /// One step of decode, dense.
    fn dense(&mut self, heads: Heads, at: [u32; 2]) {
        let [batch, context] = at;
        self.add(format!("decode {batch} x {context}, {}", heads.name()), move |bench| {
            let step = Step::new(bench.gpu, &heads, at)?;
            bench.alone(step.attend(bench.gpu, None)?)
        });
    }

    /// One step of decode of sequences of many lengths.
    fn ragged(&mut self, heads: Heads, batch: u32, [least, most]: [u32; 2]) {
        let name = format!("{batch} x {least} to {most} log-uniform");
        self.add(format!("decode {name}, {}", heads.name()), move |bench| {
            let mut random = StdRng::seed_from_u64(7);
            let [low, high] = [least, most].map(|len| f64::from(len).ln());
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a length")]
            let mut len = || random.random_range(low..high).exp() as u32;
            let lens: Vec<u32> = (0..batch).map(|_| len()).collect();
            let step = Step::of(bench.gpu, &heads, &lens, name.clone())?;
            bench.alone(step.attend(bench.gpu, None)?)
        });
    }

    fn prefill(&mut self, heads: Heads, len: u32) {
        self.add(format!("prefill {len}, {}", heads.name()), move |bench| {
            let dense = attention::prefill(bench.gpu, &heads, len, None)?;
            bench.beside(dense, [attention::prefill(bench.gpu, &heads, len, Some(0.25))?])
        });
    }

    /// A prompt of structured heads, dense and by each method that selects for its query blocks.
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
        products(&mut grid, gpu);
    }
    around(&mut grid, &sizes, main, software);
    grid.items
}

/// Decode of `main`, and of other types, blocks and groups at a few places.
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

/// Products of the layers of Llama 3 8B, of few rows to a whole chunk: by cooperative matrices and as devices without them do.
fn products(grid: &mut Grid, gpu: &Gpu) {
    let matrix = |width, cols, parts| Matrix { width, cols, parts, dtype: Dtype::Q4_K };
    let matrices =
        [matrix(4096, 6144, 1), matrix(4096, 4096, 1), matrix(4096, 14_336, 2), matrix(14_336, 4096, 1)];
    for matrix in matrices {
        let by_matrices: &[u32] = if gpu.runs_coop() { &[8, 64, 96, 192, 512, 2048] } else { &[] };
        for &rows in by_matrices {
            grid.add(format!("product {rows} rows, {}", matrix.name()), move |bench| {
                bench.alone(products::by_matrices(bench.gpu, &matrix, rows)?)
            });
        }
        for rows in [16, 64, 512, 2048] {
            grid.add(format!("product {rows} rows, {} in f32", matrix.name()), move |bench| {
                bench.alone(products::in_f32(bench.gpu, &matrix, rows)?)
            });
            grid.add(format!("product {rows} rows, {} by codes", matrix.name()), move |bench| {
                bench.alone(products::by_codes(bench.gpu, &matrix, rows)?)
            });
        }
    }
}

/// The kernels round attention.
fn around(grid: &mut Grid, sizes: &Sizes, main: Heads, software: bool) {
    let rows = if software { 512 } else { 8192 };
    grid.add("cache_write".into(), move |bench| bench.alone(others::cache_write(bench.gpu, &main, rows)?));
    grid.add("copy_blocks".into(), move |bench| {
        bench.alone(others::copy_blocks(bench.gpu, &main, rows / 4)?)
    });
    grid.add("latent_write".into(), move |bench| bench.alone(mla::latent_write(bench.gpu, rows)?));
    grid.add("fetch_pages".into(), move |bench| bench.alone(pages::fetch(bench.gpu, &main, rows / 4)?));
    grid.add("apply_sinks".into(), move |bench| bench.alone(others::apply_sinks(bench.gpu, &main, rows)?));
    grid.add("v4_compress".into(), move |bench| {
        let entries = rows / 8;
        let [c4, c128] = [
            mla::v4_compress(bench.gpu, entries, 4, true)?,
            mla::v4_compress(bench.gpu, entries / 16, 128, false)?,
        ];
        bench.each([c4, c128])
    });
    grid.add("lse_merge".into(), move |bench| bench.alone(others::lse_merge(bench.gpu, &main, rows)?));
    grid.add("swap_blocks".into(), move |bench| {
        bench.alone(others::swap_blocks(bench.gpu, &main, rows / 4)?)
    });
    for code in [Code::Fp8, Code::Int8] {
        grid.add(format!("quantise, dequantise {code:?}"), move |bench| {
            bench.each(others::codes(bench.gpu, 4 * rows, 1024, code)?)
        });
    }
    grid.add("mla_decode, two caches".into(), move |bench| {
        mla::decode_of_two(bench, if software { 1 } else { 64 })
    });
    for &context in sizes.contexts {
        grid.add(format!("gather_cache {context}"), move |bench| {
            bench.alone(others::gather_cache(bench.gpu, &main, context)?)
        });
        grid.add(format!("hash_codes, hamming_score {context}"), move |bench| {
            bench.each(others::hashes(bench.gpu, &main, context)?)
        });
        grid.add(format!("block_digest {context}"), move |bench| {
            bench.alone(others::block_digest(bench.gpu, &main, context)?)
        });
        grid.add(format!("block_score 4 x {context}"), move |bench| {
            let step = Step::new(bench.gpu, &main, [4, context])?;
            let [(quest, ..), (gsa, ..)] = [
                select::scores(bench.gpu, &step, Policy::Quest, None)?,
                select::scores(bench.gpu, &step, Policy::Gsa, None)?,
            ];
            bench.each([quest, gsa])
        });
        grid.add(format!("mass_bound, mass_merge 4 x {context}"), move |bench| {
            bound::certificate(bench, &Step::new(bench.gpu, &main, [4, context])?, 0.1)
        });
        grid.add(format!("block_lse, mass_cut 4 x {context}"), move |bench| {
            bench.alone(bound::by_mass(bench.gpu, &Step::new(bench.gpu, &main, [4, context])?, 9.0)?)
        });
        grid.add(format!("masked_attention 4 x {context}"), move |bench| {
            bench.alone(masked::attend(bench.gpu, &Step::new(bench.gpu, &main, [4, context])?, 0.1)?)
        });
        grid.add(format!("vote_blocks, list_counts {context}"), move |bench| {
            bench.each(masked::votes(bench.gpu, 128, context)?)
        });
        grid.add(format!("nsa_probs, nsa_block_score 4 x {context}"), move |bench| {
            bench.each(nsa::compressed(bench.gpu, &Step::new(bench.gpu, &main, [4, context])?)?)
        });
        grid.add(format!("residency 4 x {context}"), move |bench| {
            bench.alone(pages::resident(bench.gpu, &Step::new(bench.gpu, &main, [4, context])?, 0.1)?)
        });
        grid.add(format!("prefix_slots 16 x {context}"), move |bench| {
            bench.alone(others::prefix_slots(bench.gpu, &main, [16, context])?)
        });
        let (rows, k) = if software { (4, 256) } else { (64, 2048) };
        grid.add(format!("top_k of {context}"), move |bench| {
            bench.alone(select::top_k_of(bench.gpu, rows, context, k.min(context / 2))?)
        });
        grid.add(format!("top_k_transform of {context}"), move |bench| {
            bench.alone(select::top_k_transform(bench.gpu, rows, context, k.min(context / 2))?)
        });
        grid.add(format!("index_logits, indexer {context}"), move |bench| mla::indexer(bench, context));
    }
    grid.add("record, submit".into(), host::record);
}
