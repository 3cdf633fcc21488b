//! Levels of adapters that kernels need.

use strum::{Display, IntoStaticStr};

/// Level of adapter that kernels need. All levels give results within the same tolerances.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Display, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Level {
    /// WebGPU's default limits and nothing optional.
    Baseline,
    /// Subgroup operations, of any subgroup size.
    Subgroup,
    /// Cooperative matrices (f16 in, f32 out, 16 x 16).
    Coop,
}

impl Level {
    /// Lower-case name, as in file names and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}
