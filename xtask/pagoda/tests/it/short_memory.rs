//! Memory of the device that is short at any point of a start: an error that says so, and nothing is left of it.
//!
//! `PAGODA_LONG_TESTS=1` takes every tiny model, and a new device for each start.

use std::fs;
use std::sync::Arc;

use pagoda::{Engine, EngineOptions, Error, Event, Model, Request};

use crate::{fixture, is_long, options, prompt};

/// Opens the engine and generates.
fn generate(model: &Arc<Model>, options: &EngineOptions) -> Result<Vec<u32>, Error> {
    let mut engine = Engine::open(Arc::clone(model), options.clone())?;
    let ids = prompt(1, 20).into_iter().map(|id| id % model.config.vocab_size).collect();
    engine.submit(Request::new(ids).max_tokens(4).ignore_eos()).unwrap();
    let mut output = Vec::new();
    while engine.has_work() {
        for event in engine.step()? {
            if let Event::Finished(end) = event {
                output = end.output;
            }
        }
    }
    Ok(output)
}

fn models(all: bool) -> Vec<String> {
    if !all {
        return vec!["tiny-llama".into(), "tiny-qwen3-moe".into()];
    }
    let folders = fs::read_dir(fixture("")).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<String> = folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.retain(|name| name.starts_with("tiny-"));
    names.sort();
    names
}

#[test]
fn memory_that_is_short_at_any_point_of_a_start_is_an_error() {
    let all = is_long();
    for name in models(all) {
        let options = options();
        let open = || Arc::new(Model::open(fixture(&name)).unwrap());
        let mut model = open();
        let right = generate(&model, &options).unwrap();
        let (mut failed, mut served, mut points) = (0, 0, 0);
        // One buffer after the other, then all from it on.
        let refusals = (0_u64..).flat_map(|n| [n..n + 1, n..u64::MAX]);
        for which in refusals {
            if all {
                model = open();
            }
            let gpu = model.gpu(&options).unwrap();
            let _ = gpu.refuse_buffers(which.clone());
            let end = generate(&model, &options);
            let left = gpu.refuse_buffers(0..0);
            match end {
                Ok(tokens) => {
                    assert_eq!(tokens, right, "{name}, {which:?}");
                    served += 1;
                }
                Err(error) => {
                    let said = pagoda::error_chain::joined(&error);
                    assert!(said.contains("out of device memory for buffer "), "{name}, {which:?}: {said}");
                    failed += 1;
                }
            }
            points = which.start;
            if left.start > 0 {
                break;
            }
        }
        assert_eq!(generate(&model, &options).unwrap(), right, "{name}");
        eprintln!(
            "{name}: {points} buffers, of which {failed} refusals were errors and {served} cost blocks"
        );
        assert!(points > 20 && failed > 20, "{name}: {points} buffers, {failed} errors");
    }
}
