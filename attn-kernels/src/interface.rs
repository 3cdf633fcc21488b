//! Interface of a kernel with the host as data: parameters and bindings.

/// Field of a uniform parameter block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Field {
    /// Name on the host and in the WGSL.
    pub name: &'static str,
    /// Offset from the start of the block, in bytes.
    pub offset: usize,
}

/// Uniform parameter block of a kernel; [`params!`](crate::params) declares one.
pub trait Params: bytemuck::Pod {
    /// The fields in order.
    const FIELDS: &'static [Field];

    /// Layout of the block: the fields, and the size of the block when it is bound.
    const LAYOUT: ParamsLayout =
        ParamsLayout { fields: Self::FIELDS, bytes: size_of::<Self>().next_multiple_of(ParamsLayout::ALIGN) };
}

/// Layout of a uniform parameter block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ParamsLayout {
    /// The fields in order.
    pub fields: &'static [Field],
    /// Size in bytes as it is bound, a multiple of [`Self::ALIGN`].
    pub bytes: usize,
}

impl ParamsLayout {
    /// Granularity of the size of uniform blocks, in bytes: the largest alignment of a field in WGSL.
    pub const ALIGN: usize = 16;
}

/// Access of a kernel to one binding of group 0. Binding 0 is always the uniform parameter block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "reflect", derive(serde::Serialize))]
pub enum Access {
    /// `var<storage, read>`
    Read,
    /// `var<storage, read_write>`
    Write,
    /// `var<uniform>` of [`WINDOW_BYTES`]: a read-only part of a buffer.
    Window,
    /// `texture_storage_2d<rgba32uint, read>`
    Image,
}

/// Bytes of a buffer that a kernel sees through [`Access::Window`]: the size of a uniform binding on software drivers.
pub const WINDOW_BYTES: u32 = 64 << 10;

/// Storage buffer of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Binding {
    /// Name of the variable in the WGSL, and of the field on the host.
    pub name: &'static str,
    /// Access of the kernel to the binding.
    pub access: Access,
    /// Whether only some variants have the binding.
    pub optional: bool,
    /// Whether the kernel computes, from numbers of any value, what later kernels use as indices.
    pub indices: bool,
}
