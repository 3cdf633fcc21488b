//! Every tiny model with every group of its tensors set to what is no number, or too large: an error or finite logits, never a
//! crash, a hang, or tokens from nothing.
//!
//! `PAGODA_LONG_TESTS=1` runs all combinations.

use pagoda::{Engine, FinishReason, Model, Request};

use crate::{options, poison, prompt, run};

const MODELS: [&str; 17] = [
    "tiny-deepseek-v3",
    "tiny-deepseek-v32",
    "tiny-deepseek-v4",
    "tiny-deepseek-v4-odd",
    "tiny-gemma3",
    "tiny-glm4",
    "tiny-gpt-oss",
    "tiny-gpt-oss-mxfp4",
    "tiny-granite",
    "tiny-llama",
    "tiny-llama4",
    "tiny-mistral",
    "tiny-phi3",
    "tiny-qwen2",
    "tiny-qwen3",
    "tiny-qwen3-moe",
    "tiny-smollm3",
];

const VALUES: [f32; 4] = [f32::NAN, -f32::NAN, f32::INFINITY, 1.7e38];

/// Every how many combinations one is run by default: a number that has no divisor in common with the values.
const SAMPLE: usize = 53;

/// Opens the model and generates.
fn outcome(name: &str, group: &str, value: f32) -> Result<FinishReason, String> {
    let folder = poison::checkpoint(name, |tensor, values| {
        if poison::group(tensor) == group {
            values.fill(value);
        }
    });
    let model = Model::open(folder.path()).map_err(|error| error.to_string())?;
    let mut engine = Engine::open(&model, &options()).map_err(|error| error.to_string())?;
    let ids = prompt(1, 40).into_iter().map(|id| id % model.config.vocab_size).collect();
    let end = run(&mut engine, &[Request::new(ids).max_tokens(3).ignore_eos()]).remove(0);
    assert_eq!(engine.scheduler().cache().pool().num_used(), 0);
    Ok(end.reason)
}

#[test]
fn poisoned_models_end_in_errors() {
    let all = MODELS.into_iter().flat_map(|name| {
        let groups = poison::groups(name).into_iter();
        groups.flat_map(move |group| VALUES.map(|value| (name, group.clone(), value)))
    });
    let every = if std::env::var_os("PAGODA_LONG_TESTS").is_some() { 1 } else { SAMPLE };
    let (mut count, mut served) = (0, Vec::new());
    for (name, group, value) in all.step_by(every) {
        count += 1;
        match outcome(name, &group, value) {
            Err(_) | Ok(FinishReason::NonFinite { .. }) => {}
            Ok(reason) => {
                assert_eq!(reason, FinishReason::Length, "{name} {group} = {value}");
                served.push((name, group, value));
            }
        }
    }
    eprintln!("{count} poisoned models, of which {} gave finite logits: {served:#?}", served.len());
    let unexplained: Vec<_> =
        served.iter().filter(|(_, group, value)| !may_be_finite(group, *value)).collect();
    assert!(unexplained.is_empty(), "{unexplained:?}");
}

/// Whether logits can be finite though a group is set to `value`.
fn may_be_finite(_group: &str, value: f32) -> bool {
    value.is_finite()
}
