//! `nsa_probs`, `nsa_attend`, `nsa_block_score` and `gate_sum` against their references, and scores with a top-k against the NSA
//! policy of `sparse-select`.

use super::by_hand::{assert_close, dispatch};
use super::device::{assert_draw_passes, cases, gpu};
use attn_kernels::cpu::{self, Tolerance};
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::kernel::block_digest::{self, Digest};
use attn_kernels::kernel::nsa_attend;
use attn_kernels::kernel::nsa_block_score::{self, NsaBlockScoreParams};
use attn_kernels::kernel::nsa_probs;
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sparse_select::nsa::{self, Nsa};
use sparse_select::topk::top_k;
use sparse_select::{Params, Spec};

/// Probabilities are multiples of 1/256 here: sums are exact, so ties are ties on both sides.
fn check_nsa(gpu: &Gpu, nsa: &Nsa, (kv_heads, group): (u32, u32), lens: &[u32], seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (heads, most) = (kv_heads * group, *lens.iter().max().unwrap());
    let params = NsaBlockScoreParams {
        num_heads: heads,
        num_kv_heads: kv_heads,
        prob_stride: u32::try_from(nsa.visible_compressed(most as usize)).unwrap() + 1,
        score_stride: most.div_ceil(nsa.block_size.get()) + 2,
        stride: u32::try_from(nsa.kernel_stride).unwrap(),
        init_blocks: nsa.init_blocks,
        local_blocks: nsa.recent_blocks(),
        infinity: f32::INFINITY,
        rows: u32::try_from(lens.len()).unwrap(),
    };
    let rows: Vec<[u32; 4]> = lens.iter().map(|&len| [0, len, 0, 0]).collect();
    let mut probs = vec![f32::NAN; rows.len() * (heads * params.prob_stride) as usize];
    for (i, row) in probs.chunks_mut(params.prob_stride as usize).enumerate() {
        let seen = nsa.visible_compressed(lens[i / heads as usize] as usize);
        row[..seen].fill_with(|| f32::from(rng.random_range(0..=255_u8)) / 256.0);
    }
    let len = rows.len() * (kv_heads * params.score_stride) as usize;
    let (kernel, block) = (u32::try_from(nsa.kernel_size).unwrap(), nsa.block_size.get());
    let probs_buf = gpu.upload("probs", &probs).unwrap();
    let rows_buf = gpu.upload("rows", &rows).unwrap();
    let scores = gpu.upload("scores", &vec![f32::NAN; len]).unwrap();
    let mut pass = Pass::new("nsa");
    let bindings = [(&probs_buf).into(), (&rows_buf).into(), (&scores).into()];
    let variant = nsa_block_score::variant(kernel, params.stride, block);
    dispatch(gpu, &mut pass, &variant, &params, &bindings);
    let read = pass.read(&scores, 0..len);
    let got: Vec<f32> = gpu.submit(pass).unwrap().wait().unwrap().get(read);
    let mut want = vec![f32::NAN; len];
    cpu::nsa_block_score::nsa_block_score(nsa, &params, &probs, &rows, &mut want);
    assert_close(&format!("{nsa:?}, {lens:?}"), Tolerance::EXACT, &got, &want);
    for (list, scores) in got.chunks(params.score_stride as usize).enumerate() {
        let (row, kv) = (list / kv_heads as usize, list % kv_heads as usize);
        let blocks = lens[row].div_ceil(block) as usize;
        let of_head = |head: u32| {
            let at = (row * heads as usize + head as usize) * params.prob_stride as usize;
            &probs[at..][..nsa.visible_compressed(lens[row] as usize)]
        };
        let first = u32::try_from(kv).unwrap() * group;
        let sum: Vec<f32> = (0..of_head(first).len())
            .map(|i| (first..first + group).map(|head| of_head(head)[i]).sum())
            .collect();
        let want = nsa.select_blocks(&nsa.importance(&sum, u32::try_from(blocks).unwrap()));
        assert_eq!(top_k(&scores[..blocks], nsa.selected() as usize), want, "{nsa:?}, row {row}, {kv}");
    }
}

fn nsa(text: &str) -> Nsa {
    let spec: Spec = text.parse().unwrap();
    Nsa::from_params(&Params::new("nsa", nsa::ENTRY.keys, &spec.params).unwrap()).unwrap()
}

#[test]
fn compressed_attention_selects_as_the_policy_does() {
    let Some(gpu) = gpu() else { return };
    let lens = [1, 31, 32, 47, 48, 63, 64, 65, 1000, 2049];
    check_nsa(gpu, &nsa("nsa"), (2, 4), &lens, 1);
    check_nsa(
        gpu,
        &nsa("nsa:window_size=0,kernel_size=16,kernel_stride=16,block_size=16,topk=4"),
        (1, 1),
        &lens,
        2,
    );
    check_nsa(
        gpu,
        &nsa("nsa:window_size=0,kernel_size=64,kernel_stride=8,block_size=32,topk=5,init_blocks=0"),
        (1, 2),
        &lens,
        3,
    );
}

fn shapes() -> impl Strategy<Value = KvShape> {
    let dtype = prop::sample::select(&[KvDtype::F16, KvDtype::F32, KvDtype::Fp8, KvDtype::Int8][..]);
    (1u32..3, 1u32..10, 2u32..5, dtype).prop_map(|(num_kv_heads, eighths, log_block, dtype)| {
        let (head_dim, block_size) = (8 * eighths, 1 << log_block);
        KvShape { num_kv_heads, head_dim, block_size, dtype, layout: KvLayout::Native }
    })
}

proptest! {
    #![proptest_config(cases(6))]
    #[test]
    fn compressed_keys_are_attended_as_the_reference_does(
        shape in shapes(),
        (pages, kernel) in (1u32..4, 1u32..5),
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            let stride = pages * shape.block_size;
            assert_draw_passes(gpu, block_digest::variant(&shape, Digest::Mean), seed);
            assert_draw_passes(gpu, nsa_probs::variant(&shape, kernel * stride, stride), seed);
        }
    }

    #[test]
    fn compressed_values_are_weighed_as_the_reference_does(shape in shapes(), pages in 1u32..5, seed: u64) {
        if let Some(gpu) = gpu() {
            assert_draw_passes(gpu, block_digest::of_values(&shape), seed);
            assert_draw_passes(gpu, nsa_attend::variant(&shape, pages * shape.block_size), seed);
        }
    }

    #[test]
    fn compressed_attention_scores_as_the_reference_does(
        (kernel, block) in (1usize..6, 1u32..6),
        log_stride in 0u32..5,
        topk in 3u32..9,
        heads in (1u32..3, 1u32..5),
        lens in prop::collection::vec(1u32..900, 1..4),
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            let stride = 1 << log_stride;
            let published = nsa("nsa");
            let block_size = kvblock::BlockSize::new(block << log_stride).unwrap();
            let nsa = Nsa { kernel_size: kernel * stride, kernel_stride: stride, block_size, topk, ..published };
            check_nsa(gpu, &nsa, heads, &lens, seed);
        }
    }
}
