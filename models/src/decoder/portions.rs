//! Rows that are attended one by one: in portions, so that their partitions fit into a buffer, and in chunks, if their keys come
//! to the device in turn.

use std::ops::Range;

use attn_kernels::rows::DecodeRow;
use attn_kernels::split::SplitPlanner;

use super::keys::{Keys, Stream};
use super::ops::Ctx;
use super::ring_schedule::{KeyRange, RingAttention, RingTask};
use crate::kv::KeysIn;

/// Rows that are attended in the same way.
pub(super) struct RowTask<'a> {
    pub(super) rows: &'a [DecodeRow],
    /// Maximum number of keys that a row attends.
    pub(super) max_keys: u32,
    pub(super) max_partitions: u32,
    pub(super) keys: Keys<'a>,
}

/// Rows of a task whose partitions exist at the same time.
#[derive(Clone)]
pub(super) struct Portion {
    pub(super) rows: Range<usize>,
    /// Whether the keys of these rows come in chunks. A chunk that a row does not see keeps the row's partial results,
    /// but not its output.
    pub(super) in_chunks: bool,
}

/// Kernels that attend rows one by one.
pub(super) trait RowKernel {
    /// Records the attention of a portion to a range of its keys.
    fn attend(&self, ctx: &mut Ctx<'_>, portion: &Portion, keys: KeyRange);

    /// Records the work after all keys were attended, usually the reduction of partitions.
    fn reduce(&self, ctx: &mut Ctx<'_>, portion: &Portion);
}

/// Records the attention of all rows of a task.
pub(super) fn attend_rows(ctx: &mut Ctx<'_>, task: &RowTask<'_>, kernel: &impl RowKernel) {
    let portion = ctx.splits.planner().rows_together(task.max_partitions);
    match task.keys {
        Keys::Device => {
            for rows in portions(0..task.rows.len(), portion) {
                let portion = Portion { rows, in_chunks: false };
                attend_chunks(ctx, task, kernel, &portion, u32::MAX);
            }
        }
        Keys::Slots(slots) => {
            for rows in portions(0..task.rows.len(), portion.min(slots.rows_together())) {
                let end = end(task, &rows);
                let chunk = slots.keys_together(rows.len(), end);
                attend_chunks(ctx, task, kernel, &Portion { rows, in_chunks: false }, chunk);
            }
        }
        Keys::Ring(stream) => unreachable!("{} groups are walked through", stream.groups.len()),
    }
}

/// Returns the end of the keys that rows of a task attend.
fn end(task: &RowTask<'_>, rows: &Range<usize>) -> u32 {
    let longest = task.rows[rows.clone()].iter().map(|row| row.len).max().unwrap_or(0);
    longest.min(task.max_keys)
}

fn attend_chunks(
    ctx: &mut Ctx<'_>,
    task: &RowTask<'_>,
    kernel: &impl RowKernel,
    portion: &Portion,
    chunk: u32,
) {
    let end = end(task, &portion.rows);
    for first in (0..end).step_by(chunk as usize) {
        kernel.attend(ctx, portion, KeyRange { first, len: chunk, end, at: KeysIn::Layer });
    }
    kernel.reduce(ctx, portion);
}

/// Returns the ring schedule of a task. `tiles` returns the tiles that are attended together with the rows of a ring
/// group.
pub(super) fn ring_schedule<'a, K: RowKernel>(
    planner: &SplitPlanner,
    task: &RowTask<'a>,
    kernel: &'a K,
    stream: &Stream,
    tiles: impl Fn(usize) -> Option<Box<dyn RingAttention + 'a>>,
) -> Vec<RingTask<'a>> {
    let portion = planner.rows_together(task.max_partitions);
    let mut ring_schedule = Vec::new();
    for (group, of_group) in stream.groups.iter().enumerate() {
        let first = ring_schedule.len();
        for rows in portions(of_group.rows(task.rows), portion) {
            let of = &task.rows[rows.clone()];
            let start = of.iter().map(|row| row.first_key).min().unwrap_or(0);
            let seen = start..end(task, &rows);
            let portion = Portion { rows, in_chunks: of_group.chunks.len() > 1 };
            ring_schedule
                .push(RingTask { group, attending: vec![Box::new(StreamedRows { kernel, portion, seen })] });
        }
        if let Some(tiles) = tiles(group) {
            match ring_schedule[first..].last_mut() {
                Some(task) => task.attending.push(tiles),
                None => ring_schedule.push(RingTask { group, attending: vec![tiles] }),
            }
        }
    }
    ring_schedule
}

/// A portion of rows that attend chunk by chunk.
struct StreamedRows<'a, K> {
    kernel: &'a K,
    portion: Portion,
    seen: Range<u32>,
}

impl<K: RowKernel> RingAttention for StreamedRows<'_, K> {
    fn seen(&self) -> Range<u32> {
        self.seen.clone()
    }

    fn attend(&mut self, ctx: &mut Ctx<'_>, keys: KeyRange) {
        self.kernel.attend(ctx, &self.portion, keys);
    }

    fn end(&mut self, ctx: &mut Ctx<'_>) {
        self.kernel.reduce(ctx, &self.portion);
    }
}

/// Divides `rows` into portions of up to `portion`.
fn portions(rows: Range<usize>, portion: usize) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    rows.step_by(portion).map(move |start| start..(start + portion).min(end))
}
