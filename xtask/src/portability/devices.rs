//! Devices, and where the compiler of each comes from.

use anyhow::{Result, bail};

use super::fetch::Root;

/// A device, or a checker of texts that runs on none.
#[derive(Debug)]
pub(super) struct Device {
    /// Name in `--device`, in the page and in the bounds.
    pub(super) id: &'static str,
    /// Hardware or checker.
    pub(super) title: &'static str,
    /// Compiler, and how it is run.
    pub(super) compiler: Compiler,
    /// Whether `--quick` includes the device.
    pub(super) quick: bool,
}

/// A compiler, and how it is run.
#[derive(Debug)]
pub(super) enum Compiler {
    /// A Vulkan driver.
    Vulkan(Driver),
    /// Microsoft's compiler of HLSL with its validator.
    Dxc,
    /// The validator of SPIR-V.
    SpirvVal,
    /// Dawn's front end of WGSL.
    Tint,
}

/// A Vulkan driver, with the means to make it report a device that is not there.
#[derive(Debug)]
pub(super) struct Driver {
    /// Packages that contain the driver.
    pub(super) root: Root,
    /// File of the driver, among the root's libraries.
    pub(super) library: &'static str,
    /// Library that answers in place of the kernel's driver.
    pub(super) shim: Option<Shim>,
    /// Variable of the environment that names the device.
    pub(super) variable: Option<(&'static str, &'static str)>,
}

/// A library of Mesa that answers in place of the kernel's driver.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shim {
    /// One that Debian packs, among the root's libraries.
    Packed(&'static str),
    /// Mesa's driver for Intel, which has to be built.
    Intel,
}

const fn vulkan(id: &'static str, title: &'static str, driver: Driver) -> Device {
    Device { id, title, compiler: Compiler::Vulkan(driver), quick: false }
}

/// A device of Mesa 26 through one of the shims that Debian packages.
const fn shimmed(
    library: &'static str,
    shim: &'static str,
    variable: Option<(&'static str, &'static str)>,
) -> Driver {
    Driver { root: Root::Mesa26, library, shim: Some(Shim::Packed(shim)), variable }
}

const fn radv(id: &'static str, title: &'static str, gpu: &'static str) -> Device {
    let gpu = Some(("AMDGPU_GPU_ID", gpu));
    vulkan(id, title, shimmed("libvulkan_radeon.so", "libamdgpu_noop_drm_shim.so", gpu))
}

const fn nvk(id: &'static str, title: &'static str, chip: &'static str) -> Device {
    let chip = Some(("NOUVEAU_CHIPSET", chip));
    vulkan(id, title, shimmed("libvulkan_nouveau.so", "libnouveau_noop_drm_shim.so", chip))
}

const fn anv(id: &'static str, title: &'static str, platform: &'static str) -> Device {
    let driver = Driver {
        root: Root::Mesa26,
        library: "libvulkan_intel.so",
        shim: Some(Shim::Intel),
        variable: Some(("INTEL_STUB_GPU_PLATFORM", platform)),
    };
    vulkan(id, title, driver)
}

/// A driver that runs on processors.
const fn software(root: Root, library: &'static str) -> Driver {
    Driver { root, library, shim: None, variable: None }
}

const fn checker(id: &'static str, title: &'static str, compiler: Compiler) -> Device {
    Device { id, title, compiler, quick: true }
}

/// All devices.
pub(super) const DEVICES: &[Device] = &[
    radv("rdna4", "AMD RDNA 4 (Navi 48), RADV", "gfx1201"),
    radv("rdna3.5", "AMD RDNA 3.5 (Strix), RADV", "strix1"),
    Device { quick: true, ..radv("rdna3", "AMD RDNA 3 (Navi 31), RADV", "navi31") },
    radv("rdna2", "AMD RDNA 2 (Navi 21), RADV", "navi21"),
    radv("vega", "AMD Vega (Vega 10), RADV", "vega10"),
    // Shims of Mesa 26 know no Polaris; older RADV has a device of its own for that.
    vulkan(
        "polaris",
        "AMD Polaris (Polaris 10), RADV",
        Driver {
            root: Root::Mesa25,
            library: "libvulkan_radeon.so",
            shim: None,
            variable: Some(("RADV_FORCE_FAMILY", "POLARIS10")),
        },
    ),
    nvk("ampere", "NVIDIA Ampere (GA102), NVK", "172"),
    nvk("turing", "NVIDIA Turing (TU102), NVK", "162"),
    vulkan(
        "adreno-750",
        "Qualcomm Adreno 750, Turnip",
        shimmed("libvulkan_freedreno.so", "libfreedreno_noop_drm_shim.so", Some(("FD_GPU_ID", "750"))),
    ),
    vulkan(
        "apple-m1",
        "Apple M1, Honeykrisp",
        shimmed("libvulkan_asahi.so", "libasahi_noop_drm_shim.so", None),
    ),
    // Lunar Lake, `lnl`, has the same figures for every kernel.
    anv("battlemage", "Intel Battlemage (BMG G21), ANV", "bmg"),
    anv("alchemist", "Intel Alchemist (DG2), ANV", "dg2"),
    anv("xe-lp", "Intel Xe-LP (Tiger Lake GT2), ANV", "tgl"),
    vulkan("lavapipe", "CPU, lavapipe", software(Root::Mesa26, "libvulkan_lvp.so")),
    vulkan(
        "swiftshader",
        "CPU, SwiftShader",
        software(Root::SwiftShader, "../chromium/libvk_swiftshader.so"),
    ),
    checker("dx12", "DirectX 12, DXC and its validator", Compiler::Dxc),
    checker("spirv", "SPIR-V, spirv-val", Compiler::SpirvVal),
    checker("webgpu", "WebGPU, tint", Compiler::Tint),
];

/// The devices with the given names. Without names, all devices, or those that `--quick` includes.
///
/// # Errors
/// An unknown name.
pub(super) fn named(names: &[String], quick: bool) -> Result<Vec<&'static Device>> {
    known(names)?;
    let asked = |device: &&Device| match names {
        [] => !quick || device.quick,
        names => names.iter().any(|name| name == device.id),
    };
    Ok(DEVICES.iter().filter(asked).collect())
}

/// Refuses names of no device.
///
/// # Errors
/// An unknown name.
pub(super) fn known(names: &[String]) -> Result<()> {
    let unknown = names.iter().find(|name| DEVICES.iter().all(|device| device.id != **name));
    if let Some(name) = unknown {
        let ids: Vec<_> = DEVICES.iter().map(|device| device.id).collect();
        bail!("device {name}: unknown; devices are {}", ids.join(", "));
    }
    Ok(())
}
