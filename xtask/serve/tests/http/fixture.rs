//! A tiny model with a tokenizer and a chat template, and servers of it.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use axum::Router;
use pagoda::{
    Demand, Engine, EngineAdmin, EngineHandle, EngineOptions, HandleOptions, KvDtype, Model, Sparse,
};
use serve::{Connections, Options, Service};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::tiny;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let source: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "..", "..", "models", "tests", "fixtures", "tiny-llama"]
            .iter()
            .collect();
    tiny::write(folder.path(), &source);
    folder
});

/// Files of the model of all tests.
pub(crate) fn model_folder() -> &'static Path {
    FOLDER.path()
}

/// The model of all tests.
pub(crate) static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| Arc::new(open_model()));

/// The fixture's model, to be loaded on a device of its own.
pub(crate) fn open_model() -> Model {
    Model::open(FOLDER.path()).unwrap()
}

pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

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
    let engine = Engine::open(MODEL.clone(), options).unwrap();
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

pub(crate) fn route(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    RUNTIME.spawn(serve::serve(listener, router, Connections::default(), std::future::pending()));
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

/// Steps that take 5 milliseconds at least, as long as this lives: requests then last, however fast the machine is.
pub(crate) struct Slowed(Arc<AtomicBool>);

impl Drop for Slowed {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

pub(crate) fn slowed(served: &Served) -> Slowed {
    let on = Arc::new(AtomicBool::new(true));
    let (handle, is_on) = (served.handle.clone(), Arc::clone(&on));
    thread::spawn(move || {
        let pause = |_: &mut EngineAdmin<'_>| thread::sleep(Duration::from_millis(5));
        while is_on.load(Ordering::Relaxed) && handle.call(pause).is_ok_and(|paused| paused.wait().is_some())
        {
        }
    });
    Slowed(on)
}

/// Whether no request waits or runs, and no block is held.
pub(crate) fn is_idle(served: &Served) -> bool {
    // In this order: what starts in between is seen running. A snapshot alone lacks what the engine has not taken yet.
    let waiting = served.handle.num_waiting();
    let snapshot = served.handle.snapshot();
    waiting == 0 && snapshot.running.is_empty() && snapshot.waiting.is_empty() && snapshot.blocks.used == 0
}

/// Waits until something holds.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed().as_secs() < 60, "not within a minute: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
