//! Commands install nothing, unless they were asked to.

use crate::machine::{Machine, has_apt};

const PAGODA: &str = env!("CARGO_BIN_EXE_pagoda");

#[test]
fn no_command_installs_what_it_lacks() {
    let commands: [&[&str]; 5] =
        [&["run", "Hi"], &["chat"], &["serve", "--port", "0"], &["tokenize", "Hi"], &["doctor"]];
    for args in commands {
        let machine = Machine::new(PAGODA);
        for variables in [&[][..], &[("CI", "true")], &[("PAGODA_INSTALL", "yes")]] {
            let output = machine.run(args, variables);
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
            assert!(said.contains("missing: Python 3 with pip"), "{args:?}: {said}");
            assert_eq!(machine.calls(), "", "{args:?} {variables:?}");
        }
    }
}

#[test]
fn doctor_installs_if_it_is_asked_to() {
    if !has_apt() {
        return;
    }
    let machine = Machine::new(PAGODA);
    let output = machine.run(&["doctor", "--install"], &[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("missing: Python 3 with pip; running apt-get update"), "{said}");
    // The script installs nothing.
    assert!(said.contains("still missing after the installation: Python 3 with pip"), "{said}");
    let calls = machine.calls();
    assert!(
        calls.contains(" update\n") && calls.ends_with("--no-install-recommends python3 python3-pip\n"),
        "{calls}"
    );
}
