//! `v4_compress` against the compressor of `sparse-select`.

use super::device::{assert_close, cases, dispatch, gpu};
use attn_kernels::cpu::{self, Tolerance};
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::kernel::v4_compress::{self, EntryShape, V4CompressParams};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use sparse_select::v4::compressor::{ROPE_DIM, Ratio};

const EPS: f32 = 1e-6;
const THETA: f64 = 160_000.0;
/// Entries are normed to size 1; `exp` errs by a few units in the last place.
const ENTRIES: Tolerance = Tolerance { abs: 2e-5, rel: 1e-4 };

/// The entries that sequences of these lengths complete last, of states in scattered blocks.
fn check(gpu: &Gpu, ratio: Ratio, dim: usize, lens: &[usize], seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (width, r, state_block) = (ratio.coff() * dim, ratio.tokens(), ratio.state_block_size());
    let blocks: usize = lens.iter().map(|len| len.div_ceil(state_block)).sum();
    let mut free: Vec<u32> = (0..u32::try_from(blocks + 2).unwrap()).collect();
    free.shuffle(&mut rng);
    let mut random =
        |len: usize, size: f32| -> Vec<f32> { (0..len).map(|_| rng.random_range(-size..size)).collect() };
    let ape = random(r * width, 1.0);
    let norm = random(dim, 2.0);
    // Pages may be longer than their tokens.
    let page = state_block * 2 * width + dim;
    let mut state = vec![f32::NAN; free.len() * page];
    let (mut tables, mut entries, mut angles, mut want) = (vec![], vec![], vec![], vec![]);
    for (i, &len) in lens.iter().enumerate() {
        let table = tables.len();
        tables.extend(free.drain(..len.div_ceil(state_block)));
        let (kv, score) = (random(len * width, 1.0), random(len * width, 3.0));
        for p in 0..len {
            let block = tables[table + p / state_block] as usize;
            let token = &mut state[block * page + p % state_block * 2 * width..][..2 * width];
            token[..width].copy_from_slice(&kv[p * width..][..width]);
            token[width..].copy_from_slice(&score[p * width..][..width]);
        }
        let slot = lens.len() - 1 - i;
        entries.push([len - 1, table, slot, 0].map(|n| u32::try_from(n).unwrap()));
        let at = ((len - 1) / r * r) as f64;
        angles.extend((0..ROPE_DIM / 2).map(|pair| {
            let (sin, cos) = (at * THETA.powf(-2.0 * pair as f64 / ROPE_DIM as f64)).sin_cos();
            #[expect(clippy::cast_possible_truncation, reason = "the kernel takes f32")]
            [cos as f32, sin as f32]
        }));
        let entry = cpu::v4_compress::v4_compress(ratio, (&kv, &score), &ape, &norm, (EPS, THETA));
        want.insert(0, entry.expect("the length completes an entry"));
    }
    let params = V4CompressParams {
        ratio: u32::try_from(r).unwrap(),
        state_block: u32::try_from(state_block).unwrap(),
        page: u32::try_from(page).unwrap(),
        eps: EPS,
    };
    let [dim_u32, rope, windows] = [dim, ROPE_DIM, ratio.coff()].map(|size| u32::try_from(size).unwrap());
    let shape = EntryShape { dim: dim_u32, rope, windows };
    let floats = [&state, &ape, &norm].map(|data| gpu.upload("state", data).unwrap());
    let entry_buf = gpu.upload("entries", &entries).unwrap();
    let tables = gpu.upload("tables", &tables).unwrap();
    let angles = gpu.upload("angles", &angles).unwrap();
    let out = gpu.upload("out", &vec![f32::NAN; lens.len() * dim]).unwrap();
    let mut pass = Pass::new("compress");
    let mut bindings: Vec<_> = floats.iter().map(Into::into).collect();
    bindings.extend([(&entry_buf).into(), (&tables).into(), (&angles).into(), (&out).into()]);
    let variant = v4_compress::variant(&shape);
    let grid = v4_compress::grid(u32::try_from(lens.len()).unwrap());
    dispatch(gpu, &mut pass, &variant, &params, &bindings, grid);
    let read = pass.read(&out, 0..out.len());
    let got: Vec<f32> = gpu.submit(pass).unwrap().wait().unwrap().get(read);
    assert_close(&format!("{ratio:?}, {dim} channels, {lens:?}"), ENTRIES, &got, &want.concat());
}

#[test]
fn entries_of_both_ratios() {
    let Some(gpu) = gpu() else { return };
    check(gpu, Ratio::C4, 512, &[4, 8, 12, 400], 1);
    check(gpu, Ratio::C4, 128, &[4, 1024], 2);
    check(gpu, Ratio::C128, 512, &[128, 256], 3);
}

proptest! {
    #![proptest_config(cases(4))]
    #[test]
    fn compresses_as_the_reference_does(
        large: bool,
        dim in prop::sample::select(vec![64usize, 66, 130, 512]),
        entries in prop::collection::vec(1usize..6, 1..4),
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            let ratio = if large { Ratio::C128 } else { Ratio::C4 };
            let lens: Vec<_> = entries.into_iter().map(|n| n * ratio.tokens()).collect();
            check(gpu, ratio, dim, &lens, seed);
        }
    }
}
