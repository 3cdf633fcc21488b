//! Devices that are lost, and steps that stall.

use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use pagoda::{Engine, EngineAdmin, EngineHandle, HandleOptions, Health, Note, Notes, Request, TokenMask};
use serde_json::{Value, json};
use serve::{Options, Stopped};

use crate::client::{get, post, post_bytes, receive, send};
use crate::fixture::{Served, engine_options, listen, open_model, slowed, until};

/// Spawn of a server's engine: one that replaces a lost device, or one that ends with it.
#[derive(Clone, Copy, PartialEq)]
enum Spawn {
    Recovering,
    Once,
}

/// A server with a device of its own, and what its engine tells.
fn serve_alone(spawn: Spawn, bounds: HandleOptions) -> (Served, mpsc::Receiver<Note>) {
    let model = Arc::new(open_model());
    let (tell, told) = mpsc::channel();
    let notes = Notes::to(move |note| {
        let _ = tell.send(note.clone());
    });
    let options = engine_options(4).notes(notes);
    let engine = Engine::open(Arc::clone(&model), options).unwrap();
    let handle = EngineHandle::spawn(engine, bounds.recover(spawn == Spawn::Recovering)).unwrap();
    (listen(handle, Options::new(model, "tiny")), told)
}

/// A stream of 150 tokens.
fn long(seed: u32) -> Value {
    let prompt: Vec<u32> = (0..40).map(|at| (at * 7 + seed) % 120).collect();
    json!({ "prompt": prompt, "max_tokens": 150, "temperature": 0, "ignore_eos": true, "return_token_ids": true })
}

/// A stream that runs until something ends it.
fn endless(seed: u32) -> Value {
    let mut body = long(seed);
    body["max_tokens"] = 900.into();
    body
}

fn streamed(mut body: Value) -> Vec<u8> {
    body["stream"] = true.into();
    post_bytes("/v1/completions", body.to_string().as_bytes())
}

fn lose_device(served: &Served) {
    served.handle.call(|engine| engine.decoder().gpu().destroy()).unwrap().wait().unwrap();
}

#[test]
fn a_lost_device_loses_no_token() {
    let (served, told) = serve_alone(Spawn::Recovering, HandleOptions::default());
    let whole = |seed| {
        let reply = post(&served, "/v1/completions", &long(seed)).ok();
        (reply["choices"][0]["text"].clone(), reply["choices"][0]["token_ids"].clone())
    };
    let expected: Vec<_> = (0..3).map(whole).collect();
    let before = served.handle.snapshot().totals.generated_tokens;
    let streams: Vec<_> = (0..3).map(|seed| send(&served, &streamed(long(seed)))).collect();
    // A fourth one runs, and a fifth waits for a place.
    let others: Vec<_> = (3..5).map(|seed| send(&served, &streamed(long(seed)))).collect();
    // Between two steps, so that they cannot end in between.
    let lost = move |engine: &mut EngineAdmin<'_>| {
        let generate = engine.snapshot().totals.generated_tokens > before + 60;
        if generate && engine.has_work() {
            engine.decoder().gpu().destroy();
        }
        generate
    };
    until("they generate", || served.handle.call(lost).unwrap().wait().unwrap());
    for (stream, (text, ids)) in streams.into_iter().zip(expected) {
        let events = receive(stream).events();
        let chunks: Vec<Value> =
            events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
        let choice = |chunk: &Value, key: &str| chunk["choices"][0][key].clone();
        let streamed: String =
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
        let streamed_ids: Vec<Value> =
            chunks.iter().flat_map(|chunk| choice(chunk, "token_ids").as_array().unwrap().clone()).collect();
        assert_eq!((json!(streamed), json!(streamed_ids)), (text, ids));
        assert_eq!(choice(chunks.last().unwrap(), "finish_reason"), "length");
    }
    for stream in others {
        assert!(receive(stream).events().iter().any(|event| event.contains(r#""finish_reason":"length""#)));
    }
    assert_eq!(served.handle.snapshot().totals.recoveries, 1);
    assert!(told.try_iter().any(|note| matches!(note, Note::DeviceLost { .. })));
    assert!(get(&served, "/metrics").text().contains("pagoda:device_recoveries_total"));
    get(&served, "/health").ok();
    until("no block is held", || served.handle.snapshot().blocks.used == 0);
}

#[test]
fn a_server_ends_with_its_engine_and_says_so() {
    let model = Arc::new(open_model());
    let engine = Engine::open(Arc::clone(&model), engine_options(1)).unwrap();
    let handle = EngineHandle::spawn(engine, HandleOptions::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (ready, readied) = mpsc::channel();
    let server = thread::spawn({
        let (handle, options) = (handle.clone(), Options::new(model, "tiny"));
        move || serve::run(listener, handle, options, || ready.send(()).unwrap()).unwrap()
    });
    readied.recv().unwrap();
    handle.call(|engine| engine.decoder().gpu().destroy()).unwrap().wait().unwrap();
    // Nothing is wrong until a step needs the device.
    assert!(!server.is_finished());
    let lost = handle.submit(Request::new(vec![1, 2, 3])).unwrap().blocking().last().unwrap();
    assert!(lost.unwrap_err().to_string().contains("engine"));
    assert_eq!(server.join().unwrap(), Stopped::EngineFailed);
}

#[test]
fn an_engine_that_cannot_recover_ends_every_request_with_an_error() {
    let (served, _) = serve_alone(Spawn::Once, HandleOptions::default());
    let _slowed = slowed(&served);
    let stream = send(&served, &streamed(endless(1)));
    let whole = send(&served, &post_bytes("/v1/completions", endless(2).to_string().as_bytes()));
    until("both run", || served.handle.snapshot().running.len() == 2);
    lose_device(&served);
    let events = receive(stream).events();
    let [.., failed, done] = &events[..] else { panic!("{events:?}") };
    let failed: Value = serde_json::from_str(failed).unwrap();
    assert_eq!((&failed["error"]["type"], done.as_str()), (&json!("server_error"), "[DONE]"));
    assert!(failed["error"]["message"].as_str().unwrap().contains("the device was lost"), "{failed}");
    receive(whole).refused(500);
    served.handle.ended().wait();
    assert_eq!(served.handle.health(), Health::Ended);
    for path in ["/health", "/health/live"] {
        assert_eq!(get(&served, path).refused(503)["code"], "engine_stopped");
    }
    assert_eq!(post(&served, "/v1/completions", &long(3)).refused(503)["code"], "engine_stopped");
}

/// Work on the engine's thread that panics.
fn panic(_: &mut EngineAdmin<'_>) {
    panic!("a test's own");
}

#[test]
fn a_server_whose_engine_panics_answers_with_errors_and_ends() {
    let model = Arc::new(open_model());
    let engine = Engine::open(Arc::clone(&model), engine_options(4)).unwrap();
    let handle = EngineHandle::spawn(engine, HandleOptions::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = Options::new(model, "tiny");
    // Its address alone is used: the requests go to the server that ends.
    let mut served = listen(handle.clone(), options.clone());
    served.address = listener.local_addr().unwrap();
    let server = thread::spawn(move || serve::run(listener, handle, options, || ()).unwrap());
    let _slowed = slowed(&served);
    let stream = send(&served, &streamed(endless(1)));
    let whole = send(&served, &post_bytes("/v1/completions", endless(2).to_string().as_bytes()));
    until("both run", || served.handle.snapshot().running.len() == 2);
    assert!(served.handle.call(panic).unwrap().wait().is_none());
    let events = receive(stream).events();
    let [.., failed, done] = &events[..] else { panic!("{events:?}") };
    let failed: Value = serde_json::from_str(failed).unwrap();
    assert_eq!((&failed["error"]["type"], done.as_str()), (&json!("server_error"), "[DONE]"));
    let message = "the engine failed: the engine's thread panicked: a test's own";
    assert_eq!(failed["error"]["message"], message);
    receive(whole).refused(500);
    assert_eq!(server.join().unwrap(), Stopped::EngineFailed);
}

/// Allows every token; the second one once the sender of the channel is gone.
#[derive(Debug, Clone)]
struct Held {
    tokens: Arc<AtomicUsize>,
    gate: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl TokenMask for Held {
    fn allow(&mut self, allowed: &mut [u32]) {
        if self.tokens.fetch_add(1, Ordering::Relaxed) == 1 {
            let _ = self.gate.lock().unwrap().recv();
        }
        allowed.fill(u32::MAX);
    }

    fn accept(&mut self, _: u32) {}

    fn fork(&self) -> Box<dyn TokenMask> {
        Box::new(self.clone())
    }
}

#[test]
fn a_step_that_stalls_is_told() {
    let mut bounds = HandleOptions::default();
    bounds.stall_time = Some(Duration::from_secs(1));
    let (served, told) = serve_alone(Spawn::Once, bounds);
    let (hold, gate) = mpsc::channel();
    let mut request = Request::new(vec![1, 2, 3]).max_tokens(3).ignore_eos();
    request.mask = Some(Box::new(Held { tokens: Arc::default(), gate: Arc::new(Mutex::new(gate)) }));
    let stream = served.handle.submit(request).unwrap();
    until("the server is not ready", || get(&served, "/health").status == 503);
    assert_eq!(served.handle.health(), Health::Stalled);
    assert_eq!(get(&served, "/health/ready").refused(503)["code"], "engine_stalled");
    get(&served, "/health/live").ok();
    until(
        "the stall is told",
        || matches!(told.try_recv(), Ok(Note::StepStalled { seconds }) if seconds >= 1.0),
    );
    assert!(served.handle.num_stalls() >= 1);
    drop(hold);
    assert!(stream.blocking().map(Result::unwrap).count() >= 4);
    until("the server is ready", || get(&served, "/health").status == 200);
}
