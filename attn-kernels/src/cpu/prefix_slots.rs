//! Reference of `prefix_slots`.

use crate::kernel::prefix_slots::PrefixSlotsParams;

/// Returns the slots of the tokens of all spans.
pub fn prefix_slots(params: &PrefixSlotsParams, spans: &[[u32; 4]], tables: &[u32], slots: &mut [u32]) {
    let size = params.block_size;
    for &[start, tokens, first, table] in spans {
        for i in 0..tokens {
            let position = start + i;
            slots[(first + i) as usize] = tables[(table + position / size) as usize] * size + position % size;
        }
    }
}
