//! Errors of the GPU and of its use.

/// Reason why work did not run on the GPU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The machine has no adapter at all.
    #[error(
        "no GPU adapter found; on Linux install a Vulkan driver (for a software one: \
         apt-get install libvulkan1 mesa-vulkan-drivers)"
    )]
    NoAdapter,
    /// `--device` matches no adapter.
    #[error("no adapter matches `{wanted}`; available:\n{available}")]
    NoSuchAdapter {
        /// Adapter name or index that was requested.
        wanted: String,
        /// Available adapters, one per line.
        available: String,
    },
    /// The adapter cannot run any of the kernels.
    #[error("adapter {adapter}: {limit} is {value}, {needed} are needed")]
    Limit {
        /// The adapter.
        adapter: String,
        /// Name of the WebGPU limit that is too low.
        limit: &'static str,
        /// Value of the limit on this adapter.
        value: u64,
        /// Minimum value of the limit that kernels need.
        needed: u64,
    },
    /// The adapter could not be opened.
    #[error("adapter {adapter} did not open")]
    Open {
        /// The adapter.
        adapter: String,
        /// The reason.
        #[source]
        source: wgpu::RequestDeviceError,
    },
    /// A buffer is larger than a binding may be.
    #[error("buffer {label} of {bytes} bytes is over the device's limit of {limit} bytes")]
    BufferTooLarge {
        /// Label of the buffer.
        label: String,
        /// Size of the buffer, in bytes.
        bytes: u64,
        /// Maximum size in bytes: the smaller of the limits of buffers and of storage bindings.
        limit: u64,
    },
    /// The device is out of memory.
    #[error("out of device memory for buffer {label} of {bytes} bytes ({allocated} bytes already allocated)")]
    OutOfMemory {
        /// Label of the buffer that could not be allocated.
        label: String,
        /// Size of the binding, in bytes.
        bytes: u64,
        /// Bytes in live buffers of this device.
        allocated: u64,
    },
    /// A buffer of the caller has usages with which kernels cannot bind it.
    #[error("a buffer of usage {usage:?} is shared, {needed:?} is needed")]
    Usage {
        /// Usages with which the buffer was made.
        usage: wgpu::BufferUsages,
        /// Usages that the buffer needs.
        needed: wgpu::BufferUsages,
    },
    /// A binding has more bytes than the device allows.
    #[error("kernel {kernel}: binding {binding} is of {bytes} bytes, the device's limit is {limit}")]
    BindingTooLarge {
        /// The kernel.
        kernel: &'static str,
        /// The binding, counted from 1 as in the kernel.
        binding: u32,
        /// Number of bytes from the binding's offset to the end of the buffer.
        bytes: u64,
        /// Maximum size of a storage binding, in bytes.
        limit: u64,
    },
    /// The size of a binding is not a multiple of a word.
    #[error("kernel {kernel}: binding {binding} is of {bytes} bytes, not a multiple of 4")]
    BindingOdd {
        /// The kernel.
        kernel: &'static str,
        /// The binding, counted from 1 as in the kernel.
        binding: u32,
        /// Number of bytes from the binding's offset to the end of the buffer.
        bytes: u64,
    },
    /// The offset of a binding is not a multiple that the device allows.
    #[error("kernel {kernel}: binding {binding} begins at byte {offset}, not a multiple of {align}")]
    BindingOffset {
        /// The kernel.
        kernel: &'static str,
        /// The binding, counted from 1 as in the kernel.
        binding: u32,
        /// Offset of the binding in its buffer, in bytes.
        offset: u64,
        /// Alignment of offsets on this device, in bytes.
        align: u64,
    },
    /// A binding begins after the end of its buffer.
    #[error("kernel {kernel}: binding {binding} begins at byte {offset} of a buffer of {size} bytes")]
    BindingPastEnd {
        /// The kernel.
        kernel: &'static str,
        /// The binding, counted from 1 as in the kernel.
        binding: u32,
        /// Offset of the binding in its buffer, in bytes.
        offset: u64,
        /// Size of the buffer, in bytes.
        size: u64,
    },
    /// A kernel would read and write one buffer in the same dispatch.
    #[error(
        "kernel {kernel}: bindings {read}, which is read, and {written}, which is written, are of one buffer"
    )]
    BoundTwice {
        /// The kernel.
        kernel: &'static str,
        /// The binding that is read, counted from 1 as in the kernel.
        read: u32,
        /// The binding that is written, counted from 1 as in the kernel.
        written: u32,
    },
    /// A pass with readbacks was prepared for the caller's encoder, which has no place for them.
    #[error("a prepared pass reads {reads} buffers back: copy them in the encoder that it goes to")]
    Readback {
        /// Number of readbacks of the pass.
        reads: usize,
    },
    /// The WGSL of a kernel could not be composed from its modules.
    #[error(transparent)]
    Compose(#[from] crate::source::ComposeError),
    /// The self-test found a variant wrong on this adapter, and no other variant can replace it.
    #[error(
        "{mode}: the self-test found {variant} wrong on {adapter}, {driver}, and nothing else does the same"
    )]
    Wrong {
        /// The variant that was tested.
        variant: &'static str,
        /// The adapter.
        adapter: String,
        /// Name and version of the adapter's driver.
        driver: String,
        /// The mode or kernel that cannot run without the variant.
        mode: String,
    },
    /// A kernel needs cooperative matrices, which the adapter does not run: see
    /// [`Gpu::runs_coop`](super::Gpu::runs_coop).
    #[error(
        "kernel {kernel} needs cooperative matrices that kernels are written for and no bounds checks: adapter {adapter} is at level {level}, subgroups of {subgroups:?}, checks {checks:?}"
    )]
    NoCoop {
        /// The kernel.
        kernel: &'static str,
        /// The adapter.
        adapter: String,
        /// Level of the variant.
        level: crate::Level,
        /// Minimum and maximum number of lanes of the adapter's subgroups.
        subgroups: (u32, u32),
        /// Checks that the adapter's kernels run with.
        checks: super::Checks,
    },
    /// A kernel uses subgroups, and the adapter has none, or none of the size that the kernel needs.
    #[error(
        "kernel {kernel} needs subgroups of {}: adapter {adapter} is at level {level}, subgroups of {subgroups:?}",
        lanes(*min, *max)
    )]
    NoSubgroups {
        /// The kernel.
        kernel: &'static str,
        /// Minimum number of lanes of a subgroup that the kernel needs.
        min: u32,
        /// Maximum number of lanes of a subgroup that the kernel allows; `u32::MAX` for any number.
        max: u32,
        /// The adapter.
        adapter: String,
        /// Level of the variant.
        level: crate::Level,
        /// Minimum and maximum number of lanes of the adapter's subgroups.
        subgroups: (u32, u32),
    },
    /// The driver could not compile a kernel.
    #[error("kernel {kernel} does not compile: {message}")]
    Compile {
        /// The kernel.
        kernel: &'static str,
        /// Message of the compiler.
        message: String,
    },
    /// The device was lost (driver reset, unplugged, watchdog).
    #[error("the device was lost: {message}")]
    Lost {
        /// Message of the driver.
        message: String,
    },
    /// wgpu refused a call: a bug in the caller.
    #[error("GPU validation: {message}")]
    Validation {
        /// Message of wgpu.
        message: String,
    },
}

/// Formats the range of subgroup sizes as text.
fn lanes(least: u32, most: u32) -> String {
    match (least, most) {
        (0 | 1, u32::MAX) => "any size".into(),
        (least, u32::MAX) => format!("at least {least} lanes"),
        (least, most) if least == most => format!("{least} lanes"),
        (least, most) => format!("{least} to {most} lanes"),
    }
}
