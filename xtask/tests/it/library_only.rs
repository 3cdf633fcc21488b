//! Modules of the lower crates that the engine does not run: each says so, and this list is all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use xtask::tree;

/// Crates that people also use alone, with the name that Rust has for them.
const CRATES: [(&str, &str); 4] = [
    ("kvblock", "kvblock"),
    ("sparse-select", "sparse_select"),
    ("prefetch", "prefetch"),
    ("scheduler", "scheduler"),
];

/// Folders of the crates above them.
const USERS: [&str; 9] = [
    "kvblock",
    "sparse-select",
    "attn-kernels",
    "prefetch",
    "scheduler",
    "models",
    "xtask/pagoda",
    "xtask/serve",
    "xtask",
];

/// Module paths that no crate above uses; the first paragraph of their documentation says why they are there.
const LIBRARY_ONLY: [&str; 3] = ["kvblock/src/v0", "prefetch/src/residency", "sparse-select/src/method"];

/// The words by which a module says it.
const MARK: &str = "Library only:";

#[test]
fn what_the_engine_does_not_run_says_so() {
    let root = tree::root();
    let mut unused = BTreeSet::new();
    let mut marked = BTreeSet::new();
    for (folder, name) in CRATES {
        let outside: BTreeSet<String> = USERS
            .iter()
            .filter(|user| **user != folder)
            .flat_map(|user| named(&text(&root.join(user).join("src")), name))
            .collect();
        let modules = Modules::of(&root.join(folder).join("src"));
        let used = modules.reached(&outside);
        for (module, text) in &modules.texts {
            let path = format!("{folder}/src/{module}");
            // What stands in for tiers in tests is not for engines.
            if module != "testing" && modules.public.contains(module) && !used.contains(module.as_str()) {
                unused.insert(path.clone());
            }
            let head: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
            if head.join(" ").contains(MARK) {
                marked.insert(path);
            }
        }
    }
    let listed = LIBRARY_ONLY.map(String::from).into();
    assert_eq!(unused, listed, "modules that no crate above uses");
    assert_eq!(marked, listed, "modules whose documentation begins with {MARK:?}");
}

/// The modules of a crate.
struct Modules {
    /// The text of each, with that of the modules inside.
    texts: BTreeMap<String, String>,
    /// Modules that others can name, or whose names the crate exports.
    public: BTreeSet<String>,
    /// Names that the crate exports at its root, by the module they come from.
    exports: Vec<(String, BTreeSet<String>)>,
}

impl Modules {
    fn of(src: &Path) -> Self {
        let lib = fs::read_to_string(src.join("lib.rs")).expect("a crate");
        let names = lib
            .lines()
            .filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'));
        let text_of = |name: &str| {
            let files = [src.join(format!("{name}.rs")), src.join(name).join("mod.rs")];
            let own =
                files.iter().find_map(|file| fs::read_to_string(file).ok()).expect("a module has a file");
            own + &text(&src.join(name))
        };
        let exports = lib.split("pub use ").skip(1).filter_map(|export| {
            let (module, names) = export.split_once(';')?.0.split_once("::")?;
            Some((module.to_owned(), words(names)))
        });
        let exports: Vec<_> = exports.collect();
        let named = lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
        let public = named.map(String::from).chain(exports.iter().map(|(module, _)| module.clone()));
        Self {
            public: public.collect(),
            texts: names.map(|name| (name.to_owned(), text_of(name))).collect(),
            exports,
        }
    }

    /// The modules that these names of the crate lead to, and the modules that those use.
    fn reached(&self, names: &BTreeSet<String>) -> BTreeSet<&str> {
        let exported = |names: &BTreeSet<String>| -> Vec<&str> {
            let from = self.exports.iter().filter(|(_, exports)| !exports.is_disjoint(names));
            from.map(|(module, _)| module.as_str()).collect()
        };
        let mut rest: Vec<&str> =
            self.texts.keys().map(String::as_str).filter(|m| names.contains(*m)).collect();
        rest.extend(exported(names));
        let mut reached = BTreeSet::new();
        while let Some(module) = rest.pop() {
            let Some((module, text)) = self.texts.get_key_value(module) else { continue };
            if reached.insert(module.as_str()) {
                let inside: BTreeSet<String> =
                    ["crate", "super"].iter().flat_map(|prefix| named(text, prefix)).collect();
                rest.extend(self.texts.keys().map(String::as_str).filter(|other| inside.contains(*other)));
                rest.extend(exported(&inside));
            }
        }
        reached
    }
}

/// The names that follow `prefix::` in a text, those of a group in braces included.
fn named(text: &str, prefix: &str) -> BTreeSet<String> {
    let prefix = format!("{prefix}::");
    let paths = text.match_indices(&prefix).map(|(at, _)| &text[at + prefix.len()..]);
    paths
        .flat_map(|path| match path.starts_with('{') {
            true => words(path.split_once(';').map_or(path, |(group, _)| group)),
            false => first_word(path).into_iter().collect(),
        })
        .collect()
}

fn first_word(text: &str) -> Option<String> {
    text.split(|c: char| !is_word(c)).next().filter(|word| !word.is_empty()).map(String::from)
}

fn words(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !is_word(c)).filter(|word| !word.is_empty()).map(String::from).collect()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The text of all Rust files below a folder.
fn text(folder: &Path) -> String {
    let files = tree::files(folder).into_iter();
    let rust = files.filter(|file| file.extension().is_some_and(|extension| extension == "rs"));
    rust.map(|file| fs::read_to_string(folder.join(file)).expect("a text")).collect()
}
