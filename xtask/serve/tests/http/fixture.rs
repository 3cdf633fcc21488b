//! A tiny model with a tokenizer and a chat template, and servers of it.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::thread;

use axum::Router;
use pagoda::{Demand, Engine, EngineHandle, EngineOptions, HandleOptions, KvDtype, Model, Sparse};
use serde_json::{Value, json};
use serve::{Options, Service};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// Texts of bytes with a token of their own: printable ASCII, line breaks, and characters of 2, 3 and 4 bytes.
const TEXTS: &str = "\né€😀";

/// Pairs of tokens that are a token.
const MERGES: [[&str; 2]; 20] = [
    ["t", "h"],
    ["e", "r"],
    ["o", "n"],
    ["a", "n"],
    ["i", "n"],
    ["th", "e"],
    ["Ġ", "the"],
    ["o", "u"],
    ["l", "l"],
    ["h", "e"],
    ["he", "ll"],
    ["hell", "o"],
    ["s", "t"],
    ["r", "e"],
    ["a", "t"],
    ["e", "s"],
    ["o", "r"],
    ["i", "s"],
    ["Ġ", "a"],
    ["Ġ", "is"],
];

/// Conversations as SmolLM2 writes them, and what tests look for of tools, documents and thoughts.
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
{% for call in m.tool_calls or [] %}[{{ call.function.name }} {{ call.function.arguments.x }}]{% endfor %}\
<|im_end|>\n{% endfor %}\
{% if tools %}tools: {{ tools | tojson }}\n{% endif %}\
{% if documents %}documents: {{ documents | length }}\n{% endif %}\
{% if enable_thinking is defined and not enable_thinking %}no thoughts\n{% endif %}\
{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Ends an answer.
pub(crate) const END: &str = "<|im_end|>";

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let source: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "..", "..", "models", "tests", "fixtures", "tiny-llama"]
            .iter()
            .collect();
    let write = |name: &str, value: &Value| fs::write(folder.path().join(name), value.to_string()).unwrap();
    fs::copy(source.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(source.join("config.json")).unwrap()).unwrap();
    config["eos_token_id"] = 127.into();
    write("config.json", &config);
    write("tokenizer.json", &tokenizer());
    write("tokenizer_config.json", &json!({ "eos_token": END, "chat_template": TEMPLATE }));
    folder
});

/// Files of the model of all tests.
pub(crate) fn model_folder() -> &'static Path {
    FOLDER.path()
}

/// The model of all tests.
pub(crate) static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| Arc::new(open_model()));

/// The same model, to be loaded on a device of its own.
pub(crate) fn open_model() -> Model {
    Model::open(FOLDER.path()).unwrap()
}

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

fn tokenizer() -> Value {
    let mut bytes: Vec<u8> = (b' '..=b'~').chain(TEXTS.bytes()).collect();
    bytes.sort_unstable();
    bytes.dedup();
    let mut tokens: Vec<String> = bytes.into_iter().map(|byte| byte_char(byte).to_string()).collect();
    tokens.extend(MERGES.map(|pair| pair.concat()));
    let control = ["<|endoftext|>", "<|im_start|>", END];
    assert_eq!(tokens.len() + control.len(), 128);
    let vocab: Value =
        (0..).zip(&tokens).map(|(id, token): (u32, _)| (token.clone(), Value::from(id))).collect();
    let added = |(id, content): (u32, &str)| {
        json!({ "id": id, "content": content, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false })
    };
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true });
    json!({
        "version": "1.0",
        "added_tokens": (125..).zip(control).map(added).collect::<Vec<_>>(),
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocab, "merges": MERGES.map(|pair| pair.join(" ")) },
    })
}

/// The character that byte-level BPE writes for a byte.
fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return byte.into();
    }
    let before = (0..byte).filter(|b| !printable(*b)).count();
    char::from_u32(0x100 + u32::try_from(before).unwrap()).unwrap()
}

/// A server and its engine.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) handle: EngineHandle,
    pub(crate) service: Service,
}

/// Differences of a server of one test from the others.
pub(crate) struct Setup {
    pub(crate) sequences: u32,
    pub(crate) bounds: HandleOptions,
    pub(crate) options: Options,
    pub(crate) sparse: Option<Sparse>,
}

impl Default for Setup {
    fn default() -> Self {
        let options = Options::new(Arc::clone(&MODEL), "tiny");
        Self { sequences: 16, bounds: HandleOptions::default(), options, sparse: None }
    }
}

/// Sequences of up to 1,024 tokens, in chunks of 64.
pub(crate) fn engine_options(sequences: u32) -> EngineOptions {
    let demand = Demand::new(sequences, 1024 * u64::from(sequences)).longest(1024);
    EngineOptions::new().kv_dtype(KvDtype::F32).chunk(64).demand(demand)
}

/// Starts a server that lives as long as the test.
pub(crate) fn start(setup: Setup) -> Served {
    let mut options = engine_options(setup.sequences);
    options.sparse = setup.sparse;
    let engine = Engine::open(&MODEL, &options).unwrap();
    listen(EngineHandle::spawn(engine, setup.bounds).unwrap(), setup.options)
}

/// Serves an engine as long as the test lives.
pub(crate) fn listen(handle: EngineHandle, options: Options) -> Served {
    let service = Service::new(handle.clone(), options);
    let address = route(service.router());
    Served { address, handle, service }
}

/// Serves an application with routes of an engine as long as the test lives.
pub(crate) fn listen_with(
    handle: EngineHandle,
    options: Options,
    application: impl FnOnce(EngineHandle, Options) -> Router,
) -> Served {
    let service = Service::new(handle.clone(), options.clone());
    let address = route(application(handle.clone(), options));
    Served { address, handle, service }
}

fn route(router: Router) -> SocketAddr {
    let listener = RUNTIME.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    RUNTIME.spawn(serve::serve(listener, router, std::future::pending()));
    address
}

/// The server of tests that leave no trace in it.
pub(crate) fn shared() -> &'static Served {
    static SHARED: LazyLock<Served> = LazyLock::new(|| start(Setup::default()));
    &SHARED
}

/// Runs a client's future.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    RUNTIME.block_on(future)
}

/// Waits until something holds.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed().as_secs() < 60, "not within a minute: {what}");
        thread::sleep(std::time::Duration::from_millis(2));
    }
}
