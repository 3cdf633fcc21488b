//! The set-up of a checkout installs packages; all other commands do not.

#[path = "../../cli/tests/it/machine.rs"]
mod machine;

use machine::{Machine, has_apt};

const XTASK: &str = env!("CARGO_BIN_EXE_xtask");

#[test]
fn the_first_generate_of_a_checkout_installs() {
    if !has_apt() {
        return;
    }
    for variables in [&[][..], &[("CI", "true")], &[("PAGODA_INSTALL", "yes")]] {
        let machine = Machine::new(XTASK);
        let output = machine.run(&["generate", "Hi"], variables);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("missing: Python 3 with pip; running apt-get update"), "{said}");
        let calls = machine.calls();
        assert!(calls.ends_with("--no-install-recommends python3 python3-pip\n"), "{variables:?}: {calls}");
    }
    let machine = Machine::new(XTASK);
    let output = machine.run(&["generate", "Hi"], &[("PAGODA_INSTALL", "never")]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("to install, run\n  apt-get update && apt-get install"), "{said}");
    assert_eq!((output.status.code(), machine.calls().as_str()), (Some(1), ""));
}

#[test]
fn a_server_installs_nothing() {
    for args in [&["serve", "--port", "0"][..], &["chat"], &["bench", "e2e"]] {
        let machine = Machine::new(XTASK);
        let output = machine.run(args, &[("PAGODA_INSTALL", "yes")]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("missing: Python 3 with pip"), "{args:?}: {said}");
        assert_eq!((output.status.code(), machine.calls().as_str()), (Some(1), ""), "{args:?}");
    }
}
