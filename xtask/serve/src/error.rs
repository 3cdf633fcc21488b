//! Why a call is refused or lost, in the shape that OpenAI's clients expect.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use pagoda::{AdmitError, SamplingError, error_chain};
use schemars::JsonSchema;
use serde::Serialize;

/// Seconds after which a client may try again when the queue is full.
const RETRY_AFTER_S: u32 = 1;

/// A refusal of a call, or a failure of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The field that is at fault.
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
    /// Seconds after which the client may try again, if that can help.
    pub(crate) retry_after_s: u32,
}

/// Reason of a refusal, which goes with the reply, for the access log.
#[derive(Debug, Clone)]
pub(crate) struct Refused(pub(crate) String);

/// The JSON form.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(crate) struct ErrorBody<'a> {
    error: Inner<'a>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ErrorReason")]
struct Inner<'a> {
    message: &'a str,
    r#type: &'static str,
    /// The field at fault.
    param: Option<&'a str>,
    code: Option<&'static str>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None, retry_after_s: RETRY_AFTER_S }
    }

    /// A 400 that names the field at fault.
    pub(crate) fn field(name: impl Into<String>, reason: impl AsRef<str>) -> Self {
        let name = name.into();
        let message = format!("{name}: {}", reason.as_ref());
        Self { param: Some(name), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// A 400 for the whole call.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A 500.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// A 503: the server takes no more for now.
    pub(crate) fn busy(message: impl Into<String>) -> Self {
        Self { code: Some("overloaded"), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message) }
    }

    /// A 503: the server is about to end.
    pub(crate) fn ending() -> Self {
        let message = "the server is shutting down";
        Self { code: Some("shutting_down"), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message) }
    }

    /// A 504: the request's time is over.
    pub(crate) fn timeout() -> Self {
        let message = "the request took longer than the server allows";
        Self { code: Some("timeout"), ..Self::new(StatusCode::GATEWAY_TIMEOUT, message) }
    }

    pub(crate) fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// Adds the name of the prompt's field, if this is a 400 that names no field.
    pub(crate) fn of_input(self, field: &str) -> Self {
        let unnamed = self.status == StatusCode::BAD_REQUEST && self.param.is_none();
        Self { param: self.param.or_else(|| unnamed.then(|| field.to_owned())), ..self }
    }

    /// Returns the family of errors that the error belongs to, in OpenAI's words.
    pub(crate) fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// The JSON of the body, or of an event in mid-stream.
    pub(crate) fn to_json(&self) -> String {
        let Self { message, param, code, .. } = self;
        let error = Inner { message, r#type: self.kind(), param: param.as_deref(), code: *code };
        serde_json::to_string(&ErrorBody { error }).expect("texts are JSON")
    }

    /// The answer with `body` as its JSON.
    pub(crate) fn respond(&self, body: String) -> Response {
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        response.extensions_mut().insert(Refused(self.message.clone()));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if matches!(self.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            headers.insert(header::RETRY_AFTER, self.retry_after_s.into());
        }
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.respond(self.to_json())
    }
}

impl From<pagoda::Error> for ApiError {
    fn from(error: pagoda::Error) -> Self {
        use pagoda::Error as E;
        let message = error_chain::joined(&error);
        let field = |name: &str| Self { param: Some(name.to_owned()), ..Self::invalid(message.clone()) };
        match error {
            E::Sampling(SamplingError::Value { name, .. }) => field(name),
            E::Sampling(SamplingError::Token { list: "stop_ids", token, vocab }) => {
                Self::field("stop_token_ids", format!("token {token} is outside the vocabulary of {vocab}"))
            }
            E::Sampling(SamplingError::Token { list, .. }) => field(list),
            E::Sampling(SamplingError::LogProbs { .. }) => field("logprobs"),
            E::StopText => field("stop"),
            E::NoCertificate { .. } => field("certify"),
            E::Admit(AdmitError::ContextLength { .. } | AdmitError::NeverFits { .. }) => {
                Self::invalid(message).with_code("context_length_exceeded")
            }
            E::Admit(AdmitError::MinAboveMax { .. }) => field("min_tokens"),
            E::Admit(AdmitError::TooManySamples { .. }) => field("n"),
            E::QueueFull { .. } | E::QueueTokens { .. } => Self::busy(message),
            E::Stopped => Self::ending(),
            E::NoTokenizer
            | E::Tokenizer(_)
            | E::Chat(_)
            | E::Token { .. }
            | E::Sampling(_)
            | E::Admit(_) => Self::invalid(message),
            _ => Self::internal(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_shape_of_openai() {
        let refused = ApiError::field("top_p", "2 is not a share").with_code("invalid_value");
        insta::assert_snapshot!(refused.to_json(), @r#"{"error":{"message":"top_p: 2 is not a share","type":"invalid_request_error","param":"top_p","code":"invalid_value"}}"#);
        let full = ApiError::from(pagoda::Error::QueueFull { waiting: 4, max_waiting: 4 });
        insta::assert_snapshot!(full.to_json(), @r#"{"error":{"message":"4 requests are waiting, the limit is 4","type":"service_unavailable_error","param":null,"code":"overloaded"}}"#);
        let response = full.into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "1");
    }
}
