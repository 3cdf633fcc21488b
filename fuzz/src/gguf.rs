//! GGUF files: header, tensors, tokenizer, chat template and configuration.

use models::{ChatTemplate, DecoderConfig, Gguf, Tokenizer, WeightSource as _};

use super::config::use_sizes;

/// Reads all that a file has.
pub fn run(bytes: &[u8]) -> bool {
    let Ok(file) = Gguf::from_bytes(bytes.to_vec()) else { return false };
    for tensor in file.tensors() {
        let _ = file.get(&tensor.name);
    }
    let tokenizer = Tokenizer::from_gguf(&file);
    let _ = tokenizer.map(|tokenizer| tokenizer.encode("a text", true));
    let _ = ChatTemplate::from_gguf(&file);
    DecoderConfig::from_gguf(&file).inspect(use_sizes).is_ok()
}
