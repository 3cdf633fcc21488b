//! Form of `paged_decode` for adapters on which all subgroups have the same number of lanes: [`Lanes::Subgroup`] and
//! [`Lanes::Alone`].

use super::attention::Context;
use super::paged_decode::{self, Lanes};
use super::{KvLayout, KvShape};
use crate::Variant;
use crate::declare::{Listed, Sizes};
use crate::profile::{DeviceProfile, Registers};
use crate::slot::{self, Number, OneOf};

kernel! {
    /// The kernel, with the parameters and bindings of [`paged_decode`].
    "paged_decode_subgroup"(super::paged_decode::PagedDecodeParams, super::paged_decode::PagedDecodeBuffers): Attention,
    grid: paged_decode::grid,
    listed: listed,
    variants: "as `paged_decode`, keys shared by a subgroup of 8 or 32 lanes, which is alone in its workgroup on software drivers",
    bytes: "as `paged_decode`",
    cases: crate::self_test::paged_decode::cases,
}

fn listed(sizes: &Sizes) -> Listed {
    paged_decode::listed_by(sizes, |shape| FORMS.into_iter().filter(|form| serves(shape, *form)).collect())
}

/// All forms, which [`variants`](crate::variants) lists so that self-tests cover them. A software driver does not
/// choose [`Lanes::Subgroup`], but runs it in tests: how several subgroups of a workgroup share keys is the same for
/// 8 lanes and for 32.
pub const FORMS: [Lanes; 3] = [Lanes::Alone(8), Lanes::Subgroup(8), Lanes::Subgroup(32)];

/// Number of lanes of a workgroup of several subgroups.
const LANES: u32 = 128;

/// Returns the form for a device and a cache of this shape; `None` if the subgroups vary in size, or no form is for
/// their size.
///
/// On llvmpipe with three KV heads of 64 elements in f16 and nine query heads, 40 keys take 63 us in [`Lanes::Alone`] and 254 in
/// workgroups of 16 subgroups, 300 keys 196 and 396, 1,700 keys 1.0 and 1.2 ms.
#[must_use]
pub fn form(profile: &DeviceProfile, shape: &KvShape) -> Option<Lanes> {
    let size = profile.subgroup_size()?;
    let form = if profile.software { Lanes::Alone(size) } else { Lanes::Subgroup(size) };
    (FORMS.contains(&form) && serves(shape, form)).then_some(form)
}

/// Whether the lanes of a form hold the values of a key: a lane owns eight dimensions, or in [`Lanes::Alone`] any
/// multiple of eight.
#[must_use]
pub const fn serves(shape: &KvShape, lanes: Lanes) -> bool {
    match lanes {
        Lanes::Subgroup(size) => shape.head_dim / 8 <= size,
        Lanes::Alone(_) => true,
        Lanes::Workgroup | Lanes::Matrices => false,
    }
}

/// Whether a lane loads two keys at once.
const PAIRED: OneOf<bool> = OneOf::new("keys", &[(false, "lane_key"), (true, "lane_key_pair")]);
/// Number of keys that a lane loads at once.
const KEYS: Number = Number("KEYS");

/// Returns the choices that only this kernel has; [`paged_decode::variant`] fills the rest.
pub(super) fn of(shape: &KvShape, lanes: Lanes, context: Context) -> Variant {
    assert!(serves(shape, lanes), "{lanes:?} for heads of {}", shape.head_dim);
    // One load brings codes of two neighbouring keys; listed tokens have no neighbours.
    let pairs = shape.dtype.is_code() && context != Context::Tokens;
    let count = if pairs { 2 } else { 1 };
    let variant = Variant::new(&KERNEL)
        .set(PAIRED, pairs)
        .set(KEYS, count)
        .set(slot::CHUNKS_AHEAD, paged_decode::chunks_ahead(shape, count));
    match lanes {
        Lanes::Alone(size) => variant
            .set(slot::SUBGROUP, size)
            .with_subgroups(size..=size)
            .set(slot::WG, size)
            .set(slot::SPANS, (shape.head_dim / 8).div_ceil(size))
            .for_software(),
        Lanes::Subgroup(size) => {
            let variant = variant.set(slot::SUBGROUP, size).with_subgroups(size..=size).set(slot::WG, LANES);
            // Two keys of codes, and their scales, are more than few registers hold: see `Lanes::of`.
            let variant =
                if shape.dtype.is_code() { variant.for_registers(Registers::Many) } else { variant };
            // A value takes eight loads where its tokens come last, and eight values on their way more registers than an Apple
            // M1 has.
            if shape.layout == KvLayout::V0 && size == 32 { variant.set(slot::AHEAD, 4) } else { variant }
        }
        Lanes::Workgroup | Lanes::Matrices => unreachable!("asserted"),
    }
}
