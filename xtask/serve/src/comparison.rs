//! Ways to compare texts: by a model that was trained to judge a document, or by the angles between embeddings.

use pagoda::{Embedding, Model, Pooling, Reranker, error_chain};

/// Reason why a model compares no texts, if its checkpoint states nothing about comparison.
const UNSTATED: &str = "the checkpoint states neither how embeddings are pooled nor which tokens judge a document \
                        (modules.json of Sentence Transformers, pooling_type of GGUF)";

/// Way in which a model compares two texts.
#[derive(Debug)]
pub(crate) enum Comparison {
    /// The probability that the second text is relevant for the first one, as the model judges it.
    Judgement(Reranker),
    /// The cosine of the angle between the embeddings of the two texts.
    Angle(Pooling),
}

impl Comparison {
    /// The comparison of a model with these embeddings, or the reason why it compares no texts.
    pub(crate) fn of(model: &Model, embedding: &Result<Embedding, String>) -> Result<Self, String> {
        match (Reranker::new(model), embedding) {
            (Err(error), _) => Err(error_chain::joined(&error)),
            (Ok(Some(reranker)), _) => Ok(Self::Judgement(reranker)),
            (Ok(None), Err(reason)) => Err(reason.clone()),
            (Ok(None), Ok(embedding)) if embedding.stated => Ok(Self::Angle(embedding.pooling)),
            (Ok(None), Ok(_)) => Err(UNSTATED.to_owned()),
        }
    }
}
