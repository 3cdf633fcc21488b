//! The operator's floor: the access log, keys that change, other protocols and sockets, readers that are slow.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get as route;
use futures_util::stream;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use serve::{ApiKey, Connections, Listener, Options, Service};

use crate::client::{Reply, receive, send};
use crate::fixture::{MODEL, RUNTIME, Setup, shared, start, until};

/// The lines of a log.
#[derive(Debug, Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// Takes over the log of this process; tests here are of one.
    fn of_this_process() -> Self {
        static LINES: std::sync::LazyLock<Lines> = std::sync::LazyLock::new(|| {
            let lines = Lines::default();
            let writer = lines.clone();
            tracing_subscriber::fmt().json().with_writer(move || writer.clone()).init();
            lines
        });
        LINES.clone()
    }

    /// The event of the call with an id, once it is there.
    fn of(&self, id: &str) -> Value {
        let find = || {
            let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
            text.lines().find(|line| line.contains(id)).map(|line| serde_json::from_str(line).unwrap())
        };
        until("the call is logged", || find().is_some());
        find().unwrap()
    }
}

/// A call with an id of the caller's.
fn call(served: &crate::fixture::Served, id: &str, headers: &str, body: &Value) -> Reply {
    let body = body.to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nx-request-id: {id}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    receive(send(served, (head + &body).as_bytes()))
}

#[test]
fn calls_are_logged_with_what_they_used() {
    let lines = Lines::of_this_process();
    let mut setup = Setup::default();
    setup.options.api_keys = vec![ApiKey::new("secret").name("people")];
    let served = start(setup);
    let key = "authorization: Bearer secret\r\n";
    let reply =
        call(&served, "logged-1", key, &json!({ "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": true }));
    assert_eq!(reply.status, 200);
    let event = lines.of("logged-1");
    assert_eq!((&event["level"], &event["target"]), (&json!("INFO"), &json!("pagoda::access")));
    let fields = &event["fields"];
    assert_eq!(
        [&fields["status"], &fields["key"], &fields["prompt_tokens"], &fields["output_tokens"]],
        [&json!(200), &json!("people"), &json!(3), &json!(4)]
    );
    assert!(fields["ms"].is_u64() && fields["path"] == "/v1/completions", "{fields}");
    call(&served, "logged-2", key, &json!({ "prompt": "a", "odd": 1 }));
    let event = lines.of("logged-2");
    assert_eq!((&event["level"], &event["fields"]["status"]), (&json!("WARN"), &json!(400)));
    assert_eq!(event["fields"]["reason"], "odd: this server does not know the field");
    call(&served, "logged-3", "", &json!({}));
    assert_eq!(lines.of("logged-3")["fields"]["status"], 401);
}

#[test]
fn keys_are_read_again_and_only_admins_reset_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    let write = |text: &str| fs::write(&file, text).unwrap();
    let mut setup = Setup::default();
    let text = "old requests-per-minute=2\nboss admin\n";
    write(text);
    setup.options.api_keys = ApiKey::read_all(text).unwrap();
    setup.options = setup.options.api_key_file(&file);
    let served = start(setup);
    let status = |key: &str, path: &str| {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}"
        );
        receive(send(&served, head.as_bytes())).status
    };
    assert_eq!(status("old", "/reset_prefix_cache"), 403);
    assert_eq!(status("boss", "/reset_prefix_cache"), 200);
    assert_eq!([status("old", "/v1/completions"), status("new", "/v1/completions")], [400, 401]);
    write("old requests-per-minute=2\nnew\n");
    served.service.reload();
    // What is left of a key's limits stays.
    assert_eq!([status("old", "/v1/completions"), status("old", "/v1/completions")], [400, 429]);
    assert_eq!([status("new", "/v1/completions"), status("boss", "/v1/completions")], [400, 401]);
    write("new odd-word\n");
    served.service.reload();
    assert_eq!([status("new", "/v1/completions"), status("boss", "/v1/completions")], [400, 401]);
}

#[test]
fn pages_of_allowed_origins_may_call() {
    let mut setup = Setup::default();
    setup.options.allowed_origins = vec!["https://chat.example".to_owned()];
    let served = start(setup);
    let preflight = |origin: &str| {
        let head = format!(
            "OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\norigin: {origin}\r\naccess-control-request-method: POST\r\naccess-control-request-headers: authorization,content-type\r\nconnection: close\r\n\r\n"
        );
        let reply = receive(send(&served, head.as_bytes()));
        (reply.status, reply.header("access-control-allow-origin").map(str::to_owned))
    };
    assert_eq!(preflight("https://chat.example"), (200, Some("https://chat.example".to_owned())));
    assert_eq!(preflight("https://evil.example").1, None);
}

fn listen(router: Router, connections: Connections) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    RUNTIME.spawn(serve::serve(listener, router, connections, std::future::pending()));
    address
}

/// Sets a mark when it is dropped.
struct Marks(Arc<AtomicBool>);

impl Drop for Marks {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_client_that_reads_nothing_is_closed() {
    let dropped = Arc::new(AtomicBool::new(false));
    let mark = Arc::clone(&dropped);
    let endless = move || {
        let marks = Marks(Arc::clone(&mark));
        async move {
            let chunks = stream::repeat_with(move || {
                let _ = &marks;
                Ok::<_, std::convert::Infallible>(Bytes::from(vec![b'x'; 1 << 16]))
            });
            Body::from_stream(chunks)
        }
    };
    let settings = Connections::default().write_timeout(Duration::from_millis(300));
    let address = listen(Router::new().route("/", route(endless)), settings);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    until("the answer is given up", || dropped.load(Ordering::Acquire));
}

#[test]
fn http_2_is_served_on_the_same_port() {
    let served = start(Setup::default());
    let models = RUNTIME.block_on(async {
        let stream = tokio::net::TcpStream::connect(served.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let uri = format!("http://localhost:{}/v1/models", served.address.port());
        let request = hyper::Request::get(uri).body(Empty::<Bytes>::new()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.version(), hyper::Version::HTTP_2);
        response.into_body().collect().await.unwrap().to_bytes()
    });
    let models: Value = serde_json::from_slice(&models).unwrap();
    assert_eq!(models["data"][0]["id"], "tiny");
}

#[cfg(unix)]
#[test]
fn a_unix_socket_is_served() {
    use std::os::unix::net::{UnixListener, UnixStream};

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pagoda.sock");
    let options = Options::new(Arc::clone(&MODEL), "tiny");
    let router = Service::new(shared().handle.clone(), options).router();
    let listener = Listener::from(UnixListener::bind(&path).unwrap());
    RUNTIME.spawn(serve::serve(listener, router, Connections::default(), std::future::pending()));
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
}

#[cfg(feature = "tls")]
#[test]
fn https_is_served_with_certificates_that_change() {
    use rustls::pki_types::ServerName;

    let folder = tempfile::tempdir().unwrap();
    let [chain, key] = ["chain.pem", "key.pem"].map(|name| folder.path().join(name));
    let renew = || {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        fs::write(&chain, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        made.cert.der().clone()
    };
    let answered = |address, root: &rustls::pki_types::CertificateDer<'static>| {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(root.clone()).unwrap();
        let config =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = rustls::StreamOwned::new(client, TcpStream::connect(address).unwrap());
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut reply = [0; 12];
        stream.read_exact(&mut reply).map(|()| reply)
    };
    let first = renew();
    let tls = serve::Tls::read(&chain, &key).unwrap();
    let mut options = Options::new(Arc::clone(&MODEL), "tiny");
    options.connections = Connections::default().tls(tls);
    let settings = options.connections.clone();
    let service = Service::new(shared().handle.clone(), options);
    let address = listen(service.router(), settings);
    assert_eq!(&answered(address, &first).unwrap(), b"HTTP/1.1 200");
    let second = renew();
    assert!(answered(address, &second).is_err());
    service.reload();
    assert_eq!(&answered(address, &second).unwrap(), b"HTTP/1.1 200");
    fs::write(&key, "no key").unwrap();
    service.reload();
    assert_eq!(&answered(address, &second).unwrap(), b"HTTP/1.1 200");
    assert!(serve::Tls::read(&chain, &key).unwrap_err().to_string().contains("key.pem"));
}
