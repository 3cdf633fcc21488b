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

/// An import of a file: a path, and the name that the file has for its end.
struct Import {
    path: String,
    name: String,
    /// Whether others may import it from here.
    public: bool,
}

/// Adds the imports of a use tree, such as `crate::{a, b::{C, d}}`, whose paths begin with `before`.
fn expand(before: &str, tree: &str, public: bool, imports: &mut Vec<Import>) {
    let Some((head, inner)) = tree.split_once('{') else {
        let (path, name) = tree.split_once(" as ").unwrap_or((tree, ""));
        let path = format!("{before}{}", path.trim());
        let path = path.strip_suffix("::self").unwrap_or(&path);
        let name = if name.is_empty() { path.rsplit("::").next().unwrap_or_default() } else { name.trim() };
        imports.push(Import { path: path.into(), name: name.into(), public });
        return;
    };
    let inner = inner.trim_end().strip_suffix('}').unwrap_or(inner);
    let (mut depth, mut from) = (0, 0);
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                // Nothing stands after the last comma.
                if !inner[from..at].trim().is_empty() {
                    expand(&format!("{before}{}", head.trim()), inner[from..at].trim(), public, imports);
                }
                from = at + 1;
            }
            _ => {}
        }
    }
}

/// A source file: what it imports, and the rest of its code.
struct Source {
    imports: Vec<Import>,
    rest: String,
}

impl Source {
    fn new(text: &str) -> Self {
        let mut source = Self { imports: Vec::new(), rest: String::new() };
        for statement in code(text).split_inclusive(';') {
            let at = statement.rfind("use ").filter(|at| statement[..*at].ends_with(['\n', ' ']) || *at == 0);
            let Some(at) = at else {
                source.rest.push_str(statement);
                continue;
            };
            let (before, tree) = statement.split_at(at);
            let public = before.trim_end().ends_with("pub") || before.trim_end().ends_with(')');
            expand("", tree[4..].trim_end_matches(';'), public, &mut source.imports);
            source.rest.push_str(before);
        }
        source
    }

    /// The imported path that the file calls `name`.
    fn imported(&self, name: &str) -> Option<&str> {
        self.imports.iter().find(|import| import.name == name).map(|import| import.path.as_str())
    }

    /// Names in the code that is no import, some with a path before them.
    fn named(&self) -> impl Iterator<Item = &str> {
        self.rest
            .split(|c: char| !c.is_alphanumeric() && !"_:".contains(c))
            .map(|name| name.trim_matches(':'))
    }

    /// Paths that the file names: of an import that others may import from here only if the file uses its name.
    fn paths(&self) -> BTreeSet<&str> {
        let named: BTreeSet<&str> = self.named().collect();
        let used = self.imports.iter().filter(|import| !import.public || named.contains(&*import.name));
        let used = used.map(|import| import.path.as_str());
        named.iter().copied().filter(|name| name.contains("::")).chain(used).collect()
    }
}

/// The files of a crate, by their modules.
type Sources = BTreeMap<Module, Source>;

/// Maximum number of files that export an item again, one from the other.
const MAX_EXPORTS: usize = 16;

/// The file that defines what a path in `from` leads to, whichever files export it again; `None` outside of the crate.
fn target(files: &Sources, from: &Module, path: &str, exports: usize) -> Option<Module> {
    let mut parts = path.split("::").peekable();
    let mut module = from.clone();
    let mut local = true;
    match parts.peek() {
        Some(&"crate") => module = Vec::new(),
        Some(&("super" | "self")) => {}
        _ => local = false,
    }
    while let Some(part) = parts.next_if(|part| ["crate", "super", "self"].contains(part)) {
        if part == "super" {
            module.pop();
        }
    }
    while let Some(part) = parts.next() {
        let inner = [&module[..], &[part.to_owned()]].concat();
        if files.contains_key(&inner) {
            module = inner;
            local = true;
            continue;
        }
        // An item: of this file, or imported here.
        return match files.get(&module).and_then(|file| file.imported(part)) {
            Some(path) if exports > 0 => {
                let rest = parts.fold(path.to_owned(), |path, part| format!("{path}::{part}"));
                target(files, &module, &rest, exports - 1)
            }
            _ => local.then_some(module),
        };
    }
    Some(module)
}

/// Files with a macro that code calls by name, wherever it is imported from.
fn macros<'a>(files: &'a Sources, code: &str) -> Vec<&'a Module> {
    let calls = |name: &str| {
        let call = format!("{name}!");
        code.match_indices(&call)
            .any(|(at, _)| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    let defines = |file: &Source| {
        let names = file.rest.split("macro_rules! ").skip(1);
        names.filter_map(|text| text.split([' ', '{']).next()).any(calls)
    };
    files.iter().filter(|(_, file)| defines(file)).map(|(module, _)| module).collect()
}

/// Whether an import counts. Two kinds do not:
///
/// - between a module and those below it, which are one thing to a reader: a child uses what its parent defines for all, and the
///   parent declares the child;
/// - from the declaration of a kernel to the self-test: it names the function that makes its cases, and they are made from the
///   kernel. Each file of `kernel` has one, and `variant` the field.
fn counts(from: &Module, to: &Module) -> bool {
    let is = |module: &Module, name: &str| module.first().is_some_and(|first| first == name);
    let related = from.starts_with(to) || to.starts_with(from);
    let declares = is(from, "kernel") || is(from, "variant") && to.len() == 1;
    !(related || declares && is(to, "self_test"))
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
    let files: Sources = files.iter().map(|(module, text)| (module.clone(), Source::new(text))).collect();
    let imports: BTreeMap<&Module, BTreeSet<Module>> = files
        .iter()
        .map(|(from, file)| {
            let to = file.paths().into_iter().filter_map(|path| target(&files, from, path, MAX_EXPORTS));
            let to = to.chain(macros(&files, &file.rest).into_iter().cloned());
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

/// A circle is a set of files of one crate, each of which uses what another defines, so that these lead around. What a file
/// exports again is of the file that defines it. What makes no circle is in [`counts`].
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
        // Exported from the root, which makes nothing of it.
        ("exports.rs", "mod one;\nmod two;\npub use one::One;\npub(crate) use two::Two as Other;"),
        ("exports/one.rs", "pub struct One;\nmacro_rules! one { () => {} }"),
        ("exports/two.rs", "use super::One;\none!();"),
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
    for used in [
        "use super::Other;",
        "use crate::exports::{self, Other};",
        "fn f(_: crate::exports::Other) {}",
        "use crate::exports as e;\nfn f(_: e::Other) {}",
        "two!();",
    ] {
        let two = "use super::One;\nmacro_rules! two { () => {} }";
        let around = [&files[..], &[("exports/one.rs", used), ("exports/two.rs", two)]].concat();
        assert_eq!(
            of(&around),
            [BTreeSet::from(["exports/one", "exports/two"].map(str::to_owned))],
            "{used}"
        );
    }
}
