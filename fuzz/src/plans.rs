//! RON files: plans and workloads of `bench`, presets of policies, and shapes of random models.

use std::fs;
use std::sync::LazyLock;

use models::RandomSpec;
use sparse_select::{Registry, presets::parse_presets};
use tempfile::TempDir;
use xtask::bench::PlanKind;

use super::config::use_sizes;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder for one file"));

/// Reads the text as each kind of plan.
pub fn run(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let mut taken = false;
    for kind in PlanKind::ALL {
        taken |= kind.check(&text).is_ok();
    }
    if let Ok(specs) = parse_presets(&text) {
        taken |= specs.iter().all(|spec| Registry::builtin().build(spec).is_ok());
    }
    let path = FOLDER.path().join(format!("{:?}.ron", std::thread::current().id()));
    fs::write(&path, bytes).expect("a file in a folder of its own");
    let random = RandomSpec::parse(&path.display().to_string());
    random.inspect(|spec| use_sizes(&spec.config)).is_ok() || taken
}
