//! Choice of an adapter: the requested one, or discrete before integrated before software.

use super::GpuError;
use wgpu::{Adapter, Backends, DeviceType, Instance, InstanceFlags};

/// Lists the adapters in the order of preference; `--device` takes their index.
#[must_use]
pub fn adapters() -> Vec<wgpu::AdapterInfo> {
    list().iter().map(Adapter::get_info).collect()
}

/// Lists the adapters, best first.
pub(super) fn list() -> Vec<Adapter> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = Backends::PRIMARY;
    // Debug builds would number the line of every expression, which costs more than to compile it does.
    descriptor.flags = InstanceFlags::default().difference(InstanceFlags::DEBUG).with_env();
    let instance = Instance::new(descriptor);
    let mut found = pollster::block_on(instance.enumerate_adapters(Backends::PRIMARY));
    found.sort_by_key(|a| rank(a.get_info().device_type));
    found
}

fn rank(kind: DeviceType) -> u8 {
    match kind {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    }
}

/// Returns the adapter that `wanted` selects, by its index in [`adapters`] or by part of its name in any case; the
/// first adapter if `wanted` is `None`.
pub(super) fn choose(wanted: Option<&str>) -> Result<Adapter, GpuError> {
    let mut found = list();
    if found.is_empty() {
        return Err(GpuError::NoAdapter);
    }
    let position = match wanted {
        None => Some(0),
        Some(text) => match text.parse::<usize>() {
            Ok(index) => (index < found.len()).then_some(index),
            Err(_) => {
                let text = text.to_lowercase();
                found.iter().position(|a| a.get_info().name.to_lowercase().contains(&text))
            }
        },
    };
    match position {
        Some(index) => Ok(found.swap_remove(index)),
        None => Err(GpuError::NoSuchAdapter {
            wanted: wanted.unwrap_or_default().into(),
            available: describe(&found),
        }),
    }
}

fn describe(found: &[Adapter]) -> String {
    let lines = found.iter().enumerate().map(|(index, adapter)| {
        let info = adapter.get_info();
        format!("  {index}: {} ({:?}, {})", info.name, info.device_type, info.backend)
    });
    lines.collect::<Vec<_>>().join("\n")
}
