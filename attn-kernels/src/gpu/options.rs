//! Options that a device is opened with.

use super::wgpu;
use crate::profile::{Registers, Tuning};
use crate::{Level, TextLength};
use std::path::PathBuf;

/// Features that are used if the adapter has them; nothing depends on any of them.
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
    /// Every access is checked: tests run so.
    On,
    /// Kernels run as trusted modules: about twice as fast where they are bound by memory. They follow every index that they
    /// are given: tables, rows and lists of a caller must lie inside its buffers.
    Off,
}

/// Options of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GpuOptions {
    /// Index of [`adapters`](super::adapters) or part of an adapter's name; the best one if `None`.
    pub device: Option<String>,
    /// The highest level to use.
    pub level: Level,
    /// Bounds checks in kernels.
    pub checks: Checks,
    /// Length of the text of kernels; if `None`, [`TextLength::of_vendor`] decides.
    pub text: Option<TextLength>,
    /// Whether the device may have [buffers in memory of the host](super::Gpu::has_host_buffers), if the adapter does.
    pub host_buffers: bool,
    /// Optional features that the device may have, if the adapter does.
    pub features: wgpu::Features,
    /// Limits of the device; if `None`, the adapter's.
    pub limits: Option<wgpu::Limits>,
    /// Whether kernels are chosen as for a [software driver](crate::profile::DeviceProfile::software); if `None`, as the adapter
    /// is one or not.
    pub software: Option<bool>,
    /// Registers of a lane; if `None`, as the adapter's vendor is known to have.
    pub registers: Option<Registers>,
    /// Sizes of work at which one kernel overtakes another.
    pub tuning: Tuning,
    /// Folder for compiled kernels, so that other runs need not compile them, if the driver exports them; `None` keeps none.
    pub kernel_cache: Option<PathBuf>,
}

impl GpuOptions {
    /// The best adapter at its best level with all its features, and `checks`.
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

    /// Sets the index of the adapter, or part of its name; `None` for the best one.
    #[must_use]
    pub fn device(self, device: impl Into<Option<String>>) -> Self {
        Self { device: device.into(), ..self }
    }

    /// Sets the highest level to use.
    #[must_use]
    pub fn level(self, level: Level) -> Self {
        Self { level, ..self }
    }

    /// Sets the length of the text of kernels.
    #[must_use]
    pub fn text(self, length: TextLength) -> Self {
        Self { text: Some(length), ..self }
    }

    /// Allows or forbids [buffers in memory of the host](super::Gpu::has_host_buffers).
    #[must_use]
    pub fn host_buffers(self, on: bool) -> Self {
        Self { host_buffers: on, ..self }
    }

    /// Sets the optional features that the device may have, as if the adapter lacked all others.
    #[must_use]
    pub fn features(self, features: wgpu::Features) -> Self {
        Self { features, ..self }
    }

    /// Sets the limits of the device, none above the adapter's; `None` for the adapter's.
    #[must_use]
    pub fn limits(self, limits: impl Into<Option<wgpu::Limits>>) -> Self {
        Self { limits: limits.into(), ..self }
    }

    /// Chooses kernels as for a software driver, or as for a GPU, whatever the adapter is.
    #[must_use]
    pub fn software(self, software: bool) -> Self {
        Self { software: Some(software), ..self }
    }

    /// Chooses kernels as for lanes with `registers`, whatever the adapter's have.
    #[must_use]
    pub fn registers(self, registers: Registers) -> Self {
        Self { registers: Some(registers), ..self }
    }

    /// Sets the sizes of work at which one kernel overtakes another.
    #[must_use]
    pub fn tuning(self, tuning: Tuning) -> Self {
        Self { tuning, ..self }
    }

    /// Sets the folder for compiled kernels; `None` keeps none.
    #[must_use]
    pub fn kernel_cache(self, folder: impl Into<Option<PathBuf>>) -> Self {
        Self { kernel_cache: folder.into(), ..self }
    }
}
