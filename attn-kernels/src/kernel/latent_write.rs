//! Latents of a step into the cache of `mla_decode`.

use super::KvDtype;
use super::mla_decode::LatentShape;
use crate::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

/// Bindings: kv, slots, latents.
pub static KERNEL: Kernel = Kernel {
    name: "latent_write",
    wgsl: include_str!("../../wgsl/latent_write.wgsl"),
    modules: &[crate::MODULES],
    params_bytes: size_of::<LatentWriteParams>(),
    bindings: &[Access::Read, Access::Read, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct LatentWriteParams {
    /// Rows to write.
    pub rows: u32,
    /// f32 from one row of the source to the next.
    pub row_stride: u32,
    /// Where the compressed part of a row starts.
    pub latent_start: u32,
    /// Where the rope part of a row starts.
    pub rope_start: u32,
}

const WG: u32 = 64;

/// The kernel for one cache shape.
#[must_use]
pub fn variant(shape: &LatentShape) -> Variant {
    shape.check();
    let element = match shape.dtype {
        KvDtype::F16 => "latent_write_f16",
        KvDtype::F32 => "latent_write_f32",
        KvDtype::Fp8 => "latent_write_fp8",
        KvDtype::Int8 => "latent_write_int8",
    };
    Variant::new(&KERNEL)
        .size("LATENT", shape.latent)
        .size("ROPE", shape.rope)
        .module("element", element)
        .constant("WG", WG)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(shape: &LatentShape, rows: u32) -> [u32; 3] {
    super::flat_grid((rows * (shape.width() / 8)).div_ceil(WG))
}
