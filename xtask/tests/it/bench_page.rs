//! Scripts of the page of `bench`, in Node.js. `tests/engine/bench_page.rs` uses the page itself.

use std::path::Path;
use std::process::Command;

#[track_caller]
fn node(args: &[&str], script: &Path) {
    let output =
        Command::new("node").args(args).arg(script).output().expect("`cargo xtask test` sets Node.js up");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn its_scripts_are_right() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("cli");
    for script in ["draw", "policies", "suites"] {
        node(&["--check"], &package.join(format!("bench/{script}.mjs")));
    }
    node(&["--test"], &package.join("tests/page/draw.test.mjs"));
}
