//! Pages on the device that do not hold what their blocks do.

use attn_kernels::gpu::Gpu;

use super::{Residency, Resident};

impl Residency {
    /// Forgets a block that something other than a step writes.
    pub(in crate::decoder) fn forget(&mut self, gpu: &Gpu, block: u32) {
        if let Some(disk) = &mut self.disk {
            disk.summaries.forget(block);
        }
        self.leave(gpu, block);
    }

    /// Forgets pages of a block that the last step could not read: others whose lists name it read it again. Returns whether the
    /// step took it in.
    pub(in crate::decoder) fn lose(&mut self, gpu: &Gpu, block: u32) -> bool {
        self.leave(gpu, block);
        self.disk.as_mut().is_some_and(|disk| disk.summaries.lose(block))
    }

    /// Has the pages of a block fetched anew.
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
