//! `cargo xtask portability`: compiles the kernels that the engine would choose on a device, for devices that are not here, with
//! the compilers that their drivers have.
//!
//! It proves that compilers take the kernels, and shows how they use registers. It says nothing of speed or of results.

mod bounds;
mod choice;
mod devices;
mod dxc;
mod fetch;
mod page;
mod report;
mod tasks;
mod texts;
mod vulkan;
mod worker;

pub use worker::run as work;

use std::fs;
use std::io::{self, Write as _};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::cli::PortabilityArgs;
use crate::tree;
use bounds::Bounds;
use devices::Device;
use report::{KernelRow, Offer};
use texts::Texts;

/// The page, relative to the sources.
const PAGE: &str = "docs/portability.md";

/// One device with its kernels.
#[derive(Debug)]
struct DeviceKernels {
    device: &'static Device,
    /// Properties of the device; `None` for a compiler without a device.
    offer: Option<Offer>,
    /// Version of the compiler.
    compiler: String,
    /// Kernels that the engine would choose, by name.
    rows: Vec<KernelRow>,
}

/// A device in `--json`.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    device: &'static str,
    title: &'static str,
    compiler: &'a str,
    offer: &'a Option<Offer>,
    kernels: usize,
    refused: usize,
    spilling: usize,
}

impl DeviceKernels {
    fn summary(&self) -> Summary<'_> {
        let count = |of: fn(&KernelRow) -> bool| self.rows.iter().filter(|row| of(row)).count();
        Summary {
            device: self.device.id,
            title: self.device.title,
            compiler: &self.compiler,
            offer: &self.offer,
            kernels: self.rows.len(),
            refused: count(|row| row.refused.is_some()),
            spilling: count(|row| row.figures.spills.is_some_and(|spills| spills > 0)),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// If a compiler cannot be had that `--without` does not name, unless `--available`; if one refuses a kernel, or spills more
/// registers than the bounds of its version allow; or if a kernel cannot be translated.
pub fn run(args: &PortabilityArgs) -> Result<()> {
    let whole = args.device.is_empty() && args.kernel.is_none() && args.without.is_empty() && !args.quick;
    ensure!(whole || !args.write, "--write writes all devices and kernels, so it takes no other choice");
    devices::known(&args.without)?;
    let wanted = devices::named(&args.device, args.quick)?;
    let wanted: Vec<_> =
        wanted.into_iter().filter(|device| !args.without.iter().any(|id| id == device.id)).collect();
    let texts = Texts::write(args.kernel.as_deref(), args.quick)?;
    let (found, missing) = tasks::run(&wanted, &texts)?;
    for (device, reason) in &missing {
        eprintln!("could not get {} ({}): {reason}", device.id, device.title);
    }
    for id in &args.without {
        eprintln!("left out: {id}");
    }
    print(&found, args.json)?;
    if args.write {
        ensure!(
            missing.is_empty(),
            "the page and the bounds are written of all devices, and some are missing"
        );
        let root = tree::checkout()?;
        let bounds = Bounds::of(&found);
        write(&root.join(bounds::FILE), &bounds.to_text()?)?;
        return write(&root.join(PAGE), &page::page(&found, &bounds));
    }
    let bounds = Bounds::committed()?;
    bounds.notes(&found).iter().for_each(|note| eprintln!("{note}"));
    let faults = bounds.faults(&found);
    faults.iter().for_each(|fault| eprintln!("{fault}"));
    match (faults.len(), missing.len()) {
        (0, 0) => Ok(()),
        (0, _) if args.available => Ok(()),
        (0, n) => bail!("{n} of {} compilers could not be got; --without ID leaves one out", wanted.len()),
        (n, _) => bail!(
            "{n} kernels are refused or spill more than {} allows; if that is meant, `cargo xtask portability --write` makes it anew",
            bounds::FILE
        ),
    }
}

fn write(path: &std::path::Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))
}

fn print(found: &[DeviceKernels], json: bool) -> Result<()> {
    let mut out = io::stdout().lock();
    if json {
        for outcome in found {
            writeln!(out, "{}", serde_json::to_string(&outcome.summary())?)?;
            for row in &outcome.rows {
                writeln!(out, "{}", serde_json::to_string(row)?)?;
            }
        }
        return Ok(());
    }
    for outcome in found {
        let Summary { device, compiler, kernels, refused, spilling, .. } = outcome.summary();
        writeln!(
            out,
            "{device:12} {kernels:4} kernels, {refused:3} refused, {spilling:3} spill  {compiler}"
        )?;
        for row in &outcome.rows {
            match (&row.refused, row.figures.spills.unwrap_or(0)) {
                (Some(reason), _) => writeln!(out, "  {} is refused: {reason}", row.kernel)?,
                (None, 0) => {}
                (None, spills) => writeln!(
                    out,
                    "  {:50} {spills:5} spills of {} registers, {} waves",
                    row.kernel,
                    row.figures.registers.unwrap_or(0),
                    row.figures.waves.map_or("?".into(), |waves| waves.to_string())
                )?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
