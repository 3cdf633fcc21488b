//! Reports of the server about itself.

use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::ApiError;
use crate::keys::Client;
use crate::options::Options;
use crate::reply;
use crate::server::{Server, waiting};

/// The model that is served, under one of its names.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Model")]
pub(crate) struct ModelCard<'a> {
    id: &'a str,
    #[schemars(extend("const" = "model"))]
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Number of tokens of prompt and answer together.
    max_model_len: u32,
    /// Abilities of the model: `completion`, `embedding` if it has embeddings here, and `rerank` if it compares texts.
    capabilities: Vec<&'static str>,
}

/// The model under each of its names.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ModelList")]
pub(crate) struct Models<'a> {
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    data: Vec<ModelCard<'a>>,
}

/// Reply that says that the server is well.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Status {
    #[schemars(extend("const" = "ok"))]
    status: &'static str,
}

const OK: Status = Status { status: "ok" };

/// The version of the server.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Version {
    version: &'static str,
}

/// The load of the server.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Load")]
pub(crate) struct ServerLoad {
    /// Number of requests that run or wait.
    server_load: usize,
    num_running: usize,
    num_waiting: usize,
    /// Number of prompt tokens of requests that wait.
    num_waiting_tokens: u64,
    kv_blocks_used: u32,
    kv_blocks_total: u32,
}

/// Properties of the engine and its setup.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Props<'a> {
    model: &'a str,
    version: &'static str,
    context_length: u32,
    vocab_size: u32,
    num_layers: u32,
    eos_token_ids: &'a [u32],
    has_tokenizer: bool,
    has_chat_template: bool,
    /// Pooling of hidden states to embeddings: `last` or `mean`; null if there are none here.
    embedding_pooling: Option<&'static str>,
    /// Number of elements of an embedding.
    embedding_length: u32,
    kv_blocks: u32,
    kv_block_size: u32,
    kv_block_bytes: u64,
    max_queued_requests: usize,
    /// Maximum number of prompt tokens of requests that wait; null for any number.
    max_queued_tokens: Option<u64>,
    max_body_bytes: usize,
    max_held_bytes: usize,
    request_timeout_s: Option<u64>,
}

fn card<'a>(server: &Server, name: &'a str) -> ModelCard<'a> {
    ModelCard {
        id: name,
        object: "model",
        created: server.created,
        owned_by: "pagoda",
        max_model_len: server.options.context_length,
        capabilities: capabilities(server),
    }
}

fn capabilities(server: &Server) -> Vec<&'static str> {
    let others = [("embedding", server.embedding.is_ok()), ("rerank", server.comparison.is_ok())];
    let others = others.into_iter().filter_map(|(name, has)| has.then_some(name));
    ["completion"].into_iter().chain(others).collect()
}

/// `GET /v1/models`.
pub(crate) async fn models(State(server): State<Arc<Server>>) -> Response {
    let Options { model_name, model_aliases, .. } = &server.options;
    let cards: Vec<_> =
        [model_name].into_iter().chain(model_aliases).map(|name| card(&server, name)).collect();
    reply::json(&Models { object: "list", data: cards })
}

/// `GET /v1/models/{name}`.
pub(crate) async fn model(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    if !server.is_model(&name) {
        return Err(server.no_model(&name));
    }
    Ok(reply::json(&card(&server, &name)))
}

/// `GET /version`.
pub(crate) async fn version() -> Response {
    reply::json(&Version { version: env!("CARGO_PKG_VERSION") })
}

/// `GET /health` and `GET /health/ready`: whether the server takes calls.
pub(crate) async fn ready(State(server): State<Arc<Server>>) -> Result<Response, ApiError> {
    server.ready()?;
    Ok(reply::json(&OK))
}

/// `GET /health/live`: whether the engine works, even if the server takes no more calls.
pub(crate) async fn live(State(server): State<Arc<Server>>) -> Result<Response, ApiError> {
    if server.engines.is_over() {
        return Err(ApiError::busy("the engine has stopped").with_code("engine_stopped"));
    }
    Ok(reply::json(&OK))
}

/// `GET /load`: the load of the server, for routers that compare servers.
pub(crate) async fn load(State(server): State<Arc<Server>>) -> Response {
    let (mut num_running, mut num_waiting) = (0, 0);
    for engine in server.engines.engines() {
        let (waiting, snapshot) = waiting(engine);
        (num_running, num_waiting) = (num_running + snapshot.running.len(), num_waiting + waiting);
    }
    let blocks = server.blocks();
    reply::json(&ServerLoad {
        server_load: num_running + num_waiting,
        num_running,
        num_waiting,
        num_waiting_tokens: server.engines.num_waiting_tokens(),
        kv_blocks_used: blocks.used,
        kv_blocks_total: blocks.total,
    })
}

/// `GET /kv_event_sources`: the addresses at which events of the KV cache are published, in vLLM's form.
pub(crate) async fn kv_event_sources(State(server): State<Arc<Server>>) -> Response {
    reply::json(&server.options.kv_event_sources())
}

/// `GET /props`: the properties of the engine and its setup.
pub(crate) async fn props(State(server): State<Arc<Server>>) -> Response {
    let Options {
        model, model_name, context_length, max_body_bytes, max_held_bytes, request_timeout, ..
    } = &server.options;
    let (config, bounds) = (&model.config, server.engines.options());
    let blocks = server.blocks();
    reply::json(&Props {
        model: model_name,
        version: env!("CARGO_PKG_VERSION"),
        context_length: *context_length,
        vocab_size: config.vocab_size,
        num_layers: config.num_layers,
        eos_token_ids: &config.eos_ids,
        has_tokenizer: model.tokenizer.is_some(),
        has_chat_template: model.chat.is_some(),
        embedding_pooling: server.embedding.as_ref().ok().map(|embedding| embedding.pooling.name()),
        embedding_length: config.hidden_size,
        kv_blocks: blocks.total,
        kv_block_size: blocks.block_size,
        kv_block_bytes: blocks.block_bytes,
        max_queued_requests: bounds.max_waiting,
        max_queued_tokens: Some(bounds.max_waiting_tokens).filter(|most| *most < u64::MAX),
        max_body_bytes: *max_body_bytes,
        max_held_bytes: *max_held_bytes,
        request_timeout_s: request_timeout.map(|timeout| timeout.as_secs()),
    })
}

/// `POST /reset_prefix_cache`: empties the prefix cache on the device, unless sequences hold blocks. If calls need
/// API keys, this call needs an admin's key.
pub(crate) async fn reset_prefix_cache(
    State(server): State<Arc<Server>>,
    client: Option<Extension<Client>>,
) -> Result<Response, ApiError> {
    client.unwrap_or_default().check_admin()?;
    let mut all = true;
    let over = server.engines.is_over();
    // An engine that was lost holds nothing, as long as others serve.
    for engine in server.engines.engines().iter().filter(|engine| over || !engine.is_lost()) {
        all &= engine.call(|engine| engine.reset_prefix_cache())?.await.ok_or_else(ApiError::ending)?;
    }
    if all {
        return Ok(reply::json(&OK));
    }
    let message = "sequences hold KV blocks; try again when nothing runs";
    Err(ApiError::new(axum::http::StatusCode::CONFLICT, message))
}
