//! SentencePiece Unigram: the likeliest pieces of a text, from GGUF metadata (T5's kind) or `tokenizer.json`.

use tokenizers::{
    Error, SplitDelimiterBehavior,
    models::{ModelWrapper, unigram::Unigram},
    normalizers::{NormalizerWrapper, Prepend, Replace, Sequence, replace::ReplacePattern},
    pre_tokenizers::{
        PreTokenizerWrapper,
        sequence::Sequence as Steps,
        split::{Split, SplitPattern},
    },
};

use super::gguf_vocab::{token_type, token_types, vocab};
use super::sentencepiece::{BLANK, decoder, scores, unknown};
use super::{TokenizerError, charsmap::Charsmap};
use crate::Gguf;

const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// Maximum number of bytes of a token. The model stores tokens in a tree of this depth, and drops it recursively.
pub(super) const MAX_TOKEN: usize = 2048;

/// Creates everything but added tokens and the edges of a text.
///
/// Text after an added token begins like any other, as in llama.cpp; SentencePiece has no name for such cuts.
pub(super) fn tokenizer(file: &Gguf, tokens: &[String]) -> Result<tokenizers::Tokenizer, TokenizerError> {
    // Two tokens of the same text have no ids of their own.
    vocab(tokens)?;
    let build = |source| TokenizerError::Build { source };
    let types = token_types(file, tokens)?.unwrap_or_else(|| vec![token_type::NORMAL; tokens.len()]);
    let pieces = pieces(tokens, &types, scores(file, tokens)?)?;
    let unknown = unknown(file, tokens, &types)?;
    let model = Unigram::from(pieces, unknown, types.contains(&token_type::BYTE)).map_err(build)?;
    let mut inner = tokenizers::Tokenizer::new(model);
    let prefix = file.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(false);
    inner.with_normalizer(Some(normalizer(file, prefix)?)).map_err(build)?;
    inner.with_decoder(Some(decoder(prefix).map_err(build)?));
    let unused = tokens.iter().zip(&types).filter(|(_, kind)| **kind == token_type::UNUSED);
    keep_apart(&mut inner, unused.map(|(token, _)| literal(token)).collect()).map_err(build)?;
    Ok(inner)
}

/// Returns tokens with their scores. Since SentencePiece's score of unknown characters depends on the lowest score of normal
/// pieces, no other token may have a lower one.
fn pieces(tokens: &[String], types: &[i64], scores: &[f64]) -> Result<Vec<(String, f64)>, TokenizerError> {
    let normal = types.iter().zip(scores).filter(|(kind, _)| **kind == token_type::NORMAL);
    let lowest = normal.map(|(_, score)| *score).reduce(f64::min).unwrap_or(0.0);
    let piece = |((id, token), score): ((u32, &String), &f64)| match token.len() {
        0..=MAX_TOKEN => Ok((token.clone(), score.max(lowest))),
        bytes => Err(TokenizerError::LongToken { id, bytes }),
    };
    (0..).zip(tokens).zip(scores).map(piece).collect()
}

/// Returns the character map, if the file has one.
pub(super) fn charsmap(file: &Gguf) -> Result<Option<Charsmap>, TokenizerError> {
    let Some(map) = file.ints(CHARSMAP)?.filter(|map| !map.is_empty()) else { return Ok(None) };
    // Files have them as signed or as unsigned bytes.
    let bytes: Vec<u8> = map.iter().map(|byte| byte.to_le_bytes()[0]).collect();
    Charsmap::new(&bytes).map(Some)
}

/// Creates the steps of SentencePiece's normaliser after the character map: blanks, then the characters that represent them.
fn normalizer(file: &Gguf, prefix: bool) -> Result<Sequence, TokenizerError> {
    let build = |source| TokenizerError::Build { source };
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if file.bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false) {
        for (pattern, content) in [(r"\A +", ""), (" {2,}", " "), ("[ \u{2581}]+\\z", "")] {
            let pattern = ReplacePattern::Regex(pattern.to_owned());
            steps.push(Replace::new(pattern, content).map_err(build)?.into());
        }
    }
    if prefix {
        steps.push(Prepend::new(BLANK.to_owned()).into());
    }
    steps.push(Replace::new(" ", BLANK).map_err(build)?.into());
    Ok(Sequence::new(steps))
}

/// Splits text that spells control or byte tokens after its first character, for Unigram models, which have these tokens among
/// their pieces and would otherwise create them from text that [`as_text`](super::Tokenizer::as_text) or normalisation puts
/// there.
pub(super) fn keep_controls_apart(inner: &mut tokenizers::Tokenizer) -> Result<(), Error> {
    let ModelWrapper::Unigram(model) = inner.get_model() else { return Ok(()) };
    let bytes = model.byte_fallback().then(|| "<0x[0-9A-F]{2}>".to_owned());
    let added = inner.get_added_tokens_decoder();
    let special = added.values().filter(|token| token.special && !token.content.is_empty());
    let patterns = special.map(|token| literal(&token.content)).chain(bytes).collect();
    keep_apart(inner, patterns)
}

/// Adds steps that split matches of `patterns` after their first character.
fn keep_apart(inner: &mut tokenizers::Tokenizer, mut patterns: Vec<String>) -> Result<(), Error> {
    if patterns.is_empty() {
        return Ok(());
    }
    // The longest first: one may begin like another. And always in one order.
    patterns.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    let any = patterns.join("|");
    // In two steps, of which the first knows no bound on the length of a text and the second sees short pieces.
    let cuts = [any.clone(), format!(r"\A(?=(?:{any})\z)(?s:.)")];
    let mut steps: Vec<PreTokenizerWrapper> = inner.get_pre_tokenizer().cloned().into_iter().collect();
    for cut in cuts {
        steps.push(Split::new(SplitPattern::Regex(cut), SplitDelimiterBehavior::Isolated, false)?.into());
    }
    inner.with_pre_tokenizer(Some(Steps::new(steps)));
    Ok(())
}

/// Returns a regular expression that matches only `text`.
fn literal(text: &str) -> String {
    text.chars().map(|c| format!(r"\x{{{:X}}}", u32::from(c))).collect()
}
