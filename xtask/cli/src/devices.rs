//! The devices that `--device` names: one, several by their numbers, or all.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, ensure};
use attn_kernels::gpu::wgpu::{AdapterInfo, DeviceType};

/// Split of the layers of a model over devices; as text `layers`, or `layers=N,N` with the number of layers of each device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitBy {
    /// Number of layers of each device; `None` for about equal bytes of weights on each device.
    pub layers: Option<Vec<u32>>,
}

/// Word for a split by layers.
const LAYERS: &str = "layers";

impl FromStr for SplitBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused =
            || format!("`{text}` is no split: give {LAYERS}, or {LAYERS}=N,N with the layers of each device");
        let rest = text.strip_prefix(LAYERS).ok_or_else(refused)?;
        if rest.is_empty() {
            return Ok(Self { layers: None });
        }
        let numbers = rest.strip_prefix('=').ok_or_else(refused)?.split(',');
        let numbers: Result<Vec<u32>, _> = numbers.map(str::parse).collect();
        Ok(Self { layers: Some(numbers.map_err(|_| refused())?) })
    }
}

impl fmt::Display for SplitBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = self.layers.iter().flatten().map(u32::to_string).collect::<Vec<_>>();
        if numbers.is_empty() { f.write_str(LAYERS) } else { write!(f, "{LAYERS}={}", numbers.join(",")) }
    }
}

/// Word for all devices.
const ALL: &str = "all";

/// Returns the value of `--device` for each engine of a server: see [`devices`]. A model whose layers are split over devices has
/// only one engine.
///
/// # Errors
/// If there is no adapter, or none with a number that is listed.
pub(crate) fn of_engines(wanted: Option<&str>, split: Option<&SplitBy>) -> Result<Vec<Option<String>>> {
    match split {
        Some(_) => Ok(vec![wanted.map(str::to_owned)]),
        None => devices(wanted, attn_kernels::gpu::adapters),
    }
}

/// Returns the value of `--device` for each engine. A list of numbers and `all` give one engine per adapter; any
/// other `wanted` gives one engine with that value. `all` takes only adapters of the first one's graphics API, so
/// that no GPU gets two engines, and only GPUs if there are any.
///
/// # Errors
/// If there is no adapter, or none with a number that is listed.
fn devices(wanted: Option<&str>, adapters: impl FnOnce() -> Vec<AdapterInfo>) -> Result<Vec<Option<String>>> {
    let Some(wanted) = wanted else { return Ok(vec![None]) };
    if wanted == ALL {
        let indices = all(&adapters());
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

/// Lists the adapters of `wanted` over which layers are split: those of a list, or [all](devices). An unknown adapter
/// is refused when it is opened.
pub(crate) fn split(wanted: &str, adapters: impl FnOnce() -> Vec<AdapterInfo>) -> Vec<String> {
    match wanted {
        ALL => all(&adapters()).into_iter().map(|index| index.to_string()).collect(),
        list => list.split(',').map(|part| part.trim().to_owned()).collect(),
    }
}

fn all(adapters: &[AdapterInfo]) -> Vec<usize> {
    let first = adapters.first();
    let same = |adapter: &&AdapterInfo| first.is_some_and(|first| first.backend == adapter.backend);
    let all = || (0..).zip(adapters).filter(|(_, adapter)| same(adapter));
    let gpus: Vec<usize> = all().filter(|(_, adapter)| is_gpu(adapter)).map(|(index, _)| index).collect();
    if gpus.is_empty() { all().map(|(index, _)| index).collect() } else { gpus }
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
    fn splits_are_even_or_by_number() {
        for text in ["layers", "layers=20,12", "layers=1,2,3"] {
            assert_eq!(text.parse::<SplitBy>().unwrap().to_string(), text);
        }
        for text in ["", "rows", "layers=", "layers=a", "layers:2", "layers=2,"] {
            let error = text.parse::<SplitBy>().unwrap_err();
            assert!(
                error.starts_with(&format!("`{text}` is no split: give layers, or layers=N,N")),
                "{error}"
            );
        }
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
        let adapters: Vec<_> = two.iter().map(|(kind, backend)| AdapterInfo::new(*kind, *backend)).collect();
        assert_eq!(split("all", || adapters), ["0", "1"]);
        assert_eq!(split("1, NVIDIA", Vec::new), ["1", "NVIDIA"]);
        let error = of(Some("0,3"), &two).unwrap_err().to_string();
        assert_eq!(error, "--device 0,3: there is no adapter 3, `doctor` lists 3");
    }
}
