//! The table of routes: methods, paths, handlers, and what the document says of them.

mod openapi;

use std::sync::Arc;

use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{self, MethodRouter};
use serde_json::{Map, Value};

use crate::anthropic::{self, AnthropicError, InputTokens, MessagesBody, MessagesEvent, MessagesReply};
use crate::generate::{self, GenerateBody, Generated};
use crate::kv_source::KvEventSource;
use crate::openai::chat::{self, ChatBody};
use crate::openai::completions::{self, CompletionBody, TextCompletion};
use crate::openai::embeddings::{self, EmbeddingList, EmbeddingsBody};
use crate::openai::responses::{self, ResponseBody, ResponseEvent, ResponseTokens, ResponsesBody};
use crate::rerank::{self, Ranking, RerankBody, ScoreBody, ScoreList};
use crate::server::Server;
use crate::tokens::{self, DetokenizeFields, Detokenized, Rendered, TokenizeBody, Tokenized};
use crate::{about, metrics};
use openapi::Doc;

/// A route of the server.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) handler: MethodRouter<Arc<Server>>,
    pub(crate) doc: Doc,
}

fn get<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<Server>>, doc: Doc) -> Route {
    Route { method: Method::GET, path, handler: routing::get(handler), doc }
}

fn post<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<Server>>, doc: Doc) -> Route {
    Route { method: Method::POST, path, handler: routing::post(handler), doc }
}

/// All routes but those of the page.
pub(crate) fn routes() -> Vec<Route> {
    answers().into_iter().chain(embeddings()).chain(tokens()).chain(reports()).collect()
}

fn answers() -> [Route; 7] {
    let chat = Doc::new::<chat::Whole>("chat", "Answer to a conversation");
    let complete = Doc::new::<TextCompletion>("complete", "Completions of texts");
    let respond = Doc::new::<ResponseBody>("respond", "Response to an input");
    let count = Doc::new::<ResponseTokens>("countResponse", "Number of tokens of an input");
    let message = Doc::new::<MessagesReply>("message", "Answer to a conversation in Anthropic's form");
    let count_message =
        Doc::new::<InputTokens>("countTokens", "Number of tokens of a conversation in Anthropic's form");
    let generate = Doc::new::<Generated>("generate", "Continuation of ids by ids");
    [
        post(
            "/v1/chat/completions",
            chat::answer,
            chat.body::<ChatBody>("ChatRequest").events::<chat::Chunk>(),
        ),
        post(
            "/v1/completions",
            completions::answer,
            complete.body::<CompletionBody>("CompletionRequest").events::<TextCompletion>(),
        ),
        post(
            "/v1/responses",
            responses::answer,
            respond.body::<ResponsesBody>("ResponsesRequest").events::<ResponseEvent>(),
        ),
        post(
            "/v1/responses/input_tokens",
            responses::input_tokens,
            count.body::<ResponsesBody>("ResponsesRequest"),
        ),
        post(
            "/v1/messages",
            anthropic::messages,
            message
                .body::<MessagesBody>("MessagesRequest")
                .events::<MessagesEvent>()
                .errors::<AnthropicError>(),
        ),
        post(
            "/v1/messages/count_tokens",
            anthropic::count_tokens,
            count_message.body::<MessagesBody>("MessagesRequest").errors::<AnthropicError>(),
        ),
        post(
            "/inference/v1/generate",
            generate::answer,
            generate.body::<GenerateBody>("GenerateRequest").nested(generate::PARAMS).events::<Generated>(),
        ),
    ]
}

fn embeddings() -> [Route; 6] {
    let embed = Doc::new::<EmbeddingList>("embed", "Embeddings of texts");
    let rank = |id| {
        Doc::new::<Ranking>(id, "Documents in the order of their likeness with a query")
            .body::<RerankBody>("RerankRequest")
    };
    let score = |id| Doc::new::<ScoreList>(id, "Likeness of texts").body::<ScoreBody>("ScoreRequest");
    [
        post("/v1/embeddings", embeddings::answer, embed.body::<EmbeddingsBody>("EmbeddingsRequest")),
        post("/v1/rerank", rerank::rerank, rank("rerank")),
        post("/v2/rerank", rerank::rerank, rank("rerankV2")),
        post("/rerank", rerank::rerank, rank("rerankPlain")),
        post("/v1/score", rerank::score, score("score")),
        post("/score", rerank::score, score("scorePlain")),
    ]
}

fn tokens() -> [Route; 4] {
    let tokenize = Doc::new::<Tokenized>("tokenize", "Ids of a text or a conversation");
    let detokenize = Doc::new::<Detokenized>("detokenize", "Text of ids");
    let chat = Doc::new::<Rendered>("renderChat", "Ids that a chat would run");
    let completion = Doc::new::<Vec<Rendered>>("renderCompletion", "Ids that a completion would run");
    [
        post("/tokenize", tokens::tokenize, tokenize.body::<TokenizeBody>("TokenizeRequest")),
        post("/detokenize", tokens::detokenize, detokenize.body::<(DetokenizeFields,)>("DetokenizeRequest")),
        post("/v1/chat/completions/render", tokens::render_chat, chat.body::<ChatBody>("ChatRequest")),
        post(
            "/v1/completions/render",
            tokens::render_completion,
            completion.body::<CompletionBody>("CompletionRequest"),
        ),
    ]
}

fn reports() -> [Route; 12] {
    let ready = |id| Doc::new::<about::Status>(id, "Readiness for calls");
    let reset = "Removal of all cached prefixes from the device, if nothing runs";
    let sources = "Addresses at which events of the KV cache are published";
    let card = "Name and context length of the model";
    let numbers = "Counters, gauges and histograms for Prometheus";
    [
        get("/v1/models", about::models, Doc::new::<about::Models>("models", "Model that is served")),
        get("/v1/models/{*name}", about::model, Doc::new::<about::ModelCard>("model", card)),
        get("/health", about::ready, ready("health")),
        get("/health/ready", about::ready, ready("ready")),
        get("/health/live", about::live, Doc::new::<about::Status>("live", "Life of the engine")),
        get("/metrics", metrics::respond, Doc::text("metrics", numbers)),
        get("/load", about::load, Doc::new::<about::ServerLoad>("load", "Requests and KV blocks now")),
        get(
            "/kv_event_sources",
            about::kv_event_sources,
            Doc::new::<Vec<KvEventSource>>("kvEventSources", sources),
        ),
        get("/props", about::props, Doc::new::<about::Props>("props", "Sizes and limits")),
        get("/version", about::version, Doc::new::<about::Version>("version", "The version")),
        get("/openapi.json", openapi::document, Doc::new::<Map<String, Value>>("openapi", "This document")),
        post(
            "/reset_prefix_cache",
            about::reset_prefix_cache,
            Doc::new::<about::Status>("resetPrefixCache", reset),
        ),
    ]
}
