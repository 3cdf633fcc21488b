//! The k largest scores of long rows, after `top_k_count`.

use super::error::Launch;
use super::top_k::{self, Output, TopKParams};
use super::{LaunchError, top_k_count};
use crate::{Access, Kernel, Level, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: scores, rows, table, cuts, tallies, counts, out.
pub static KERNEL: Kernel = Kernel {
    name: "top_k_gather",
    wgsl: include_str!("../../wgsl/top_k_gather.wgsl"),
    modules: &[crate::MODULES],
    params_bytes: size_of::<TopKGatherParams>(),
    bindings: &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Write,
    ],
};

/// Uniform parameters: those of [`TopKParams`], and the chunks.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct TopKGatherParams {
    /// Rows.
    pub rows: u32,
    /// u32 from one list or row of the output to the next.
    pub out_stride: u32,
    /// Equal lists a row.
    pub copies: u32,
    /// Tokens of a page.
    pub page_size: u32,
    /// As `top_k_count` ran.
    pub max_chunks: u32,
    /// As `top_k_count` ran.
    pub chunk: u32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
}

impl TopKGatherParams {
    /// Those of `top_k`, for rows of at most `max_chunks` chunks of `chunk` scores.
    #[must_use]
    pub fn new(params: &TopKParams, max_chunks: u32, chunk: u32) -> Self {
        let TopKParams { rows, out_stride, copies, page_size } = *params;
        Self { rows, out_stride, copies, page_size, max_chunks, chunk, pad0: 0, pad1: 0 }
    }
}

/// The kernel for one kind of output.
/// Its prefix sums stay in workgroup memory: with those of subgroups an NVIDIA driver (580.159.04) gave wrong places.
#[must_use]
pub fn variant(output: Output) -> Variant {
    top_k::specialised(Variant::new(&KERNEL), output, Level::Baseline)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(max_chunks: u32, rows: u32) -> [u32; 3] {
    top_k_count::grid(max_chunks, rows)
}

/// [`top_k::check`] for this kernel and `top_k_count`: also every row has at most `max_chunks` chunks.
///
/// # Errors
/// As [`top_k::check`], a row of more chunks, or chunks of another size than [`top_k_count::CHUNKS`].
pub fn check(
    params: &TopKGatherParams,
    output: Output,
    rows: &[[u32; 4]],
    lens: [usize; 3],
) -> Result<(), LaunchError> {
    let launch = Launch(KERNEL.name);
    let TopKGatherParams { rows: count, out_stride, copies, page_size, max_chunks, chunk, .. } = *params;
    top_k::check_rows(
        launch,
        &TopKParams { rows: count, out_stride, copies, page_size },
        output,
        rows,
        lens,
    )?;
    let (least, most) = top_k_count::CHUNKS.into_inner();
    launch.power_of_two("scores of a chunk", chunk)?;
    launch.multiple("scores of a chunk", chunk, least)?;
    launch.at_most("scores of a chunk", chunk.into(), most.into())?;
    for (entry, row) in rows.iter().enumerate() {
        let chunks = row[1].div_ceil(chunk);
        launch.entry("number of chunks", entry, chunks.into(), max_chunks.into())?;
    }
    Ok(())
}
