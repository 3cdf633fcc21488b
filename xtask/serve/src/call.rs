//! One call: its id, its place, and its body, read under the server's limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::{FromRequest, Request};
use axum::http::{HeaderName, HeaderValue, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::Response;
use pagoda::RequestId;
use tokio::time::timeout;

use crate::bodies::{Body, Unread};
use crate::error::ApiError;
use crate::keys::Client;
use crate::record::Record;
use crate::server::{PreparationPlace, Server};

/// Header that names a request in the logs of clients, proxies and servers.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Maximum number of characters of a request's id.
const MAX_ID: usize = 128;

/// The id of a call: the client's, or a random one.
#[derive(Debug, Clone)]
pub(crate) struct CallId(Arc<str>);

/// A call with a JSON body.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) id: CallId,
    pub(crate) client: Client,
    pub(crate) record: Record,
    pub(crate) body: Body,
    /// Place among the calls in preparation, which is given back once the engine has the request.
    pub(crate) place: PreparationPlace,
}

/// Who has sent a call, and under which id.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) id: CallId,
    pub(crate) client: Client,
    pub(crate) record: Record,
}

impl Call {
    /// Gives back the place of the call and the memory of its body, and keeps its caller.
    pub(crate) fn caller(self) -> Caller {
        let Self { id, client, record, place, .. } = self;
        drop(place);
        Caller { id, client, record }
    }
}

impl CallId {
    fn of(request: &Request) -> Self {
        let given = request.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok());
        let given = given.filter(|id| !id.is_empty() && id.len() <= MAX_ID);
        Self(given.map_or_else(|| format!("{:032x}", rand::random::<u128>()).into(), Arc::from))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The id of the call's requests in the engine.
    pub(crate) fn of_requests(&self) -> RequestId {
        Arc::clone(&self.0).into()
    }

    /// The id of a reply, with OpenAI's `prefix` for its kind.
    pub(crate) fn prefixed(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.0)
    }
}

/// Gives each call its id, which the reply repeats.
pub(crate) async fn identify(mut request: Request, next: Next) -> Response {
    let id = CallId::of(&request);
    let value = HeaderValue::from_str(&id.0).expect("came from a header, or is hexadecimal");
    request.extensions_mut().insert(id);
    let (unread, read) = (has_body(&request), BodyRead::default());
    // HTTP/2 has no such header, and no bodies that are taken for requests.
    let is_http1 = request.version() < Version::HTTP_2;
    request.extensions_mut().insert(read.clone());
    let mut response = next.run(request).await;
    response.headers_mut().insert(REQUEST_ID, value);
    if unread && is_http1 && !read.0.load(Ordering::Relaxed) {
        // The rest of the body would be taken for the next request, so the connection ends, and clients are told.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Whether the body of a request was read to its end.
#[derive(Debug, Clone, Default)]
struct BodyRead(Arc<AtomicBool>);

fn has_body(request: &Request) -> bool {
    let length = request.headers().get(header::CONTENT_LENGTH);
    request.headers().contains_key(header::TRANSFER_ENCODING) || length.is_some_and(|length| length != "0")
}

impl FromRequest<Arc<Server>> for Call {
    type Rejection = ApiError;

    async fn from_request(request: Request, server: &Arc<Server>) -> Result<Self, ApiError> {
        server.check_queue()?;
        check_type(&request)?;
        let client = request.extensions().get::<Client>().cloned().unwrap_or_default();
        client.admit().inspect_err(|_| {
            server.metrics.limited.fetch_add(1, Ordering::Relaxed);
        })?;
        let id = request.extensions().get::<CallId>().cloned().unwrap_or_else(|| CallId::of(&request));
        let record = request.extensions().get::<Record>().cloned().unwrap_or_default();
        let body = read(request, server).await?;
        Ok(Self { id, client, record, body, place: server.admit()? })
    }
}

/// Refuses bodies that are not declared as JSON, because browsers send other types for pages of any site. Refuses
/// bodies in an unknown encoding, too.
fn check_type(request: &Request) -> Result<(), ApiError> {
    let given = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = given.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let refuse = |message| Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    if !essence.eq_ignore_ascii_case("application/json") {
        return refuse(format!("content-type is {essence:?}, it must be application/json"));
    }
    // Of a body that was decompressed, the header is gone.
    match request.headers().get(header::CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => {
            refuse(format!("content-encoding is {encoding:?}, it must be gzip or none"))
        }
        _ => Ok(()),
    }
}

async fn read(request: Request, server: &Server) -> Result<Body, ApiError> {
    let max = server.options.max_body_bytes;
    let too_large = |bytes: &str| {
        let message = format!("the body has {bytes} bytes, the limit is {max}");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let announced: Option<usize> = announced.and_then(|bytes| bytes.parse().ok());
    if let Some(bytes) = announced.filter(|bytes| *bytes > max) {
        return Err(too_large(&bytes.to_string()));
    }
    let read = request.extensions().get::<BodyRead>().cloned().unwrap_or_default();
    let body = server.bodies.read(request.into_body(), max, announced);
    match timeout(server.options.body_timeout, body).await {
        Ok(Ok(body)) => {
            read.0.store(true, Ordering::Relaxed);
            Ok(body)
        }
        Ok(Err(Unread::TooLarge)) => Err(too_large(&format!("more than {max}"))),
        Ok(Err(unread)) => {
            let rejected = u64::from(matches!(unread, Unread::Full { .. }));
            server.metrics.rejected.fetch_add(rejected, Ordering::Relaxed);
            Err(unread.into())
        }
        Err(_) => {
            let seconds = server.options.body_timeout.as_secs();
            let message = format!("the body did not arrive within {seconds} seconds");
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message))
        }
    }
}
