//! Every tiny model with every group of its tensors set to what is no number, or too large: an error or finite logits, never a
//! crash, a hang, or tokens from nothing.
//!
//! `PAGODA_LONG_TESTS=1` runs all combinations, `PAGODA_POISON_EVERY=7` every seventh.

use std::fs;

use models::Dtype;
use pagoda::{Engine, FinishReason, KvDtype, Model, Request};

use crate::{fixture, is_long, options, poison, prompt, run};

const VALUES: [f32; 4] = [f32::NAN, -f32::NAN, f32::INFINITY, 1.7e38];

/// Every how many combinations one is run by default: a number that has no divisor in common with the values or the ways.
const SAMPLE: usize = 719;

/// Weights and cache of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Safetensors(KvDtype),
    Gguf(KvDtype),
    /// Matrices that are quantised when they are loaded.
    Quantized(Dtype),
}

/// Tiny models that have a file of this name.
fn models(file: &str) -> Vec<String> {
    let folders = fs::read_dir(fixture("")).unwrap().map(|entry| entry.unwrap().path());
    let whole = folders.filter(|folder| folder.join(file).is_file());
    let mut names: Vec<String> =
        whole.filter_map(|folder| Some(folder.file_name()?.to_str()?.to_owned())).collect();
    names.retain(|name| name.starts_with("tiny-"));
    names.sort();
    assert!(names.len() > 15, "{names:?}");
    names
}

/// A model, a group of its tensors, their value, and how it runs.
type Combination = (String, String, f32, Way);

fn combinations() -> Vec<Combination> {
    let mut all = Vec::new();
    let mut add = |names: Vec<String>, groups: fn(&str) -> Vec<String>, ways: &[Way]| {
        for name in names {
            for group in groups(&name) {
                for value in VALUES {
                    all.extend(ways.iter().map(|way| (name.clone(), group.clone(), value, *way)));
                }
            }
        }
    };
    let ways = [Way::Safetensors(KvDtype::F32), Way::Safetensors(KvDtype::F16), Way::Quantized(Dtype::Q8_0)];
    add(models("model.safetensors"), poison::groups, &ways);
    add(models("model.gguf"), poison::gguf_groups, &[Way::Gguf(KvDtype::F16)]);
    all
}

/// Opens the model and generates.
fn outcome((name, group, value, way): &Combination) -> Result<FinishReason, String> {
    let change = |tensor: &str, values: &mut [f32]| {
        if poison::group(tensor) == *group {
            values.fill(*value);
        }
    };
    let said = |error: &dyn std::error::Error| error.to_string();
    let model = match way {
        Way::Gguf(_) => Model::open(poison::gguf(name, change).path()),
        Way::Safetensors(_) | Way::Quantized(_) => Model::open(poison::checkpoint(name, change).path()),
    };
    let mut model = model.map_err(|error| said(&error))?;
    let mut options = options();
    match way {
        Way::Safetensors(kv) | Way::Gguf(kv) => options.kv_dtype = *kv,
        Way::Quantized(dtype) => model = model.quantize(*dtype).map_err(|error| said(&error))?,
    }
    let ids = prompt(1, 40).into_iter().map(|id| id % model.config.vocab_size).collect();
    let mut engine = Engine::open(model, options).map_err(|error| said(&error))?;
    let end = run(&mut engine, &[Request::new(ids).max_tokens(3).ignore_eos()]).remove(0);
    assert_eq!(engine.scheduler().cache().pool().num_used(), 0);
    Ok(end.reason)
}

#[test]
fn poisoned_models_end_in_errors() {
    let every = std::env::var("PAGODA_POISON_EVERY").map(|every| every.parse().unwrap());
    let every = every.unwrap_or(if is_long() { 1 } else { SAMPLE });
    let (mut count, mut served) = (0, Vec::new());
    for combination in combinations().into_iter().step_by(every) {
        count += 1;
        eprintln!("{combination:?}");
        match outcome(&combination) {
            Err(_) | Ok(FinishReason::NonFinite { .. }) => {}
            Ok(reason) => {
                assert_eq!(reason, FinishReason::Length, "{combination:?}");
                eprintln!("finite");
                served.push(combination);
            }
        }
    }
    eprintln!("{count} poisoned models, of which {} gave finite logits: {served:#?}", served.len());
    let unexplained: Vec<_> =
        served.iter().filter(|(name, group, value, _)| !may_be_finite(name, group, *value)).collect();
    assert!(unexplained.is_empty(), "{unexplained:#?}");
}

/// Groups of which 1.7e38 leaves finite logits by the model's own formula.
const BOUNDED: [&str; 22] = [
    // Divisors of frequencies: nothing rotates.
    "rope_freqs",
    "rope_factors_",
    // Experts and entries are chosen among equals.
    "e_score_correction_bias",
    "ffn.gate.bias",
    "router.bias",
    "exp_probs_b.bias",
    "ffn_gate_inp.bias",
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
    "hc_head_",
    "hc_attn_base",
    "hc_ffn_base",
    // Clamped.
    "gate_up_proj_bias",
    "ffn_gate_exps.bias",
    "ffn_up_exps.bias",
    "gate_up_proj_scales",
];

/// Whether logits can be finite though a group is set to `value`. Granite's are divided, by a number in its configuration.
fn may_be_finite(name: &str, group: &str, value: f32) -> bool {
    let scaled = name == "tiny-granite"
        && ["lm_head.weight", "model.norm.weight", "output.weight", "output_norm.weight"].contains(&group);
    value.is_finite() && (scaled || BOUNDED.iter().any(|part| group.contains(part)))
}
