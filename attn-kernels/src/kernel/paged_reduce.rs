//! Split-KV reduction of decode: merges the partitions of `paged_decode` or `mla_decode`, by their maxima and sums.

use super::KvShape;
use super::attention::{Attention, Context};
use super::paged_decode::PagedDecodeParams;
use crate::Variant;
use crate::declare::{Listed, Sizes};
use crate::profile::DeviceProfile;
use crate::rows::DecodeRow;
use crate::slot::{self, Number, OneOf};

kernel! {
    /// The kernel; [`PagedReduceBuffers`] lists its bindings.
    "paged_reduce"(PagedReduceParams, PagedReduceBuffers): Attention,
    grid: |params, _| [params.num_heads, params.rows, 1],
    listed: listed,
    variants: "all keys or listed blocks; with or without sinks; in workgroups of 256 lanes or, for software drivers, as few as own a head",
    bytes: "`4 * H * D * (L / partition + 1)` per row",
    cases: crate::self_test::paged_reduce::cases,
}

fn listed(sizes: &Sizes) -> Listed {
    let of = |(name, attention, _): (&str, Attention, _)| {
        let name = name.trim_end_matches('-');
        let forms = [(name.to_owned(), variant as Form), (format!("software-{name}"), software as Form)];
        forms.map(|(name, form)| (name.trim_end_matches('-').to_owned(), form(&sizes.f16(), &attention)))
    };
    Attention::listed(sizes).into_iter().flat_map(of).collect()
}

params! {
    /// Uniform parameters.
    pub struct PagedReduceParams {
        /// Number of query heads.
        pub num_heads: u32,
        /// Number of KV heads.
        pub num_kv_heads: u32,
        /// Maximum number of partitions of a row, as in the run of `paged_decode`.
        pub max_partitions: u32,
        /// Number of entries from one list of selected blocks to the next, as in the run of `paged_decode`.
        pub list_stride: u32,
        /// First row of the dispatch in `rows`, as in the run of `paged_decode`.
        pub first_row: u32,
        /// Number of keys of a partition, as in the run of `paged_decode` or `mla_decode`.
        pub partition_size: u32,
        /// Number of rows of the dispatch.
        pub rows: u32,
    }
}

bindings! {
    /// Buffers of `paged_reduce`.
    pub struct PagedReduceBuffers(PagedReduceParams) {
        /// Outputs of partitions, `[n, num_heads, max_partitions, head_dim]`.
        read partial: f32,
        /// (max, sum) of each partition, `[n, num_heads, max_partitions]`.
        read stats: [f32; 2],
        /// Rows, `[first_row + n]`.
        read rows: DecodeRow,
        /// Output, `[rows, num_heads, head_dim]`.
        write out: f32,
        /// Lists of the attention that wrote the partitions.
        read selected: u32 = None,
        /// Logits of attention sinks, `[num_heads]`.
        read sinks: f32 = None,
    }
}

impl From<&PagedDecodeParams> for PagedReduceParams {
    /// Parameters of the reduction that follows this `paged_decode`.
    fn from(decode: &PagedDecodeParams) -> Self {
        let PagedDecodeParams {
            num_heads,
            num_kv_heads,
            max_partitions,
            partition_size,
            list_stride,
            first_row,
            rows,
            ..
        } = *decode;
        Self { num_heads, num_kv_heads, max_partitions, list_stride, first_row, partition_size, rows }
    }
}

/// Whether heads have sinks.
pub(crate) const SINKS: OneOf<bool> = OneOf::new("sinks", &[(false, "sinks_none"), (true, "sinks_heads")]);
/// Binding of the sinks.
const SINKS_AT: Number = Number("SINKS");

/// Function that returns the variant for one cache shape and the options of the attention before it.
type Form = fn(&KvShape, &Attention) -> Variant;

/// Returns the variant for one head size, after `paged_decode` of the same `attention`.
#[must_use]
pub fn variant(shape: &KvShape, attention: &Attention) -> Variant {
    with_lanes(256, shape, attention)
}

/// Returns the variant in small workgroups, for software drivers, where barriers switch between subgroups: on llvmpipe
/// nine heads of 64 elements take 40 us in place of 300.
#[must_use]
pub fn software(shape: &KvShape, attention: &Attention) -> Variant {
    with_lanes((shape.head_dim / 4).max(8), shape, attention).for_software()
}

/// The kernel for a device.
#[must_use]
pub fn best(profile: &DeviceProfile, shape: &KvShape, attention: &Attention) -> Variant {
    let software = software(shape, attention);
    if profile.suits(&software) { software } else { variant(shape, attention) }
}

fn with_lanes(lanes: u32, shape: &KvShape, attention: &Attention) -> Variant {
    shape.check();
    let variant = Variant::new(&KERNEL).set(slot::HEAD_DIM, shape.head_dim).constant("WG", lanes);
    let variant = attention.order(variant, shape, 1);
    let listed = attention.context != Context::Full;
    let variant = variant.with_if("selected", listed);
    if !attention.sinks {
        return variant.set(SINKS, false);
    }
    let at = if listed { 6 } else { 5 };
    variant.set(SINKS, true).set(SINKS_AT, at).with("sinks")
}
