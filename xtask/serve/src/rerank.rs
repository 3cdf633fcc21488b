//! `POST /v1/rerank` and `/v1/score`: relevance of documents, and likeness of texts.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use pagoda::{Model, Pooling, Reranker};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::call::Call;
use crate::comparison::Comparison;
use crate::embedding::{Embed, Embedded, EmbeddingFields, Inputs, PromptUsage, check_count, cosine};
use crate::engine_use::EngineUse;
use crate::error::ApiError;
use crate::fields::{Int, Reader};
use crate::generation::Texts;
use crate::prompt::{Prompts, Reading};
use crate::reply;
use crate::server::{Server, unix_seconds};

/// Fields of a call that ranks documents.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct RerankFields {
    /// The text that documents are compared with.
    query: String,
    /// The documents.
    documents: Vec<Document>,
    /// Number of documents that are returned, the most relevant ones; all without it and with 0.
    top_n: Option<Int<u32>>,
    /// Return the texts of the documents, too; true without it.
    return_documents: Option<bool>,
    /// The question by which a reranker judges documents, in place of its own.
    #[serde(alias = "instruct")]
    instruction: Option<String>,
}

/// Types that together have all fields of the body of a call that ranks documents.
pub(crate) type RerankBody = (RerankFields, EmbeddingFields);

/// A document to rank.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "must be a string or an object with a text")]
enum Document {
    Text(String),
    Object { text: String },
}

impl Document {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}

/// Fields of a call that compares texts.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ScoreFields {
    /// One text, or as many as in `text_2`.
    #[serde(alias = "queries")]
    text_1: Texts,
    /// The texts with which those of `text_1` are compared.
    #[serde(alias = "documents")]
    text_2: Texts,
    /// The question by which a reranker judges texts, in place of its own.
    #[serde(alias = "instruct")]
    instruction: Option<String>,
}

/// Types that together have all fields of the body of a call that compares texts.
pub(crate) type ScoreBody = (ScoreFields, EmbeddingFields);

/// Documents, the most relevant one first.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Ranking {
    id: String,
    model: String,
    results: Vec<Ranked>,
    usage: PromptUsage,
    pagoda: EngineUse,
}

#[derive(Serialize, JsonSchema)]
struct Ranked {
    /// Index of the document in the call.
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<RankedDocument>,
    /// Probability that the document is relevant, as a reranker judges it; of other models the cosine of the angle between the
    /// embeddings of query and document.
    relevance_score: f64,
}

#[derive(Serialize, JsonSchema)]
struct RankedDocument {
    text: String,
}

/// Scores in the order of the pairs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ScoreList {
    id: String,
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<Scored>,
    usage: PromptUsage,
    pagoda: EngineUse,
}

#[derive(Serialize, JsonSchema)]
struct Scored {
    index: usize,
    #[schemars(extend("const" = "score"))]
    object: &'static str,
    /// Probability that the second text is relevant for the first, as a reranker judges it; of other models the cosine of the
    /// angle between the embeddings of both.
    score: f64,
}

/// Texts of a call, and the field that holds them.
struct Part {
    field: &'static str,
    texts: Vec<String>,
}

/// Texts to compare. Each text of the second part is compared with the text of the first part at the same place, or
/// with the only text of the first part.
struct Pairs {
    first: Part,
    second: Part,
    /// The question that a model judges by, in place of its own.
    instruction: Option<String>,
}

/// Scores of pairs.
struct Scores {
    /// Scores, one for each pair, higher for texts that suit each other better.
    scores: Vec<f64>,
    usage: PromptUsage,
    engine: EngineUse,
}

/// Ranks documents by their relevance for a query.
pub(crate) async fn rerank(State(server): State<Arc<Server>>, call: Call) -> Result<Response, ApiError> {
    let mut reader = server.reader();
    let (fields, options): RerankBody = reader.body(&call.body)?;
    let RerankFields { query, documents, top_n, return_documents, instruction } = fields;
    let (embed, id) = (options.check()?, call.id.prefixed("rerank"));
    let texts: Vec<String> = documents.into_iter().map(Document::into_text).collect();
    let shown = return_documents.unwrap_or(true).then(|| texts.clone());
    let first = Part { field: "query", texts: vec![query] };
    let pairs = Pairs { first, second: Part { field: "documents", texts }, instruction };
    let (Scores { scores, usage, engine }, ignored) = pairs.compare(embed, &server, call, reader).await?;
    let ranked = |(index, relevance_score): (usize, f64)| Ranked {
        index,
        document: shown.as_ref().map(|texts| RankedDocument { text: texts[index].clone() }),
        relevance_score,
    };
    let mut results: Vec<Ranked> = scores.into_iter().enumerate().map(ranked).collect();
    // The order of documents that are equally relevant stays.
    results.sort_by(|a, b| b.relevance_score.total_cmp(&a.relevance_score));
    if let Some(Int(most @ 1..)) = top_n {
        results.truncate(most as usize);
    }
    let ranking = Ranking { id, model: server.options.model_name.clone(), results, usage, pagoda: engine };
    Ok(reply::with_ignored(reply::json(&ranking), &ignored))
}

/// Compares texts.
pub(crate) async fn score(State(server): State<Arc<Server>>, call: Call) -> Result<Response, ApiError> {
    let mut reader = server.reader();
    let (ScoreFields { text_1, text_2, instruction }, options): ScoreBody = reader.body(&call.body)?;
    let (embed, id, created) = (options.check()?, call.id.prefixed("score"), unix_seconds());
    let (first, second) = (text_1.into_vec(), text_2.into_vec());
    let (count, pairs) = (first.len(), second.len());
    if count != 1 && count != pairs {
        let message = format!("{count} texts, must be 1 or {pairs}, as many as in text_2");
        return Err(ApiError::field("text_1", message));
    }
    let first = Part { field: "text_1", texts: first };
    let pairs = Pairs { first, second: Part { field: "text_2", texts: second }, instruction };
    let (Scores { scores, usage, engine }, ignored) = pairs.compare(embed, &server, call, reader).await?;
    let scored = |(index, score)| Scored { index, object: "score", score };
    let data = scores.into_iter().enumerate().map(scored).collect();
    let model = server.options.model_name.clone();
    let list = ScoreList { id, object: "list", created, model, data, usage, pagoda: engine };
    Ok(reply::with_ignored(reply::json(&list), &ignored))
}

impl Pairs {
    /// Compares the texts.
    async fn compare(
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

    /// Returns the prompts whose embeddings are compared: all first texts, then all second texts.
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
