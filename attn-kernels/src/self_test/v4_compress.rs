//! Cases of `v4_compress`.

use sparse_select::v4::compressor::Ratio;

use super::spec::SPREAD;
use super::{Case, Spec, count, filled};
use crate::cpu::{self, Tolerance, f32_of};
use crate::kernel::v4_compress::{self, V4CompressParams};
use crate::{Variant, slot};

const EPS: f32 = 1e-6;
const THETA: f64 = 160_000.0;
/// Tolerance of entries, which an RMS norm scales to a size near 1; `exp` errs by a few units in the last place.
const ENTRIES: Tolerance = Tolerance { abs: 2e-5, rel: 1e-4 };

/// Makes cases of the first entry of a sequence and of a later one, from states in blocks in reverse order.
pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (dim, rope) = (filled(variant, v4_compress::DIM) as usize, filled(variant, slot::ROPE) as usize);
    let ratio = if filled(variant, v4_compress::COFF) == 2 { Ratio::C4 } else { Ratio::C128 };
    let (r, block, width) = (ratio.tokens(), ratio.state_block_size(), ratio.coff() * dim);
    if let Some(size) = spec.size() {
        return vec![timed(variant, ratio, size.rows)];
    }
    let most = u32::try_from(640 / r).expect("some windows");
    let windows = spec.number(3, 2..=most) as usize;
    let (len, blocks) = (windows * r, (windows * r).div_ceil(block));
    // Blocks of other sequences are before those of this one.
    let table = spec.number(2, 0..=3) as usize;
    let of_sequence = (0..blocks).rev().map(|b| u32::try_from(b).expect("few blocks"));
    let tables: Vec<u32> = std::iter::repeat_n(u32::MAX, table).chain(of_sequence).collect();
    let (kv, score) = (spec.floats(len * width, 1), spec.floats(len * width, 2));
    let (ape, norm) = (spec.floats(r * width, 3), spec.floats(dim, 4));
    // Pages are longer than their tokens.
    let page = block * 2 * width + 4 * spec.number(1, 0..=3) as usize;
    let mut states = vec![f32::NAN; blocks * page];
    for p in 0..len {
        let state =
            &mut states[tables[table + p / block] as usize * page + p % block * 2 * width..][..2 * width];
        state[..width].copy_from_slice(&kv[p * width..][..width]);
        state[width..].copy_from_slice(&score[p * width..][..width]);
    }
    let (mut entries, mut angles, mut want) = (Vec::<[u32; 4]>::new(), Vec::new(), Vec::new());
    for (slot, end) in (0..).zip([r, len]) {
        let [last, table] = [end - 1, table].map(|n| u32::try_from(n).expect("few tokens"));
        entries.push([last, table, slot, 0]);
        let at = ((end - 1) / r * r) as f64;
        angles.extend((0..rope / 2).map(|pair| {
            let (sin, cos) = (at * THETA.powf(-2.0 * pair as f64 / rope as f64)).sin_cos();
            [f32_of(cos), f32_of(sin)]
        }));
        let state = (&kv[..end * width], &score[..end * width]);
        let entry = cpu::v4_compress::v4_compress(ratio, state, &ape, &norm, (EPS, THETA));
        want.extend(entry.expect("whole windows complete an entry"));
    }
    let whole = |n: usize| u32::try_from(n).expect("a few tokens");
    let [ratio, state_block, page] = [r, block, page].map(whole);
    let params = V4CompressParams { ratio, state_block, page, eps: EPS, entries: count(&entries) };
    let case = Case::new("the first entry and a later one", variant, &params)
        .binding(&states)
        .binding(&ape)
        .binding(&norm)
        .binding(&entries)
        .binding(&tables)
        .binding(&angles)
        .output(ENTRIES, &want);
    vec![case]
}

/// Makes the timed case, in which each entry has blocks of its own.
fn timed(variant: &Variant, ratio: Ratio, entries: u32) -> Case {
    let (dim, rope) = (filled(variant, v4_compress::DIM), filled(variant, slot::ROPE));
    let of_ratio = [ratio.tokens(), ratio.state_block_size(), ratio.coff()];
    let [ratio, state_block, windows] = of_ratio.map(|n| u32::try_from(n).expect("a few tokens"));
    let (width, tokens) = (windows * dim, windows * ratio);
    let (page, blocks) = (state_block * 2 * width, tokens / state_block);
    let list: Vec<[u32; 4]> = (0..entries).map(|i| [tokens - 1, i * blocks, i, 0]).collect();
    let tables: Vec<u32> = (0..entries * blocks).map(|block| block * SPREAD % (entries * blocks)).collect();
    let params = V4CompressParams { ratio, state_block, page, eps: EPS, entries };
    Case::new("entries", variant, &params)
        .costs(8.0 * f64::from(entries * tokens) * f64::from(dim), 0.0)
        .floats_of(entries * blocks * page)
        .floats_of(ratio * width)
        .floats_of(dim)
        .binding(&list)
        .binding(&tables)
        .floats_of(entries * rope)
        .floats_of(entries * dim)
}
