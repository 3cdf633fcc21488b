//! Products that a driver gets right, by the verdicts of its self-test.

use super::{Kernels, Key, Matrix, Route};
use crate::kernel::matmul::Epilogue;
use crate::kernel::matmul_coop::{self, Activations};

impl Kernels {
    /// Whether the driver gets right the kernels of products with every epilogue of so many parts.
    pub(crate) fn right(&self, parts: u32, key: impl Fn(Epilogue) -> Key) -> bool {
        let mut epilogues = Epilogue::ALL.into_iter().filter(|epilogue| epilogue.parts() == parts);
        let verdicts = &self.profile().verdicts;
        verdicts.is_empty() || epilogues.all(|epilogue| self.profile().runs(&self.variant(key(epilogue))))
    }
}

impl Matrix {
    /// Whether the driver gets products by matrices right.
    pub(super) fn takes_matrices(&self, kernels: &Kernels, rows: u32) -> bool {
        let (format, shape) = (self.format, [rows, self.shards[0].cols, self.blocks]);
        [Activations::F16, Activations::F32].into_iter().all(|activations| {
            kernels.right(self.parts, |epilogue| {
                let tile = matmul_coop::Tile::choose(kernels.profile(), shape, epilogue);
                Key::Coop { format, epilogue, activations, tile }
            })
        })
    }

    /// Whether the driver gets products by codes right.
    pub(super) fn takes_codes(&self, kernels: &Kernels, route: Route) -> bool {
        let format = self.format;
        kernels.right(self.parts, |epilogue| match route {
            Route::Codes(tiling) => Key::Codes { format, epilogue, tiling },
            _ => Key::CodesTile { format, epilogue },
        })
    }
}
