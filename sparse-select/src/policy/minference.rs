//! The vertical-slash estimate of MInference (arXiv 2407.02490): the attention of the last queries shows
//! which columns and which diagonals carry mass.

use std::collections::BTreeSet;

use kvblock::BlockSize;

use super::num_blocks;
use crate::{
    Heads, Params, Selection, SpecError, attention,
    selection::count_u32,
    topk::{top_k, union},
};

const VERTICAL_MIN: usize = 30;
const SLASH_MIN: usize = 50;

/// Parameters of the estimate; sizes in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Number of columns kept, at least 30; not read if a budget is set.
    pub vertical_size: u32,
    /// Number of diagonals kept, at least 50; not read if a budget is set.
    pub slash_size: u32,
    /// Number of last queries that the estimate uses.
    pub last_q: u32,
    /// Number of first columns that are always kept.
    pub force_vertical: u32,
    /// Number of diagonals next to the main one that are always kept.
    pub force_slash: u32,
    /// If set, replaces the sizes by this fraction of the history: 20 % of it in columns, 80 % in diagonals.
    pub adaptive_budget: Option<f64>,
}

/// The columns and diagonals of one query head, ascending. Diagonal d consists of the keys d positions before
/// each query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lines {
    /// Columns, as key positions.
    pub vertical: Vec<u32>,
    /// Diagonals, as distances.
    pub slash: Vec<u32>,
}

impl Estimate {
    pub(super) fn from_params(p: &Params<'_>) -> Result<Self, SpecError> {
        let adaptive_budget = p.optional_ratio("adaptive_budget")?;
        let size = |key| if adaptive_budget.is_some() { Ok(0) } else { p.positive(key) };
        Ok(Self {
            vertical_size: size("vertical_size")?,
            slash_size: size("slash_size")?,
            last_q: p.positive("last_q")?,
            force_vertical: p.count("force_vertical")?,
            force_slash: p.count("force_slash")?,
            adaptive_budget,
        })
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of kv_len")]
    fn sizes(&self, kv_len: usize) -> (usize, usize) {
        let (vertical, slash) = match self.adaptive_budget {
            Some(share) => {
                let budget = kv_len as f64 * share;
                ((budget * 0.2) as usize, (budget * 0.8) as usize)
            }
            None => (self.vertical_size as usize, self.slash_size as usize),
        };
        (vertical.max(VERTICAL_MIN), slash.max(SLASH_MIN))
    }

    /// Columns and diagonals for one query head. O(last_q · kv_len · head_dim).
    #[must_use]
    pub fn lines(&self, q: &Heads<'_>, head: usize, k: &Heads<'_>) -> Lines {
        let kv = q.kv_head(head, k.heads());
        let (vertical_size, slash_size) = self.sizes(k.len());
        let mut vertical = vec![0.0f64; k.len()];
        let mut slash = vec![0.0f64; k.len()];
        let first = q.len().saturating_sub(self.last_q as usize);
        for t in first..q.len() {
            let position = k.len() - q.len() + t;
            let seen = k.window(0, position + 1);
            let logits = attention::logits(q.row(head, t), &seen, kv, attention::default_scale(q.dim()));
            for (column, p) in attention::softmax(&logits).into_iter().enumerate() {
                vertical[column] += p;
                slash[position - column] += p;
            }
        }
        Lines {
            vertical: keep(&vertical, self.force_vertical, vertical_size),
            slash: keep(&slash, self.force_slash, slash_size),
        }
    }

    /// For each KV head and query block, selects every block touched by a line of any of its query heads.
    pub(super) fn select_into(&self, q: &Heads<'_>, k: &Heads<'_>, bs: BlockSize, out: &mut Selection) {
        let first = k.len() - q.len();
        let size = bs.get() as usize;
        let query_blocks: Vec<_> = (first / size..k.len().div_ceil(size))
            .map(|b| (b * size).max(first)..((b + 1) * size).min(k.len()))
            .collect();
        let visible = query_blocks.iter().map(|b| num_blocks(b.end, bs));
        out.begin_causal(num_blocks(k.len(), bs), k.heads(), visible);
        let lines: Vec<Lines> = (0..q.heads()).map(|head| self.lines(q, head, k)).collect();
        for lines in lines.chunks(q.heads() / k.heads()) {
            for positions in &query_blocks {
                let mut row = BTreeSet::new();
                for line in lines {
                    row.extend(line.touched(positions.clone(), size));
                }
                out.push_row(row);
            }
        }
    }
}

impl Lines {
    /// Blocks of `size` tokens that contain a key on a selected line for a query at one of `positions`.
    fn touched(&self, positions: core::ops::Range<usize>, size: usize) -> Vec<u32> {
        let columns = self.vertical.iter().map(|&c| c as usize).filter(|&c| c < positions.end);
        let columns = columns.map(|c| count_u32(c / size));
        let diagonals = self.slash.iter().map(|&d| d as usize).filter(|&d| d < positions.end);
        let diagonals = diagonals.flat_map(|d| {
            let (low, high) = (positions.start.saturating_sub(d), positions.end - 1 - d);
            [count_u32(low / size), count_u32(high / size)]
        });
        union(columns, diagonals)
    }
}

/// The first `forced` indices and the largest others, `size` in total.
fn keep(mass: &[f64], forced: u32, size: usize) -> Vec<u32> {
    let scores: Vec<f32> = (0u32..)
        .zip(mass)
        .map(|(i, &m)| {
            #[expect(clippy::cast_possible_truncation, reason = "scores are f32")]
            if i < forced { f32::INFINITY } else { m as f32 }
        })
        .collect();
    top_k(&scores, size)
}
