//! Types that grow: options and errors of the published crates can get a field or a variant without breaking their users.

use std::fs;

use xtask::tree;

/// Folders of the published crates.
pub(super) const CRATES: [&str; 10] = [
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
];

/// Complete descriptions of what papers and checkpoints define, which people also write by hand, as arguments of kernels.
const CLOSED: [&str; 5] = ["HyperConfig", "IndexerConfig", "LatentConfig", "MoeConfig", "Options"];

/// Options whose names do not say so: requests, limits and what else people fill in.
const OPTIONS: [&str; 23] = [
    "Antidiagonals",
    "ByCompressed",
    "ByDigests",
    "ByHashes",
    "Demand",
    "Deployment",
    "Dry",
    "Entry",
    "Key",
    "KvCacheGroup",
    "KvCacheSpec",
    "LengthLimits",
    "Offload",
    "Penalties",
    "PrefetchSettings",
    "RandomSpec",
    "Request",
    "Sampling",
    "SeqContent",
    "SlotRequest",
    "Sparse",
    "Submission",
    "TierSpec",
];

/// Whether a struct is one of options, as its name says.
pub(super) fn is_options(name: &str) -> bool {
    OPTIONS.contains(&name) || ["Options", "Config"].iter().any(|ending| name.ends_with(ending))
}

/// Names of the public option structs and error enums of a source file that users could match or construct in full.
fn closed(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let (grows, rest): (fn(&str) -> bool, _) =
            match (line.strip_prefix("pub struct "), line.strip_prefix("pub enum ")) {
                (Some(rest), _) => (is_options, rest),
                (_, Some(rest)) => (|name| name.ends_with("Error"), rest),
                _ => continue,
            };
        let name = rest.split(|c: char| !c.is_alphanumeric()).next().expect("a split has a first part");
        // Fields that nobody else sees keep others from writing it out.
        let body = lines[at + 1..].iter().take_while(|line| **line != "}");
        let opaque = line.contains("struct ")
            && body.clone().any(|line| {
                let field = line.split_once(':').map(|(field, _)| field);
                let named = |field: &str| field.chars().all(|c| c.is_alphanumeric() || c == '_');
                line.starts_with("pub(")
                    || field.is_some_and(|field| !line.starts_with("pub ") && named(field))
            });
        let above =
            lines[..at].iter().rev().take_while(|line| line.starts_with('#') || line.starts_with("//"));
        let marked = above.clone().any(|line| *line == "#[non_exhaustive]");
        if grows(name) && !opaque && !marked {
            found.push(name);
        }
    }
    found
}

#[test]
fn options_and_errors_can_grow() {
    let mut faults = Vec::new();
    let mut seen = Vec::new();
    for folder in CRATES {
        let source = tree::root().join(folder).join("src");
        for path in tree::files(&source).iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
            let text = fs::read_to_string(source.join(path)).unwrap();
            for name in closed(&text) {
                match CLOSED.iter().find(|closed| **closed == name) {
                    Some(closed) => seen.push(*closed),
                    None => {
                        faults.push(format!("{folder}/src/{}: {name} is not non_exhaustive", path.display()))
                    }
                }
            }
        }
    }
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
    let stale: Vec<_> = CLOSED.iter().filter(|name| !seen.contains(name)).collect();
    assert!(stale.is_empty(), "{stale:?} need no exception");
}

/// Whether a line declares a public field that only fills a struct.
fn fills(line: &str) -> bool {
    let field = line.trim().strip_prefix("pub ").and_then(|rest| rest.split_once(':'));
    field.is_some_and(|(name, _)| name.trim_start_matches('_').trim_end_matches(char::is_numeric) == "pad")
}

#[test]
fn nobody_outside_fills_a_struct_up() {
    assert!(fills("    pub pad1: u32,") && fills("pub _pad: [u32; 3],"));
    assert!(!fills("    pad: u32,") && !fills("pub padded_bytes: u64,") && !fills("pub fn pad(&self) {"));
    let mut faults = Vec::new();
    for folder in CRATES {
        let source = tree::root().join(folder).join("src");
        for path in tree::files(&source).iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
            let text = fs::read_to_string(source.join(path)).unwrap();
            let at = text.lines().position(fills);
            faults.extend(at.map(|at| format!("{folder}/src/{}:{}", path.display(), at + 1)));
        }
    }
    assert!(faults.is_empty(), "public fields that fill structs:\n{}\n", faults.join("\n"));
}

#[test]
fn a_type_that_cannot_grow_is_caught() {
    let text = "
        /// Options.
        #[non_exhaustive]
        pub struct GoodOptions {
            pub a: u32,
        }

        #[derive(Debug)]
        pub struct BadConfig {
            pub a: u32,
        }

        pub struct HiddenConfig {
            a: u32,
        }

        pub struct InnerConfig {
            pub(super) a: u32,
        }

        pub struct Sampling {
            pub a: u32,
        }

        /// Errors.
        pub enum BadError {
            One,
        }

        #[derive(Debug)]
        #[non_exhaustive]
        pub enum GoodError {
            One,
        }
    ";
    assert_eq!(closed(text), ["BadConfig", "Sampling", "BadError"]);
}
