//! `block_digest`, `block_score` and `top_k` one after the other: digests and scores against their references, and the
//! blocks they select against the policies of `sparse-select`.

use super::by_hand::assert_close;
use super::device::{cases, gpu};
use super::layer::{Layer, SHAPES, queries, shape_of, shapes, values};
use super::properties::after;
use attn_kernels::cpu::{self, Tolerance};
use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::block_digest::{self, BlockDigestParams, Digest, dtype};
use attn_kernels::kernel::block_score::{self, BlockScoreParams};
use attn_kernels::kernel::top_k::{self, Output, TopKParams};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use attn_kernels::self_test::Case;
use proptest::prelude::*;
use sparse_select::digest::{DigestFormat, MinMax};
use sparse_select::policy::{esa, gsa_ucm, quest};
use sparse_select::{Heads, Input, Params, Policy, Selection};

use crate::usual;

/// Scores of some hundred terms of size 4, in f32.
const SCORES: Tolerance = Tolerance { abs: 1e-4, rel: 1e-5 };
const MEANS: Tolerance = Tolerance { abs: 1e-6, rel: 1e-6 };

/// Sequences to select for, one row each.
struct Select {
    layer: Layer,
    num_heads: u32,
    select_block: u32,
    lens: Vec<u32>,
    rows: Vec<[u32; 4]>,
    q_stride: u32,
    q: Vec<f32>,
}

/// Outputs of the kernels.
struct Selected {
    digests: Vec<f32>,
    scores: Vec<f32>,
    /// A list of every row and KV head.
    lists: Vec<Vec<u32>>,
}

impl Select {
    /// Keys and queries are multiples of 1/8 and 1/2: scores are then exact in f32, so that ties are ties on both sides.
    fn new(shape: KvShape, num_heads: u32, pages: u32, lens: &[u32], gap: u32, seed: u64) -> Self {
        let mut layer = Layer::new(shape, lens, seed);
        layer.k.iter_mut().for_each(|x| *x = (*x * 8.0).round() / 8.0);
        let width = num_heads * shape.head_dim;
        let q_stride = width + gap;
        let mut q = queries(lens.len(), width as usize, q_stride as usize, seed);
        q.iter_mut().for_each(|x| *x = (*x * 2.0).round() / 2.0);
        let last = u32::try_from(lens.len()).unwrap() - 1;
        let row = |(i, (len, table)): (u32, (&u32, &u32))| [last - i, *len, *table, 0];
        let rows = (0..).zip(lens.iter().zip(&layer.table_of)).map(row).collect();
        let select_block = pages * shape.block_size;
        Self { layer, num_heads, select_block, lens: lens.into(), rows, q_stride, q }
    }

    fn blocks(&self) -> u32 {
        self.lens.iter().map(|len| len.div_ceil(self.select_block)).max().unwrap()
    }

    /// Parameters that select for each KV head, or once for all.
    fn params(&self, shared: bool) -> BlockScoreParams {
        let num_kv_heads = self.layer.shape.num_kv_heads;
        BlockScoreParams {
            num_heads: self.num_heads,
            num_kv_heads,
            q_stride: self.q_stride,
            heads_per_set: if shared { self.num_heads } else { self.num_heads / num_kv_heads },
            score_stride: self.blocks() + 5,
            rows: u32::try_from(self.rows.len()).unwrap(),
            ..BlockScoreParams::default()
        }
    }

    fn on_gpu(
        &self,
        gpu: &Gpu,
        digest: Digest,
        params: &BlockScoreParams,
        k_of: impl Fn(usize) -> u32,
    ) -> Selected {
        let (shape, rows) = (&self.layer.shape, params.rows);
        let touched = self.touched();
        block_digest::check(shape, &touched, self.num_blocks()).unwrap();
        let digest_params = BlockDigestParams::new(shape.num_kv_heads, u32::try_from(touched.len()).unwrap());
        let [k, _] = self.layer.words();
        let digests = Case::new("digests", &block_digest::variant(shape, digest), &digest_params)
            .binding(&touched)
            .binding(&k)
            .binding(&vec![u32::MAX; digest.pool_len(shape, self.num_blocks() as usize)]);
        let digests = after(gpu, &digests).swap_remove(2);

        let variant = block_score::variant(shape, self.num_heads, digest, self.select_block);
        let scores = Case::new("scores", &variant, params)
            .binding(&self.q)
            .binding(&digests)
            .binding(&self.layer.tables)
            .binding(&self.rows)
            .binding(&vec![f32::NAN; block_score::scores_len(params, rows as usize)]);
        let scores = after(gpu, &scores).swap_remove(4);

        let sets = params.num_heads / params.heads_per_set;
        let top_row = |i| {
            let row = (i / sets) as usize;
            [i * params.score_stride, self.lens[row].div_ceil(self.select_block), k_of(row), 0]
        };
        let copies = shape.num_kv_heads / sets;
        let top = TopKParams { rows: rows * sets, out_stride: params.score_stride + 1, copies, page_size: 1 };
        let lists = Case::new("lists", &top_k::variant(Output::List, gpu.profile().top_k_level()), &top)
            .binding(&scores)
            .binding(&(0..top.rows).map(top_row).collect::<Vec<[u32; 4]>>())
            .binding(&self.layer.tables)
            .binding(&vec![u32::MAX; (top.rows * copies * top.out_stride) as usize]);
        let lists = after(gpu, &lists).swap_remove(3);
        let list = |list: &[u32]| list[1..=list[0] as usize].to_vec();
        Selected {
            digests: values(dtype(shape.dtype), &digests),
            scores: bytemuck::cast_vec(scores),
            lists: lists.chunks(top.out_stride as usize).map(list).collect(),
        }
    }

    fn num_blocks(&self) -> u32 {
        self.layer.num_blocks()
    }

    /// Every page of every sequence with its tokens.
    fn touched(&self) -> Vec<[u32; 2]> {
        let size = self.layer.shape.block_size;
        let of_row = |row: &[u32; 4]| {
            let [_, len, table, _] = *row;
            let tables = &self.layer.tables;
            (0..len.div_ceil(size))
                .map(move |page| [tables[(table + page) as usize], size.min(len - page * size)])
        };
        self.rows.iter().flat_map(of_row).collect()
    }

    /// Digests and scores are those of the references.
    fn check(&self, digest: Digest, params: &BlockScoreParams, got: &Selected) {
        let shape = &self.layer.shape;
        let what =
            format!("{shape:?}, {digest:?}, blocks of {}, {params:?}, {:?}", self.select_block, self.lens);
        let mut digests = vec![f32::NAN; got.digests.len()];
        cpu::block_digest::block_digest(shape, digest, &self.touched(), &self.layer.k, &mut digests);
        let tolerance = if digest == Digest::MinMax { Tolerance::EXACT } else { MEANS };
        assert_close(&format!("digests, {what}"), tolerance, &got.digests, &digests);
        let mut scores = vec![f32::NAN; got.scores.len()];
        let kind = (digest, self.select_block as usize);
        cpu::block_score::block_score(
            &self.layer.kv(),
            kind,
            params,
            &self.q,
            &self.layer.tables,
            &self.rows,
            &mut scores,
        );
        assert_close(&format!("scores, {what}"), SCORES, &got.scores, &scores);
    }

    /// Query `[num_heads, 1, head_dim]` and keys `[kv_heads, len, head_dim]` of a row.
    fn tensors(&self, row: usize) -> (Vec<f32>, Vec<f32>) {
        let [at, len, table, _] = self.rows[row].map(|n| n as usize);
        let width = (self.num_heads * self.layer.shape.head_dim) as usize;
        let (kv, table) = (self.layer.kv(), &self.layer.tables[table..]);
        let keys = (0..self.layer.shape.num_kv_heads as usize)
            .flat_map(|head| (0..len).flat_map(move |t| kv.key(table, head, t).collect::<Vec<_>>()));
        #[expect(clippy::cast_possible_truncation, reason = "the f64 holds an f32")]
        let keys = keys.map(|x| x as f32).collect();
        (self.q[at * self.q_stride as usize..][..width].to_vec(), keys)
    }

    /// Applies `select` to the query and keys of a row.
    fn oracle<T>(&self, row: usize, select: impl FnOnce(Heads<'_>, Heads<'_>) -> T) -> T {
        let (q, k) = self.tensors(row);
        let (dim, len) = (self.layer.shape.head_dim as usize, self.lens[row] as usize);
        let q = Heads::new("q", &q, [self.num_heads as usize, 1, dim]).unwrap();
        let k = Heads::new("k", &k, [self.layer.shape.num_kv_heads as usize, len, dim]).unwrap();
        select(q, k)
    }

    /// Digest format of the kernels.
    fn format(&self) -> DigestFormat {
        match dtype(self.layer.shape.dtype) {
            KvDtype::F32 => DigestFormat::F32,
            _ => DigestFormat::F16 { page: kvblock::BlockSize::new(self.layer.shape.block_size).unwrap() },
        }
    }

    fn check_quest(&self, gpu: &Gpu, pages: u32) {
        let params = self.params(false);
        let got = self.on_gpu(gpu, Digest::MinMax, &params, |_| pages);
        self.check(Digest::MinMax, &params, &got);
        let kv_heads = self.layer.shape.num_kv_heads as usize;
        for row in (0..self.lens.len()).filter(|&row| self.lens[row] > 0) {
            for kv in 0..kv_heads {
                let want = self.oracle(row, |q, k| {
                    let size = kvblock::BlockSize::new(self.select_block).unwrap();
                    quest::select_pages(&q, kv, kv_heads, &MinMax::of(&k, size, self.format()), pages)
                });
                assert_eq!(got.lists[row * kv_heads + kv], want, "{:?}, row {row}, {kv}", self.layer.shape);
            }
        }
    }

    /// ESA scores by mean keys too, its windows count partial blocks.
    fn check_esa(&self, gpu: &Gpu) {
        let text =
            format!("esa:init_window_sz=1,local_window_sz=2,min_blocks=1,block_size={}", self.select_block);
        let spec: sparse_select::Spec = text.parse().unwrap();
        let policy =
            esa::Esa::from_params(&Params::new("esa", esa::ENTRY.keys, &spec.params).unwrap()).unwrap();
        let group = self.num_heads / self.layer.shape.num_kv_heads;
        let params = BlockScoreParams {
            sink_blocks: 1,
            recent_blocks: 2,
            scale: 1.0 / group as f32,
            ..self.params(true)
        };
        let k = |row: usize| {
            let len = self.lens[row];
            if policy.is_active(len as usize) { 3 + policy.top_k(len as usize) } else { u32::MAX >> 1 }
        };
        let got = self.on_gpu(gpu, Digest::Mean, &params, k);
        let kv_heads = self.layer.shape.num_kv_heads as usize;
        for row in 0..self.lens.len() {
            let want = self.selected(row, &policy);
            for list in &got.lists[row * kv_heads..(row + 1) * kv_heads] {
                assert_eq!(*list, want, "{:?}, row {row}", self.layer.shape);
            }
        }
    }

    /// The blocks that a policy with one set for all heads selects for a row.
    fn selected(&self, row: usize, policy: &dyn Policy) -> Vec<u32> {
        self.oracle(row, |q, k| {
            let mut out = Selection::new();
            let input = Input { digests: self.format(), ..Input::decode(q, k) };
            policy.select_into(&input, &mut out).unwrap();
            out.row_shared(0, 0).iter().map(|b| b.get()).collect()
        })
    }

    fn check_gsa_ucm(&self, gpu: &Gpu) {
        let text =
            format!("gsa-ucm:seg_prefill_threshold=0,min_topk=1,max_topk=9,block_size={}", self.select_block);
        let spec: sparse_select::Spec = text.parse().unwrap();
        let policy =
            gsa_ucm::GsaUcm::from_params(&Params::new("gsa-ucm", gsa_ucm::ENTRY.keys, &spec.params).unwrap())
                .unwrap();
        let group = self.num_heads / self.layer.shape.num_kv_heads;
        let params = BlockScoreParams {
            sink_blocks: policy.init_window,
            recent_blocks: 2,
            recent_full: 1,
            scale: 1.0 / group as f32,
            ..self.params(true)
        };
        let k = |row: usize| policy.budget(None, self.lens[row] as usize);
        let got = self.on_gpu(gpu, Digest::Mean, &params, k);
        self.check(Digest::Mean, &params, &got);
        let kv_heads = self.layer.shape.num_kv_heads as usize;
        for row in 0..self.lens.len() {
            let want = self.selected(row, &policy);
            for list in &got.lists[row * kv_heads..(row + 1) * kv_heads] {
                assert_eq!(*list, want, "{:?}, row {row}", self.layer.shape);
            }
        }
    }
}

#[test]
fn lengths_round_pages_and_blocks() {
    let Some(gpu) = gpu() else { return };
    let mut counts = [4, 1];
    let indices: [usize; SHAPES.len()] = [4, 1, 6, 3, 0, 5, 2];
    for &index in usual(4, &indices) {
        counts.rotate_left(1);
        let dtype = if index % 2 == 0 { KvDtype::F16 } else { KvDtype::F32 };
        let (shape, num_heads) = shape_of(index, dtype);
        let page = shape.block_size;
        for &pages in usual(1, &counts) {
            let block = page * pages;
            let lens = [1, page, page + 1, block - 1, block, block + 1, 5 * block + 1, 9 * block - page - 1];
            let select = Select::new(shape, num_heads, pages, &lens, 8, 5);
            select.check_quest(gpu, 3);
            select.check_gsa_ucm(gpu);
            select.check_esa(gpu);
        }
    }
}

#[test]
fn more_blocks_than_a_workgroup_scores() {
    let Some(gpu) = gpu() else { return };
    let shape = KvShape {
        num_kv_heads: 2,
        head_dim: 64,
        block_size: 16,
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    let select = Select::new(shape, 8, 1, &[16 * 70 + 3, 0, 16 * 32, 16 * 33], 0, 6);
    select.check_quest(gpu, 20);
    let select = Select::new(shape, 8, 2, &[16 * 70 + 3, 40, 16 * 65], 0, 7);
    select.check_gsa_ucm(gpu);
}

#[test]
fn more_channels_than_a_workgroup_holds() {
    let Some(gpu) = gpu() else { return };
    let shape = KvShape {
        num_kv_heads: 9,
        head_dim: 128,
        block_size: 16,
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    Select::new(shape, 18, 2, &[16 * 25 + 3, 40], 4, 8).check_gsa_ucm(gpu);
}

proptest! {
    #![proptest_config(cases(3))]
    #[test]
    fn selects_as_the_policies_do(
        (shape, num_heads) in shapes(),
        pages in 1u32..=4,
        lens in prop::collection::vec(prop_oneof![1u32..300, 500u32..2000], 1..4),
        budget in 1u32..12,
        gap in 0u32..9,
        fp8: bool,
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            // Multiples of 1/8 are codes of fp8; int8 would round them, and ties with them.
            let dtype = if fp8 { KvDtype::Fp8 } else { shape.dtype };
            let shape = KvShape { block_size: shape.block_size.min(64), dtype, ..shape };
            let select = Select::new(shape, num_heads, pages, &lens, gap, seed);
            select.check_quest(gpu, budget);
            // Means of other numbers of tokens or heads are rounded, each side in its own order, and ties with them.
            if pages != 3 && num_heads.is_power_of_two() {
                select.check_gsa_ucm(gpu);
                select.check_esa(gpu);
            }
        }
    }
}

#[test]
fn pages_outside_a_cache_are_not_digested() {
    let shape = KvShape {
        num_kv_heads: 2,
        head_dim: 64,
        block_size: 16,
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    let digest = |touched| block_digest::check(&shape, &[[0, 16], touched], 8).unwrap_err().to_string();
    insta::assert_snapshot!(digest([8, 1]), @"block_digest: block + 1 of entry 1 is 9, the limit is 8");
    insta::assert_snapshot!(digest([7, 17]), @"block_digest: tokens of entry 1 is 17, the limit is 16");
    insta::assert_snapshot!(digest([7, 0]), @"block_digest: tokens of an entry is 0");
}
