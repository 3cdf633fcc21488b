//! The devices that `serve --device` names: one, several by their numbers, or all.

use anyhow::{Result, ensure};
use attn_kernels::gpu::wgpu::{AdapterInfo, DeviceType};

/// Word for all devices.
const ALL: &str = "all";

/// The value of `--device` for each engine: `wanted` itself, unless it is a list of numbers or `all`. These are the adapters of
/// one driver interface, the first one's, lest a card that two of them list gets two engines; GPUs, unless there are none.
///
/// # Errors
/// If there is no adapter, or none with a number that is listed.
pub(crate) fn devices(
    wanted: Option<&str>,
    adapters: impl FnOnce() -> Vec<AdapterInfo>,
) -> Result<Vec<Option<String>>> {
    let Some(wanted) = wanted else { return Ok(vec![None]) };
    if wanted == ALL {
        let adapters = adapters();
        let first = adapters.first();
        let same = |adapter: &&AdapterInfo| first.is_some_and(|first| first.backend == adapter.backend);
        let all = || (0..).zip(&adapters).filter(|(_, adapter)| same(adapter));
        let gpus: Vec<usize> = all().filter(|(_, adapter)| is_gpu(adapter)).map(|(index, _)| index).collect();
        let indices = if gpus.is_empty() { all().map(|(index, _)| index).collect() } else { gpus };
        ensure!(!indices.is_empty(), "--device all: there is no adapter");
        return Ok(indices.into_iter().map(|index| Some(index.to_string())).collect());
    }
    let parts: Vec<&str> = wanted.split(',').map(str::trim).collect();
    let numbers: Option<Vec<usize>> = parts.iter().map(|part| part.parse().ok()).collect();
    // A name may have commas.
    let Some(numbers) = numbers.filter(|numbers| numbers.len() > 1) else {
        return Ok(vec![Some(wanted.to_owned())]);
    };
    let adapters = adapters();
    let missing = numbers.iter().find(|index| **index >= adapters.len());
    ensure!(
        missing.is_none(),
        "--device {wanted}: there is no adapter {}, `doctor` lists {}",
        missing.copied().unwrap_or_default(),
        adapters.len()
    );
    Ok(numbers.into_iter().map(|index| Some(index.to_string())).collect())
}

fn is_gpu(adapter: &AdapterInfo) -> bool {
    matches!(
        adapter.device_type,
        DeviceType::DiscreteGpu | DeviceType::IntegratedGpu | DeviceType::VirtualGpu
    )
}

#[cfg(test)]
mod tests {
    use attn_kernels::gpu::wgpu::Backend::{self, Dx12, Vulkan};
    use attn_kernels::gpu::wgpu::DeviceType::{Cpu, DiscreteGpu};

    use super::*;

    fn of(wanted: Option<&str>, adapters: &[(DeviceType, Backend)]) -> Result<Vec<Option<String>>> {
        let adapters: Vec<_> =
            adapters.iter().map(|(kind, backend)| AdapterInfo::new(*kind, *backend)).collect();
        devices(wanted, || adapters)
    }

    fn numbers(numbers: &[usize]) -> Vec<Option<String>> {
        numbers.iter().map(|number| Some(number.to_string())).collect()
    }

    #[test]
    fn one_several_or_all_devices() {
        let two = [(DiscreteGpu, Vulkan), (DiscreteGpu, Vulkan), (Cpu, Vulkan)];
        assert_eq!(of(None, &two).unwrap(), [None]);
        assert_eq!(of(Some("1"), &two).unwrap(), numbers(&[1]));
        assert_eq!(of(Some("llvmpipe (LLVM 15.0.6, 256 bits)"), &two).unwrap().len(), 1);
        assert_eq!(of(Some("0, 0,2"), &two).unwrap(), numbers(&[0, 0, 2]));
        assert_eq!(of(Some("all"), &two).unwrap(), numbers(&[0, 1]));
        // A card that two interfaces list, and a machine without any.
        assert_eq!(of(Some("all"), &[(DiscreteGpu, Vulkan), (DiscreteGpu, Dx12)]).unwrap(), numbers(&[0]));
        assert_eq!(of(Some("all"), &[(Cpu, Vulkan)]).unwrap(), numbers(&[0]));
        assert_eq!(of(Some("all"), &[]).unwrap_err().to_string(), "--device all: there is no adapter");
        let error = of(Some("0,3"), &two).unwrap_err().to_string();
        assert_eq!(error, "--device 0,3: there is no adapter 3, `doctor` lists 3");
    }
}
