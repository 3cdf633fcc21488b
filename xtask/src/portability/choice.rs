//! Kernels that the engine would choose on a device.

use attn_kernels::source::Choice;
use attn_kernels::{Level, TextLength, Variant};

use super::report::Offer;

/// The shape of cooperative matrices that kernels use.
pub(super) const MATRIX: &str = "16x16x16 f16 f32";

/// Demands of a variant beyond those it states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Demand {
    /// Whether it needs the type f16.
    pub(super) f16: bool,
    /// Bytes of workgroup memory.
    pub(super) workgroup_bytes: u32,
    /// Invocations of a workgroup.
    pub(super) workgroup_lanes: u32,
}

/// Whether the engine would choose a variant on a device: it runs there, and is not for software drivers alone. These are the
/// rules of `Gpu::runs_coop`, `Gpu::pipeline` and `models`, for a device that is not open.
pub(super) fn chooses(offer: &Offer, variant: &Variant, demand: &Demand) -> bool {
    let fits = demand.workgroup_bytes <= offer.workgroup_bytes
        && demand.workgroup_lanes <= offer.workgroup_lanes
        && (offer.f16 || !demand.f16);
    let (least, most) = offer.subgroups;
    let level = match offer.subgroup_operations {
        true if offer.f16 && offer.matrices.iter().any(|shape| shape == MATRIX) => Level::Coop,
        true => Level::Subgroup,
        false => Level::Baseline,
    };
    let runs = match variant.level {
        Level::Baseline => true,
        Level::Subgroup => variant.subgroups.contains(&least) && variant.subgroups.contains(&most),
        Level::Coop => offer.subgroups == (32, 32),
    };
    fits && variant.level <= level && runs && (offer.is_cpu || !is_for_cpus(variant))
}

/// Length of the text that a device gets.
pub(super) fn length(offer: &Offer) -> TextLength {
    if offer.is_cpu { TextLength::Short } else { TextLength::Full }
}

/// Whether the engine takes it on software drivers alone: lanes broadcast what they load, weights are images, or loops
/// are hidden from compilers.
pub(super) fn is_for_cpus(variant: &Variant) -> bool {
    let module = |name: &str| {
        name.contains("broadcast") || ["trips_hidden", "planes_images", "x_window"].contains(&name)
    };
    variant.choices.iter().any(|(_, choice)| matches!(choice, Choice::Module(name) if module(name)))
}
