//! Models by their names on the hub, from a cache; `cargo xtask` has the tests with a server.

use std::fs;
use std::path::Path;
use std::process::Command;

use pagoda::{Error, HubError, Model};

use crate::fixture;

/// The folder of the hub's cache, in the program that this test starts.
const CACHE: &str = "HF_HUB_CACHE";

/// Opens a model by its name with the variables of the environment, which are set for a process of its own.
#[test]
fn a_model_is_opened_by_its_name() {
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    if std::env::var_os(CACHE).is_some_and(|cache| Path::new(&cache).ends_with("of-this-test")) {
        let model = Model::open("hf:people/tiny").unwrap();
        assert!(model.checkpoint().weights().path().display().to_string().contains(COMMIT));
        let missing = Model::open("hf:people/other").unwrap_err();
        assert!(matches!(missing, Error::Hub(HubError::Offline { .. })), "{missing}");
        let wrong = pagoda::open("hf:other").spawn().unwrap_err();
        assert!(matches!(wrong, Error::Hub(HubError::Reference { .. })), "{wrong}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("of-this-test");
    let model = cache.join("models--people--tiny");
    let snapshot = model.join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(model.join("refs")).unwrap();
    fs::write(model.join("refs").join("main"), COMMIT).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(fixture("tiny-llama").join(name), snapshot.join(name)).unwrap();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "hub::a_model_is_opened_by_its_name"])
        .env(CACHE, &cache)
        .env("HF_HUB_OFFLINE", "1");
    let output = child.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
}
