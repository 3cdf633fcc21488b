//! An engine and its tiers while files are damaged under them, requests are cancelled, the process ends and the device is lost,
//! all as a function of a seed: requests that end by themselves have the tokens of an engine that nobody disturbed, nothing is
//! held afterwards, and once nothing is damaged any more the tiers serve again.
//!
//! The seed decides what happens between which steps; when blocks are written and read is up to threads, as it is in a run.
//! `PAGODA_SIMULATION_SEEDS` sets how many seeds are run, `PAGODA_SIMULATION_SEED` repeats one.

use std::collections::HashMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagoda::{CacheEvents, Engine, EngineOptions, Event, FinishReason, Model, Request};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;

use crate::kv_events::Router;
use crate::{fixture, options, prompt, run};

const OPERATIONS: u32 = 60;

/// Prompts of which requests are made, four pairs with a common beginning.
const PROMPTS: u32 = 8;

/// Tokens that the longest request generates.
const LONGEST: u32 = 12;

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().expect("a whole number"))
}

fn asked(which: u32) -> Vec<u32> {
    [prompt(which / 2, 48), prompt(100 + which, 7 + 16 * (which as usize % 3))].concat()
}

fn request(which: u32, tokens: u32) -> Request {
    Request::new(asked(which)).max_tokens(tokens).ignore_eos()
}

/// Every file below `folder`, in order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// Numbers of what happened.
#[derive(Debug, Default)]
struct Counts {
    finished: u32,
    cancelled: u32,
    damaged: u32,
    restarts: u32,
    losses: u32,
    /// Prompt tokens that came from a tier.
    found: u32,
    /// Reads, writes and lookups that failed.
    failed: u64,
}

impl Counts {
    fn everything_happened(&self) -> bool {
        let Self { finished, cancelled, damaged, restarts, losses, found, failed } = *self;
        let few = [finished, cancelled, damaged, restarts, losses, found];
        failed > 0 && few.iter().all(|count| *count > 0)
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.finished += other.finished;
        self.cancelled += other.cancelled;
        self.damaged += other.damaged;
        self.restarts += other.restarts;
        self.losses += other.losses;
        self.found += other.found;
        self.failed += other.failed;
    }
}

struct Machine<'m> {
    model: &'m Arc<Model>,
    options: EngineOptions,
    /// `None` while it is replaced.
    engine: Option<Engine>,
    /// Follows the events of the cache, which must be of blocks that it knows to be there, or not.
    router: Router,
    folder: TempDir,
    rng: StdRng,
    /// Prompt and number of tokens of each request that has not ended.
    open: HashMap<kvblock::SeqId, (u32, u32)>,
    /// Tokens that follow each prompt.
    right: &'m [Vec<u32>],
    counts: Counts,
}

impl<'m> Machine<'m> {
    fn new(model: &'m Arc<Model>, right: &'m [Vec<u32>], seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().display();
        // Memory for a few blocks alone, so that most come from below.
        let tiers = format!("host=64KiB,disk={place}/disk:1MiB,remote=file://{place}/shared");
        let router = Router::default();
        let options = options().kv_blocks(Some(24)).kv_tiers(tiers.parse().unwrap());
        let options = options.cache_events(CacheEvents::All);
        fs::create_dir(folder.path().join("shared")).unwrap();
        let (rng, open, counts) = (StdRng::seed_from_u64(seed), HashMap::new(), Counts::default());
        let mut machine = Self { model, options, engine: None, router, folder, rng, open, right, counts };
        machine.begin();
        machine
    }

    fn begin(&mut self) {
        let mut engine = Engine::open(Arc::clone(self.model), self.options.clone()).unwrap();
        self.router.clear();
        self.router.follow(&mut engine);
        self.engine = Some(engine);
    }

    fn engine(&mut self) -> &mut Engine {
        self.engine.as_mut().expect("replaced at once")
    }

    fn operate(&mut self) {
        match self.rng.random_range(0..100) {
            0..30 => {
                let (which, tokens) = (self.rng.random_range(0..PROMPTS), self.rng.random_range(1..=LONGEST));
                let seq = self.engine().submit(request(which, tokens)).unwrap();
                self.open.insert(seq, (which, tokens));
            }
            30..70 => (0..self.rng.random_range(1..6)).for_each(|_| self.step()),
            70..77 => {
                let mut open: Vec<_> = self.open.keys().copied().collect();
                open.sort_unstable();
                if let Some(seq) = open.choose(&mut self.rng) {
                    let ends = self.engine().cancel(*seq);
                    ends.into_iter().for_each(|event| self.take(event));
                }
            }
            77..94 => self.damage(),
            94..99 => self.restart(),
            _ => self.lose_device(),
        }
    }

    fn step(&mut self) {
        if self.engine().has_work() {
            let events = self.engine().step().unwrap();
            self.router.check_device(self.engine.as_ref().expect("it was not replaced"));
            events.into_iter().for_each(|event| self.take(event));
        }
    }

    fn take(&mut self, event: Event) {
        let Event::Finished(end) = event else { return };
        let (which, tokens) = self.open.remove(&end.seq).expect("a request ends once");
        match end.reason {
            FinishReason::Cancelled => self.counts.cancelled += 1,
            reason => {
                assert_eq!(reason, FinishReason::Length);
                assert_eq!(end.output, self.right[which as usize][..tokens as usize], "prompt {which}");
                self.counts.finished += 1;
                let cached = end.usage.cached;
                self.counts.found += cached.total() - cached.device;
            }
        }
    }

    /// Flips a bit of a file, cuts it off, makes it longer or removes it.
    fn damage(&mut self) {
        // A place of another format is refused when it is opened.
        let whole = files(self.folder.path());
        let whole: Vec<_> =
            whole.iter().filter(|file| !file.ends_with("format") && !file.ends_with("lock")).collect();
        let Some(file) = whole.choose(&mut self.rng) else { return };
        // Files of a directory that others write to come and go.
        let Ok(mut bytes) = fs::read(file) else { return };
        let at = self.rng.random_range(0..=bytes.len());
        let write = |bytes: &[u8]| drop(fs::write(file, bytes));
        match self.rng.random_range(0..4) {
            0 if at < bytes.len() => {
                bytes[at] ^= 1 << self.rng.random_range(0..8);
                write(&bytes);
            }
            1 => write(&bytes[..at]),
            2 => write(&[&bytes[..], &[7; 5000]].concat()),
            _ => drop(fs::remove_file(file)),
        }
        self.counts.damaged += 1;
    }

    /// Takes the engine, and what its tiers counted.
    fn end(&mut self) -> Engine {
        let mut engine = self.engine.take().expect("replaced at once");
        let used = engine.tier_use().unwrap();
        self.counts.failed += [used.disk, used.remote].iter().flatten().map(|tier| tier.errors).sum::<u64>();
        engine
    }

    /// Ends the engine, with everything that runs, and opens another one over the same tiers, some of them damaged meanwhile.
    fn restart(&mut self) {
        drop(self.end());
        self.open.clear();
        (0..self.rng.random_range(0..3)).for_each(|_| self.damage());
        self.begin();
        self.counts.restarts += 1;
    }

    fn lose_device(&mut self) {
        let engine = self.end();
        engine.decoder().gpu().destroy();
        assert!(engine.is_lost());
        self.engine = Some(engine.reopen().unwrap());
        self.counts.losses += 1;
    }

    /// Ends what runs, then asks for everything twice, the second time in an engine that has nothing in memory.
    fn recover(mut self) -> Counts {
        let found = self.counts.found;
        for _ in 0..3 {
            while self.engine().has_work() {
                self.step();
            }
            assert_eq!((self.open.len(), self.engine().scheduler().cache().pool().num_used()), (0, 0));
            drop(self.end());
            self.begin();
            self.counts.found = 0;
            for which in 0..PROMPTS {
                let seq = self.engine().submit(request(which, 1)).unwrap();
                self.open.insert(seq, (which, 1));
            }
        }
        while self.engine().has_work() {
            self.step();
        }
        // All blocks of the first prompt of each pair, and of the second those that are its own.
        assert!(self.counts.found >= 4 * 48, "the tiers serve: {:?}", self.counts);
        self.counts.found = found;
        self.counts
    }
}

#[test]
fn whatever_happens_to_tiers_and_device_tokens_are_right() {
    let seeds = match number("PAGODA_SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PAGODA_SIMULATION_SEEDS").unwrap_or(4),
    };
    let model = Arc::new(Model::open(fixture("tiny-llama")).unwrap());
    let requests: Vec<Request> = (0..PROMPTS).map(|which| request(which, LONGEST)).collect();
    let ends = run(&mut Engine::open(Arc::clone(&model), options()).unwrap(), &requests);
    let right: Vec<Vec<u32>> = ends.into_iter().map(|end| end.output).collect();
    let mut all = Counts::default();
    for seed in seeds.clone() {
        eprintln!("PAGODA_SIMULATION_SEED={seed} repeats this");
        let mut machine = Machine::new(&model, &right, seed);
        (0..OPERATIONS).for_each(|_| machine.operate());
        all += machine.recover();
    }
    eprintln!("{} seeds: {all:?}", seeds.end - seeds.start);
    assert!(seeds.end - seeds.start < 100 || all.everything_happened(), "{all:?}");
}
