//! Models from any source of weights.

mod quantized;

use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3Default;

pub use self::quantized::Quantized;
use crate::config::{embedding, sampling};
use crate::sampling::Sampling;
#[cfg(feature = "chat")]
use crate::{ChatError, ChatTemplate};
use crate::{
    ConfigError, DecoderConfig, Dtype, Embedding, Error, Gguf, LogitScore, RandomSpec, RandomWeights, Role,
    Safetensors, Tensor, WeightError, WeightSource, dequantize,
};
#[cfg(feature = "tokenizer")]
use crate::{Tokenizer, TokenizerError};

/// An open GGUF file or Hugging Face directory, or random weights.
#[derive(Debug)]
pub enum Checkpoint {
    /// A GGUF file, which holds weights, configuration, tokenizer and chat template.
    Gguf(Gguf),
    /// A directory with `config.json`, safetensors, and optionally `tokenizer.json`.
    Hf(Safetensors),
    /// Random weights, without tokenizer and chat template.
    Random(Box<RandomWeights>),
    /// Another checkpoint whose matrices are quantised when they are loaded.
    Quantized(Box<Quantized>),
}

impl Checkpoint {
    /// Opens `path`: a directory is read as Hugging Face's, or as the GGUF file in it if that is its only model; a file is read
    /// as GGUF.
    ///
    /// # Errors
    /// Those of [`Safetensors::open`] and [`Gguf::open`]; [`WeightError::SeveralGguf`] for a directory with several models in
    /// GGUF and none else, [`WeightError::NoModel`] for one without any; [`WeightError::OtherFormat`] for a file that says it is
    /// no GGUF file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightError> {
        let path = path.as_ref();
        if !path.is_dir() {
            return Gguf::open(path).map(Self::Gguf).map_err(|error| other_format(path).unwrap_or(error));
        }
        match Safetensors::open(path) {
            Err(WeightError::NoWeights { path }) => match only_gguf(&path)? {
                Some(file) => Gguf::open(file).map(Self::Gguf),
                None => Err(WeightError::NoModel { pickled: holds_pickled(&path)?, path }),
            },
            open => open.map(Self::Hf),
        }
    }

    /// A checkpoint of random weights.
    #[must_use]
    pub fn random(spec: RandomSpec) -> Self {
        Self::Random(Box::new(RandomWeights::new(spec)))
    }

    /// Returns the checkpoint with matrices in blocks of `to`, quantised on all processors when they are loaded. `config` is its
    /// [configuration](Self::config).
    ///
    /// Matrices of f32, f16 and bf16 are; those that are quantised already, norms, biases, routers, indexers, what mixes residual
    /// streams, and the projections from latents to heads stay as they are. As llama.cpp does, the output head, or an embedding
    /// that is one too, gets `Q6_K` at least, and rows that are no whole blocks of 256 get `Q5_0` for `Q4_K`, `Q5_1` for `Q5_K`
    /// and `Q8_0` for `Q6_K`; rows that are no whole blocks of 32 stay as they are.
    ///
    /// # Errors
    /// [`WeightError::Target`] for a type that is none of [`Dtype::TARGETS`]; [`WeightError::NothingToQuantize`] where no matrix
    /// is left to quantise.
    pub fn quantize(self, config: &DecoderConfig, to: Dtype) -> Result<Self, WeightError> {
        Ok(Self::Quantized(Box::new(Quantized::new(self, config, to)?)))
    }

    /// The tensors.
    pub fn weights(&self) -> &dyn WeightSource {
        match self {
            Self::Gguf(file) => file,
            Self::Hf(weights) => weights,
            Self::Random(weights) => &**weights,
            Self::Quantized(weights) => &**weights,
        }
    }

    /// Returns a tensor as it is stored, and the type that it is loaded as.
    ///
    /// # Errors
    /// Those of [`WeightSource::tensor`].
    pub fn stored(&self, role: Role) -> Result<(Tensor<'_>, Dtype), WeightError> {
        match self {
            Self::Quantized(quantized) => {
                let (tensor, dtype) = quantized.checkpoint.stored(role)?;
                let target = quantized.target(role, &tensor);
                Ok((tensor, target.unwrap_or(dtype)))
            }
            _ => {
                let tensor = self.weights().tensor(role)?;
                let dtype = tensor.dtype.loads_as();
                Ok((tensor, dtype))
            }
        }
    }

    /// The model's configuration.
    ///
    /// # Errors
    /// Those of [`DecoderConfig::from_gguf`] and [`DecoderConfig::from_hf_dir`].
    pub fn config(&self) -> Result<DecoderConfig, ConfigError> {
        match self {
            Self::Gguf(file) => DecoderConfig::from_gguf(file),
            Self::Hf(weights) => {
                let mut config = DecoderConfig::from_hf_dir(weights.path())?;
                // A model of embeddings draws no tokens that another head would change.
                config.tie_embeddings |= weights.is_headless();
                Ok(config)
            }
            Self::Random(weights) => Ok(weights.config().clone()),
            Self::Quantized(weights) => weights.checkpoint.config(),
        }
    }

    /// Sampling parameters that the checkpoint recommends: temperature, top-k, top-p, min-p and repetition penalty of
    /// `generation_config.json`, or of the keys `general.sampling` of GGUF, as far as they are in range. If it states at least
    /// one of them, the others change nothing; temperature is then 1. `None` if it states none.
    ///
    /// # Errors
    /// [`ConfigError::Io`] and [`ConfigError::Json`] if `generation_config.json` cannot be read, and values of another type.
    pub fn sampling(&self) -> Result<Option<Sampling>, ConfigError> {
        match self {
            Self::Gguf(file) => sampling::of_gguf(file),
            Self::Hf(weights) => sampling::of_hf_dir(weights.path()),
            Self::Random(_) => Ok(None),
            Self::Quantized(weights) => weights.checkpoint.sampling(),
        }
    }

    /// Pooling of embeddings, and the lengths that these can be cut to: from `modules.json`, the folder of its pooling and
    /// `config.json`, or from the key `pooling_type` of GGUF. If these state nothing, an embedding is the last token's hidden
    /// state.
    ///
    /// # Errors
    /// [`ConfigError::Unsupported`] for another pooling, and for further layers; those of [`sampling`](Self::sampling).
    pub fn embedding(&self) -> Result<Embedding, ConfigError> {
        match self {
            Self::Gguf(file) => embedding::of_gguf(file),
            Self::Hf(weights) => embedding::of_hf_dir(weights.path()),
            Self::Random(_) => Ok(embedding::unstated()),
            Self::Quantized(weights) => weights.checkpoint.embedding(),
        }
    }

    /// Tokens whose logits say how relevant a document is, if `modules.json` of Sentence Transformers says that the checkpoint is
    /// a reranker.
    ///
    /// # Errors
    /// [`ConfigError::Unsupported`] for further layers; those of [`sampling`](Self::sampling).
    pub fn logit_score(&self) -> Result<Option<LogitScore>, ConfigError> {
        match self {
            Self::Hf(weights) => embedding::logit_score(weights.path()),
            Self::Gguf(_) | Self::Random(_) => Ok(None),
            Self::Quantized(weights) => weights.checkpoint.logit_score(),
        }
    }

    /// Row `token` of the output head as it is stored, `[hidden_size]`: its product with the last hidden state is the token's
    /// logit, before the [factor](DecoderConfig::logit_scale) and the [softcap](DecoderConfig::logit_softcap). `None` if the head
    /// has fewer rows.
    ///
    /// # Errors
    /// Those of reading the head, and of [`config`](Self::config).
    pub fn head_row(&self, token: u32) -> Result<Option<Vec<f32>>, Error> {
        if let Self::Quantized(weights) = self {
            return weights.checkpoint.head_row(token);
        }
        let role = if self.config()?.tie_embeddings { Role::Embed } else { Role::LmHead };
        let head = self.weights().tensor(role)?;
        let (rows, columns) = (head.shape[0], head.shape[1..].iter().product());
        let (token, bytes) = (token as usize, head.data.len() / rows.max(1));
        if token >= rows {
            return Ok(None);
        }
        let mut row = vec![0.0; columns];
        dequantize(head.dtype, &head.data[token * bytes..][..bytes], &mut row);
        Ok(Some(row))
    }

    /// Returns a digest of everything that determines the model's keys and values: its weights and its configuration, or the spec
    /// of random ones. Reads the whole checkpoint, O(bytes).
    ///
    /// # Errors
    /// [`WeightError::Io`] when `config.json` cannot be read.
    pub fn fingerprint(&self) -> Result<u128, WeightError> {
        let mut digest = Xxh3Default::new();
        match self {
            Self::Gguf(file) => file.files().for_each(|bytes| digest.update(bytes)),
            Self::Hf(weights) => {
                let path = weights.path().join("config.json");
                digest.update(&std::fs::read(&path).map_err(|source| WeightError::Io { path, source })?);
                weights.shards().for_each(|shard| digest.update(shard));
            }
            Self::Random(weights) => digest.update(format!("{:?}", weights.spec()).as_bytes()),
            Self::Quantized(weights) => {
                digest.update(&weights.checkpoint.fingerprint()?.to_le_bytes());
                digest.update(weights.to.name().as_bytes());
            }
        }
        Ok(digest.digest128())
    }

    /// The tokenizer, or `None` if the checkpoint has none.
    ///
    /// # Errors
    /// Those of [`Tokenizer::from_gguf`] and [`Tokenizer::from_file`].
    #[cfg(feature = "tokenizer")]
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>, TokenizerError> {
        match self {
            Self::Gguf(file) if file.value("tokenizer.ggml.model").is_none() => Ok(None),
            Self::Gguf(file) => Tokenizer::from_gguf(file).map(Some),
            Self::Hf(weights) => {
                let path = weights.path().join("tokenizer.json");
                path.is_file().then(|| Tokenizer::from_file(path)).transpose()
            }
            Self::Random(_) => Ok(None),
            Self::Quantized(weights) => weights.checkpoint.tokenizer(),
        }
    }

    /// The chat template, or `None` if the checkpoint has none.
    ///
    /// # Errors
    /// Those of [`ChatTemplate::from_gguf`] and [`ChatTemplate::from_hf_dir`].
    #[cfg(feature = "chat")]
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, ChatError> {
        match self {
            Self::Gguf(file) => ChatTemplate::from_gguf(file),
            Self::Hf(weights) => ChatTemplate::from_hf_dir(weights.path()),
            Self::Random(_) => Ok(None),
            Self::Quantized(weights) => weights.checkpoint.chat_template(),
        }
    }
}

/// Returns the format of a file that is not GGUF, judging by its name.
fn other_format(path: &Path) -> Option<WeightError> {
    let hint = match path.extension().and_then(|end| end.to_str())? {
        "safetensors" => "name the folder that it is in, with its config.json",
        "json" => "name the folder that it is in",
        _ if is_pickled(path) => {
            "weights that PyTorch saved are not read: convert them to safetensors or GGUF"
        }
        _ => return None,
    };
    path.is_file().then(|| WeightError::OtherFormat { path: path.into(), hint })
}

/// Whether a file has the name of weights in PyTorch's own format, which can hold any program.
fn is_pickled(path: &Path) -> bool {
    path.extension().is_some_and(|end| ["bin", "pt", "pth", "ckpt"].iter().any(|known| end == *known))
}

fn holds_pickled(dir: &Path) -> Result<bool, WeightError> {
    let entries = std::fs::read_dir(dir).map_err(|source| WeightError::Io { path: dir.into(), source })?;
    Ok(entries.flatten().any(|entry| is_pickled(&entry.path())))
}

/// Returns the only GGUF model of a directory, if there is one: the first file if it is split. Image projectors are not models.
fn only_gguf(dir: &Path) -> Result<Option<PathBuf>, WeightError> {
    let io = |source| WeightError::Io { path: dir.into(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // NAME-00002-of-00003.gguf belongs to the first of its files.
        let later = name.rsplit_once("-of-").is_some_and(|(name, _)| {
            name.len() > 5 && name.is_char_boundary(name.len() - 5) && &name[name.len() - 5..] != "00001"
        });
        if name.ends_with(".gguf") && !name.starts_with("mmproj") && !later {
            files.push(path);
        }
    }
    files.sort();
    match files.len() {
        0 | 1 => Ok(files.pop()),
        _ => Err(WeightError::SeveralGguf { path: dir.into(), files }),
    }
}
