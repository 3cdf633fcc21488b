//! Fields of a call that give its output a form.

use pagoda::{Constraint, ConstraintError, Model, TokenMask};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;

/// Form that an output must have.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OutputFormat {
    pub(crate) form: Constraint,
    /// The field that requests the format.
    pub(crate) field: &'static str,
}

impl OutputFormat {
    /// The mask of an output.
    ///
    /// # Errors
    /// 400 with the field and the reason if the form is none, is too large, or allows no first token; 500 if the compiler does
    /// not take the tokens of the model.
    pub(crate) fn mask(&self, model: &Model) -> Result<Box<dyn TokenMask>, ApiError> {
        model.mask(&self.form).map_err(|error| match error {
            pagoda::Error::Constraint(error @ ConstraintError::NoEnd) => ApiError::invalid(error.to_string()),
            pagoda::Error::Constraint(error @ ConstraintError::Tokens { .. }) => {
                ApiError::internal(error.to_string())
            }
            pagoda::Error::Constraint(error) => ApiError::field(self.field, error.to_string()),
            other => other.into(),
        })
    }
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
    /// Not used: schemas always hold.
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
    /// Not used: schemas always hold.
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
    pub(crate) fn check(self) -> Result<Option<OutputFormat>, ApiError> {
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
            (None, form) => Ok(form.map(|form| OutputFormat { form, field: STRUCTURED })),
        }
    }
}

impl ResponseFormat {
    /// The form of the output, which `field` requests; `None` if it is free.
    pub(crate) fn form(self, field: &'static str) -> Result<Option<OutputFormat>, ApiError> {
        let schema = match (self.r#type, self.json_schema, self.schema) {
            (FormatType::Text, ..) => return Ok(None),
            (FormatType::JsonObject, _, schema) | (FormatType::JsonSchema, None, schema @ Some(_)) => schema,
            (FormatType::JsonSchema, Some(named), _) => named.schema,
            (FormatType::JsonSchema, None, None) => {
                return Err(ApiError::field(format!("{field}.json_schema"), "this field is required"));
            }
        };
        let form = schema.map_or_else(Constraint::json_object, Constraint::Schema);
        Ok(Some(OutputFormat { form, field }))
    }
}

impl StructuredOutputs {
    fn is_empty(&self) -> bool {
        let Self { json, regex, choice, grammar, json_object } = self;
        json.is_none() && regex.is_none() && choice.is_none() && grammar.is_none() && json_object.is_none()
    }

    fn form(self) -> Result<Constraint, ApiError> {
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
            json.map(parsed).transpose()?.map(Constraint::Schema),
            regex.map(Constraint::Regex),
            choice.map(Constraint::Choice),
            grammar.map(Constraint::Lark),
            json_object.filter(|wanted| *wanted).map(|_| Constraint::json_object()),
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
