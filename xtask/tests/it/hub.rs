//! Models of the Hugging Face hub, from a server on this machine that speaks its API.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::json;
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The commit of every revision.
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Token that the server asks for, where it does.
const TOKEN: &str = "hf_secret";

/// Behaviour of a server other than to answer as it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Ends the first download of each file in its middle.
    Cuts,
    /// Sends other bytes than it announces.
    Corrupts,
    /// Refuses who does not show the token.
    Gated,
    /// Names a file outside of the repository.
    Escapes,
}

/// A hub with one repository, `people/tiny`. Files above 1,000 bytes are large ones: their first answer leads elsewhere.
struct Hub {
    address: String,
    /// Requests so far: method, path and range, and whether they had a token.
    log: Arc<Mutex<Vec<String>>>,
    home: tempfile::TempDir,
}

impl Hub {
    fn new(files: &[(&str, Vec<u8>)], fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let files: BTreeMap<String, Vec<u8>> =
            files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())).collect();
        let served = Served { files, fault, log: Arc::clone(&log), cut: Mutex::default() };
        // The thread ends with the program.
        thread::spawn(move || listener.incoming().flatten().for_each(|stream| served.answer(stream)));
        Self { address, log, home: tempfile::tempdir().unwrap() }
    }

    /// Prints the ids of a text with the model, which needs its tokenizer alone.
    fn tokenize(&self, model: &str, variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        for name in ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HF_HUB_OFFLINE"] {
            command.env_remove(name);
        }
        // A proxy for the network is not for this machine.
        command
            .env("NO_PROXY", "127.0.0.1")
            .env("HF_ENDPOINT", &self.address)
            .env("HF_HOME", self.home.path());
        command.envs(variables.iter().copied());
        command.args(["tokenize", "--model", model, "ab"]).output().unwrap()
    }

    fn cache(&self) -> PathBuf {
        self.home.path().join("hub").join("models--people--tiny")
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }
}

struct Served {
    files: BTreeMap<String, Vec<u8>>,
    fault: Fault,
    log: Arc<Mutex<Vec<String>>>,
    cut: Mutex<Vec<String>>,
}

impl Served {
    fn answer(&self, mut stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let Some(request) = lines.next() else { return };
        let headers: Vec<String> =
            lines.take_while(|line| !line.is_empty()).map(|line| line.to_lowercase()).collect();
        let header = |name: &str| headers.iter().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        let [method, path, _] = request.split(' ').collect::<Vec<_>>()[..] else { return };
        let range = header("range").map_or(String::new(), |range| format!(" {range}"));
        let token = if header("authorization").is_some() { " with a token" } else { "" };
        self.log.lock().unwrap().push(format!("{method} {path}{range}{token}"));
        let known = header("authorization") == Some(&format!("bearer {TOKEN}"));
        let from = range.strip_prefix(" bytes=").and_then(|range| range.trim_end_matches('-').parse().ok());
        let answer = match self.fault {
            Fault::Gated if !known && !path.starts_with("/cdn/") => head("401 Unauthorized", &[], 0),
            _ => self.found(method, path, from).unwrap_or_else(|| head("404 Not Found", &[], 0)),
        };
        let _ = stream.write_all(&answer);
    }

    fn found(&self, method: &str, path: &str, from: Option<usize>) -> Option<Vec<u8>> {
        let revision = path.strip_prefix("/api/models/people/tiny/revision/");
        if revision.is_some_and(|revision| ["main", "v1"].contains(&revision)) {
            let mut names: Vec<&str> = self.files.keys().map(String::as_str).collect();
            if self.fault == Fault::Escapes {
                names = vec!["../../evil.gguf"];
            }
            let siblings: Vec<_> = names.iter().map(|name| json!({ "rfilename": name })).collect();
            let body = json!({ "sha": COMMIT, "siblings": siblings }).to_string();
            return Some([head("200 OK", &[], body.len()), body.into_bytes()].concat());
        }
        let name = path.strip_prefix(&format!("/people/tiny/resolve/{COMMIT}/"));
        if let Some(bytes) = path.strip_prefix("/cdn/").and_then(|name| self.files.get(name)) {
            return Some(self.sent(method, path, bytes, from));
        }
        let bytes = self.files.get(name?)?;
        if bytes.len() <= 1000 {
            return Some(self.sent(method, path, bytes, from));
        }
        let hash = hex(Sha256::digest(bytes).as_slice());
        let location = format!("Location: /cdn/{}", name?);
        let headers =
            [location, format!("X-Linked-Etag: \"{hash}\""), format!("X-Linked-Size: {}", bytes.len())];
        Some(head("302 Found", &headers, 0))
    }

    /// A file, or what is left of it from a byte on.
    fn sent(&self, method: &str, path: &str, bytes: &[u8], from: Option<usize>) -> Vec<u8> {
        let blob = [format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat();
        let etag = format!("ETag: \"{}\"", hex(Sha1::digest(blob).as_slice()));
        let mut body = bytes[from.unwrap_or(0)..].to_vec();
        let mut head = match from {
            None => head("200 OK", &[etag], body.len()),
            Some(from) => {
                let range = format!("Content-Range: bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
                head("206 Partial Content", &[etag, range], body.len())
            }
        };
        if method == "HEAD" {
            return head;
        }
        if self.fault == Fault::Corrupts && bytes.len() > 1000 {
            body[500] ^= 1;
        }
        let mut cut = self.cut.lock().unwrap();
        if self.fault == Fault::Cuts && !cut.contains(&path.to_owned()) {
            cut.push(path.to_owned());
            body.truncate(body.len() / 2);
        }
        head.extend(body);
        head
    }
}

fn head(status: &str, headers: &[String], length: usize) -> Vec<u8> {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n")
        .into_bytes()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A checkpoint with a tokenizer of two letters and of words that make it large.
fn checkpoint() -> Vec<(&'static str, Vec<u8>)> {
    let fixture = [env!("CARGO_MANIFEST_DIR"), "..", "models", "tests", "fixtures", "tiny-llama"];
    let fixture: PathBuf = fixture.iter().collect();
    let read = |name: &str| fs::read(fixture.join(name)).unwrap();
    let mut vocab: BTreeMap<String, u32> = (0..120).map(|id| (format!("word{id}"), id + 8)).collect();
    vocab.extend([("a".to_owned(), 3), ("b".to_owned(), 4)]);
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": [] },
    });
    vec![
        ("README.md", b"not fetched".to_vec()),
        ("config.json", read("config.json")),
        ("model.safetensors", read("model.safetensors")),
        ("tokenizer.json", tokenizer.to_string().into_bytes()),
    ]
}

fn ids(output: &Output) -> &str {
    assert!(output.status.success(), "{}", said(output));
    std::str::from_utf8(&output.stdout).unwrap().trim()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_model_is_fetched_once_into_the_cache_that_other_tools_share() {
    let hub = Hub::new(&checkpoint(), Fault::None);
    assert_eq!(ids(&hub.tokenize("hf:people/tiny", &[])), "[3,4]");
    let log = hub.log();
    assert!(log.iter().all(|line| !line.contains("README") && !line.contains("token ")), "{log:?}");
    assert!(log.contains(&"GET /cdn/model.safetensors".to_owned()), "{log:?}");
    // The layout: a revision, a commit with links, and blobs by their hashes.
    let cache = hub.cache();
    assert_eq!(fs::read_to_string(cache.join("refs/main")).unwrap(), COMMIT);
    let snapshot = cache.join("snapshots").join(COMMIT);
    let bytes = &checkpoint()[2].1;
    let blob = cache.join("blobs").join(hex(Sha256::digest(bytes).as_slice()));
    assert_eq!(
        fs::canonicalize(snapshot.join("model.safetensors")).unwrap(),
        fs::canonicalize(blob).unwrap()
    );
    #[cfg(unix)]
    assert!(fs::read_link(snapshot.join("config.json")).unwrap().starts_with("../../blobs"));
    assert!(!snapshot.join("README.md").exists());
    // Again: the list of files alone. Offline: nothing. Another revision of the same commit: nothing but the list.
    assert_eq!(ids(&hub.tokenize("hf:people/tiny", &[])), "[3,4]");
    assert_eq!(hub.log(), ["GET /api/models/people/tiny/revision/main"]);
    assert_eq!(ids(&hub.tokenize("hf:people/tiny", &[("HF_HUB_OFFLINE", "1")])), "[3,4]");
    assert_eq!(ids(&hub.tokenize("hf:people/tiny@v1", &[])), "[3,4]");
    assert_eq!(hub.log(), ["GET /api/models/people/tiny/revision/v1"]);
    // Without a network: what there is, and a word about it.
    let unreachable = hub.tokenize("hf:people/tiny", &[("HF_ENDPOINT", "http://127.0.0.1:9")]);
    assert_eq!(ids(&unreachable), "[3,4]");
    assert!(said(&unreachable).contains("http://127.0.0.1:9 does not answer"), "{}", said(&unreachable));
}

#[test]
fn a_download_that_breaks_goes_on_where_it_ended() {
    let hub = Hub::new(&checkpoint(), Fault::Cuts);
    assert_eq!(ids(&hub.tokenize("hf:people/tiny", &[])), "[3,4]");
    let half = checkpoint()[2].1.len() / 2;
    let log = hub.log();
    assert!(log.contains(&format!("GET /cdn/model.safetensors bytes={half}-")), "{log:?}");
    // An earlier process has left a part.
    let hub = Hub::new(&checkpoint(), Fault::None);
    let bytes = &checkpoint()[2].1;
    let unfinished = hub.cache().join("blobs").join(hex(Sha256::digest(bytes).as_slice()) + ".incomplete");
    fs::create_dir_all(unfinished.parent().unwrap()).unwrap();
    fs::write(&unfinished, &bytes[..1234]).unwrap();
    assert_eq!(ids(&hub.tokenize("hf:people/tiny", &[])), "[3,4]");
    assert!(hub.log().contains(&"GET /cdn/model.safetensors bytes=1234-".to_owned()));
    assert!(!unfinished.exists());
}

#[test]
fn other_bytes_than_announced_are_not_kept() {
    let hub = Hub::new(&checkpoint(), Fault::Corrupts);
    let output = hub.tokenize("hf:people/tiny", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("the hash of what came is "), "{}", said(&output));
    let blobs: Vec<PathBuf> =
        fs::read_dir(hub.cache().join("blobs")).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(blobs.iter().all(|path| fs::metadata(path).unwrap().len() < 1000), "{blobs:?}");
    assert!(!hub.cache().join("refs/main").exists());
}

#[test]
fn the_token_goes_to_the_hub() {
    let hub = Hub::new(&checkpoint(), Fault::Gated);
    let refused = hub.tokenize("hf:people/tiny", &[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(said(&refused).contains("set HF_TOKEN"), "{}", said(&refused));
    let wrong = hub.tokenize("hf:people/tiny", &[("HF_TOKEN", "other")]);
    assert!(
        said(&wrong).contains("the token may not read it") && !said(&wrong).contains("other"),
        "{}",
        said(&wrong)
    );
    assert_eq!(ids(&hub.tokenize("hf:people/tiny", &[("HF_TOKEN", TOKEN)])), "[3,4]");
    // Logging in with the hub's own tools leaves a file.
    fs::write(hub.home.path().join("token"), format!("{TOKEN}\n")).unwrap();
    fs::remove_dir_all(hub.cache()).unwrap();
    assert_eq!(ids(&hub.tokenize("hf:people/tiny", &[])), "[3,4]");
}

#[test]
fn what_cannot_be_fetched_says_why() {
    let hub = Hub::new(&checkpoint(), Fault::None);
    let told = |model: &str, variables: &[(&str, &str)]| {
        let output = hub.tokenize(model, variables);
        assert_eq!(output.status.code(), Some(1), "{model}");
        said(&output).replace(&hub.address, "http://HUB").replace(hub.home.path().to_str().unwrap(), "HOME")
    };
    let offline = told("hf:people/tiny", &[("HF_HUB_OFFLINE", "1")]);
    assert!(
        offline.contains("hf:people/tiny is not in HOME/hub, and HF_HUB_OFFLINE forbids to fetch it"),
        "{offline}"
    );
    let no_network = told("hf:people/tiny", &[("HF_ENDPOINT", "http://127.0.0.1:9")]);
    assert!(
        no_network.contains("cannot be fetched: without a network, name a model file with --model PATH"),
        "{no_network}"
    );
    assert!(told("hf:people/other", &[]).contains("there is no such repository, revision or file"));
    assert!(told("hf:people/tiny@v2", &[]).contains("there is no such repository, revision or file"));
    assert!(
        told("hf:people/tiny:Q4_K_M", &[]).contains("neither config.json with safetensors nor a GGUF file")
    );
    assert!(told("hf:people", &[]).contains("is not of the form hf:USER/REPO"));
    let escapes = Hub::new(&checkpoint(), Fault::Escapes);
    assert_eq!(escapes.tokenize("hf:people/tiny", &[]).status.code(), Some(1));
    assert!(!Path::new(escapes.home.path()).join("hub").join("evil.gguf").exists());
}
