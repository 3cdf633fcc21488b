//! Prompts of completions and embeddings: texts or token ids, one or several.

use pagoda::Model;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::error::ApiError;

/// Prompts in the forms that OpenAI has for them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "must be a string, a list of strings, a list of token ids, or a list of lists of token ids"
)]
pub(crate) enum Prompts {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    IdLists(Vec<Vec<u32>>),
}

/// One prompt: its ids, and its text as given or, if `echo` is set, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub(crate) ids: Vec<u32>,
    pub(crate) text: String,
}

/// Settings by which prompts are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    /// The field of the prompts, which errors name.
    pub(crate) field: &'static str,
    /// Whether to add the special tokens that the tokenizer puts around a text.
    pub(crate) add_special: bool,
    /// Whether the texts of prompts that are given as ids are needed.
    pub(crate) echo: bool,
}

impl Prompts {
    /// Number of prompts.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Text(_) | Self::Ids(_) => 1,
            Self::Texts(texts) => texts.len(),
            Self::IdLists(lists) => lists.len(),
        }
    }

    /// The prompts as ids.
    pub(crate) fn read(self, model: &Model, reading: Reading) -> Result<Vec<Prompt>, ApiError> {
        let text = |text: String| {
            let ids = model.tokenizer()?.encode(&text, reading.add_special).map_err(pagoda::Error::from)?;
            Ok(Prompt { ids, text })
        };
        let ids = |ids: Vec<u32>| {
            let wanted = model.tokenizer.as_ref().filter(|_| reading.echo);
            let text = wanted.map(|tokenizer| tokenizer.decode(&ids, false)).transpose();
            Ok(Prompt { ids, text: text.map_err(pagoda::Error::from)?.unwrap_or_default() })
        };
        let prompts: Vec<Prompt> = match self {
            Self::Text(one) => vec![text(one)?],
            Self::Ids(one) => vec![ids(one)?],
            Self::Texts(many) => many.into_iter().map(text).collect::<Result<_, ApiError>>()?,
            Self::IdLists(many) => many.into_iter().map(ids).collect::<Result<_, ApiError>>()?,
        };
        let field = reading.field;
        match prompts.iter().position(|prompt| prompt.ids.is_empty()) {
            _ if prompts.is_empty() => Err(ApiError::field(field, "there is no prompt")),
            Some(index) if prompts.len() > 1 => {
                Err(ApiError::field(format!("{field}[{index}]"), "the prompt is empty"))
            }
            Some(_) => Err(ApiError::field(field, "the prompt is empty")),
            None => Ok(prompts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_come_in_four_forms() {
        let read = |json| serde_json::from_str::<Prompts>(json).map_err(|error| error.to_string());
        assert_eq!(read(r#""a""#).unwrap(), Prompts::Text("a".into()));
        assert_eq!(read(r#"["a","b"]"#).unwrap(), Prompts::Texts(vec!["a".into(), "b".into()]));
        assert_eq!(read("[1,2]").unwrap(), Prompts::Ids(vec![1, 2]));
        assert_eq!(read("[[1],[2]]").unwrap(), Prompts::IdLists(vec![vec![1], vec![2]]));
        let refused =
            r#"must be a string, a list of strings, a list of token ids, or a list of lists of token ids"#;
        for wrong in ["1", "[-1]", r#"["a",1]"#, "{}"] {
            assert_eq!(read(wrong).unwrap_err(), refused);
        }
    }
}
