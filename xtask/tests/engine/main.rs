//! The engine as a user meets it: the program is run, its stdout read as JSON lines.
//!
//! What needs SmolLM2 takes minutes without a GPU, so only a part of it runs by default; `PAGODA_LONG_TESTS=1` runs all.

mod bench_page;
mod chat;
mod deployment;
mod device_lost;
mod families;
mod fleet;
mod from_disk;
mod gemma3;
mod guide;
mod habits;
mod host_weights;
mod indexed;
mod kv_events;
mod offload;
mod own_command_line;
mod random;
mod redis;
mod refusals;
mod routers;
mod ruler;
#[cfg(feature = "s3")]
mod s3;
mod scoring;
mod served;
mod server;
mod server_killed;
mod serving;
mod several_devices;
mod shared_store;
mod smollm2;
mod sparse;
mod tier_faults;
mod tiers;
mod traces;
mod trial;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use safetensors::SafeTensors;
use serde::Serialize;
use serde_json::Value;
use tempfile::NamedTempFile;

/// The first `count` of `cases` by default, all of them in the long form: the others say the same of other types, pools or flags.
fn usual<T>(count: usize, cases: &[T]) -> &[T] {
    if is_long() { cases } else { &cases[..count] }
}

/// Whether the long form of every test is asked for.
fn is_long() -> bool {
    std::env::var_os("PAGODA_LONG_TESTS").is_some()
}

/// `xtask COMMAND --json`.
fn xtask(command: &str) -> Command {
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    xtask.args([command, "--json"]);
    xtask
}

/// `xtask COMMAND --json` with the tiny Llama, which has no tokenizer.
fn tiny(command: &str) -> Command {
    let mut xtask = xtask(command);
    xtask.arg("--model").arg(tiny_llama());
    xtask
}

fn tiny_llama() -> PathBuf {
    fixture("tiny-llama")
}

/// A model that the tests of `models` have.
fn fixture(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "models", "tests", "fixtures", name].iter().collect()
}

/// Runs a command that must succeed; `generate`'s lines come in the order of prompts and samples.
#[track_caller]
fn run(command: &mut Command) -> Vec<Value> {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{command:?}: {}", text(&output.stderr));
    lines(&output.stdout)
}

/// The lines that a command printed; those of `generate` in the order of prompts and samples.
fn lines(stdout: &[u8]) -> Vec<Value> {
    let mut lines: Vec<Value> =
        text(stdout).lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    lines.sort_by_key(|line| (line["index"].as_u64(), line["sample"].as_u64()));
    lines
}

/// Runs a command that must fail with exit code `code` and print no result; returns what it said.
#[track_caller]
fn refused(command: &mut Command, code: i32) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert_eq!(status.code(), Some(code), "{command:?}: {}", text(&stderr));
    assert_eq!(text(&stdout), "", "{command:?}");
    text(&stderr).to_string()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("a list of token ids")
}

fn output_ids(lines: &[Value]) -> Vec<Vec<u32>> {
    lines.iter().map(|line| ids(&line["output_ids"])).collect()
}

/// A file for `--ids-file`.
fn ids_file(lists: &impl Serialize) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), serde_json::to_vec(lists).unwrap()).unwrap();
    file
}

/// One of the token lists `prompt_N` and `greedy_N` that transformers left beside the tiny Llama.
fn golden_ids(name: &str) -> Vec<u32> {
    golden("tiny-llama", name)
}

/// One of the token lists `prompt_N` and `greedy_N` that transformers left beside a model.
fn golden(model: &str, name: &str) -> Vec<u32> {
    let ids: Vec<i64> = golden_tensor(model, name);
    ids.into_iter().map(|id| u32::try_from(id).unwrap()).collect()
}

/// The gaps `margins_N` between the two largest logits.
fn golden_margins(model: &str, name: &str) -> Vec<f32> {
    golden_tensor(model, name)
}

fn golden_tensor<T: bytemuck::Pod>(model: &str, name: &str) -> Vec<T> {
    let file = fs::read(fixture(model).join("golden.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&file).unwrap();
    bytemuck::pod_collect_to_vec(golden.tensor(name).unwrap().data())
}

/// `N` prompts that have nothing in common.
fn prompts<const N: usize>(lengths: [usize; N]) -> [Vec<u32>; N] {
    let mut seed: u32 = 1;
    lengths.map(|length| {
        let id = |_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 25
        };
        (0..length).map(id).collect()
    })
}
