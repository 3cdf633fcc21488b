//! Two servers and one store: what one prefills the other loads, and nothing that happens to the store changes a token.
#![cfg(unix)]

use std::thread;

use serde_json::{Value, json};

use crate::fleet::{counted, direct, until, worker};
use crate::prompts;
use crate::redis::Redis;
use crate::server::Server;

/// Tokens of an answer.
const ANSWER: usize = 12;

/// An answer: its tokens, and how many tokens of the prompt each tier had.
#[derive(Debug, PartialEq)]
struct Answered {
    ids: Value,
    cached: Value,
}

impl Answered {
    fn remote(&self) -> u64 {
        self.cached["remote"].as_u64().unwrap()
    }
}

fn ask(server: &Server, prompt: &[u32]) -> Answered {
    let body = json!({ "model": "tiny", "prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true });
    let mut json = direct(server, "/v1/completions", &body).ok();
    Answered { ids: json["choices"][0]["token_ids"].take(), cached: json["pagoda"]["cached_tokens"].take() }
}

/// A server that shares the store with others. Sums do not depend on what else is in a batch, so tokens can be compared.
fn sharing(spec: &str, flags: &[&str]) -> Server {
    worker(0, &[&["--reproducible", "--kv-tiers", spec], flags].concat())
}

/// The tokens of a server that has no tiers.
fn alone(prompts: &[Vec<u32>]) -> Vec<Value> {
    let server = worker(0, &["--reproducible", "--no-disk-kv"]);
    prompts.iter().map(|prompt| ask(&server, prompt).ids).collect()
}

/// Blocks of 16 tokens that a prompt and its answer fill; the last token of the answer has no KV yet.
const fn blocks(prompt: usize) -> usize {
    (prompt + ANSWER - 1) / 16
}

fn errors(server: &Server) -> u64 {
    counted(server, "tier_errors_total", |line| line.contains("remote"))
}

/// Objects in a Redis, but for the one that states the format.
fn stored(redis: &Redis) -> usize {
    usize::try_from(redis.number("DBSIZE", ":")).unwrap().saturating_sub(1)
}

/// One server computes, the other finds all full blocks in the store, once they are written.
fn check_loads([first, second]: [Server; 2], written: impl Fn() -> usize) {
    let [prompt] = prompts([200]);
    let expected = alone(std::slice::from_ref(&prompt)).remove(0);
    let nothing = json!({ "device": 0, "host": 0, "disk": 0, "remote": 0 });
    assert_eq!(ask(&first, &prompt), Answered { ids: expected.clone(), cached: nothing });
    until("the blocks are written", || written() >= blocks(200));
    let loaded = json!({ "device": 0, "host": 0, "disk": 0, "remote": 192 });
    assert_eq!(ask(&second, &prompt), Answered { ids: expected.clone(), cached: loaded });
    // It keeps them, and the conversation goes on where it likes.
    let mut next = prompt;
    next.extend(expected.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()));
    next.extend([7, 8, 9]);
    let cached = ask(&first, &next).cached;
    assert_eq!((&cached["device"], &cached["remote"]), (&208.into(), &0.into()));
    assert_eq!([errors(&first), errors(&second)], [0, 0]);
}

#[test]
fn what_one_server_prefills_another_loads_from_redis() {
    let redis = Redis::start();
    let spec = redis.spec();
    check_loads([(); 2].map(|()| sharing(&spec, &[])), || stored(&redis));
}

#[cfg(feature = "s3")]
#[test]
fn what_one_server_prefills_another_loads_from_s3() {
    use std::fs;

    use crate::fleet::serve;
    use crate::s3::service::{BUCKET, S3};

    let store = S3::start();
    let spec = format!("remote=s3://{BUCKET}/models");
    let start = || {
        let mut serve = serve(0, &["--reproducible", "--kv-tiers", &spec]);
        Server::listening(serve.envs(store.environment()))
    };
    let models = store.folder.path().join(BUCKET).join("models");
    let written = || {
        let spaces = fs::read_dir(&models).into_iter().flatten().map(|entry| entry.unwrap().path());
        spaces.filter_map(|space| fs::read_dir(space).ok()).map(Iterator::count).sum()
    };
    check_loads([start(), start()], written);
}

/// Both servers compute the same prompts at once, and write the same blocks.
#[test]
fn writers_of_the_same_blocks_do_not_disturb_each_other() {
    let redis = Redis::start();
    let lists = prompts([150, 170, 190, 210, 230, 250]);
    let expected = alone(&lists);
    let writers = [(); 2].map(|()| sharing(&redis.spec(), &[]));
    thread::scope(|scope| {
        for (server, prompt, ids) in writers
            .iter()
            .flat_map(|server| lists.iter().zip(&expected).map(move |(prompt, ids)| (server, prompt, ids)))
        {
            scope.spawn(move || assert_eq!(&ask(server, prompt).ids, ids));
        }
    });
    let all: usize = lists.iter().map(|prompt| blocks(prompt.len())).sum();
    until("the blocks are written", || stored(&redis) >= all);
    assert_eq!(stored(&redis), all, "a block is one object, whoever writes it");
    let reader = sharing(&redis.spec(), &[]);
    for (prompt, ids) in lists.iter().zip(&expected) {
        let found = ask(&reader, prompt);
        assert_eq!((found.remote(), &found.ids), ((prompt.len() as u64 - 1) / 16 * 16, ids));
    }
    assert!(writers.iter().chain([&reader]).all(|server| errors(server) == 0));
}

/// Prompts of 120 tokens without end, no two of which begin alike.
fn endless_prompts() -> impl Iterator<Item = Vec<u32>> {
    let [rest] = prompts([118]);
    (0..).map(move |n: u32| [&[n / 100, n % 100][..], &rest].concat())
}

#[test]
fn a_store_that_dies_between_two_servers_costs_hits_only() {
    let redis = Redis::start();
    let (port, spec) = (redis.port, redis.spec());
    let mut fresh = endless_prompts();
    let mut fresh = || fresh.next().unwrap();
    let reference = worker(0, &["--reproducible", "--no-disk-kv"]);
    let [first, second] = [(); 2].map(|()| sharing(&spec, &[]));
    let check = |server: &Server, prompt: &[u32]| {
        let answer = ask(server, prompt);
        assert_eq!(answer.ids, ask(&reference, prompt).ids, "{prompt:?}");
        answer.remote()
    };
    let common = fresh();
    check(&first, &common);
    until("the blocks are written", || stored(&redis) >= blocks(120));
    drop(redis);
    // What is there, and what is new, without the store. How long a request waits for it, the tests of the tier say.
    assert_eq!([check(&second, &common), check(&first, &fresh())], [0; 2]);
    assert_eq!([check(&second, &fresh()), check(&first, &fresh())], [0; 2]);
    assert!(errors(&second) > 0, "nobody is told");
    let back = Redis::start_on(port).expect("the port is free again");
    // A tier that failed is tried again after a while: with the next prompt that comes then.
    for server in [&first, &second] {
        let before = stored(&back);
        until("a server uses the store again", || {
            check(server, &fresh());
            stored(&back) > before
        });
    }
    // What one writes the other finds. A server that ends has written all that it was to save.
    let common = fresh();
    check(&first, &common);
    first.signal("-TERM");
    assert!(first.ended().success());
    assert_eq!(check(&second, &common), 112);
}

/// A store without room refuses blocks, or forgets others.
#[test]
fn a_full_store_keeps_what_fits() {
    for (policy, refuses) in [("noeviction", true), ("allkeys-lru", false)] {
        let redis = Redis::start();
        let lists = prompts([300; 6]);
        let expected = alone(&lists);
        let [first, second] = [(); 2].map(|()| sharing(&redis.spec(), &[]));
        assert_eq!(ask(&first, &lists[0]).ids, expected[0], "{policy}");
        until("the blocks are written", || stored(&redis) >= blocks(300));
        // Room for a few more of the blocks, each of which has 6 KiB.
        let room = redis.number("INFO memory", "used_memory:") + 10 * 6 * 1024;
        redis.command(&format!("CONFIG SET maxmemory-policy {policy}")).unwrap();
        redis.command(&format!("CONFIG SET maxmemory {room}")).unwrap();
        for (prompt, ids) in lists.iter().zip(&expected).skip(1) {
            assert_eq!(&ask(&first, prompt).ids, ids, "{policy}");
        }
        until("the store is full", || match refuses {
            true => errors(&first) > 0,
            false => redis.number("INFO stats", "evicted_keys:") > 0,
        });
        let mut found = 0;
        for (prompt, ids) in lists.iter().zip(&expected) {
            let answer = ask(&second, prompt);
            assert_eq!(&answer.ids, ids, "{policy}");
            found += answer.remote();
        }
        assert!(found >= 288 || !refuses, "the first prompt was kept");
        assert!(redis.number("INFO memory", "used_memory:") < room + (1 << 20));
    }
}

#[test]
fn a_slow_store_holds_up_no_token_for_ever() {
    let redis = Redis::start();
    let lists = prompts([200, 160, 140]);
    let expected = alone(&lists);
    let [first, second] = [(); 2].map(|()| sharing(&redis.spec(), &[]));
    assert_eq!(ask(&first, &lists[0]).ids, expected[0]);
    until("the blocks are written", || stored(&redis) >= blocks(200));
    redis.command("CLIENT PAUSE 3000 ALL").unwrap();
    thread::scope(|scope| {
        for (server, at) in [(&second, 0), (&second, 1), (&first, 2)] {
            let (prompt, ids) = (&lists[at], &expected[at]);
            scope.spawn(move || assert_eq!(&ask(server, prompt).ids, ids));
        }
    });
}

/// Servers with other blocks find nothing of the first ones, and answer as they would alone.
#[test]
fn other_blocks_beside_are_not_found() {
    let redis = Redis::start();
    let [prompt] = prompts([200]);
    let first = sharing(&redis.spec(), &[]);
    ask(&first, &prompt);
    until("the blocks are written", || stored(&redis) >= blocks(200));
    for flags in [["--kv-dtype", "f32"], ["--block-size", "32"], ["--kv-dtype", "int8"]] {
        let other = sharing(&redis.spec(), &flags);
        let without = worker(0, &[&["--reproducible", "--no-disk-kv"], &flags[..]].concat());
        let (found, expected) = (ask(&other, &prompt), ask(&without, &prompt));
        assert_eq!(found, expected, "{flags:?}");
        assert_eq!((found.remote(), errors(&other)), (0, 0), "{flags:?}");
    }
    assert_eq!(ask(&sharing(&redis.spec(), &[]), &prompt).remote(), 192);
}
