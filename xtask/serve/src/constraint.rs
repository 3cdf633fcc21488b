//! Constraints on the output: JSON, schemas, regular expressions, choices and grammars, by llguidance.

use std::fmt;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use pagoda::{Model, TokenMask};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;

/// Form that an output must have.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Constraint {
    form: ConstraintKind,
    /// The field that requests the constraint.
    field: &'static str,
}

#[derive(Debug, Clone, PartialEq)]
enum ConstraintKind {
    Schema(Value),
    Regex(String),
    /// A grammar in llguidance's variant of Lark's syntax.
    Grammar(String),
    Choice(Vec<String>),
}

/// OpenAI's field.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum ResponseFormat {
    Text {},
    JsonObject {},
    JsonSchema { json_schema: NamedSchema },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamedSchema {
    #[serde(rename = "name")]
    _name: String,
    #[serde(rename = "description")]
    _description: Option<String>,
    schema: Option<Value>,
    /// Schemas always hold.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

/// vLLM's field with one constraint.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StructuredOutputs {
    json: Option<Value>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
    json_object: Option<bool>,
}

impl Constraint {
    /// Takes `response_format` and `structured_outputs`; `None` if the output is free.
    pub(crate) fn take(fields: &mut Fields<'_>) -> Result<Option<Self>, ApiError> {
        const FORMAT: &str = "response_format";
        const STRUCTURED: &str = "structured_outputs";
        let format = match fields.take(FORMAT)? {
            None | Some(ResponseFormat::Text {}) => None,
            Some(ResponseFormat::JsonObject {}) => Some(object()),
            Some(ResponseFormat::JsonSchema { json_schema }) => {
                let NamedSchema { schema, .. } = json_schema;
                Some(schema.map_or_else(object, ConstraintKind::Schema))
            }
        };
        let structured = fields.take(STRUCTURED)?.map(StructuredOutputs::form).transpose()?;
        match (format, structured) {
            (Some(_), Some(_)) => {
                Err(ApiError::field(STRUCTURED, "response_format constrains the output already"))
            }
            (Some(form), None) => Ok(Some(Self { form, field: FORMAT })),
            (None, form) => Ok(form.map(|form| Self { form, field: STRUCTURED })),
        }
    }

    /// An output that is an instance of a schema.
    pub(crate) fn schema(schema: Value, field: &'static str) -> Self {
        Self { form: ConstraintKind::Schema(schema), field }
    }

    fn grammar(self) -> TopLevelGrammar {
        match self.form {
            ConstraintKind::Schema(schema) => TopLevelGrammar::from_json_schema(with_little_space(schema)),
            ConstraintKind::Regex(regex) => TopLevelGrammar::from_regex(&regex),
            ConstraintKind::Grammar(lark) => TopLevelGrammar::from_lark(lark),
            ConstraintKind::Choice(texts) => {
                let quoted: Vec<String> =
                    texts.iter().map(|text| Value::from(text.as_str()).to_string()).collect();
                TopLevelGrammar::from_lark(format!("start: {}", quoted.join(" | ")))
            }
        }
    }
}

/// A schema whose instances have no more white space than indented ones need: models that may write any amount
/// of it sometimes write nothing else.
fn with_little_space(mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        let space = json!({ "whitespace_pattern": r"[ ]|\n[ ]{0,32}" });
        object.entry("x-guidance").or_insert(space);
    }
    schema
}

fn object() -> ConstraintKind {
    ConstraintKind::Schema(json!({ "type": "object" }))
}

impl NamedSchema {
    /// The schema, if there is one.
    pub(crate) fn schema(self) -> Option<Value> {
        self.schema
    }
}

impl StructuredOutputs {
    fn form(self) -> Result<ConstraintKind, ApiError> {
        let Self { json, regex, choice, grammar, json_object } = self;
        // vLLM also takes the text of a schema.
        let parsed = |schema: Value| match schema.as_str().map(serde_json::from_str) {
            None => Ok(schema),
            Some(parsed) => parsed.map_err(|error| {
                ApiError::field("structured_outputs.json", format!("not a JSON schema: {error}"))
            }),
        };
        let choice = choice.filter(|texts| !texts.is_empty());
        let forms = [
            json.map(parsed).transpose()?.map(ConstraintKind::Schema),
            regex.map(ConstraintKind::Regex),
            choice.map(ConstraintKind::Choice),
            grammar.map(ConstraintKind::Grammar),
            json_object.filter(|wanted| *wanted).map(|_| object()),
        ];
        let mut forms = forms.into_iter().flatten();
        match (forms.next(), forms.next()) {
            (Some(form), None) => Ok(form),
            _ => {
                let reason = "exactly one of json, regex, choice, grammar and json_object";
                Err(ApiError::field("structured_outputs", reason))
            }
        }
    }
}

/// Compiler of constraints into masks of a model's tokens.
pub(crate) struct Constraints(ParserFactory);

impl fmt::Debug for Constraints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Constraints(..)")
    }
}

impl Constraints {
    /// Sorts the tokens of a model by their bytes. O(bytes of the vocabulary).
    ///
    /// # Errors
    /// If the model has no tokenizer, or no token that ends an output.
    pub(crate) fn new(model: &Model) -> Result<Self, ApiError> {
        let tokenizer = model.tokenizer()?;
        let (vocab, ends) = (model.config.vocab_size, &model.config.eos_ids);
        let Some(end) = ends.first() else {
            return Err(ApiError::invalid(
                "the model has no end of sequence, so its output cannot be constrained",
            ));
        };
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
        let mut factory = ParserFactory::new(&tokens, caps, &slices).map_err(internal)?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(Self(factory))
    }

    /// The mask of an output.
    ///
    /// # Errors
    /// 400 with the reason if the constraint is none.
    pub(crate) fn mask(&self, constraint: Constraint) -> Result<Box<dyn TokenMask>, ApiError> {
        let field = constraint.field;
        let matcher = Matcher::new(self.0.create_parser(constraint.grammar()));
        match matcher.get_error() {
            Some(error) => Err(ApiError::field(field, error)),
            None => Ok(Box::new(Mask(matcher))),
        }
    }
}

/// Masks that keep the outputs of a model to JSON schemas, for programs that submit requests of their own.
#[derive(Debug)]
pub struct SchemaMasks(Constraints);

/// Why outputs cannot be kept to a schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
#[non_exhaustive]
pub struct SchemaError {
    /// The reason.
    pub reason: String,
}

impl From<ApiError> for SchemaError {
    fn from(error: ApiError) -> Self {
        Self { reason: error.message }
    }
}

impl SchemaMasks {
    /// Sorts the tokens of a model by their bytes. O(bytes of the vocabulary).
    ///
    /// # Errors
    /// If the model has no tokenizer, or no token that ends an output.
    pub fn new(model: &Model) -> Result<Self, SchemaError> {
        Ok(Self(Constraints::new(model)?))
    }

    /// A mask under which every output that ends is an instance of `schema`.
    ///
    /// # Errors
    /// If `schema` is no JSON schema, or asks for something that masks cannot hold outputs to.
    pub fn mask(&self, schema: Value) -> Result<Box<dyn TokenMask>, SchemaError> {
        Ok(self.0.mask(Constraint::schema(schema, "schema"))?)
    }
}

fn internal(error: impl fmt::Display) -> ApiError {
    ApiError::internal(format!("outputs cannot be constrained: {error:#}"))
}

struct Mask(Matcher);

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mask(..)")
    }
}

impl TokenMask for Mask {
    /// An error of the matcher, such as a state that is too large, allows nothing.
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
