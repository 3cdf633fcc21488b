//! Constraints on the output: JSON schemas, regular expressions, choices and grammars, by llguidance.

use std::fmt;
use std::sync::Arc;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use models::{DecoderConfig, Tokenizer};
use serde_json::{Value, json};

use crate::mask::TokenMask;

/// Maximum number of bytes of a constraint: a compiler takes seconds for megabytes.
const MAX_BYTES: usize = 256 << 10;

/// Maximum number of texts of a choice. The compiler's tables hold a few thousand.
const MAX_CHOICES: usize = 1024;

/// Form that an output must have. [`Model::mask`](crate::Model::mask) compiles it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Constraint {
    /// An instance of a JSON schema, with no more white space than indented JSON needs.
    Schema(Value),
    /// A match of a regular expression, from the first character to the last.
    Regex(String),
    /// A text of a grammar, in llguidance's variant of Lark's syntax.
    Lark(String),
    /// Exactly one of the given texts.
    Choice(Vec<String>),
    /// The rest of a thought that the prompt has begun, and then an output of the given form.
    AfterThought(Box<Constraint>),
    /// Either the inner form, or calls of the named tools between `<tool_call>` and `</tool_call>`, with any
    /// arguments.
    OrCalls(Box<Constraint>, Vec<String>),
}

/// Why a constraint cannot be enforced on an output.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// The model has no token that ends an output.
    #[error("the model has no end of sequence, so its output cannot be constrained")]
    NoEnd,
    /// The constraint is too large.
    #[error("{kind} of {bytes} bytes, at most {max}")]
    Bytes {
        /// The kind, as `a schema`.
        kind: &'static str,
        /// Size of the constraint.
        bytes: usize,
        /// Maximum size.
        max: usize,
    },
    /// The choice has too many texts.
    #[error("a choice of {texts} texts, at most {max}")]
    Texts {
        /// Number of texts of the choice.
        texts: usize,
        /// Maximum number of texts.
        max: usize,
    },
    /// The compiler refuses the constraint, or it allows no first token.
    #[error("{reason}")]
    Refused {
        /// The compiler's reason.
        reason: String,
    },
    /// The compiler does not take the tokens of the model.
    #[error("outputs of this model cannot be constrained: {reason}")]
    Tokens {
        /// The compiler's reason.
        reason: String,
    },
}

impl Constraint {
    /// Any JSON object.
    #[must_use]
    pub fn json_object() -> Self {
        Self::Schema(json!({ "type": "object" }))
    }

    /// Rejects a constraint that would keep the compiler busy for long, or overflow its tables.
    fn check_size(&self) -> Result<(), ConstraintError> {
        let (kind, bytes) = match self {
            Self::Schema(schema) => ("a schema", schema.to_string().len()),
            Self::Regex(regex) => ("a regular expression", regex.len()),
            Self::Lark(lark) => ("a grammar", lark.len()),
            Self::Choice(texts) if texts.len() > MAX_CHOICES => {
                return Err(ConstraintError::Texts { texts: texts.len(), max: MAX_CHOICES });
            }
            Self::Choice(texts) => ("a choice", texts.iter().map(String::len).sum()),
            Self::AfterThought(form) => return form.check_size(),
            Self::OrCalls(form, names) => {
                form.check_size()?;
                ("a list of tools", names.iter().map(String::len).sum())
            }
        };
        if bytes > MAX_BYTES {
            return Err(ConstraintError::Bytes { kind, bytes, max: MAX_BYTES });
        }
        Ok(())
    }

    fn grammar(&self) -> TopLevelGrammar {
        match self {
            Self::Schema(schema) => TopLevelGrammar::from_json_schema(with_little_space(schema.clone())),
            Self::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Self::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
            Self::Choice(texts) => {
                let quoted: Vec<String> =
                    texts.iter().map(|text| Value::from(text.as_str()).to_string()).collect();
                TopLevelGrammar::from_lark(format!("start: {}", quoted.join(" | ")))
            }
            Self::AfterThought(form) => form.within(|form| {
                format!("start: thought \"\\n\"? \"\\n\"? @{form}\nthought[suffix=\"</think>\"]: /(?s:.*)/")
            }),
            Self::OrCalls(form, names) => {
                let call = json!({
                    "type": "object",
                    "properties": { "name": { "enum": names }, "arguments": { "type": "object" } },
                    "required": ["name", "arguments"],
                    "additionalProperties": false,
                });
                let call = with_little_space(call);
                form.within(|form| {
                    format!(
                        "start: @{form} | call+\n\
                         call: \"<tool_call>\" \"\\n\"? %json {call} \"\\n\"? \"</tool_call>\" \"\\n\"?"
                    )
                })
            }
        }
    }

    /// Wraps this form in the Lark grammar that `outer` returns, which refers to this form by the name given to
    /// `outer`.
    fn within(&self, outer: impl FnOnce(&str) -> String) -> TopLevelGrammar {
        let mut all = self.grammar();
        let name = format!("form{}", all.grammars.len());
        let outer = GrammarWithLexer::from_lark(outer(&name));
        all.grammars[0].name = Some(name);
        all.grammars.insert(0, outer);
        all
    }
}

/// Limits the white space in instances of a schema to that of indented JSON. Without a limit, models sometimes write
/// nothing but white space.
fn with_little_space(mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        let space = json!({ "whitespace_pattern": r"[ ]|\n[ ]{0,32}" });
        object.entry("x-guidance").or_insert(space);
    }
    schema
}

/// Compiler of constraints into masks of a model's tokens.
pub(crate) struct Compiler(ParserFactory);

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compiler(..)")
    }
}

impl Compiler {
    /// Sorts the tokens of a model by their bytes. O(bytes of the vocabulary).
    pub(crate) fn new(config: &DecoderConfig, tokenizer: &Tokenizer) -> Result<Self, ConstraintError> {
        let (vocab, ends) = (config.vocab_size, &config.eos_ids);
        let end = ends.first().ok_or(ConstraintError::NoEnd)?;
        // Control tokens are named, so that no text can spell them.
        let word = |id| match tokenizer.token_bytes(id) {
            Some(name) if tokenizer.is_control(id) => [&[TokTrie::SPECIAL_TOKEN_MARKER], &name[..]].concat(),
            bytes => bytes.unwrap_or_default(),
        };
        let words: Vec<Vec<u8>> = (0..vocab).map(word).collect();
        let trie = TokTrie::from(&TokRxInfo::new(vocab, *end), &words).with_eos_tokens(ends);
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let caps = InferenceCapabilities::default();
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&tokens, caps, &slices)
            .map_err(|error| ConstraintError::Tokens { reason: format!("{error:#}") })?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(Self(factory))
    }

    /// The mask of an output.
    pub(crate) fn mask(&self, constraint: &Constraint) -> Result<Box<dyn TokenMask>, ConstraintError> {
        constraint.check_size()?;
        let matcher = Matcher::new(self.0.create_parser(constraint.grammar()));
        // Limits of the parser show with the first mask.
        match matcher
            .get_error()
            .or_else(|| matcher.deep_clone().compute_mask_or_eos().err().map(|e| e.to_string()))
        {
            Some(error) => Err(ConstraintError::Refused { reason: first_line(&error).to_owned() }),
            None => Ok(Box::new(Mask(matcher))),
        }
    }
}

/// A library's error without its backtrace.
fn first_line(error: &str) -> &str {
    let line = error.lines().next().unwrap_or_default();
    line.split("<backtrace>").next().unwrap_or_default().trim()
}

struct Mask(Matcher);

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mask(..)")
    }
}

impl TokenMask for Mask {
    /// Restricts `allowed` to the tokens that the matcher allows. If the matcher fails, for example because its state
    /// is too large, no token is allowed.
    fn allow(&mut self, allowed: &mut [u32]) {
        if let Ok(mask) = self.0.compute_mask_or_eos() {
            allowed.iter_mut().zip(mask.as_slice()).for_each(|(word, bits)| *word = *bits);
        }
    }

    fn accept(&mut self, token: u32) {
        // The matcher keeps the error, and allows nothing from then on.
        let _ = self.0.consume_token(token);
    }

    fn is_complete(&self) -> bool {
        self.0.is_stopped() && !self.0.is_error()
    }

    fn fork(&self) -> Box<dyn TokenMask> {
        Box::new(Self(self.0.deep_clone()))
    }
}
