//! Every tiny model with every group of its tensors set to what is no number, or too large: an error or finite logits, never a
//! crash, a hang, or tokens from nothing.
//!
//! `PAGODA_LONG_TESTS=1` runs all combinations.

use std::fs;

use pagoda::{Engine, FinishReason, Model, Request};

use crate::{fixture, options, poison, prompt, run};

const VALUES: [f32; 4] = [f32::NAN, -f32::NAN, f32::INFINITY, 1.7e38];

/// Every how many combinations one is run by default: a number that has no divisor in common with the values.
const SAMPLE: usize = 53;

/// Tiny models whose weights are safetensors.
fn models() -> Vec<String> {
    let folders = fs::read_dir(fixture("")).unwrap().map(|entry| entry.unwrap().path());
    let whole = folders.filter(|folder| folder.join("model.safetensors").is_file());
    let mut names: Vec<String> =
        whole.filter_map(|folder| Some(folder.file_name()?.to_str()?.to_owned())).collect();
    names.retain(|name| name.starts_with("tiny-"));
    names.sort();
    names
}

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
    let models = models();
    assert!(models.len() > 20, "{models:?}");
    let all = models.iter().flat_map(|name| {
        let groups = poison::groups(name).into_iter();
        groups.flat_map(move |group| VALUES.map(|value| (name, group.clone(), value)))
    });
    let every = if std::env::var_os("PAGODA_LONG_TESTS").is_some() { 1 } else { SAMPLE };
    let (mut count, mut served) = (0, Vec::new());
    for (name, group, value) in all.step_by(every) {
        count += 1;
        eprintln!("{name} {group} = {value}");
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
        served.iter().filter(|(name, group, value)| !may_be_finite(name, group, *value)).collect();
    assert!(unexplained.is_empty(), "{unexplained:?}");
}

/// Groups of which 1.7e38 leaves finite logits by the model's own formula.
const BOUNDED: [&str; 14] = [
    // Experts and entries are chosen among equals.
    "e_score_correction_bias",
    "ffn.gate.bias",
    "router.bias",
    "indexer.",
    // All attention goes to the sink.
    "sinks",
    "attn_sink",
    // Weights of a softmax that are all the same, or a sigmoid that is 1.
    "position_bias",
    "compressor.ape",
    "hc_base",
    "hc_scale",
    "_hc.base",
    "hc_attn_base",
    "hc_ffn_base",
    // Clamped.
    "gate_up_proj_bias",
];

/// Whether logits can be finite though a group is set to `value`. Granite's are divided, by a number in its configuration.
fn may_be_finite(name: &str, group: &str, value: f32) -> bool {
    let scaled = name == "tiny-granite" && ["lm_head.weight", "model.norm.weight"].contains(&group);
    value.is_finite() && (scaled || BOUNDED.iter().any(|part| group.contains(part)))
}
