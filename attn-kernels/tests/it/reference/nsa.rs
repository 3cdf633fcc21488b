//! `nsa_probs`, `nsa_attend`, `nsa_block_score` and `gate_sum` against their references, and scores with a top-k against the NSA
//! policy of `sparse-select`.

use super::device::{assert_close, cases, dispatch, gpu};
use super::layer::{ATTENTION, Layer, cache_words, queries, words};
use attn_kernels::cpu::{self, Tolerance};
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::kernel::block_digest::{self, BlockDigestParams, Digest};
use attn_kernels::kernel::nsa_attend::{self, NsaAttendParams};
use attn_kernels::kernel::nsa_block_score::{self, NsaBlockScoreParams};
use attn_kernels::kernel::nsa_probs::{self, NsaProbsParams};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use attn_kernels::self_test::layer::floats;
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
    let grid = nsa_block_score::grid(&params, u32::try_from(rows.len()).unwrap());
    dispatch(gpu, &mut pass, &variant, &params, &bindings, grid);
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

/// The pages that sequences of these lengths fill, with their tokens.
fn full_pages(layer: &Layer, lens: &[u32]) -> Vec<[u32; 2]> {
    let size = layer.shape.block_size;
    let of = |(len, table): (&u32, &u32)| &layer.tables[*table as usize..][..(len / size) as usize];
    lens.iter().zip(&layer.table_of).flat_map(of).map(|block| [*block, size]).collect()
}

/// Probabilities of compressed keys of `kernel` strides of `pages` pages.
fn check_probs(gpu: &Gpu, shape: KvShape, (pages, kernel): (u32, u32), group: u32, lens: &[u32], seed: u64) {
    let (stride, heads) = (pages * shape.block_size, shape.num_kv_heads * group);
    let layer = Layer::new(shape, lens, seed);
    let touched = full_pages(&layer, lens);
    // Pages that are not full have no digests.
    let mut digests = vec![f32::NAN; Digest::Mean.pool_elements(&shape, layer.num_blocks() as usize)];
    cpu::block_digest::block_digest(&shape, Digest::Mean, &touched, &layer.k, &mut digests);
    let (width, most) = (heads * shape.head_dim, lens.iter().max().unwrap() / stride);
    let params = NsaProbsParams {
        num_heads: heads,
        num_kv_heads: shape.num_kv_heads,
        q_stride: width + 4,
        prob_stride: most + 2,
        scale: 2.0 / (shape.head_dim as f32).sqrt(),
    };
    let q = queries(lens.len(), width as usize, width as usize + 4, seed);
    let sequences = (0..).zip(lens.iter().zip(&layer.table_of));
    let rows: Vec<[u32; 4]> = sequences.map(|(row, (len, table))| [row, *len, *table, 0]).collect();
    let mut want = vec![f32::NAN; rows.len() * (heads * params.prob_stride) as usize];

    let digests = gpu.upload("digests", &words(block_digest::dtype(shape.dtype), &digests)).unwrap();
    let (q_buf, tables) = (gpu.upload("q", &q).unwrap(), gpu.upload("tables", &layer.tables).unwrap());
    let (row_buf, probs) = (gpu.upload("rows", &rows).unwrap(), gpu.upload("probs", &want).unwrap());
    let mut pass = Pass::new("nsa");
    let bindings = [(&q_buf).into(), (&digests).into(), (&tables).into(), (&row_buf).into(), (&probs).into()];
    let variant = nsa_probs::variant(&shape, kernel * stride, stride);
    let grid = nsa_probs::grid(&params, u32::try_from(rows.len()).unwrap());
    dispatch(gpu, &mut pass, &variant, &params, &bindings, grid);
    let read = pass.read(&probs, 0..probs.len());
    let got = gpu.submit(pass).unwrap().wait().unwrap().get(read);
    let sizes = [(kernel * stride) as usize, stride as usize];
    cpu::nsa_probs::nsa_probs(&layer.kv(), sizes, &params, &q, &layer.tables, &rows, &mut want);
    let what = format!("{shape:?}, {group} heads, {kernel} strides of {stride}, {lens:?}");
    assert_close(&what, Tolerance { abs: 1e-6, rel: 1e-4 }, &got, &want);
}

/// Attention to the mean values of blocks of `pages` pages, which the device makes of the cache itself.
fn check_values(gpu: &Gpu, shape: KvShape, pages: u32, group: u32, lens: &[u32], seed: u64) {
    let (block, heads) = (pages * shape.block_size, shape.num_kv_heads * group);
    let layer = Layer::new(shape, lens, seed);
    let touched = full_pages(&layer, lens);
    let most = lens.iter().max().unwrap() / block;
    let params =
        NsaAttendParams { num_heads: heads, num_kv_heads: shape.num_kv_heads, prob_stride: most + 2 };
    let sequences = (0..).zip(lens.iter().zip(&layer.table_of));
    let rows: Vec<[u32; 4]> = sequences.map(|(row, (len, table))| [row, *len, *table, 0]).collect();
    let probs: Vec<f32> =
        floats(rows.len() * (heads * params.prob_stride) as usize, seed).iter().map(|p| p.abs()).collect();
    let mut want = vec![f32::NAN; rows.len() * (heads * shape.head_dim) as usize];

    let pool = Digest::Mean.pool_len(&shape, layer.num_blocks() as usize);
    let digests = gpu.upload("digests", &vec![u32::MAX; pool]).unwrap();
    let v = gpu.upload("v", &cache_words(&shape, KvShape::v_index, &layer.v)).unwrap();
    let count = u32::try_from(touched.len()).unwrap();
    let touched = gpu.upload("touched", &[&touched[..], &[[u32::MAX, 0]]].concat()).unwrap();
    let mut pass = Pass::new("values");
    let digest = BlockDigestParams::new(shape.num_kv_heads, count);
    let bindings = [(&touched).into(), (&v).into(), (&digests).into()];
    let grid = block_digest::grid(&digest, &shape);
    dispatch(gpu, &mut pass, &block_digest::of_values(&shape), &digest, &bindings, grid);
    let (prob_buf, tables) = (gpu.upload("p", &probs).unwrap(), gpu.upload("tables", &layer.tables).unwrap());
    let (row_buf, out) = (gpu.upload("rows", &rows).unwrap(), gpu.upload("out", &want).unwrap());
    let bindings =
        [(&prob_buf).into(), (&digests).into(), (&tables).into(), (&row_buf).into(), (&out).into()];
    let grid = nsa_attend::grid(&params, u32::try_from(rows.len()).unwrap());
    dispatch(gpu, &mut pass, &nsa_attend::variant(&shape, block), &params, &bindings, grid);
    let read = pass.read(&out, 0..out.len());
    let got = gpu.submit(pass).unwrap().wait().unwrap().get(read);
    let kv = layer.kv();
    cpu::nsa_attend::nsa_attend(&kv, block as usize, &params, &probs, &layer.tables, &rows, &mut want);
    // A mean that f32 puts on the other side of a tie of f16.
    let tolerance = if shape.dtype == KvDtype::F32 { ATTENTION } else { Tolerance { abs: 2e-3, rel: 2e-3 } };
    assert_close(&format!("{shape:?}, {group} heads, blocks of {block}, {lens:?}"), tolerance, &got, &want);
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

proptest! {
    #![proptest_config(cases(6))]
    #[test]
    fn compressed_keys_are_attended_as_the_reference_does(
        (kv_heads, group) in (1u32..3, 1u32..5),
        eighths in 1u32..10,
        (log_block, pages, kernel) in (2u32..5, 1u32..4, 1u32..5),
        dtype in prop::sample::select(&[KvDtype::F16, KvDtype::F32, KvDtype::Fp8, KvDtype::Int8][..]),
        lens in prop::collection::vec(0u32..700, 1..4),
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            let (head_dim, block_size) = (8 * eighths, 1 << log_block);
            let shape = KvShape { num_kv_heads: kv_heads, head_dim, block_size, dtype, layout: KvLayout::Native };
            check_probs(gpu, shape, (pages, kernel), group, &lens, seed);
        }
    }

    #[test]
    fn compressed_values_are_weighed_as_the_reference_does(
        (kv_heads, group) in (1u32..3, 1u32..5),
        eighths in 1u32..10,
        (log_block, pages) in (2u32..5, 1u32..5),
        dtype in prop::sample::select(&[KvDtype::F16, KvDtype::F32, KvDtype::Fp8, KvDtype::Int8][..]),
        lens in prop::collection::vec(1u32..700, 1..4),
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            let (head_dim, block_size) = (8 * eighths, 1 << log_block);
            let shape = KvShape { num_kv_heads: kv_heads, head_dim, block_size, dtype, layout: KvLayout::Native };
            check_values(gpu, shape, pages, group, &lens, seed);
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
