//! The logits of a prompt: one step of a decoder over a paged cache, without scheduler or engine.
//!
//! `cargo run --release -p pagoda-models --example logits -- PATH`; `cargo xtask models` lists the paths of models that are here.

use std::error::Error;
use std::sync::Arc;

use attn_kernels::gpu::{Checks, Gpu, GpuOptions};
use kvblock::{BlockId, GroupId, KvCache, KvCacheConfig, LengthLimits, SeqContent, SeqId, SlotRequest};
use models::batch::{Phase, Slice};
use models::{Checkpoint, Decoder, DecoderOptions};

const SEQ: SeqId = SeqId::new(0);
const MAX_TOKENS: u32 = 512;

#[cfg(not(test))]
#[expect(clippy::print_stdout, reason = "the likeliest tokens")]
fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("the path of a model is missing")?;
    let checkpoint = Checkpoint::open(path)?;
    let tokenizer = checkpoint.tokenizer()?.ok_or("the model has no tokenizer")?;
    let ids = tokenizer.encode("The capital of France is", true)?;
    let logits = logits(&checkpoint, &ids)?;
    let mut ranked: Vec<u32> = (0..u32::try_from(logits.len())?).collect();
    ranked.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
    for id in &ranked[..5] {
        println!("{:7.3} {:?}", logits[*id as usize], tokenizer.decode(&[*id], false)?);
    }
    Ok(())
}

/// Logits of the token after `ids`, `[vocab]`.
pub(crate) fn logits(checkpoint: &Checkpoint, ids: &[u32]) -> Result<Vec<f32>, Box<dyn Error>> {
    let gpu = Arc::new(Gpu::open(&GpuOptions::new(Checks::Off))?);
    let options = DecoderOptions::new(64, MAX_TOKENS);
    let mut decoder = Decoder::load(&gpu, &checkpoint.config()?, checkpoint.weights(), &options)?;

    // Blocks of the pool for the prompt, by group of layers: in some models windows and full attention have their own.
    let limits = LengthLimits::new(MAX_TOKENS);
    let groups = decoder.kv().plan().layout.groups.clone();
    let config = KvCacheConfig::new(decoder.kv().num_blocks(), groups, limits);
    let mut cache = KvCache::new(&config.caching(false))?;
    let content = SeqContent::new(ids, &[]);
    cache.allocate_slots(SlotRequest::new(SEQ, content, 0, u32::try_from(ids.len())?))?;
    let group = |index: usize| Ok(GroupId::new(u32::try_from(index)?));
    let groups = (0..cache.num_groups()).map(group).collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    let table = |group: &GroupId| cache.table(SEQ, *group).map(|table| table.blocks());
    let tables: Vec<&[BlockId]> = groups.iter().filter_map(table).collect();

    let slice = Slice { logits: 1, ..Slice::new(ids, 0, &tables, Phase::Prefill) };
    Ok(decoder.step(&[slice], &[])?.logits)
}
