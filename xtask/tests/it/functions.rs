//! Lengths of functions, and tuples among their parameters.

use std::collections::BTreeSet;
use std::fs;

use xtask::tree;

/// Lines that a function should not pass.
const FUNCTION_LINES: usize = 70;

/// Functions above that, each with the reason why it is better left whole.
const LONG_FUNCTIONS: [(&str, &str, &str); 4] = [
    ("attn-kernels/src/self_test/retrieval.rs", "hash_codes", "one case, from tensors to wants"),
    ("models/checkpoint/src/config.rs", "validate", "a list of limits"),
    (
        "prefetch/tests/it/remote/trust.rs",
        "a_connection_with_tls_is_made_to_servers_that_the_system_trusts",
        "one story",
    ),
    (
        "xtask/cli/src/cli/tests.rs",
        "a_refused_value_is_told_with_flag_value_and_limit",
        "a list of snapshots",
    ),
];

/// Functions that still take two tuples, in place of structs with names.
const TWO_TUPLES: [(&str, &str); 9] = [
    ("attn-kernels/src/cpu/v4_compress.rs", "v4_compress"),
    ("attn-kernels/src/launch/chunked_prefix.rs", "attend"),
    ("attn-kernels/src/kernel/masked_attention.rs", "check"),
    ("attn-kernels/src/kernel/paged_prefill.rs", "check"),
    ("attn-kernels/src/kernel/xattn.rs", "check"),
    ("attn-kernels/src/self_test/mla_decode.rs", "paged"),
    ("attn-kernels/tests/it/reference/lse_merge.rs", "merge"),
    ("attn-kernels/tests/it/reference/xattn.rs", "new"),
    // The text of a test of this check.
    ("xtask/tests/it/functions.rs", "two"),
];

/// A function of formatted source.
#[derive(Debug, PartialEq, Eq)]
struct Function<'a> {
    name: &'a str,
    lines: usize,
    /// Parameters that are tuples, or references to tuples.
    tuples: usize,
    /// Parameters that are flags, of which a call does not say the meaning.
    flags: usize,
}

/// The functions of a source file as rustfmt leaves it: the closing brace stands below the first letter.
fn functions(text: &str) -> Vec<Function<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let begin = |line: &str| line.len() - line.trim_start().len();
    let name = |line: &'_ str| {
        let words = line.trim_start().split(' ').collect::<Vec<_>>();
        let keyword = words.iter().position(|word| *word == "fn")?;
        let before = ["pub", "pub(crate)", "pub(super)", "const", "async", "unsafe", "extern"];
        words[..keyword].iter().all(|word| before.contains(word) || word.starts_with("pub(")).then_some(())?;
        let at = line.find("fn ")? + 3;
        line[at..].split(['(', '<']).next().map(str::len).map(|len| at..at + len)
    };
    let found = lines.iter().enumerate().filter_map(|(at, line)| Some((at, *line, name(line)?)));
    found
        .map(|(at, line, name)| {
            let close = format!("{}}}", " ".repeat(begin(line)));
            let rest = &lines[at..];
            let inline = line.ends_with('}') || line.ends_with(';');
            let end = if inline { 0 } else { rest.iter().position(|line| *line == close).unwrap_or(0) };
            let open = rest.iter().position(|line| line.ends_with(['{', ';'])).unwrap_or(0);
            let signature = rest[..=open].join(" ");
            let parameters = signature.split("->").next().unwrap_or_default();
            let tuples = [": (", ": &("].iter().map(|form| parameters.matches(form).count()).sum();
            let flags = parameters.matches(": bool").count();
            Function { name: &line[name], lines: end + 1, tuples, flags }
        })
        .collect()
}

#[test]
fn functions_are_short_and_take_neither_pairs_of_tuples_nor_flags() {
    let mut faults = Vec::new();
    let mut used = BTreeSet::new();
    for path in tree::files(tree::root()) {
        let path = path.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/");
        let text = if path.ends_with(".rs") {
            fs::read_to_string(tree::root().join(&path)).unwrap()
        } else {
            continue;
        };
        for Function { name, lines, tuples, flags } in functions(&text) {
            let exempt = LONG_FUNCTIONS.iter().find(|(file, long, _)| *file == path && *long == name);
            if lines > FUNCTION_LINES && !exempt.is_some_and(|exempt| used.insert(*exempt)) {
                faults.push(format!("{}: {name} has {lines} lines, more than {FUNCTION_LINES}", path));
            }
            if flags > 0 && name.starts_with("variant") && path.contains("src/kernel/") {
                faults.push(format!("{path}: {name} takes a flag; name the choice in an enum"));
            }
            if tuples > 1 && !TWO_TUPLES.contains(&(&*path, name)) {
                faults.push(format!("{}: {name} takes {tuples} tuples; name them in a struct", path));
            }
        }
    }
    let unused = LONG_FUNCTIONS.iter().filter(|exempt| !used.contains(*exempt));
    faults.extend(unused.map(|(path, name, _)| format!("{path}: {name} needs no exception")));
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

/// Conversions between number types whose failure is a broken invariant.
const CONVERSIONS: [&str; 3] = ["u32_of", "f32_of", "usize_of"];

#[test]
fn conversions_are_defined_once_a_crate() {
    let mut seen = BTreeSet::new();
    let mut faults = Vec::new();
    for path in
        tree::files(tree::root()).into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs"))
    {
        let text = fs::read_to_string(tree::root().join(&path)).unwrap();
        let folder = path.iter().take_while(|part| *part != "src").collect::<std::path::PathBuf>();
        for function in functions(&text).iter().filter(|function| CONVERSIONS.contains(&function.name)) {
            if !seen.insert((folder.clone(), function.name.to_owned())) {
                faults.push(format!("{}: {} is there already", path.display(), function.name));
            }
        }
    }
    assert!(!seen.is_empty(), "the tree was not found");
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn functions_are_measured() {
    let text = "\
impl A {
    pub(crate) const fn one(&self) -> u32 {
        if true {
        }
    }

    fn two(
        a: (u32, u32),
        b: &(u32, u32),
    ) -> (u32, u32) {
        let fn_like = |c: (u32, u32)| c;
    }
}
fn three(flag: bool) -> bool {}
fn four(a: u32);
";
    let function = |name, lines, tuples, flags| Function { name, lines, tuples, flags };
    let expected = [
        function("one", 4, 0, 0),
        function("two", 6, 2, 0),
        function("three", 1, 0, 1),
        function("four", 1, 0, 0),
    ];
    assert_eq!(functions(text), expected);
}
