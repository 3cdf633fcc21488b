//! The live page: what is served, and what feeds it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use pagoda::{Engine, EngineHandle, HandleOptions, Model, Registry, Sparse};
use serde_json::{Value, json};
use serve::{ApiKey, Options};

use crate::client::{chunk, get, post, post_bytes, send};
use crate::fixture::{MODEL, Served, Setup, engine_options, listen, shared, slowed, start, until};

fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets")
}

fn scripts() -> Vec<PathBuf> {
    let files = fs::read_dir(assets()).unwrap().map(|entry| entry.unwrap().path());
    let scripts: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|e| e == "mjs")).collect();
    assert!(scripts.len() > 3, "{scripts:?}");
    scripts
}

/// Returns the text behind each `begin`, up to `end`.
fn between<'a>(text: &'a str, begin: &'a str, end: char) -> impl Iterator<Item = &'a str> {
    text.split(begin).skip(1).map(move |rest| rest.split(end).next().unwrap())
}

/// An open stream of events.
pub(crate) struct Watch(BufReader<TcpStream>, String);

impl Watch {
    #[track_caller]
    pub(crate) fn open(served: &Served, query: &str) -> Self {
        let head = format!("GET /live/events{query} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let mut reader = BufReader::new(send(served, head.as_bytes()));
        let mut status = String::new();
        reader.read_line(&mut status).unwrap();
        assert!(status.contains(" 200 "), "{status}");
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).unwrap();
        }
        Self(reader, String::new())
    }

    /// The next view; `None` after the last one.
    pub(crate) fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.1.split_once("\n\n") {
                let data =
                    event.strip_prefix("event: view\ndata: ").map(|data| serde_json::from_str(data).unwrap());
                self.1 = rest.to_owned();
                match data {
                    Some(view) => return Some(view),
                    None => continue,
                }
            }
            self.1 += &String::from_utf8(chunk(&mut self.0)?).unwrap();
        }
    }

    /// The first view that is as wanted.
    #[track_caller]
    fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        for _ in 0..200 {
            last = self.next().expect("the stream goes on");
            if wanted(&last) {
                return last;
            }
        }
        panic!("the last view was {last}");
    }
}

/// A long request, which ends when the connection is closed.
fn generate(served: &Served, prompt: &[u32]) -> TcpStream {
    let body = json!({ "prompt": prompt, "max_tokens": 800, "ignore_eos": true, "stream": true });
    send(served, &post_bytes("/v1/completions", body.to_string().as_bytes()))
}

fn runs(view: &Value) -> bool {
    view["snapshot"]["running"].as_array().is_some_and(|running| !running.is_empty())
}

#[test]
fn the_page_is_whole_and_asks_no_other_address() {
    let served = shared();
    let page = get(served, "/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    let linked = between(page.text(), "=\"live/", '"').map(|name| format!("/live/{name}"));
    let imported = scripts();
    let imported =
        imported.iter().map(|path| format!("/live/{}", path.file_name().unwrap().to_str().unwrap()));
    let files: BTreeSet<String> = linked.chain(imported).chain(["/".to_owned()]).collect();
    for path in &files {
        let file = get(served, path);
        assert_eq!(file.status, 200, "{path}");
        assert_eq!(file.header("content-security-policy"), Some(policy), "{path}");
        let outside = file.text().replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        assert!(!outside.contains("://") && !outside.contains("=\"//"), "{path} has another address");
    }
    for forbidden in [" style=", "<style", " onclick=", "javascript:"] {
        assert!(!page.text().contains(forbidden), "{forbidden}: the policy forbids it within the page");
    }
}

#[test]
fn what_scripts_look_for_is_on_the_page() {
    let page = fs::read_to_string(assets().join("page.html")).unwrap();
    let ids: BTreeSet<&str> = between(&page, " id=\"", '"').collect();
    assert_eq!(ids.len(), page.matches(" id=\"").count(), "ids are unique");
    let mut sought = 0;
    for script in scripts() {
        let text = fs::read_to_string(&script).unwrap();
        for id in between(&text, "element(\"", '"').chain(between(&text, "getElementById(\"", '"')) {
            assert!(ids.contains(id), "{}: there is no #{id}", script.display());
            sought += 1;
        }
    }
    assert!(sought > 40, "{sought}");
    for label in between(&page, "aria-labelledby=\"", '"').chain(between(&page, " for=\"", '"')) {
        assert!(ids.contains(label), "there is no #{label}");
    }
}

#[test]
fn scripts_parse_and_understand_the_events() {
    let node = |command: &mut Command| {
        let output = command.output().expect("`cargo xtask test` sets Node.js up");
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {said}");
    };
    for script in scripts() {
        node(Command::new("node").arg("--check").arg(script));
    }
    let served = start(Setup::default());
    let _slowed = slowed(&served);
    let _running = generate(&served, &[9; 40]);
    let view = Watch::open(&served, "").until(runs);
    let recorded = tempfile::NamedTempFile::new().unwrap();
    fs::write(recorded.path(), view.to_string()).unwrap();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page");
    let tests = ["history.test.mjs", "markdown.test.mjs"].map(|name| tests.join(name));
    node(Command::new("node").arg("--test").args(tests).env("PAGODA_VIEW", recorded.path()));
}

/// The paths of all fields; lists are those of their first element.
fn fields(value: &Value, path: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(fields_of) => {
            for (name, value) in fields_of {
                fields(value, &format!("{path}.{name}"), out);
            }
        }
        Value::Array(list) if list.first().is_some_and(Value::is_object) => {
            fields(&list[0], &format!("{path}[]"), out);
        }
        _ => out.push(path.to_owned()),
    }
}

#[test]
fn events_have_the_fields_that_the_page_reads() {
    let sparse = Sparse::new(&Registry::builtin(), &"quest:page_budget=2,block_size=16".parse().unwrap());
    let served = start(Setup { sparse: Some(sparse.unwrap()), ..Setup::default() });
    let _slowed = slowed(&served);
    post(&served, "/v1/completions", &json!({ "prompt": [5, 6, 7], "max_tokens": 2, "ignore_eos": true }))
        .ok();
    let _running = generate(&served, &[9; 200]);
    let view = Watch::open(&served, "").until(runs);
    let seq = &view["snapshot"]["running"][0]["seq"];
    assert_eq!(view["reads"], json!([]), "nobody has chosen a sequence");
    let mut watch = Watch::open(&served, &format!("?seq={seq}"));
    let view = watch.until(|view| view["reads"].as_array().is_some_and(|reads| !reads.is_empty()));
    let reads = &view["reads"][0];
    assert_eq!((&reads["seq"], &reads["block_size"]), (seq, &json!(16)));
    let layers = reads["layers"].as_array().unwrap();
    let columns = usize::try_from(reads["columns"].as_u64().unwrap()).unwrap();
    assert!(columns >= 12 && !layers.is_empty(), "{reads}");
    for layer in layers {
        let read = layer["read"].as_str().unwrap();
        let count = read.chars().filter(|digit| *digit != '0').count();
        assert!(read.len() == columns && (1..=4).contains(&count), "{read}: two blocks for each KV head");
    }
    assert!(reads["density"].as_f64().unwrap() < 1.0 && reads["bound"].is_number(), "{reads}");
    let map = &view["map"];
    let held = map["runs"].as_array().unwrap().iter().filter(|run| run[1] == "held" && run[2] == *seq);
    let held: u64 = held.map(|run| run[0].as_u64().unwrap()).sum();
    assert!(held >= 12, "{map}");
    let mut all = Vec::new();
    fields(&view, "", &mut all);
    all.sort_unstable();
    insta::assert_snapshot!(all.join("\n"));
}

/// DeepSeek V3.2, whose indexer leaves each query 16 tokens.
#[test]
fn what_an_indexer_chooses_is_seen() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tests/fixtures");
    let model = Arc::new(Model::open(fixtures.join("tiny-deepseek-v32")).unwrap());
    let engine = Engine::open(Arc::clone(&model), engine_options(2)).unwrap();
    let handle = EngineHandle::spawn(engine, HandleOptions::default()).unwrap();
    let served = listen(handle, Options::new(model, "indexed"));
    let _slowed = slowed(&served);
    let body =
        json!({ "prompt": vec![9; 64], "max_tokens": 4, "ignore_eos": true, "return_token_ids": true });
    let reply = post(&served, "/v1/completions", &body).ok();
    // The rows of the prompt, and those of three tokens.
    let (attended, seen): (u32, u32) = (1..=67)
        .map(|tokens| (tokens.min(16), tokens))
        .fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    let sparse = &reply["pagoda"]["sparse"];
    assert_eq!(sparse["policy"], "indexer", "{reply}");
    let density = sparse["density"].as_f64().unwrap();
    assert!((density - f64::from(attended) / f64::from(seen)).abs() < 1e-9, "{density}");
    let _running = generate(&served, &[9; 64]);
    let view = Watch::open(&served, "").until(runs);
    let seq = &view["snapshot"]["running"][0]["seq"];
    let mut watch = Watch::open(&served, &format!("?seq={seq}"));
    let view = watch.until(|view| view["reads"].as_array().is_some_and(|reads| !reads.is_empty()));
    assert_eq!(view["policy"], "indexer");
    let reads = &view["reads"][0];
    assert_eq!((&reads["seq"], &reads["block_size"]), (seq, &json!(1)));
    let (tokens, layers) = (reads["tokens"].as_f64().unwrap(), reads["layers"].as_array().unwrap());
    assert_eq!(layers.len(), 3, "{reads}");
    // One row of a decode step: 16 tokens of all.
    let density = reads["density"].as_f64().unwrap();
    assert!((density - 16.0 / tokens).abs() < 1e-9, "{reads}");
    for layer in layers {
        let read = layer["read"].as_str().unwrap().chars().filter(|digit| *digit != '0').count();
        assert!((1..=16).contains(&read), "{reads}");
    }
}

#[test]
fn streams_end_with_the_server() {
    let served = start(Setup::default());
    let mut watch = Watch::open(&served, "");
    watch.until(|view| !runs(view));
    served.service.drain();
    while watch.next().is_some() {}
    assert_eq!(get(&served, "/live/events").status, 503);
}

#[test]
fn many_watch_and_nobody_is_left() {
    let served = start(Setup::default());
    let mut watchers: Vec<Watch> = (0..8).map(|seq| Watch::open(&served, &format!("?seq={seq}"))).collect();
    for watch in &mut watchers {
        watch.until(|view| view["model"] == "tiny");
    }
    drop(watchers);
    // The engine ends when nobody holds it any more, the task that looked at it included.
    let Served { handle, service, .. } = served;
    let ended = handle.shutdown(pagoda::Shutdown::Drain);
    drop((handle, service));
    until("the engine has ended", || ended.is_over());
}

#[test]
fn with_keys_the_page_is_open_and_its_feed_is_not() {
    let mut options = Options::new(Arc::clone(&MODEL), "tiny");
    options.api_keys = vec![ApiKey::new("first")];
    let served = start(Setup { options, ..Setup::default() });
    assert_eq!(get(&served, "/").status, 200);
    assert_eq!(get(&served, "/live/page.mjs").status, 200);
    for path in ["/live/events", "/live/other", "/live/"] {
        assert_eq!(get(&served, path).refused(401)["code"], "invalid_api_key", "{path}");
    }
    assert_eq!(get(shared(), "/live/events?seq=x").refused(400)["param"], "seq");
}
