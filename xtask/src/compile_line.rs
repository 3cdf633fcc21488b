//! Progress of the compilation of kernels.

use std::sync::Arc;

use attn_kernels::gpu::{Compilation, Gpu};
use indicatif::MultiProgress;

use crate::status_line::{Patience, StatusLine};

/// A line about the kernels of a device, where they are compiled for more than half a second.
#[must_use]
pub fn compile_line(bars: &MultiProgress, gpu: &Arc<Gpu>) -> StatusLine {
    let (gpu, mut patience) = (Arc::clone(gpu), Patience::default());
    StatusLine::among(bars, move |now| {
        let kernels = gpu.compilation();
        patience.is_over(kernels.is_running(), now).then(|| line(kernels))
    })
}

fn line(kernels: Compilation) -> String {
    format!("compiling kernels {} of {}", kernels.ready, kernels.asked)
}

#[cfg(test)]
mod tests {
    use attn_kernels::gpu::{Checks, GpuOptions};

    use super::*;

    #[test]
    fn it_ends_with_its_owner() {
        let gpu = Gpu::open(&GpuOptions::new(Checks::Off)).expect("GPU tests need an adapter");
        let gpu = Arc::new(gpu);
        drop(compile_line(&MultiProgress::new(), &gpu));
        assert_eq!(Arc::strong_count(&gpu), 1);
        assert_eq!(line(Compilation { ready: 37, asked: 120 }), "compiling kernels 37 of 120");
    }
}
