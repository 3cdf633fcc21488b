//! `paged_decode` and `paged_reduce` against their references, and what they promise to the bit.

use crate::device::{assert_bits, assert_close, cases, dispatch, gpu};
use crate::layer::{ATTENTION, Layer, SHAPES, queries, shape_of, shapes};
use attn_kernels::cpu;
use attn_kernels::cpu::attention::{Selected, attend, context};
use attn_kernels::gpu::{Bind, Gpu, Pass};
use attn_kernels::kernel::attention::Attention;
use attn_kernels::kernel::paged_decode::{self, PARTITION, PagedDecodeParams};
use attn_kernels::kernel::paged_reduce::{self, PagedReduceParams};
use attn_kernels::kernel::{KvDtype, KvShape};
use attn_kernels::self_test::lists::Lists;
use proptest::prelude::*;

/// Sequences to decode, one row each; rows of queries are in reverse order of sequences.
struct Decode {
    layer: Layer,
    num_heads: u32,
    q_stride: u32,
    lens: Vec<u32>,
    /// First key that each sequence sees.
    first: Vec<u32>,
    /// Lists of each sequence and KV head, in order of sequences.
    lists: Option<Lists>,
    q: Vec<f32>,
}

/// What the kernels wrote.
struct Decoded {
    partial: Vec<f32>,
    stats: Vec<[f32; 2]>,
    /// `[rows, num_heads, head_dim]`
    out: Vec<f32>,
}

impl Decode {
    fn new(shape: KvShape, num_heads: u32, lens: &[u32], gap: u32, seed: u64) -> Self {
        let width = num_heads * shape.head_dim;
        let q_stride = width + gap;
        let q = queries(lens.len(), width as usize, q_stride as usize, seed);
        let layer = Layer::new(shape, lens, seed);
        let (lens, first) = (lens.to_vec(), vec![0; lens.len()]);
        Self { layer, num_heads, q_stride, lens, first, lists: None, q }
    }

    /// The same with each selection block of `block` tokens in the lists with `chance`.
    fn listed(mut self, block: u32, chance: f64, seed: u64) -> Self {
        let heads = self.layer.shape.num_kv_heads as usize;
        let lens = self.lens.iter().flat_map(|len| std::iter::repeat_n(*len, heads));
        self.lists = Some(Lists::random(lens, block, chance, seed));
        self
    }

    fn attention(&self) -> Attention {
        self.lists.as_ref().map_or(Attention::default(), |lists| Attention::blocks(lists.block))
    }

    fn selected(&self) -> Option<Selected<'_>> {
        self.lists.as_ref().map(Lists::selected)
    }

    /// `[row, length, table, first key]` of each sequence in `order`.
    fn rows(&self, order: &[usize]) -> Vec<[u32; 4]> {
        let last = self.lens.len() - 1;
        let row = |&i: &usize| {
            [u32::try_from(last - i).unwrap(), self.lens[i], self.layer.table_of[i], self.first[i]]
        };
        order.iter().map(row).collect()
    }

    fn params(&self, max_partitions: u32) -> PagedDecodeParams {
        PagedDecodeParams {
            num_heads: self.num_heads,
            num_kv_heads: self.layer.shape.num_kv_heads,
            q_stride: self.q_stride,
            max_partitions,
            scale: 1.0 / (self.layer.shape.head_dim as f32).sqrt(),
            reduced: u32::from(max_partitions > 1),
            list_stride: self.lists.as_ref().map_or(0, |lists| lists.stride),
            first_list: 0,
        }
    }

    fn reduce_params(&self, max_partitions: u32) -> PagedReduceParams {
        PagedReduceParams {
            num_heads: self.num_heads,
            num_kv_heads: self.layer.shape.num_kv_heads,
            max_partitions,
            list_stride: self.lists.as_ref().map_or(0, |lists| lists.stride),
            first_list: 0,
            pad0: 0,
            pad1: 0,
            pad2: 0,
        }
    }

    fn max_partitions(rows: &[[u32; 4]]) -> u32 {
        rows.iter().map(|row| row[1].div_ceil(PARTITION)).max().unwrap_or(0).max(1)
    }

    /// Elements of `partial` and `stats` with that many partitions.
    fn sizes(&self, rows: usize, max_partitions: u32) -> (usize, usize) {
        let stats = rows * (self.num_heads * max_partitions) as usize;
        (stats.max(self.lens.len() * self.num_heads as usize) * self.layer.shape.head_dim as usize, stats)
    }

    fn on_gpu(&self, gpu: &Gpu, order: &[usize], max_partitions: u32) -> Decoded {
        let (shape, rows) = (&self.layer.shape, self.rows(order));
        let [k, v] = self.layer.upload(gpu).unwrap();
        let q = gpu.upload("q", &self.q).unwrap();
        let tables = gpu.upload("tables", &self.layer.tables).unwrap();
        let rows_buf = gpu.upload("rows", &rows).unwrap();
        let (partial_len, stats_len) = self.sizes(rows.len(), max_partitions);
        let partial = gpu.upload("partial", &vec![f32::NAN; partial_len]).unwrap();
        let stats = gpu.upload("stats", &vec![[f32::NAN; 2]; stats_len]).unwrap();
        let out_len = self.lens.len() * (self.num_heads * shape.head_dim) as usize;
        let out = gpu.upload("out", &vec![f32::NAN; out_len]).unwrap();
        let mut pass = Pass::new("decode");
        let mut bindings: Vec<Bind> = vec![
            (&q).into(),
            (&k).into(),
            (&v).into(),
            (&tables).into(),
            (&rows_buf).into(),
            (&partial).into(),
            (&stats).into(),
        ];
        let lists = self.lists.as_ref().map(|lists| gpu.upload("selected", &lists.lists).unwrap());
        bindings.extend(lists.as_ref().map(Into::into));
        let count = u32::try_from(rows.len()).unwrap();
        let grid = paged_decode::grid(shape, self.num_heads, count, max_partitions);
        let variant = paged_decode::variant(shape, self.num_heads, gpu.level(), &self.attention());
        dispatch(gpu, &mut pass, &variant, &self.params(max_partitions), &bindings, grid);
        if max_partitions > 1 {
            let params = self.reduce_params(max_partitions);
            let mut bindings = vec![(&partial).into(), (&stats).into(), (&rows_buf).into(), (&out).into()];
            bindings.extend(lists.as_ref().map(Into::into));
            let grid = paged_reduce::grid(self.num_heads, count);
            let variant = paged_reduce::variant(shape, &self.attention());
            dispatch(gpu, &mut pass, &variant, &params, &bindings, grid);
        }
        let last = if max_partitions > 1 { &out } else { &partial };
        let reads = (pass.read(&partial, 0..partial_len), pass.read(&stats, 0..stats_len));
        let read = pass.read(last, 0..out_len);
        let outcome = gpu.submit(pass).unwrap().wait().unwrap();
        Decoded { partial: outcome.get(reads.0), stats: outcome.get(reads.1), out: outcome.get(read) }
    }

    /// Partitions against the reference, and the result against attention over all keys at once.
    fn check(&self, gpu: &Gpu) {
        let order: Vec<usize> = (0..self.lens.len()).collect();
        let rows = self.rows(&order);
        let max_partitions = Self::max_partitions(&rows);
        let got = self.on_gpu(gpu, &order, max_partitions);
        let what =
            format!("{:?}, {} heads, {rows:?}, {:?}", self.layer.shape, self.num_heads, self.attention());
        let (partial, stats) = self.sizes(rows.len(), max_partitions);
        let (mut partial, mut stats) = (vec![f32::NAN; partial], vec![[f32::NAN; 2]; stats]);
        let params = self.params(max_partitions);
        let tables = &self.layer.tables;
        let kv = self.layer.kv();
        let selected = self.selected();
        let selected = selected.as_ref();
        cpu::paged_decode::paged_decode(
            &kv,
            &params,
            &self.q,
            tables,
            &rows,
            &mut partial,
            &mut stats,
            selected,
        );
        assert_close(&format!("stats, {what}"), ATTENTION, got.stats.as_flattened(), stats.as_flattened());
        // Unnormalised sums grow with the number of keys, and their errors with them.
        let normalised = |partial: &[f32], stats: &[[f32; 2]]| -> Vec<f32> {
            let dim = self.layer.shape.head_dim as usize;
            let sum = |i: usize| if max_partitions == 1 { 1.0 } else { stats[i / dim][1] };
            partial.iter().enumerate().map(|(i, x)| x / sum(i)).collect()
        };
        let (got_partial, want_partial) =
            (normalised(&got.partial, &got.stats), normalised(&partial, &stats));
        assert_close(&format!("partial, {what}"), ATTENTION, &got_partial, &want_partial);
        assert_close(&format!("output, {what}"), ATTENTION, &got.out, &self.whole(&rows));
        if max_partitions > 1 {
            let params = self.reduce_params(max_partitions);
            let mut out = vec![f32::NAN; got.out.len()];
            let dim = self.layer.shape.head_dim as usize;
            cpu::paged_reduce::paged_reduce(
                dim,
                &params,
                &got.partial,
                &got.stats,
                &rows,
                &mut out,
                selected,
            );
            assert_close(&format!("reduce, {what}"), ATTENTION, &got.out, &out);
        }
    }

    /// Textbook attention of every row.
    fn whole(&self, rows: &[[u32; 4]]) -> Vec<f32> {
        let dim = self.layer.shape.head_dim as usize;
        let group = self.num_heads / self.layer.shape.num_kv_heads;
        let mut out = vec![f32::NAN; self.lens.len() * self.num_heads as usize * dim];
        let kv_heads = self.layer.shape.num_kv_heads;
        let selected = self.selected();
        for (index, [row, len, table, first]) in (0..).zip(rows) {
            for head in 0..self.num_heads {
                let q = &self.q[(row * self.q_stride) as usize + head as usize * dim..][..dim];
                let table = &self.layer.tables[*table as usize..];
                let scale = self.params(1).scale;
                let list = (index * kv_heads + head / group) as usize;
                let keys = context(selected.as_ref(), list, *len as usize);
                let keys = keys.into_iter().filter(|key| *key >= *first as usize);
                let state = attend(&self.layer.kv(), table, (head / group) as usize, q, scale, keys);
                let at = (row * self.num_heads + head) as usize * dim;
                out[at..at + dim].iter_mut().zip(state.output()).for_each(|(to, x)| *to = x);
            }
        }
        out
    }
}

#[test]
fn lengths_round_partitions_and_blocks() {
    let Some(gpu) = gpu() else { return };
    for index in 0..SHAPES.len() {
        let dtype = if index % 2 == 0 { KvDtype::F16 } else { KvDtype::F32 };
        let (shape, num_heads) = shape_of(index, dtype);
        let block = shape.block_size;
        Decode::new(
            shape,
            num_heads,
            &[1, block - 1, block, block + 1, 0, 255, 256, 257, 511, 512, 513],
            8,
            5,
        )
        .check(gpu);
        // One partition for all: no reduce pass.
        Decode::new(shape, num_heads, &[1, 0, block - 1, block, 256.min(block + 1)], 0, 6).check(gpu);
    }
}

#[test]
fn more_partitions_than_sides_of_the_reduce() {
    let Some(gpu) = gpu() else { return };
    let shape = KvShape { num_kv_heads: 1, head_dim: 16, block_size: 64, dtype: KvDtype::F16 };
    Decode::new(shape, 2, &[40 * 512 + 17, 3, 1024, 1025], 0, 9).check(gpu);
}

#[test]
fn a_row_does_not_depend_on_the_others() {
    let Some(gpu) = gpu() else { return };
    let shape = KvShape { num_kv_heads: 2, head_dim: 64, block_size: 16, dtype: KvDtype::F16 };
    let decode = Decode::new(shape, 6, &[1, 300, 512, 513, 1500], 4, 11);
    let together = decode.on_gpu(gpu, &[4, 2, 0, 1, 3], 1500_u32.div_ceil(PARTITION)).out;
    let width = (decode.num_heads * shape.head_dim) as usize;
    for i in 0..decode.lens.len() {
        let alone = decode.on_gpu(gpu, &[i], decode.lens[i].div_ceil(PARTITION)).out;
        let row = (decode.lens.len() - 1 - i) * width..(decode.lens.len() - i) * width;
        assert_bits(&format!("row of length {}", decode.lens[i]), &alone[row.clone()], &together[row]);
    }
}

#[test]
fn results_do_not_depend_on_the_block_size() {
    let Some(gpu) = gpu() else { return };
    for dtype in [KvDtype::F16, KvDtype::F32] {
        let of = |block_size| {
            let shape = KvShape { num_kv_heads: 1, head_dim: 40, block_size, dtype };
            Decode::new(shape, 4, &[70, 513, 1], 0, 13)
                .on_gpu(gpu, &[0, 1, 2], 513_u32.div_ceil(PARTITION))
                .out
        };
        let want = of(16);
        for block_size in [4, 32, 256] {
            assert_bits(&format!("block size {block_size}, {dtype:?}"), &of(block_size), &want);
        }
    }
}

/// All blocks of the lists: the arithmetic of dense attention, bit for bit.
#[test]
fn lists_of_all_blocks_change_nothing() {
    let Some(gpu) = gpu() else { return };
    for (index, dtype, block) in
        [(2, KvDtype::F16, 16), (2, KvDtype::F16, 64), (1, KvDtype::F32, 512), (4, KvDtype::F16, 64)]
    {
        let (shape, num_heads) = shape_of(index, dtype);
        for lens in [&[1_u32, 700, 513, 0, 512][..], &[130, 256]] {
            let order: Vec<usize> = (0..lens.len()).collect();
            let partitions = lens.iter().copied().max().unwrap_or(0).div_ceil(PARTITION);
            let decode = || Decode::new(shape, num_heads, lens, 0, 17);
            let want = decode().on_gpu(gpu, &order, partitions).out;
            let got = decode().listed(block, 1.0, 17).on_gpu(gpu, &order, partitions).out;
            assert_bits(&format!("{shape:?}, selection blocks of {block}, {lens:?}"), &got, &want);
        }
    }
}

#[test]
fn listed_blocks_are_all_that_is_attended() {
    let Some(gpu) = gpu() else { return };
    let shape = KvShape { num_kv_heads: 2, head_dim: 32, block_size: 16, dtype: KvDtype::F16 };
    for (block, chance, seed) in [(16, 0.3, 1), (64, 0.1, 2), (256, 0.5, 3), (1024, 0.4, 4), (32, 0.0, 5)] {
        Decode::new(shape, 8, &[1, 3000, 17, 1000, 513], 4, 18).listed(block, chance, seed).check(gpu);
    }
}

proptest! {
    #![proptest_config(cases(8))]
    #[test]
    fn attends_as_the_reference_does(
        (shape, num_heads) in shapes(),
        lens in prop::collection::vec(prop_oneof![0u32..70, 500u32..530, 1u32..1100], 1..5),
        gap in 0u32..9,
        first in prop::collection::vec(0u32..200, 5),
        lists in prop::option::of((0u32..4, 0.0..1.0)),
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            let mut decode = Decode::new(shape, num_heads, &lens, gap, seed);
            // Half of the rows see all their keys.
            for ((first, len), share) in decode.first.iter_mut().zip(&lens).zip(&first) {
                *first = len * share.saturating_sub(100) / 100;
            }
            if let Some((times, chance)) = lists {
                decode = decode.listed(shape.block_size << times, chance, seed);
            }
            decode.check(gpu);
        }
    }
}
