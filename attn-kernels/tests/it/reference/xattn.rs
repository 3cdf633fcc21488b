//! `strided_qk`, `softmax_block_sum` and `find_blocks` against their references, and after `stride_queries`, one after the other,
//! against the XAttention policy of `sparse-select`.

use super::by_hand::assert_close;
use super::device::{assert_draw_passes, cases, gpu};
use super::layer::{ATTENTION, Layer, queries};
use super::properties::after;
use attn_kernels::cpu;
use attn_kernels::cpu::Tolerance;
use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::find_blocks::{self, Vote};
use attn_kernels::kernel::strided_qk::{self, Scorer};
use attn_kernels::kernel::xattn::Estimate;
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape, softmax_block_sum, strided_qk_broadcast};
use attn_kernels::self_test::Case;
use proptest::prelude::*;
use sparse_select::{Heads, Input, Policy, Registry, Selection, Spec};
use std::ops::Range;

use crate::usual;

/// One chunk of a sequence, behind another sequence in tables and queries.
struct Chunk {
    layer: Layer,
    q: Vec<f32>,
    estimate: Estimate,
    thresholds: Vec<f32>,
    /// Whether the kernels are those for software drivers, as far as these serve.
    software: bool,
}

/// Outputs of the kernels, one round of query blocks after the other.
struct Found {
    rounds: Vec<Range<u32>>,
    parts: Vec<Vec<f32>>,
    sums: Vec<Vec<f32>>,
    /// `[query_blocks][num_kv_heads]`
    lists: Vec<Vec<u32>>,
}

impl Chunk {
    fn new(
        shape: KvShape,
        group: u32,
        (q_len, kv_len): (u32, u32),
        causal: bool,
        (stride, block): (u32, u32),
    ) -> Self {
        let num_heads = shape.num_kv_heads * group;
        let width = num_heads * shape.head_dim;
        let layer = Layer::new(shape, &[20, kv_len], 5);
        let q = queries(q_len as usize + 3, width as usize, width as usize + 4, 5);
        let estimate = Estimate {
            num_heads,
            q_stride: width + 4,
            q_first: 3,
            q_len,
            kv_len,
            table: layer.table_of[1],
            causal,
            stride,
            block,
            norm: 1.0,
            vote: Vote::Any,
        };
        Self { layer, q, estimate, thresholds: vec![0.5; num_heads as usize], software: false }
    }

    fn scorer(&self, gpu: &Gpu) -> Scorer {
        let (Estimate { stride, block, .. }, shape) = (self.estimate, &self.layer.shape);
        if self.software && strided_qk_broadcast::serves(shape, stride, block) {
            let scores = strided_qk_broadcast::variant(shape, stride, block);
            if gpu.profile().runs(&scores) {
                return Scorer::of(scores, shape, stride);
            }
        }
        Scorer::of(strided_qk::variant(shape, stride, block), shape, stride)
    }

    /// Query blocks `step` at a time.
    fn on_gpu(&self, gpu: &Gpu, step: u32) -> Found {
        let (e, shape) = (&self.estimate, &self.layer.shape);
        let [parts_len, sums_len] = e.scratch_lens(step.min(e.query_blocks()));
        // Either limit alone.
        let rounds: Vec<_> = match e.q_len.is_multiple_of(2) {
            true => e.rounds(parts_len, usize::MAX).collect(),
            false => e.rounds(usize::MAX, step.saturating_mul(e.block) as usize).collect(),
        };
        let stride = e.key_blocks() + 3;
        let first_list = 2;
        let lists = first_list + e.query_blocks() * shape.num_kv_heads;
        let out_len = (lists * stride) as usize;
        let tables = (&self.layer.tables[..], self.layer.num_blocks());
        e.check(shape, (stride, first_list), tables, [self.q.len(), out_len]).unwrap();

        let [k, _] = self.layer.words();
        let (scorer, group) = (self.scorer(gpu), e.num_heads / shape.num_kv_heads);
        let (sum, find) = match self.software {
            true => (softmax_block_sum::software(e.stride, e.block), find_blocks::software(group)),
            false => (softmax_block_sum::variant(e.stride, e.block), find_blocks::variant(group)),
        };
        let (mut all_parts, mut all_sums, mut words) = (Vec::new(), Vec::new(), vec![77_777; out_len]);
        for blocks in &rounds {
            let len = e.stride_rows(blocks.end - blocks.start) * scorer.row_words as usize;
            let case = Case::new("queries", &scorer.queries, &e.stride_queries(blocks));
            let strides = after(gpu, &case.binding(&self.q).binding(&vec![u32::MAX; len])).swap_remove(1);
            let case = Case::new("scores", &scorer.scores, &e.strided_qk(shape, blocks)).binding(&strides);
            let case = case.binding(&k).binding(&self.layer.tables).binding(&vec![f32::NAN; parts_len]);
            let mut parts = after(gpu, &case).swap_remove(3);
            let case = Case::new("sums", &sum, &e.softmax_block_sum(blocks));
            let mut sums =
                after(gpu, &case.binding(&parts).binding(&vec![f32::NAN; sums_len])).swap_remove(1);
            let case = Case::new("lists", &find, &e.find_blocks(shape, blocks, stride, first_list));
            let case = case.binding(&sums).binding(&self.thresholds).binding(&words);
            words = after(gpu, &case).swap_remove(2);
            let [parts_len, sums_len] = e.scratch_lens(blocks.end - blocks.start);
            parts.truncate(parts_len);
            sums.truncate(sums_len);
            all_parts.push(bytemuck::cast_vec(parts));
            all_sums.push(bytemuck::cast_vec(sums));
        }
        let lists = lists_of(&words[(first_list * stride) as usize..], stride);
        Found { rounds, parts: all_parts, sums: all_sums, lists }
    }

    /// Applies `with` to the queries `[num_heads, q_len, head_dim]` and keys `[kv_heads, kv_len, head_dim]`.
    fn tensors<T>(&self, with: impl FnOnce(Heads<'_>, Heads<'_>) -> T) -> T {
        let (e, shape) = (&self.estimate, &self.layer.shape);
        let (dim, heads) = (shape.head_dim as usize, e.num_heads as usize);
        let row = |head: usize, t: usize| &self.q[(t + 3) * e.q_stride as usize + head * dim..][..dim];
        let q: Vec<f32> = (0..heads)
            .flat_map(|head| (0..e.q_len as usize).flat_map(move |t| row(head, t).to_vec()))
            .collect();
        let (kv, table) = (self.layer.kv(), &self.layer.tables[e.table as usize..]);
        let keys = (0..shape.num_kv_heads as usize).flat_map(|head| {
            (0..e.kv_len as usize).flat_map(move |t| kv.key(table, head, t).collect::<Vec<_>>())
        });
        #[expect(clippy::cast_possible_truncation, reason = "the f64 holds an f32")]
        let k: Vec<f32> = keys.map(|x| x as f32).collect();
        let q = Heads::new("q", &q, [heads, e.q_len as usize, dim]).unwrap();
        let k = Heads::new("k", &k, [shape.num_kv_heads as usize, e.kv_len as usize, dim]).unwrap();
        with(q, k)
    }

    /// Each kernel against its reference, on what the kernels before it wrote.
    fn check(&self, gpu: &Gpu, step: u32) -> Found {
        let (e, shape) = (&self.estimate, &self.layer.shape);
        let found = self.on_gpu(gpu, step);
        let rows = (e.block / e.stride) as usize;
        let part = strided_qk::part(e.block / e.stride) as usize;
        for (i, blocks) in found.rounds.iter().enumerate() {
            let what = format!("{shape:?}, {e:?}, query blocks {blocks:?}");
            let params = e.strided_qk(shape, blocks);
            let (front, stride) = (e.stride_queries(blocks).front as usize, e.stride as usize);
            let want = self.tensors(|q, k| cpu::strided_qk::strided_qk(&params, front, stride, part, &q, &k));
            // What no row sees may hold anything.
            let pairs = found.parts[i].iter().zip(&want).filter(|(_, want)| want.is_finite());
            let (got, seen): (Vec<f32>, Vec<f32>) = pairs.unzip();
            assert_close(&format!("parts, {what}"), ATTENTION, &got, &seen);

            let params = e.softmax_block_sum(blocks);
            let want = cpu::softmax_block_sum::softmax_block_sum(&params, rows, part, &found.parts[i]);
            let unwritten = |block: usize| {
                let row = block / e.key_blocks() as usize % blocks.len() + blocks.start as usize;
                e.causal && block % e.key_blocks() as usize > e.first_block() as usize + row
            };
            let got: Vec<f32> =
                found.sums[i].iter().enumerate().map(|(b, &s)| if unwritten(b) { 0.0 } else { s }).collect();
            let tolerance = Tolerance { abs: 1e-5, rel: 1e-4 };
            assert_close(&format!("sums, {what}"), tolerance, &got, &want);

            let params = e.find_blocks(shape, blocks, 0, 0);
            let thresholds: Vec<f64> = self.thresholds.iter().map(|&t| t.into()).collect();
            let want =
                cpu::find_blocks::find_blocks(&params, &got, e.num_heads as usize, &thresholds).unwrap();
            let kv_heads = shape.num_kv_heads as usize;
            let first = blocks.start as usize * kv_heads;
            assert_eq!(found.lists[first..first + want.len()], want, "{what}");
        }
        found
    }

    /// The policy's selection, `[query_blocks][num_kv_heads]`.
    fn policy(&self) -> Vec<Vec<u32>> {
        let e = &self.estimate;
        let thresholds: Vec<String> = self.thresholds.iter().map(ToString::to_string).collect();
        let text = format!(
            "xattn:stride={},block_size={},causal={},threshold={}",
            e.stride,
            e.block,
            e.causal,
            thresholds.join(":"),
        );
        let spec: Spec = text.parse().unwrap();
        let policy: Box<dyn Policy> = Registry::builtin().build(&spec).unwrap();
        let mut out = Selection::new();
        self.tensors(|q, k| policy.select_into(&Input::prefill(q, k, 0), &mut out).unwrap());
        let row = |b: usize, kv: usize| out.row(kv, b).iter().map(|i| i.get()).collect();
        (0..out.query_blocks())
            .flat_map(|b| (0..out.groups()).map(move |kv| (b, kv)))
            .map(|(b, kv)| row(b, kv))
            .collect()
    }
}

/// Lists without their counts.
fn lists_of(out: &[u32], stride: u32) -> Vec<Vec<u32>> {
    out.chunks(stride as usize).map(|list| list[1..=list[0] as usize].to_vec()).collect()
}

fn shape(num_kv_heads: u32, head_dim: u32, block_size: u32, dtype: KvDtype) -> KvShape {
    KvShape { num_kv_heads, head_dim, block_size, dtype, layout: KvLayout::Native }
}

/// Shapes, chunks and strides, each of interest at least once; in the long form more heads and blocks.
fn chunks() -> Vec<Chunk> {
    let (f16, f32) = (KvDtype::F16, KvDtype::F32);
    let mut all = vec![
        // Starts and ends inside a block and a stride.
        Chunk::new(shape(1, 40, 16, f32), 3, (203, 501), true, (8, 64)),
        Chunk::new(shape(2, 32, 4, f16), 4, (9, 400), true, (4, 64)),
        // Several tiles of rows and columns, blocks of more columns than a tile.
        Chunk::new(shape(1, 16, 64, f16), 2, (1100, 2300), true, (4, 512)),
        Chunk::new(shape(1, 24, 8, f16), 2, (70, 411), false, (8, 32)),
        Chunk::new(shape(2, 16, 32, f32), 1, (1, 1), true, (8, 128)),
        Chunk::new(shape(2, 64, 16, f16), 2, (300, 300), true, (8, 32)),
        Chunk::new(shape(1, 128, 128, f16), 1, (130, 257), false, (16, 128)),
    ];
    all.truncate(usual(5, &all).len());
    all
}

#[test]
fn selects_as_the_policy_does() {
    let Some(gpu) = gpu() else { return };
    for mut chunk in chunks() {
        for (threshold, software) in [(0.25, true), (0.8125, true), (1.0, true), (0.8125, false)] {
            chunk.software = software;
            let spread = |i: usize| threshold / (1.0 + i as f32 / 4.0);
            chunk.thresholds = (0..chunk.estimate.num_heads as usize).map(spread).collect();
            let found = chunk.check(gpu, 2);
            assert_eq!(found.lists, chunk.policy(), "{:?}, threshold {threshold}", chunk.estimate);
        }
    }
}

#[test]
fn rounds_do_not_change_the_result() {
    let Some(gpu) = gpu() else { return };
    for mut chunk in chunks() {
        chunk.software = true;
        let whole = chunk.on_gpu(gpu, u32::MAX);
        assert_eq!(whole.rounds.len(), 1);
        let cut = chunk.on_gpu(gpu, 1);
        assert_eq!(cut.rounds.len(), chunk.estimate.query_blocks() as usize);
        assert_eq!(cut.lists, whole.lists, "{:?}", chunk.estimate);
    }
}

#[test]
fn launches_out_of_range_are_refused() {
    let shape = shape(2, 64, 16, KvDtype::F16);
    let chunk = Chunk::new(shape, 2, (300, 400), true, (8, 32));
    let (lists, lens) = ((14, 0), [303 * 260 - 4, 14 * 20]);
    let check = |change: fn(&mut Estimate), lists, lens| {
        let mut estimate = chunk.estimate;
        change(&mut estimate);
        let tables = (&chunk.layer.tables[..27], chunk.layer.num_blocks());
        estimate.check(&shape, lists, tables, lens).map_err(|e| e.to_string())
    };
    assert_eq!(check(|_| {}, lists, lens), Ok(()));
    let error = |change| check(change, lists, lens).unwrap_err();
    insta::assert_snapshot!(error(|e| e.block = 40), @"xattn: block is 40, not a multiple of 16");
    insta::assert_snapshot!(error(|e| e.stride = 3), @"xattn: block is 32, not a multiple of 12");
    insta::assert_snapshot!(error(|e| e.stride = 0), @"xattn: block is 32, not a multiple of 0");
    insta::assert_snapshot!(error(|e| e.block = 96), @"xattn: strides of a block is 12, not a power of two");
    insta::assert_snapshot!(error(|e| e.q_len = 401), @"xattn: queries is 401, the limit is 400");
    insta::assert_snapshot!(error(|e| e.q_len = 0), @"xattn: queries is 0");
    insta::assert_snapshot!(error(|e| e.q_first = 4), @"xattn: end in q is 79036, the limit is 78776");
    insta::assert_snapshot!(error(|e| e.num_heads = 3), @"xattn: query heads is 3, not a multiple of 2");
    insta::assert_snapshot!(error(|e| e.table = 3), @"xattn: end in the tables of entry 0 is 28, the limit is 27");
    insta::assert_snapshot!(check(|_| {}, (13, 0), lens).unwrap_err(), @"xattn: blocks of a list is 14, the limit is 13");
    insta::assert_snapshot!(check(|_| {}, (14, 1), lens).unwrap_err(), @"xattn: u32 of lists is 294, the limit is 280");
}

proptest! {
    #![proptest_config(cases(3))]
    #[test]
    fn estimates_as_the_references_do(
        (num_kv_heads, group) in (1u32..3, 1u32..4),
        head_dim in prop::sample::select(vec![16u32, 24, 64, 80]),
        (log_page, log_stride, log_rows) in (2u32..5, 1u32..5, 2u32..5),
        (q_len, before) in (1u32..150, 0u32..200),
        causal: bool,
        software: bool,
        step in 1u32..4,
        threshold in 0.05f32..=1.0,
        dtype in prop::sample::select(vec![KvDtype::F16, KvDtype::F32, KvDtype::Fp8, KvDtype::Int8]),
    ) {
        if let Some(gpu) = gpu() {
            let block = 1 << (log_stride + log_rows);
            let shape = shape(num_kv_heads, head_dim, 1 << log_page.min(log_stride + log_rows), dtype);
            let mut chunk = Chunk::new(shape, group, (q_len, q_len + before), causal, (1 << log_stride, block));
            chunk.thresholds.fill(threshold);
            chunk.software = software;
            chunk.check(gpu, step);
        }
    }

    #[test]
    fn finds_blocks_of_any_groups(group in 1u32..9, seed: u64) {
        if let Some(gpu) = gpu() {
            assert_draw_passes(gpu, find_blocks::variant(group), seed);
            assert_draw_passes(gpu, find_blocks::software(group), seed);
        }
    }
}
