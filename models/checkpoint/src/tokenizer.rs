//! Text to token ids and back, through the `tokenizers` crate.

mod bytes;
mod charsmap;
mod control;
mod gguf;
mod gguf_vocab;
mod json;
mod sentencepiece;
mod unigram;

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use self::charsmap::Charsmap;
use self::control::Controls;
use crate::GgufError;

/// Character that replaces bytes that cannot be decoded yet: the end of a text may be half of a character.
const REPLACEMENT: char = '\u{FFFD}';

/// Maximum number of consecutive blanks in a text: pre-tokenisers put each on the stack of a regular expression, which holds
/// 1,000,000, and would return wrong tokens beyond that.
pub const MAX_BLANKS: usize = 900_000;

/// A tokenizer, from `tokenizer.json` or from GGUF metadata.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    controls: Controls,
    /// Tokenizer of texts with breaks (U+FDD0), which it drops; created on first use.
    joining: OnceLock<tokenizers::Tokenizer>,
    /// Character map that is applied before normalisation, in GGUF files with a Unigram vocabulary.
    charsmap: Option<Arc<Charsmap>>,
    /// Tokens that `encode` adds before a text (`bos`) and after it (`eos`). They are set only for GGUF files, whose
    /// metadata has them outside of the tokenizer.
    bos: Option<u32>,
    eos: Option<u32>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`TokenizerError::Load`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        let path = path.as_ref();
        let load = |source| TokenizerError::Load { path: path.into(), source };
        let bytes = std::fs::read(path).map_err(|error| load(error.into()))?;
        json::check(&bytes).map_err(load)?;
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(load)?;
        // Some files carry the settings of a training run; a prompt is never cut or filled up.
        inner.with_truncation(None).map_err(load)?;
        inner.with_padding(None);
        Self::new(inner, None, None).map_err(load)
    }

    fn new(
        mut inner: tokenizers::Tokenizer,
        bos: Option<u32>,
        eos: Option<u32>,
    ) -> Result<Self, tokenizers::Error> {
        let controls = Controls::take_from(&mut inner)?;
        unigram::keep_controls_apart(&mut inner)?;
        Ok(Self { inner, controls, joining: OnceLock::new(), charsmap: None, bos, eos })
    }

    /// Returns the token ids of `text`. Special tokens spelled out in it become their ids, unless it went through
    /// [`as_text`](Self::as_text); `add_special` also adds the tokens that the model expects around a text (a chat template has
    /// already added them).
    ///
    /// Bytes that a byte-level vocabulary lacks are dropped, as `transformers` drops them: SmolLM2's has no token for
    /// a few control characters and for 0xf1 and 0xf2, which start characters of unassigned planes.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`], and [`TokenizerError::Blanks`] for more than [`MAX_BLANKS`] blanks in a row.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let blanks = longest_blank(text);
        if blanks > MAX_BLANKS {
            return Err(TokenizerError::Blanks { blanks });
        }
        let encode = |source| TokenizerError::Encode { source };
        let ids = match &self.charsmap {
            Some(map) => self.encode_mapped(text, map).map_err(encode)?,
            None => self.encode_plain(text, add_special).map_err(encode)?,
        };
        let (bos, eos) = if add_special { (self.bos, self.eos) } else { (None, None) };
        Ok(bos.into_iter().chain(ids).chain(eos).collect())
    }

    fn encode_plain(&self, text: &str, add_special: bool) -> Result<Vec<u32>, tokenizers::Error> {
        Ok(self.encoder(text)?.encode_fast(text, add_special)?.get_ids().to_vec())
    }

    /// Returns the text of `ids`; bytes that are not UTF-8 become U+FFFD, and unknown ids are skipped.
    ///
    /// # Errors
    /// [`TokenizerError::Decode`].
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TokenizerError> {
        self.inner.decode(ids, skip_special).map_err(|source| TokenizerError::Decode { source })
    }

    /// Decodes tokens one at a time.
    pub fn stream(&self, skip_special: bool) -> DecodeStream<&Self> {
        DecodeStream::new(self, skip_special)
    }

    /// Returns the id of a token by its exact text, for example `<|im_end|>`.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Returns the stored text of a token; bytes appear as the characters that byte-level BPE maps them to.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Returns the number of tokens, including special ones.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }
}

/// Returns the number of characters of the longest run of blanks.
fn longest_blank(text: &str) -> usize {
    let mut longest = 0;
    let mut run = 0;
    for c in text.chars() {
        run = if c.is_whitespace() { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

/// Incremental decoding: the joined pieces are the text of all tokens, and each piece consists of whole characters. `T` is a
/// reference to the tokenizer, or an owner such as `Arc<Tokenizer>`.
#[derive(Clone, Debug)]
pub struct DecodeStream<T> {
    tokenizer: T,
    skip_special: bool,
    /// Last tokens: `context` tokens whose text was returned, and those after them.
    window: Vec<u32>,
    context: usize,
    /// Number of bytes of the window's text that were returned.
    emitted: usize,
}

/// Maximum length of the window in tokens: a longer one can end in the middle of a character only if the tokens are
/// noise, and is cut there.
const MAX_WINDOW: usize = 256;

impl<T: Deref<Target = Tokenizer>> DecodeStream<T> {
    /// A stream without any token yet.
    pub fn new(tokenizer: T, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, window: Vec::new(), context: 0, emitted: 0 }
    }

    /// Adds the next token, and returns the text that has become certain, often none.
    ///
    /// # Errors
    /// [`TokenizerError::Decode`].
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        self.window.push(id);
        let text = self.tokenizer.decode(&self.window, self.skip_special)?;
        let certain = text.trim_end_matches(REPLACEMENT).len();
        if certain < text.len() && self.window.len() < MAX_WINDOW {
            return Ok(self.emit(&text, certain));
        }
        let piece = self.emit(&text, text.len());
        // Some tokenizers write a token differently at the start of a text: the last group of tokens stays as context.
        self.window.drain(..self.context);
        self.context = self.window.len();
        self.emitted = self.tokenizer.decode(&self.window, self.skip_special)?.len();
        Ok(piece)
    }

    /// Ends the text: returns the rest of an incomplete character as U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::Decode`].
    pub fn finish(mut self) -> Result<String, TokenizerError> {
        let text = self.tokenizer.decode(&self.window, self.skip_special)?;
        Ok(self.emit(&text, text.len()))
    }

    fn emit(&mut self, text: &str, end: usize) -> String {
        // `None` while a decoder takes back characters that were certain, until the next one is complete.
        let Some(piece) = text.get(self.emitted..end) else { return String::new() };
        self.emitted = end;
        piece.to_owned()
    }
}

/// Error of creating or using a tokenizer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A `tokenizer.json` cannot be read.
    #[error("cannot read the tokenizer {path}: {source}", path = path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: tokenizers::Error,
    },
    /// GGUF metadata is missing or of the wrong type.
    #[error(transparent)]
    Gguf {
        /// The defect.
        #[from]
        source: GgufError,
    },
    /// GGUF metadata names a tokenizer that is not supported.
    #[error("{key} {found:?} is not implemented (implemented: {known})", known = known.join(", "))]
    Unimplemented {
        /// The metadata key.
        key: &'static str,
        /// Value of the key.
        found: String,
        /// The values implemented.
        known: &'static [&'static str],
    },
    /// A merge is not two tokens.
    #[error("merge {index} is {text:?}, not two tokens with a space between")]
    Merge {
        /// Index of the merge in the list.
        index: usize,
        /// The merge.
        text: String,
    },
    /// Two tokens have the same text.
    #[error("tokens {first} and {second} are both {text:?}")]
    DuplicateToken {
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
        /// The text.
        text: String,
    },
    /// The number of token types is not the number of tokens.
    #[error("there are {types} token types for {tokens} tokens")]
    TokenTypes {
        /// Number of types.
        types: usize,
        /// Number of tokens.
        tokens: usize,
    },
    /// The number of scores is not the number of tokens.
    #[error("there are {scores} token scores for {tokens} tokens")]
    Scores {
        /// Number of scores.
        scores: usize,
        /// Number of tokens.
        tokens: usize,
    },
    /// A token of a Unigram vocabulary is too long.
    #[error("token {id} has {bytes} bytes, the limit is {limit}", limit = unigram::MAX_TOKEN)]
    LongToken {
        /// The token.
        id: u32,
        /// Bytes of the token.
        bytes: usize,
    },
    /// SentencePiece's character map has entries that lead outside of it.
    #[error("the precompiled map of characters is damaged: {reason}")]
    Charsmap {
        /// The defect.
        reason: &'static str,
    },
    /// A special token has an id outside the vocabulary.
    #[error("{key} is {id}, but there are {tokens} tokens")]
    SpecialId {
        /// The metadata key.
        key: String,
        /// The id.
        id: u32,
        /// Number of tokens.
        tokens: usize,
    },
    /// Vocabulary and merges do not fit together.
    #[error("vocabulary and merges do not make a tokenizer: {source}")]
    Build {
        /// The reason.
        source: tokenizers::Error,
    },
    /// The text has more consecutive blanks than pre-tokenisers support.
    #[error("the text has {blanks} blanks in a row, the limit is {MAX_BLANKS}")]
    Blanks {
        /// Number of characters of the run.
        blanks: usize,
    },
    /// A text cannot be encoded.
    #[error("cannot encode the text: {source}")]
    Encode {
        /// The reason.
        source: tokenizers::Error,
    },
    /// Tokens cannot be decoded.
    #[error("cannot decode the tokens: {source}")]
    Decode {
        /// The reason.
        source: tokenizers::Error,
    },
}
