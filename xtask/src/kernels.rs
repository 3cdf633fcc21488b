//! `cargo xtask kernels`: every kernel variant by name and level, or its text in every language.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context, Result};
use attn_kernels::NamedVariant;
use attn_kernels::reflect::{interface, translate};

use crate::cli::KernelsArgs;

/// Runs the command.
///
/// # Errors
/// If a variant cannot be composed or translated, or a file cannot be written.
pub fn run(args: &KernelsArgs) -> Result<()> {
    let mut out = io::stdout().lock();
    for named in variants() {
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
        if let Some(dir) = &args.emit {
            emit(dir, &named)?;
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
        run(&KernelsArgs { emit: Some(dir.path().into()) }).unwrap();
        let written = fs::read_dir(dir.path()).unwrap().count();
        let languages = |named: &NamedVariant| if named.level() == Level::Coop { 2 } else { 4 };
        assert_eq!(written, variants().iter().map(languages).sum::<usize>());
        let spirv = fs::read(dir.path().join("lse_merge.baseline.spv")).unwrap();
        assert_eq!(spirv[..4], 0x0723_0203u32.to_le_bytes());
    }
}
