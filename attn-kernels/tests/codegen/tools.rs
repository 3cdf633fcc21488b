//! Translations of every variant, checked by tools of other projects where they are on the path. Shared by the crates with
//! kernels.

use std::path::Path;
use std::process::Command;

use attn_kernels::NamedVariant;
use attn_kernels::reflect::translate;

/// Translates and checks all of `variants`. Returns the texts of the first variant of each kernel and level, by name, for
/// snapshots.
pub(crate) fn translations(variants: Vec<NamedVariant>) -> Vec<(String, String)> {
    // Not by name: two runs may meet.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut seen = Vec::new();
    let mut texts = Vec::new();
    for named in variants {
        let name = format!("{}.{}", named.name, named.level);
        let translation = translate(&named.variant).unwrap_or_else(|e| panic!("{name}: {e}"));
        // The tools of most systems do not know cooperative matrices yet.
        if translation.msl.is_some() {
            check(folder.path(), &name, &named.variant.wgsl().unwrap(), &translation.spirv);
        }
        let kind = (named.variant.kernel.name, named.level);
        if seen.contains(&kind) {
            continue;
        }
        seen.push(kind);
        texts.extend(translation.msl.map(|msl| (format!("{name}.metal"), msl)));
        texts.extend(translation.hlsl.map(|hlsl| (format!("{name}.hlsl"), hlsl)));
        texts.push((format!("{name}.spv"), header(&translation.spirv)));
    }
    texts
}

/// Runs `spirv-val` and `tint` over one variant, in files of `folder`.
fn check(folder: &Path, name: &str, wgsl: &str, spirv: &[u32]) {
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

/// Version, capabilities, extensions and execution modes, one a line, by opcode.
fn header(spirv: &[u32]) -> String {
    const HEADER_WORDS: usize = 5;
    let mut lines = vec![format!("version {}.{}", spirv[1] >> 16, spirv[1] >> 8 & 255)];
    let mut at = HEADER_WORDS;
    while at < spirv.len() {
        let (words, opcode) = ((spirv[at] >> 16) as usize, spirv[at] & 0xffff);
        let operands = &spirv[at + 1..at + words];
        match opcode {
            10 => lines.push(format!("OpExtension {}", text(operands))),
            11 => lines.push(format!("OpExtInstImport {}", text(&operands[1..]))),
            14 => lines.push(format!("OpMemoryModel {operands:?}")),
            16 => lines.push(format!("OpExecutionMode {:?}", &operands[1..])),
            17 => lines.push(format!("OpCapability {}", operands[0])),
            _ => {}
        }
        at += words;
    }
    lines.join("\n")
}

fn text(words: &[u32]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).take_while(|b| *b != 0).collect();
    String::from_utf8(bytes).unwrap()
}
