//! Metadata of GGUF files: keys `ARCHITECTURE.something`, and facts implied by the tensor table.

mod keys;
mod layers;
mod plain;
mod rope;

use self::keys::missing;
pub(super) use self::{
    keys::Keys,
    layers::{set_experts, windows},
    plain::Plain,
};
use super::family;
use super::{ConfigError, DecoderConfig};
use crate::Gguf;

impl DecoderConfig {
    /// Reads the metadata and the tensor table of an open file.
    ///
    /// # Errors
    /// Any [`ConfigError`] except `Io` and `Json`.
    pub fn from_gguf(file: &Gguf) -> Result<Self, ConfigError> {
        let arch = file.str("general.architecture")?.ok_or_else(|| missing("general.architecture"))?;
        let (keys, family) = (Keys { file, arch }, family::Gguf::find(arch)?);
        keys.refuse_unimplemented(family.reads)?;
        (family.read)(&keys)?.validate()
    }
}
