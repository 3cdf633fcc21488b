//! Options that a device is opened with.

use derive_setters::Setters;

use super::wgpu;
use crate::profile::{Registers, Tuning};
use crate::{Level, TextLength};
use std::path::PathBuf;

/// Features that are used if the adapter has them. No function depends on any of them.
pub(super) const OPTIONAL: wgpu::Features = wgpu::Features::SUBGROUP
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::TIMESTAMP_QUERY)
    .union(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES)
    .union(HOST_BUFFERS);

/// Features that let storage buffers be in host memory.
pub(super) const HOST_BUFFERS: wgpu::Features = wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;

/// Whether kernels carry bounds checks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Checks {
    /// Every access is checked. Tests use this.
    On,
    /// Kernels run without bounds checks: about twice as fast if they are bound by memory. They follow every index
    /// that they are given, so tables, rows and lists of a caller must lie inside its buffers.
    Off,
}

/// Options of a device.
#[derive(Clone, PartialEq, Eq, Debug, Setters)]
#[non_exhaustive]
pub struct GpuOptions {
    /// Index of [`adapters`](super::adapters) or part of an adapter's name; the best one if `None`.
    #[setters(into)]
    pub device: Option<String>,
    /// The highest level to use.
    pub level: Level,
    /// Bounds checks in kernels.
    #[setters(skip)]
    pub checks: Checks,
    /// Length of the text of kernels; if `None`, [`TextLength::of_vendor`] decides.
    #[setters(strip_option)]
    pub text: Option<TextLength>,
    /// Whether the device may have [buffers in memory of the host](super::Gpu::has_host_buffers), if the adapter does.
    pub host_buffers: bool,
    /// Optional features that the device may have, if the adapter does.
    pub features: wgpu::Features,
    /// Limits of the device; if `None`, the adapter's.
    #[setters(into)]
    pub limits: Option<wgpu::Limits>,
    /// Whether kernels are chosen as for a [software driver](crate::profile::DeviceProfile::software); if `None`, the
    /// type of the adapter decides.
    #[setters(strip_option)]
    pub software: Option<bool>,
    /// Register class of the device's lanes; if `None`, the class that the adapter's vendor is known to have.
    #[setters(strip_option)]
    pub registers: Option<Registers>,
    /// Sizes of work at which one kernel overtakes another.
    pub tuning: Tuning,
    /// Folder for compiled kernels, if the driver exports them, so that later runs need not compile them; `None`
    /// keeps no kernels.
    #[setters(into)]
    pub kernel_cache: Option<PathBuf>,
}

impl GpuOptions {
    /// Creates options for the best adapter at its best level with all its features, and `checks`.
    #[must_use]
    pub fn new(checks: Checks) -> Self {
        Self {
            device: None,
            level: Level::Coop,
            checks,
            text: None,
            host_buffers: true,
            features: OPTIONAL,
            limits: None,
            software: None,
            registers: None,
            tuning: Tuning::default(),
            kernel_cache: None,
        }
    }
}
