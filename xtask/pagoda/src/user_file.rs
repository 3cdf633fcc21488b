//! Files of JSON in the user's cache folder.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Serialize, de::DeserializeOwned};

use crate::error::Error;

/// Reads a file; the default if there is none, or it has another format.
pub(crate) fn read<T: DeserializeOwned + Default>(path: &Path) -> T {
    let text = fs::read_to_string(path).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// Writes a file in place of the last one, by renaming: a concurrent reader finds either the old contents or the new ones.
pub(crate) fn replace(path: &Path, contents: &impl Serialize) -> Result<(), Error> {
    let write = || -> io::Result<()> {
        fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        let new = path.with_extension("json.new");
        fs::write(&new, serde_json::to_vec_pretty(contents)?)?;
        fs::rename(&new, path)
    };
    write().map_err(|source| Error::Write { path: path.to_path_buf(), source })
}
