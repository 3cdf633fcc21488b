//! A table of each kernel: its interface, and a line for each variant with its costs and its translations. Shared by the
//! crates with kernels.

use std::fmt::Write as _;

use attn_kernels::reflect::{Interface, Operations, StorageBinding, Translation, interface, translate};
use attn_kernels::{Access, NamedVariant};
use xxhash_rust::xxh3::xxh3_64;

use super::{levels, tools};

/// Translates and checks all of `variants`. Returns the tables by name of kernel; variants whose buffers or parameters
/// differ from those before them stand below a heading of their own.
pub(crate) fn kernels(variants: Vec<NamedVariant>) -> Vec<(&'static str, String)> {
    // Not by name: two runs may meet.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut groups: Vec<(&str, String, String)> = Vec::new();
    for named in variants {
        let name = format!("{}.{}", named.name, named.level());
        let interface = interface(&named.variant).unwrap_or_else(|e| panic!("{name}: {e}"));
        levels::stays_inside(&named, &interface);
        let translation = translate(&named.variant).unwrap_or_else(|e| panic!("{name}: {e}"));
        // The tools of most systems do not know cooperative matrices yet.
        if translation.msl.is_some() {
            tools::check(folder.path(), &name, &named.variant.wgsl().unwrap(), &translation.spirv);
        }
        let (kernel, heading) = (named.variant.kernel.name, heading(&interface));
        let line = line(&name, &interface, &translation);
        match groups.iter_mut().find(|group| group.0 == kernel && group.1 == heading) {
            Some((_, _, lines)) => lines.push_str(&line),
            None => groups.push((kernel, heading, line)),
        }
    }
    let mut tables: Vec<(&str, String)> = Vec::new();
    for (kernel, heading, lines) in groups {
        let table = format!("{heading}{lines}");
        match tables.iter_mut().find(|(name, _)| *name == kernel) {
            Some((_, text)) => write!(text, "\n{table}").unwrap(),
            None => tables.push((kernel, table)),
        }
    }
    tables
}

/// Parameters with their offsets in bytes, storage buffers by binding, and the columns of [`line`].
fn heading(interface: &Interface) -> String {
    let params = &interface.params;
    let members: Vec<_> = params.members.iter().map(|(name, at)| format!("{name} {at}")).collect();
    let buffers = |writes: bool| {
        let of = |b: &StorageBinding| {
            ((b.access == Access::Write) == writes).then(|| format!("{} {}", b.binding, b.name))
        };
        interface.bindings.iter().filter_map(of).collect::<Vec<_>>().join(", ")
    };
    format!(
        "params  {}, {} bytes: {}\nreads   {}\nwrites  {}\n{:46} {:>9} {:>6} {:>9} {:>9} {:>7} {:>8} {:>8} {:>6}  {:13} {:13} {:13} {}\n",
        params.name,
        params.bytes,
        members.join(", "),
        buffers(false),
        buffers(true),
        "variant",
        "lanes",
        "memory",
        "storage",
        "workgroup",
        "atomics",
        "barriers",
        "subgroup",
        "matrix",
        "MSL",
        "HLSL",
        "SPIR-V",
        "constants, capabilities"
    )
}

/// A variant: lanes and bytes of a workgroup; loads and stores of both memories; other operations; lines or words of each
/// translation with its digest; constants; and what it needs of an adapter.
fn line(name: &str, interface: &Interface, translation: &Translation) -> String {
    let [x, y, z] = interface.workgroup_size;
    let n: Operations = translation.operations;
    let lines = |text: &Option<String>| match text {
        Some(text) => format!("{:4} {}", text.lines().count(), digest(text.as_bytes())),
        None => "-".to_owned(),
    };
    let words: Vec<u8> = translation.spirv.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut line = format!(
        "{name:46} {:>9} {:>6} {:>9} {:>9} {:>7} {:>8} {:>8} {:>6}  {:13} {:13} {:>4} {}",
        format!("{x}x{y}x{z}"),
        interface.workgroup_bytes,
        format!("{}/{}", n.loads, n.stores),
        format!("{}/{}", n.workgroup_loads, n.workgroup_stores),
        n.atomics,
        n.barriers,
        n.subgroup,
        n.matrix,
        lines(&translation.msl),
        lines(&translation.hlsl),
        translation.spirv.len(),
        digest(&words)
    );
    for (name, value) in &interface.overrides {
        write!(line, " {name}={}", value.map_or("default".to_owned(), |value| value.to_string())).unwrap();
    }
    for capability in &interface.capabilities {
        write!(line, " {capability}").unwrap();
    }
    line + &demands(&translation.spirv) + "\n"
}

/// Eight digits that change with the text.
fn digest(bytes: &[u8]) -> String {
    format!("{:08x}", xxh3_64(bytes) >> 32)
}

/// Capabilities beyond `Shader`, as numbers of the standard, and extensions that a SPIR-V module declares.
fn demands(spirv: &[u32]) -> String {
    const HEADER_WORDS: usize = 5;
    const SHADER: u32 = 1;
    let mut text = String::new();
    let mut at = HEADER_WORDS;
    while at < spirv.len() {
        let (words, opcode) = ((spirv[at] >> 16) as usize, spirv[at] & 0xffff);
        let operands = &spirv[at + 1..at + words];
        match opcode {
            10 => write!(text, " {}", string(operands)).unwrap(),
            17 if operands != [SHADER] => write!(text, " +{}", operands[0]).unwrap(),
            _ => {}
        }
        at += words;
    }
    text
}

fn string(words: &[u32]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).take_while(|b| *b != 0).collect();
    String::from_utf8(bytes).unwrap()
}
