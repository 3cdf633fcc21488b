//! Rows that are attended one by one: portion by portion, so that their partitions stay within a buffer, and chunk by chunk,
//! where their keys come to the device in turn.

use std::ops::Range;

use attn_kernels::rows::DecodeRow;

use super::keys::{Fetch, Group, Keys, Loaded};
use super::ops::Ctx;
use crate::DecoderConfig;

/// Bytes of partitions of decode rows that exist at one time.
pub(super) const PARTIAL_BYTES: usize = 64 << 20;

/// Rows that are attended alike.
pub(super) struct RowTask<'a> {
    pub(super) layer: usize,
    pub(super) rows: &'a [DecodeRow],
    /// Keys that a row attends at most.
    pub(super) max_keys: u32,
    pub(super) max_partitions: u32,
    pub(super) keys: Keys<'a>,
}

/// Rows of a task whose partitions exist at one time.
#[derive(Clone)]
pub(super) struct Portion {
    pub(super) rows: Range<usize>,
    /// Whether their keys come chunk by chunk. A chunk that a row sees nothing of leaves partials alone, but not outputs.
    pub(super) in_chunks: bool,
}

/// Keys that one dispatch attends.
#[derive(Clone, Copy)]
pub(super) struct KeyRange {
    pub(super) first: u32,
    pub(super) len: u32,
    /// Last key that any row attends, and one.
    pub(super) end: u32,
}

/// Kernels that attend rows.
pub(super) trait RowKernel {
    /// Records the attention of a portion to some of its keys.
    fn attend(&self, ctx: &mut Ctx<'_>, portion: &Portion, keys: KeyRange);

    /// Records what follows once all keys are attended: most often the reduction of partitions.
    fn reduce(&self, ctx: &mut Ctx<'_>, portion: &Portion);
}

/// Records the attention of all rows of a task.
pub(super) fn attend_rows(ctx: &mut Ctx<'_>, task: &RowTask<'_>, kernel: &impl RowKernel) {
    let portion = decode_portion(ctx.config, task.max_partitions);
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
        Keys::Ring(stream) => {
            for group in &stream.groups {
                let mut loaded = Loaded::new(ctx.kv);
                for rows in portions(group.rows(task.rows), portion) {
                    let portion = Portion { rows, in_chunks: true };
                    stream_chunks(ctx, task, kernel, &portion, InRing { group, loaded: &mut loaded });
                }
            }
        }
    }
}

/// End of the keys that rows of a task attend.
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
        kernel.attend(ctx, portion, KeyRange { first, len: chunk, end });
    }
    kernel.reduce(ctx, portion);
}

/// Rows that go through the ring together, and what it holds.
struct InRing<'a> {
    group: &'a Group,
    loaded: &'a mut Loaded,
}

/// Attends in the same way, chunk by chunk of the ring.
fn stream_chunks(
    ctx: &mut Ctx<'_>,
    task: &RowTask<'_>,
    kernel: &impl RowKernel,
    portion: &Portion,
    InRing { group, loaded }: InRing<'_>,
) {
    let end = end(task, &portion.rows);
    let seen = task.rows[portion.rows.clone()].iter().filter(|row| row.len > 0);
    let first_seen = seen.map(|row| row.first_key).min().unwrap_or(0);
    let len = group.chunk_tokens;
    for (number, first) in (0..end).step_by(len as usize).enumerate() {
        // Windows and chunks of all rows may begin later.
        if first.saturating_add(len) > first_seen {
            let (layer, pairs) = (task.layer, &ctx.inputs.stream_pairs);
            ctx.keys.fetch(ctx.pass, ctx.kv, &Fetch { layer, group, number, pairs }, loaded);
            kernel.attend(ctx, portion, KeyRange { first, len, end });
        }
    }
    kernel.reduce(ctx, portion);
}

/// Decode rows of one dispatch; a multiple of 16, for the alignment of bindings.
fn decode_portion(config: &DecoderConfig, max_partitions: u32) -> usize {
    let row = config.num_heads as usize * max_partitions as usize * partial_dim(config) as usize * 4;
    (PARTIAL_BYTES / row.max(1)).max(16) / 16 * 16
}

/// `rows` in portions of `portion`.
fn portions(rows: Range<usize>, portion: usize) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    rows.step_by(portion).map(move |start| start..(start + portion).min(end))
}

/// Elements of what attention makes of one head.
pub(super) fn partial_dim(config: &DecoderConfig) -> u32 {
    config.latent.map_or(config.head_dim, |latent| latent.kv_rank)
}
