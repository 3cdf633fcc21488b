//! Relevance of documents to queries, by causal models that were trained to judge it, such as Qwen3-Reranker.

use models::{ConfigError, Message};

use crate::error::{CheckpointError, Error};
use crate::model::Model;

/// Scores a document by the logits of two tokens after a prompt of the query and the document, as `LogitScore` of Sentence
/// Transformers and vLLM's rerankers from a causal model do.
///
/// The chat template makes a prompt of messages with the roles `query` and `document`, and `system` for an instruction. The last
/// hidden state of that [prompt](Self::prompt), its embedding, is what is [scored](Self::score).
#[derive(Debug)]
pub struct Reranker {
    /// Row of the output head of the token that says "relevant", `[hidden]`.
    relevant: Vec<f32>,
    /// Row of the output head for the token that means "not relevant"; `None` if the checkpoint names only one token.
    irrelevant: Option<Vec<f32>>,
    /// Softcap of logits: see [`DecoderConfig::logit_softcap`](models::DecoderConfig::logit_softcap).
    softcap: Option<f32>,
}

impl Reranker {
    /// The reranker of a model, or `None` if its checkpoint does not describe one.
    ///
    /// # Errors
    /// [`Error::Open`] if `modules.json` is broken, or a token of it has no logit, and [`Error::NoChatTemplate`].
    pub fn new(model: &Model) -> Result<Option<Self>, Error> {
        let of_checkpoint = |source: CheckpointError| {
            let name = model.checkpoint().weights().path().display().to_string();
            Error::Open { name, source: Box::new(source) }
        };
        let score = model.checkpoint().logit_score().map_err(|error| of_checkpoint(error.into()))?;
        let Some(score) = score else { return Ok(None) };
        if model.chat.is_none() {
            return Err(Error::NoChatTemplate);
        }
        let row = |field: &'static str, value: u32| {
            let row = model.checkpoint().head_row(value).map_err(of_checkpoint)?;
            let max = model.config.vocab_size - 1;
            row.ok_or_else(|| of_checkpoint(ConfigError::TooLarge { field, value, max }.into()))
        };
        Ok(Some(Self {
            relevant: row("true_token_id", score.relevant)?,
            irrelevant: score.irrelevant.map(|token| row("false_token_id", token)).transpose()?,
            softcap: model.config.logit_softcap,
        }))
    }

    /// Token ids of the prompt for a document, to be [embedded](crate::Request::embedding) by its last token. Without an
    /// instruction, the template has its own. Control tokens that a text spells out stay text.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`], and errors of the template.
    pub fn prompt(
        model: &Model,
        instruction: Option<&str>,
        query: &str,
        document: &str,
    ) -> Result<Vec<u32>, Error> {
        let mut messages = vec![Message::new("query", query), Message::new("document", document)];
        if let Some(instruction) = instruction {
            messages.insert(0, Message::new("system", instruction));
        }
        model.chat_ids(&messages)
    }

    /// The score of a document by the embedding of its [prompt](Self::prompt): the log odds of relevance, or, if the
    /// checkpoint names only one token, the logit of this token. O(hidden).
    #[must_use]
    pub fn score(&self, embedding: &[f32]) -> f64 {
        let logit = |row: &[f32]| {
            let logit: f64 = row.iter().zip(embedding).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            self.softcap.map(f64::from).map_or(logit, |cap| cap * (logit / cap).tanh())
        };
        logit(&self.relevant) - self.irrelevant.as_deref().map_or(0.0, logit)
    }
}
