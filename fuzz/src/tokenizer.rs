//! `tokenizer.json`.

use std::fs;
use std::sync::LazyLock;

use models::Tokenizer;
use tempfile::TempDir;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder for one file"));

/// Reads the file, then a text with it.
pub fn run(bytes: &[u8]) -> bool {
    // Threads of one process may be here together.
    let path = FOLDER.path().join(format!("{:?}.json", std::thread::current().id()));
    fs::write(&path, bytes).expect("a file in a folder of its own");
    let Ok(tokenizer) = Tokenizer::from_file(&path) else { return false };
    if let Ok(ids) = tokenizer.encode("ab c<s> \u{1f600}", true) {
        let _ = tokenizer.decode(&ids, false);
    }
    true
}
