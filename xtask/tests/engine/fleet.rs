//! Several servers of one model, and a router before them: processes, as people start them, on ports of this machine alone.
#![cfg(unix)]

use std::fs;
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};

use crate::server::{Server, send};
use crate::tiny_llama;

#[path = "../../serve/tests/http/packages.rs"]
#[expect(dead_code, reason = "the clients in it are those of the tests of the server")]
pub(crate) mod packages;
#[path = "../../serve/tests/http/tiny.rs"]
mod tiny;

/// A model with a tokenizer and a chat template: routers pass texts on.
static MODEL: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    tiny::write(folder.path(), &tiny_llama());
    folder
});

/// The folder of the model.
pub(crate) fn model() -> &'static Path {
    MODEL.path()
}

/// The command of a server of the model at a port, 0 for any.
pub(crate) fn serve(port: u16, flags: &[&str]) -> Command {
    let mut serve = Command::new(env!("CARGO_BIN_EXE_xtask"));
    serve.args(["serve", "--kv-memory", "16MiB", "--model-name", "tiny", "--port", &port.to_string()]);
    serve.args(flags).arg("--model").arg(MODEL.path());
    serve
}

/// Starts a server of the model at a port, 0 for any.
pub(crate) fn worker(port: u16, flags: &[&str]) -> Server {
    Server::listening(&mut serve(port, flags))
}

/// Calls a server, without a router.
pub(crate) fn direct(server: &Server, path: &str, body: &Value) -> Reply {
    call(&server.address, "", "POST", path, &body.to_string())
}

/// A reply, whose body is a text.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Reply {
    /// The JSON of a call that must have succeeded.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.body))
    }

    /// The JSON of all events of a stream that came to its end.
    #[track_caller]
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.body);
        let mut data: Vec<&str> =
            self.body.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::trim).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.body);
        data.iter().map(|event| serde_json::from_str(event).expect(event)).collect()
    }
}

/// A body of a chat, whose answer has `tokens` tokens.
pub(crate) fn chat(text: &str, tokens: u32) -> Value {
    let messages = json!([{ "role": "user", "content": text }]);
    json!({ "model": "tiny", "messages": messages, "max_tokens": tokens, "ignore_eos": true, "temperature": 0 })
}

/// Prompt tokens of an answer, and those of them that were cached.
pub(crate) fn cached(usage: &Value) -> (u64, u64) {
    let cached = &usage["prompt_tokens_details"]["cached_tokens"];
    (usage["prompt_tokens"].as_u64().unwrap(), cached.as_u64().unwrap())
}

/// Requests that a server has answered whole.
pub(crate) fn answered(server: &Server) -> u64 {
    counted(server, "request_success_total", |line| !line.contains("abort"))
}

/// Sum of the samples of a counter that fit.
pub(crate) fn counted(server: &Server, name: &str, fits: impl Fn(&str) -> bool) -> u64 {
    let (metrics, begin) = (server.ask("GET", "/metrics", ""), format!("pagoda:{name}{{"));
    let samples = metrics.lines().filter(|line| line.starts_with(&begin) && fits(line));
    samples.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Requests that run on a server.
pub(crate) fn running(server: &Server) -> u64 {
    let reply = server.ask("GET", "/load", "");
    let (_, json) = reply.split_once("\r\n\r\n").unwrap();
    serde_json::from_str::<Value>(json).unwrap()["num_running"].as_u64().unwrap()
}

/// Waits until something holds, for at most two minutes.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(120), "waiting in vain until {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A router of others.
pub(crate) struct Router {
    process: Child,
    pub(crate) address: String,
    /// Lines of headers of each call.
    headers: &'static str,
    /// Standard output and errors.
    log: NamedTempFile,
}

impl Router {
    /// Starts a router with a command for two ports of its own, and waits until a path answers well.
    pub(crate) fn start(
        command: impl FnOnce([String; 2]) -> Command,
        ready: &str,
        headers: &'static str,
    ) -> Self {
        // Both at once, so that they differ.
        let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = free.map(|listener| listener.local_addr().unwrap().port().to_string());
        let address = format!("127.0.0.1:{}", ports[0]);
        let log = NamedTempFile::new().unwrap();
        let mut command = command(ports);
        command.stdin(Stdio::null()).stdout(log.reopen().unwrap()).stderr(log.reopen().unwrap());
        // No proxy lies between it and the servers, and it asks nobody else for anything.
        command.envs([("NO_PROXY", "127.0.0.1"), ("no_proxy", "127.0.0.1"), ("HF_HUB_OFFLINE", "1")]);
        let process = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut router = Self { process, address, headers, log };
        until("the router is ready", || {
            let ended = router.process.try_wait().unwrap();
            assert!(ended.is_none(), "the router ended: {}", router.said());
            TcpStream::connect(&router.address).is_ok() && router.get(ready).status == 200
        });
        router
    }

    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.log.path()).unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.call("GET", path, "")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.call("POST", path, &body.to_string())
    }

    fn call(&self, method: &str, path: &str, body: &str) -> Reply {
        call(&self.address, self.headers, method, path, body)
    }

    /// Asks for an answer that is streamed, and reads it on a thread.
    pub(crate) fn stream(&self, mut body: Value) -> JoinHandle<Reply> {
        body["stream"] = true.into();
        body["stream_options"] = json!({ "include_usage": true });
        let (address, headers) = (self.address.clone(), self.headers);
        thread::spawn(move || call(&address, headers, "POST", "/v1/chat/completions", &body.to_string()))
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn call(address: &str, headers: &str, method: &str, path: &str, body: &str) -> Reply {
    let mut bytes = Vec::new();
    send(address, headers, method, path, body).read_to_end(&mut bytes).unwrap();
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a reply has a head");
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let status = head.split(' ').nth(1).expect("a status").parse().unwrap();
    let body = &bytes[end + 4..];
    let body = if head.contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_vec() };
    Reply { status, body: String::from_utf8(body).unwrap() }
}

/// The content of a chunked body, which may be cut.
fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    while let Some(end) = body.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&body[..end]).ok().and_then(|hex| usize::from_str_radix(hex, 16).ok());
        let size = size.expect("a chunk begins with its size").min(body.len() - end - 2);
        content.extend(&body[end + 2..][..size]);
        body = body.get(end + size + 4..).unwrap_or_default();
    }
    content
}

/// A program that a list's packages install.
pub(crate) fn program(name: &str, program: &str) -> PathBuf {
    let python = packages::python(name, &format!("{name}.txt"));
    Path::new(&python).with_file_name(program)
}
