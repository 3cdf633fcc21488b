//! The page with all figures.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::DeviceKernels;
use super::bounds::{self, Bounds};
use super::devices::DEVICES;
use super::report::KernelRow;

/// The page of a run with all devices and kernels.
pub(super) fn page(outcomes: &[DeviceKernels], bounds: &Bounds) -> String {
    [
        introduction(),
        "\n## Devices\n\n".into(),
        devices(outcomes),
        "\n## Spills\n\n".into(),
        spilling(bounds),
        "\n## Every kernel\n\n".into(),
        kernels(outcomes),
    ]
    .concat()
}

fn introduction() -> String {
    format!(
        "\
# Portability

`cargo xtask portability --write` wrote this page: it compiles the kernels that the engine would choose on each device, with the
compilers that the drivers have, on a machine without any of the devices. That a compiler takes a kernel, and how it uses registers, is
measured. **Nothing here is about speed**, or about results: no kernel ran. Mesa's drivers for Apple, Qualcomm and NVIDIA are not the
drivers of the vendors, nor those for AMD and Intel what runs on Windows; what they share with those is the hardware, so that trouble
with registers shows.

```sh
cargo xtask portability                          # every device, with the bounds: some minutes
cargo xtask portability --quick                  # one variant of each kernel and level, on part of them, as CI does
cargo xtask portability --device rdna3 --kernel paged_prefill
cargo xtask portability --json                   # an object a device, then one a kernel, with all that the driver tells
```

Kernels are as the engine gives them to drivers, without run-time checks: SPIR-V 1.6, HLSL of shader model 6.2, WGSL. Names and levels
are those of `cargo xtask kernels`, sizes those of typical models. A device gets the kernels that run on what its driver offers: a type f16 in
shaders, subgroups and their sizes, cooperative matrices that kernels use, workgroup memory. Of variants that divide their work by the
registers of a lane it gets those for its own number, and GPUs get none of those for software drivers. Intel's matrices have other shapes,
8 x 8 x 16 and 8 x 16 x 16. Intel's Lunar Lake has the figures of Battlemage for every kernel, so it has no column.

Compilers are fetched by the names of their packages, into the user's cache folder (`portability` beside the models), and never
installed: Mesa, its shims in place of kernel drivers and SPIR-V tools from Debian's archive (trixie and trixie-backports, from where this
machine's apt gets its own packages), SwiftShader from Debian's package of Chromium, DXC from the Python wheel `{dxc}`. Mesa's
shim for Intel is in no package: it is built from trixie's source package of Mesa with this machine's C compiler and Python, in seconds, and
serves the driver of Mesa 26 too, since it stands for the kernel. tint has to be on the search path. What cannot be got is said, and is an
error unless `--without` names it or `--available` allows it. A folder there, once made, is used until it is deleted.

`{file}` bounds what compilers may do: no kernel may be refused, or spill more than it says with the
same version of a compiler. CI holds what `--quick` compiles to it, `.ci/long` everything.
",
        dxc = super::fetch::DXC.0,
        file = bounds::FILE,
    )
}

fn devices(outcomes: &[DeviceKernels]) -> String {
    let mut text = String::from(
        "| device | hardware or checker, compiler | version | subgroups | f16 | matrices | workgroup memory | kernels | refused | spill |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for outcome in outcomes {
        let summary = outcome.summary();
        let yes = |is: bool| if is { "yes" } else { "no" };
        let offer = outcome.offer.as_ref().map_or("| | | ".to_owned(), |offer| {
            let (least, most) = offer.subgroups;
            let sizes = if least == most { least.to_string() } else { format!("{least} to {most}") };
            let matrices = super::choice::matrices(offer)
                .map_or("no".into(), |of| format!("{0} x {0}, {1} lanes", of.size(), of.lanes()));
            let memory = offer.workgroup_bytes >> 10;
            format!("{sizes} | {} | {} | {memory} KiB", yes(offer.f16), matrices)
        });
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {offer} | {} | {} | {} |",
            summary.device,
            summary.title,
            summary.compiler.trim(),
            summary.kernels,
            summary.refused,
            summary.spilling
        );
    }
    text
}

/// Kernels that spill on some device, or are refused.
pub(super) fn spilling(bounds: &Bounds) -> String {
    let mut cells = BTreeMap::<&str, BTreeMap<&str, String>>::new();
    for (device, bound) in &bounds.devices {
        for (kernel, spills) in &bound.spills {
            cells.entry(kernel).or_default().insert(device, spills.to_string());
        }
        for kernel in &bound.refused {
            cells.entry(kernel).or_default().insert(device, "refused".into());
        }
    }
    let with_any: BTreeSet<_> = cells.values().flat_map(|row| row.keys().copied()).collect();
    let columns: Vec<_> = DEVICES.iter().map(|device| device.id).filter(|id| with_any.contains(id)).collect();
    let mut text = format!(
        "Registers of a lane that go to memory: for RADV vector registers, for NVK, Turnip, Honeykrisp and ANV instructions that store one, for \
         Turnip also those that store to arrays of a lane. Kernels and devices that are not listed have none.\n\n\
         | kernel | {} |\n|---|{}\n",
        columns.join(" | "),
        "---|".repeat(columns.len())
    );
    for (kernel, row) in &cells {
        let _ = write!(text, "| `{kernel}` |");
        for column in &columns {
            let _ = write!(text, " {} |", row.get(column).map_or("", String::as_str));
        }
        text.push('\n');
    }
    text
}

fn kernels(outcomes: &[DeviceKernels]) -> String {
    let mut text = String::from(
        "A cell holds registers of a lane, spills, and subgroups that a compute unit holds at a time, as far as the driver tells; for ANV registers \
         are those of 32 bytes that a subgroup needs at most. `ok` is a compiler that tells nothing, and no cell a kernel that the engine does not \
         choose there. The second column is bytes of workgroup memory.\n\n",
    );
    let ids: Vec<_> = outcomes.iter().map(|outcome| outcome.device.id).collect();
    let _ =
        write!(text, "| kernel | memory | {} |\n|---|---|{}\n", ids.join(" | "), "---|".repeat(ids.len()));
    let mut rows = BTreeMap::<&str, BTreeMap<&str, &KernelRow>>::new();
    for row in outcomes.iter().flat_map(|outcome| &outcome.rows) {
        rows.entry(&row.kernel).or_default().insert(row.device, row);
    }
    for (kernel, cells) in &rows {
        let memory = cells.values().next().map_or(0, |row| row.workgroup_bytes);
        let _ = write!(text, "| `{kernel}` | {memory} |");
        for id in &ids {
            let _ = write!(text, " {} |", cells.get(id).map_or(String::new(), |row| cell(row)));
        }
        text.push('\n');
    }
    text
}

/// A kernel on a device, in a few characters.
fn cell(row: &KernelRow) -> String {
    if row.refused.is_some() {
        return "refused".into();
    }
    let figures = [row.figures.registers, row.figures.spills, row.figures.waves];
    match figures.iter().all(Option::is_none) {
        true => "ok".into(),
        false => figures.map(|figure| figure.map_or("?".into(), |figure| figure.to_string())).join("/"),
    }
}
