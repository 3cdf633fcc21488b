//! Tokenizers from GGUF metadata: byte-level BPE here, and SentencePiece's two kinds in submodules.
//!
//! GGUF stores vocabulary, merges and token types, but only the *name* of the pre-tokeniser; what each name means is
//! the table below, in the terms of the `tokenizer.json` that the models were published with.

use std::sync::Arc;

use tokenizers::{
    AddedToken, SplitDelimiterBehavior,
    models::bpe::BPE,
    normalizers::unicode::NFC,
    pre_tokenizers::{
        PreTokenizerWrapper,
        byte_level::ByteLevel,
        digits::Digits,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use super::gguf_vocab::{token_type, token_types, vocab};
use super::{Tokenizer, TokenizerError, sentencepiece, unigram};
use crate::{Gguf, GgufError};

const MODELS: &[&str] = &["gpt2", "llama", "t5"];
const PRE_TOKENIZERS: &[&str] = &[
    "gpt-2",
    "olmo",
    "smollm",
    "refact",
    "llama-bpe",
    "falcon3",
    "dbrx",
    "smaug-bpe",
    "glm4",
    "chatglm-bpe",
    "qwen2",
    "deepseek-r1-qwen",
    "megrez",
    "gpt-4o",
    "llama4",
    "tekken",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
];

/// Pre-tokenisation rules of families.
#[derive(Clone, Copy, PartialEq)]
enum Pre {
    /// GPT-2: contractions, words, runs of digits, of other characters, of space.
    Gpt2,
    /// GPT-2 with digits one by one.
    SmolLm,
    /// Llama 3: up to three digits together; tokens that are whole words skip the merges.
    Llama3,
    /// Phi 4, GLM 4: the rules of Llama 3, but every word goes through the merges.
    Dbrx,
    /// Qwen2: like Llama 3 with single digits, on text in normal form C.
    Qwen2,
    /// GPT-4o, gpt-oss: like Llama 3, but words also end where lower case changes to upper; contractions stay with them.
    Gpt4o,
    /// Mistral Nemo, Ministral: like GPT-4o with single digits and without contractions; whole words skip the merges.
    Tekken,
    /// DeepSeek LLM, V2: lines, words of letters with a case, punctuation, Chinese and Korean, digits one by one.
    DeepSeekLlm,
    /// DeepSeek Coder: like DeepSeek LLM, with words of all letters.
    DeepSeekCoder,
    /// DeepSeek V3: up to three digits, Chinese and Japanese, then the rest; marks begin Latin words.
    DeepSeekV3,
}

impl Pre {
    fn named(name: &str) -> Result<Self, TokenizerError> {
        match name {
            "gpt-2" | "olmo" => Ok(Self::Gpt2),
            "smollm" | "refact" => Ok(Self::SmolLm),
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" => Ok(Self::Llama3),
            "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => Ok(Self::Dbrx),
            "qwen2" | "deepseek-r1-qwen" | "megrez" => Ok(Self::Qwen2),
            "gpt-4o" | "llama4" => Ok(Self::Gpt4o),
            "tekken" => Ok(Self::Tekken),
            "deepseek-llm" => Ok(Self::DeepSeekLlm),
            "deepseek-coder" => Ok(Self::DeepSeekCoder),
            "deepseek-v3" => Ok(Self::DeepSeekV3),
            _ => Err(TokenizerError::Unimplemented {
                key: "tokenizer.ggml.pre",
                found: name.to_owned(),
                known: PRE_TOKENIZERS,
            }),
        }
    }

    fn pre_tokenizer(self) -> Result<PreTokenizerWrapper, TokenizerError> {
        let byte_level = ByteLevel::default().add_prefix_space(false);
        let digits = || PreTokenizerWrapper::from(Digits::new(true));
        let mut steps = match self {
            Self::Gpt2 => return Ok(byte_level.into()),
            Self::SmolLm => return Ok(Sequence::new(vec![digits(), byte_level.into()]).into()),
            _ => self.patterns().iter().map(|pattern| split(pattern)).collect::<Result<Vec<_>, _>>()?,
        };
        if matches!(self, Self::DeepSeekLlm | Self::DeepSeekCoder) {
            steps.push(digits());
        }
        steps.push(byte_level.use_regex(false).into());
        Ok(Sequence::new(steps).into())
    }

    /// Returns the patterns that split a text, one after the other.
    fn patterns(self) -> &'static [&'static str] {
        match self {
            Self::Gpt2 | Self::SmolLm => &[],
            Self::Llama3 | Self::Dbrx => &[concat!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|",
                r"\s*[\r\n]+|\s+(?!\S)|\s+",
            )],
            Self::Qwen2 => &[concat!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|",
                r"\s*[\r\n]+|\s+(?!\S)|\s+",
            )],
            Self::Gpt4o => &[concat!(
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
                r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            )],
            Self::Tekken => &[concat!(
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|",
                r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            )],
            Self::DeepSeekLlm => {
                &[r"[\r\n]", CASED_WORDS, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", r"[一-龥ࠀ-一가-퟿]+"]
            }
            Self::DeepSeekCoder => &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+"],
            Self::DeepSeekV3 => &[
                r"\p{N}{1,3}",
                r"[一-龥぀-ゟ゠-ヿ]+",
                concat!(
                    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|",
                    r"\s*[\r\n]+|\s+(?!\S)|\s+",
                ),
            ],
        }
    }
}

/// Pattern of words of letters with a case, as listed by DeepSeek's first tokenizer, without mathematical letters, small Georgian
/// ones, and scripts added to Unicode later.
const CASED_WORDS: &str = concat!(
    r"\s?[\p{Lu}\p{Ll}\p{Lt}&&[^\x{560}\x{588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C88}\x{2D00}-\x{2D2D}\x{A790}-\x{A7FA}",
    r"\x{AB30}-\x{AB68}\x{10570}-\x{105BC}\x{16E40}-\x{16E7F}\x{1D400}-\x{1D7CB}\x{1DF00}-\x{1DF1E}]]+",
);

/// Returns a pre-tokeniser that isolates the matches of a pattern.
fn split(pattern: &str) -> Result<PreTokenizerWrapper, TokenizerError> {
    let pattern = SplitPattern::Regex(pattern.to_owned());
    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
        .map_err(|source| TokenizerError::Build { source })?;
    Ok(split.into())
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
        let tokens =
            file.strings("tokenizer.ggml.tokens")?.ok_or_else(|| missing("tokenizer.ggml.tokens"))?;
        let build = |source| TokenizerError::Build { source };
        // Files without the key: models of the Llama 3 line and those of SentencePiece BPE expect a start of text, T5 an end.
        let (mut inner, begins) = match model {
            "llama" => (sentencepiece::tokenizer(file, tokens)?, true),
            "t5" => (unigram::tokenizer(file, tokens)?, false),
            _ => byte_level(file, tokens)?,
        };
        inner.add_tokens(added_tokens(file, tokens)?).map_err(build)?;
        let bos = edge_token(file, tokens, "bos", begins)?;
        let eos = edge_token(file, tokens, "eos", model == "t5")?;
        let charsmap = if model == "t5" { unigram::charsmap(file)? } else { None };
        Ok(Self { charsmap: charsmap.map(Arc::new), ..Self::new(inner, bos, eos).map_err(build)? })
    }
}

/// Creates a tokenizer with byte-level BPE. Also returns whether texts begin with a start token, if the file does not
/// state it.
fn byte_level(file: &Gguf, tokens: &[String]) -> Result<(tokenizers::Tokenizer, bool), TokenizerError> {
    let missing = |key: &str| GgufError::MissingKey { key: key.to_owned() };
    let pre = Pre::named(file.str("tokenizer.ggml.pre")?.ok_or_else(|| missing("tokenizer.ggml.pre"))?)?;
    let merges = file.strings("tokenizer.ggml.merges")?.ok_or_else(|| missing("tokenizer.ggml.merges"))?;
    let build = |source| TokenizerError::Build { source };
    let bpe = BPE::builder()
        .vocab_and_merges(vocab(tokens)?, pairs(merges)?)
        .ignore_merges(matches!(pre, Pre::Llama3 | Pre::Tekken))
        .build()
        .map_err(build)?;
    let mut inner = tokenizers::Tokenizer::new(bpe);
    if pre == Pre::Qwen2 {
        inner.with_normalizer(Some(NFC)).map_err(build)?;
    }
    inner.with_pre_tokenizer(Some(pre.pre_tokenizer()?));
    inner.with_decoder(Some(ByteLevel::default()));
    Ok((inner, matches!(pre, Pre::Llama3 | Pre::Tekken)))
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

/// Returns the tokens that are searched for in a text before anything else; control tokens are the special ones.
fn added_tokens(file: &Gguf, tokens: &[String]) -> Result<Vec<AddedToken>, TokenizerError> {
    let Some(types) = token_types(file, tokens)? else { return Ok(Vec::new()) };
    let added = tokens.iter().zip(types).filter_map(|(token, kind)| match kind {
        // The matcher cannot hold an empty text.
        _ if token.is_empty() => None,
        token_type::CONTROL | token_type::UNKNOWN => Some(AddedToken::from(token.as_str(), true)),
        token_type::USER_DEFINED => Some(AddedToken::from(token.as_str(), false).normalized(false)),
        _ => None,
    });
    Ok(added.collect())
}

/// Returns the token added at one edge of a text, if the file requests it.
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
