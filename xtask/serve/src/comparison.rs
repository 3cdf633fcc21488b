//! Comparison of texts: by a model that was trained to judge a document, or by the angles between embeddings.

use std::sync::Arc;

use pagoda::{Embedding, Model, Pooling, Reranker, error_chain};

use crate::call::Call;
use crate::embedding::{Embed, Embedded, Inputs, PromptUsage, check_count, cosine};
use crate::engine_use::EngineUse;
use crate::error::ApiError;
use crate::fields::Reader;
use crate::prompt::{Prompts, Reading};
use crate::server::Server;

/// Way in which a model compares two texts.
#[derive(Debug)]
pub(crate) enum Comparison {
    /// The probability that the second text is relevant for the first one, as the model judges it.
    Judgement(Reranker),
    /// The cosine of the angle between the embeddings of both.
    Angle(Pooling),
}

/// Texts of a call, and the field that holds them.
pub(crate) struct Part {
    pub(crate) field: &'static str,
    pub(crate) texts: Vec<String>,
}

/// Texts to compare: each of the second part with that of the first part at the same place, or with the only one.
pub(crate) struct Pairs {
    pub(crate) first: Part,
    pub(crate) second: Part,
    /// The question that a model judges by, in place of its own.
    pub(crate) instruction: Option<String>,
}

/// Scores of pairs.
pub(crate) struct Scores {
    /// One a pair, higher for texts that suit each other better.
    pub(crate) scores: Vec<f64>,
    pub(crate) usage: PromptUsage,
    pub(crate) engine: EngineUse,
}

impl Comparison {
    /// The way of a model with these embeddings, or the reason why there is none.
    pub(crate) fn of(model: &Model, embedding: &Result<Embedding, String>) -> Result<Self, String> {
        match (Reranker::new(model), embedding) {
            (Err(error), _) => Err(error_chain::joined(&error)),
            (Ok(Some(reranker)), _) => Ok(Self::Judgement(reranker)),
            (Ok(None), Err(reason)) => Err(reason.clone()),
            (Ok(None), Ok(embedding)) if embedding.stated => Ok(Self::Angle(embedding.pooling)),
            (Ok(None), Ok(_)) => {
                Err("the checkpoint states neither how embeddings are pooled nor which tokens judge a \
                                      document (modules.json of Sentence Transformers, pooling_type of GGUF)"
                    .to_owned())
            }
        }
    }
}

impl Pairs {
    /// Compares the texts.
    pub(crate) async fn compare(
        self,
        embed: Embed,
        server: &Arc<Server>,
        call: Call,
        reader: Reader,
    ) -> Result<(Scores, Vec<String>), ApiError> {
        let comparison = embed.settle_comparison(server)?;
        for Part { field, texts } in [&self.first, &self.second] {
            check_count(field, texts.len())?;
        }
        let (firsts, pairs, field) = (self.first.texts.len(), self.second.texts.len(), self.second.field);
        let (prompts, pooling) = match comparison {
            Comparison::Judgement(_) => (server.compute(|model| self.judged(model)).await?, Pooling::Last),
            Comparison::Angle(pooling) => {
                let add_special = embed.add_special;
                (server.compute(move |model| self.embedded(model, add_special)).await?, *pooling)
            }
        };
        let inputs = Inputs { field, prompts, pooling };
        let (Embedded { vectors, usage, engine }, ignored) = embed.run(server, call, inputs, reader).await?;
        let score = |pair: usize| match comparison {
            Comparison::Judgement(reranker) => 1.0 / (1.0 + (-reranker.score(&vectors[pair])).exp()),
            Comparison::Angle(_) => cosine(&vectors[pair % firsts], &vectors[firsts + pair]),
        };
        Ok((Scores { scores: (0..pairs).map(score).collect(), usage, engine }, ignored))
    }

    /// Prompts by which the model judges the pairs.
    fn judged(self, model: &Model) -> Result<Vec<Vec<u32>>, ApiError> {
        let Self { first, second, instruction } = self;
        for Part { field, texts } in [&first, &second] {
            if let Some(index) = texts.iter().position(String::is_empty) {
                return Err(ApiError::field(format!("{field}[{index}]"), "the text is empty"));
            }
        }
        let pairs = first.texts.iter().cycle().zip(&second.texts);
        let prompt = |(query, document): (&String, &String)| {
            Ok(Reranker::prompt(model, instruction.as_deref(), query, document)?)
        };
        pairs.map(prompt).collect()
    }

    /// Prompts of the embeddings of the first part and of the second one.
    fn embedded(self, model: &Model, add_special: bool) -> Result<Vec<Vec<u32>>, ApiError> {
        let Self { first, second, instruction } = self;
        if instruction.is_some() {
            return Err(ApiError::field(
                "instruction",
                "the model compares embeddings, for which there is none",
            ));
        }
        let mut prompts = Vec::new();
        for Part { field, texts } in [first, second] {
            let read = Prompts::Texts(texts).read(model, Reading { field, add_special, echo: false })?;
            prompts.extend(read.into_iter().map(|prompt| prompt.ids));
        }
        Ok(prompts)
    }
}
