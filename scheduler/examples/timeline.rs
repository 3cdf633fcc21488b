//! A simulation drawn as a timeline: three requests, a pool that is too small for all of them, and a step of 8 tokens.
//!
//! `cargo run -p pagoda-scheduler --example timeline`
//!
//! `P8` computes 8 tokens of a prompt, `D1` decodes one, `+4` found 4 tokens in the prefix cache, `x` was preempted,
//! `$` ended.

use std::collections::BTreeMap;
use std::error::Error;

use scheduler::kvblock::{
    AttentionKind, BlockSize, KvCacheConfig, KvCacheSpec, KvDtype, LengthLimits, SeqId,
};
use scheduler::{Phase, Request, Scheduler, SchedulerConfig};

#[cfg(not(test))]
#[expect(clippy::print_stdout, reason = "the drawing")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("{}", simulate()?);
    Ok(())
}

pub(crate) fn simulate() -> Result<String, Box<dyn Error>> {
    let block_size = BlockSize::new(4).ok_or("a block has at least one token")?;
    let spec = KvCacheSpec::new(AttentionKind::FULL, block_size, 1, 64, KvDtype::F16);
    let limits = LengthLimits::new(64).max_batched_tokens(8);
    let mut scheduler =
        Scheduler::new(SchedulerConfig::new(8, 3), KvCacheConfig::uniform(9, spec, 1, limits))?;

    let mut rows: BTreeMap<SeqId, Vec<String>> = BTreeMap::new();
    for (own, len, max_tokens) in [(100, 6, 6), (200, 10, 4), (300, 3, 8)] {
        // Every prompt begins with the same four tokens.
        let seq = scheduler.add(Request::new((0..4).chain(own..own + len).collect(), max_tokens))?;
        rows.insert(seq, Vec::new());
    }
    while scheduler.has_work() {
        let plan = scheduler.step();
        // A real engine embeds and attends here; this one draws the same token for every row that samples.
        let ended = scheduler.complete(&plan, &vec![7; plan.sample_rows.len()]);
        for (seq, row) in &mut rows {
            let admitted = plan.admitted.iter().find(|admitted| admitted.seq == *seq);
            let cached = admitted.map_or(0, |admitted| admitted.cached_tokens);
            let mut cell = if cached > 0 { format!("+{cached}") } else { String::new() };
            if let Some(slice) = plan.slices.iter().find(|slice| slice.seq == *seq) {
                cell += &format!("{}{}", if slice.phase == Phase::Decode { 'D' } else { 'P' }, slice.len);
            }
            if plan.preempted.contains(seq) {
                cell += "x";
            }
            if ended.iter().any(|ended| ended.seq == *seq) {
                cell += "$";
            }
            row.push(cell);
        }
    }
    Ok(draw(&rows))
}

fn draw(rows: &BTreeMap<SeqId, Vec<String>>) -> String {
    let lines = rows.iter().map(|(seq, row)| {
        let cells: String = row.iter().map(|cell| format!("{cell:<5}|")).collect();
        format!("{seq:?} |{cells}")
    });
    lines.collect::<Vec<_>>().join("\n")
}
