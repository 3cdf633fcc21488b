//! The remote tier on a real Redis server, and in `directory` on plain directories, shared by several engines.
//!
//! Needs `redis-server` on the path (Debian package of that name); without it these tests fail.

mod directory;
mod trust;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::conformance::{block, cases, check_ops, check_refusals, check_threads, key, layout, ops};
use crate::time::{LONG, TestClock, in_time};
use kvblock::SeqId;
use prefetch::clock::Clock;
use prefetch::engine::{Engine, EngineConfig, Submission, TaskKey, TaskOutcome};
use prefetch::plan::Priority;
use prefetch::policy::PolicyKind;
use prefetch::spec::{RemoteSpec, TierSpec};
use prefetch::stack::TierStack;
use prefetch::tier::{BlockLayout, HostTier, RemoteConfig, RemoteTier, Stored, Tier, TierError, TierName};
use proptest::prelude::*;

/// Time for which a tier leaves a failed service alone.
const PAUSE: Duration = Duration::from_secs(15);
/// A limit for requests that no test can wait for: it fails first, after [`LONG`].
const TOO_LONG: Duration = Duration::from_secs(300);

/// A server of this test on a free loopback port; killed by its own pid at the end.
struct Redis {
    server: Child,
    port: u16,
    _directory: tempfile::TempDir,
}

impl Redis {
    fn start() -> Self {
        // Another process can take the port between its release and the server's start: then try the next.
        (0..5).find_map(|_| Self::start_on(free_port())).expect("redis-server starts on a free port")
    }

    fn start_on(port: u16) -> Option<Self> {
        Self::start_with(port, &[])
    }

    fn start_with(port: u16, flags: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let server = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(flags)
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let mut redis = Self { server, port, _directory: directory };
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(20) {
            if redis.server.try_wait().unwrap().is_some() {
                return None;
            }
            let is_up = |answer: String| answer.starts_with("+PONG") || answer.starts_with("-NOAUTH");
            if redis.command("PING").is_some_and(is_up) {
                return Some(redis);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    /// Sends one command in the inline form and returns the beginning of the answer.
    fn command(&self, command: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        stream.write_all(format!("{command}\r\n").as_bytes()).ok()?;
        let mut answer = [0; 4096];
        let length = stream.read(&mut answer).ok()?;
        Some(String::from_utf8_lossy(&answer[..length]).into_owned())
    }

    fn spec(&self, database: u32) -> RemoteSpec {
        let text = format!("remote=redis://127.0.0.1:{}/{database}", self.port);
        text.parse::<TierSpec>().unwrap().remote.unwrap()
    }

    fn tier(&self, namespace: &str) -> RemoteTier {
        RemoteTier::open(&self.spec(0), config(namespace)).unwrap()
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn config(namespace: &str) -> RemoteConfig {
    let mut config = RemoteConfig::new(layout(), namespace);
    (config.timeout, config.retry_after) = (LONG, PAUSE);
    config
}

fn read(tier: &dyn Tier, n: u16) -> Result<Vec<u8>, TierError> {
    let mut bytes = vec![0; layout().block_bytes()];
    tier.read_block(key(n), &mut bytes).map(|()| bytes)
}

#[test]
fn redis_keeps_the_rules_of_tiers() {
    let redis = Redis::start();
    let config = cases(8);
    proptest!(config, |(ops in ops())| {
        redis.command("FLUSHALL");
        check_ops(&redis.tier("rules"), &ops)?;
    });
    check_refusals(&redis.tier("refusals"));
    check_threads(&redis.tier("threads"));
}

#[test]
fn engines_share_a_prefix_and_namespaces_and_databases_keep_apart() {
    let redis = Redis::start();
    let (first, second) = (redis.tier("model a"), redis.tier("model a"));
    assert_eq!(first.write(key(1), &block(1)).unwrap(), Stored::Written);
    assert_eq!(read(&second, 1).unwrap(), block(1));
    assert_eq!(second.write(key(1), &block(1)).unwrap(), Stored::AlreadyThere);
    assert!(!redis.tier("model b").contains(key(1)).unwrap());
    assert!(!RemoteTier::open(&redis.spec(3), config("model a")).unwrap().contains(key(1)).unwrap());

    // The second engine finds the prefix, loads it into its own memory, and serves it from there.
    let host = Arc::new(HostTier::new(layout(), 8, PolicyKind::Lru, None));
    let stack = Arc::new(TierStack::new(vec![host, Arc::new(second)]).unwrap());
    let engine = Engine::new(stack.clone(), EngineConfig::GSA).unwrap();
    (2..5).for_each(|n| assert_eq!(first.write(key(n), &block(n)).unwrap(), Stored::Written));
    let task = |generation, blocks: std::ops::Range<u16>| {
        Submission::new(
            TaskKey { seq: SeqId::new(1), generation },
            Priority::Urgent,
            blocks.map(key).collect(),
        )
    };
    let outcome = pollster::block_on(engine.submit(task(0, 1..5)).unwrap());
    assert!(matches!(outcome, TaskOutcome::Ready { loaded: 4, .. }), "{outcome:?}");
    assert_eq!(engine.get(key(3)).as_deref(), Some(&block(3)[..]));
    let counters = stack.counters();
    assert_eq!(counters.tier(TierName::REMOTE).bytes_read, 4 * 120);
    assert_eq!(counters.tier(TierName::HOST).bytes_written, 4 * 120);
}

#[test]
fn a_place_of_another_version_is_refused_and_blocks_of_something_else_are_not_seen() {
    let (redis, folder) = (Redis::start(), tempfile::tempdir().unwrap());
    let directory: RemoteSpec = format!("file://{}", folder.path().display()).parse().unwrap();
    for spec in [redis.spec(0), directory] {
        let open = |namespace, layout| {
            let mut config = config(namespace);
            config.layout = layout;
            RemoteTier::open(&spec, config).unwrap()
        };
        let tier = open("model a, f16", layout());
        tier.probe().unwrap();
        tier.write(key(1), &block(1)).unwrap();
        open("model b, f16", layout()).probe().unwrap();
        for other in [
            open("model b, f16", layout()),
            open("model a, f32", layout()),
            open("model a, f16", BlockLayout::new(1, 120).unwrap()),
            open("model a, f16", BlockLayout::new(3, 80).unwrap()),
        ] {
            assert!(!other.contains(key(1)).unwrap());
        }
        // A version to come writes its own number there.
        match &spec {
            RemoteSpec::Directory { path } => {
                std::fs::write(path.join("format"), "KV blocks of format 2").unwrap();
            }
            _ => {
                let keys = redis.command("KEYS *format").unwrap();
                let name = keys.lines().nth(2).unwrap();
                assert!(
                    redis.command(&format!("SET {name} \"KV blocks of format 2\"")).unwrap().contains("OK")
                );
            }
        }
        let refused = tier.probe().unwrap_err();
        insta::allow_duplicates! {
            insta::assert_snapshot!(refused, @"remote tier holds blocks of another kind: KV blocks of format 2 there, KV blocks of format 1 here; give these a place of their own, or empty that one");
        }
    }
}

#[test]
fn a_long_prefix_is_looked_up_at_once() {
    let redis = Redis::start();
    let tier = Arc::new(redis.tier("prefix"));
    (0..100)
        .filter(|&n| n != 77)
        .for_each(|n| assert_eq!(tier.write(key(n), &block(n)).unwrap(), Stored::Written));
    let stack = Arc::new(TierStack::new(vec![tier as Arc<dyn Tier>]).unwrap());
    let keys: Vec<_> = (0..120).map(key).collect();
    let found = |from: usize| stack.lookup_prefix(&keys[from..]).len();
    assert_eq!([0, 77, 78].map(found), [77, 0, 22]);
    let held: Vec<_> = stack.lookup_many(&keys).iter().map(Option::is_some).collect();
    assert_eq!(held, (0..120).map(|n| n != 77 && n < 100).collect::<Vec<_>>());
}

#[test]
fn a_damaged_object_is_refused_and_replaced() {
    let redis = Redis::start();
    let tier = redis.tier("damage");
    tier.write(key(1), &block(1)).unwrap();
    let name = redis.command("KEYS *").unwrap().lines().nth(2).unwrap().to_owned();
    // Byte 60 belongs to shard 1: a frame has 8 bytes of checksum and 40 of data.
    redis.command(&format!("SETRANGE {name} 60 x"));
    let mut shard = [0; 40];
    tier.read(key(1), 0, &mut shard).unwrap();
    let error = read(&tier, 1).unwrap_err();
    assert!(matches!(error, TierError::Corrupt { shard: 1, .. }), "{error}");
    assert_eq!(tier.write(key(1), &block(1)).unwrap(), Stored::Written);
    assert_eq!(read(&tier, 1).unwrap(), block(1));
    // An object copied to the name of another block is whole, and wrong all the same.
    tier.write(key(2), &block(2)).unwrap();
    let keys = redis.command("KEYS *").unwrap();
    let other =
        keys.lines().filter(|line| line.starts_with("pagoda") || line.starts_with('/')).find(|l| **l != name);
    redis.command(&format!("COPY {name} {} REPLACE", other.unwrap()));
    assert!(matches!(read(&tier, 2).unwrap_err(), TierError::Corrupt { shard: 0, .. }));
}

#[test]
fn a_server_that_is_not_there_is_said_so_at_once() {
    let spec: RemoteSpec = format!("redis://127.0.0.1:{}/0", free_port()).parse().unwrap();
    let tier = RemoteTier::open(&spec, config("nowhere").timeout(TOO_LONG)).unwrap();
    assert_refused(&in_time(move || tier.probe().unwrap_err()));
}

/// The tier itself has tried to connect. The client says the same in other words, seconds later.
#[track_caller]
fn assert_refused(error: &TierError) {
    let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    assert!(source.starts_with("Connection refused"), "{error}: {source}");
}

/// A clock on which ten seconds pass between two looks.
#[derive(Default)]
struct TenSecondsALook(AtomicU64);

impl Clock for TenSecondsALook {
    fn now(&self) -> Duration {
        Duration::from_secs(self.0.fetch_add(10, Ordering::Relaxed))
    }
}

#[test]
fn a_server_that_hangs_takes_a_part_of_the_time_only() {
    let redis = Redis::start();
    redis.tier("hang").write(key(1), &block(1)).unwrap();
    // Here a limit has to pass.
    let config = config("hang").timeout(Duration::from_secs(1)).retry_after(Duration::from_secs(3));
    let tier = RemoteTier::open(&redis.spec(0), config).unwrap();
    let tier = tier.with_clock(Arc::<TenSecondsALook>::default());
    redis.command("CLIENT PAUSE 60000 ALL").unwrap();
    let error = read(&tier, 1).unwrap_err();
    // The client has the same limit, and after it a second try. Its own words would come after both.
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(source, "no answer within 1s");
    let Err(TierError::Down { retry_in, .. }) = read(&tier, 1) else { panic!("it is not asked again") };
    // The failed request took ten seconds, and four times as many are the pause. Ten have passed since.
    assert_eq!(retry_in, Duration::from_secs(30));
}

#[test]
fn a_server_that_dies_fails_loads_without_holding_them_up_and_is_found_again() {
    let redis = Redis::start();
    let port = redis.port;
    let clock: Arc<TestClock> = Arc::default();
    let tier = RemoteTier::open(&redis.spec(0), config("death").timeout(TOO_LONG)).unwrap();
    let tier = Arc::new(tier.with_clock(clock.clone()));
    tier.write(key(1), &block(1)).unwrap();
    let stack = Arc::new(TierStack::new(vec![tier.clone() as Arc<dyn Tier>]).unwrap());
    let engine = Engine::new(stack.clone(), EngineConfig::GSA).unwrap();
    drop(redis);
    let submission =
        Submission::new(TaskKey { seq: SeqId::new(1), generation: 0 }, Priority::Urgent, vec![key(1)]);
    let outcome = engine.submit(submission).unwrap().wait(LONG);
    let TaskOutcome::Failed(bad) = outcome else { panic!("{outcome:?}") };
    assert!(matches!(*bad[0].error, TierError::Backend { tier: TierName::REMOTE, .. }), "{:?}", bad[0].error);
    assert_refused(&bad[0].error);

    // The next calls ask nobody, and know for how long.
    assert!((0..100).all(|n| stack.lookup(key(n)).is_none()));
    clock.advance(PAUSE - Duration::from_secs(1));
    let Err(TierError::Down { retry_in, .. }) = read(&*tier, 1) else { panic!("it is asked again") };
    assert_eq!(retry_in, Duration::from_secs(1));
    assert_eq!(stack.counters().tier(TierName::REMOTE).errors, 101);
    // The one that looks whether the server is back waits for no limit either.
    clock.advance(Duration::from_secs(1));
    let again = tier.clone();
    assert_refused(&in_time(move || read(&*again, 1).unwrap_err()));

    let _redis = Redis::start_on(port).expect("the port is still free");
    assert!(matches!(read(&*tier, 2), Err(TierError::Down { .. })));
    clock.advance(PAUSE);
    assert_eq!(tier.write(key(2), &block(2)).unwrap(), Stored::Written);
    assert_eq!(read(&*tier, 2).unwrap(), block(2));
}
