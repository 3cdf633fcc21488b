//! Hugging Face checkpoints: one `model.safetensors`, or shards named by `model.safetensors.index.json`.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
};

use safetensors::{Dtype as StDtype, SafeTensors};

use super::{Dtype, IntegerTensor, Naming, Tensor, WeightError, WeightSource, mmap::Bytes};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The open safetensors files of a checkpoint.
///
/// Of models that see or hear too it has the tensors of the text model, by the names they have in a model of text alone.
///
/// gpt-oss stores an MXFP4 weight as two `U8` tensors, `NAME_blocks` `[.., n, 16]` and `NAME_scales` `[.., n]`.
/// [`get`](WeightSource::get) of `NAME` gives one [`Dtype::MXFP4`] tensor `[.., 32 n]` in ggml's block layout; it is
/// repacked on each call. It is `[experts, out, in]`, while the same weight in BF16 is stored `[experts, in, out]`.
#[derive(Debug)]
pub struct Safetensors {
    path: PathBuf,
    shards: Vec<Bytes>,
    tensors: BTreeMap<String, Entry>,
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
    /// The files, whole, in the order of the shard index.
    pub(crate) fn shards(&self) -> impl Iterator<Item = &[u8]> {
        self.shards.iter().map(|shard| &shard[..])
    }

    /// Maps the weights of `path`: a `.safetensors` file, or a directory that holds one or a shard index.
    ///
    /// # Errors
    /// Any [`WeightError`] except those of single tensors.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightError> {
        let path = path.as_ref();
        let mut open = Self { path: path.into(), shards: Vec::new(), tensors: BTreeMap::new() };
        if !path.is_dir() {
            open.add_shard(path)?;
        } else if path.join(INDEX).is_file() {
            open.add_index(&path.join(INDEX))?;
        } else if path.join(SINGLE).is_file() {
            open.add_shard(&path.join(SINGLE))?;
        } else {
            return Err(WeightError::NoWeights { path: path.into() });
        }
        Ok(open)
    }

    /// Reads a file that is already in memory.
    ///
    /// # Errors
    /// [`WeightError::Safetensors`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, WeightError> {
        let path = PathBuf::from("<memory>");
        let mut open = Self { path: path.clone(), shards: Vec::new(), tensors: BTreeMap::new() };
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

    fn bytes(&self, entry: &Entry) -> &[u8] {
        &self.shards[entry.shard][entry.range.clone()]
    }

    /// The MXFP4 tensor stored as `name_blocks` and `name_scales`, if both are there as bytes.
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
        let data = repack_mxfp4(self.bytes(blocks), self.bytes(scales));
        Ok(Some(Tensor {
            name: Cow::Owned(name.to_owned()),
            dtype: Dtype::MXFP4,
            shape,
            data: Cow::Owned(data),
        }))
    }
}

/// The name of a tensor in a checkpoint of its text model alone, or `None` if it belongs to another part of the model: eyes, ears,
/// and what leads from them to the text.
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

/// Interleaves scales and blocks, and moves nibbles: a byte of gpt-oss holds neighbours `2j, 2j + 1`, one of ggml
/// `j, j + 16`.
fn repack_mxfp4(blocks: &[u8], scales: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(blocks.len() + scales.len());
    for (block, scale) in blocks.chunks_exact(16).zip(scales) {
        let nibble = |i: usize| (block[i / 2] >> (4 * (i % 2))) & 0xF;
        out.push(*scale);
        out.extend((0..16).map(|j| nibble(j) | (nibble(j + 16) << 4)));
    }
    out
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
        let Some((name, entry)) = self.tensors.get_key_value(name) else { return self.mxfp4(name) };
        let dtype = match entry.dtype {
            StDtype::F32 => Dtype::F32,
            StDtype::F16 => Dtype::F16,
            StDtype::BF16 => Dtype::BF16,
            other => return Err(WeightError::Dtype { tensor: name.clone(), dtype: other.to_string() }),
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
        let bytes = self.bytes(entry);
        let values = match entry.dtype {
            StDtype::I64 => bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
            StDtype::I32 => bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect(),
            other => {
                let (tensor, dtype) = (name.to_owned(), other.to_string());
                return Err(WeightError::Integers { tensor, dtype });
            }
        };
        Ok(Some(IntegerTensor { name: name.to_owned(), shape: entry.shape.clone(), values }))
    }

    fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
            || ["_blocks", "_scales"].iter().all(|s| self.tensors.contains_key(&format!("{name}{s}")))
    }
}
