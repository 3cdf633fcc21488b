//! Sources of weights: GGUF files and Hugging Face directories of safetensors, which are mapped without copies, and random
//! numbers.

mod dequant;
mod dtype;
mod gguf;
mod mmap;
mod names;
mod parts;
mod quantize;
mod random;
#[macro_use]
mod role_table;
mod roles;
mod safetensors;

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

use half::f16;

pub(crate) use self::quantize::quantize_into;
pub use self::{
    dequant::dequantize,
    dtype::Dtype,
    gguf::{Array, Gguf, GgufError, GgufTensor, Value},
    names::Naming,
    parts::{CompressorPart, HyperPart},
    quantize::quantize,
    random::{RandomError, RandomSpec, RandomWeights},
    roles::Role,
    safetensors::{Quantization, Safetensors, UnknownQuantization},
};

/// Fields of the blocks of quantised types, for code that repacks them.
pub mod codes {
    pub use super::dequant::{bit_pair, five_bits, iq4_scale, q3_code, q3_scale, scale_min};
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<'a> {
    /// Name in the file.
    pub name: Cow<'a, str>,
    /// Storage type of `data`.
    pub dtype: Dtype,
    /// Row-major extents, outermost first: a matrix is `[out_features, in_features]` in every format.
    pub shape: Vec<usize>,
    /// The stored bytes, unaligned. Borrowed from the file, except where a format has to be repacked.
    pub data: Cow<'a, [u8]>,
}

impl Tensor<'_> {
    /// Number of elements.
    pub fn elems(&self) -> usize {
        self.shape.iter().product()
    }

    /// All elements as f32.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.elems()];
        dequantize(self.dtype, &self.data, &mut out);
        out
    }
}

impl Tensor<'_> {
    /// Returns the tensor in a type that kernels read: see [`Dtype::loads_as`].
    #[must_use]
    pub fn loaded(self) -> Self {
        match self.dtype.loads_as() {
            dtype if dtype == self.dtype => self,
            Dtype::Q4_0 => self.ternary(),
            dtype => self.widened(dtype),
        }
    }

    /// Returns zeros in the shape of the tensor and in a type that kernels read, in memory that is not touched yet.
    #[must_use]
    pub fn loads_as_zeros(&self) -> Tensor<'static> {
        let dtype = self.dtype.loads_as();
        let bytes = dtype.bytes_for(self.elems()).expect("tensors are of whole blocks");
        let (name, shape) = (self.name.to_string().into(), self.shape.clone());
        Tensor { name, dtype, shape, data: vec![0; bytes].into() }
    }

    /// Converts ternary digits, with a scale per 256 elements, to `Q4_0` codes with the same scale for each 32
    /// elements.
    fn ternary(&self) -> Tensor<'static> {
        let mut data = Vec::with_capacity(self.elems() / 32 * Dtype::Q4_0.block_bytes());
        for block in self.data.chunks_exact(self.dtype.block_bytes()) {
            let mut values = [0.0; 256];
            dequantize(self.dtype, block, &mut values);
            let scale = [block[block.len() - 2], block[block.len() - 1]];
            // 8 is zero.
            let code = |value: f32| {
                8 + u8::from(value != 0.0)
                    - 2 * u8::from(value != 0.0 && value.is_sign_negative() != (scale[1] >> 7 == 1))
            };
            for run in values.chunks_exact(32) {
                data.extend(scale);
                data.extend((0..16).map(|i| code(run[i]) | code(run[i + 16]) << 4));
            }
        }
        let (name, shape) = (self.name.to_string().into(), self.shape.clone());
        Tensor { name, dtype: Dtype::Q4_0, shape, data: data.into() }
    }

    /// Returns the tensor in `dtype`: f16, which rounds, or f32.
    #[must_use]
    pub fn widened(&self, dtype: Dtype) -> Tensor<'static> {
        let values = self.to_f32();
        let data: Vec<u8> = match dtype {
            Dtype::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        };
        let dtype = if dtype == Dtype::F16 { dtype } else { Dtype::F32 };
        Tensor { name: self.name.to_string().into(), dtype, shape: self.shape.clone(), data: data.into() }
    }

    /// Converts two tensors to one storage type: their own if they share one, else f16, or f32 if one has numbers beyond f16.
    #[must_use]
    pub fn alike(pair: [Self; 2]) -> [Self; 2] {
        if pair[0].dtype == pair[1].dtype {
            return pair;
        }
        let wide = pair.iter().any(|tensor| matches!(tensor.dtype, Dtype::F32 | Dtype::BF16));
        pair.map(|tensor| tensor.widened(if wide { Dtype::F32 } else { Dtype::F16 }))
    }
}

/// Bytes and elements of tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes, either as stored or as loaded.
    pub bytes: u64,
    /// Number of elements.
    pub elements: u64,
}

/// A tensor of integers, such as a table of experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntegerTensor {
    /// Name in the file.
    pub name: String,
    /// Row-major extents, outermost first.
    pub shape: Vec<usize>,
    /// All elements.
    pub values: Vec<i64>,
}

/// A source of tensors.
pub trait WeightSource: Sync {
    /// Path of the tensors' file or folder, for messages.
    fn path(&self) -> &Path;

    /// Returns the naming convention of the tensors.
    fn naming(&self) -> Naming;

    /// Names of all tensors, in file order or sorted.
    fn names(&self) -> Vec<&str>;

    /// The tensor called `name`, or `None`.
    ///
    /// # Errors
    /// [`WeightError::Dtype`] if it is stored in a type that [`Dtype`] lacks.
    fn get(&self, name: &str) -> Result<Option<Tensor<'_>>, WeightError>;

    /// The integer tensor called `name`, or `None`.
    ///
    /// # Errors
    /// [`WeightError::Integers`] if it is stored in another type.
    fn get_integers(&self, _name: &str) -> Result<Option<IntegerTensor>, WeightError> {
        Ok(None)
    }

    /// The integer tensor of a role.
    ///
    /// # Errors
    /// [`WeightError::Missing`] if there is none, and those of [`get_integers`](Self::get_integers).
    fn integers(&self, role: Role) -> Result<IntegerTensor, WeightError> {
        for name in self.naming().names(role) {
            if let Some(tensor) = self.get_integers(&name)? {
                return Ok(tensor);
            }
        }
        Err(self.missing(role))
    }

    /// Error for a missing tensor of a role.
    fn missing(&self, role: Role) -> WeightError {
        let name = self.naming().name(role);
        let name = name.unwrap_or_else(|| format!("of role {role:?} in {}", self.naming()));
        WeightError::Missing { name, role, path: self.path().into() }
    }

    /// The tensor of a role.
    ///
    /// # Errors
    /// [`WeightError::Missing`] if there is none, and those of [`get`](Self::get).
    fn tensor(&self, role: Role) -> Result<Tensor<'_>, WeightError> {
        for name in self.naming().names(role) {
            if let Some(tensor) = self.get(&name)? {
                return Ok(tensor);
            }
        }
        Err(self.missing(role))
    }

    /// Returns the tensor of a role. If its data have to be computed, the thread that computes a part reports it when
    /// it is done.
    ///
    /// # Errors
    /// Those of [`tensor`](Self::tensor).
    fn tensor_by_parts(&self, role: Role, _made: &(dyn Fn(Size) + Sync)) -> Result<Tensor<'_>, WeightError> {
        self.tensor(role)
    }

    /// Returns the tensor of a role with its name, type and shape; if its data have to be computed, they may be
    /// missing.
    ///
    /// # Errors
    /// Those of [`tensor`](Self::tensor).
    fn outline(&self, role: Role) -> Result<Tensor<'_>, WeightError> {
        self.tensor(role)
    }

    /// Whether there is a tensor of this role.
    fn has(&self, role: Role) -> bool {
        self.naming().names(role).any(|name| self.contains(&name))
    }

    /// Returns the name of the whole tensor, if the stored tensor `name` is only a part of it.
    fn whole(&self, _name: &str) -> Option<String> {
        None
    }

    /// Whether there is a tensor called `name`.
    fn contains(&self, name: &str) -> bool {
        self.names().contains(&name)
    }
}

/// Error of reading a checkpoint, or a tensor of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightError {
    /// The file system refused.
    #[error("cannot read {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A GGUF file is broken.
    #[error("{path} is not a readable GGUF file: {source}", path = path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// The defect.
        source: GgufError,
    },
    /// A safetensors file is broken.
    #[error("{path} is not a readable safetensors file: {source}", path = path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The defect.
        source: ::safetensors::SafeTensorError,
    },
    /// `model.safetensors.index.json` is not valid.
    #[error("{path} is not a readable shard index: {source}", path = path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// The defect.
        source: serde_json::Error,
    },
    /// The shard index names a file outside of the directory.
    #[error("{path} places tensor {tensor} in {shard:?}, which is not a plain file name", path = path.display())]
    ShardName {
        /// The index.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The file name in the index.
        shard: String,
    },
    /// The shard index places a tensor in a file that lacks it.
    #[error("the shard index places tensor {tensor} in {shard}, which lacks it", shard = shard.display())]
    NotInShard {
        /// The tensor.
        tensor: String,
        /// The shard.
        shard: PathBuf,
    },
    /// A directory has neither a single safetensors file nor an index.
    #[error(
        "{path} holds neither model.safetensors nor model.safetensors.index.json", path = path.display()
    )]
    NoWeights {
        /// The directory.
        path: PathBuf,
    },
    /// A directory has no weights in a supported format.
    #[error(
        "{path} holds neither model.safetensors nor model.safetensors.index.json nor a GGUF file{hint}",
        path = path.display(),
        hint = if *pickled { "; weights that PyTorch saved (.bin, .pt, .pth) are not read: convert them" } else { "" }
    )]
    NoModel {
        /// The directory.
        path: PathBuf,
        /// Whether the folder has weights in PyTorch's own format.
        pickled: bool,
    },
    /// A file is not GGUF, and its name tells its format.
    #[error("{path} is no GGUF file: {hint}", path = path.display())]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// Advice for the user.
        hint: &'static str,
    },
    /// A directory holds several models in GGUF.
    #[error(
        "{path} holds several models: name one of {files}", path = path.display(),
        files = files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    SeveralGguf {
        /// The directory.
        path: PathBuf,
        /// Model files in the directory.
        files: Vec<PathBuf>,
    },
    /// A required tensor is missing.
    #[error("{path} has no tensor {name}", path = path.display())]
    Missing {
        /// The name looked for.
        name: String,
        /// Role that needs the tensor.
        role: Role,
        /// The file or directory.
        path: PathBuf,
    },
    /// There are tensors that nothing reads.
    #[error("{path} has tensor {name}, which the model does not use{others}", path = path.display(), others = others(*count))]
    Extra {
        /// Name of the first unread tensor.
        name: String,
        /// Number of tensors.
        count: usize,
        /// The file or directory.
        path: PathBuf,
    },
    /// A tensor is stored in a type that is not implemented.
    #[error(
        "tensor {tensor} is stored as {dtype}, which is not implemented (implemented: {known})",
        known = Dtype::in_files().map(Dtype::name).collect::<Vec<_>>().join(", ")
    )]
    Dtype {
        /// The tensor.
        tensor: String,
        /// Name of the type.
        dtype: String,
    },
    /// A table is not stored as integers.
    #[error("tensor {tensor} is stored as {dtype}, not as integers of 32 or 64 bits")]
    Integers {
        /// The tensor.
        tensor: String,
        /// Name of the type.
        dtype: String,
    },
    /// A type that weights cannot be quantised to at load.
    #[error(
        "weights are not quantised to {dtype} at load, but to {targets}",
        targets = Dtype::TARGETS.map(|dtype| dtype.name().to_lowercase()).join(", ")
    )]
    Target {
        /// The type.
        dtype: Dtype,
    },
    /// A checkpoint has no matrix that could be quantised.
    #[error("{path} has no matrix to quantise to {dtype}: all are quantised already, or too narrow", path = path.display())]
    NothingToQuantize {
        /// The file or directory.
        path: PathBuf,
        /// The requested type.
        dtype: Dtype,
    },
    /// The tensors of a quantised matrix do not fit together.
    #[error("the quantised tensor {tensor} cannot be read: {reason}")]
    Quantized {
        /// The matrix.
        tensor: String,
        /// The defect.
        reason: String,
    },
    /// The `_blocks` and `_scales` of an MXFP4 tensor do not fit together.
    #[error(
        "MXFP4 tensor {tensor}: blocks {blocks:?} and scales {scales:?} do not fit, want [.., n, 16] and [.., n]"
    )]
    Mxfp4 {
        /// Name without the suffix.
        tensor: String,
        /// Shape of the blocks.
        blocks: Vec<usize>,
        /// Shape of the scales.
        scales: Vec<usize>,
    },
}

/// Returns the end of a message about the first of `count` tensors.
fn others(count: usize) -> String {
    if count > 1 { format!(", and {} more", count - 1) } else { String::new() }
}
