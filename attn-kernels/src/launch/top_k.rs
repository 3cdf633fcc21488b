//! Records the choice of the k largest scores of rows by the kernels that suit their length.

use std::sync::Arc;

use crate::gpu::{Buf, Gpu, GpuError, Pass, Pipeline};
use crate::kernel::top_k::{self, Output, TopKBuffers, TopKParams};
use crate::kernel::top_k_long::{self, TopKLongBuffers, TopKLongParams};
use crate::kernel::top_k_peaks::{self, LONG, TopKPeaksBuffers};

/// Kernels that select the k largest scores: `top_k` for rows of fewer than [`LONG`] scores; for longer rows,
/// `top_k_peaks` and `top_k_long` with their scratch. The results are equal.
#[derive(Debug)]
pub struct TopK {
    output: Output,
    short: Arc<Pipeline>,
    long: Option<Long>,
}

#[derive(Debug)]
struct Long {
    find_peaks: Arc<Pipeline>,
    choose: Arc<Pipeline>,
    peaks: Buf<u32>,
    chosen: Buf<u32>,
    kept: Buf<u32>,
}

/// Maximum sizes of the rows of a dispatch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TopKLimits {
    /// Number of scores of the longest row.
    pub max_scores: u32,
    /// Maximum number of scores that a row keeps.
    pub max_k: u32,
}

impl TopKLimits {
    fn is_long(self) -> bool {
        self.max_scores >= LONG && self.max_k < self.max_scores
    }

    /// Number of u32 of scratch that a row needs.
    #[must_use]
    pub fn scratch(self) -> usize {
        if self.is_long() { self.params(1).scratch_lens().iter().sum() } else { 0 }
    }

    fn params(self, rows: u32) -> TopKLongParams {
        let params = TopKParams { rows, out_stride: 0, copies: 1, page_size: 1 };
        TopKLongParams::new(&params, self.max_scores, self.max_k.min(self.max_scores))
    }
}

impl TopK {
    /// Compiles the kernels for one kind of output.
    ///
    /// # Errors
    /// What the device says of the kernel.
    pub fn new(gpu: &Gpu, output: Output) -> Result<Self, GpuError> {
        let short = gpu.pipeline(&top_k::best(gpu.profile(), output))?;
        Ok(Self { output, short, long: None })
    }

    /// Allocates scratch for dispatches of this many rows.
    ///
    /// # Errors
    /// What the device says of kernels and buffers.
    pub fn reserve(&mut self, gpu: &Gpu, rows: u32, limits: TopKLimits) -> Result<(), GpuError> {
        if !limits.is_long() {
            return Ok(());
        }
        let lens = limits.params(rows).scratch_lens();
        if self.long.as_ref().is_some_and(|long| long.holds(lens)) {
            return Ok(());
        }
        let has = self.long.as_ref().map_or([0; 3], Long::lens);
        let buffer = |name, index: usize| gpu.buffer(name, lens[index].next_power_of_two().max(has[index]));
        self.long = Some(Long {
            find_peaks: gpu.pipeline(&top_k_peaks::variant())?,
            choose: gpu.pipeline(&top_k_long::best(gpu.profile(), self.output))?,
            peaks: buffer("top_k_peaks", 0)?,
            chosen: buffer("top_k_chosen", 1)?,
            kept: buffer("top_k_kept", 2)?,
        });
        gpu.forget_bind_groups();
        Ok(())
    }

    /// Records the selection from rows within `limits`. Scores are in whole vec4.
    ///
    /// # Panics
    /// Without [room](Self::reserve) for them.
    pub fn record(&self, pass: &mut Pass, params: &TopKParams, limits: TopKLimits, buffers: TopKBuffers) {
        if !limits.is_long() {
            pass.dispatch(&self.short, params, buffers);
            return;
        }
        let long = self.long.as_ref().expect("room is reserved for long rows");
        let params = TopKLongParams::new(params, limits.max_scores, limits.max_k.min(limits.max_scores));
        let lens = params.scratch_lens();
        assert!(long.holds(lens), "scratch of {lens:?} u32 in {:?}", long.lens());
        let TopKBuffers { scores, rows, table, out } = buffers;
        let peaks = long.peaks.bind();
        let of_peaks = TopKPeaksBuffers { scores: scores.clone(), rows: rows.clone(), peaks: peaks.clone() };
        let of = params.peaks();
        pass.dispatch(&long.find_peaks, &of, of_peaks);
        let (chosen, kept) = (long.chosen.bind(), long.kept.bind());
        let buffers = TopKLongBuffers { scores, rows, table, peaks, chosen, kept, out };
        pass.dispatch(&long.choose, &params, buffers);
    }
}

impl Long {
    fn holds(&self, lens: [usize; 3]) -> bool {
        self.lens().iter().zip(lens).all(|(has, len)| *has >= len)
    }

    fn lens(&self) -> [usize; 3] {
        [&self.peaks, &self.chosen, &self.kept].map(Buf::len)
    }
}
