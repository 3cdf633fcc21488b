//! Byte-level BPE from GGUF metadata.
//!
//! GGUF stores vocabulary, merges and token types, but only the *name* of the pre-tokeniser; what each name means is
//! the table below, in the terms of the `tokenizer.json` that the models were published with.

use tokenizers::{
    AddedToken, SplitDelimiterBehavior,
    models::bpe::{BPE, Vocab},
    normalizers::unicode::NFC,
    pre_tokenizers::{
        PreTokenizerWrapper,
        byte_level::ByteLevel,
        digits::Digits,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use super::{Tokenizer, TokenizerError};
use crate::{Gguf, GgufError};

const MODELS: &[&str] = &["gpt2"];
const PRE_TOKENIZERS: &[&str] = &["gpt-2", "smollm", "llama-bpe", "qwen2", "gpt-4o"];

/// Values of `tokenizer.ggml.token_type`.
mod token_type {
    pub(super) const UNKNOWN: i64 = 2;
    pub(super) const CONTROL: i64 = 3;
    pub(super) const USER_DEFINED: i64 = 4;
}

/// How a family cuts text before merges apply.
#[derive(Clone, Copy, PartialEq)]
enum Pre {
    /// GPT-2: contractions, words, runs of digits, of other characters, of space.
    Gpt2,
    /// GPT-2 with digits one by one.
    SmolLm,
    /// Llama 3: up to three digits together; tokens that are whole words skip the merges.
    Llama3,
    /// Qwen2: as Llama 3 with digits one by one, on text in normal form C.
    Qwen2,
    /// GPT-4o, gpt-oss: as Llama 3, and words also end where lower case turns to upper; contractions stay with them.
    Gpt4o,
}

impl Pre {
    fn named(name: &str) -> Result<Self, TokenizerError> {
        match name {
            "gpt-2" => Ok(Self::Gpt2),
            "smollm" => Ok(Self::SmolLm),
            "llama-bpe" | "llama3" | "llama-v3" => Ok(Self::Llama3),
            "qwen2" => Ok(Self::Qwen2),
            "gpt-4o" => Ok(Self::Gpt4o),
            _ => Err(TokenizerError::Unimplemented {
                key: "tokenizer.ggml.pre",
                found: name.to_owned(),
                known: PRE_TOKENIZERS,
            }),
        }
    }

    fn pre_tokenizer(self) -> Result<PreTokenizerWrapper, TokenizerError> {
        let byte_level = ByteLevel::default().add_prefix_space(false);
        let pattern = match self {
            Self::Gpt2 => return Ok(byte_level.into()),
            Self::SmolLm => {
                return Ok(Sequence::new(vec![Digits::new(true).into(), byte_level.into()]).into());
            }
            Self::Llama3 => {
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
            }
            Self::Qwen2 => {
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
            }
            Self::Gpt4o => concat!(
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
                r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*",
            ),
        };
        let pattern = format!(r"{pattern}|\s*[\r\n]+|\s+(?!\S)|\s+");
        let split = Split::new(SplitPattern::Regex(pattern), SplitDelimiterBehavior::Isolated, false)
            .map_err(|source| TokenizerError::Build { source })?;
        Ok(Sequence::new(vec![split.into(), byte_level.use_regex(false).into()]).into())
    }
}

impl Tokenizer {
    /// Builds the tokenizer that the metadata of `file` describes.
    ///
    /// # Errors
    /// Any [`TokenizerError`] except `Load`, `Encode` and `Decode`.
    pub fn from_gguf(file: &Gguf) -> Result<Self, TokenizerError> {
        let missing = |key: &str| GgufError::MissingKey { key: key.to_owned() };
        let model = file.str("tokenizer.ggml.model")?.ok_or_else(|| missing("tokenizer.ggml.model"))?;
        if !MODELS.contains(&model) {
            let (key, found) = ("tokenizer.ggml.model", model.to_owned());
            return Err(TokenizerError::Unimplemented { key, found, known: MODELS });
        }
        let pre = Pre::named(file.str("tokenizer.ggml.pre")?.ok_or_else(|| missing("tokenizer.ggml.pre"))?)?;
        let tokens =
            file.strings("tokenizer.ggml.tokens")?.ok_or_else(|| missing("tokenizer.ggml.tokens"))?;
        let merges =
            file.strings("tokenizer.ggml.merges")?.ok_or_else(|| missing("tokenizer.ggml.merges"))?;
        let build = |source| TokenizerError::Build { source };
        let bpe = BPE::builder()
            .vocab_and_merges(vocab(tokens)?, pairs(merges)?)
            .ignore_merges(pre == Pre::Llama3)
            .build()
            .map_err(build)?;

        let mut inner = tokenizers::Tokenizer::new(bpe);
        if pre == Pre::Qwen2 {
            inner.with_normalizer(Some(NFC)).map_err(build)?;
        }
        inner.with_pre_tokenizer(Some(pre.pre_tokenizer()?));
        inner.with_decoder(Some(ByteLevel::default()));
        inner.add_tokens(added_tokens(file, tokens)?).map_err(build)?;
        // Files without the key: models of the Llama 3 line expect a start of text.
        let bos = edge_token(file, tokens, "bos", pre == Pre::Llama3)?;
        let eos = edge_token(file, tokens, "eos", false)?;
        Self::new(inner, bos, eos).map_err(build)
    }
}

fn vocab(tokens: &[String]) -> Result<Vocab, TokenizerError> {
    let mut vocab = Vocab::with_capacity(tokens.len());
    for (id, token) in (0..).zip(tokens) {
        if let Some(first) = vocab.insert(token.clone(), id) {
            return Err(TokenizerError::DuplicateToken { first, second: id, text: token.clone() });
        }
    }
    Ok(vocab)
}

fn pairs(merges: &[String]) -> Result<Vec<(String, String)>, TokenizerError> {
    let pair = |(index, text): (usize, &String)| match text.split_once(' ') {
        Some((left, right)) if !left.is_empty() && !right.is_empty() => {
            Ok((left.to_owned(), right.to_owned()))
        }
        _ => Err(TokenizerError::Merge { index, text: text.clone() }),
    };
    merges.iter().enumerate().map(pair).collect()
}

/// Tokens that are found in text before anything else; control tokens are the special ones.
fn added_tokens(file: &Gguf, tokens: &[String]) -> Result<Vec<AddedToken>, TokenizerError> {
    let Some(types) = file.ints("tokenizer.ggml.token_type")? else { return Ok(Vec::new()) };
    if types.len() != tokens.len() {
        return Err(TokenizerError::TokenTypes { types: types.len(), tokens: tokens.len() });
    }
    let added = tokens.iter().zip(types).filter_map(|(token, kind)| match kind {
        // The matcher cannot hold an empty text.
        _ if token.is_empty() => None,
        token_type::CONTROL | token_type::UNKNOWN => Some(AddedToken::from(token.as_str(), true)),
        token_type::USER_DEFINED => Some(AddedToken::from(token.as_str(), false).normalized(false)),
        _ => None,
    });
    Ok(added.collect())
}

/// The token put at one edge of a text, if the file asks for it.
fn edge_token(
    file: &Gguf,
    tokens: &[String],
    edge: &str,
    default: bool,
) -> Result<Option<u32>, TokenizerError> {
    if !file.bool(&format!("tokenizer.ggml.add_{edge}_token"))?.unwrap_or(default) {
        return Ok(None);
    }
    let key = format!("tokenizer.ggml.{edge}_token_id");
    match file.u32(&key)? {
        Some(id) if id as usize >= tokens.len() => {
            Err(TokenizerError::SpecialId { key, id, tokens: tokens.len() })
        }
        id => Ok(id),
    }
}
