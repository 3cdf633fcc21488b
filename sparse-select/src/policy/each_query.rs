//! Policies that select for each query, or for every k-th of a decoding sequence.

use kvblock::BlockSize;

use super::{Input, Stage, num_blocks};
use crate::{Heads, SelectError, Selection};

/// One query of a chunk, as a decode step.
pub(crate) struct QueryStep<'a> {
    /// Query `[heads, 1, head_dim]`.
    pub(crate) q: Heads<'a>,
    /// Keys up to the query's own position.
    pub(crate) k: Heads<'a>,
    /// Number of blocks of the keys.
    pub(crate) num_blocks: u32,
}

/// Runs a decode policy on every query: query i of a chunk is treated as the decode step at its own position,
/// so a row of the result does not depend on how the queries were split into chunks. `row` returns one
/// ascending list per group.
pub(crate) fn select_each_query(
    q: Heads<'_>,
    k: Heads<'_>,
    block_size: BlockSize,
    groups: usize,
    out: &mut Selection,
    mut row: impl FnMut(&QueryStep<'_>) -> Result<Vec<Vec<u32>>, SelectError>,
) -> Result<(), SelectError> {
    let first = k.len() - q.len();
    let mut rows = Vec::with_capacity(q.len());
    let visible = (0..q.len()).map(|t| num_blocks(first + t + 1, block_size));
    out.begin_causal(num_blocks(k.len(), block_size), groups, visible);
    for t in 0..q.len() {
        let step = QueryStep { q: q.window(t, 1), k: k.window(0, first + t + 1), num_blocks: out.visible(t) };
        rows.push(row(&step)?);
    }
    for group in 0..groups {
        for row in &rows {
            out.push_row(row[group].iter().copied());
        }
    }
    Ok(())
}

/// The last step of a decoding sequence in which a query selected blocks.
#[derive(Clone, Copy, Debug)]
pub struct Retrieved<'a> {
    /// Number of tokens of the sequence in that step.
    pub kv_len: usize,
    /// The blocks that one query of the step selected.
    pub selection: &'a Selection,
}

/// Runs a decode policy with one group on every query, like [`select_each_query`]. In decode, a query retrieves
/// blocks only if `stride` steps have passed since the last retrieval; until then, steps keep its blocks and add
/// those that have begun since. Queries of prefill all retrieve.
pub(crate) fn retrieve(
    input: &Input<'_>,
    (q, k): (Heads<'_>, Heads<'_>),
    block_size: BlockSize,
    stride: u32,
    out: &mut Selection,
    mut row: impl FnMut(&QueryStep<'_>) -> Vec<u32>,
) -> Result<(), SelectError> {
    let of_request = input.retrieved.filter(|_| input.stage == Stage::Decode);
    let blocks = |selection: &Selection| selection.row(0, 0).iter().map(|block| block.get()).collect();
    let mut last: Option<(usize, Vec<u32>)> = of_request.map(|last| (last.kv_len, blocks(last.selection)));
    select_each_query(q, k, block_size, 1, out, |step| {
        let kv_len = step.k.len();
        let kept =
            last.as_ref().filter(|(then, _)| (1..stride as usize).contains(&kv_len.saturating_sub(*then)));
        if let Some((then, blocks)) = kept {
            let begun = num_blocks(*then, block_size)..step.num_blocks;
            return Ok(vec![blocks.iter().copied().chain(begun).collect()]);
        }
        let blocks = row(step);
        last = (input.stage == Stage::Decode).then(|| (kv_len, blocks.clone()));
        Ok(vec![blocks])
    })
}
