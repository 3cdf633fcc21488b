//! `pagoda score`: runs given tokens through the model and reports how likely the model finds them.

mod dump_qk;

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context, Result, bail};
use indicatif::MultiProgress;
use models::batch::{Phase, StepOutput};
use models::{Attended, Pipeline};
use pagoda::tiers::Tiers;
use pagoda::usage::{SparseUse, TierUse};
use pagoda::{Demand, EngineOptions, Model, Sequence, StepWork, most_likely};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::cli::ScoreArgs;
use crate::ids_file;
use crate::model;
use crate::open_model::open_model;
use crate::progress::compile_line;
use crate::report::{self, Scored};
use dump_qk::Recorder;

/// Runs the command.
///
/// # Errors
/// Errors of the model, the device or a sequence.
pub fn run(args: &ScoreArgs) -> Result<()> {
    let sequences = ids_file::read(&args.ids_file)?;
    let files = [("--logits-out", &args.logits_out), ("--dump-qk", &args.dump_qk)];
    if let Some((flag, _)) = files.iter().find(|(_, file)| file.is_some() && sequences.len() > 1) {
        bail!("{flag} holds one sequence, {} has {}", args.ids_file.display(), sequences.len());
    }
    let model = open_model(&args.engine)?;
    let context = model.config.context_length as usize;
    for (index, ids) in sequences.iter().enumerate() {
        if ids.len() > context {
            bail!("sequence {index}: {} tokens, the context length is {context}", ids.len());
        }
    }
    let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
    let mut options = EngineOptions::from(&args.engine).demand(Demand::one(longest as u64));
    let recorder = match &args.dump_qk {
        Some(path) => Some((path, Recorder::new(&model.config, args.layer, args.engine.block_size)?)),
        None => None,
    };
    if let Some((_, recorder)) = &recorder {
        options.sparse = Some(recorder.policy()?);
    }
    let decoder = model::load(&options, &model)?;
    let tiers = Tiers::open(&options, &model, &decoder)?;
    let mut run = Run { options, decoder, tiers };
    for (index, ids) in sequences.iter().enumerate() {
        let scored = score(args, &mut run, ids).with_context(|| format!("sequence {index}"))?;
        print(args, &model, index, &scored)?;
    }
    recorder.map_or(Ok(()), |(path, recorder)| recorder.write(path, args.last))
}

/// The engine that computes all sequences.
struct Run {
    options: EngineOptions,
    decoder: Pipeline,
    tiers: Option<Tiers>,
}

/// Computes and scores every token; saves full blocks to the tiers, for other runs.
fn score(args: &ScoreArgs, run: &mut Run, ids: &[u32]) -> Result<Scored> {
    let Run { options, decoder, tiers } = run;
    let _line = (!args.engine.quiet).then(|| compile_line(&MultiProgress::new(), decoder.gpu()));
    let vocab = decoder.config().vocab_size as usize;
    let wanted = match &args.logits_out {
        Some(_) => args.last.map_or(ids.len(), |last| last as usize).min(ids.len()),
        None => 1,
    };
    let mut total = Total { logits: Vec::with_capacity(wanted * vocab), ..Total::default() };
    let mut sequence = Sequence::new(decoder, args.engine.chunk)?;
    if let Some(tiers) = tiers {
        sequence = sequence.saving_to(tiers, options);
    }
    sequence.extend(ids);
    for (start, end, phase) in pieces(args, sequence.chunk(), ids.len()) {
        let logits = end - start.max(ids.len() - wanted).min(end);
        let ask = StepWork { score: true, logits, certify: true, ..StepWork::nothing(phase) };
        total.add(sequence.step(end - start, ask)?);
    }
    let kv = sequence.kv_use();
    sequence.finish()?;
    if let Some(path) = &args.logits_out {
        write_logits(path, &total.logits, vocab)?;
    }
    let (top_ids, top_logprobs) = most_likely(&total.logits[total.logits.len() - vocab..], args.top as usize);
    Ok(Scored {
        tokens: u32::try_from(ids.len())?,
        mean_nll: total.mean(),
        top_ids,
        top_logprobs,
        kv,
        tiers: TierUse::of(tiers.as_ref(), decoder.first_mut())?,
        sparse: SparseUse::of(args.engine.policy().map(|sparse| &sparse.spec), total.attended.as_ref()),
    })
}

/// Steps: chunks of prefill of at most `chunk` tokens, then single tokens from `--decode-from` on.
fn pieces(args: &ScoreArgs, chunk: usize, len: usize) -> Vec<(usize, usize, Phase)> {
    let prefill = args.decode_from.map_or(len, |from| (from as usize).min(len));
    let chunks = (0..prefill).step_by(chunk).map(|at| (at, (at + chunk).min(prefill), Phase::Prefill));
    chunks.chain((prefill..len).map(|at| (at, at + 1, Phase::Decode))).collect()
}

#[derive(Default)]
struct Total {
    nll: f64,
    count: usize,
    logits: Vec<f32>,
    attended: Option<Attended>,
}

impl Total {
    fn add(&mut self, output: StepOutput) {
        for attended in output.attended.iter().flatten() {
            self.attended.get_or_insert_default().add(attended);
        }
        self.nll += output.nll.iter().map(|v| f64::from(*v)).sum::<f64>();
        self.count += output.nll.len();
        self.logits.extend(output.logits);
    }

    #[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
    fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.nll / self.count as f64)
    }
}

fn write_logits(path: &Path, logits: &[f32], vocab: usize) -> Result<()> {
    let bytes: &[u8] = bytemuck::cast_slice(logits);
    let view = TensorView::new(Dtype::F32, vec![logits.len() / vocab, vocab], bytes)?;
    let file = safetensors::serialize([("logits", view)], None::<HashMap<String, String>>)?;
    std::fs::write(path, file).with_context(|| format!("{}: cannot be written", path.display()))
}

fn print(args: &ScoreArgs, model: &Model, index: usize, scored: &Scored) -> Result<()> {
    if args.json {
        return Ok(report::json_line(&mut io::stdout().lock(), scored)?);
    }
    let mut out = io::stdout().lock();
    let mean = scored.mean_nll.map_or("-".to_string(), |nll| format!("{nll:.6}"));
    writeln!(out, "[{index}] {} tokens, mean nll {mean} nats per token", scored.tokens)?;
    if args.engine.policy().is_some() {
        writeln!(out, "  {}", scored.sparse)?;
    }
    for (id, log_prob) in scored.top_ids.iter().zip(&scored.top_logprobs) {
        let text = model.tokenizer.as_ref().map(|t| t.decode(&[*id], false)).transpose()?.unwrap_or_default();
        writeln!(out, "  {log_prob:9.5}  {id:6}  {text:?}")?;
    }
    Ok(())
}
