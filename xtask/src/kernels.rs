//! `cargo xtask kernels`: every kernel variant by name and level, its text in every language, and its tests in a browser.

mod browser;
mod cases;
mod page;

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use attn_kernels::reflect::{interface, translate};
use attn_kernels::source::ComposeError;
use attn_kernels::{NamedVariant, Variant};

use crate::cli::KernelsArgs;
use crate::{self_test, tree};
use browser::CaseOutcome;
use cases::Cases;

/// Number of elements per head in exported cases: few, so that compilers of software drivers take seconds.
const HEAD_DIM: u32 = 16;

/// Runs the command.
///
/// # Errors
/// If no variant has the name, one cannot be composed or translated, or a file cannot be written; if Chromium cannot run the
/// cases, or gets a wrong result; if `docs/kernels.md` cannot be written, or lacks a table.
pub fn run(args: &KernelsArgs) -> Result<()> {
    if args.write {
        let path = tree::checkout()?.join(page::FILE);
        let page =
            fs::read_to_string(&path).with_context(|| format!("{}: cannot be read", path.display()))?;
        let page = page::with_tables(&page)?;
        return fs::write(&path, page).with_context(|| format!("{}: cannot be written", path.display()));
    }
    let filter = args.kernel.as_deref();
    let chosen = |named: &NamedVariant| filter.is_none_or(|filter| named.name.contains(filter));
    let mut variants = variants();
    variants.retain(chosen);
    ensure!(!variants.is_empty(), "no kernel has {} in its name", filter.unwrap_or_default());
    let Some(dir) = &args.cases else { return list(&variants, args.emit.as_deref()) };
    Cases::new(self_test::variants(HEAD_DIM, chosen))?.write(dir)?;
    let Some(program) = &args.run else { return Ok(()) };
    let rows = browser::run(dir, program.as_deref(), &mut io::stdout().lock())?;
    let failed = rows.iter().filter(|row| row.outcome == CaseOutcome::Failed).count();
    ensure!(failed == 0, "{failed} of {} variants failed", rows.len());
    Ok(())
}

/// Prints one line per variant, and writes the texts of the variants.
fn list(variants: &[NamedVariant], emit_to: Option<&Path>) -> Result<()> {
    let mut out = io::stdout().lock();
    for named in variants {
        let interface = interface(&named.variant)?;
        let [x, y, z] = interface.workgroup_size;
        writeln!(
            out,
            "{:42} {:9} {:4} lanes, {:5} bytes of workgroup memory, {} storage buffers{}",
            named.name,
            named.level(),
            x * y * z,
            interface.workgroup_bytes,
            interface.bindings.len(),
            needs(&interface.capabilities)
        )?;
        if let Some(dir) = emit_to {
            emit(dir, named)?;
        }
    }
    Ok(())
}

/// The variants of all crates, by name.
pub(crate) fn variants() -> Vec<NamedVariant> {
    let mut all = attn_kernels::variants();
    all.extend(models::kernel::variants());
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// The text of a variant in standard WGSL. The standard requires a directive for subgroup operations, which naga
/// rejects and does not need.
pub(crate) fn standard_wgsl(variant: &Variant) -> Result<String, ComposeError> {
    let wgsl = variant.wgsl()?;
    Ok(if wgsl.contains("subgroup") { format!("enable subgroups;\n{wgsl}") } else { wgsl })
}

fn needs(capabilities: &[String]) -> String {
    if capabilities.is_empty() { String::new() } else { format!(", needs {}", capabilities.join(" ")) }
}

/// Writes `name.level.{wgsl,metal,hlsl,spv}`; cooperative matrices have no Metal or HLSL form.
fn emit(dir: &Path, named: &NamedVariant) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("{}: cannot be created", dir.display()))?;
    let translation = translate(&named.variant)?;
    let spirv: Vec<u8> = translation.spirv.iter().flat_map(|word| word.to_le_bytes()).collect();
    let files = [
        ("wgsl", Some(named.variant.wgsl()?.into_bytes())),
        ("metal", translation.msl.map(String::into_bytes)),
        ("hlsl", translation.hlsl.map(String::into_bytes)),
        ("spv", Some(spirv)),
    ];
    for (extension, text) in files {
        let Some(text) = text else { continue };
        let path = dir.join(format!("{}.{}.{extension}", named.name, named.level()));
        fs::write(&path, text).with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use attn_kernels::Level;

    use super::*;

    #[test]
    fn every_variant_is_written_in_four_languages() {
        let dir = tempfile::tempdir().unwrap();
        run(&KernelsArgs { emit: Some(dir.path().into()), ..KernelsArgs::default() }).unwrap();
        let written = fs::read_dir(dir.path()).unwrap().count();
        let languages = |named: &NamedVariant| if named.level() == Level::Coop { 2 } else { 4 };
        assert_eq!(written, variants().iter().map(languages).sum::<usize>());
        let spirv = fs::read(dir.path().join("lse_merge.baseline.spv")).unwrap();
        assert_eq!(spirv[..4], 0x0723_0203u32.to_le_bytes());
    }
}
