//! Routers of others before servers: prompts with one beginning go to one server, a server that is killed is left and taken back,
//! and one that drains gets nothing new.
#![cfg(unix)]

mod hand_over;
mod llm_d;
mod static_backends;

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;
use std::thread::JoinHandle;

use serde_json::json;

use crate::fleet::{Reply, Router, answered, cached, chat, program, running, until, worker};
use crate::server::Server;

static SMG: LazyLock<PathBuf> = LazyLock::new(|| program("smg", "smg"));

/// Two servers, at ports of their own.
fn workers() -> [Server; 2] {
    [(); 2].map(|()| worker(0, &["--no-disk-kv", "--drain-timeout", "600"]))
}

fn urls(workers: &[Server; 2]) -> [String; 2] {
    workers.each_ref().map(|worker| format!("http://{}", worker.address))
}

/// The flags that SMG and vLLM's router have in common, with health that is asked for every second.
fn flags(command: &mut Command, ports: &[String; 2], workers: &[Server; 2]) {
    command.args(["--host", "127.0.0.1", "--port", &ports[0]]);
    command.args(["--prometheus-host", "127.0.0.1", "--prometheus-port", &ports[1]]);
    command.args(["--policy", "cache_aware", "--worker-startup-check-interval", "1"]);
    health_every_second(command);
    command.arg("--worker-urls").args(urls(workers));
}

fn health_every_second(command: &mut Command) {
    command.args(["--health-check-interval-secs", "1"]);
    command.args(["--health-failure-threshold", "1", "--health-success-threshold", "1"]);
}

fn smg(workers: &[Server; 2]) -> Router {
    let command = |ports| {
        let mut smg = Command::new(&*SMG);
        smg.args(["launch", "--disable-tokenizer-autoload", "--load-monitor-interval", "1"]);
        flags(&mut smg, &ports, workers);
        smg
    };
    let router = Router::start(command, "/health", "");
    until("both servers are known", || {
        let known = router.get("/workers").ok();
        known["workers"].as_array().is_some_and(|all| {
            all.len() == 2 && all.iter().all(|worker| worker["is_healthy"].as_bool() == Some(true))
        })
    });
    router
}

/// Sends prompts that begin alike: all must reach one server, which computes the beginning once.
fn keeps_beginnings_together(router: &Router, workers: &[Server; 2]) {
    for about in ["tea", "rivers", "old maps", "night"] {
        let before = workers.each_ref().map(answered);
        for n in 0..4 {
            let text = format!("{}and {n}", format!("{about} is the beginning of it; ").repeat(30));
            let (prompt, found) = cached(&router.post("/v1/chat/completions", &chat(&text, 4)).ok()["usage"]);
            // A block of 16 tokens differs, and the last token is always computed.
            assert!(
                if n == 0 { found == 0 } else { found + 32 >= prompt },
                "{about} {n}: {found} of {prompt}"
            );
        }
        let mut new = [0, 1].map(|at| answered(&workers[at]) - before[at]);
        new.sort_unstable();
        assert_eq!(new, [0, 4], "{about}: {}", router.said());
    }
}

/// Answers of all forms come through, and their usage says what was cached.
fn passes_answers_on(router: &Router) {
    let text = "the stones of the hall are in the other hall ".repeat(8);
    let whole = router.post("/v1/chat/completions", &chat(&text, 6)).ok();
    let streamed = router.stream(chat(&text, 6)).join().unwrap().events();
    let said: String =
        streamed.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(whole["choices"][0]["message"]["content"], said);
    let (prompt, found) = cached(&streamed.last().unwrap()["usage"]);
    assert!(found + 32 >= prompt && prompt == cached(&whole["usage"]).0, "{found} of {prompt}");
    let complete =
        json!({ "model": "tiny", "prompt": text, "max_tokens": 3, "temperature": 0, "ignore_eos": true });
    assert_eq!(router.post("/v1/completions", &complete).ok()["usage"]["completion_tokens"], 3);
}

/// Starts streams until both servers have some, and returns them with the numbers that run on each. Routers may send several to
/// one server, so another one follows once those before it run.
fn streams(router: &Router, workers: &[Server; 2]) -> (Vec<JoinHandle<Reply>>, [u64; 2]) {
    let mut streams: Vec<JoinHandle<Reply>> = Vec::new();
    let mut on = [0; 2];
    until("both servers run some of the streams", || {
        on = workers.each_ref().map(running);
        let all_run = on.iter().sum::<u64>() == streams.len() as u64;
        let spread = all_run && streams.len() > 2 && on.iter().all(|running| *running > 0);
        if all_run && !spread {
            let text = format!("{} is how it begins, ", streams.len()).repeat(20);
            streams.push(router.stream(chat(&text, 1500)));
        }
        spread
    });
    (streams, on)
}

/// Calls with new beginnings, all of which are answered.
fn asks(router: &Router, calls: u32) {
    for n in 0..calls {
        router.post("/v1/chat/completions", &chat(&format!("{n} {n} is new "), 2)).ok();
    }
}

fn is_whole(reply: &Reply) -> bool {
    reply.body.contains(r#""finish_reason":"length""#)
}

/// `kill -9` of one of two servers while both stream. It starts again at its port.
fn leaves_the_dead_and_takes_them_back(router: &Router, mut workers: [Server; 2]) {
    let (streams, on) = streams(router, &workers);
    workers[1].kill();
    asks(router, 12);
    let whole = streams.into_iter().map(|stream| stream.join().unwrap()).filter(is_whole).count();
    assert_eq!(whole as u64, on[0], "of {on:?} streams, those of the other server end");
    let port = workers[1].address.rsplit(':').next().unwrap().parse().unwrap();
    let back = worker(port, &["--no-disk-kv"]);
    let mut rounds = 0;
    until("the server is used again", || {
        rounds += 1;
        // New beginnings, and at once, so that one comes while the other server has work.
        let both = ["one", "two"].map(|n| router.stream(chat(&format!("{rounds} {n}; ").repeat(20), 40)));
        assert!(both.map(|stream| is_whole(&stream.join().unwrap())) == [true; 2]);
        answered(&back) > 0
    });
}

/// SIGTERM of one of two servers while both stream.
fn spares_the_draining(router: &Router, workers: [Server; 2]) {
    let (streams, on) = streams(router, &workers);
    let [other, draining] = workers;
    draining.signal("-TERM");
    until("the server is not ready", || draining.ask("GET", "/health", "").contains("503 Service"));
    let streamed_before = answered(&other);
    assert_eq!(streamed_before, 0, "the streams are too short for this machine");
    asks(router, 12);
    for stream in streams {
        let reply = stream.join().unwrap();
        assert!(is_whole(&reply) && reply.events().len() > 100, "{}", reply.body);
    }
    assert!(draining.ended().success());
    assert_eq!(answered(&other), on[0] + 12);
}

#[test]
fn smg_keeps_beginnings_together_and_knows_the_load() {
    let workers = workers();
    let router = smg(&workers);
    keeps_beginnings_together(&router, &workers);
    assert!(workers.iter().all(|worker| answered(worker) > 0), "one server has got everything");
    passes_answers_on(&router);
    let stream = router.stream(chat("a long answer", 3000));
    until("the router sees the load of a server", || {
        assert!(!stream.is_finished(), "the stream is too short for this machine, or has failed");
        let known = router.get("/workers").ok();
        known["workers"].as_array().unwrap().iter().any(|worker| {
            // It takes the dialect from `/version`, and the load from the metrics with vLLM's names.
            assert_eq!(worker["runtime_type"], "vllm", "{worker}");
            let load = &worker["engine_load"]["loads"][0];
            load["num_running_reqs"] == 1 && load["token_usage"].as_f64().is_some_and(|usage| usage > 0.0)
        })
    });
    let message =
        json!({ "model": "tiny", "max_tokens": 3, "messages": [{ "role": "user", "content": "a" }] });
    assert_eq!(router.post("/v1/messages", &message).ok()["usage"]["output_tokens"], 3);
    // Whose client is gone, ends.
    drop(router);
    until("the stream is stopped", || workers.iter().all(|worker| running(worker) == 0));
}

#[test]
fn smg_leaves_a_killed_server_and_takes_it_back() {
    let workers = workers();
    leaves_the_dead_and_takes_them_back(&smg(&workers), workers);
}

#[test]
fn smg_sends_nothing_to_a_draining_server() {
    let workers = workers();
    spares_the_draining(&smg(&workers), workers);
}
