//! `POST /v1/rerank` and `/v1/score`: likeness of texts, by the angles between their embeddings.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::call::Call;
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
}

/// The types of the body of a call that ranks documents.
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
    /// The texts that they are compared with.
    #[serde(alias = "documents")]
    text_2: Texts,
}

/// The types of the body of a call that compares texts.
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
    /// Cosine of the angle between the embeddings of query and document.
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
    /// Cosine of the angle between the embeddings of both texts.
    score: f64,
}

/// Texts of a call, and the field that holds them.
struct Part {
    field: &'static str,
    texts: Vec<String>,
}

/// Ranks documents by their likeness with a query.
pub(crate) async fn rerank(State(server): State<Arc<Server>>, call: Call) -> Result<Response, ApiError> {
    let mut reader = server.reader();
    let (fields, options): RerankBody = reader.body(&call.body)?;
    let RerankFields { query, documents, top_n, return_documents } = fields;
    let (embed, id) = (options.check()?, call.id.prefixed("rerank"));
    let texts: Vec<String> = documents.into_iter().map(Document::into_text).collect();
    let shown = return_documents.unwrap_or(true).then(|| texts.clone());
    let parts = [Part { field: "query", texts: vec![query] }, Part { field: "documents", texts }];
    let (Embedded { vectors, usage, engine }, ignored) =
        embed_parts(embed, &server, call, parts, reader).await?;
    let ranked = |(index, vector): (usize, &Vec<f32>)| Ranked {
        index,
        document: shown.as_ref().map(|texts| RankedDocument { text: texts[index].clone() }),
        relevance_score: cosine(&vectors[0], vector),
    };
    let mut results: Vec<Ranked> = vectors[1..].iter().enumerate().map(ranked).collect();
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
    let (ScoreFields { text_1, text_2 }, options): ScoreBody = reader.body(&call.body)?;
    let (embed, id, created) = (options.check()?, call.id.prefixed("score"), unix_seconds());
    let (first, second) = (text_1.into_vec(), text_2.into_vec());
    let (count, pairs) = (first.len(), second.len());
    if count != 1 && count != pairs {
        let message = format!("{count} texts, must be 1 or {pairs}, as many as in text_2");
        return Err(ApiError::field("text_1", message));
    }
    let parts = [Part { field: "text_1", texts: first }, Part { field: "text_2", texts: second }];
    let (Embedded { vectors, usage, engine }, ignored) =
        embed_parts(embed, &server, call, parts, reader).await?;
    let (first, second) = vectors.split_at(count);
    let scored = |(index, (a, b)): (usize, (&Vec<f32>, &Vec<f32>))| Scored {
        index,
        object: "score",
        score: cosine(a, b),
    };
    // One text is compared with each.
    let data = first.iter().cycle().zip(second).enumerate().map(scored).collect();
    let model = server.options.model_name.clone();
    let list = ScoreList { id, object: "list", created, model, data, usage, pagoda: engine };
    Ok(reply::with_ignored(reply::json(&list), &ignored))
}

/// Embeds the texts of two fields, one field after the other.
async fn embed_parts(
    embed: Embed,
    server: &Arc<Server>,
    call: Call,
    parts: [Part; 2],
    reader: Reader,
) -> Result<(Embedded, Vec<String>), ApiError> {
    embed.settle(server)?;
    let field = parts[1].field;
    for Part { field, texts } in &parts {
        check_count(field, texts.len())?;
    }
    let add_special = embed.add_special;
    let encode = move |model: &pagoda::Model| {
        let mut prompts = Vec::new();
        for Part { field, texts } in parts {
            let read = Prompts::Texts(texts).read(model, Reading { field, add_special, echo: false })?;
            prompts.extend(read.into_iter().map(|prompt| prompt.ids));
        }
        Ok(prompts)
    };
    let prompts = server.compute(encode).await?;
    embed.run(server, call, Inputs { field, prompts }, reader).await
}
