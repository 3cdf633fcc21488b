//! `kill -9` of a server with a disk tier, at moments that a seed draws: each start finds whole blocks, and answers with the
//! tokens of a server that nobody disturbed.
//!
//! `PAGODA_KILL_ROUNDS` sets the number of kills, `PAGODA_KILL_SEED` the seed.
#![cfg(unix)]

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::Value;

use crate::server::Server;
use crate::tiny_llama;

/// Requests of a round.
const REQUESTS: usize = 3;

/// Prompts with new beginnings in every round, so that every round writes.
fn bodies(round: u32) -> [String; REQUESTS] {
    std::array::from_fn(|n| {
        let n = u32::try_from(n).unwrap();
        let prompt: Vec<u32> =
            (0..180 + 20 * n).map(|at| (at * 37 + at / 7 + 11 * n + 29 * round) % 120).collect();
        format!(
            r#"{{"prompt":{prompt:?},"max_tokens":24,"temperature":0,"ignore_eos":true,"return_token_ids":true}}"#
        )
    })
}

/// Tokens of an answer, and how many of the prompt were found.
fn answer(server: &Server, body: &str) -> (Value, u64) {
    let reply = server.ask("POST", "/v1/completions", body);
    let (head, json) = reply.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("200 OK"), "{reply}");
    let json: Value = serde_json::from_str(json).unwrap();
    let cached = json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (json["choices"][0]["token_ids"].clone(), cached)
}

/// Kills a server that is only starting.
fn killed_at_its_start(cache: &Path, after: Duration) {
    let mut serve = Command::new(env!("CARGO_BIN_EXE_xtask"));
    serve.args(["serve", "--port", "0", "--kv-memory", "16MiB", "--model"]).arg(tiny_llama());
    let mut child = serve.env("PAGODA_CACHE_DIR", cache).stderr(Stdio::null()).spawn().unwrap();
    thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_server_killed_at_any_moment_answers_as_before() {
    let number = |name, default| env::var(name).map_or(default, |text| text.parse().unwrap());
    let (rounds, seed) = (number("PAGODA_KILL_ROUNDS", 3), number("PAGODA_KILL_SEED", 1));
    let rounds = u32::try_from(rounds).unwrap();
    let mut rng = StdRng::seed_from_u64(seed);
    let cache = tempfile::tempdir().unwrap();
    let undisturbed = Server::start(&[]);
    let mut server = Server::start_in(cache.path());
    let (mut found, mut asked) = (0, 0);
    for round in 0..rounds {
        let bodies = bodies(round);
        let wait = Duration::from_millis(rng.random_range(0..400));
        thread::scope(|scope| {
            for body in &bodies {
                // What arrives of the answer of a server that is killed says nothing.
                let sent = server.send("POST", "/v1/completions", body);
                scope.spawn(move || std::io::copy(&mut { sent }, &mut std::io::sink()));
            }
            thread::sleep(wait);
            server.kill();
        });
        if round % 3 == 1 {
            killed_at_its_start(cache.path(), Duration::from_millis(rng.random_range(0..1500)));
        }
        server = Server::start_in(cache.path());
        for body in &bodies {
            let (ids, cached) = answer(&server, body);
            assert_eq!(
                ids,
                answer(&undisturbed, body).0,
                "round {round}, seed {seed}, killed after {wait:?}"
            );
            (found, asked) = (found + cached, asked + 1);
        }
        let metrics = server.ask("GET", "/metrics", "");
        let errors: Vec<&str> =
            metrics.lines().filter(|line| line.starts_with("pagoda:tier_errors_total")).collect();
        assert!(
            !errors.is_empty() && errors.iter().all(|line| line.ends_with(" 0")),
            "round {round}: {errors:?}"
        );
    }
    // How much survives depends on the machine's speed.
    eprintln!("{rounds} kills: {found} tokens of {asked} prompts were found");
}
