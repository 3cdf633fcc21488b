//! Reference of `block_energy`: the energies of `sparse-select`.

use std::ops::Range;

use super::f32_of;
use crate::kernel::block_energy::BlockEnergyParams;
use sparse_select::Heads;
use sparse_select::policy::flashprefill::FlashPrefill;

/// Computes the energies `[num_heads, blocks, energy_stride]` of the query blocks `blocks` against key blocks, from
/// the chunk's queries `q` and the mean keys `means` `[num_kv_heads, mean_stride, head_dim]`. A block has `block`
/// tokens. Key blocks that are not before the query block get NaN.
#[must_use]
pub fn block_energy(
    params: &BlockEnergyParams,
    block: usize,
    blocks: &Range<u32>,
    q: &Heads<'_>,
    means: &Heads<'_>,
) -> Vec<f32> {
    let mut energies = Vec::new();
    for head in 0..q.heads() {
        for index in blocks.clone().map(|index| index as usize) {
            let own = params.current as usize + index;
            let front = params.front as usize;
            let rows = (index * block).max(front) - front..((index + 1) * block - front).min(q.len());
            let found = FlashPrefill::log_energies(q, head, rows, &means.window(0, own));
            let found = found.into_iter().map(|energy| f32_of(energy * std::f64::consts::LOG2_E));
            energies.extend(found.chain(std::iter::repeat(f32::NAN)).take(params.energy_stride as usize));
        }
    }
    energies
}
