//! Embeddings of prompts, for the calls that return or compare them.

use std::sync::Arc;

use pagoda::{Embedding, Event, Lengths, Pooling, Request};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::call::Call;
use crate::comparison::Comparison;
use crate::engine_use::EngineUse;
use crate::error::ApiError;
use crate::fields::{Int, Reader};
use crate::generation::salt;
use crate::running::Running;
use crate::server::Server;

/// Maximum number of texts of a call, as in OpenAI's API.
pub(crate) const MAX_TEXTS: usize = 2048;

/// Number of prompts of a call that the engine has at one time, so that many do not fill its queue.
const GROUP: usize = 64;

/// Fields that calls for embeddings have in common.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "EmbeddingOptions")]
pub(crate) struct EmbeddingFields {
    /// Name of the model. Any name is answered by the model that the server has, unless it is strict about names.
    model: Option<String>,
    /// Add the special tokens that the tokenizer puts around a text, as most models of embeddings need.
    add_special_tokens: Option<bool>,
    /// Salt that separates entries of the prefix cache: only calls with the same salt share them. 1 to 1024 bytes.
    cache_salt: Option<String>,
    /// Priority of the request: lower values run first, if the server orders requests by priority.
    priority: Option<Int<i32>>,
}

/// A call for embeddings, checked.
#[derive(Debug)]
pub(crate) struct Embed {
    model: Option<String>,
    pub(crate) add_special: bool,
    salt: Option<String>,
    priority: i32,
}

/// Embeddings of the prompts of a call.
#[derive(Debug)]
pub(crate) struct Embedded {
    /// Embeddings, one for each prompt, `[hidden]`, not normalised.
    pub(crate) vectors: Vec<Vec<f32>>,
    pub(crate) usage: PromptUsage,
    pub(crate) engine: EngineUse,
}

/// Tokens that a call without answers used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct PromptUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

/// The prompts of a call, and the field that errors about them name.
#[derive(Debug)]
pub(crate) struct Inputs {
    pub(crate) field: &'static str,
    /// Token ids of each prompt.
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) pooling: Pooling,
}

impl EmbeddingFields {
    pub(crate) fn check(self) -> Result<Embed, ApiError> {
        Ok(Embed {
            model: self.model,
            add_special: self.add_special_tokens.unwrap_or(true),
            salt: salt(self.cache_salt)?,
            priority: self.priority.map_or(0, |Int(priority)| priority),
        })
    }
}

impl Embed {
    /// Checks the name of the model, and whether the model has embeddings.
    pub(crate) fn settle<'s>(&self, server: &'s Server) -> Result<&'s Embedding, ApiError> {
        server.check_model(self.model.as_deref())?;
        server.embedding.as_ref().map_err(|reason| {
            ApiError::field("model", format!("it has no embeddings here: {reason}"))
                .with_code("no_embeddings")
        })
    }

    /// Checks the name of the model, and whether the model can compare texts.
    pub(crate) fn settle_comparison<'s>(&self, server: &'s Server) -> Result<&'s Comparison, ApiError> {
        server.check_model(self.model.as_deref())?;
        server.comparison.as_ref().map_err(|reason| {
            ApiError::field("model", format!("it compares no texts: {reason}")).with_code("no_comparison")
        })
    }

    /// Lets the engine embed prompts, some of them at a time.
    pub(crate) async fn run(
        self,
        server: &Arc<Server>,
        call: Call,
        inputs: Inputs,
        reader: Reader,
    ) -> Result<(Embedded, Vec<String>), ApiError> {
        let Inputs { field, prompts, pooling } = inputs;
        let prompt_tokens = prompts.iter().map(|prompt| prompt.len() as u64).sum();
        let ignored = reader.ignored();
        let mut engine = server.engine_use(None, &[]);
        engine.warn(&ignored);
        let (caller, mut vectors, mut cached) = (call.caller(), vec![Vec::new(); prompts.len()], 0);
        for (group, first) in groups(prompts).zip((0..).step_by(GROUP)) {
            let request = |prompt| {
                let mut request = Request::embedding(prompt, pooling).priority(self.priority);
                request.salt.clone_from(&self.salt);
                request.deadline = server.deadline();
                request
            };
            let requests = group.into_iter().map(request).collect();
            let mut running = Running::submit(server, requests, &caller, field).await?;
            while let Some(event) = running.next().await {
                let (prompt, event) = event?;
                engine.take(&event);
                match event {
                    Event::Started(started) => cached += u64::from(started.cached.total()),
                    Event::Finished(end) => {
                        let lost = || ApiError::internal("a prompt ended without its embedding");
                        vectors[first + prompt] = end.embedding.ok_or_else(lost)?;
                    }
                    _ => {}
                }
                caller.record.set_tokens(prompt_tokens, cached, 0);
            }
        }
        let usage = PromptUsage { prompt_tokens, total_tokens: prompt_tokens };
        Ok((Embedded { vectors, usage, engine }, ignored))
    }
}

/// The prompts in groups of `GROUP`.
fn groups(mut prompts: Vec<Vec<u32>>) -> impl Iterator<Item = Vec<Vec<u32>>> {
    std::iter::from_fn(move || {
        let rest = prompts.split_off(prompts.len().min(GROUP));
        Some(std::mem::replace(&mut prompts, rest)).filter(|group| !group.is_empty())
    })
}

/// Refuses calls without texts, and calls with too many texts.
pub(crate) fn check_count(field: &str, count: usize) -> Result<(), ApiError> {
    match count {
        0 => Err(ApiError::field(field, "there is no text")),
        count if count > MAX_TEXTS => {
            Err(ApiError::field(field, format!("{count} texts, at most {MAX_TEXTS}")))
        }
        _ => Ok(()),
    }
}

/// Number of elements that embeddings of `hidden` elements are cut to.
pub(crate) fn length(asked: Option<u32>, hidden: u32, lengths: &Lengths) -> Result<usize, ApiError> {
    let length = asked.unwrap_or(hidden);
    let refuse = |rule: &str| Err(ApiError::field("dimensions", format!("{length}, {rule}")));
    match lengths {
        _ if length == hidden => Ok(length as usize),
        Lengths::Whole => {
            refuse(&format!("must be {hidden}: the model was not trained for shorter embeddings"))
        }
        Lengths::Any if (1..hidden).contains(&length) => Ok(length as usize),
        Lengths::Any => refuse(&format!("must be 1 to {hidden}")),
        Lengths::Listed(listed) if length < hidden && listed.contains(&length) => Ok(length as usize),
        Lengths::Listed(listed) => refuse(&format!("must be {hidden} or one of {listed:?}")),
    }
}

/// The first `length` elements of a vector, scaled to length 1.
pub(crate) fn normalised(mut vector: Vec<f32>, length: usize) -> Vec<f32> {
    vector.truncate(length);
    let norm = dot(&vector, &vector).sqrt();
    if norm > 0.0 {
        #[expect(clippy::cast_possible_truncation, reason = "embeddings are f32")]
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / norm) as f32);
    }
    vector
}

/// The cosine of the angle between two vectors; 0 if one of them is 0.
pub(crate) fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    if norms > 0.0 { dot(a, b) / norms } else { 0.0 }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_are_cut_as_the_model_was_trained() {
        let told = |asked, lengths: &Lengths| length(Some(asked), 64, lengths).map_err(|error| error.message);
        assert_eq!(length(None, 64, &Lengths::Whole), Ok(64));
        assert_eq!(told(64, &Lengths::Whole), Ok(64));
        insta::assert_snapshot!(told(32, &Lengths::Whole).unwrap_err(), @"dimensions: 32, must be 64: the model was not trained for shorter embeddings");
        assert_eq!(told(1, &Lengths::Any), Ok(1));
        insta::assert_snapshot!(told(65, &Lengths::Any).unwrap_err(), @"dimensions: 65, must be 1 to 64");
        let listed = Lengths::Listed(vec![16, 32]);
        assert_eq!(told(16, &listed), Ok(16));
        insta::assert_snapshot!(told(0, &listed).unwrap_err(), @"dimensions: 0, must be 64 or one of [16, 32]");
    }

    #[test]
    fn vectors_have_length_one_after_they_were_cut() {
        assert_eq!(normalised(vec![3.0, 4.0, 12.0], 2), [0.6, 0.8]);
        assert_eq!(normalised(vec![0.0, 0.0], 2), [0.0, 0.0]);
        assert_eq!([cosine(&[1.0, 0.0], &[2.0, 0.0]), cosine(&[1.0, 0.0], &[0.0, 0.0])], [1.0, 0.0]);
    }

    #[test]
    fn groups_are_all_prompts_in_order() {
        let prompts: Vec<Vec<u32>> = (0..130).map(|id| vec![id]).collect();
        let sizes: Vec<usize> = groups(prompts.clone()).map(|group| group.len()).collect();
        assert_eq!(sizes, [64, 64, 2]);
        assert_eq!(groups(prompts.clone()).flatten().collect::<Vec<_>>(), prompts);
    }
}
