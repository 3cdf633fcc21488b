//! Logits of the DSA indexer with cooperative matrices: `index_logits` of [`Level::Coop`].
//!
//! Bindings, parameters and logits are those of [`index_logits`]; queries are rounded to f16, keys are
//! f16 or fp8, sums f32. Runs where
//! [`runs_single_units`](crate::profile::DeviceProfile::runs_single_units) says so.
//!
//! [`Level::Coop`]: crate::Level::Coop

use super::index_logits::{self, IndexKeys};
use super::{KvDtype, KvShape};
use crate::declare::{Listed, Sizes};
use crate::profile::{DeviceProfile, UNIT};
use crate::slot::{self, Number, OneOf};
use crate::{Level, Variant};

kernel! {
    /// The kernel, with the parameters and bindings of [`index_logits`].
    "index_logits_coop"(super::index_logits::IndexLogitsParams, super::index_logits::IndexLogitsBuffers): Selection,
    grid: |params, _| [params.logit_stride.div_ceil(TILE), params.rows, 1],
    listed: listed,
    variants: "fp8 with scales and f16 keys, by matrices",
    bytes: "as `index_logits`",
    cases: crate::self_test::indexer::index_logits,
}

fn listed(sizes: &Sizes) -> Listed {
    let f16 = IndexKeys::Cached(KvShape { num_kv_heads: 1, ..sizes.f16() });
    vec![("fp8".into(), variant(&IndexKeys::PUBLISHED)), ("f16".into(), variant(&f16))]
}

/// Number of keys that a workgroup scores.
const TILE: u32 = 64;

/// Number of matrices of queries that the registers of a subgroup hold.
const QUERIES: u32 = 32;

/// Whether the kernel serves these keys: fp8 or f16, head sizes that are multiples of 16 up to 512.
#[must_use]
pub fn serves(keys: &IndexKeys) -> bool {
    let (head_dim, page) = keys.head_dim_and_page();
    let typed = match keys {
        IndexKeys::Fp8 { .. } => page.is_multiple_of(4),
        IndexKeys::Cached(shape) => shape.dtype == KvDtype::F16,
    };
    typed && head_dim.is_multiple_of(16) && head_dim <= 16 * QUERIES
}

/// Whether keys are fp8 in the published pages; otherwise, they are f16.
pub(crate) const PUBLISHED: OneOf<bool> =
    OneOf::new("k", &[(false, "k_coop_f16"), (true, "k_coop_index_fp8")]);
/// Number of tiles of heads.
const HEAD_TILES: Number = Number("HEAD_TILES");

/// Returns the variant for one kind of keys.
///
/// # Panics
/// When it does not serve them: see [`serves`].
#[must_use]
pub fn variant(keys: &IndexKeys) -> Variant {
    assert!(serves(keys), "{keys:?}: not fp8 or f16, or the head size is not a multiple of 16 up to 512");
    let (head_dim, page) = keys.head_dim_and_page();
    let spans = head_dim / 16;
    let head_tiles = (QUERIES / spans).clamp(1, 4);
    // Keys in f16 take twice the registers on their way: beside them, and the queries, those of half the sums are left.
    let published = matches!(keys, IndexKeys::Fp8 { .. });
    let parts = if !published && head_tiles.is_multiple_of(2) { 2 } else { 1 };
    Variant::new(&KERNEL)
        .with_matrices()
        .with_subgroups(1..=UNIT)
        .set(slot::HEAD_DIM, head_dim)
        .set(slot::BLOCK_SIZE, page)
        .set(slot::SPANS, spans)
        .set(HEAD_TILES, head_tiles)
        .set(slot::PARTS, parts)
        .set(slot::LOADS, spans.div_ceil(2))
        .over_stored(PUBLISHED, published, keys.stored())
}

/// The best kernel for one kind of keys: `index_logits_coop` if it serves the keys and the device runs it, else
/// `index_logits`. Both take the same bindings, parameters and rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexKernel {
    keys: IndexKeys,
    coop: bool,
}

impl IndexKernel {
    /// Chooses the kernel for `keys` on a device. The profile says whether [results may be rounded to
    /// f16](DeviceProfile::rounded).
    #[must_use]
    pub fn new(keys: IndexKeys, profile: &DeviceProfile) -> Self {
        Self { keys, coop: serves(&keys) && profile.runs(&variant(&keys)) }
    }

    /// Level of the kernel that was chosen.
    #[must_use]
    pub fn level(&self) -> Level {
        if self.coop { Level::Coop } else { Level::Baseline }
    }

    /// Returns the variant.
    #[must_use]
    pub fn variant(&self) -> Variant {
        let of = if self.coop { variant } else { index_logits::variant };
        of(&self.keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{KvLayout, KvShape};
    use std::fmt::Write as _;

    #[test]
    fn matrices_take_f16_and_published_keys() {
        let cached = |dtype, head_dim| {
            IndexKeys::Cached(KvShape {
                num_kv_heads: 1,
                head_dim,
                block_size: 16,
                dtype,
                layout: KvLayout::Native,
            })
        };
        let mut drawn = String::new();
        for (what, keys) in [
            ("published", IndexKeys::Fp8 { head_dim: 128, page: 64 }),
            ("published, odd pages", IndexKeys::Fp8 { head_dim: 128, page: 2 }),
            ("f16, 128", cached(KvDtype::F16, 128)),
            ("f16, 24", cached(KvDtype::F16, 24)),
            ("f32, 128", cached(KvDtype::F32, 128)),
        ] {
            let kernel = IndexKernel::new(keys, &DeviceProfile::H200);
            assert_eq!(IndexKernel::new(keys, &DeviceProfile::WEBGPU).level(), Level::Baseline);
            writeln!(drawn, "{what}: {}", kernel.variant().kernel.name).unwrap();
        }
        insta::assert_snapshot!(drawn, @r"
        published: index_logits_coop
        published, odd pages: index_logits
        f16, 128: index_logits_coop
        f16, 24: index_logits
        f32, 128: index_logits
        ");
    }
}
