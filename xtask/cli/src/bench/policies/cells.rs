//! Measurements that are kept in a file of JSON lines: those already in it are not run again.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::hash::Hash;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A measurement that is kept in a file.
pub trait Kept: Serialize + DeserializeOwned + Clone {
    /// Everything that the measurement depends on.
    type Key: Eq + Hash;

    /// The key of this measurement.
    fn key(&self) -> Self::Key;
}

/// Measurements by their keys, in a file of JSON lines if there is one.
#[derive(Debug)]
pub struct Cells<T: Kept> {
    path: Option<PathBuf>,
    done: HashMap<T::Key, T>,
}

impl<T: Kept> Default for Cells<T> {
    fn default() -> Self {
        Self { path: None, done: HashMap::new() }
    }
}

impl<T: Kept> Cells<T> {
    /// The measurements of a file. An incomplete line, left by an interrupted run, is skipped.
    ///
    /// # Errors
    /// If the folder of the file cannot be created.
    pub fn at(path: PathBuf) -> Result<Self> {
        let folder = path.parent().unwrap_or(Path::new(""));
        fs::create_dir_all(folder).with_context(|| format!("{}: cannot be created", folder.display()))?;
        let text = fs::read_to_string(&path).unwrap_or_default();
        let cells = text.lines().filter_map(|line| serde_json::from_str::<T>(line).ok());
        Ok(Self { done: cells.map(|cell| (cell.key(), cell)).collect(), path: Some(path) })
    }

    /// The measurement with this key, if it was made before.
    pub fn get(&self, key: &T::Key) -> Option<&T> {
        self.done.get(key)
    }

    /// Adds a measurement.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn put(&mut self, cell: T) -> Result<()> {
        if let Some(path) = &self.path {
            let mut line = serde_json::to_string(&cell)?;
            line.push('\n');
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.and_then(|mut file| file.write_all(line.as_bytes()))
                .with_context(|| format!("{}: cannot be written", path.display()))?;
        }
        self.done.insert(cell.key(), cell);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use pagoda::KvDtype;

    use super::super::report::row::{PolicyRow, example};
    use super::*;

    #[test]
    fn what_is_in_the_file_is_not_run_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/report.jsonl");
        let row = |policy| example(policy, KvDtype::F16, 512, 0.0, 1.0);
        let (one, two) = (row("full"), row("quest"));
        let mut cells: Cells<PolicyRow> = Cells::at(path.clone()).unwrap();
        assert!(cells.get(&one.key()).is_none());
        cells.put(one.clone()).unwrap();
        cells.put(two.clone()).unwrap();
        // An interrupted run leaves half a line.
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 20]).unwrap();
        let cells: Cells<PolicyRow> = Cells::at(path).unwrap();
        assert_eq!((cells.get(&one.key()), cells.get(&two.key())), (Some(&one), None));
        let mut elsewhere = one.key();
        elsewhere.0 = "model on another device".into();
        assert!(cells.get(&elsewhere).is_none());
    }
}
