//! GGUF, versions 2 and 3: metadata and tensor table over mapped bytes.
//!
//! The reader trusts nothing: every length is checked against a cap and against the bytes that are left *before*
//! memory is reserved for it. Format: `docs/gguf.md` of ggml.

mod error;
mod parse;
mod split;
mod value;

use std::{borrow::Cow, collections::HashMap, ops::Range, path::Path};

pub use self::{
    error::GgufError,
    value::{Array, Value},
};
use super::{Dtype, Naming, Tensor, WeightError, WeightSource, mmap::Bytes};

/// An open GGUF file, or all open files of a model that is split into several.
#[derive(Debug)]
pub struct Gguf {
    path: std::path::PathBuf,
    files: Vec<Bytes>,
    version: u32,
    metadata: Vec<(String, Value)>,
    tensors: Vec<GgufTensor>,
    by_key: HashMap<String, usize>,
    by_name: HashMap<String, usize>,
}

/// An entry of the tensor table.
#[derive(Clone, Debug)]
pub struct GgufTensor {
    /// Name of the tensor.
    pub name: String,
    /// Row-major extents, outermost first (the file stores them innermost first).
    pub shape: Vec<usize>,
    /// Number by which ggml identifies the storage type.
    pub type_id: u32,
    /// The storage type, if it is implemented.
    pub dtype: Option<Dtype>,
    /// Index of the file that holds the tensor; 0 unless the model is split into several files.
    file: usize,
    /// Range of the tensor's data in the file; empty if the storage type is unknown, as the size is unknown then.
    range: Range<usize>,
}

impl GgufTensor {
    /// ggml's name of the storage type.
    pub fn type_name(&self) -> Cow<'static, str> {
        parse::type_name(self.type_id)
    }
}

impl Gguf {
    /// Maps `path` and reads its header. If the model is split into files such as `NAME-00001-of-00003.gguf`, `path` may
    /// name any of them, and all are opened. O(headers).
    ///
    /// # Errors
    /// [`WeightError::Io`] and [`WeightError::Gguf`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightError> {
        Self::open_one(path.as_ref())?.with_parts()
    }

    fn open_one(path: &Path) -> Result<Self, WeightError> {
        Self::read(Bytes::map(path)?, path).map_err(|source| WeightError::Gguf { path: path.into(), source })
    }

    /// Reads a file that is already in memory.
    ///
    /// # Errors
    /// [`GgufError`] for anything that breaks the format or a cap.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::read(Bytes::Owned(bytes), Path::new("<memory>"))
    }

    fn read(bytes: Bytes, path: &Path) -> Result<Self, GgufError> {
        let parse::Header { version, metadata, tensors } = parse::header(&bytes)?;
        let by_key = metadata.iter().enumerate().map(|(i, (key, _))| (key.clone(), i)).collect();
        let by_name = tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.clone(), i)).collect();
        Ok(Self { path: path.into(), files: vec![bytes], version, metadata, tensors, by_key, by_name })
    }

    /// Contents of the file, or of each file of a split model.
    pub(crate) fn files(&self) -> impl Iterator<Item = &[u8]> {
        self.files.iter().map(|file| &**file)
    }

    /// Version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Metadata in file order.
    pub fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }

    /// The tensor table in file order.
    pub fn tensors(&self) -> &[GgufTensor] {
        &self.tensors
    }

    /// The metadata value of `key`.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.by_key.get(key).map(|&i| &self.metadata[i].1)
    }

    /// An unsigned metadata value that fits 32 bits.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] if the value is of another type or out of range.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.typed(key, "unsigned integer of 32 bits", Value::as_u32)
    }

    /// A floating-point metadata value.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] if the value is of another type.
    pub fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.typed(key, "float", Value::as_float)
    }

    /// A boolean metadata value.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] if the value is of another type.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "bool", Value::as_bool)
    }

    /// A text metadata value.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] if the value is of another type.
    pub fn str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.typed(key, "string", Value::as_str)
    }

    /// A metadata array of texts.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] if the value is of another type.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, GgufError> {
        self.typed(key, "array of strings", Value::as_strings)
    }

    /// A metadata array of floating-point numbers.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] if the value is of another type.
    pub fn floats(&self, key: &str) -> Result<Option<&[f64]>, GgufError> {
        self.typed(key, "array of floats", Value::as_floats)
    }

    /// A metadata array of integers, or of truth values as 0 and 1.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] if the value is of another type.
    pub fn ints(&self, key: &str) -> Result<Option<Vec<i64>>, GgufError> {
        self.typed(key, "array of integers", Value::as_ints)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        want: &'static str,
        as_type: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        as_type(value).map(Some).ok_or_else(|| GgufError::KeyType {
            key: key.to_owned(),
            want,
            found: value.to_string(),
        })
    }
}

impl WeightSource for Gguf {
    fn path(&self) -> &Path {
        &self.path
    }

    fn naming(&self) -> Naming {
        Naming::Gguf
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.iter().map(|tensor| tensor.name.as_str()).collect()
    }

    fn get(&self, name: &str) -> Result<Option<Tensor<'_>>, WeightError> {
        let Some(&i) = self.by_name.get(name) else { return Ok(None) };
        let tensor = &self.tensors[i];
        let dtype = tensor.dtype.ok_or_else(|| WeightError::Dtype {
            tensor: name.to_owned(),
            dtype: tensor.type_name().into_owned(),
        })?;
        Ok(Some(Tensor {
            name: Cow::Borrowed(&tensor.name),
            dtype,
            shape: tensor.shape.clone(),
            data: Cow::Borrowed(&self.files[tensor.file][tensor.range.clone()]),
        }))
    }

    fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }
}
