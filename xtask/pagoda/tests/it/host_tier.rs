//! Engines of one model share a host tier.

use std::sync::Arc;

use kvblock::Medium;
use pagoda::{
    CacheEvents, CachedTokens, Demand, Engine, EngineHandle, EngineOptions, Finished, HandleOptions, KvDtype,
    Model, Replicas, Request,
};

use crate::kv_events::Router;
use crate::replicas::{ends, until};
use crate::{fixture, options, prompt, run};

/// Tokens of a prompt, of which 96 are in whole blocks.
const LEN: usize = 100;
const WHOLE: u32 = 96;

/// A pool of a few sequences. The longest one fits, so that the host is a tier for prefixes alone.
fn on_device() -> EngineOptions {
    options().demand(Demand::new(8, 2048).longest(256)).kv_blocks(Some(24))
}

/// The pool over a host tier for a few prompts.
fn small() -> EngineOptions {
    on_device().kv_tiers("host=512KiB".parse().unwrap())
}

fn model() -> Arc<Model> {
    Model::open(fixture("tiny-llama")).unwrap().into()
}

fn open(model: &Arc<Model>, options: EngineOptions) -> Engine {
    // As a server does for each of its devices.
    model.forget_gpu();
    Engine::open(Arc::clone(model), options).unwrap()
}

fn asked(seed: u32) -> Request {
    Request::new(prompt(seed, LEN)).max_tokens(8).ignore_eos()
}

fn one(engine: &mut Engine, seed: u32) -> Finished {
    run(engine, &[asked(seed)]).remove(0)
}

fn from_host(tokens: u32) -> CachedTokens {
    let mut cached = CachedTokens::default();
    cached.host = tokens;
    cached
}

#[test]
fn what_one_engine_computes_another_one_loads() {
    let model = model();
    let mut alone = open(&model, on_device());
    let [mut first, mut second] = [(); 2].map(|()| open(&model, small()));
    let computed = one(&mut first, 1);
    let loaded = one(&mut second, 1);
    assert_eq!([computed.usage.cached, loaded.usage.cached], [from_host(0), from_host(WHOLE)]);
    let want = one(&mut alone, 1).output;
    assert_eq!([computed.output, loaded.output], [want.clone(), want]);
    // Traffic is of the engine that caused it.
    let [of_first, of_second] =
        [&mut first, &mut second].map(|engine| engine.tier_use().unwrap().host.unwrap());
    assert_eq!((of_first.hits, of_second.hits), (0, u64::from(WHOLE / 16)));
    assert!(of_first.bytes_written > 0 && of_second.bytes_written == 0, "{of_first:?} {of_second:?}");

    // The tier lasts as long as one of its engines.
    drop(first);
    assert!(second.reset_prefix_cache());
    assert_eq!(one(&mut second, 1).usage.cached, from_host(WHOLE));
    let mut third = open(&model, small());
    drop(second);
    assert_eq!(one(&mut third, 1).usage.cached, from_host(WHOLE));
    drop(third);
    assert_eq!(one(&mut open(&model, small()), 1).usage.cached, from_host(0));
}

#[test]
fn engines_with_other_blocks_or_another_capacity_have_a_host_tier_of_their_own() {
    let model = model();
    let mut first = open(&model, small());
    one(&mut first, 1);
    let other = small().kv_tiers("host=1MiB".parse().unwrap());
    for options in [small().kv_dtype(KvDtype::F16), other, small()] {
        let shares = options.kv_dtype == KvDtype::F32 && options.kv_tiers == small().kv_tiers;
        let cached = one(&mut open(&model, options), 1).usage.cached;
        assert_eq!(cached, from_host(if shares { WHOLE } else { 0 }));
    }
    // Neither do engines of models that were opened apart.
    assert_eq!(one(&mut open(&self::model(), small()), 1).usage.cached, from_host(0));
}

/// `host` is the memory of the process: what one engine saves may evict what another one saved, whose followers hear of it even
/// while it has nothing to do.
#[test]
fn the_capacity_is_of_all_engines() {
    let model = model();
    let routers = [Router::default(), Router::default()];
    let [mut first, mut second] = routers.each_ref().map(|router| {
        let mut engine = open(&model, small().cache_events(CacheEvents::All));
        router.follow(&mut engine);
        engine
    });
    let on_host = || routers.each_ref().map(|router| router.count(Medium::Cpu));
    for seed in 0..8 {
        one(&mut first, seed);
    }
    let [capacity, none] = on_host();
    assert!(capacity >= 16 && capacity < 8 * WHOLE as usize / 16 && none == 0, "{capacity}, {none}");
    let first = EngineHandle::spawn(first, HandleOptions::default()).unwrap();
    // Both know of a prompt that both asked for.
    assert_eq!(one(&mut second, 7).usage.cached, from_host(WHOLE));
    assert_eq!(on_host(), [capacity, WHOLE as usize / 16]);
    for seed in 10..18 {
        one(&mut second, seed);
    }
    assert_eq!(on_host()[1], capacity);
    until("the first engine tells that its blocks are gone", || on_host()[0] == 0);
    drop(first);
}

#[test]
fn what_a_lost_engine_has_saved_is_loaded_by_another_one() {
    let model = model();
    let engines = [(); 2].map(|()| open(&model, small().cache_events(CacheEvents::Device)));
    let replicas = Replicas::spawn(engines.into(), HandleOptions::default()).unwrap();
    let ask = || {
        let stream = replicas.submit(asked(1)).unwrap();
        let place = stream.replica().get();
        (place, ends(stream).remove(0))
    };
    let (place, computed) = ask();
    assert_eq!((place, computed.usage.cached), (0, from_host(0)));
    assert_eq!(ask().1.usage.cached.device, WHOLE);
    replicas.engines()[0].call(|engine| engine.decoder().gpu().destroy()).unwrap().wait().unwrap();
    // The first engine has the prompt on its device, and finds that it is lost.
    let (_, loaded) = ask();
    assert!(replicas.engines()[0].is_lost());
    assert_eq!((loaded.usage.cached, loaded.output), (from_host(WHOLE), computed.output));
}

/// An engine whose device is lost keeps its host tier, also if it is the only one.
#[test]
fn an_engine_that_is_opened_anew_finds_what_it_had_on_the_host() {
    let mut engine = open(&model(), small());
    let want = one(&mut engine, 1).output;
    engine.decoder().gpu().destroy();
    let mut engine = engine.reopen().unwrap();
    let loaded = one(&mut engine, 1);
    assert_eq!((loaded.usage.cached, loaded.output), (from_host(WHOLE), want));
}
