//! Anthropic's API: `/v1/messages` and its count of tokens.

mod reply;
pub(crate) mod request;

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use crate::answer::Answer;
use crate::call::Call;
use crate::error::ApiError;
use crate::reply as replies;
use crate::running::Running;
use crate::server::{Prompted, Server};
use crate::sse;
use reply::{MessagesChunks, MessagesReply};
use request::Messages;

/// `POST /v1/messages`.
pub(crate) async fn messages(State(server): State<Arc<Server>>, call: Result<Call, ApiError>) -> Response {
    match call {
        Ok(call) => answer(server, call).await.unwrap_or_else(|error| refuse(&error)),
        Err(error) => refuse(&error),
    }
}

/// `POST /v1/messages/count_tokens`.
pub(crate) async fn count_tokens(
    State(server): State<Arc<Server>>,
    call: Result<Call, ApiError>,
) -> Response {
    let count = async {
        let Messages { generation, conversation, .. } = Messages::read(&call?.body, false)?;
        server.check_model(generation.model.as_deref())?;
        let ids = server.compute(move |model| Ok(model.conversation_ids(conversation)?)).await?;
        Ok(replies::json(&json!({ "input_tokens": ids.len() })))
    };
    count.await.unwrap_or_else(|error: ApiError| refuse(&error))
}

async fn answer(server: Arc<Server>, call: Call) -> Result<Response, ApiError> {
    let Messages { conversation, mut generation, max_tokens, tools } = Messages::read(&call.body, true)?;
    generation.settle(&server).await?;
    let Prompted { ids, thinks } = server.prompt(conversation).await?;
    let mask = server.mask(tools.constraint()).await?;
    let answer = Answer::new(tools.calls(), thinks);
    let mut reply = MessagesReply::new(&server, call.id.prefixed("msg"), ids.len(), answer);
    reply.engine = server.engine_use(generation.salt_for(&call.client).as_deref(), &[&ids]);
    let mut request = generation.request(&server, ids, Some(max_tokens));
    request.mask = mask;
    let running = Running::start(&server, vec![request], call, "messages").await?;
    match generation.stream {
        Some(_) => Ok(sse::respond(running, MessagesChunks::new(reply), server.options.keep_alive)),
        None => reply.whole(running).await,
    }
}

/// An error in Anthropic's shape.
pub(crate) fn error_json(error: &ApiError) -> String {
    let kind = match error.status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    };
    json!({ "type": "error", "error": { "type": kind, "message": error.message } }).to_string()
}

/// The answer to a call of `path` that no handler takes, in the form of its API.
pub(crate) fn respond(path: &str, error: &ApiError) -> Response {
    let here = path == "/v1/messages" || path.starts_with("/v1/messages/");
    error.respond(if here { error_json(error) } else { error.to_json() })
}

fn refuse(error: &ApiError) -> Response {
    error.respond(error_json(error))
}
