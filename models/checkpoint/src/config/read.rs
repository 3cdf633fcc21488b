//! Reads a configuration in the format of its checkpoint, by the family that the checkpoint names.

use std::path::Path;

use serde_json::Map;

use super::family;
use super::gguf::{self, Keys};
use super::hf::{self, Fields};
use super::{ConfigError, DecoderConfig};
use crate::Gguf;

impl DecoderConfig {
    /// Reads `config.json` of `dir`, and `generation_config.json` if it is there.
    ///
    /// # Errors
    /// Any [`ConfigError`] except those of GGUF.
    pub fn from_hf_dir(dir: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let generation = generation_config(dir.as_ref())?;
        Self::from_hf_json(&read(dir.as_ref(), "config.json")?, generation.as_deref())
    }

    /// Reads the text of `config.json` and, if it exists, of `generation_config.json`.
    ///
    /// # Errors
    /// Any [`ConfigError`] except `Io` and those of GGUF.
    pub fn from_hf_json(config: &str, generation_config: Option<&str>) -> Result<Self, ConfigError> {
        let config = hf::text(Fields(serde_json::from_str(config)?))?;
        let generation = Fields(generation_config.map_or(Ok(Map::new()), serde_json::from_str)?);
        let found = config.str("model_type")?.ok_or(ConfigError::Missing { field: "model_type" })?;
        let family = family::Hf::find(found)?;
        hf::refuse_unimplemented(&config, family.reads)?;
        hf::refuse_quantization(&config)?;
        let mut decoder = (family.read)(&config)?;
        decoder.eos_ids = match generation.ids("eos_token_id")? {
            ids if ids.is_empty() => config.ids("eos_token_id")?,
            ids => ids,
        };
        decoder.bos_id = config.ids("bos_token_id")?.first().copied();
        decoder.validate()
    }

    /// Reads the metadata and the tensor table of an open file.
    ///
    /// # Errors
    /// Any [`ConfigError`] except `Io` and `Json`.
    pub fn from_gguf(file: &Gguf) -> Result<Self, ConfigError> {
        let arch = file.str("general.architecture")?.ok_or_else(|| gguf::missing("general.architecture"))?;
        let (keys, family) = (Keys { file, arch }, family::Gguf::find(arch)?);
        keys.refuse_unimplemented(family.reads)?;
        (family.read)(&keys)?.validate()
    }
}

/// Text of `generation_config.json` in a folder, `None` if it is missing.
pub(super) fn generation_config(dir: &Path) -> Result<Option<String>, ConfigError> {
    match read(dir, "generation_config.json") {
        Err(ConfigError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

pub(super) fn read(dir: &Path, name: &str) -> Result<String, ConfigError> {
    let path = dir.join(name);
    std::fs::read_to_string(&path).map_err(|source| ConfigError::Io { path, source })
}
