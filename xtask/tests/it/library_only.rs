//! Public items of the lower crates that nothing above them uses: each says so, and this list is all of them.
//!
//! Text decides, so the list is a lower bound: an item counts as used if its name is a word of a file above that names its crate,
//! or of what is used in its own crate, signatures and bodies alike. Methods and fields are not looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use xtask::tree;

/// Crates that people also use alone, with the name that Rust has for them.
const CRATES: [(&str, &str); 5] = [
    ("kvblock", "kvblock"),
    ("sparse-select", "sparse_select"),
    ("attn-kernels", "attn_kernels"),
    ("prefetch", "prefetch"),
    ("scheduler", "scheduler"),
];

/// Folders of the crates above them.
const USERS: [&str; 12] = [
    "kvblock",
    "sparse-select",
    "attn-kernels",
    "prefetch",
    "scheduler",
    "models/checkpoint",
    "models/dense-kernels",
    "models",
    "xtask/pagoda",
    "xtask/serve",
    "xtask/cli",
    "xtask",
];

/// The words by which an item, or the module it is in, says it.
const MARK: &str = "Library only";

/// Stand-ins of tiers in tests, which no engine uses.
const OF_TESTS: &str = "prefetch/src/testing";

#[test]
fn what_nothing_above_uses_says_so() {
    let mut unused = BTreeMap::<String, Vec<String>>::new();
    let mut silent = Vec::new();
    let mut stale = Vec::new();
    for (folder, name) in CRATES {
        let items = Items::of(folder);
        let used = items.used(&words_above(folder, name));
        for item in items.all.iter().filter(|item| item.public && !item.path.starts_with(OF_TESTS)) {
            let line = format!("{} {}", item.path, item.name);
            if used.contains(&item.key()) {
                if item.says_so {
                    stale.push(line);
                }
                continue;
            }
            if !item.says_so && !items.modules[&item.path] {
                silent.push(line);
            }
            unused.entry(item.path.clone()).or_default().push(item.name.clone());
        }
    }
    assert!(
        silent.is_empty(),
        "nothing above uses these, and their docs have no {MARK:?}:\n{}",
        silent.join("\n")
    );
    assert!(stale.is_empty(), "these are used, although their docs have {MARK:?}:\n{}", stale.join("\n"));
    let listed: Vec<String> =
        unused.iter().map(|(path, names)| format!("{path}: {}", names.join(" "))).collect();
    insta::assert_snapshot!(listed.join("\n"), @"
    attn-kernels/src/cpu/dequantise.rs: dequantise
    attn-kernels/src/cpu/top_k_transform.rs: top_k_transform
    attn-kernels/src/kernel/chunked_local.rs: VirtualBatch virtual_batches virtual_tables
    attn-kernels/src/kernel/top_k.rs: MAX_SCORES
    kvblock/src/v0/allocator.rs: PhysicalTokenBlock BlockAllocator
    kvblock/src/v0/copies.rs: BlockMove CopyList
    kvblock/src/v0/error.rs: BlockSpaceError
    kvblock/src/v0/group.rs: RequestId SequenceGroup
    kvblock/src/v0/logical.rs: BLANK LogicalTokenBlock
    kvblock/src/v0/preempt.rs: PreemptionMode Preemption preempt
    kvblock/src/v0/queues.rs: StepOps GroupQueues
    kvblock/src/v0/seq_state.rs: SeqState
    kvblock/src/v0/sequence.rs: Sequence
    kvblock/src/v0/space.rs: BlockSpaceConfig AllocStatus BlockSpaceManager
    prefetch/src/residency.rs: Residency ResidencyPlan ResidencyError
    sparse-select/src/dsa/chunk.rs: LOGITS_MAX_BYTES row_chunks topk_chunked Group group_requests
    sparse-select/src/dsa/transform.rs: TopkRows token_to_batch topk_transform topk_transform_by
    sparse-select/src/method.rs: MethodRole PrefetchOutcome PrefetchWait StepRequest LayerRequest create_sparse_method SparseMethod
    sparse-select/src/policy/gsa.rs: history_score
    sparse-select/src/v4.rs: REQUESTS_PER_CHUNK IndexRow window_positions swa_decode_row compressed_len c4a_count PrefillWorkspace prefill_chunks
    sparse-select/src/v4/compressor.rs: MAIN_SCALE_BLOCK INDEXER_SCALE_BLOCK quantise_blocks
    ");
}

/// The words of all files of the crates above that name a crate.
fn words_above(folder: &str, name: &str) -> BTreeSet<String> {
    let above = USERS.iter().filter(|user| **user != folder);
    let texts = above.flat_map(|user| sources(user)).map(|(_, text)| code(&text));
    texts.map(|text| words(&text)).filter(|words| words.contains(name)).flatten().collect()
}

/// An item of a crate: its name, and the words of its text and of its implementations.
struct Item {
    /// File.
    path: String,
    /// Module below the root that the file is, or is in.
    module: String,
    name: String,
    public: bool,
    says_so: bool,
    words: BTreeSet<String>,
}

impl Item {
    fn key(&self) -> (String, String) {
        (self.module.clone(), self.name.clone())
    }
}

struct Items {
    all: Vec<Item>,
    /// Whether the documentation of each file, or of the module it is in, says it.
    modules: BTreeMap<String, bool>,
    /// Modules whose items have their name in front.
    named: BTreeSet<String>,
    /// Names that the root exports.
    exported: BTreeSet<String>,
}

impl Items {
    fn of(folder: &str) -> Self {
        let files = sources(folder);
        let lib = &files.iter().find(|(path, _)| path.ends_with("src/lib.rs")).expect("a crate").1;
        let named = lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
        let exported =
            lib.split("\npub use ").skip(1).filter_map(|export| Some(words(export.split_once(';')?.0)));
        let mut items = Self {
            all: Vec::new(),
            modules: BTreeMap::new(),
            named: named.map(String::from).collect(),
            exported: exported.flatten().collect(),
        };
        let head_says =
            |path: &str| files.iter().any(|(other, text)| other == path && head(text).contains(MARK));
        for (path, text) in &files {
            let inside = path.strip_prefix(&format!("{folder}/src/")).expect("a file of the crate");
            let module = inside.split('/').next().expect("a name").trim_end_matches(".rs").to_owned();
            let above = ["/mod.rs", ".rs"].map(|end| format!("{folder}/src/{module}{end}"));
            items.modules.insert(path.clone(), head_says(path) || above.iter().any(|path| head_says(path)));
            items.read(path, &module, text);
        }
        items
    }

    /// Takes the items of a file, which begin at the start of a line as rustfmt leaves them.
    fn read(&mut self, path: &str, module: &str, text: &str) {
        let mut docs = String::new();
        for line in text.lines() {
            if line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test") {
                return;
            }
            if line.starts_with("///") {
                docs += line;
                docs.push(' ');
            } else if ["mod ", "pub mod ", "use ", "pub use "].iter().any(|head| line.starts_with(head)) {
                docs.clear();
            } else if let Some((name, public)) = declared(line) {
                let (path, module) = (path.to_owned(), module.to_owned());
                let (says_so, words) = (docs.contains(MARK), words(&code(line)));
                docs.clear();
                self.all.push(Item { path, module, name, public, says_so, words });
            } else if !line.trim_start().starts_with("//")
                && let Some(item) = self.all.last_mut().filter(|item| item.path == path)
            {
                item.words.extend(words(line));
            }
        }
    }

    /// The items that words of other crates lead to.
    fn used(&self, above: &BTreeSet<String>) -> BTreeSet<(String, String)> {
        let mut by_key = BTreeMap::<(String, String), BTreeSet<&str>>::new();
        let mut by_name = BTreeMap::<&str, BTreeSet<&str>>::new();
        for item in &self.all {
            by_key.entry(item.key()).or_default().extend(item.words.iter().map(String::as_str));
            by_name.entry(&item.name).or_default().insert(&item.module);
        }
        let reachable = |(module, name): &&(String, String)| {
            let exported = self.exported.contains(name) || !self.named.contains(module);
            above.contains(name) && (exported || above.contains(module))
        };
        let mut rest: Vec<(String, String)> = by_key.keys().filter(reachable).cloned().collect();
        let mut used = BTreeSet::new();
        while let Some(key) = rest.pop() {
            if used.contains(&key) {
                continue;
            }
            for word in by_key.get(&key).into_iter().flatten() {
                // A name means the item of its own module, where there is one.
                let own = (key.0.clone(), (*word).to_owned());
                if by_key.contains_key(&own) {
                    rest.push(own);
                } else {
                    let others = by_name.get(word).into_iter().flatten();
                    rest.extend(others.map(|module| ((*module).to_owned(), (*word).to_owned())));
                }
            }
            used.insert(key);
        }
        used
    }
}

/// The name that a line declares, or implements something for, and whether it is public.
fn declared(line: &str) -> Option<(String, bool)> {
    if let Some(rest) = line.strip_prefix("impl") {
        let rest = rest.rsplit(" for ").next().expect("a split has a last part");
        let rest = rest
            .strip_prefix('<')
            .map_or(rest, |generic| generic.split_once("> ").map_or("", |(_, rest)| rest));
        let path = rest.trim_start_matches([' ', '&']).split(|c: char| !(is_word(c) || c == ':')).next()?;
        return Some((path.rsplit("::").next()?.to_owned(), false));
    }
    let public = line.starts_with("pub ");
    let rest = match line.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ")?.1,
        None => line.strip_prefix("pub ").unwrap_or(line),
    };
    let kinds =
        ["const fn ", "unsafe fn ", "fn ", "struct ", "enum ", "trait ", "const ", "static ", "type "];
    let rest = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    Some((rest.split(|c: char| !is_word(c)).next()?.to_owned(), public))
}

#[test]
fn declarations_are_seen() {
    let name =
        |line| declared(line).map(|(name, public)| format!("{name}{}", if public { " pub" } else { "" }));
    assert_eq!(name("pub const fn key(name: &str) -> Key {").as_deref(), Some("key pub"));
    assert_eq!(name("pub(crate) struct Block {").as_deref(), Some("Block"));
    assert_eq!(name("pub const MAX: f32 = 448.0;").as_deref(), Some("MAX pub"));
    assert_eq!(
        name("impl<'a, T: Into<u32>> fmt::Debug for disk::DiskTier<'a> {").as_deref(),
        Some("DiskTier")
    );
    assert_eq!(name("impl<T> Handle<T> {").as_deref(), Some("Handle"));
    assert_eq!(name("use std::fmt;"), None);
    assert_eq!(name("    pub fn method(&self) {"), None);
}

/// The documentation at the head of a file.
fn head(text: &str) -> String {
    text.lines().take_while(|line| line.starts_with("//!")).collect::<Vec<_>>().join(" ")
}

/// A text without its comments, its literals and its tests.
fn code(text: &str) -> String {
    let tests = text.find("\n#[cfg(test)]\nmod ").unwrap_or(text.len());
    let lines = text[..tests].lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.map(|line| line.split('"').step_by(2).collect::<String>()).collect::<Vec<_>>().join("\n")
}

fn words(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !is_word(c)).filter(|word| !word.is_empty()).map(String::from).collect()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The Rust files of a crate, by their paths from the root.
fn sources(folder: &str) -> Vec<(String, String)> {
    let source = Path::new(folder).join("src");
    let files = tree::files(&tree::root().join(&source)).into_iter();
    let rust = files.filter(|file| file.extension().is_some_and(|extension| extension == "rs"));
    rust.map(|file| {
        let path = source.join(file);
        let text = fs::read_to_string(tree::root().join(&path)).expect("a text");
        (path.to_str().expect("names of files are UTF-8").to_owned(), text)
    })
    .collect()
}
