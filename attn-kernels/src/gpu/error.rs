//! Everything that can go wrong on the GPU, as values.

/// Why work did not run on the GPU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// No adapter at all.
    #[error(
        "no GPU adapter found; on Linux install a Vulkan driver (for a software one: \
         apt-get install libvulkan1 mesa-vulkan-drivers)"
    )]
    NoAdapter,
    /// `--device` matches no adapter.
    #[error("no adapter matches `{wanted}`; available:\n{available}")]
    NoSuchAdapter {
        /// The requested name or index.
        wanted: String,
        /// One line an adapter.
        available: String,
    },
    /// The adapter cannot run any of the kernels.
    #[error("adapter {adapter}: {limit} is {value}, {needed} are needed")]
    Limit {
        /// The adapter.
        adapter: String,
        /// The limit's name in WebGPU.
        limit: &'static str,
        /// Value of the adapter.
        value: u64,
        /// Minimum value.
        needed: u64,
    },
    /// The adapter refused to open.
    #[error("adapter {adapter} did not open")]
    Open {
        /// The adapter.
        adapter: String,
        /// The reason.
        #[source]
        source: wgpu::RequestDeviceError,
    },
    /// A buffer larger than a binding may be.
    #[error("buffer {label} of {bytes} bytes is over the device's limit of {limit} bytes")]
    BufferTooLarge {
        /// The buffer.
        label: String,
        /// Size of the buffer.
        bytes: u64,
        /// The smaller of the largest buffer and the largest storage binding.
        limit: u64,
    },
    /// The device is out of memory.
    #[error("out of device memory for buffer {label} of {bytes} bytes ({allocated} bytes already allocated)")]
    OutOfMemory {
        /// The buffer.
        label: String,
        /// Size of the binding.
        bytes: u64,
        /// Bytes in live buffers of this device.
        allocated: u64,
    },
    /// A buffer of the caller's that kernels cannot bind.
    #[error("a buffer of usage {usage:?} is shared, {needed:?} is needed")]
    Usage {
        /// Usages that it was made with.
        usage: wgpu::BufferUsages,
        /// Usages that it needs.
        needed: wgpu::BufferUsages,
    },
    /// More bytes than one binding holds.
    #[error("kernel {kernel}: binding {binding} is of {bytes} bytes, the device's limit is {limit}")]
    BindingTooLarge {
        /// The kernel.
        kernel: &'static str,
        /// The binding, counted from 1 as in the kernel.
        binding: u32,
        /// Bytes from its offset to the end of the buffer.
        bytes: u64,
        /// The largest storage binding.
        limit: u64,
    },
    /// A binding that is not whole words.
    #[error("kernel {kernel}: binding {binding} is of {bytes} bytes, not a multiple of 4")]
    BindingOdd {
        /// The kernel.
        kernel: &'static str,
        /// The binding, counted from 1 as in the kernel.
        binding: u32,
        /// Bytes from its offset to the end of the buffer.
        bytes: u64,
    },
    /// A binding at an offset that the device does not allow.
    #[error("kernel {kernel}: binding {binding} begins at byte {offset}, not a multiple of {align}")]
    BindingOffset {
        /// The kernel.
        kernel: &'static str,
        /// The binding, counted from 1 as in the kernel.
        binding: u32,
        /// Offset of the binding in its buffer.
        offset: u64,
        /// Alignment of offsets on this device, in bytes.
        align: u64,
    },
    /// A binding that begins after the end of its buffer.
    #[error("kernel {kernel}: binding {binding} begins at byte {offset} of a buffer of {size} bytes")]
    BindingPastEnd {
        /// The kernel.
        kernel: &'static str,
        /// The binding, counted from 1 as in the kernel.
        binding: u32,
        /// Offset of the binding in its buffer.
        offset: u64,
        /// Bytes of the buffer.
        size: u64,
    },
    /// One buffer that a kernel would read and write at once.
    #[error(
        "kernel {kernel}: bindings {read}, which is read, and {written}, which is written, are of one buffer"
    )]
    BoundTwice {
        /// The kernel.
        kernel: &'static str,
        /// The binding that is read, counted from 1 as in the kernel.
        read: u32,
        /// The binding that is written.
        written: u32,
    },
    /// A pass that reads back, prepared for the caller's encoder.
    #[error("a prepared pass reads {reads} buffers back: copy them in the encoder that it goes to")]
    Readback {
        /// Number of its readbacks.
        reads: usize,
    },
    /// A kernel that does not compose.
    #[error(transparent)]
    Compose(#[from] crate::source::ComposeError),
    /// A variant that the self-test found wrong on this adapter, and that no other variant can replace.
    #[error(
        "{mode}: the self-test found {variant} wrong on {adapter}, {driver}, and nothing else does the same"
    )]
    Wrong {
        /// The variant that was tested.
        variant: &'static str,
        /// The adapter.
        adapter: String,
        /// Driver of the adapter, with the version.
        driver: String,
        /// The mode or kernel that does not run without it.
        mode: String,
    },
    /// A kernel of the coop level on an adapter that does not run this level: see [`Gpu::runs_coop`](super::Gpu::runs_coop).
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
        /// The least and the most lanes of its subgroups.
        subgroups: (u32, u32),
        /// Whether its kernels are checked.
        checks: super::Checks,
    },
    /// A kernel that uses subgroups, on an adapter without subgroups or without subgroups of its size.
    #[error(
        "kernel {kernel} needs subgroups of {}: adapter {adapter} is at level {level}, subgroups of {subgroups:?}",
        lanes(*min, *max)
    )]
    NoSubgroups {
        /// The kernel.
        kernel: &'static str,
        /// The least lanes that subgroups must have.
        min: u32,
        /// The maximum; `u32::MAX` for any number.
        max: u32,
        /// The adapter.
        adapter: String,
        /// Level of the variant.
        level: crate::Level,
        /// The least and the most lanes of its subgroups.
        subgroups: (u32, u32),
    },
    /// A kernel that the driver does not take.
    #[error("kernel {kernel} does not compile: {message}")]
    Compile {
        /// The kernel.
        kernel: &'static str,
        /// The compiler's words.
        message: String,
    },
    /// The device was lost (driver reset, unplugged, watchdog).
    #[error("the device was lost: {message}")]
    Lost {
        /// The driver's words.
        message: String,
    },
    /// wgpu refused a call: a bug in the caller.
    #[error("GPU validation: {message}")]
    Validation {
        /// wgpu's words.
        message: String,
    },
}

/// Sizes of subgroups, as text.
fn lanes(least: u32, most: u32) -> String {
    match (least, most) {
        (0 | 1, u32::MAX) => "any size".into(),
        (least, u32::MAX) => format!("at least {least} lanes"),
        (least, most) if least == most => format!("{least} lanes"),
        (least, most) => format!("{least} to {most} lanes"),
    }
}
