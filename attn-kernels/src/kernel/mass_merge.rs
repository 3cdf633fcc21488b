//! Lower bounds of the attention mass that selections keep, the least over layers, from the shares of `mass_bound`.

use super::LaunchError;
use super::error::Launch;
use crate::Variant;
use crate::declare::one;

kernel! {
    /// The kernel; [`MassMergeBuffers`] lists its bindings.
    "mass_merge"(MassMergeParams, MassMergeBuffers): Selection,
    listed: |_| one(variant()),
    variants: "one",
    bytes: "`4 * H` per row, layer and 1,024 blocks",
    cases: crate::self_test::mass_bound::merge_cases,
}

params! {
    /// Uniform parameters.
    pub struct MassMergeParams {
        /// Layers whose shares there are.
        pub layers: u32,
        /// Rows times query heads.
        pub rows: u32,
        /// f32 from one row and head's shares to the next, as in the run of `mass_bound`.
        pub share_stride: u32,
    }
}

bindings! {
    /// Buffers of `mass_merge`.
    pub struct MassMergeBuffers(MassMergeParams) {
        /// Shares, `[layers, rows, share_stride]`: K, negative where nothing is dropped, then the parts of D.
        read shares: f32,
        /// Masses, `[rows]`; 1 where no layer drops anything.
        write masses: f32,
    }
}

/// The kernel.
#[must_use]
pub fn variant() -> Variant {
    Variant::new(&KERNEL)
}

/// Workgroups.
#[must_use]
pub const fn grid(params: &MassMergeParams) -> [u32; 3] {
    [params.rows, 1, 1]
}

/// Checks a launch against `shares_len` shares and `masses_len` masses.
///
/// # Errors
/// More rows than a dispatch has, or a buffer that is too short.
pub fn check(params: &MassMergeParams, [shares_len, masses_len]: [usize; 2]) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    launch.not_zero("share stride", params.share_stride)?;
    launch.at_most("rows", params.rows.into(), 65_535)?;
    let rows = u64::from(params.layers) * u64::from(params.rows);
    launch.at_most("shares", rows * u64::from(params.share_stride), shares_len as u64)?;
    launch.at_most("masses", params.rows.into(), masses_len as u64)
}
