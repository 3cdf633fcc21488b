//! Counts of the blocks in the lists of chunks, kept on the device until a step ends.

use std::sync::Arc;

use attn_kernels::gpu::{Gpu, Pass, Pipeline, Read};
use attn_kernels::kernel::list_counts::{self, ListCountsBuffers, ListCountsParams};
use attn_kernels::rows::ListSpan;

use super::lists::DeviceLists;
use crate::ModelError;
use crate::cast::u32_of;
use crate::decoder::buffers::GrowBuf;

/// Kernel and buffers that count the blocks in the lists of a step's prompt chunks.
#[derive(Debug)]
pub(super) struct Counter {
    pipeline: Arc<Pipeline>,
    /// Positions of the lists of every chunk of the step.
    spans: GrowBuf<ListSpan>,
    /// Number of blocks in lists, `[layers, chunks]`.
    counts: GrowBuf<u32>,
    chunks: usize,
}

impl Counter {
    pub(super) fn new(gpu: &Gpu) -> Result<Self, ModelError> {
        Ok(Self {
            pipeline: gpu.pipeline(&list_counts::variant())?,
            spans: GrowBuf::new(gpu, "spans", 1)?,
            counts: GrowBuf::new(gpu, "counts", 1)?,
            chunks: 0,
        })
    }

    /// Forgets the chunks of the last step.
    pub(super) fn clear(&mut self) {
        self.chunks = 0;
    }

    /// Whether there is nothing to count: no prompt chunk of the step has lists.
    pub(super) fn is_empty(&self) -> bool {
        self.chunks == 0
    }

    /// Sets the lists of a step's chunks.
    pub(super) fn fit(&mut self, gpu: &Gpu, spans: &[ListSpan], layers: usize) -> Result<(), ModelError> {
        self.chunks = spans.len();
        self.spans.write(gpu, spans)?;
        self.counts.fit(gpu, layers * self.chunks)
    }

    /// Records the count of the blocks in a layer's lists.
    pub(super) fn count(&self, pass: &mut Pass, lists: &DeviceLists, layer: usize) {
        let (list_stride, first) = (lists.stride, u32_of(layer * self.chunks));
        let params = ListCountsParams { list_stride, first, spans: u32_of(self.chunks) };
        let buffers =
            ListCountsBuffers { lists: lists.bind(), spans: self.spans.bind(), counts: self.counts.bind() };
        pass.dispatch(&self.pipeline, &params, buffers);
    }

    /// Records the readback of all counts.
    pub(super) fn read(&self, pass: &mut Pass, layers: usize) -> Option<Read<u32>> {
        (!self.is_empty()).then(|| pass.read(&self.counts, 0..layers * self.chunks))
    }
}
