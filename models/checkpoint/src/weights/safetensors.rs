//! Hugging Face checkpoints: one `model.safetensors`, or shards named by `model.safetensors.index.json`.

mod quantized;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
};

use safetensors::{Dtype as StDtype, SafeTensors};

pub use quantized::{Quantization, UnknownQuantization};

use super::{Dtype, IntegerTensor, Naming, Tensor, WeightError, WeightSource, mmap::Bytes};
use quantized::Parts;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The open safetensors files of a checkpoint.
///
/// A model that also sees or hears shows the tensors of its text model alone, by the names that a text model gives them.
///
/// gpt-oss stores an MXFP4 weight as two `U8` tensors, `NAME_blocks` `[.., n, 16]` and `NAME_scales` `[.., n]`.
/// [`get`](WeightSource::get) of `NAME` gives one [`Dtype::MXFP4`] tensor `[.., 32 n]` in ggml's block layout; it is
/// repacked on each call. It is `[experts, out, in]`, while the same weight in BF16 is stored `[experts, in, out]`.
#[derive(Debug)]
pub struct Safetensors {
    path: PathBuf,
    quantization: Quantization,
    shards: Vec<Bytes>,
    tensors: BTreeMap<String, Entry>,
    headless: bool,
}

/// A tensor as it is stored.
#[derive(Clone, Copy)]
pub(super) struct Stored<'a> {
    pub(super) dtype: StDtype,
    pub(super) shape: &'a [usize],
    pub(super) data: &'a [u8],
}

impl Stored<'_> {
    /// All elements as f32, if they are plain floats or powers of two; `None` otherwise.
    pub(super) fn to_f32(self) -> Option<Vec<f32>> {
        if self.dtype == StDtype::F8_E8M0 {
            return Some(self.data.iter().map(|e| super::dequant::e8m0(*e)).collect());
        }
        let mut out = vec![0.0; self.shape.iter().product()];
        super::dequantize(plain(self.dtype)?, self.data, &mut out);
        Some(out)
    }

    /// All elements as i64, if they are integers; `None` otherwise.
    pub(super) fn to_i64(self) -> Option<Vec<i64>> {
        match self.dtype {
            StDtype::I64 => Some(self.data.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect()),
            StDtype::I32 => {
                Some(self.data.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect())
            }
            _ => None,
        }
    }
}

/// The storage type, if it is one of plain floats; `None` otherwise.
fn plain(dtype: StDtype) -> Option<Dtype> {
    match dtype {
        StDtype::F32 => Some(Dtype::F32),
        StDtype::F16 => Some(Dtype::F16),
        StDtype::BF16 => Some(Dtype::BF16),
        _ => None,
    }
}

#[derive(Debug)]
struct Entry {
    shard: usize,
    dtype: StDtype,
    shape: Vec<usize>,
    range: Range<usize>,
}

#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Safetensors {
    /// Contents of each file, in the order of the shard index.
    pub(crate) fn shards(&self) -> impl Iterator<Item = &[u8]> {
        self.shards.iter().map(|shard| &shard[..])
    }

    /// Maps the weights of `path`: a `.safetensors` file, or a directory with a single such file or a shard index.
    ///
    /// # Errors
    /// Any [`WeightError`] except those of single tensors.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightError> {
        let path = path.as_ref();
        let mut open = Self::empty(path);
        open.read_quantization();
        if !path.is_dir() {
            open.add_shard(path)?;
        } else if path.join(INDEX).is_file() {
            open.add_index(&path.join(INDEX))?;
        } else if path.join(SINGLE).is_file() {
            open.add_shard(&path.join(SINGLE))?;
        } else {
            return Err(WeightError::NoWeights { path: path.into() });
        }
        open.headless = open.tensors.contains_key("embed_tokens.weight");
        if open.headless {
            let named = |(name, entry)| (format!("model.{name}"), entry);
            open.tensors = std::mem::take(&mut open.tensors).into_iter().map(named).collect();
        }
        Ok(open)
    }

    /// Whether the decoder was saved by itself, without its output head, as embedding models are. The names of its tensors
    /// then lack a prefix, which [`open`](Self::open) adds.
    pub(crate) fn is_headless(&self) -> bool {
        self.headless
    }

    /// Reads a file that is already in memory.
    ///
    /// # Errors
    /// [`WeightError::Safetensors`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, WeightError> {
        let path = PathBuf::from("<memory>");
        let mut open = Self::empty(&path);
        open.add(Bytes::Owned(bytes), &path)?;
        Ok(open)
    }

    fn add_index(&mut self, path: &Path) -> Result<(), WeightError> {
        let text = std::fs::read(path).map_err(|source| WeightError::Io { path: path.into(), source })?;
        let Index { weight_map } = serde_json::from_slice(&text)
            .map_err(|source| WeightError::Index { path: path.into(), source })?;
        let mut files = BTreeMap::new();
        for (tensor, shard) in &weight_map {
            let plain = Path::new(shard).file_name().is_some_and(|name| name == shard.as_str());
            if !plain {
                let (tensor, shard) = (tensor.clone(), shard.clone());
                return Err(WeightError::ShardName { path: path.into(), tensor, shard });
            }
            files.entry(shard).or_insert(tensor);
        }
        for shard in files.into_keys() {
            self.add_shard(&self.path.join(shard))?;
        }
        let missing =
            |name: &&String| of_text((*name).clone()).is_some_and(|name| !self.tensors.contains_key(&name));
        match weight_map.keys().find(missing) {
            Some(name) => {
                let shard = self.path.join(&weight_map[name]);
                Err(WeightError::NotInShard { tensor: name.clone(), shard })
            }
            None => Ok(()),
        }
    }

    fn add_shard(&mut self, path: &Path) -> Result<(), WeightError> {
        self.add(Bytes::map(path)?, path)
    }

    fn add(&mut self, bytes: Bytes, path: &Path) -> Result<(), WeightError> {
        let (header, metadata) = SafeTensors::read_metadata(&bytes)
            .map_err(|source| WeightError::Safetensors { path: path.into(), source })?;
        // The data follows the header, which follows its own length in 8 bytes.
        let data_start = header + 8;
        for (name, info) in metadata.tensors() {
            let range = data_start + info.data_offsets.0..data_start + info.data_offsets.1;
            let entry =
                Entry { shard: self.shards.len(), dtype: info.dtype, shape: info.shape.clone(), range };
            if let Some(name) = of_text(name) {
                self.tensors.insert(name, entry);
            }
        }
        self.shards.push(bytes);
        Ok(())
    }

    fn empty(path: &Path) -> Self {
        let (path, quantization) = (path.into(), Quantization::None);
        Self { path, quantization, shards: Vec::new(), tensors: BTreeMap::new(), headless: false }
    }

    /// Reads the `quantization_config` of a folder's `config.json`, if there is such a file.
    /// [`DecoderConfig::from_hf_dir`](crate::DecoderConfig::from_hf_dir) rejects unsupported values.
    fn read_quantization(&mut self) {
        let text = std::fs::read(self.path.join("config.json")).unwrap_or_default();
        let config: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        let section = [&config["quantization_config"], &config["text_config"]["quantization_config"]];
        let section = section.into_iter().find(|section| !section.is_null());
        let read = section.and_then(|section| Quantization::read(section).ok());
        self.quantization = read.unwrap_or_default();
    }

    pub(super) fn stored(&self, name: &str) -> Option<Stored<'_>> {
        let entry = self.tensors.get(name)?;
        Some(Stored { dtype: entry.dtype, shape: &entry.shape, data: self.bytes(entry) })
    }

    /// Returns the tensor `name` if it is stored in parts; `None` otherwise.
    fn in_parts(&self, name: &str) -> Result<Option<Tensor<'_>>, WeightError> {
        let parts = Parts { quantization: self.quantization, file: self };
        match parts.packed(name)? {
            Some(tensor) => Ok(Some(tensor)),
            None => self.mxfp4(name),
        }
    }

    fn bytes(&self, entry: &Entry) -> &[u8] {
        &self.shards[entry.shard][entry.range.clone()]
    }

    /// The MXFP4 tensor stored as `name_blocks` and `name_scales`; `None` unless both exist and hold bytes.
    fn mxfp4(&self, name: &str) -> Result<Option<Tensor<'_>>, WeightError> {
        let part = |suffix| self.tensors.get(&format!("{name}{suffix}")).filter(|e| e.dtype == StDtype::U8);
        let (Some(blocks), Some(scales)) = (part("_blocks"), part("_scales")) else { return Ok(None) };
        let mut shape = scales.shape.clone();
        let fits = blocks.shape.split_last().is_some_and(|(&bytes, rest)| bytes == 16 && rest == shape);
        let row = shape.last().and_then(|n| n.checked_mul(Dtype::MXFP4.block_elems())).filter(|_| fits);
        let Some(row) = row else {
            let (blocks, scales) = (blocks.shape.clone(), scales.shape.clone());
            return Err(WeightError::Mxfp4 { tensor: name.to_owned(), blocks, scales });
        };
        *shape.last_mut().expect("it has the extent that was multiplied") = row;
        let data = quantized::mxfp4_blocks(self.bytes(blocks), self.bytes(scales));
        Ok(Some(Tensor {
            name: Cow::Owned(name.to_owned()),
            dtype: Dtype::MXFP4,
            shape,
            data: Cow::Owned(data),
        }))
    }
}

/// Returns the name of a tensor in a checkpoint of the text model alone, or `None` if it belongs to vision, audio or their
/// projectors.
fn of_text(name: String) -> Option<String> {
    const OTHERS: [&str; 5] =
        ["vision_tower.", "vision_model.", "multi_modal_projector.", "audio_tower.", "embed_vision."];
    let inner = name.strip_prefix("model.").unwrap_or(&name);
    if OTHERS.iter().any(|part| inner.starts_with(part)) {
        return None;
    }
    match (name.strip_prefix("language_model."), inner.strip_prefix("language_model.")) {
        (Some(name), _) => Some(name.to_owned()),
        (None, Some(name)) => Some(format!("model.{name}")),
        (None, None) => Some(name),
    }
}

impl WeightSource for Safetensors {
    fn path(&self) -> &Path {
        &self.path
    }

    fn naming(&self) -> Naming {
        Naming::Hf
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    fn get(&self, name: &str) -> Result<Option<Tensor<'_>>, WeightError> {
        let Some((name, entry)) = self.tensors.get_key_value(name) else { return self.in_parts(name) };
        let Some(dtype) = plain(entry.dtype) else {
            let codes = self.stored(name).expect("it was found");
            let parts = Parts { quantization: self.quantization, file: self };
            let (tensor, dtype) = (name.clone(), entry.dtype.to_string());
            let scaled = parts.scaled(name, codes)?;
            return scaled.map(Some).ok_or(WeightError::Dtype { tensor, dtype });
        };
        Ok(Some(Tensor {
            name: Cow::Borrowed(name),
            dtype,
            shape: entry.shape.clone(),
            data: Cow::Borrowed(self.bytes(entry)),
        }))
    }

    fn get_integers(&self, name: &str) -> Result<Option<IntegerTensor>, WeightError> {
        let Some(entry) = self.tensors.get(name) else { return Ok(None) };
        let stored = Stored { dtype: entry.dtype, shape: &entry.shape, data: self.bytes(entry) };
        let (tensor, dtype) = (name.to_owned(), entry.dtype.to_string());
        let values = stored.to_i64().ok_or(WeightError::Integers { tensor, dtype })?;
        Ok(Some(IntegerTensor { name: name.to_owned(), shape: entry.shape.clone(), values }))
    }

    fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
            || ["_blocks", "_scales"].iter().all(|s| self.tensors.contains_key(&format!("{name}{s}")))
            || quantized::in_parts(name, |part| self.tensors.contains_key(part))
    }

    fn whole(&self, name: &str) -> Option<String> {
        quantized::whole(name)
    }
}
