//! Circles of files that import each other, which a reader can only understand together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use xtask::tree;

/// Maximum number of circles in the workspace.
const MAX_CIRCLES: usize = 5;
/// Maximum number of files of a circle.
const MAX_FILES: usize = 3;

/// Path of a module in its crate; empty for the root.
type Module = Vec<String>;

/// The module of a source file, by its path below `src`; `None` for tests.
fn module(path: &str) -> Option<Module> {
    let mut module: Module = path.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if module.iter().any(|part| part == "tests") {
        return None;
    }
    if matches!(module.last().map(String::as_str), Some("lib" | "main" | "mod")) {
        module.pop();
    }
    Some(module)
}

/// Code of a source file, without comments and the tests at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Adds the paths of a use tree, such as `crate::{a, b::{C, d}}`, that begin with `before`.
fn expand(before: &str, tree: &str, paths: &mut Vec<String>) {
    let Some((head, inner)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        paths.push(format!("{before}{}", path.trim()));
        return;
    };
    let inner = inner.trim_end().strip_suffix('}').unwrap_or(inner);
    let (mut depth, mut from) = (0, 0);
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&format!("{before}{}", head.trim()), inner[from..at].trim(), paths);
                from = at + 1;
            }
            _ => {}
        }
    }
}

/// Paths that code names from `crate`, `super` or `self` on.
fn paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let mut rest = String::new();
    for statement in code.split_inclusive(';') {
        let uses = statement.rfind("use ").filter(|at| statement[..*at].ends_with(['\n', ' ']) || *at == 0);
        match uses.map(|at| statement[at + 4..].trim_end_matches(';')) {
            Some(tree) if ["crate::", "super::", "self::"].iter().any(|start| tree.starts_with(start)) => {
                expand("", tree, &mut paths);
            }
            _ => rest.push_str(statement),
        }
    }
    let named = rest.split(|c: char| !c.is_alphanumeric() && !"_:".contains(c));
    let local = |path: &&str| path.starts_with("crate::") || path.starts_with("super::");
    paths.extend(named.filter(local).map(str::to_owned));
    paths
}

/// The file that a path in `from` leads to: the longest part of it that is one. What a module exports again is of that module.
fn target(files: &BTreeMap<Module, String>, from: &Module, path: &str) -> Module {
    let mut parts = path.split("::").peekable();
    let mut module = if parts.next_if_eq(&"crate").is_some() { Vec::new() } else { from.clone() };
    for part in parts {
        match part {
            "super" => drop(module.pop()),
            "self" => {}
            part => module.push(part.to_owned()),
        }
    }
    while !files.contains_key(&module) && module.pop().is_some() {}
    module
}

/// Whether an import counts. A module and those below it are one thing to a reader, and a kernel's declaration names the cases of
/// its self-test, which are made from the kernel.
fn counts(from: &Module, to: &Module) -> bool {
    let is = |module: &Module, name: &str| module.first().is_some_and(|first| first == name);
    let related = from.starts_with(to) || to.starts_with(from);
    !(related || is(from, "kernel") && is(to, "self_test"))
}

/// The modules that imports lead to from one.
fn reached<'a>(imports: &'a BTreeMap<&Module, BTreeSet<Module>>, from: &'a Module) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        open.extend(imports[module].iter().filter(|to| reached.insert(*to)));
    }
    reached
}

/// Files of a crate that import each other, directly or through others of the same circle.
fn circles(files: &BTreeMap<Module, String>) -> Vec<BTreeSet<String>> {
    let imports: BTreeMap<&Module, BTreeSet<Module>> = files
        .iter()
        .map(|(from, text)| {
            let to = paths(&code(text)).into_iter().map(|path| target(files, from, &path));
            (from, to.filter(|to| counts(from, to)).collect())
        })
        .collect();
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        files.keys().map(|from| (from, reached(&imports, from))).collect();
    let circle = |of: &&Module| -> BTreeSet<String> {
        let both = reached[*of].iter().filter(|other| reached[**other].contains(*of));
        both.map(|module| module.join("/")).collect()
    };
    let all: BTreeSet<BTreeSet<String>> = files.keys().collect::<Vec<_>>().iter().map(circle).collect();
    all.into_iter().filter(|circle| !circle.is_empty()).collect()
}

/// The modules of the crate in a folder, with the text of each.
fn sources(folder: &str) -> BTreeMap<Module, String> {
    let src = tree::root().join(folder).join("src");
    let mut files: BTreeMap<Module, String> = BTreeMap::new();
    for path in tree::files(&src) {
        let slashed = path.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/");
        if let Some(module) = module(&slashed) {
            files.entry(module).or_default().push_str(&fs::read_to_string(src.join(&path)).unwrap());
        }
    }
    files
}

/// A circle is a set of files of one crate, each of which imports another by a path from `crate`, `super` or `self` on, so that
/// these lead around. A module and those below it make none, nor does a kernel that names its self-test's cases.
#[test]
fn few_files_import_each_other() {
    let manifests = tree::files(tree::root()).into_iter().filter(|path| path.ends_with("Cargo.toml"));
    let folders = manifests.map(|path| path.parent().unwrap().to_string_lossy().replace('\\', "/"));
    let crates: Vec<_> = folders.filter(|folder| tree::root().join(folder).join("src").is_dir()).collect();
    assert!(crates.len() > 10, "{crates:?}");
    let all: Vec<(String, BTreeSet<String>)> = crates
        .into_iter()
        .flat_map(|folder| circles(&sources(&folder)).into_iter().map(move |circle| (folder.clone(), circle)))
        .collect();
    let shown: Vec<_> = all.iter().map(|(folder, circle)| format!("{folder}: {circle:?}")).collect();
    let large = all.iter().any(|(_, circle)| circle.len() > MAX_FILES);
    assert!(
        all.len() <= MAX_CIRCLES && !large,
        "{} circles, at most {MAX_CIRCLES} of at most {MAX_FILES} files:\n{}",
        all.len(),
        shown.join("\n")
    );
}

#[test]
fn circles_are_found() {
    let files = [
        ("lib.rs", "mod a;\nuse a::A;"),
        ("a.rs", "use crate::{\n    b::{self, B},\n    c::C,\n};"),
        ("b.rs", "// crate::e\nfn b() { super::d::d() }\n#[cfg(test)]\nmod tests {\n    use crate::e::E;"),
        ("d.rs", "use std::fmt;\npub(crate) use super::a::inner::Inner as I;"),
        // Named, and names its parent alone.
        ("a/inner.rs", "use super::A;\nuse crate::c::C;"),
        ("c.rs", ""),
        ("e.rs", "use crate::b::B;"),
        ("e/tests.rs", "use crate::a::A;"),
        ("kernel/k.rs", "use crate::self_test::k::cases;"),
        ("self_test/k.rs", "use crate::kernel::k::KERNEL;"),
    ];
    let of = |files: &[(&str, &str)]| {
        let files = files.iter().filter_map(|(path, text)| Some((module(path)?, (*text).to_owned())));
        circles(&files.collect())
    };
    assert_eq!(of(&files), []);
    let around =
        [&files[..], &[("a/inner/deep.rs", "use crate::d::D;"), ("c.rs", "use super::a::inner::X;")]]
            .concat();
    assert_eq!(of(&around), [BTreeSet::from(["a/inner", "c"].map(str::to_owned))]);
    let around = [&files[..], &[("d.rs", "use super::a::A;")]].concat();
    assert_eq!(of(&around), [BTreeSet::from(["a", "b", "d"].map(str::to_owned))]);
}
