//! Compares whole models with what Hugging Face transformers computed from them, for `doctor --models`.
//!
//! A reference is a folder with a checkpoint and `golden.safetensors`, which holds for prompts 0, 1, .. the
//! ids (`prompt_N`), the logits of the last positions (`logits_N`), the greedy tokens (`greedy_N`) and the
//! gaps between the two largest logits at each (`margins_N`).

mod served;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use safetensors::SafeTensors;
use serde::Serialize;

use crate::cli::{Cli, Command, GenerateArgs};
use crate::open_model::open_model;

/// Largest accepted error of logits with f32 KV, relative to the norm of the reference.
const F32_BAR: f64 = 2e-4;

/// Largest accepted error of a row's logits with f16 KV, relative to the norm of the reference.
const F16_BAR: f64 = 1e-2;

/// Maximum difference of the two largest logits of the reference for a near tie: another order of additions may then
/// choose the other token.
const NEAR_TIE: f32 = 1e-3;

/// One checkpoint on one adapter.
#[derive(Debug, Default, Serialize)]
pub struct Compared {
    /// The checkpoint, below the folder of references.
    pub model: String,
    /// `|logits - reference| / |reference|` with f32 KV, the largest over prompts, block sizes and chunk
    /// sizes.
    pub logits_f32: f64,
    /// Number of greedy tokens compared: in batches, after prefix hits and after preemptions.
    pub tokens: usize,
    /// Number of compared tokens that differ from the reference.
    pub wrong_tokens: usize,
    /// Number of preemptions while these were generated.
    pub preemptions: u32,
    /// Number of prompt tokens found in the prefix cache.
    pub cached_tokens: u32,
    /// Median over rows of `|logits - reference| / |reference|` with f16 KV.
    pub median_f16: f64,
    /// Largest `|logits - reference| / |reference|` of a row with f16 KV. With rounded keys, a row may choose other
    /// experts or tokens: this row and the later rows of its prompt, which attend to it, are left out.
    pub worst_f16: f64,
    /// Number of rows compared with f16 KV.
    pub rows: usize,
    /// Number of compared rows for which some layer's experts or selected tokens differ from those with f32 KV.
    pub changed_rows: usize,
    /// Why the model did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Wall time in milliseconds.
    pub ms: f64,
}

impl Compared {
    /// Whether the model agrees with the reference.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.fault.is_none()
            && self.logits_f32 <= F32_BAR
            && self.median_f16 <= F16_BAR
            && self.worst_f16 <= F16_BAR
            && self.wrong_tokens == 0
    }
}

/// A prompt and what transformers computed from it.
#[derive(Debug)]
struct ReferencePrompt {
    ids: Vec<u32>,
    /// Logits of the last positions, `[rows, vocab]`.
    logits: Vec<f32>,
    greedy: Vec<u32>,
    /// Number of greedy tokens before the first near tie.
    before_near_tie: usize,
}

/// The references for every family, which a checkout of the sources has.
///
/// # Errors
/// Fails if the sources that this program was built from are missing, as for a released program.
pub fn tiny() -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tests/fixtures");
    ensure!(
        folder.is_dir(),
        "doctor --models without DIR: {} is not there: this needs a checkout of the sources, and a program that was built in it",
        folder.display()
    );
    Ok(folder)
}

/// Compares every checkpoint in the folders below `folder` that have a reference, on the adapter `device`.
///
/// # Errors
/// If the folder has no reference. A model that does not run is a row of the result instead.
pub fn run(folder: &Path, device: &str) -> Result<Vec<Compared>> {
    let checkpoints = checkpoints(folder)?;
    if checkpoints.is_empty() {
        bail!("{}: no folder in it has a golden.safetensors", folder.display());
    }
    let row = |path: &PathBuf| {
        let start = Instant::now();
        let model = path.strip_prefix(folder).unwrap_or(path).display().to_string();
        eprintln!("{model}");
        let compared = match compare(path, device) {
            Ok(compared) => compared,
            Err(error) => Compared { fault: Some(format!("{error:#}")), ..Compared::default() },
        };
        Compared { model, ms: start.elapsed().as_secs_f64() * 1e3, ..compared }
    };
    Ok(checkpoints.iter().map(row).collect())
}

/// Lists, in order, the safetensors folders and GGUF files that lie next to a reference.
fn checkpoints(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut folders: Vec<PathBuf> = read.flatten().map(|entry| entry.path()).collect();
    folders.retain(|folder| folder.join("golden.safetensors").is_file());
    folders.sort();
    let of_folder = |folder: PathBuf| {
        let gguf = folder.join("model.gguf");
        let hf = folder.join("config.json").is_file().then_some(folder);
        hf.into_iter().chain(gguf.is_file().then_some(gguf))
    };
    Ok(folders.into_iter().flat_map(of_folder).collect())
}

fn compare(path: &Path, device: &str) -> Result<Compared> {
    let folder = if path.is_dir() { path } else { path.parent().context("a file lies in a folder")? };
    let prompts = prompts(&folder.join("golden.safetensors"))?;
    let args = |flags: &[&str]| args(path, device, flags);
    let model = open_model(&args(&[])?.engine)?;
    let mut compared = Compared::default();

    let exact = args(&["--kv-dtype", "f32", "--block-size", "16", "--chunk", "64"])?;
    let narrow = args(&["--kv-dtype", "f32", "--block-size", "4", "--chunk", "7"])?;
    let halves = args(&["--kv-dtype", "f16", "--block-size", "16", "--chunk", "64"])?;
    let exact = served::prefill(&model, &exact.engine, &prompts)?;
    let narrow = served::prefill(&model, &narrow.engine, &prompts)?;
    let halves = served::prefill(&model, &halves.engine, &prompts)?;
    for served in [&exact, &narrow] {
        for (served, prompt) in served.iter().zip(&prompts) {
            compared.logits_f32 =
                compared.logits_f32.max(relative_l2(served.last(&prompt.logits), &prompt.logits));
        }
    }
    let mut errors = Vec::new();
    for ((halves, exact), prompt) in halves.iter().zip(&exact).zip(&prompts) {
        let vocab = model.config.vocab_size as usize;
        let rows = halves.last(&prompt.logits).chunks(vocab).zip(prompt.logits.chunks(vocab));
        let rows: Vec<f64> = rows.map(|(got, want)| relative_l2(got, want)).collect();
        let changed: Vec<bool> = halves.choices.iter().zip(&exact.choices).map(|(a, b)| a != b).collect();
        let alike = changed.iter().position(|changed| *changed).unwrap_or(changed.len());
        let without_reference = changed.len().saturating_sub(rows.len());
        let of_alike = rows.iter().take(alike.saturating_sub(without_reference));
        compared.worst_f16 = of_alike.fold(compared.worst_f16, |worst, error| worst.max(*error));
        compared.rows += changed.len();
        compared.changed_rows += changed.iter().filter(|changed| **changed).count();
        errors.extend(rows);
    }
    errors.sort_by(f64::total_cmp);
    compared.median_f16 = errors.get(errors.len() / 2).copied().unwrap_or(0.0);

    for (block_size, chunk, tight) in
        [("8", "64", None), ("64", "200", None), ("4", "16", Some("recompute")), ("4", "16", Some("swap"))]
    {
        let preempt = tight.unwrap_or("recompute");
        let flags = ["--kv-dtype", "f32", "--block-size", block_size, "--chunk", chunk, "--preempt", preempt];
        served::generate(&model, &args(&flags)?, tight.is_some(), &prompts, &mut compared)?;
    }
    Ok(compared)
}

/// The arguments of `generate` as parsed from flags.
fn args(path: &Path, device: &str, flags: &[&str]) -> Result<GenerateArgs> {
    let path = path.to_str().context("a path in UTF-8")?;
    let fixed = ["pagoda", "run", "--raw", "--prompt", "", "--device", device, "--model", path];
    match Cli::try_parse_from(fixed.iter().chain(flags))?.command {
        Command::Run(args) => Ok(*args),
        other => bail!("{other:?} is not run"),
    }
}

fn prompts(path: &Path) -> Result<Vec<ReferencePrompt>> {
    let file = fs::read(path).with_context(|| path.display().to_string())?;
    let golden = SafeTensors::deserialize(&file).with_context(|| path.display().to_string())?;
    let floats = |name: String| -> Result<Vec<f32>> {
        Ok(bytemuck::pod_collect_to_vec(golden.tensor(&name).with_context(|| name)?.data()))
    };
    let ids = |name: String| -> Result<Vec<u32>> {
        let ids: Vec<i64> = bytemuck::pod_collect_to_vec(golden.tensor(&name).with_context(|| name)?.data());
        ids.into_iter().map(|id| Ok(u32::try_from(id)?)).collect()
    };
    let count = (0..).take_while(|n| golden.tensor(&format!("prompt_{n}")).is_ok()).count();
    let prompt = |n| {
        let margins = floats(format!("margins_{n}"))?;
        let greedy = ids(format!("greedy_{n}"))?;
        let before_near_tie =
            margins.iter().position(|margin| *margin < NEAR_TIE).unwrap_or(greedy.len()).min(greedy.len());
        Ok(ReferencePrompt {
            ids: ids(format!("prompt_{n}"))?,
            logits: floats(format!("logits_{n}"))?,
            greedy,
            before_near_tie,
        })
    };
    (0..count).map(prompt).collect()
}

/// `|got - want| / |want|`, Euclidean norms.
fn relative_l2(got: &[f32], want: &[f32]) -> f64 {
    let (mut error, mut length) = (0.0, 0.0);
    for (got, want) in got.iter().zip(want) {
        error += (f64::from(*got) - f64::from(*want)).powi(2);
        length += f64::from(*want).powi(2);
    }
    // A NaN counts as an infinite error.
    let relative: f64 = (error / length).sqrt();
    if relative.is_nan() { f64::INFINITY } else { relative }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_right() { "right" } else { "WRONG" };
        write!(f, "{:34} {verdict} {:8.0} ms: ", self.model, self.ms)?;
        if let Some(fault) = &self.fault {
            return write!(f, "{fault}");
        }
        let Self { logits_f32, tokens, wrong_tokens, preemptions, cached_tokens, .. } = self;
        write!(f, "logits {logits_f32:.1e}, tokens {} of {tokens} ", tokens - wrong_tokens)?;
        write!(f, "({preemptions} preemptions, {cached_tokens} cached); ")?;
        let Self { median_f16, worst_f16, changed_rows, rows, .. } = self;
        write!(
            f,
            "f16 {median_f16:.1e}, at most {worst_f16:.1e} before the {changed_rows} of {rows} rows that chose others"
        )
    }
}

#[cfg(test)]
mod tests;
