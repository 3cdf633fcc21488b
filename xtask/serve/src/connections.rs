//! Connections: their protocols, and the times that their clients may take.

use std::io::{self, Cursor};
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use derive_setters::Setters;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, join, split};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;

use crate::listener::Connection;
#[cfg(feature = "tls")]
use crate::tls::Tls;

/// Time that the headers of a request may take, counted from the end of the one before.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// First bytes of a connection of HTTP/2.
const HTTP2: &[u8] = b"PRI * HTTP/2.0";

/// Time between two pings of an idle connection of HTTP/2, so that clients that are gone are noticed.
const HTTP2_PING: Duration = Duration::from_secs(20);

/// Settings of connections.
#[derive(Debug, Clone, Setters)]
#[non_exhaustive]
pub struct Connections {
    /// Time that a client may take to read anything before its connection is closed and its requests are cancelled.
    pub write_timeout: Duration,
    /// Certificate of the server, for HTTPS.
    #[cfg(feature = "tls")]
    #[setters(strip_option)]
    pub tls: Option<Tls>,
}

impl Default for Connections {
    /// Plain HTTP; a client has one minute to read something.
    fn default() -> Self {
        Self {
            write_timeout: Duration::from_mins(1),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

/// Serves one connection to its end, or until `stopped` changes and its requests have ended.
pub(crate) async fn connection(
    stream: Box<dyn Connection>,
    router: Router,
    settings: &Connections,
    mut stopped: watch::Receiver<()>,
) -> io::Result<()> {
    #[cfg(feature = "tls")]
    let stream = match &settings.tls {
        Some(tls) => timeout(HEADER_TIMEOUT, tls.accept(stream)).await??,
        None => stream,
    };
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(settings.write_timeout));
    let mut stream = Box::pin(stream);
    let first = tokio::select! {
        first = timeout(HEADER_TIMEOUT, first_bytes(&mut stream)) => first??,
        _ = stopped.changed() => return Ok(()),
    };
    let is_http2 = first == HTTP2;
    let (read, write) = split(stream);
    let stream = TokioIo::new(join(Cursor::new(first).chain(read), write));
    let service = TowerToHyperService::new(router);
    macro_rules! finish {
        ($served:expr) => {{
            let mut served = pin!($served);
            tokio::select! {
                _ = served.as_mut() => {}
                _ = stopped.changed() => {
                    served.as_mut().graceful_shutdown();
                    let _ = served.await;
                }
            }
        }};
    }
    if is_http2 {
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new()).keep_alive_interval(Some(HTTP2_PING));
        finish!(http.serve_connection(stream, service));
    } else {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
        finish!(http.serve_connection(stream, service));
    }
    Ok(())
}

/// Reads the first bytes of a connection, as many as it takes to tell HTTP/2 from HTTP/1.1.
async fn first_bytes(stream: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Vec<u8>> {
    let mut first = Vec::with_capacity(HTTP2.len());
    while first.len() < HTTP2.len() && HTTP2.starts_with(&first) {
        let mut more = [0; HTTP2.len()];
        let read = stream.read(&mut more[..HTTP2.len() - first.len()]).await?;
        if read == 0 {
            break;
        }
        first.extend_from_slice(&more[..read]);
    }
    Ok(first)
}
