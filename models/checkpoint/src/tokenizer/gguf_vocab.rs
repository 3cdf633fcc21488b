//! Vocabulary of a GGUF file: the tokens and their types, in whatever kind of tokenizer.

use tokenizers::models::bpe::Vocab;

use super::TokenizerError;
use crate::Gguf;

/// Values of `tokenizer.ggml.token_type`.
pub(super) mod token_type {
    pub(in crate::tokenizer) const NORMAL: i64 = 1;
    pub(in crate::tokenizer) const UNKNOWN: i64 = 2;
    pub(in crate::tokenizer) const CONTROL: i64 = 3;
    pub(in crate::tokenizer) const USER_DEFINED: i64 = 4;
    pub(in crate::tokenizer) const UNUSED: i64 = 5;
    pub(in crate::tokenizer) const BYTE: i64 = 6;
}

/// Returns the ids of tokens by their texts.
pub(super) fn vocab(tokens: &[String]) -> Result<Vocab, TokenizerError> {
    let mut vocab = Vocab::with_capacity(tokens.len());
    for (id, token) in (0..).zip(tokens) {
        if let Some(first) = vocab.insert(token.clone(), id) {
            return Err(TokenizerError::DuplicateToken { first, second: id, text: token.clone() });
        }
    }
    Ok(vocab)
}

/// Returns the type of each token, if the file states it.
pub(super) fn token_types(file: &Gguf, tokens: &[String]) -> Result<Option<Vec<i64>>, TokenizerError> {
    match file.ints("tokenizer.ggml.token_type")? {
        Some(types) if types.len() != tokens.len() => {
            Err(TokenizerError::TokenTypes { types: types.len(), tokens: tokens.len() })
        }
        types => Ok(types),
    }
}
