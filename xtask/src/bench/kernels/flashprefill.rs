//! FlashPrefill of a prompt: mean keys, energies and lists of its blocks, and its correction, kernel by kernel. Built here for
//! the reason that `xattn` gives.

use std::ops::Range;

use anyhow::Result;
use attn_kernels::Level;
use attn_kernels::gpu::{Bound, Buf, Gpu};
use attn_kernels::kernel::flashprefill::FlashPrefill;
use attn_kernels::kernel::{
    attend_means, block_energy, block_energy_coop, block_mean, block_means, keep_blocks,
};

use super::attention::Heads;
use super::prompt::{BLOCK, Prompt, Selects, list_stride, pairs};
use super::work::{Bench, Timed, Work};

/// Shares of the largest energy that a block must reach to be selected: the published share, and a smaller one that
/// also keeps the edges of the band.
pub(super) const ALPHAS: [f32; 2] = [0.1, 0.05];

/// Buffers of the selection of a prompt's chunks.
struct Energies {
    alpha: f32,
    means: Buf<f32>,
    energies: Buf<f32>,
}

/// Allocates the buffers for selecting the blocks of a prompt's chunks by a share of the largest energy.
pub(super) fn method(gpu: &Gpu, prompt: &Prompt, alpha: f32) -> Result<Box<dyn Selects>> {
    Ok(Box::new(Energies::new(gpu, prompt, alpha)?))
}

impl Energies {
    fn new(gpu: &Gpu, prompt: &Prompt, alpha: f32) -> Result<Self> {
        // The last chunk sees all keys.
        let chunk = chunk(&prompt.heads, &prompt.last(), alpha);
        let [means, energies] = chunk.scratch_lens(&prompt.heads.shape, chunk.query_blocks());
        Ok(Self { alpha, means: gpu.buffer("means", means)?, energies: gpu.buffer("energies", energies)? })
    }

    /// The three kernels over one chunk, each with its reads and writes.
    fn kernels(&self, gpu: &Gpu, prompt: &Prompt, rows: &Range<u32>, lists: &Buf<u32>) -> [Work; 3] {
        let (heads, f) = (&prompt.heads, chunk(&prompt.heads, rows, self.alpha));
        let shape = &heads.shape;
        let blocks = 0..f.query_blocks();
        let work = |kernel, level: Level| Work::new(kernel, level.name(), heads.name());
        let [means, energies] = f.scratch_lens(shape, blocks.end).map(|len| 4.0 * len as f64);
        let keys = f64::from(rows.end) * heads.token_bytes() / 2.0;
        let mean = work("block_mean", Level::Baseline).costs(keys + means, 0.0);
        let mean = match f.block_mean(shape) {
            None => mean,
            Some(params) => {
                let binds: [Bound; 3] =
                    [(&prompt.cache.tables).into(), (&prompt.cache.k).into(), (&self.means).into()];
                mean.dispatch(block_mean::variant(shape, BLOCK), &params, binds)
            }
        };
        let params = f.block_energy(shape, &blocks);
        let (variant, level) = if gpu.runs_coop() && block_energy_coop::serves(shape, BLOCK) {
            (block_energy_coop::variant(shape, BLOCK), Level::Coop)
        } else {
            (block_energy::variant(shape, BLOCK), Level::Baseline)
        };
        // A product of a row and a mean stands for a whole block.
        let operations = pairs(rows) * heads.pair_operations() / 2.0 / f64::from(BLOCK);
        let queries = f64::from(rows.end - rows.start) * f64::from(heads.width()) * 4.0;
        let binds: [Bound; 3] = [(&prompt.q).into(), (&self.means).into(), (&self.energies).into()];
        let energy = work("block_energy", level)
            .costs(queries + means + energies, operations)
            .dispatch(variant, &params, binds);
        let params = f.keep_blocks(shape, &blocks, list_stride(rows), 0);
        let binds: [Bound; 2] = [(&self.energies).into(), lists.into()];
        let keep = work("keep_blocks", Level::Baseline)
            .costs(energies + 4.0 * lists.len() as f64, 0.0)
            .dispatch(keep_blocks::variant(heads.num_heads / shape.num_kv_heads), &params, binds);
        [mean, energy, keep]
    }

    /// The kernels of the correction, over what [`Self::kernels`] selects.
    fn correction(
        &self,
        gpu: &Gpu,
        prompt: &Prompt,
        rows: &Range<u32>,
        lists: &Buf<u32>,
    ) -> Result<[Work; 2]> {
        let (heads, f) = (&prompt.heads, chunk(&prompt.heads, rows, self.alpha));
        let work = |kernel| Work::new(kernel, Level::Baseline.name(), heads.name());
        let [len, _] = f.scratch_lens(&heads.shape, 1);
        let values = gpu.buffer::<f32>("mean_values", len)?;
        let means = 8.0 * len as f64;
        let mean = work("block_means").costs(f64::from(rows.end) * heads.token_bytes() + means, 0.0);
        let mean = match f.block_means(&heads.shape) {
            None => mean,
            Some(params) => {
                let Prompt { cache, .. } = prompt;
                let binds: [Bound; 5] = [
                    (&cache.tables).into(),
                    (&cache.k).into(),
                    (&cache.v).into(),
                    (&self.means).into(),
                    (&values).into(),
                ];
                mean.dispatch(block_means::variant(&heads.shape, BLOCK), &params, binds)
            }
        };
        let params = f.attend_means(&heads.shape, list_stride(rows), 0);
        let operations = pairs(rows) * heads.pair_operations() / f64::from(BLOCK);
        // Queries, and the output before and after.
        let moved = f64::from(rows.end - rows.start) * f64::from(heads.width()) * 12.0;
        let binds: [Bound; 6] = [
            (&prompt.q).into(),
            (&self.means).into(),
            (&values).into(),
            lists.into(),
            (&prompt.out).into(),
            (&prompt.lse[1]).into(),
        ];
        let registers = gpu.profile().registers;
        let attend = work("attend_means").costs(moved + means, operations);
        Ok([mean, attend.dispatch(attend_means::variant(&heads.shape, BLOCK, registers), &params, binds)])
    }
}

impl Selects for Energies {
    fn name(&self) -> String {
        format!("flashprefill {}", self.alpha)
    }

    /// Records the selection. Its cost is the reads of keys and queries, and the products.
    fn select(&self, gpu: &Gpu, prompt: &Prompt, rows: &Range<u32>, lists: &Buf<u32>) -> Work {
        let [mean, energy, keep] = self.kernels(gpu, prompt, rows, lists);
        let operations = energy.cost.operations;
        let name = format!("flashprefill {}, selection", self.alpha);
        mean.then("energies", energy).then(&name, keep).costs(prompt.read(rows), operations)
    }
}

/// Parameters of FlashPrefill for rows `rows` of a prompt.
fn chunk(heads: &Heads, rows: &Range<u32>, alpha: f32) -> FlashPrefill {
    FlashPrefill {
        num_heads: heads.num_heads,
        q_stride: heads.width(),
        q_first: 0,
        q_len: rows.end - rows.start,
        kv_len: rows.end,
        table: 0,
        block: BLOCK,
        alpha,
        sink_blocks: 2,
        recent_blocks: 4,
    }
}

/// The kernels of the selection and of its correction one by one, over the last rows of a prompt of `len` tokens, which see
/// the most keys.
pub(super) fn kernels(bench: &Bench, heads: &Heads, len: u32) -> Result<Vec<Timed>> {
    let gpu = bench.gpu;
    let prompt = Prompt::new(gpu, heads, len)?;
    let rows = prompt.last();
    prompt.ask(gpu, &rows);
    let lists = prompt.lists(gpu, &rows)?;
    let selection = Energies::new(gpu, &prompt, ALPHAS[0])?;
    let mut all = bench.each(selection.kernels(gpu, &prompt, &rows, &lists))?;
    all.extend(bench.each(selection.correction(gpu, &prompt, &rows, &lists)?)?);
    for timed in &mut all {
        timed.cost.shape =
            format!("last {} rows of {len}, {}, structured", rows.end - rows.start, heads.name());
    }
    Ok(all)
}
