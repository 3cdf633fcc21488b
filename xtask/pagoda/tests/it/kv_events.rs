//! Followers of an engine: whoever does what the events say knows what a request finds, on every medium.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use kvblock::{
    BlockHash, BlockHasher, BlockSize, CacheEvent, ExtraKey, ExtraKeys, HashAlgorithm, HashChain, Medium,
};
use pagoda::{
    CacheEvents, CachedTokens, Demand, Engine, EngineHandle, EngineOptions, HandleOptions, Model, Request,
};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::{open_model, options, prompt, run};

/// Tokens per block.
const SIZE: u32 = 16;

/// Hashes of the blocks of a prompt, as every process computes them.
fn hashes(tokens: &[u32], salt: Option<&str>) -> Vec<BlockHash> {
    let hasher = BlockHasher::new(HashAlgorithm::default(), b"", BlockSize::new(SIZE).unwrap());
    let salt = salt.map(str::to_owned);
    let mut chain = HashChain::new(hasher, ExtraKeys { salt, ..ExtraKeys::default() });
    chain.extend(tokens);
    chain.hashes().to_vec()
}

/// A router's knowledge of an engine.
#[derive(Clone, Default)]
pub(crate) struct Router(Arc<Mutex<Known>>);

#[derive(Default)]
pub(crate) struct Known {
    held: HashSet<(Medium, BlockHash)>,
    /// Every event, for tests that look at them.
    events: Vec<CacheEvent>,
}

impl Router {
    pub(crate) fn follow(&self, engine: &mut Engine) {
        let known = Arc::clone(&self.0);
        engine.follow(move |events| known.lock().unwrap().follow(events));
    }

    fn holds(&self, medium: Medium, hash: &BlockHash) -> bool {
        self.0.lock().unwrap().held.contains(&(medium, *hash))
    }

    pub(crate) fn count(&self, medium: Medium) -> usize {
        self.0.lock().unwrap().held.iter().filter(|(of, _)| *of == medium).count()
    }

    /// Forgets an engine that has ended.
    pub(crate) fn clear(&self) {
        *self.0.lock().unwrap() = Known::default();
    }

    pub(crate) fn take(&self) -> Vec<CacheEvent> {
        std::mem::take(&mut self.0.lock().unwrap().events)
    }

    /// Tokens of a prompt that a request would find, the last one of which is computed in any case.
    fn predict(&self, tokens: &[u32], salt: Option<&str>) -> CachedTokens {
        let whole = hashes(&tokens[..tokens.len() - 1], salt);
        let mut found = CachedTokens::default();
        let mut blocks = whole.iter().peekable();
        while blocks.next_if(|hash| self.holds(Medium::Gpu, hash)).is_some() {
            found.device += SIZE;
        }
        for hash in blocks {
            if self.holds(Medium::Cpu, hash) {
                found.host += SIZE;
            } else if self.holds(Medium::Storage, hash) {
                found.disk += SIZE;
            } else {
                break;
            }
        }
        found
    }

    /// Checks what it knows of the device against the pool.
    pub(crate) fn check_device(&self, engine: &Engine) {
        let (known, pool) = (self.0.lock().unwrap(), engine.scheduler().cache().pool());
        let device: Vec<_> = known.held.iter().filter(|(medium, _)| *medium == Medium::Gpu).collect();
        assert_eq!(device.len(), pool.num_cached());
        assert!(device.iter().all(|(_, hash)| pool.cached(*hash, &[kvblock::GroupId::new(0)]).is_some()));
    }
}

impl Known {
    fn follow(&mut self, events: &[CacheEvent]) {
        assert!(!events.is_empty());
        for event in events {
            match event {
                CacheEvent::Stored(blocks) => {
                    let salt = match blocks.extra_keys.first().and_then(|keys| keys.first()) {
                        Some(ExtraKey::Salt(salt)) => Some(salt.as_str()),
                        None => None,
                        other => panic!("{other:?}"),
                    };
                    if blocks.parent.is_none() {
                        assert_eq!(blocks.hashes, hashes(&blocks.tokens, salt), "blocks of other tokens");
                    }
                    assert_eq!(blocks.tokens.len(), blocks.hashes.len() * SIZE as usize);
                    for hash in &blocks.hashes {
                        assert!(
                            self.held.insert((blocks.medium, *hash)),
                            "{hash:?} twice on {}",
                            blocks.medium
                        );
                    }
                }
                CacheEvent::Removed { key, medium, .. } => {
                    assert!(self.held.remove(&(*medium, key.hash)), "{key:?} was not on {medium}");
                }
                CacheEvent::AllCleared => self.held.clear(),
                other => panic!("{other:?}"),
            }
        }
        self.events.extend_from_slice(events);
    }
}

/// A pool of a few sequences, with memory for a few blocks below it and a disk for more.
fn small(folder: &Path) -> EngineOptions {
    let tiers = format!("host=512KiB,disk={}:4MiB", folder.join("disk").display());
    // The longest sequence fits the device, so that the host is a tier for prefixes alone.
    let options = options().demand(Demand::new(8, 2048).longest(256)).kv_blocks(Some(24));
    options.kv_tiers(tiers.parse().unwrap()).cache_events(CacheEvents::All)
}

/// A model whose host tier no other test fills.
fn alone() -> Arc<Model> {
    Arc::new(open_model())
}

fn open(model: &Arc<Model>, folder: &Path, router: &Router) -> Engine {
    let mut engine = Engine::open(Arc::clone(model), small(folder)).unwrap();
    router.follow(&mut engine);
    engine
}

/// One of eight prompts, four pairs with a common beginning.
fn asked(which: u32) -> Vec<u32> {
    [prompt(which / 2, 48), prompt(100 + which, 7 + 16 * (which as usize % 3))].concat()
}

#[test]
fn what_the_events_say_is_what_requests_find() {
    let model = alone();
    let (folder, router) = (tempfile::tempdir().unwrap(), Router::default());
    let mut engine = open(&model, folder.path(), &router);
    let mut rng = StdRng::seed_from_u64(7);
    let mut found = CachedTokens::default();
    for round in 0..60 {
        let salt = rng.random_bool(0.2).then_some("a tenant");
        let tokens = asked(rng.random_range(0..8));
        let mut request = Request::new(tokens.clone()).max_tokens(rng.random_range(1..40)).ignore_eos();
        request.salt = salt.map(str::to_owned);
        let predicted = router.predict(&tokens, salt);
        let end = run(&mut engine, &[request]).remove(0);
        assert_eq!(end.usage.cached, predicted, "round {round}");
        router.check_device(&engine);
        found.device += predicted.device;
        found.host += predicted.host;
        found.disk += predicted.disk;
        if round % 20 == 19 {
            let below = router.count(Medium::Storage);
            assert!(engine.reset_prefix_cache());
            assert_eq!((router.count(Medium::Gpu), router.count(Medium::Storage)), (0, below));
        }
        if round == 40 {
            // Several at once, some of which are preempted or end early.
            let mut seqs = Vec::new();
            for which in 0..8 {
                seqs.push(engine.submit(Request::new(asked(which)).max_tokens(60).ignore_eos()).unwrap());
            }
            for step in 0..200 {
                if step == 5 {
                    engine.cancel(seqs[0]);
                }
                engine.step().unwrap();
                router.check_device(&engine);
                if !engine.has_work() {
                    break;
                }
            }
            assert!(!engine.has_work());
        }
    }
    assert!(found.device > 0 && found.host > 0 && found.disk > 0, "{found:?}");
}

/// A disk keeps hashes of blocks: their tokens come with the first request for them.
#[test]
fn blocks_of_an_earlier_engine_are_told_of_once_a_request_asks_for_them() {
    let model = alone();
    let (folder, first, second) = (tempfile::tempdir().unwrap(), Router::default(), Router::default());
    let request = Request::new(asked(2)).max_tokens(1);
    let mut engine = open(&model, folder.path(), &first);
    run(&mut engine, std::slice::from_ref(&request));
    drop(engine);
    let mut engine = open(&model, folder.path(), &second);
    assert_eq!(second.predict(&asked(2), None), CachedTokens::default());
    let end = run(&mut engine, &[request]).remove(0);
    assert_eq!(end.usage.cached.disk, 80);
    let blocks = hashes(&asked(2), None);
    for medium in [Medium::Gpu, Medium::Cpu, Medium::Storage] {
        assert!(blocks.iter().all(|hash| second.holds(medium, hash)), "{medium}");
    }
    // Both say the same of the same blocks, but in which steps.
    let of = |router: &Router| {
        let stored = |event: CacheEvent| match event {
            CacheEvent::Stored(blocks) if blocks.medium == Medium::Storage => Some(blocks.hashes),
            _ => None,
        };
        router.take().into_iter().filter_map(stored).flatten().collect::<Vec<_>>()
    };
    assert_eq!(of(&first), of(&second));
}

/// Writes go on after the last request was cancelled, and no step tells of them.
#[test]
fn an_engine_that_waits_has_told_everything() {
    let model = alone();
    let (folder, router) = (tempfile::tempdir().unwrap(), Router::default());
    let engine = open(&model, folder.path(), &router);
    let handle = EngineHandle::spawn(engine, HandleOptions::default()).unwrap();
    let stream = handle.submit(Request::new(asked(2)).max_tokens(150).ignore_eos()).unwrap();
    let mut events = stream.blocking();
    events.by_ref().take(4).for_each(|event| drop(event.unwrap()));
    drop(events);
    handle.shutdown(pagoda::Shutdown::Drain).wait();
    assert!(hashes(&asked(2), None).iter().all(|hash| router.holds(Medium::Storage, hash)));
}
