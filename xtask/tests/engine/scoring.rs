//! `score` with the tiny Llama.

use std::fs;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::{golden_ids, ids, ids_file, refused, run, tiny, tiny_llama, xtask};

const VOCAB: usize = 128;

/// The f32 tensor `name` of a file, and its shape.
fn tensor(path: &std::path::Path, name: &str) -> (Vec<f32>, Vec<usize>) {
    let file = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), Dtype::F32);
    (bytemuck::pod_collect_to_vec(tensor.data()), tensor.shape().to_vec())
}

/// Scores the prompt of 200 tokens, in f32 KV.
fn score(flags: &[&str]) -> Value {
    let file = ids_file(&golden_ids("prompt_3"));
    let mut score = tiny("score");
    run(score.arg("--ids-file").arg(file.path()).args(["--kv-dtype", "f32"]).args(flags)).remove(0)
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|v| f64::from(*v).exp()).sum();
    logits.iter().map(|v| f64::from(*v) - sum.ln()).collect()
}

#[test]
fn logits_are_those_of_transformers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("logits.safetensors");
    score(&["--logits-out", path.to_str().unwrap(), "--last", "32", "--chunk", "48"]);
    let (got, shape) = tensor(&path, "logits");
    let (want, _) = tensor(&tiny_llama().join("golden.safetensors"), "logits_3");
    assert_eq!(shape, [32, VOCAB]);
    let squares = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>();
    let error: Vec<f64> = got.iter().zip(&want).map(|(got, want)| f64::from(got - want)).collect();
    let want: Vec<f64> = want.iter().map(|v| f64::from(*v)).collect();
    let relative = (squares(&error) / squares(&want)).sqrt();
    assert!(relative <= 1e-4, "the logits are off by {relative:.2e} of their length");
}

#[test]
fn likelihoods_and_top_tokens_follow_from_the_logits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("logits.safetensors");
    let scored = score(&["--logits-out", path.to_str().unwrap(), "--top", "128"]);
    let (logits, shape) = tensor(&path, "logits");
    let tokens = golden_ids("prompt_3");
    assert_eq!(shape, [tokens.len(), VOCAB]);
    let rows: Vec<Vec<f64>> = logits.chunks(VOCAB).map(log_softmax).collect();
    let nll: f64 = rows.iter().zip(&tokens[1..]).map(|(row, target)| -row[*target as usize]).sum();
    let mean = nll / (tokens.len() - 1) as f64;
    let got = scored["mean_nll"].as_f64().unwrap();
    assert!((got - mean).abs() <= 1e-4, "mean nll {got}, from the logits {mean}");

    assert_eq!(scored["tokens"], tokens.len());
    let (top, last) = (ids(&scored["top_ids"]), rows.last().unwrap());
    assert_eq!(top.len(), VOCAB);
    assert!(top.is_sorted_by(|a, b| last[*a as usize] >= last[*b as usize]), "{top:?}");
    for (id, log_prob) in top.iter().zip(scored["top_logprobs"].as_array().unwrap()) {
        let (got, want) = (log_prob.as_f64().unwrap(), last[*id as usize]);
        assert!((got - want).abs() <= 1e-4, "id {id}: {got}, from the logits {want}");
    }
}

#[test]
fn decode_steps_score_as_prefill_does() {
    let prefilled = score(&[]);
    for from in ["0", "150"] {
        let decoded = score(&["--decode-from", from]);
        let [a, b] = [&prefilled, &decoded].map(|scored| scored["mean_nll"].as_f64().unwrap());
        assert!((a - b).abs() <= 1e-4, "mean nll {b} with decode from {from}, {a} without");
        assert_eq!(prefilled["top_ids"], decoded["top_ids"]);
    }
}

#[test]
fn one_token_has_no_likelihood() {
    let file = ids_file(&[[7], [61]]);
    let scored = run(tiny("score").arg("--ids-file").arg(file.path()).args(["--top", "3"]));
    assert_eq!(scored.len(), 2, "one line a sequence");
    for scored in scored {
        assert_eq!((&scored["tokens"], &scored["mean_nll"]), (&1.into(), &Value::Null));
        assert_eq!(ids(&scored["top_ids"]).len(), 3);
    }
}

/// Queries and keys that `score` writes are those of attention: on them, Quest certifies as much as it does in the engine,
/// where the last layer alone is sparse, so that its queries and keys are those of dense attention.
#[test]
fn queries_and_keys_of_a_layer_are_those_that_select_takes() {
    let folder = tempfile::tempdir().unwrap();
    let dump = |name: &str, flags: &[&str]| {
        let path = folder.path().join(name);
        let scored = score(&[&["--dump-qk", path.to_str().unwrap()], flags].concat());
        let tensors = (tensor(&path, "q"), tensor(&path, "k"));
        (path, scored["mean_nll"].as_f64().unwrap(), tensors)
    };
    let plain = score(&[])["mean_nll"].as_f64().unwrap();
    let last = (layers() - 1).to_string();
    let (path, nll, whole) = dump("whole", &["--layer", &last, "--last", "1"]);
    let (_, _, steps) =
        dump("steps", &["--layer", &last, "--last", "1", "--chunk", "48", "--decode-from", "190"]);
    let (_, _, all) = dump("all", &["--layer", &last, "--chunk", "33"]);
    assert!((nll - plain).abs() < 1e-5, "{nll} with a recorder, {plain} without");
    let near =
        |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-3);
    assert_eq!((whole.0.1[1], whole.1.1[1], all.0.1[1]), (1, 200, 200));
    assert!(near(&whole.0.0, &steps.0.0) && near(&whole.1.0, &steps.1.0) && near(&whole.1.0, &all.1.0));
    let (heads, dim) = (all.0.1[0], all.0.1[2]);
    let last_rows: Vec<f32> =
        (0..heads).flat_map(|h| all.0.0[(h * 200 + 199) * dim..][..dim].to_vec()).collect();
    assert!(near(&last_rows, &whole.0.0));

    let spec = "quest:page_budget=4,block_size=16,dense_layers=0";
    let select = run(xtask("select").args(["--sparse", spec, "--tensors", path.to_str().unwrap()])).remove(0);
    let spec = spec.replace("dense_layers=0", &format!("dense_layers={last}"));
    let engine = score(&["--sparse", &spec, "--select-on", "host", "--decode-from", "199"]);
    let [alone, served] = [&select["bound"], &engine["sparse"]["bound"]].map(|bound| bound.as_f64().unwrap());
    assert!((alone - served).abs() < 1e-2 && alone < 0.999, "{alone} of the file, {served} in the engine");
}

/// Layers of the tiny Llama.
fn layers() -> u64 {
    let config = fs::read_to_string(tiny_llama().join("config.json")).unwrap();
    serde_json::from_str::<Value>(&config).unwrap()["num_hidden_layers"].as_u64().unwrap()
}

#[test]
fn a_layer_that_cannot_be_dumped_is_refused() {
    let file = ids_file(&golden_ids("prompt_3"));
    let mut score = tiny("score");
    score.arg("--ids-file").arg(file.path()).args(["--dump-qk", "never.safetensors", "--layer", "99"]);
    let said = refused(&mut score, 1);
    assert!(said.contains("--layer is 99, the model has the layers 0 to"), "{said}");
}
