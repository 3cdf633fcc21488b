//! `cargo xtask serve` as a process: it starts, answers, and ends by signals.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::tiny_llama;

/// Sends a call with more headers, of which each ends its line, and returns the connection.
pub(crate) fn send(address: &str, headers: &str, method: &str, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n"
    );
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    stream
}

pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

impl Server {
    /// Starts a server and waits until it is ready.
    pub(crate) fn start(flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        Self::spawn(command.args(["serve", "--no-disk-kv"]).args(flags))
    }

    /// Starts a server that keeps KV in a cache folder of its own.
    pub(crate) fn start_in(cache: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        Self::spawn(command.arg("serve").env("PAGODA_CACHE_DIR", cache))
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        command.args(["--port", "0", "--kv-memory", "16MiB", "--model"]).arg(tiny_llama());
        Self::listening(command)
    }

    /// Starts a server whose command says all that it needs.
    pub(crate) fn listening(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address =
            |line: String| Some(line.strip_prefix("serving ")?.split_once(" at http://")?.1.to_owned());
        let ready = lines.find_map(address);
        // The rest is read, so that the server is never stopped by a full pipe.
        thread::spawn(move || lines.for_each(drop));
        Self { child, address: ready.expect("the server says when it is ready") }
    }

    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        send(&self.address, "", method, path, body)
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let mut reply = String::new();
        self.send(method, path, body).read_to_string(&mut reply).unwrap();
        reply
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn ended(mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "the server does not end");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts a stream of `tokens` tokens and waits for its first ones.
    fn stream(&self, tokens: u32) -> TcpStream {
        let body = format!(
            r#"{{"prompt":[1,2,3],"max_tokens":{tokens},"ignore_eos":true,"stream":true,"return_token_ids":true}}"#
        );
        let mut stream = self.send("POST", "/v1/completions", &body);
        stream.read_exact(&mut [0; 12]).unwrap();
        let start = Instant::now();
        while !self.ask("GET", "/load", "").contains(r#""num_running":1"#) {
            assert!(start.elapsed() < Duration::from_secs(60), "the request does not run, or has ended");
            thread::sleep(Duration::from_millis(2));
        }
        stream
    }
}

#[test]
fn a_signal_lets_requests_end_and_takes_no_more() {
    let server = Server::start(&["--drain-timeout", "600"]);
    let mut running = server.stream(2000);
    server.signal("-TERM");
    while !server.ask("GET", "/health", "").contains("503 Service Unavailable") {
        thread::sleep(Duration::from_millis(2));
    }
    let refused = server.ask("POST", "/v1/completions", r#"{"prompt":[1]}"#);
    assert!(refused.contains("503") && refused.to_lowercase().contains("retry-after: 1"), "{refused}");
    let mut rest = String::new();
    running.read_to_string(&mut rest).unwrap();
    assert!(rest.contains(r#""finish_reason":"length""#) && rest.contains("[DONE]"));
    assert!(server.ended().success());
}

#[test]
fn requests_that_do_not_end_in_time_get_an_error() {
    let server = Server::start(&["--drain-timeout", "0"]);
    let mut running = server.stream(4000);
    server.signal("-TERM");
    let mut rest = String::new();
    running.read_to_string(&mut rest).unwrap();
    assert!(
        rest.contains("shutting_down") && rest.contains("[DONE]"),
        "{}",
        &rest[rest.len().saturating_sub(400)..]
    );
    assert!(server.ended().success());
}

#[test]
fn a_second_signal_ends_at_once() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let server = Server::start(&["--drain-timeout", "1000", "--host", "localhost"]);
        let _running = server.stream(4000);
        server.signal(signal);
        while !server.ask("GET", "/health", "").contains("503 Service Unavailable") {
            thread::sleep(Duration::from_millis(2));
        }
        server.signal(signal);
        assert_eq!(server.ended().code(), Some(code));
    }
}

/// `--context` bounds prompt and answer together, in what the server says as in what it takes.
#[test]
fn texts_are_bounded_by_the_context_that_was_asked_for() {
    let server = Server::start(&["--context", "64"]);
    let models = server.ask("GET", "/v1/models", "");
    assert!(models.contains(r#""max_model_len":64"#), "{models}");
    let complete = |tokens: usize| {
        let prompt = vec!["1"; tokens].join(",");
        let body = format!(r#"{{"model":"tiny-llama","prompt":[{prompt}],"ignore_eos":true}}"#);
        server.ask("POST", "/v1/completions", &body)
    };
    let whole = complete(60);
    assert!(whole.contains(r#""completion_tokens":4"#), "{whole}");
    let refused = complete(65);
    assert!(refused.contains("context_length_exceeded") && refused.contains("64"), "{refused}");
}

/// The answer to a prompt of 200 tokens, and how many of them were cached.
fn answer(server: &Server) -> (String, u64) {
    let prompt: Vec<u32> = (0..200).map(|at| at * 37 % 120).collect();
    let body = format!(r#"{{"prompt":{prompt:?},"max_tokens":8,"temperature":0,"return_token_ids":true}}"#);
    let reply = server.ask("POST", "/v1/completions", &body);
    let (_, json) = reply.split_once("\r\n\r\n").unwrap();
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    let cached = json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (json["choices"][0]["token_ids"].to_string(), cached)
}

#[test]
fn kv_outlives_a_server_that_is_killed() {
    let cache = tempfile::tempdir().unwrap();
    let mut first = Server::start_in(cache.path());
    let (text, cached) = answer(&first);
    assert_eq!(cached, 0);
    // Blocks are written as they fill, and the metrics tell when they are.
    let start = Instant::now();
    while first.ask("GET", "/metrics", "").lines().filter(|line| is_written(line)).count() == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing is written");
        thread::sleep(Duration::from_millis(20));
    }
    first.kill();
    let second = Server::start_in(cache.path());
    let (again, cached) = answer(&second);
    assert_eq!(again, text);
    assert!(cached >= 128, "{cached} tokens of 200 came from the disk");
    let metrics = second.ask("GET", "/metrics", "");
    let read = |kind: &str| {
        let labels = format!(r#"of="prefix",kind="{kind}""#);
        let ahead =
            |line: &&str| line.starts_with("pagoda:read_ahead_blocks_total") && line.contains(&labels);
        metrics.lines().find(ahead).and_then(|line| line.rsplit(' ').next()?.parse::<u32>().ok())
    };
    let [predicted, used, late] = ["predicted", "used", "late"].map(|kind| read(kind).unwrap());
    assert!(predicted >= 8 && used + late == predicted, "{predicted} predicted, {used} used, {late} late");
}

/// Two engines on one adapter, each with prompts and a disk tier of its own.
#[test]
fn several_devices_serve_behind_one_address() {
    let cache = tempfile::tempdir().unwrap();
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        Server::spawn(command.args(["serve", "--device", "0,0"]).env("PAGODA_CACHE_DIR", cache.path()))
    };
    let cached = |server: &Server, token: u32, tier: &str| {
        let body =
            serde_json::json!({ "prompt": vec![token; 40], "max_tokens": 2, "ignore_eos": true }).to_string();
        let reply = server.ask("POST", "/v1/completions", &body);
        let json: serde_json::Value =
            serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).expect(&reply);
        json["pagoda"]["cached_tokens"][tier].as_u64().expect(&reply)
    };
    let server = start();
    for again in [false, true] {
        for token in [3, 4] {
            let found = cached(&server, token, "device");
            assert_eq!(found > 0, again, "{token}: {found} tokens");
        }
    }
    let metrics = server.ask("GET", "/metrics", "");
    let tokens = |engine: usize| {
        format!("pagoda:generation_tokens_total{{model_name=\"tiny-llama\",engine=\"{engine}\"}} 4")
    };
    assert!([0, 1].iter().all(|engine| metrics.contains(&tokens(*engine))), "{metrics}");
    server.signal("-TERM");
    assert!(server.ended().success());
    // Both folders are found by the engines that wrote them.
    let server = start();
    assert!(cached(&server, 3, "disk") > 0 && cached(&server, 4, "disk") > 0);

    // What one computed is found by the other in memory of the host.
    let server = Server::start(&["--device", "0,0", "--kv-tiers", "host=16MiB"]);
    assert_eq!([3, 4].map(|token| cached(&server, token, "host")), [0, 0]);
    server.ask("POST", "/reset_prefix_cache", "");
    // The first engine gets the prompt of the second.
    assert!([4, 3].map(|token| cached(&server, token, "host")).iter().all(|found| *found > 0));
    let metrics = server.ask("GET", "/metrics", "");
    assert!([0, 1].iter().all(|engine| metrics.contains(&tokens(*engine))), "{metrics}");

    let mut none = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let none = none.args(["serve", "--device", "0,99", "--model"]).arg(tiny_llama()).output().unwrap();
    assert_eq!(none.status.code(), Some(1));
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(said.contains("--device 0,99: there is no adapter 99"), "{said}");
}

/// Whether a line of metrics tells of bytes on disk.
fn is_written(line: &str) -> bool {
    line.starts_with("pagoda:tier_written_bytes_total") && line.contains("disk") && !line.ends_with(" 0")
}

/// A socket in place of a port, a file while calls are taken, a log of JSON, several names of the model, and a word to systemd.
#[test]
fn operators_flags_are_honoured() {
    use std::os::unix::net::{UnixDatagram, UnixStream};

    let folder = tempfile::tempdir().unwrap();
    let [socket, ready, notified] = ["pagoda.sock", "ready", "notify"].map(|name| folder.path().join(name));
    let systemd = UnixDatagram::bind(&notified).unwrap();
    systemd.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let told = || {
        let mut bytes = [0; 64];
        let length = systemd.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let mut child = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["serve", "--no-disk-kv", "--kv-memory", "16MiB", "--strict-model"])
        .args(["--served-model-name", "first,second", "--uds"])
        .arg(&socket)
        .arg("--ready-file")
        .arg(&ready)
        .arg("--model")
        .arg(tiny_llama())
        .env("NOTIFY_SOCKET", &notified)
        // As every flag, that of the log has a variable; the filter has another one.
        .envs([("PAGODA_LOG", "json"), ("RUST_LOG", "info")])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let lines = thread::spawn(move || lines.collect::<Vec<String>>());
    assert_eq!(told().trim(), "READY=1");
    assert_eq!(std::fs::read_to_string(&ready).unwrap().trim(), format!("unix:{}", socket.display()));
    let status = |model: &str, id: &str| {
        let body = format!(r#"{{"model":"{model}","prompt":[1,2,3],"max_tokens":2,"store":true}}"#);
        let mut stream = UnixStream::connect(&socket).unwrap();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-request-id: {id}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(!reply.contains("200 OK") || reply.contains(r#""model":"first""#), "{reply}");
        reply[9..12].to_owned()
    };
    assert_eq!([status("second", "call-1"), status("third", "call-2")], ["200", "404"]);
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(sent.success() && child.wait().unwrap().success());
    assert_eq!(told().trim(), "STOPPING=1");
    assert!(!ready.exists());
    let events: Vec<serde_json::Value> =
        lines.join().unwrap().iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of = |id: &str| events.iter().find(|event| event["id"] == id).expect("each call is logged");
    assert_eq!((&of("call-1")["output_tokens"], &of("call-2")["status"]), (&2.into(), &404.into()));
    assert!(
        events.iter().any(|event| event["message"].as_str().is_some_and(|text| text.starts_with("draining")))
    );
}
