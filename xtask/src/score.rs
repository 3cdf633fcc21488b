//! `cargo xtask score`: given tokens through the model, and how likely the model finds them.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail};
use kvblock::BlockId;
use models::batch::{Phase, Slice};
use models::{Decoder, KvPool};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::cli::ScoreArgs;
use crate::ids_file;
use crate::model::Model;
use crate::report::{self, KvUse, Scored, Sparse};
use crate::tiers::{self, Tiers};

/// Runs the command.
///
/// # Errors
/// What the model, the device or a sequence is refused for.
pub fn run(args: &ScoreArgs) -> Result<()> {
    let sequences = ids_file::read(&args.ids_file)?;
    if args.logits_out.is_some() && sequences.len() > 1 {
        bail!("--logits-out holds one sequence, {} has {}", args.ids_file.display(), sequences.len());
    }
    let model = Model::open(&args.engine)?;
    let context = model.config.context_length as usize;
    for (index, ids) in sequences.iter().enumerate() {
        if ids.len() > context {
            bail!("sequence {index}: {} tokens, the context length is {context}", ids.len());
        }
    }
    let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
    let mut decoder = model.load(&args.engine, args.engine.chunk, 1, longest as u64)?;
    let mut tiers = Tiers::open(&args.engine, &model, &decoder)?;
    for (index, ids) in sequences.iter().enumerate() {
        let scored = score(args, &mut decoder, tiers.as_mut(), ids);
        let scored = scored.with_context(|| format!("sequence {index}"))?;
        print(args, &model, index, &scored)?;
    }
    Ok(())
}

/// Computes every token, since each is scored; what the blocks hold is saved for others.
fn score(
    args: &ScoreArgs,
    decoder: &mut Decoder,
    mut tiers: Option<&mut Tiers>,
    ids: &[u32],
) -> Result<Scored> {
    let block_size = decoder.kv().shape().block_size as usize;
    let needed = ids.len().div_ceil(block_size);
    // Block 0 is the null block of a pool.
    let usable = decoder.kv().num_blocks() as usize - 1;
    if needed > usable {
        bail!("{} tokens need {needed} KV blocks of {block_size}, the pool has {usable}", ids.len());
    }
    let table: Vec<BlockId> =
        (1..=needed).map(|i| Ok(BlockId::new(u32::try_from(i)?))).collect::<Result<_>>()?;
    let hashes = tiers::block_hashes(&args.engine, ids);
    let vocab = decoder.config().vocab_size as usize;
    let wanted = match &args.logits_out {
        Some(_) => args.last.map_or(ids.len(), |last| last as usize).min(ids.len()),
        None => 1,
    };
    let mut total = Total { nll: 0.0, count: 0, logits: Vec::with_capacity(wanted * vocab) };
    for (start, end, phase) in pieces(args, ids.len()) {
        let slice = Slice {
            tokens: &ids[start..end],
            first: u32::try_from(start)?,
            table: &table,
            phase,
            targets: &ids[start + 1..(end + 1).min(ids.len())],
            logits: end - start.max(ids.len() - wanted).min(end),
        };
        total.add(decoder.step(&[slice], &[])?);
        if let Some(tiers) = &mut tiers {
            let filled = start / block_size..end / block_size;
            let blocks = hashes[filled.clone()].iter().copied().zip(table[filled].iter().copied());
            tiers.save(decoder, &blocks.collect::<Vec<_>>())?;
        }
    }
    if let Some(tiers) = &mut tiers {
        tiers.settle(decoder)?;
    }
    if let Some(path) = &args.logits_out {
        write_logits(path, &total.logits, vocab)?;
    }
    let (top_ids, top_logprobs) = top(&total.logits[total.logits.len() - vocab..], args.top as usize);
    let bytes = KvPool::block_bytes(decoder.kv().shape(), decoder.config().num_layers);
    let blocks = u32::try_from(needed)?;
    Ok(Scored {
        tokens: u32::try_from(ids.len())?,
        mean_nll: total.mean(),
        top_ids,
        top_logprobs,
        kv: BTreeMap::from([("full".into(), KvUse { blocks, bytes: u64::from(blocks) * bytes })]),
        tiers: tiers.map(|tiers| tiers.report()).unwrap_or_default(),
        sparse: Sparse { policy: "full".into(), density: 1.0, bound: None },
    })
}

/// Steps: chunks of prefill, then single tokens from `--decode-from` on.
fn pieces(args: &ScoreArgs, len: usize) -> Vec<(usize, usize, Phase)> {
    let prefill = args.decode_from.map_or(len, |from| (from as usize).min(len));
    let chunk = args.engine.chunk as usize;
    let chunks = (0..prefill).step_by(chunk).map(|at| (at, (at + chunk).min(prefill), Phase::Prefill));
    chunks.chain((prefill..len).map(|at| (at, at + 1, Phase::Decode))).collect()
}

struct Total {
    nll: f64,
    count: usize,
    logits: Vec<f32>,
}

impl Total {
    fn add(&mut self, output: models::batch::StepOutput) {
        self.nll += output.nll.iter().map(|v| f64::from(*v)).sum::<f64>();
        self.count += output.nll.len();
        self.logits.extend(output.logits);
    }

    #[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
    fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.nll / self.count as f64)
    }
}

/// The `n` likeliest ids and their log probabilities; ties go to the lower id.
fn top(logits: &[f32], n: usize) -> (Vec<u32>, Vec<f32>) {
    let mut order: Vec<u32> = (0..).take(logits.len()).collect();
    order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
    order.truncate(n);
    let most = f64::from(logits[order[0] as usize]);
    let sum: f64 = logits.iter().map(|v| (f64::from(*v) - most).exp()).sum();
    #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
    let log_prob = |id: &u32| (f64::from(logits[*id as usize]) - most - sum.ln()) as f32;
    let log_probs = order.iter().map(log_prob).collect();
    (order, log_probs)
}

fn write_logits(path: &Path, logits: &[f32], vocab: usize) -> Result<()> {
    let bytes: &[u8] = bytemuck::cast_slice(logits);
    let view = TensorView::new(Dtype::F32, vec![logits.len() / vocab, vocab], bytes)?;
    let file = safetensors::serialize([("logits", view)], None::<HashMap<String, String>>)?;
    std::fs::write(path, file).with_context(|| format!("{}: cannot be written", path.display()))
}

#[expect(clippy::print_stdout, reason = "the command's result")]
fn print(args: &ScoreArgs, model: &Model, index: usize, scored: &Scored) -> Result<()> {
    if args.json {
        return Ok(report::json_line(&mut io::stdout().lock(), scored)?);
    }
    let mean = scored.mean_nll.map_or("-".to_string(), |nll| format!("{nll:.6}"));
    println!("[{index}] {} tokens, mean nll {mean} nats a token", scored.tokens);
    for (id, log_prob) in scored.top_ids.iter().zip(&scored.top_logprobs) {
        let text = model.tokenizer.as_ref().map(|t| t.decode(&[*id], false)).transpose()?.unwrap_or_default();
        println!("  {log_prob:9.5}  {id:6}  {text:?}");
    }
    Ok(())
}
