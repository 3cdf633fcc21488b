//! `cargo xtask pages`: writes the tables and pictures of the documentation from the results in `docs/results`.
//!
//! A page marks the place of a table with `<!-- results: NAME -->`, or with `<!-- results: NAME; rows: A | B -->` for the rows
//! that begin with the cell A or B. Everything up to `<!-- end of results -->` is made.

mod chart;
mod drawings;
mod pictures;
mod results;
mod svg;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::cli::PagesArgs;
use crate::tree;
pub use results::{Library, Results};
pub use table::with_tables;

/// The folder of the results, relative to the sources.
pub const RESULTS: &str = "docs/results";
/// The folder of the pictures.
const PICTURES: &str = "docs/pictures";

/// Runs the command.
///
/// # Errors
/// If a result or a page cannot be read; without `--write`, if a page or picture differs from what the results make of it.
pub fn run(args: &PagesArgs) -> Result<()> {
    let root = tree::checkout()?;
    let stale = stale(root)?;
    if args.write {
        for (path, text) in &stale {
            if let Some(folder) = root.join(path).parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(root.join(path), text).with_context(|| format!("{path}: cannot be written"))?;
            eprintln!("{path}");
        }
        return Ok(());
    }
    let names: Vec<&str> = stale.keys().map(String::as_str).collect();
    let names = names.join(", ");
    ensure!(
        stale.is_empty(),
        "{names}: not what {RESULTS} makes of them; `cargo xtask pages --write` writes them"
    );
    Ok(())
}

/// Returns the pages and pictures of a checkout that differ from what its results make of them, with the text that they should
/// have.
///
/// # Errors
/// If a result or a page cannot be read, a page asks for a result or a row that does not exist, or a result is shown nowhere.
pub fn stale(root: &Path) -> Result<BTreeMap<String, String>> {
    let library = Library::read(&root.join(RESULTS))?;
    let mut made = pictures::all(&library)?;
    for path in tree::files(root) {
        let path = path.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/");
        if path.ends_with(".md") {
            let page = fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
            let text = with_tables(&page, &library).with_context(|| path.clone())?;
            made.insert(path, text);
        }
    }
    let unused: BTreeSet<&str> = library.unused();
    ensure!(unused.is_empty(), "{RESULTS}: no page or picture shows {unused:?}");
    made.retain(|path, text| fs::read_to_string(root.join(path)).ok().as_ref() != Some(text));
    Ok(made)
}
