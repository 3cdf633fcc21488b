//! Several engines behind one queue, each with a device of its own.

use std::thread;
use std::time::{Duration, Instant};

use kvblock::{CacheEvent, Medium};
use pagoda::{
    CacheEvents, Engine, EngineOptions, Error, Event, Finished, HandleOptions, Health, ReplicaStream,
    Replicas, Request, Sampling,
};

use crate::kv_events::Router;
use crate::{engine, open_model, options, prompt, request, run};

/// An engine on a device that no other one uses.
fn alone(options: &EngineOptions) -> Engine {
    Engine::open(open_model(), options.clone()).unwrap()
}

fn spawn(count: usize, bounds: HandleOptions) -> Replicas {
    let engines = (0..count).map(|_| alone(&options().cache_events(CacheEvents::Device))).collect();
    Replicas::spawn(engines, bounds).unwrap()
}

pub(crate) fn ends(stream: ReplicaStream) -> Vec<Finished> {
    let end = |event: Result<Event, Error>| match event.unwrap() {
        Event::Finished(end) => Some(*end),
        _ => None,
    };
    stream.blocking().filter_map(end).collect()
}

fn generated(replicas: &Replicas) -> Vec<u64> {
    replicas.engines().iter().map(|engine| engine.snapshot().totals.generated_tokens).collect()
}

#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn requests_of_several_engines_draw_what_one_draws() {
    let sampled = Sampling::default().temperature(0.9).seed(5);
    let requests: Vec<Request> = (0..12)
        .map(|seed| request(seed, 20 + 9 * seed as usize, 10).samples(1 + seed % 2).sampling(sampled.clone()))
        .collect();
    let alone = run(&mut engine(&options()), &requests);
    let replicas = spawn(2, HandleOptions::default());
    let streams: Vec<_> = requests.into_iter().map(|request| replicas.submit(request).unwrap()).collect();
    let mut got: Vec<Finished> = streams
        .into_iter()
        .flat_map(|stream| {
            let mut ends = ends(stream);
            ends.sort_by_key(|end| end.sample);
            ends
        })
        .collect();
    assert!(generated(&replicas).iter().all(|tokens| *tokens > 0), "{:?}", generated(&replicas));
    assert_eq!(got.len(), alone.len());
    for (got, alone) in got.iter_mut().zip(&alone) {
        assert_eq!((&got.output, &got.text), (&alone.output, &alone.text));
    }
}

/// Requests follow their prefix as long as they end one before the other, and a prefix that two engines hold is found in both.
#[test]
fn a_prompt_goes_where_its_beginning_is_cached() {
    let replicas = spawn(3, HandleOptions::default());
    let begin = |seed: u32| prompt(seed, 64);
    let mut places = Vec::new();
    for seed in [1, 2, 3, 1, 2, 3, 2, 1, 3] {
        let own = prompt(100 + u32::try_from(places.len()).unwrap(), 9);
        let stream =
            replicas.submit(Request::new([begin(seed), own].concat()).max_tokens(4).ignore_eos()).unwrap();
        let replica = stream.replica().get();
        let end = ends(stream).remove(0);
        let first = !places.iter().any(|(of, _)| *of == seed);
        assert_eq!(end.usage.cached.device, if first { 0 } else { 64 }, "{places:?}");
        places.push((seed, replica));
    }
    // Of equal costs, the engine that holds least is taken: each prefix has an engine of its own.
    for seed in 1..=3 {
        let of: Vec<u32> = places.iter().filter(|(of, _)| *of == seed).map(|(_, replica)| *replica).collect();
        assert_eq!(of, [seed - 1; 3]);
    }
    // A reset is followed too.
    replicas.engines()[0].call(|engine| engine.reset_prefix_cache()).unwrap().wait().unwrap();
    let end =
        ends(replicas.submit(Request::new([begin(1), vec![7; 9]].concat()).max_tokens(2)).unwrap()).remove(0);
    assert_eq!(end.usage.cached.device, 0);
}

#[test]
fn a_lost_engine_loses_no_request_and_sends_no_token_twice() {
    let requests: Vec<Request> = (0..8).map(|seed| request(seed, 40, 200).samples(1 + seed % 2)).collect();
    let alone = run(&mut engine(&options()), &requests);
    let replicas = spawn(2, HandleOptions::default());
    let mut streams: Vec<_> =
        requests.into_iter().map(|request| replicas.submit(request).unwrap().blocking()).collect();
    // Each has begun, and its reader has some of its tokens.
    let mut events: Vec<Vec<Event>> =
        streams.iter_mut().map(|stream| stream.by_ref().take(5).map(Result::unwrap).collect()).collect();
    until("both engines generate", || generated(&replicas).iter().all(|tokens| *tokens > 0));
    let lost = &replicas.engines()[0];
    lost.call(|engine| engine.decoder().gpu().destroy()).unwrap().wait().unwrap();
    for (stream, events) in streams.into_iter().zip(&mut events) {
        events.extend(stream.map(Result::unwrap));
    }
    assert!(lost.is_lost() && lost.health() == Health::Ended);
    assert_eq!(replicas.health(), Health::Well);
    let mut alone = alone.iter();
    for events in &events {
        let starts = events.iter().filter(|event| matches!(event, Event::Started(_))).count();
        let samples = events.iter().filter(|event| matches!(event, Event::Finished(_))).count();
        assert_eq!(starts, 1);
        for sample in 0..u32::try_from(samples).unwrap() {
            let want = alone.next().unwrap();
            let tokens: Vec<u32> = events
                .iter()
                .filter_map(|event| match event {
                    Event::Token(token) if token.sample == sample => Some(token.id),
                    _ => None,
                })
                .collect();
            assert_eq!(tokens, want.output);
            let end = events.iter().find_map(|event| match event {
                Event::Finished(end) if end.sample == sample => Some(end),
                _ => None,
            });
            assert_eq!(end.unwrap().output, want.output);
        }
    }
    assert!(alone.next().is_none());
    // What comes later goes to the other one, until it is lost too.
    let later = replicas.submit(request(50, 20, 3)).unwrap();
    assert_eq!((later.replica().get(), ends(later)[0].output.len()), (1, 3));
    replicas.engines()[1].call(|engine| engine.decoder().gpu().destroy()).unwrap().wait().unwrap();
    let error = replicas.submit(request(51, 20, 3)).unwrap().blocking().last().unwrap().unwrap_err();
    assert!(matches!(error, Error::Failed { .. }), "{error}");
    until("all have ended", || replicas.is_over());
    assert!(matches!(replicas.submit(request(52, 20, 3)), Err(Error::Stopped)));
}

/// Each engine has followers of its own, who hear that one whose device was lost begins with nothing.
#[test]
fn an_engine_that_is_opened_anew_tells_its_own_followers() {
    let routers = [Router::default(), Router::default()];
    let engines = routers.each_ref().map(|router| {
        let mut engine = alone(&options().cache_events(CacheEvents::Device));
        router.follow(&mut engine);
        engine
    });
    let replicas = Replicas::spawn(engines.into(), HandleOptions::default().recover(true)).unwrap();
    let ask = |seed| ends(replicas.submit(request(seed, 48, 1)).unwrap())[0].usage.cached.device;
    assert_eq!([1, 2, 1, 2].map(ask), [0, 0, 32, 32]);
    assert_eq!(routers.each_ref().map(|router| router.count(Medium::Gpu)), [3, 3]);
    routers.iter().for_each(|router| drop(router.take()));
    replicas.engines()[0].call(|engine| engine.decoder().gpu().destroy()).unwrap().wait().unwrap();
    // The first one started before the loss was found, and is computed again.
    assert_eq!([1, 2].map(ask), [32, 32]);
    let told = routers.each_ref().map(Router::take);
    assert!(matches!(&told[0][..], [CacheEvent::AllCleared, CacheEvent::Stored(_), ..]), "{:?}", told[0]);
    assert_eq!(routers[0].count(Medium::Gpu), 3);
    assert!(told[1].is_empty(), "{:?}", told[1]);
    assert_eq!([1, 2].map(ask), [32, 32]);
}

#[test]
fn a_full_queue_sends_requests_elsewhere() {
    let replicas = spawn(2, HandleOptions::default().max_waiting(2));
    // Nothing starts before the engines are let go.
    let holds: Vec<_> = replicas
        .engines()
        .iter()
        .map(|engine| {
            let (go, gone) = std::sync::mpsc::channel::<()>();
            let reply = engine.call(move |_| gone.recv().is_err()).unwrap();
            (go, reply)
        })
        .collect();
    let submit = |len| replicas.submit(request(1, len, 2));
    let streams: Vec<_> = [10, 300, 10, 10].map(|len| submit(len).unwrap()).into();
    // The last one would cost the first engine least, whose queue is full.
    let places: Vec<u32> = streams.iter().map(|stream| stream.replica().get()).collect();
    assert_eq!(places, [0, 1, 0, 1]);
    assert!(matches!(submit(10), Err(Error::QueueFull { waiting: 2, max_waiting: 2 })));
    drop(holds);
    assert!(streams.into_iter().all(|stream| ends(stream).len() == 1));
    assert_eq!(ends(submit(10).unwrap()).len(), 1);
}
