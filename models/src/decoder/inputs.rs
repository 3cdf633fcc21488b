//! The batch as the device sees it: flat lists, written once a step.

use std::ops::Range;

use attn_kernels::gpu::{Buf, Gpu};
use attn_kernels::kernel::paged_decode::PARTITION;
use attn_kernels::kernel::paged_prefill::Tile;

use super::DecoderOptions;
use crate::batch::{Phase, Sample, Slice};
use crate::kernel::sample::Spec;
use crate::{DecoderConfig, ModelError};

/// Device copies of the lists of a [`Plan`].
#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) tokens: Buf<u32>,
    pub(super) cs: Buf<[f32; 2]>,
    pub(super) slots: Buf<i32>,
    pub(super) tables: Buf<u32>,
    pub(super) decode_rows: Buf<[u32; 4]>,
    pub(super) tiles: Buf<Tile>,
    /// Rows whose logits are wanted: scored rows, then sampled rows.
    pub(super) gather: Buf<u32>,
    pub(super) targets: Buf<u32>,
    pub(super) specs: Buf<Spec>,
}

/// How rows of prefills are attended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Prefill {
    /// One by one, by the decode kernel.
    Rows,
    /// In tiles of at most this many rows.
    Tiles(u32),
}

/// One step, laid out.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) rows: u32,
    /// Leading rows that belong to decode slices; all that follow belong to prefills.
    pub(super) decode_until: u32,
    /// Longest KV of any row.
    pub(super) longest: u32,
    /// Partitions of the longest decode row.
    pub(super) max_partitions: u32,
    pub(super) tokens: Vec<u32>,
    pub(super) cs: Vec<[f32; 2]>,
    pub(super) slots: Vec<i32>,
    pub(super) tables: Vec<u32>,
    pub(super) decode_rows: Vec<[u32; 4]>,
    pub(super) tiles: Vec<Tile>,
    pub(super) gather: Vec<u32>,
    /// Targets of the scored rows; `None` where only logits are wanted.
    pub(super) scored: Vec<Option<u32>>,
    /// Scored rows whose logits are handed back, ascending.
    pub(super) wanted: Vec<Range<usize>>,
    pub(super) specs: Vec<Spec>,
}

/// Lays `slices` out.
pub(super) fn plan(
    config: &DecoderConfig,
    options: &DecoderOptions,
    slices: &[Slice<'_>],
    samples: &[Sample],
    prefill: Prefill,
) -> Result<Plan, ModelError> {
    let mut plan = Plan::default();
    let turns = config.rope.inv_freq();
    let factor = config.rope.attention_factor();
    let mut last_rows = Vec::with_capacity(slices.len());
    for slice in slices {
        let table = u32_of(plan.tables.len());
        plan.tables.extend(slice.table.iter().map(|b| b.get()));
        push_rows(&mut plan, slice, table, prefill);
        for (position, id) in (slice.first..).zip(slice.tokens) {
            if *id >= config.vocab_size {
                return Err(ModelError::Token { id: *id, position, vocab: config.vocab_size });
            }
            plan.tokens.push(*id);
            plan.slots.push(slot(slice, position, options.block_size));
            plan.cs.extend(turns.iter().map(|turn| {
                let (sin, cos) = (f64::from(position) * turn).sin_cos();
                [cos * factor, sin * factor].map(narrow)
            }));
        }
        push_scored(&mut plan, slice);
        plan.rows += u32_of(slice.tokens.len());
        if slice.phase == Phase::Decode {
            // A decode slice behind a prefill takes the prefill's rows along: exact is always right.
            plan.decode_until = plan.rows;
        }
        last_rows.push(plan.rows - 1);
        plan.longest = plan.longest.max(slice.first + u32_of(slice.tokens.len()));
    }
    plan.gather.extend(samples.iter().map(|s| last_rows[s.slice]));
    plan.specs.extend(samples.iter().map(|s| s.spec));
    assert!(plan.rows <= options.max_rows, "{} rows in a step of at most {}", plan.rows, options.max_rows);
    let most = options.max_seqs as usize;
    assert!(samples.len() <= most, "{} samples in a step of at most {most}", samples.len());
    Ok(plan)
}

/// Work items of attention.
fn push_rows(plan: &mut Plan, slice: &Slice<'_>, table: u32, prefill: Prefill) {
    let rows = u32_of(slice.tokens.len());
    let tile = match prefill {
        Prefill::Tiles(rows) if slice.phase == Phase::Prefill => rows,
        _ => {
            for i in 0..rows {
                let len = slice.first + i + 1;
                plan.decode_rows.push([plan.rows + i, len, table, 0]);
                plan.max_partitions = plan.max_partitions.max(len.div_ceil(PARTITION));
            }
            return;
        }
    };
    for i in (0..rows).step_by(tile as usize) {
        plan.tiles.push(Tile {
            row: plan.rows + i,
            rows: tile.min(rows - i),
            position: slice.first + i,
            table,
            ..Tile::default()
        });
    }
}

/// Rows whose logits are wanted.
fn push_scored(plan: &mut Plan, slice: &Slice<'_>) {
    let rows = slice.tokens.len();
    let scored = if slice.logits > 0 { rows } else { slice.targets.len() };
    for i in 0..scored {
        plan.gather.push(plan.rows + u32_of(i));
        plan.scored.push(slice.targets.get(i).copied());
    }
    if slice.logits > 0 {
        let end = plan.scored.len();
        plan.wanted.push(end - slice.logits.min(rows)..end);
    }
}

fn slot(slice: &Slice<'_>, position: u32, block_size: u32) -> i32 {
    let block = slice.table[(position / block_size) as usize].get();
    i32::try_from(block * block_size + position % block_size).expect("a pool has under 2^31 slots")
}

#[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
fn narrow(v: f64) -> f32 {
    v as f32
}

fn u32_of(n: usize) -> u32 {
    u32::try_from(n).expect("lists of a step fit in 32 bits")
}

impl Inputs {
    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
    ) -> Result<Self, ModelError> {
        let (rows, seqs) = (options.max_rows as usize, options.max_seqs as usize);
        let pairs = config.rope.inv_freq().len();
        // Portions of the gather and target lists are bound at aligned offsets: one more portion never overruns.
        let lists = rows + seqs + super::HEAD_ROWS;
        Ok(Self {
            tokens: gpu.buffer("tokens", rows)?,
            cs: gpu.buffer("cs", rows * pairs)?,
            slots: gpu.buffer("slots", rows)?,
            tables: gpu.buffer("tables", 1024)?,
            decode_rows: gpu.buffer("decode_rows", rows)?,
            tiles: gpu.buffer("tiles", rows)?,
            gather: gpu.buffer("gather", lists)?,
            targets: gpu.buffer("targets", lists)?,
            specs: gpu.buffer("specs", seqs)?,
        })
    }

    pub(super) fn write(&mut self, gpu: &Gpu, plan: &Plan) -> Result<(), ModelError> {
        if self.tables.len() < plan.tables.len() {
            self.tables = gpu.buffer("tables", plan.tables.len().next_power_of_two())?;
        }
        gpu.write(&self.tokens, 0, &plan.tokens);
        gpu.write(&self.cs, 0, &plan.cs);
        gpu.write(&self.slots, 0, &plan.slots);
        gpu.write(&self.tables, 0, &plan.tables);
        gpu.write(&self.decode_rows, 0, &plan.decode_rows);
        gpu.write(&self.tiles, 0, &plan.tiles);
        gpu.write(&self.gather, 0, &plan.gather);
        let targets: Vec<u32> = plan.scored.iter().map(|t| t.unwrap_or(0)).collect();
        gpu.write(&self.targets, 0, &targets);
        gpu.write(&self.specs, 0, &plan.specs);
        Ok(())
    }
}
