//! Hashes of files that were found right, so that each is computed once.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};

/// Whether a file has a SHA-256, in lower-case hexadecimal. A correct hash is remembered next to the file until the file
/// changes.
pub(super) fn has_hash(path: &Path, sha256: &str) -> bool {
    let known = fs::read_to_string(note(path)).ok();
    if known.is_some() && known == state(path, sha256) {
        return true;
    }
    let is_right = hash(path).is_ok_and(|found| found == sha256);
    if is_right {
        remember(path, sha256);
    }
    is_right
}

/// Remembers that a file has a SHA-256.
pub(super) fn remember(path: &Path, sha256: &str) {
    if let Some(state) = state(path, sha256) {
        // In a cache that cannot be written, every process computes the hash.
        let _ = fs::write(note(path), state);
    }
}

/// Path of the hidden file that records a file's checked hash.
fn note(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.checked"))
}

/// Text to record for a file: its hash, its size and the time of its last change.
fn state(path: &Path, sha256: &str) -> Option<String> {
    let meta = fs::metadata(path).ok()?;
    let modified = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(format!("{sha256} {} bytes, modified at {} ns\n", meta.len(), modified.as_nanos()))
}

fn hash(path: &Path) -> io::Result<String> {
    let (mut file, mut hash) = (File::open(path)?, Sha256::new());
    let mut chunk = vec![0; 1 << 20];
    loop {
        let len = file.read(&mut chunk)?;
        if len == 0 {
            break;
        }
        hash.update(&chunk[..len]);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
