//! Tables and pictures of the documentation are what the results in `docs/results` make of them.

use std::fs;

use xtask::{pages, tree};

#[test]
fn pages_and_pictures_are_those_of_the_results() {
    let stale = pages::stale(tree::root()).unwrap();
    let names: Vec<_> = stale.keys().collect();
    assert!(stale.is_empty(), "`cargo xtask pages --write` writes {names:?} anew");
}

#[test]
fn a_cell_that_differs_from_its_result_is_found() {
    let library = pages::Library::read(&tree::root().join(pages::RESULTS)).unwrap();
    let page = fs::read_to_string(tree::root().join("README.md")).unwrap();
    let results = library.get("llama-3-8b").unwrap();
    let cell = &results.rows[0][results.column("prefill").unwrap()];
    assert!(page.contains(cell), "README.md has no {cell}");
    let changed = page.replace(cell, "99,999");
    assert_eq!(pages::with_tables(&changed, &library).unwrap(), page);
}

/// `pages::the_commands` holds that the program takes the commands, which the pages show.
#[test]
fn results_have_their_circumstances() {
    let folder = tree::root().join(pages::RESULTS);
    let library = pages::Library::read(&folder).unwrap();
    for path in tree::files(&folder) {
        let results = library.get(&path.file_stem().unwrap().to_string_lossy()).unwrap();
        let told = [&results.title, &results.adapter, &results.command];
        assert!(told.iter().all(|text| !text.is_empty()), "{}: {told:?}", path.display());
        let program = ["cargo ", "fuzz/run"].iter().any(|program| results.command.starts_with(program));
        assert!(program, "{}: {}", path.display(), results.command);
    }
}

/// Pictures that a page loads are small, and all that are kept are shown.
#[test]
fn pictures_are_small_and_shown() {
    let folder = tree::root().join("docs/pictures");
    let pages: Vec<String> = tree::files(tree::root())
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| fs::read_to_string(tree::root().join(path)).unwrap())
        .collect();
    let mut total = 0;
    for path in tree::files(&folder) {
        let size = fs::metadata(folder.join(&path)).unwrap().len();
        assert!(size < 150_000, "{}: {size} bytes, more than 150,000", path.display());
        total += size;
        let name = format!("pictures/{}", path.display());
        assert!(pages.iter().any(|page| page.contains(&name)), "no page shows {name}");
    }
    assert!((1..1_000_000).contains(&total), "{total} bytes in all, more than 1,000,000");
}
