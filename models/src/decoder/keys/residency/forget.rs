//! Invalidation of pages on the device whose blocks were written or could not be read.

use attn_kernels::gpu::Gpu;

use super::{Residency, Resident};

impl Residency {
    /// Invalidates a block that is written outside of a step.
    pub(in crate::decoder) fn forget(&mut self, gpu: &Gpu, block: u32) {
        if let Some(disk) = &mut self.disk {
            disk.summaries.forget(block);
        }
        self.leave(gpu, block);
    }

    /// Invalidates the pages of a block that the last step could not read, so that later lists read the block again.
    /// Returns whether the step summarised it.
    pub(in crate::decoder) fn lose(&mut self, gpu: &Gpu, block: u32) -> bool {
        self.leave(gpu, block);
        self.disk.as_mut().is_some_and(|disk| disk.summaries.lose(block))
    }

    /// Makes the next lists fetch the pages of a block again.
    fn leave(&self, gpu: &Gpu, block: u32) {
        for layer in self.layers.iter().flatten() {
            let heads = layer.places.len() / self.num_blocks(layer);
            gpu.write(&layer.places, block as usize * heads, &vec![0; heads]);
        }
    }

    fn num_blocks(&self, layer: &Resident) -> usize {
        layer.places.len() * (self.num_slots as usize + 1) / layer.slots.len()
    }
}
