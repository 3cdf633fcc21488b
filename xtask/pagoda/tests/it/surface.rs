//! The exports of the library, and the README's words about them.

/// Names that the library exports, by its source.
fn exported(lib: &str) -> Vec<&str> {
    let uses = lib.split("pub use ").skip(1).map(|rest| rest.split_once(';').expect("the statement ends").0);
    let items = uses.flat_map(|path| match path.split_once('{') {
        Some((_, list)) => list.trim_end_matches('}').split(',').collect(),
        None => vec![path.rsplit("::").next().expect("a name")],
    });
    let names = items.map(|item| item.trim().rsplit(' ').next().expect("a name"));
    let modules = lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    names.chain(modules).filter(|name| !name.is_empty()).collect()
}

#[test]
fn the_readme_lists_what_is_exported() {
    let (_, rest) = include_str!("../../README.md").split_once("## The surface for 1.0").unwrap();
    let cells = rest.lines().filter_map(|line| line.split('|').nth(2));
    let mut listed: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let mut expected = exported(include_str!("../../src/lib.rs"));
    listed.sort_unstable();
    expected.sort_unstable();
    assert_eq!(listed, expected);
}
