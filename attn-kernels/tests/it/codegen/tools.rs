//! Checks of translated variants by tools of other projects, where they are on the path.

use std::path::Path;
use std::process::Command;

/// Runs `spirv-val` and `tint` over one variant, in files of `folder`.
pub(crate) fn check(folder: &Path, name: &str, wgsl: &str, spirv: &[u32]) {
    let file = folder.join(format!("{name}.spv"));
    std::fs::write(&file, spirv.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>()).unwrap();
    run(name, Command::new("spirv-val").args(["--target-env", "vulkan1.1"]).arg(&file));
    let file = folder.join(format!("{name}.wgsl"));
    // naga takes subgroup operations without the directive and rejects it; the standard asks for it.
    let enable = if wgsl.contains("subgroup") { "enable subgroups;\n" } else { "" };
    std::fs::write(&file, format!("{enable}{wgsl}")).unwrap();
    run(name, Command::new("tint").args(["--format", "wgsl"]).arg(&file));
}

fn run(name: &str, command: &mut Command) {
    match command.output() {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            assert!(output.status.success(), "{name}: {command:?}:\n{}", String::from_utf8_lossy(&text));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("{name}: no {} on the path", command.get_program().display());
        }
        Err(error) => panic!("{name}: {command:?}: {error}"),
    }
}
