//! `POST /v1/embeddings`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::call::Call;
use crate::embedding::{Embedded, EmbeddingFields, Inputs, PromptUsage, check_count, length, normalised};
use crate::engine_use::EngineUse;
use crate::error::ApiError;
use crate::fields::Int;
use crate::prompt::{Prompts, Reading};
use crate::reply;
use crate::server::{Server, unix_seconds};

/// Fields of a call for embeddings.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct EmbeddingsFields {
    /// A text, a list of texts, ids of tokens, or a list of lists of ids.
    input: Prompts,
    /// Form of the numbers: `float` for a list, `base64` for the bytes of f32 numbers, low byte first.
    encoding_format: Option<Encoding>,
    /// Number of elements that embeddings are cut to, if the model was trained for that.
    #[schemars(range(min = 1))]
    dimensions: Option<Int<u32>>,
}

/// Types that together have all fields of the body of a call for embeddings.
pub(crate) type EmbeddingsBody = (EmbeddingsFields, EmbeddingFields);

/// Form of the numbers of an embedding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Float,
    Base64,
}

/// Embeddings in the order of the texts.
#[derive(Serialize, JsonSchema)]
pub(crate) struct EmbeddingList {
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    id: String,
    created: u64,
    model: String,
    data: Vec<Item>,
    usage: PromptUsage,
    pagoda: EngineUse,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "EmbeddingItem")]
struct Item {
    #[schemars(extend("const" = "embedding"))]
    object: &'static str,
    index: usize,
    embedding: Vector,
}

/// A vector of length 1; in base64, the bytes of its f32 numbers, low byte first.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Embedding")]
enum Vector {
    Numbers(Vec<f32>),
    Bytes(String),
}

impl Vector {
    fn new(numbers: Vec<f32>, encoding: Encoding) -> Self {
        match encoding {
            Encoding::Float => Self::Numbers(numbers),
            Encoding::Base64 => {
                let bytes: Vec<u8> = numbers.into_iter().flat_map(f32::to_le_bytes).collect();
                Self::Bytes(BASE64_STANDARD.encode(bytes))
            }
        }
    }
}

/// Embeds texts.
pub(crate) async fn answer(State(server): State<Arc<Server>>, call: Call) -> Result<Response, ApiError> {
    let mut reader = server.reader();
    let (fields, options): EmbeddingsBody = reader.body(&call.body)?;
    let EmbeddingsFields { input, encoding_format, dimensions } = fields;
    let (embed, id, created) = (options.check()?, call.id.prefixed("embd"), unix_seconds());
    let hidden = server.options.model.config.hidden_size;
    let pagoda::Embedding { pooling, lengths, .. } = embed.settle(&server)?;
    let length = length(dimensions.map(|Int(length)| length), hidden, lengths)?;
    check_count("input", input.count())?;
    let reading = Reading { field: "input", add_special: embed.add_special, echo: false };
    let prompts = server.compute(move |model| input.read(model, reading)).await?;
    let prompts = prompts.into_iter().map(|prompt| prompt.ids).collect();
    let inputs = Inputs { field: "input", prompts, pooling: *pooling };
    let (Embedded { vectors, usage, engine }, ignored) = embed.run(&server, call, inputs, reader).await?;
    let encoding = encoding_format.unwrap_or_default();
    let item = |(index, vector)| {
        let embedding = Vector::new(normalised(vector, length), encoding);
        Item { object: "embedding", index, embedding }
    };
    let list = EmbeddingList {
        object: "list",
        id,
        created,
        model: server.options.model_name.clone(),
        data: vectors.into_iter().enumerate().map(item).collect(),
        usage,
        pagoda: engine,
    };
    Ok(reply::with_ignored(reply::json(&list), &ignored))
}
