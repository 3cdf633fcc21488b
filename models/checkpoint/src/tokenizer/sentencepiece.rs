//! SentencePiece BPE from GGUF metadata: Llama 2, Mistral 7B, Phi 3, Gemma.
//!
//! SentencePiece merges the neighbours whose union has the highest score. BPE with merges in the order of these scores does the
//! same, so the merges are made of the vocabulary: every token that is two others, joined.

use std::collections::HashMap;

use tokenizers::{
    decoders::{DecoderWrapper, byte_fallback::ByteFallback, fuse::Fuse, sequence::Sequence, strip::Strip},
    models::bpe::BPE,
    normalizers::{NormalizerWrapper, Prepend, Replace, Sequence as Normalizers},
};

use super::TokenizerError;
use super::gguf_vocab::{token_type, token_types, vocab};
use crate::{Gguf, GgufError};

/// Character that represents a blank in tokens.
pub(super) const BLANK: &str = "\u{2581}";

const SCORES: &str = "tokenizer.ggml.scores";

/// Creates the tokenizer without added tokens, and without the tokens at the edges of a text.
pub(super) fn tokenizer(file: &Gguf, tokens: &[String]) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let scores = scores(file, tokens)?;
    let types = token_types(file, tokens)?.unwrap_or_else(|| vec![token_type::NORMAL; tokens.len()]);
    let normal = |id: &usize| types[*id] == token_type::NORMAL;
    let words: Vec<(&str, f64)> =
        (0..tokens.len()).filter(normal).map(|id| (tokens[id].as_str(), scores[id])).collect();
    let build = |source| TokenizerError::Build { source };
    let mut bpe = BPE::builder()
        .vocab_and_merges(vocab(tokens)?, merges(&words))
        .byte_fallback(types.contains(&token_type::BYTE))
        .fuse_unk(true);
    if let Some(id) = unknown(file, tokens, &types)? {
        bpe = bpe.unk_token(tokens[id].clone());
    }
    let mut inner = tokenizers::Tokenizer::new(bpe.build().map_err(build)?);
    let prefix = file.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
    if prefix {
        normalizers.push(Prepend::new(BLANK.to_owned()).into());
    }
    normalizers.push(Replace::new(" ", BLANK).map_err(build)?.into());
    inner.with_normalizer(Some(Normalizers::new(normalizers))).map_err(build)?;
    inner.with_decoder(Some(decoder(prefix).map_err(build)?));
    Ok(inner)
}

/// Returns the score of each token.
pub(super) fn scores<'f>(file: &'f Gguf, tokens: &[String]) -> Result<&'f [f64], TokenizerError> {
    let scores = file.floats(SCORES)?.ok_or_else(|| GgufError::MissingKey { key: SCORES.to_owned() })?;
    match scores.len() == tokens.len() {
        true => Ok(scores),
        false => Err(TokenizerError::Scores { scores: scores.len(), tokens: tokens.len() }),
    }
}

/// Returns the token for unknown characters: the token of type "unknown", or the token that a key names.
pub(super) fn unknown(
    file: &Gguf,
    tokens: &[String],
    types: &[i64],
) -> Result<Option<usize>, TokenizerError> {
    if let Some(id) = types.iter().position(|kind| *kind == token_type::UNKNOWN) {
        return Ok(Some(id));
    }
    let id = file.u32("tokenizer.ggml.unknown_token_id")?.map(|id| id as usize);
    Ok(id.filter(|id| *id < tokens.len()))
}

/// Creates the decoder; `prefix` says that texts are encoded with a leading blank, which is removed again.
pub(super) fn decoder(prefix: bool) -> Result<Sequence, tokenizers::Error> {
    let mut steps: Vec<DecoderWrapper> =
        vec![Replace::new(BLANK, " ")?.into(), ByteFallback::new().into(), Fuse::new().into()];
    if prefix {
        steps.push(Strip::new(' ', 1, 0).into());
    }
    Ok(Sequence::new(steps))
}

/// Returns pairs of tokens that merge to a token, by falling score. O(characters of the vocabulary).
fn merges(words: &[(&str, f64)]) -> Vec<(String, String)> {
    let ids: HashMap<&str, usize> = words.iter().enumerate().map(|(id, (word, _))| (*word, id)).collect();
    let mut merges: Vec<(f64, &str, &str)> = Vec::new();
    for (word, score) in words {
        let first = merges.len();
        for (at, _) in word.char_indices().skip(1) {
            let (left, right) = word.split_at(at);
            if ids.contains_key(left) && ids.contains_key(right) {
                merges.push((*score, left, right));
            }
        }
        merges[first..].sort_by_key(|(_, left, right)| (ids[left], ids[right]));
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0));
    merges.into_iter().map(|(_, left, right)| (left.to_owned(), right.to_owned())).collect()
}
