//! Runs one policy on one pair of tensors, as `cargo xtask select` does.

use crate::{
    Heads, Input, Registry, SelectError, Selection, Spec, SpecError, Stage,
    certificate::selection_mass,
    digest::DigestFormat,
    measure::{Mask, density, recall},
};

/// A selection and its measures.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredSelection {
    /// The selected blocks.
    pub selection: Selection,
    /// Fraction of the visible blocks that is selected.
    pub density: f64,
    /// Fraction of the dense attention mass that the selection keeps, averaged over heads and queries.
    pub recall: f64,
    /// Attention mass certified by block digests, without reading dropped keys; the smallest over heads. Only
    /// for single queries.
    pub bound: Option<f64>,
}

impl MeasuredSelection {
    /// The selection as nested lists `[groups][query_blocks][ascending block indices]`.
    #[must_use]
    pub fn selected(&self) -> Vec<Vec<Vec<u32>>> {
        let s = &self.selection;
        let row = |g, b| s.row(g, b).iter().map(|i| i.get()).collect();
        (0..s.groups()).map(|g| (0..s.query_blocks()).map(|b| row(g, b)).collect()).collect()
    }
}

/// Why a policy could not be run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The spec is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The tensors do not match the policy.
    #[error(transparent)]
    Select(#[from] SelectError),
}

/// Runs the policy of `spec` on queries `[heads, q_len, head_dim]` and keys `[kv_heads, k_len, head_dim]`.
///
/// The queries sit at the last positions of the keys; a single query is a decode step, more are a prefill
/// chunk. For `xattn-bsa`, the keys are the history before the chunk, and nothing is masked.
///
/// ```
/// use sparse_select::{Heads, Registry, select};
///
/// // One query over 64 keys; keys 20 and 48 stand out.
/// let (query, mut keys) = ([1.0; 4], [0.0; 64 * 4]);
/// keys[20 * 4..21 * 4].fill(3.0);
/// keys[48 * 4..49 * 4].fill(-3.0);
/// let (q, k) = (Heads::new("q", &query, [1, 1, 4])?, Heads::new("k", &keys, [1, 64, 4])?);
///
/// let quest = "quest:block_size=4,page_budget=3".parse()?;
/// let outcome = select(&Registry::builtin(), &quest, q, k)?;
/// assert_eq!(outcome.selection.to_string(), "#....#.........#");
/// assert!(outcome.density < 0.2 && outcome.recall > 0.8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When the spec is invalid, or the tensors do not match it.
pub fn select(
    registry: &Registry,
    spec: &Spec,
    q: Heads<'_>,
    k: Heads<'_>,
) -> Result<MeasuredSelection, RunError> {
    let policy = registry.build(spec)?;
    let count = |n| u32::try_from(n).unwrap_or(u32::MAX);
    policy.deployment().check(policy.name(), count(q.heads()), count(q.dim()))?;
    let support = policy.support();
    let stage = if q.len() == 1 && support.decode {
        Stage::Decode
    } else {
        Stage::Prefill { chunk_idx: crate::blocks::num_blocks(k.len(), policy.block_size()) }
    };
    let mut selection = Selection::new();
    policy.select_into(&Input { stage, ..Input::decode(q, k) }, &mut selection)?;
    let mask = if support.after_history { Mask::None } else { Mask::Causal };
    let recall = recall(&selection, &q, &k, policy.block_size(), mask)?;
    let bound = if q.len() == 1 && !k.is_empty() {
        Some(selection_mass(&selection, &q, &k, policy.block_size(), DigestFormat::F32)?)
    } else {
        None
    };
    Ok(MeasuredSelection { density: density(&selection), selection, recall, bound })
}
