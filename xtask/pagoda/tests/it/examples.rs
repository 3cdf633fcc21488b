//! The examples, run with a tiny model; the README's runs with the default one.

#[path = "../../examples/chat.rs"]
mod chat;
#[path = "../../examples/handle.rs"]
mod handle;
#[path = "../../examples/sequence.rs"]
mod sequence;

use crate::text::model;

#[test]
fn examples_run() {
    let (_folder, model) = model();
    chat::chat(&model).unwrap();
    sequence::score(&model).unwrap();
    handle::serve(&model).unwrap();
}

/// The code of the README's first example in Rust.
fn example(readme: &str) -> &str {
    let (_, rest) = readme.split_once("use pagoda::").expect("an example");
    rest.split_once("```").expect("the example ends").0
}

#[test]
fn the_readme_of_the_workspace_has_the_example_of_the_package() {
    let own = example(include_str!("../../README.md"));
    assert_eq!(example(include_str!("../../../../README.md")), own);
    assert!(own.lines().count() <= 15, "{} lines", own.lines().count());
}
