//! An engine on a thread of its own.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use pagoda::live_view::CellKind;
use pagoda::snapshot::{Activity, SequenceView};
use pagoda::{
    Demand, EngineHandle, Error, Event, FinishReason, Finished, HandleOptions, Health, Sampling, Shutdown,
    Snapshot, Stream, TokenMask,
};

use crate::{engine, options, prompt, request, run};

fn spawn(configure: impl FnOnce(&mut HandleOptions)) -> EngineHandle {
    let mut bounds = HandleOptions::default();
    configure(&mut bounds);
    EngineHandle::spawn(engine(&options()), bounds).unwrap()
}

fn end(event: Event) -> Option<Finished> {
    match event {
        Event::Finished(end) => Some(*end),
        _ => None,
    }
}

/// The ends of all samples of a request, which must have one each.
fn ends(stream: Stream) -> Vec<Finished> {
    stream.blocking().map(Result::unwrap).filter_map(end).collect()
}

/// Waits until the snapshot is as wanted.
#[track_caller]
fn until(handle: &EngineHandle, wanted: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
    let start = Instant::now();
    loop {
        let snapshot = handle.snapshot();
        if wanted(&snapshot) {
            return snapshot;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "still {snapshot:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn streams_yield_what_the_engine_yields() {
    let requests = [
        request(1, 40, 12),
        request(2, 7, 20).samples(3).sampling(Sampling::default().temperature(0.9).seed(5)),
        request(3, 90, 1),
    ];
    let alone = run(&mut engine(&options()), &requests);
    let handle = spawn(|_| {});
    let streams = requests.map(|request| handle.submit(request).unwrap());
    let mut got: Vec<Finished> = streams
        .into_iter()
        .flat_map(|stream| {
            let events: Vec<Event> = stream.blocking().map(Result::unwrap).collect();
            let started = events.iter().filter(|event| matches!(event, Event::Started(_))).count();
            assert_eq!((started, matches!(events[0], Event::Started(_))), (1, true));
            let tokens = |sample| {
                let of_sample = |event: &Event| match event {
                    Event::Token(token) if token.sample == sample => Some(token.id),
                    _ => None,
                };
                events.iter().filter_map(of_sample).collect::<Vec<_>>()
            };
            let ends: Vec<Finished> = events.iter().cloned().filter_map(end).collect();
            ends.iter().for_each(|end| assert_eq!(tokens(end.sample), end.output));
            ends
        })
        .collect();
    got.sort_by_key(|end| end.seq);
    let outputs = |ends: &[Finished]| ends.iter().map(|e| (e.sample, e.output.clone())).collect::<Vec<_>>();
    assert_eq!(outputs(&got), outputs(&alone));
    assert_eq!(got.len(), 5);
    assert!(got.iter().all(|end| end.reason == FinishReason::Length));
}

#[test]
fn events_carry_the_times_of_the_engine() {
    let handle = spawn(|_| {});
    let events: Vec<Event> =
        handle.submit(request(1, 40, 12)).unwrap().blocking().map(Result::unwrap).collect();
    let at = |event: &Event| match event {
        Event::Started(started) => Some(started.at),
        Event::Token(token) => Some(token.at),
        _ => None,
    };
    let times: Vec<Instant> = events.iter().filter_map(at).collect();
    assert!(times.len() == 13 && times.is_sorted_by(|a, b| a < b), "{times:?}");
    let clock = end(events.last().unwrap().clone()).unwrap().usage.clock;
    let (started, first, last) = (times[0], times[1], times[12]);
    assert_eq!([clock.started, clock.first, clock.last], [Some(started), Some(first), Some(last)]);
    assert_eq!(
        [clock.queue(), clock.prefill(), clock.decode(), clock.to_first_token()],
        [started - clock.submitted, first - started, last - first, first - clock.submitted].map(Some)
    );
}

#[test]
fn a_dropped_stream_cancels_its_request_alone() {
    let handle = spawn(|_| {});
    let mut dropped = handle.submit(request(1, 20, 400)).unwrap().blocking();
    let other = handle.submit(request(2, 20, 30)).unwrap();
    assert!(matches!(dropped.next(), Some(Ok(Event::Started(_)))));
    drop(dropped);
    let [end] = &ends(other)[..] else { panic!("one sample") };
    assert_eq!((end.output.len(), &end.reason), (30, &FinishReason::Length));
    let idle = until(&handle, |snapshot| snapshot.running.is_empty());
    assert_eq!((idle.totals.aborted, idle.totals.length, idle.blocks.used), (1, 1, 0));
}

#[test]
fn a_reader_that_falls_behind_stops_nobody_else() {
    let handle = spawn(|bounds| bounds.max_unread = 40);
    let slow = handle.submit(request(1, 20, 300)).unwrap();
    let [end] = &ends(handle.submit(request(2, 20, 30)).unwrap())[..] else { panic!("one sample") };
    assert_eq!(end.output.len(), 30);
    until(&handle, |snapshot| snapshot.totals.aborted == 1);
    let events: Vec<Result<Event, Error>> = slow.blocking().collect();
    let (last, read) = events.split_last().unwrap();
    assert!(read.len() == 40 && read.iter().all(Result::is_ok));
    assert!(matches!(last, Err(Error::Unread { unread: 40 })), "{last:?}");
}

#[test]
fn what_can_never_run_is_the_first_item() {
    let handle = spawn(|_| {});
    let mut refused = handle.submit(request(1, 5000, 8)).unwrap().blocking();
    assert!(matches!(refused.next(), Some(Err(Error::Admit(_)))));
    assert!(refused.next().is_none());
    let mut unknown = handle.submit(pagoda::Request::new(vec![3, 128])).unwrap().blocking();
    assert!(matches!(unknown.next(), Some(Err(Error::Token { id: 128, position: 1, vocab: 128 }))));
    assert_eq!(handle.num_waiting(), 0);
    assert_eq!(ends(handle.submit(request(1, 5, 2)).unwrap()).len(), 1);
}

#[test]
fn the_queue_is_bounded_in_requests_and_tokens() {
    // Eight sequences run at a time, so the ninth request and those behind it wait.
    let handle = spawn(|bounds| (bounds.max_waiting, bounds.max_waiting_tokens) = (10, 100));
    let running: Vec<Stream> = (0..8).map(|seed| handle.submit(request(seed, 4, 200)).unwrap()).collect();
    until(&handle, |snapshot| snapshot.running.len() == 8);
    let waiting: Vec<Stream> = (0..4).map(|seed| handle.submit(request(seed, 20, 1)).unwrap()).collect();
    let refused = handle.submit(request(9, 21, 1)).unwrap_err();
    assert!(
        matches!(refused, Error::QueueTokens { tokens: 21, waiting: 80, max_waiting_tokens: 100 }),
        "{refused}"
    );
    let small: Vec<Stream> = (0..6).map(|seed| handle.submit(request(seed, 2, 1)).unwrap()).collect();
    let refused = handle.submit(request(9, 1, 1)).unwrap_err();
    assert!(matches!(refused, Error::QueueFull { waiting: 10, max_waiting: 10 }), "{refused}");
    assert_eq!(handle.num_waiting(), 10);
    drop(running);
    assert_eq!(waiting.into_iter().chain(small).flat_map(ends).count(), 10);
    assert_eq!(handle.num_waiting(), 0);
}

#[test]
fn a_drain_finishes_what_is_there() {
    let handle = spawn(|_| {});
    let stream = handle.submit(request(1, 20, 25)).unwrap();
    let ended = handle.shutdown(Shutdown::Drain);
    assert!(matches!(handle.submit(request(2, 20, 25)), Err(Error::Stopped)));
    ended.wait();
    assert!(handle.ended().is_over());
    assert_eq!(ends(stream)[0].output.len(), 25);
}

#[test]
fn a_panic_ends_every_stream_with_an_error() {
    let handle = spawn(|_| {});
    let mut streams = [1, 2].map(|seed| handle.submit(request(seed, 20, 400)).unwrap().blocking());
    let started = streams.iter_mut().map(|stream| stream.next().unwrap().unwrap());
    assert!(started.into_iter().all(|event| matches!(event, Event::Started(_))));
    let lost = handle.call(|_| -> () { panic!("a test's {}", "own") }).unwrap();
    assert!(lost.wait().is_none());
    for stream in streams {
        let Err(failed @ Error::Failed { .. }) = stream.last().unwrap() else { panic!("it went on") };
        let said = pagoda::error_chain::joined(&failed);
        assert_eq!(said, "the engine failed: the engine's thread panicked: a test's own");
    }
    handle.ended().wait();
    assert_eq!((handle.health(), handle.num_waiting()), (Health::Ended, 0));
    assert!(matches!(handle.submit(request(3, 20, 1)), Err(Error::Stopped)));
}

#[test]
fn an_engine_without_handles_drains() {
    let handle = spawn(|_| {});
    let (stream, ended) = (handle.submit(request(1, 20, 25)).unwrap(), handle.ended());
    drop(handle.clone());
    assert!(!ended.is_over());
    drop(handle);
    assert_eq!(ends(stream)[0].output.len(), 25);
    ended.wait();
}

#[test]
fn a_stop_at_once_cancels_everything() {
    let handle = spawn(|_| {});
    let streams: Vec<Stream> = (0..12).map(|seed| handle.submit(request(seed, 4, 400)).unwrap()).collect();
    handle.shutdown(Shutdown::Drain);
    handle.shutdown(Shutdown::Now).wait();
    for stream in streams {
        let [end] = &ends(stream)[..] else { panic!("one sample") };
        assert!(end.reason == FinishReason::Cancelled && end.output.len() < 400, "{end:?}");
    }
    assert_eq!(handle.snapshot().totals.aborted, 12);
}

#[test]
fn calls_run_between_steps() {
    let handle = spawn(|_| {});
    let stream = handle.submit(request(1, 33, 30)).unwrap();
    let busy = handle.call(|engine| (engine.has_work(), thread::current().name().map(String::from)));
    assert_eq!(busy.unwrap().wait(), Some((true, Some("engine".to_owned()))));
    assert_eq!(ends(stream).len(), 1);
    let cached = handle.call(|engine| engine.snapshot().blocks.cached).unwrap();
    assert_eq!(pollster::block_on(cached), Some(3), "full blocks of 62 computed tokens");
    handle.shutdown(Shutdown::Now).wait();
    assert!(handle.call(|_| ()).is_err());
}

#[test]
fn streams_and_ends_can_be_awaited() {
    let handle = spawn(|_| {});
    let mut stream = handle.submit(request(1, 20, 10)).unwrap();
    let last = pollster::block_on(async {
        let mut last = None;
        while let Some(event) = stream.next().await {
            last = Some(event.unwrap());
        }
        handle.shutdown(Shutdown::Now).await;
        last
    });
    assert_eq!(end(last.unwrap()).unwrap().output.len(), 10);
}

#[test]
fn a_request_is_accepted_before_it_starts() {
    // One sequence runs at a time.
    let options = options().demand(Demand::one(512));
    let handle = EngineHandle::spawn(engine(&options), HandleOptions::default()).unwrap();
    let running = handle.submit(request(0, 4, 300)).unwrap();
    until(&handle, |snapshot| snapshot.running.len() == 1);
    let mut waiting = handle.submit(request(1, 4, 3)).unwrap();
    let first = pollster::block_on(waiting.accepted()).unwrap();
    assert_eq!((pollster::block_on(waiting.accepted()).unwrap(), handle.num_waiting()), (first, 1));
    assert_eq!(handle.num_waiting_tokens(), 4);
    drop(running);
    assert_eq!(ends(waiting)[0].seq, first);

    let mut refused = handle.submit(pagoda::Request::new(vec![1, 5000])).unwrap();
    let error = pollster::block_on(refused.accepted()).unwrap_err();
    assert!(matches!(error, Error::Token { id: 5000, .. }), "{error}");
    assert!(refused.blocking().next().is_none());
}

/// Allows every token once the test lets it draw.
#[derive(Debug, Clone)]
struct Gate(Arc<Mutex<mpsc::Receiver<()>>>);

impl TokenMask for Gate {
    fn allow(&mut self, allowed: &mut [u32]) {
        // After the test there is no sender.
        let _ = self.0.lock().unwrap().recv();
        allowed.fill(u32::MAX);
    }

    fn accept(&mut self, _: u32) {}

    fn fork(&self) -> Box<dyn TokenMask> {
        Box::new(self.clone())
    }
}

/// Steps last until the test lets them end.
#[test]
fn a_request_is_counted_from_its_submission_on() {
    let handle = spawn(|_| {});
    let (step, steps) = mpsc::channel();
    let mut gated = request(1, 4, 400);
    gated.mask = Some(Box::new(Gate(Arc::new(Mutex::new(steps)))));
    let mut gated = handle.submit(gated).unwrap();
    let first = pollster::block_on(gated.accepted()).unwrap();
    let mut gated = gated.blocking();
    let counted = || {
        let (waiting, snapshot) = (handle.num_waiting(), handle.snapshot());
        let seqs = |views: &[SequenceView]| views.iter().map(|view| view.seq).collect::<Vec<_>>();
        (waiting, seqs(&snapshot.waiting), seqs(&snapshot.running))
    };
    assert_eq!(counted(), (1, vec![first], vec![]));
    let mut other = handle.submit(request(2, 4, 400)).unwrap();
    assert_eq!(counted(), (2, vec![first], vec![]));
    step.send(()).unwrap();
    // The engine is in its second step.
    let second = pollster::block_on(other.accepted()).unwrap();
    let mut other = other.blocking();
    assert_eq!(counted(), (1, vec![second], vec![first]));
    assert!(matches!(gated.next(), Some(Ok(Event::Started(started))) if started.seq == first));
    step.send(()).unwrap();
    assert!(matches!(other.next(), Some(Ok(Event::Started(started))) if started.seq == second));
    assert_eq!(counted(), (0, vec![], vec![first, second]));
}

#[test]
fn a_deadline_ends_a_request() {
    let handle = spawn(|_| {});
    let mut late = request(1, 20, 450);
    late.deadline = Some(Instant::now());
    let [end] = &ends(handle.submit(late).unwrap())[..] else { panic!("one sample") };
    assert_eq!((&end.reason, end.output.len()), (&FinishReason::Deadline, 0));
}

#[test]
fn lower_priorities_start_first() {
    // One sequence runs at a time.
    let mut options = options().demand(Demand::one(512));
    options.order = pagoda::Order::Priority { ageing_steps: 0 };
    let handle = EngineHandle::spawn(engine(&options), HandleOptions::default()).unwrap();
    let running = handle.submit(request(0, 4, 300)).unwrap();
    until(&handle, |snapshot| snapshot.running.len() == 1);
    let submit = |priority| {
        let mut request = request(9, 30, 4);
        request.priority = priority;
        (priority, handle.submit(request).unwrap())
    };
    let waiting = [2, -1, 1].map(submit);
    drop(running);
    let start = |(priority, stream)| (ends(stream)[0].usage.clock.started.unwrap(), priority);
    let mut started = waiting.map(start);
    started.sort_unstable();
    assert_eq!(started.map(|(_, priority)| priority), [-1, 1, 2]);
}

#[test]
fn a_snapshot_shows_requests_and_blocks() {
    let handle = spawn(|_| {});
    let shared = prompt(7, 64);
    let first = pagoda::Request::new(shared.clone()).max_tokens(300).ignore_eos();
    let mut streams = vec![handle.submit(first).unwrap()];
    until(&handle, |snapshot| snapshot.running.iter().any(|view| view.tokens > 64));
    let second = pagoda::Request::new([&shared[..], &[5]].concat()).max_tokens(300).ignore_eos();
    streams.push(handle.submit(second).unwrap());
    let both = |snapshot: &Snapshot| snapshot.running.len() == 2;
    let snapshot = until(&handle, |s| both(s) && s.running.iter().all(|view| view.tokens > 65));
    let [one, two] = &snapshot.running[..] else { panic!("{snapshot:?}") };
    assert_eq!((one.prompt_tokens, two.prompt_tokens), (64, 65));
    assert_eq!((one.cached.total(), two.cached.device), (0, 64));
    assert_eq!(snapshot.blocks.shared, 4, "64 tokens in blocks of 16");
    assert_eq!(snapshot.blocks.used, one.blocks + two.blocks - 4);
    assert!(snapshot.prefix.hit_tokens == 64 && snapshot.decode_tok_s > 0.0 && snapshot.totals.steps > 1);
    assert!(snapshot.running.iter().all(|view| view.activity == Activity::Decode && view.first_s.is_some()));
    let look = || handle.call(|engine| engine.live_view(&[])).unwrap().wait().unwrap();
    let view = look();
    let cells = |kind| view.map.runs.iter().filter(move |run| run.kind == kind);
    assert_eq!(
        cells(CellKind::Shared).map(|run| (run.cells, run.seq)).collect::<Vec<_>>(),
        [(4, Some(one.seq))]
    );
    let held = |seq| cells(CellKind::Held).filter(move |run| run.seq == Some(seq)).count();
    assert!(held(one.seq) > 0 && held(two.seq) > 0, "{:?}", view.map);
    assert!(view.ended.is_empty() && view.reads.is_empty() && view.policy == "full");
    let seqs = [one.seq, two.seq];
    drop(streams);
    until(&handle, |snapshot| snapshot.running.is_empty() && snapshot.blocks.used == 0);
    let view = look();
    assert!(
        view.map.runs.iter().all(|run| matches!(run.kind, CellKind::Cached | CellKind::Free)),
        "{:?}",
        view.map
    );
    let mut ended: Vec<_> = view.ended.iter().map(|end| end.seq).collect();
    ended.sort_unstable();
    assert_eq!(ended, seqs);
    let end = &view.ended[0];
    assert!(
        end.reason == FinishReason::Cancelled
            && end.first_s > end.started_s
            && end.ended_s >= end.first_s.unwrap()
    );
}
