//! Constraints on the output: JSON, schemas, regular expressions, choices and grammars, by llguidance.

use std::fmt;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use pagoda::{Model, TokenMask};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::ApiError;

/// Maximum number of bytes of a constraint: a compiler takes seconds for megabytes.
const MAX_BYTES: usize = 256 << 10;

/// Maximum number of texts of a choice. The compiler's tables hold a few thousand.
const MAX_CHOICES: usize = 1024;

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

/// Fields that give the form of the output.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Format")]
pub(crate) struct FormatFields {
    response_format: Option<ResponseFormat>,
    structured_outputs: Option<StructuredOutputs>,
    /// The older name of `structured_outputs.json`.
    guided_json: Option<Value>,
    /// The older name of `structured_outputs.regex`.
    guided_regex: Option<String>,
    /// The older name of `structured_outputs.choice`.
    guided_choice: Option<Vec<String>>,
    /// The older name of `structured_outputs.grammar`.
    guided_grammar: Option<String>,
}

/// OpenAI's form of the output.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ResponseFormat {
    r#type: FormatType,
    json_schema: Option<NamedSchema>,
    /// The schema, in other APIs than that of chats.
    schema: Option<Value>,
    /// Not used.
    #[serde(rename = "name")]
    _name: Option<String>,
    /// Not used.
    #[serde(rename = "description")]
    _description: Option<String>,
    /// Schemas always hold.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FormatType {
    Text,
    JsonObject,
    JsonSchema,
}

/// A JSON schema with a name.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct NamedSchema {
    /// Not used.
    #[serde(rename = "name")]
    _name: Option<String>,
    /// Not used.
    #[serde(rename = "description")]
    _description: Option<String>,
    schema: Option<Value>,
    /// Schemas always hold.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

/// vLLM's form of the output: exactly one field.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct StructuredOutputs {
    /// An instance of this JSON schema, or of the one in this text.
    json: Option<Value>,
    /// A match of this regular expression.
    regex: Option<String>,
    /// One of these texts.
    choice: Option<Vec<String>>,
    /// A text of this grammar, in Lark's syntax.
    grammar: Option<String>,
    /// Any JSON object.
    json_object: Option<bool>,
}

impl FormatFields {
    /// The form of the output; `None` if it is free.
    pub(crate) fn check(self) -> Result<Option<Constraint>, ApiError> {
        const FORMAT: &str = "response_format";
        const STRUCTURED: &str = "structured_outputs";
        let format = self.response_format.map(|format| format.form(FORMAT)).transpose()?.flatten();
        let older = StructuredOutputs {
            json: self.guided_json,
            regex: self.guided_regex,
            choice: self.guided_choice,
            grammar: self.guided_grammar,
            json_object: None,
        };
        let structured = self.structured_outputs.map(StructuredOutputs::form).transpose()?;
        let older = (!older.is_empty()).then(|| older.form()).transpose()?;
        match (format, structured.or(older)) {
            (Some(_), Some(_)) => {
                Err(ApiError::field(STRUCTURED, "response_format constrains the output already"))
            }
            (Some(constraint), None) => Ok(Some(constraint)),
            (None, form) => Ok(form.map(|form| Constraint { form, field: STRUCTURED })),
        }
    }
}

impl ResponseFormat {
    /// The form of the output, which `field` requests; `None` if it is free.
    pub(crate) fn form(self, field: &'static str) -> Result<Option<Constraint>, ApiError> {
        let schema = match (self.r#type, self.json_schema, self.schema) {
            (FormatType::Text, ..) => return Ok(None),
            (FormatType::JsonObject, _, schema) | (FormatType::JsonSchema, None, schema @ Some(_)) => schema,
            (FormatType::JsonSchema, Some(named), _) => named.schema,
            (FormatType::JsonSchema, None, None) => {
                return Err(ApiError::field(format!("{field}.json_schema"), "this field is required"));
            }
        };
        Ok(Some(Constraint::schema(schema.unwrap_or_else(any_object), field)))
    }
}

impl Constraint {
    /// An output that is an instance of a schema.
    pub(crate) fn schema(schema: Value, field: &'static str) -> Self {
        Self { form: ConstraintKind::Schema(schema), field }
    }

    /// Refuses what would keep the compiler busy for long, or fill its tables.
    fn check_size(&self) -> Result<(), ApiError> {
        let (name, bytes) = match &self.form {
            ConstraintKind::Schema(schema) => ("a schema", schema.to_string().len()),
            ConstraintKind::Regex(regex) => ("a regular expression", regex.len()),
            ConstraintKind::Grammar(lark) => ("a grammar", lark.len()),
            ConstraintKind::Choice(texts) if texts.len() > MAX_CHOICES => {
                let count = texts.len();
                return Err(ApiError::field(
                    self.field,
                    format!("a choice of {count} texts, at most {MAX_CHOICES}"),
                ));
            }
            ConstraintKind::Choice(texts) => ("a choice", texts.iter().map(String::len).sum()),
        };
        if bytes > MAX_BYTES {
            return Err(ApiError::field(self.field, format!("{name} of {bytes} bytes, at most {MAX_BYTES}")));
        }
        Ok(())
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

fn any_object() -> Value {
    json!({ "type": "object" })
}

impl StructuredOutputs {
    fn is_empty(&self) -> bool {
        let Self { json, regex, choice, grammar, json_object } = self;
        json.is_none() && regex.is_none() && choice.is_none() && grammar.is_none() && json_object.is_none()
    }

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
            json_object.filter(|wanted| *wanted).map(|_| ConstraintKind::Schema(any_object())),
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
    /// 400 with the reason if the constraint is none, is too large, or allows no first token.
    pub(crate) fn mask(&self, constraint: Constraint) -> Result<Box<dyn TokenMask>, ApiError> {
        let field = constraint.field;
        constraint.check_size()?;
        let matcher = Matcher::new(self.0.create_parser(constraint.grammar()));
        // Limits of the parser show with the first mask.
        match matcher
            .get_error()
            .or_else(|| matcher.deep_clone().compute_mask_or_eos().err().map(|e| e.to_string()))
        {
            Some(error) => Err(ApiError::field(field, first_line(&error))),
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

/// A library's error without its backtrace.
fn first_line(error: &str) -> &str {
    let line = error.lines().next().unwrap_or_default();
    line.split("<backtrace>").next().unwrap_or_default().trim()
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
