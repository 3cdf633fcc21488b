//! Kernels that the engine would choose on a device.

use attn_kernels::profile::{DeviceProfile, Matrices, Registers};
use attn_kernels::reflect::Bytes;
use attn_kernels::{Level, TextLength, Variant};

use super::report::Offer;

/// Shapes of cooperative matrices that kernels use, with their sizes.
const MATRICES: [(&str, u32); 2] = [("16x16x16 f16 f32", 16), ("8x8x8 f16 f32", 8)];

/// Device that a text in SPIR-V is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    /// Length of the text.
    pub(super) length: TextLength,
    /// Cooperative matrices, if the kernel uses any.
    pub(super) matrices: Matrices,
    /// Access to bytes.
    pub(super) bytes: Bytes,
}

impl Target {
    /// The target of texts that no device is named for.
    pub(super) const ANY: Self =
        Self { length: TextLength::Full, matrices: Matrices::NVIDIA, bytes: Bytes::Typed };

    /// Text length, matrices and byte access that the engine would choose for the device of `offer`.
    pub(super) fn of(offer: &Offer) -> Self {
        Self {
            length: TextLength::of_vendor(vendor(offer)),
            matrices: matrices(offer).unwrap_or(Matrices::NVIDIA),
            bytes: if offer.int8 { Bytes::Typed } else { Bytes::Fields },
        }
    }
}

/// Requirements of a variant beyond those that it states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Demand {
    /// Whether the variant needs the type f16.
    pub(super) f16: bool,
    /// Bytes of workgroup memory.
    pub(super) workgroup_bytes: u32,
    /// Number of invocations of a workgroup.
    pub(super) workgroup_lanes: u32,
}

/// Whether the engine would choose a variant on a device: it runs there, suits its registers, and is not for software drivers
/// alone.
pub(super) fn chooses(offer: &Offer, variant: &Variant, demand: &Demand) -> bool {
    let fits = demand.workgroup_bytes <= offer.workgroup_bytes
        && demand.workgroup_lanes <= offer.workgroup_lanes
        && (offer.f16 || !demand.f16);
    let profile = profile(offer);
    fits && profile.runs(variant) && profile.suits(variant)
}

/// PCI id of the vendor of a GPU; `None` for a processor.
fn vendor(offer: &Offer) -> Option<u32> {
    (!offer.is_cpu).then_some(offer.vendor)
}

/// The profile that the engine would have of a device.
fn profile(offer: &Offer) -> DeviceProfile {
    let (least, most) = offer.subgroups;
    let level = if offer.subgroup_operations { Level::Subgroup } else { Level::Baseline };
    let registers = Registers::of_vendor(vendor(offer));
    let profile =
        DeviceProfile::WEBGPU.software(offer.is_cpu).level(level).subgroups(least, most).registers(registers);
    match offer.f16 && offer.subgroup_operations && !offer.is_cpu {
        true => profile.with_matrices(matrices(offer)),
        false => profile,
    }
}

/// The cooperative matrices of a device, with its largest subgroups. If there are several subgroup sizes, RADV takes
/// the largest unless a workgroup is smaller, and the engine tries which one it gets.
pub(super) fn matrices(offer: &Offer) -> Option<Matrices> {
    let offered = |shape: &str| offer.matrices.iter().any(|other| other == shape);
    let (_, size) = MATRICES.into_iter().find(|(shape, _)| offered(shape))?;
    Matrices::new(size, offer.subgroups.1)
}
