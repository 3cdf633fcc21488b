//! `hash_codes` of queries and `hamming_score` against their references, over ragged shapes: `retrieval` has both together, and
//! codes of keys.

use super::by_hand::dispatch;
use super::device::{assert_bits, cases, gpu};
use super::layer::Layer;
use attn_kernels::cpu;
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::kernel::hamming_score::{self, HammingScoreParams};
use attn_kernels::kernel::hash_codes::{self, HashCodesParams, HashSource};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Codes of queries, means over `group` heads: multiples of 1/32 and weights of 1/8, so that sums are exact.
fn check_queries(gpu: &Gpu, shape: KvShape, group: u32, rows: &[u32], (first, words): (u32, u32), seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let width = shape.num_kv_heads * group * shape.head_dim;
    let params = HashCodesParams {
        num_kv_heads: shape.num_kv_heads,
        entries: count(rows),
        group,
        q_stride: width + 4,
        first_channel: first,
        channels: shape.head_dim - first,
        bits: 32 * words,
        first_word: 1,
        words: words + 2,
        first_block: 0,
        num_blocks: u32::MAX,
    };
    let limit = rows.iter().max().unwrap() + 1;
    hash_codes::check(&shape, &params, rows, limit as usize).unwrap();
    let mut eighths =
        |len: u32| -> Vec<f32> { (0..len).map(|_| f32::from(rng.random_range(-8..=8_i8)) / 8.0).collect() };
    let (q, weights) = (eighths(limit * params.q_stride), eighths(params.channels * params.bits));
    let heads = params.entries * shape.num_kv_heads;
    let before = vec![77_777_u32; (heads * params.words) as usize];
    let entries = gpu.upload("rows", rows).unwrap();
    let [q_buf, weight_buf] =
        [&q, &weights].map(|data| gpu.upload("q", bytemuck::cast_slice::<_, u32>(data)).unwrap());
    let codes = gpu.upload("codes", &before).unwrap();
    let mut pass = Pass::new("hash");
    let bindings = [(&entries).into(), (&q_buf).into(), (&weight_buf).into(), (&codes).into()];
    let variant = hash_codes::variant(&shape, HashSource::Queries);
    dispatch(gpu, &mut pass, &variant, &params, &bindings);
    let read = pass.read(&codes, 0..codes.len());
    let got: Vec<u32> = gpu.submit(pass).unwrap().wait().unwrap().get(read);
    let (dim, group) = (shape.head_dim as usize, group as usize);
    for (head, code) in got.chunks(params.words as usize).enumerate() {
        let (entry, kv_head) = (head / shape.num_kv_heads as usize, head % shape.num_kv_heads as usize);
        let row = &q[rows[entry] as usize * params.q_stride as usize..][kv_head * group * dim..];
        let mean: Vec<f32> =
            (0..dim).map(|d| (0..group).map(|g| row[g * dim + d]).sum::<f32>() / group as f32).collect();
        let want = cpu::hash_codes::hash_code(&params, &mean, &weights);
        assert_eq!(code[1..=words as usize], want, "{shape:?}, {params:?}, row {entry}, head {kv_head}");
        assert_eq!([code[0], code[words as usize + 1]], [77_777; 2], "words of other parts");
    }
}

/// Scores of random codes, which are sums of integers.
fn check_scores(
    gpu: &Gpu,
    shape: KvShape,
    (pages, words): (u32, u32),
    lens: &[u32],
    params: HammingScoreParams,
) {
    let block = pages * shape.block_size;
    let layer = Layer::new(shape, lens, 3);
    let mut rng = StdRng::seed_from_u64(7);
    let mut codes = |len: u32| -> Vec<u32> { (0..len * words).map(|_| rng.random()).collect() };
    let keys = codes(layer.num_blocks() * shape.num_kv_heads * shape.block_size);
    let queries = codes(count(lens) * shape.num_kv_heads);
    let rows: Vec<[u32; 4]> =
        lens.iter().zip(&layer.table_of).map(|(len, table)| [0, *len, *table, 0]).collect();
    let stride = lens.iter().max().unwrap().div_ceil(block) + 2;
    let num_kv_heads = shape.num_kv_heads;
    let params = HammingScoreParams { num_kv_heads, score_stride: stride, rows: count(lens), ..params };
    let mut want = vec![f32::NAN; rows.len() * stride as usize];
    let [query_buf, key_buf, tables] =
        [&queries, &keys, &layer.tables].map(|words| gpu.upload("codes", words).unwrap());
    let (row_buf, scores) = (gpu.upload("rows", &rows).unwrap(), gpu.upload("scores", &want).unwrap());
    let mut pass = Pass::new("hamming");
    let bindings =
        [(&query_buf).into(), (&key_buf).into(), (&tables).into(), (&row_buf).into(), (&scores).into()];
    dispatch(gpu, &mut pass, &hamming_score::variant(&shape, block, words), &params, &bindings);
    let read = pass.read(&scores, 0..scores.len());
    let got = gpu.submit(pass).unwrap().wait().unwrap().get(read);
    let kinds = (&shape, block as usize, words as usize);
    cpu::hamming_score::hamming_score(kinds, &params, &queries, &keys, &layer.tables, &rows, &mut want);
    assert_bits(&format!("{shape:?}, blocks of {block}, {words} words, {lens:?}, {params:?}"), &got, &want);
}

fn count(items: &[u32]) -> u32 {
    u32::try_from(items.len()).unwrap()
}

proptest! {
    #![proptest_config(cases(4))]
    #[test]
    fn queries_have_the_codes_of_the_reference(
        (kv_heads, log_group) in (1u32..4, 0u32..4),
        (eighths, first) in (1u32..18).prop_flat_map(|eighths| (Just(eighths), 0..eighths)),
        words in 1u32..6,
        rows in prop::collection::vec(0u32..20, 1..12),
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            let head_dim = 8 * eighths;
            let shape = KvShape { num_kv_heads: kv_heads, head_dim, block_size: 16, dtype: KvDtype::F16, layout: KvLayout::Native };
            check_queries(gpu, shape, 1 << log_group, &rows, (8 * first, words), seed);
        }
    }

    #[test]
    fn blocks_are_scored_as_the_reference_does(
        kv_heads in 1u32..4,
        (log_page, pages, words) in (2u32..6, 1u32..5, 1u32..7),
        lens in prop::collection::vec(0u32..900, 1..4),
        (sink_tokens, recent_tokens) in (0u32..70, 0u32..70),
        (must_select, num_must) in (prop::array::uniform4(-4i32..4), 0u32..=4),
    ) {
        if let Some(gpu) = gpu() {
            let params = HammingScoreParams {
                num_kv_heads: 0, score_stride: 0, sink_tokens, recent_tokens, must_select, num_must,
                infinity: f32::INFINITY, rows: 0,
            };
            let block_size = 1 << log_page;
            let shape = KvShape { num_kv_heads: kv_heads, head_dim: 8, block_size, dtype: KvDtype::F32, layout: KvLayout::Native };
            check_scores(gpu, shape, (pages, words), &lens, params);
        }
    }
}
