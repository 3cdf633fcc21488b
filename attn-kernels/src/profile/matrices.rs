//! Sizes of cooperative matrices.

use crate::source::SlotContent;

/// Number of lanes of a unit, by which kernels with cooperative matrices divide their work.
pub(crate) const UNIT: u32 = 32;

/// Cooperative matrices of f16 with sums in f32, as a device multiplies them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Matrices {
    size: u32,
    lanes: u32,
}

impl Matrices {
    /// Matrices of 16 x 16 by subgroups of 32 lanes, which NVIDIA's devices have.
    pub const NVIDIA: Self = Self { size: 16, lanes: 32 };

    /// Creates matrices of `size` rows, columns and products, which subgroups of `lanes` lanes multiply: size 16 with
    /// 32 or 64 lanes, or size 8 with 8 to 64 lanes. Returns `None` for others, because no kernel is written for
    /// them.
    #[must_use]
    pub const fn new(size: u32, lanes: u32) -> Option<Self> {
        match (size, lanes) {
            (16, 32 | 64) | (8, 8 | 16 | 32 | 64) => Some(Self { size, lanes }),
            _ => None,
        }
    }

    /// Number of rows, columns and products of a matrix.
    #[must_use]
    pub const fn size(self) -> u32 {
        self.size
    }

    /// Number of lanes of a subgroup.
    #[must_use]
    pub const fn lanes(self) -> u32 {
        self.lanes
    }

    /// Choices for the slots of `matrices.wgsl`: kernels divide their work by units of 32 lanes.
    pub(crate) fn choices(self) -> [(&'static str, SlotContent); 8] {
        let share = (UNIT / self.lanes).max(1);
        let across = share.min(2);
        [
            ("matrix", SlotContent::Module(if self.size == 16 { "matrix_16" } else { "matrix_8" })),
            ("MATRIX", SlotContent::Size(self.size)),
            ("SUBGROUP", SlotContent::Size(self.lanes)),
            ("SHARE", SlotContent::Size(share)),
            ("M_SHARE", SlotContent::Size(share / across)),
            ("N_SHARE", SlotContent::Size(across)),
            ("UNITS", SlotContent::Size((self.lanes / UNIT).max(1))),
            ("any", SlotContent::Module(if share == 1 { "any_subgroup" } else { "any_workgroup" })),
        ]
    }
}
