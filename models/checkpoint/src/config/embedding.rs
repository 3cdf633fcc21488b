//! The way from hidden states to an embedding or to the relevance of a document, as a checkpoint states it.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ConfigError;
use super::read::read;
use crate::Gguf;

/// Pooling of the hidden states of tokens to one embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The hidden state of the last token.
    Last,
    /// The mean over all tokens.
    Mean,
}

impl Pooling {
    /// The pooling in one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Mean => "mean",
        }
    }
}

/// Embeddings of a checkpoint: their pooling, and the lengths that they can be cut to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Embedding {
    /// Pooling of the hidden states.
    pub pooling: Pooling,
    /// Lengths that the model was trained for.
    pub lengths: Lengths,
    /// Whether the checkpoint states its pooling. Angles between embeddings of a model that was not trained for them say little.
    pub stated: bool,
}

/// Tokens whose logits after a query and a document say how relevant the document is: `LogitScore` of Sentence Transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct LogitScore {
    /// Token that says that the document is relevant, such as "yes".
    #[serde(rename = "true_token_id")]
    pub relevant: u32,
    /// Token that says that the document is not relevant, such as "no". Without it, the score is the logit of the
    /// `relevant` token.
    #[serde(default, rename = "false_token_id")]
    pub irrelevant: Option<u32>,
}

/// Lengths to which embeddings may be cut: the leading parts are embeddings too, by Matryoshka representation
/// learning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lengths {
    /// The full length alone.
    Whole,
    /// The listed lengths, in elements.
    Listed(Vec<u32>),
    /// Any length.
    Any,
}

/// A module of a Sentence Transformers pipeline.
#[derive(Deserialize)]
struct Module {
    path: String,
    #[serde(rename = "type")]
    class: String,
}

impl Module {
    /// Name of the module's class, without the Python modules that contain the class.
    fn class(&self) -> &str {
        self.class.rsplit('.').next().unwrap_or_default()
    }

    /// Folder of the module's configuration. The path comes from the checkpoint, and must not lead out of the
    /// checkpoint's folder.
    fn folder(&self) -> Result<String, ConfigError> {
        let stays = Path::new(&self.path).file_name().is_some_and(|name| name == self.path.as_str());
        if stays { Ok(self.path.clone()) } else { Err(self.unsupported()) }
    }

    fn unsupported(&self) -> ConfigError {
        ConfigError::Unsupported { field: "modules.json".into(), value: self.class.clone() }
    }
}

/// Fields of `config.json`.
#[derive(Default, Deserialize)]
struct Matryoshka {
    #[serde(default)]
    is_matryoshka: Option<bool>,
    #[serde(default)]
    matryoshka_dimensions: Option<Vec<u32>>,
}

/// Reads the embeddings of a folder from `config.json` and from the files of Sentence Transformers. Without these
/// files, an embedding is the last token's hidden state.
pub(crate) fn of_hf_dir(dir: &Path) -> Result<Embedding, ConfigError> {
    let Matryoshka { is_matryoshka, matryoshka_dimensions } = json(dir, "config.json")?.unwrap_or_default();
    let lengths = match matryoshka_dimensions.filter(|lengths| !lengths.is_empty()) {
        Some(lengths) => Lengths::Listed(lengths),
        None if is_matryoshka.unwrap_or(false) => Lengths::Any,
        None => Lengths::Whole,
    };
    let mut folder = "1_Pooling".to_owned();
    for module in modules(dir)? {
        match module.class() {
            "Transformer" | "Normalize" => {}
            "Pooling" => folder = module.folder()?,
            _ => return Err(module.unsupported()),
        }
    }
    let name = format!("{folder}/config.json");
    let fields = json::<BTreeMap<String, Value>>(dir, &name)?;
    let stated = fields.is_some();
    let pooling = fields.map_or(Ok(Pooling::Last), |fields| of_fields(&name, &fields))?;
    Ok(Embedding { pooling, lengths, stated })
}

/// Reads the tokens of a reranker from the module `LogitScore`; `None` if `modules.json` has no such module.
pub(crate) fn logit_score(dir: &Path) -> Result<Option<LogitScore>, ConfigError> {
    let modules = modules(dir)?;
    let Some(score) = modules.iter().find(|module| module.class() == "LogitScore") else { return Ok(None) };
    let known = |module: &&Module| ["Transformer", "LogitScore"].contains(&module.class());
    if let Some(other) = modules.iter().find(|module| !known(module)) {
        return Err(other.unsupported());
    }
    Ok(Some(serde_json::from_str(&read(dir, &format!("{}/config.json", score.folder()?))?)?))
}

/// Reads the modules of the Sentence Transformers pipeline; empty without `modules.json`.
fn modules(dir: &Path) -> Result<Vec<Module>, ConfigError> {
    Ok(json(dir, "modules.json")?.unwrap_or_default())
}

/// Reads the pooling from the fields of a module: the field `pooling_mode`, or several flags, one of which is true.
fn of_fields(name: &str, fields: &BTreeMap<String, Value>) -> Result<Pooling, ConfigError> {
    let set = fields.iter().filter(|(_, value)| **value == Value::Bool(true));
    let mut modes: Vec<&str> = set.filter_map(|(key, _)| key.strip_prefix("pooling_mode_")).collect();
    modes.extend(fields.get("pooling_mode").and_then(Value::as_str));
    match modes[..] {
        ["lasttoken"] => Ok(Pooling::Last),
        ["mean_tokens" | "mean"] => Ok(Pooling::Mean),
        _ => {
            let field = format!("{name}: pooling_mode");
            Err(ConfigError::Unsupported { field, value: modes.join(", ") })
        }
    }
}

/// Reads the embeddings of a GGUF file from `pooling_type`. Without this key, an embedding is the last token's hidden
/// state.
pub(crate) fn of_gguf(file: &Gguf) -> Result<Embedding, ConfigError> {
    let key = format!("{}.pooling_type", file.str("general.architecture")?.unwrap_or_default());
    let kind = file.u32(&key)?;
    let pooling = match kind {
        // Without pooling, and by the last token.
        None | Some(0 | 3) => Pooling::Last,
        Some(1) => Pooling::Mean,
        Some(2) => return Err(ConfigError::Unsupported { field: key, value: "2 (the first token)".into() }),
        Some(4) => {
            return Err(ConfigError::Unsupported { field: key, value: "4 (ranks of documents)".into() });
        }
        Some(other) => return Err(ConfigError::Unsupported { field: key, value: other.to_string() }),
    };
    Ok(Embedding { pooling, lengths: Lengths::Whole, stated: kind.is_some_and(|kind| kind != 0) })
}

/// Embeddings of a checkpoint that does not state its pooling.
pub(crate) const fn unstated() -> Embedding {
    Embedding { pooling: Pooling::Last, lengths: Lengths::Whole, stated: false }
}

/// A JSON file of a folder, `None` if it is missing.
fn json<T: DeserializeOwned>(dir: &Path, name: &str) -> Result<Option<T>, ConfigError> {
    match read(dir, name) {
        Err(ConfigError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        text => Ok(Some(serde_json::from_str(&text?)?)),
    }
}
