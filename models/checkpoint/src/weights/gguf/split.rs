//! Models in several files: `NAME-00001-of-00003.gguf`. The first has the metadata, and each has its own tensors.

use std::path::{Path, PathBuf};

use super::{Gguf, GgufError, Value, WeightError};

/// Maximum number of files of one model.
const MAX_PARTS: u32 = 1 << 10;

impl Gguf {
    /// Opens the other files of the model, if it is split, and adds their tensors.
    pub(super) fn with_parts(self) -> Result<Self, WeightError> {
        let broken = |path: &Path, source| WeightError::Gguf { path: path.into(), source };
        let key = |file: &Self, key| file.u32(key).map_err(|source| broken(&file.path, source));
        let Some(count) = key(&self, "split.count")?.filter(|count| *count > 1) else { return Ok(self) };
        let Some(paths) = paths(&self.path, count) else {
            return Err(broken(&self.path, GgufError::SplitName { count }));
        };
        let mut parts = Vec::with_capacity(paths.len());
        for (number, path) in (0..).zip(&paths) {
            let part = Self::open_one(path)?;
            let found = (key(&part, "split.no")?, key(&part, "split.count")?);
            if found != (Some(number), Some(count)) {
                return Err(broken(path, GgufError::SplitPart { number, count }));
            }
            parts.push(part);
        }
        let mut parts = parts.into_iter();
        let mut whole = parts.next().expect("there are two parts or more");
        for part in parts {
            let path = part.path.clone();
            whole.add(part).map_err(|source| broken(&path, source))?;
        }
        let found = whole.tensors.len();
        match whole.num_tensors() {
            Some(want) if usize::try_from(want) != Ok(found) => {
                Err(broken(&whole.path, GgufError::SplitTensors { found, want }))
            }
            _ => Ok(whole),
        }
    }

    /// Returns the number of tensors in all files that the first file states; `None` if it states none.
    fn num_tensors(&self) -> Option<i64> {
        match *self.value("split.tensors.count")? {
            Value::Signed(count) => Some(count),
            Value::Unsigned(count) => i64::try_from(count).ok(),
            _ => None,
        }
    }

    /// Adds the tensors of another file.
    fn add(&mut self, part: Self) -> Result<(), GgufError> {
        let file = self.files.len();
        self.files.extend(part.files);
        for mut tensor in part.tensors {
            tensor.file = file;
            if self.by_name.insert(tensor.name.clone(), self.tensors.len()).is_some() {
                return Err(GgufError::DuplicateTensor { tensor: tensor.name });
            }
            self.tensors.push(tensor);
        }
        Ok(())
    }
}

/// Paths of all files of a model, from the name of one of them.
fn paths(path: &Path, count: u32) -> Option<Vec<PathBuf>> {
    let end = format!("-of-{count:05}.gguf");
    let name = path.file_name()?.to_str()?.strip_suffix(&end)?;
    let (stem, number) = name.rsplit_once('-')?;
    let fits = number.len() == 5 && number.parse().is_ok_and(|number: u32| (1..=count).contains(&number));
    let of = |number: u32| path.with_file_name(format!("{stem}-{number:05}{end}"));
    (fits && count <= MAX_PARTS).then(|| (1..=count).map(of).collect())
}
