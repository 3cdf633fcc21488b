//! Selects the k largest scores of every row, exactly and in a fixed order.

use crate::declare::{Listed, Sizes};
use crate::profile::DeviceProfile;
use crate::rows::{PhysicalBlock, TopRow};
use crate::slot::{self, OneOf};
use crate::{Level, Variant};

kernel! {
    /// The kernel; [`TopKBuffers`] lists its bindings.
    "top_k"(TopKParams, TopKBuffers): Selection,
    grid: |params, _| super::flat_grid(params.rows),
    listed: listed,
    variants: "lists; positions, plain, paged or ragged; prefix sums by tree or subgroup, in workgroups of 512 lanes or, for software drivers, 64",
    bytes: "`16 * scores + 4 * k` per row, of which caches serve most",
    cases: crate::self_test::top_k::cases,
}

/// Lists the variants of every kind of output at every level.
pub(super) fn listed_by(variant: impl Fn(Output, Level) -> Variant) -> Listed {
    let levels = [("", Level::Baseline), ("subgroup-", Level::Subgroup)];
    let all = levels.into_iter().flat_map(|(prefix, level)| {
        OUTPUTS.map(|(part, output)| (format!("{prefix}{part}"), variant(output, level)))
    });
    all.collect()
}

fn listed(_: &Sizes) -> Listed {
    let software = OUTPUTS.map(|(part, output)| (format!("software-{part}"), software(output)));
    listed_by(variant).into_iter().chain(software).collect()
}

/// Kinds of output, by name.
const OUTPUTS: [(&str, Output); 4] = [
    ("list", Output::List),
    ("positions", Output::Positions(Transform::None)),
    ("paged", Output::Positions(Transform::Paged)),
    ("ragged", Output::Positions(Transform::Ragged)),
];

params! {
    /// Uniform parameters.
    pub struct TopKParams {
        /// Number of rows.
        pub rows: u32,
        /// Number of u32 between successive lists or rows of the output: 1 + the largest k for lists, the largest k
        /// for rows.
        pub out_stride: u32,
        /// Number of equal lists per row (one for each KV head that shares a selection); 1 for [`Output::Positions`].
        pub copies: u32,
        /// Number of tokens of a page of [`Transform::Paged`]; with 1, the entries of the table are slots.
        pub page_size: u32,
    }
}

bindings! {
    /// Buffers of `top_k`.
    pub struct TopKBuffers(TopKParams) {
        /// Scores, in which rows may begin at any element.
        read scores: f32,
        /// Rows, `[n]`.
        read rows: TopRow,
        /// Page table, which only the paged transform reads.
        read table: PhysicalBlock,
        /// Lists or positions of `out_stride` words, as [`Output`] says.
        index out: u32,
    }
}

/// Forms of the result of a selection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Output {
    /// Lists `[rows, copies, out_stride]`: a count, then that many indices, ascending; the rest is not written.
    List,
    /// Transformed positions `[rows, out_stride]` in ascending order of position, then -1.
    Positions(Transform),
}

/// Transforms of positions. The fourth word of a row is the base.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transform {
    /// Positions without a transform.
    None,
    /// Physical slots, `table[base + position / page_size] * page_size + position % page_size`.
    Paged,
    /// `base + position`.
    Ragged,
}

/// Transform of positions.
pub(crate) const TRANSFORM: OneOf<Transform> = OneOf::new(
    "transform",
    &[
        (Transform::None, "transform_none"),
        (Transform::Paged, "transform_paged"),
        (Transform::Ragged, "transform_ragged"),
    ],
);
/// Whether results are lists; else positions.
pub(crate) const LISTS: OneOf<bool> = OneOf::new("out", &[(false, "out_positions"), (true, "out_list")]);

/// Number of lanes of a workgroup with subgroups, twice the WebGPU limit. On an H200, 64 rows of 131,072 scores take
/// 54 us in place of 63; with 1,024 lanes, they take 61 us.
pub const LANES: u32 = 512;

/// Maximum number of scores of a row: the kernel's one workgroup goes through them some four times, and a software
/// driver ends a lane when its loops have run 65,535 rounds. Library only: rows of the engine are as long as a context.
pub const MAX_SCORES: u32 = 1 << 20;

/// Number of lanes of a workgroup on a software driver. There, every subgroup adds up the sums of all others, and
/// each barrier switches between subgroups: with [`LANES`], ten rows of 200 scores take 7 ms on lavapipe.
const SOFTWARE_LANES: u32 = 64;

/// Sets the import slots that depend on the output and the kernel level, and the size of a workgroup.
pub(crate) fn specialised(variant: Variant, output: Output, level: Level) -> Variant {
    let variant = with_modules(variant, output, level);
    match level {
        Level::Baseline => variant.set(slot::WG, 256),
        Level::Subgroup | Level::Coop => variant.set(slot::WG, LANES),
    }
}

fn with_modules(variant: Variant, output: Output, level: Level) -> Variant {
    let transform = match output {
        Output::List => Transform::None,
        Output::Positions(transform) => transform,
    };
    let variant = variant.set(TRANSFORM, transform).set(LISTS, output == Output::List);
    variant.by_level(slot::SCAN, level)
}

/// Returns the variant for one kind of output. With subgroups, prefix sums are shorter and a workgroup has [`LANES`]
/// lanes. [`DeviceProfile::top_k_level`](crate::profile::DeviceProfile::top_k_level) says which level a device runs.
#[must_use]
pub fn variant(output: Output, level: Level) -> Variant {
    specialised(Variant::new(&KERNEL), output, level)
}

/// Returns the variant at [`Level::Subgroup`] in small workgroups, for software drivers and rows of at most 2^18
/// scores. Each lane scans more scores than in larger workgroups, and a driver ends its loops as [`MAX_SCORES`] says.
#[must_use]
pub fn software(output: Output) -> Variant {
    with_modules(Variant::new(&KERNEL), output, Level::Subgroup).set(slot::WG, SOFTWARE_LANES).for_software()
}

impl DeviceProfile {
    /// Returns the level at which `top_k` and `top_k_long` run: the device's if workgroups may have [`LANES`] lanes,
    /// else baseline.
    #[must_use]
    pub fn top_k_level(&self) -> Level {
        if self.workgroup_lanes < LANES { Level::Baseline } else { self.level }
    }
}

/// The kernel for one kind of output at the highest level at which a device runs it.
#[must_use]
pub fn best(profile: &DeviceProfile, output: Output) -> Variant {
    let software = software(output);
    if profile.suits(&software) && profile.runs(&software) {
        return software;
    }
    profile.level(profile.top_k_level()).best(|level| variant(output, level))
}
