//! Engines whose layers are split over devices: one adapter, opened for each part of the layers.

use std::path::Path;
use std::sync::{Arc, Mutex};

use pagoda::{
    Engine, EngineOptions, Event, Finished, LayerSplit, Model, Note, Notes, Preemption, Request, Sampling,
};

use crate::{engine, open_model, options, prompt, request, run};

fn split(options: &EngineOptions, layers: Option<&[u32]>) -> EngineOptions {
    let parts = layers.map_or(2, <[u32]>::len);
    let devices = vec!["0".to_owned(); parts];
    options.clone().split(LayerSplit { devices, layers: layers.map(<[u32]>::to_vec) })
}

/// An engine of a model that no other test uses: devices are opened for a split, and lost. Those that it has are used again.
fn open(model: &Arc<Model>, options: &EngineOptions) -> Engine {
    Engine::open(Arc::clone(model), options.clone()).unwrap()
}

fn texts(ends: &[Finished]) -> Vec<(&[u32], &str)> {
    ends.iter().map(|end| (&end.output[..], end.text.as_str())).collect()
}

/// Prompts of many chunks, several samples, and more sequences than run at one time.
fn requests() -> Vec<Request> {
    let sampled = Sampling::default().temperature(0.9).seed(5);
    let of = |seed: u32| request(seed, 20 + 37 * seed as usize, 10).samples(1 + seed % 2);
    (0..12).map(|seed| of(seed).sampling(sampled.clone())).collect()
}

#[test]
fn layers_on_several_devices_draw_what_one_device_draws() {
    let options = options().reproducible(true);
    let (requests, alone) = (requests(), run(&mut engine(&options), &requests()));
    let model = Arc::new(open_model());
    for layers in [None, Some(&[1, 2][..]), Some(&[1, 1, 1])] {
        let mut engine = open(&model, &split(&options, layers));
        let ends = run(&mut engine, &requests);
        assert_eq!(texts(&ends), texts(&alone), "layers {layers:?}");
        let stages = engine.pipeline().stages();
        assert_eq!(stages.len(), layers.map_or(2, <[u32]>::len));
        if let Some(layers) = layers {
            assert!(stages.iter().map(|stage| stage.config().num_layers).eq(layers.iter().copied()));
        }
        // A prompt that runs alone fills all devices.
        let rows = u64::from(stages[0].step_rows());
        let steps = engine.snapshot().totals.steps;
        run(&mut engine, &[request(50, 500, 1)]);
        let took = engine.snapshot().totals.steps - steps;
        assert!(took < 500 / rows, "{took} steps of 500 tokens in parts of {rows}");
    }
}

#[test]
fn sequences_that_are_swapped_come_back_in_all_layers() {
    let options = options().reproducible(true);
    let requests: Vec<Request> = (0..6).map(|seed| request(seed, 60, 60)).collect();
    let alone = run(&mut engine(&options), &requests);
    let few = split(&options, None).kv_blocks(Some(30)).preemption(Preemption::Swap);
    let mut engine = open(&Arc::new(open_model()), &few);
    assert_eq!(texts(&run(&mut engine, &requests)), texts(&alone));
    assert!(engine.snapshot().totals.preemptions > 0);
}

#[test]
fn a_lost_device_of_two_loses_no_token() {
    let options = options().reproducible(true);
    let (requests, alone) = (requests(), run(&mut engine(&options), &requests()));
    let model = Arc::new(open_model());
    for lost in [0, 1] {
        let mut engine = open(&model, &split(&options, None));
        for request in &requests {
            engine.submit(request.clone()).unwrap();
        }
        let mut events: Vec<Event> = Vec::new();
        for _ in 0..12 {
            events.extend(engine.step().unwrap());
        }
        let other = Arc::clone(engine.pipeline().stages()[1 - lost].gpu());
        engine.pipeline().stages()[lost].gpu().destroy();
        assert!(engine.is_lost() && engine.step().is_err());
        let mut engine = engine.reopen().unwrap();
        let kept = engine.pipeline().stages()[1 - lost].gpu();
        assert!(Arc::ptr_eq(kept, &other), "the other device is not opened again");
        while engine.has_work() {
            events.extend(engine.step().unwrap());
        }
        let mut ends: Vec<Finished> = events
            .into_iter()
            .filter_map(|event| match event {
                Event::Finished(end) => Some(*end),
                _ => None,
            })
            .collect();
        ends.sort_by_key(|end| end.seq);
        assert_eq!(texts(&ends), texts(&alone), "device {lost} was lost");
    }
}

/// Blocks that one engine saves are loaded by another, however many devices either has.
#[test]
fn blocks_in_tiers_do_not_depend_on_the_split() {
    let folder = tempfile::tempdir().unwrap();
    let tiers = |path: &Path| {
        let spec = format!("disk={}:16MiB", path.display()).parse().unwrap();
        options().reproducible(true).kv_tiers(spec)
    };
    let ask = |seed: u32| Request::new(prompt(seed, 300)).max_tokens(8).ignore_eos();
    let mut saved = Vec::new();
    let model = Arc::new(open_model());
    for (seed, options) in [(1, tiers(folder.path())), (2, split(&tiers(folder.path()), None))] {
        let end = run(&mut open(&model, &options), &[ask(seed)]).remove(0);
        assert_eq!(end.usage.cached.disk, 0);
        saved.push(end.output);
    }
    let readers = [tiers(folder.path()), split(&tiers(folder.path()), Some(&[2, 1]))];
    for options in readers {
        let mut reader = open(&model, &options);
        // One after the other: requests that come together do not all wait for the disk.
        let ends = [1, 2].map(|seed| run(&mut reader, &[ask(seed)]).remove(0));
        for (end, saved) in ends.iter().zip(&saved) {
            assert_eq!((end.usage.cached.disk, &end.output), (288, saved));
        }
    }
}

#[test]
fn a_split_says_where_layers_are_and_what_it_cannot_do() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = Arc::clone(&told);
    let notes = Notes::to(move |note| {
        if let Note::Split { .. } = note {
            telling.lock().unwrap().push(note.to_string());
        }
    });
    let engine_of = |options: EngineOptions| Engine::open(open_model(), options);
    let engine = engine_of(split(&options(), Some(&[1, 2])).notes(notes)).unwrap();
    let name = &engine.decoder().gpu().info().name;
    assert_eq!(*told.lock().unwrap(), [format!("layers: 1 on {name}, 2 on {name}")]);

    let refused = |options: EngineOptions| engine_of(options).unwrap_err();
    let error = refused(split(&options(), Some(&[2, 2])));
    assert_eq!(
        error.to_string(),
        "3 layers cannot be split over 2 devices as [2, 2]: each has some, and all have an owner"
    );
    let error = refused(options().split(LayerSplit { devices: Vec::new(), layers: None }));
    assert!(error.to_string().starts_with("3 layers cannot be split over 0 devices"), "{error}");
}
