//! `pagoda bench policies`: loss and speed of sparse policies on the user's model and device.

pub mod cells;
pub mod report;
pub mod ruler;
pub mod runner;

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::Path;

use anyhow::{Context, Result};
use attn_kernels::gpu::Gpu;
use pagoda::{Model, Registry};

use crate::cli::{BenchPoliciesArgs, EngineArgs};
use crate::default_model;
use crate::open_model::open_model;

/// The GNU General Public License, version 3, as a text to measure on: see the folder texts.
pub const GPL: &str = include_str!("../../texts/gpl-3.txt");

/// Runs the suite.
///
/// # Errors
/// If the plan is none, and errors of the model, the device and the files.
pub fn run(args: &BenchPoliciesArgs, registry: &Registry) -> Result<()> {
    let BenchPoliciesArgs { engine, .. } = args;
    for (flag, given) in [("--sparse", engine.sparse.is_some()), ("--kv-tiers", engine.kv_tiers.is_some())] {
        if given && !engine.quiet {
            eprintln!("{flag}: left out, the policies are those of the plan, and all KV is on the device");
        }
    }
    // A limit of loss would be measured before the policies are.
    let engine = EngineArgs { sparse: None, kv_tiers: None, ..engine.clone() };
    let model = open_model(&engine)?;
    report::run(&BenchPoliciesArgs { engine, ..args.clone() }, registry, &model)
}

/// Describes everything that results depend on except policy and task.
///
/// # Errors
/// If the checkpoint or this program cannot be read.
pub fn setup(engine: &EngineArgs, model: &Model, gpu: &Gpu) -> Result<String> {
    let name = engine
        .model
        .as_ref()
        .map_or_else(|| default_model::PACKAGE.file.to_string(), |path| path.display().to_string());
    let info = gpu.info();
    let EngineArgs { block_size, kv_dtype, chunk, select_on, .. } = engine;
    Ok(format!(
        "{name} ({:032x}), KV {kv_dtype:?}, blocks of {block_size}, chunks of {chunk}, selection on {select_on:?}; {} level {}, driver {}, build {:016x}",
        model.fingerprint()?,
        info.name,
        gpu.level(),
        info.driver_info,
        build(&env::current_exe()?)?,
    ))
}

/// Hash of a program's file, by which builds are told apart: measurements of different builds or profiles must not be
/// mixed.
fn build(program: &Path) -> Result<u64> {
    let bytes = fs::read(program).with_context(|| format!("{}: cannot be read", program.display()))?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use pagoda::KvDtype;

    use super::cells::{Cells, Kept as _};
    use super::report::row::{PolicyRow, example};
    use super::*;

    #[test]
    fn cells_of_another_build_are_not_reused() {
        let folder = tempfile::tempdir().unwrap();
        let setup = |text: &str| {
            let program = folder.path().join("program");
            fs::write(&program, text).unwrap();
            format!("build {:016x}", build(&program).unwrap())
        };
        let mut cells: Cells<PolicyRow> = Cells::default();
        let mut measured = example("full", KvDtype::F16, 512, 0.0, 1.0);
        measured.setup = setup("release");
        let mut key = measured.key();
        cells.put(measured).unwrap();
        let mut again = |text| {
            key.0 = setup(text);
            cells.get(&key).is_some()
        };
        assert_eq!([again("release"), again("debug")], [true, false]);
    }
}
