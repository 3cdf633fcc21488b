//! Anthropic's API: `/v1/messages` and its count of tokens.

mod reply;
mod request;

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;

use crate::answering::{Job, respond as answer_by};
use crate::call::Call;
use crate::error::ApiError;
use crate::reply as replies;
use crate::server::{Prompted, Server};
use reply::MessagesRender;
pub(crate) use reply::{MessagesEvent, MessagesReply};
use request::Messages;
pub(crate) use request::MessagesBody;

/// An error in Anthropic's shape.
#[derive(Serialize, JsonSchema)]
pub(crate) struct AnthropicError<'a> {
    #[schemars(extend("const" = "error"))]
    r#type: &'static str,
    error: Reason<'a>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AnthropicErrorReason")]
struct Reason<'a> {
    r#type: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
}

/// Details of a refusal for programs.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AnthropicErrorDetails")]
struct Details {
    error_code: &'static str,
}

/// Number of tokens of a conversation.
#[derive(Serialize, JsonSchema)]
pub(crate) struct InputTokens {
    input_tokens: usize,
}

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
        let mut reader = server.reader();
        let Messages { generation, conversation, .. } = Messages::read(&call?.body, false, &mut reader)?;
        server.check_model(generation.model.as_deref())?;
        let ids = server.compute(move |model| Ok(model.conversation_ids(conversation)?)).await?;
        Ok(replies::json(&InputTokens { input_tokens: ids.len() }))
    };
    count.await.unwrap_or_else(|error: ApiError| refuse(&error))
}

async fn answer(server: Arc<Server>, call: Call) -> Result<Response, ApiError> {
    let mut reader = server.reader();
    let messages = Messages::read(&call.body, true, &mut reader)?;
    let Messages { conversation, mut generation, max_tokens, tools, constraint } = messages;
    generation.settle(&server, &mut reader).await?;
    let Prompted { ids, thinks } = server.prompt(conversation).await?;
    let (mask, answer) = server.answer_form(thinks, &tools, constraint).await?;
    let mut request = generation.request(&server, ids, max_tokens);
    request.mask = mask;
    let (requests, ignored) = (vec![request], reader.ignored());
    let render = MessagesRender::new(format!("msg_{}", call.id.as_str()));
    let job = Job { generation, requests, input: "messages", answer: Some(answer), ignored };
    answer_by(&server, call, job, render).await
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
    let details = error.code.map(|error_code| Details { error_code });
    let error =
        AnthropicError { r#type: "error", error: Reason { r#type: kind, message: &error.message, details } };
    serde_json::to_string(&error).expect("texts are JSON")
}

/// The answer to a call of `path` that no handler takes, in the form of its API.
pub(crate) fn respond(path: &str, error: &ApiError) -> Response {
    let here = path == "/v1/messages" || path.starts_with("/v1/messages/");
    error.respond(if here { error_json(error) } else { error.to_json() })
}

fn refuse(error: &ApiError) -> Response {
    error.respond(error_json(error))
}
