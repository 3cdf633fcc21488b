//! Spans of calls, as a collector gets them.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::routing::post as route;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use prost::Message as _;
use serde_json::json;
use serve::{Connections, Traces};

use crate::client::{Reply, receive, send};
use crate::fixture::{RUNTIME, Served, Setup, start};

/// A collector that keeps what it gets.
#[derive(Debug, Clone, Default)]
struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

impl Collector {
    /// Listens, and returns the endpoint for traces.
    fn listen(&self) -> String {
        let kept = Arc::clone(&self.0);
        let take = move |body: Bytes| async move {
            kept.lock().unwrap().push(ExportTraceServiceRequest::decode(body).unwrap());
            ([(header::CONTENT_TYPE, "application/x-protobuf")], Bytes::new())
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/v1/traces", route(take));
        RUNTIME.spawn(serve::serve(listener, router, Connections::default(), std::future::pending()));
        format!("http://{address}/v1/traces")
    }

    /// Name of the service that has sent something.
    fn service(&self) -> String {
        let requests = self.0.lock().unwrap();
        let resource = requests[0].resource_spans[0].resource.clone().unwrap();
        text(&resource.attributes, "service.name")
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.0.lock().unwrap();
        let scopes =
            requests.iter().flat_map(|request| &request.resource_spans).flat_map(|spans| &spans.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }
}

#[track_caller]
fn value(attributes: &[KeyValue], key: &str) -> Value {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    found
        .and_then(|attribute| attribute.value.clone()?.value)
        .unwrap_or_else(|| panic!("no {key}: {attributes:#?}"))
}

#[track_caller]
fn text(attributes: &[KeyValue], key: &str) -> String {
    match value(attributes, key) {
        Value::StringValue(text) => text,
        other => panic!("{key} is {other:?}"),
    }
}

#[track_caller]
fn int(span: &Span, key: &str) -> i64 {
    match value(&span.attributes, key) {
        Value::IntValue(number) => number,
        other => panic!("{key} is {other:?}"),
    }
}

#[track_caller]
fn float(span: &Span, key: &str) -> f64 {
    match value(&span.attributes, key) {
        Value::DoubleValue(number) => number,
        other => panic!("{key} is {other:?}"),
    }
}

fn traced(traces: &Traces) -> Served {
    let mut setup = Setup::default();
    setup.options.traces = Some(traces.clone());
    start(setup)
}

fn call(served: &Served, headers: &str, body: &serde_json::Value) -> Reply {
    let body = body.to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    receive(send(served, (head + &body).as_bytes()))
}

/// The client of the exporter takes no kind of cryptography by itself if several are linked.
fn traces_to(endpoint: &str) -> Traces {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Traces::to(endpoint).unwrap()
}

#[test]
fn a_call_is_a_span_with_its_parent_tokens_and_times() {
    let collector = Collector::default();
    let traces = traces_to(&collector.listen());
    let served = traced(&traces);
    let parent =
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nx-request-id: traced-1\r\n";
    let ask = json!({ "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": true, "n": 2, "temperature": 0.5, "stream": true });
    assert_eq!(call(&served, parent, &ask).status, 200);
    assert_eq!(call(&served, "x-request-id: traced-2\r\n", &json!({ "prompt": 7 })).status, 400);
    assert_eq!(crate::client::get(&served, "/health").status, 200);
    traces.finish();

    assert_eq!(collector.service(), "pagoda");
    let spans = collector.spans();
    let named =
        |id: &str| spans.iter().find(|span| text(&span.attributes, "gen_ai.request.id") == id).unwrap();
    assert_eq!(spans.len(), 2, "health is nobody's request: {spans:#?}");
    let (answered, refused) = (named("traced-1"), named("traced-2"));
    assert_eq!((answered.name.as_str(), answered.kind), ("llm_request", SpanKind::Server as i32));
    assert_eq!(answered.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes());
    assert_eq!(answered.parent_span_id, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
    let counts = [
        ("gen_ai.request.max_tokens", 4),
        ("gen_ai.request.n", 2),
        ("gen_ai.usage.prompt_tokens", 3),
        ("gen_ai.usage.completion_tokens", 8),
        ("gen_ai.usage.num_sequences", 2),
        ("http.response.status_code", 200),
    ];
    for (key, want) in counts {
        assert_eq!(int(answered, key), want, "{key}");
    }
    assert_eq!(float(answered, "gen_ai.request.temperature"), 0.5);
    assert_eq!(text(&answered.attributes, "gen_ai.response.model"), "tiny");
    assert_eq!(text(&answered.attributes, "url.path"), "/v1/completions");
    let whole = float(answered, "gen_ai.latency.e2e");
    let first = float(answered, "gen_ai.latency.time_to_first_token");
    assert!(first > 0.0 && first >= float(answered, "gen_ai.latency.time_in_queue") && whole >= first);
    let span = Duration::from_nanos(answered.end_time_unix_nano - answered.start_time_unix_nano);
    assert_eq!(span.as_secs_f64().to_bits(), whole.to_bits(), "{span:?}, {whole} s");
    // A span of its own, and no failure of the server's.
    assert!(refused.parent_span_id.is_empty() && refused.trace_id != answered.trace_id);
    assert_eq!(int(refused, "http.response.status_code"), 400);
    assert!(refused.status.as_ref().is_none_or(|status| status.code != StatusCode::Error as i32));
    assert!(refused.attributes.iter().all(|attribute| attribute.key != "gen_ai.usage.prompt_tokens"));
}

/// The port was free a moment ago, and nobody listens there.
#[test]
fn a_collector_that_is_away_costs_the_calls_nothing() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let traces = traces_to(&format!("http://{address}/v1/traces"));
    let served = traced(&traces);
    for _ in 0..3 {
        assert_eq!(call(&served, "", &json!({ "prompt": "the", "max_tokens": 2 })).status, 200);
    }
    let (finished, end) = mpsc::channel();
    thread::spawn(move || {
        traces.finish();
        finished.send(())
    });
    end.recv_timeout(Duration::from_secs(60)).expect("the last traces are given up");
    assert_eq!(call(&served, "", &json!({ "prompt": "the", "max_tokens": 2 })).status, 200);
}

#[test]
fn an_endpoint_that_is_no_url_is_refused_by_name() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let error = Traces::to("nowhere at all").unwrap_err().to_string();
    assert!(error.starts_with("traces to nowhere at all: "), "{error}");
}
