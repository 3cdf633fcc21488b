//! `block_mean`, `block_energy` and `keep_blocks` against their references, and one after the other against the policy
//! `flashprefill` of `sparse-select`.

use super::by_hand::assert_close;
use super::device::gpu;
use super::layer::{ATTENTION, Layer, queries};
use super::properties::{after, assert_leaves_reference};
use attn_kernels::cpu::{self, Tolerance};
use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::flashprefill::FlashPrefill;
use attn_kernels::kernel::{
    KvDtype, KvLayout, KvShape, attend_means, block_energy, block_mean, block_means, keep_blocks,
};
use attn_kernels::profile::Registers;
use attn_kernels::self_test::Case;
use proptest::prelude::*;
use sparse_select::{Heads, Input, Selection, build};
use std::ops::Range;

use crate::usual;

/// Tolerance of sums of keys of size 1 in another order.
const MEANS: Tolerance = Tolerance { abs: 1e-6, rel: 1e-5 };

/// One chunk of a sequence, behind another sequence in tables and queries.
struct Chunk {
    layer: Layer,
    q: Vec<f32>,
    of: FlashPrefill,
}

/// Outputs of the kernels, one round of query blocks after the other.
struct Found {
    means: Vec<f32>,
    rounds: Vec<Range<u32>>,
    energies: Vec<Vec<f32>>,
    /// `[query_blocks][num_kv_heads]`
    lists: Vec<Vec<u32>>,
}

impl Chunk {
    fn new(shape: KvShape, group: u32, (q_len, kv_len): (u32, u32), block: u32) -> Self {
        let num_heads = shape.num_kv_heads * group;
        let width = num_heads * shape.head_dim;
        let layer = Layer::new(shape, &[20, kv_len], 5);
        let q = queries(q_len as usize + 3, width as usize, width as usize + 4, 5);
        let of = FlashPrefill {
            num_heads,
            q_stride: width + 4,
            q_first: 3,
            q_len,
            kv_len,
            table: layer.table_of[1],
            block,
            alpha: 0.5,
            sink_blocks: 1,
            recent_blocks: 2,
        };
        Self { layer, q, of }
    }

    /// Query blocks `step` at a time.
    fn on_gpu(&self, gpu: &Gpu, step: u32) -> Found {
        let (f, shape) = (&self.of, &self.layer.shape);
        let [means_len, energies_len] = f.scratch_lens(shape, step.min(f.query_blocks()));
        let rounds: Vec<_> = f.rounds(energies_len).collect();
        let (stride, first_list) = (f.key_blocks() + 3, 2);
        let out_len = ((first_list + f.query_blocks() * shape.num_kv_heads) * stride) as usize;
        let tables = (&self.layer.tables[..], self.layer.num_blocks());
        f.check(shape, [stride, first_list], tables, [self.q.len(), out_len]).unwrap();

        let [k, _] = self.layer.words();
        let means = vec![f32::NAN.to_bits(); means_len];
        let means = match f.block_mean(shape) {
            None => means,
            Some(params) => {
                let case = Case::new("means", &block_mean::variant(shape, f.block), &params);
                after(gpu, &case.binding(&self.layer.tables).binding(&k).binding(&means)).swap_remove(2)
            }
        };
        let (mut energies, mut words) = (Vec::new(), vec![77_777; out_len]);
        for blocks in &rounds {
            let params = f.block_energy(shape, blocks);
            let case = Case::new("energies", &block_energy::variant(shape, f.block), &params);
            let case = case.binding(&self.q).binding(&means).binding(&vec![f32::NAN; energies_len]);
            let mut found = after(gpu, &case).swap_remove(2);
            let params = f.keep_blocks(shape, blocks, stride, first_list);
            let variant = keep_blocks::variant(f.num_heads / shape.num_kv_heads);
            let case = Case::new("lists", &variant, &params).binding(&found).binding(&words);
            words = after(gpu, &case).swap_remove(1);
            let [_, len] = f.scratch_lens(shape, blocks.end - blocks.start);
            found.truncate(len);
            energies.push(bytemuck::cast_vec(found));
        }
        let (before, lists) = words.split_at((first_list * stride) as usize);
        assert!(before.iter().all(|word| *word == 77_777), "lists of others are written");
        let list = |list: &[u32]| list[1..=list[0] as usize].to_vec();
        let lists = lists.chunks(stride as usize).map(list).collect();
        Found { means: bytemuck::cast_vec(means), rounds, energies, lists }
    }

    /// Applies `with` to the queries `[num_heads, q_len, head_dim]` and keys `[kv_heads, kv_len, head_dim]`.
    fn tensors<T>(&self, with: impl FnOnce(Heads<'_>, Heads<'_>) -> T) -> T {
        let (f, shape) = (&self.of, &self.layer.shape);
        let (dim, heads) = (shape.head_dim as usize, f.num_heads as usize);
        let row = |head: usize, t: usize| &self.q[(t + 3) * f.q_stride as usize + head * dim..][..dim];
        let q: Vec<f32> = (0..heads)
            .flat_map(|head| (0..f.q_len as usize).flat_map(move |t| row(head, t).to_vec()))
            .collect();
        let (kv, table) = (self.layer.kv(), &self.layer.tables[f.table as usize..]);
        let keys = (0..shape.num_kv_heads as usize).flat_map(|head| {
            (0..f.kv_len as usize).flat_map(move |t| kv.key(table, head, t).collect::<Vec<_>>())
        });
        #[expect(clippy::cast_possible_truncation, reason = "the f64 holds an f32")]
        let k: Vec<f32> = keys.map(|x| x as f32).collect();
        let q = Heads::new("q", &q, [heads, f.q_len as usize, dim]).unwrap();
        let k = Heads::new("k", &k, [shape.num_kv_heads as usize, f.kv_len as usize, dim]).unwrap();
        with(q, k)
    }

    /// Each kernel against its reference, on what the kernels before it wrote.
    fn check(&self, gpu: &Gpu, step: u32) -> Found {
        let (f, shape) = (&self.of, &self.layer.shape);
        let found = self.on_gpu(gpu, step);
        let block = f.block as usize;
        let what = format!("{shape:?}, {f:?}");
        if let Some(params) = f.block_mean(shape) {
            let want = cpu::block_mean::block_mean(&self.layer.kv(), &params, block, &self.layer.tables);
            assert_close(&format!("means, {what}"), MEANS, &found.means, &want);
        }
        let (kv_heads, dim) = (shape.num_kv_heads as usize, shape.head_dim as usize);
        let means = [kv_heads, found.means.len() / kv_heads / dim, dim];
        let means = Heads::new("means", &found.means, means).unwrap();
        for (blocks, energies) in found.rounds.iter().zip(&found.energies) {
            let params = f.block_energy(shape, blocks);
            let want =
                self.tensors(|q, _| cpu::block_energy::block_energy(&params, block, blocks, &q, &means));
            let pairs = energies.iter().zip(&want);
            assert!(pairs.clone().all(|(got, want)| got.is_nan() == want.is_nan()), "{what}, {blocks:?}");
            let (got, seen): (Vec<f32>, Vec<f32>) = pairs.filter(|(_, want)| want.is_finite()).unzip();
            assert_close(&format!("energies, {what}, {blocks:?}"), ATTENTION, &got, &seen);

            let params = f.keep_blocks(shape, blocks, 0, 0);
            let want = cpu::keep_blocks::keep_blocks(&params, energies, f.num_heads as usize);
            let first = blocks.start as usize * kv_heads;
            assert_eq!(found.lists[first..first + want.len()], want, "{what}, {blocks:?}");
        }
        found
    }

    /// The policy's selection, `[query_blocks][num_kv_heads]`.
    fn policy(&self) -> Vec<Vec<u32>> {
        let FlashPrefill { alpha, sink_blocks, recent_blocks, block, .. } = self.of;
        let policy = build(&format!(
            "flashprefill:alpha={alpha},sink_blocks={sink_blocks},recent_blocks={recent_blocks},block_size={block}"
        ));
        let policy = policy.unwrap();
        let mut out = Selection::new();
        self.tensors(|q, k| policy.select_into(&Input::prefill(q, k, 0), &mut out).unwrap());
        let row = |b: usize, kv: usize| out.row(kv, b).iter().map(|i| i.get()).collect();
        (0..out.query_blocks())
            .flat_map(|b| (0..out.groups()).map(move |kv| (b, kv)))
            .map(|(b, kv)| row(b, kv))
            .collect()
    }
}

fn shape(num_kv_heads: u32, head_dim: u32, block_size: u32, dtype: KvDtype) -> KvShape {
    KvShape { num_kv_heads, head_dim, block_size, dtype, layout: KvLayout::Native }
}

/// Shapes and chunks, each of interest at least once; in the long form more heads and types.
fn chunks() -> Vec<Chunk> {
    let (f16, f32) = (KvDtype::F16, KvDtype::F32);
    let mut all = vec![
        // Starts and ends inside a block.
        Chunk::new(shape(1, 40, 16, f32), 3, (203, 501), 64),
        // A chunk of one block, of which it has the middle.
        Chunk::new(shape(2, 32, 4, f16), 4, (9, 398), 64),
        // Several tiles of rows and of key blocks.
        Chunk::new(shape(1, 16, 8, f16), 2, (600, 1300), 8),
        Chunk::new(shape(1, 24, 64, KvDtype::Int8), 2, (300, 1100), 256),
        // Nothing is before the chunk.
        Chunk::new(shape(2, 16, 32, f32), 1, (1, 1), 128),
        Chunk::new(shape(2, 64, 16, f16), 2, (300, 300), 32),
        Chunk::new(shape(1, 128, 128, KvDtype::Fp8), 1, (130, 257), 128),
    ];
    all.truncate(usual(5, &all).len());
    all
}

#[test]
fn selects_as_the_policy_does() {
    let Some(gpu) = gpu() else { return };
    for mut chunk in chunks() {
        for (alpha, sink_blocks, recent_blocks) in [(0.1, 2, 4), (0.5, 0, 0), (1.0, 1, 1)] {
            chunk.of = FlashPrefill { alpha, sink_blocks, recent_blocks, ..chunk.of };
            let found = chunk.check(gpu, 2);
            assert_eq!(found.lists, chunk.policy(), "{:?}", chunk.of);
        }
    }
}

/// The kernels of the correction against their references, by lists of any blocks and whatever attention to these was.
#[test]
fn blocks_that_are_left_out_are_attended_by_their_means() {
    let Some(gpu) = gpu() else { return };
    let mut both = [Registers::Few, Registers::Many];
    for chunk in chunks() {
        both.rotate_left(1);
        usual(1, &both).iter().for_each(|registers| attends_to_means(gpu, &chunk, *registers));
    }
}

fn attends_to_means(gpu: &Gpu, chunk: &Chunk, registers: Registers) {
    let (f, shape) = (&chunk.of, &chunk.layer.shape);
    let (kv_heads, dim) = (shape.num_kv_heads, shape.head_dim as usize);
    let Some(params) = f.block_means(shape) else { return };
    let (block, tables) = (f.block as usize, &chunk.layer.tables);
    let [k, v] = chunk.layer.words();
    let [keys, values] = cpu::block_means::block_means(&chunk.layer.kv(), &params, block, tables);
    let case = Case::new("means", &block_means::variant(shape, f.block), &params).binding(tables);
    assert_leaves_reference(gpu, &case.binding(&k).binding(&v).output(MEANS, &keys).output(MEANS, &values));

    let (stride, first_list) = (f.key_blocks() + 3, 2);
    let list = |list: u32| {
        let own = f.first_block() + list / kv_heads;
        (0..=own).filter(|block| *block == own || (block * 7 + list).is_multiple_of(3)).collect::<Vec<_>>()
    };
    let lists: Vec<Vec<u32>> = (0..f.query_blocks() * kv_heads).map(list).collect();
    let mut words = vec![77_777; first_list as usize * stride as usize];
    for list in &lists {
        let end = words.len() + stride as usize;
        words.push(u32::try_from(list.len()).unwrap());
        words.extend(list);
        words.resize(end, 77_777);
    }
    let rows = (f.q_first + f.q_len) as usize * f.num_heads as usize;
    let (out, lse) = (queries(1, rows * dim, rows * dim, 8), queries(1, rows, rows, 9));
    let params = f.attend_means(shape, stride, first_list);
    let (mut all, mut all_lse) = (out.clone(), lse.clone());
    let to = (&mut all[..], &mut all_lse[..]);
    cpu::attend_means::attend_means(&params, [block, dim], &chunk.q, [&keys, &values], &lists, to);
    let case = Case::new("means of blocks", &attend_means::variant(shape, f.block, registers), &params)
        .binding(&chunk.q)
        .binding(&keys)
        .binding(&values)
        .binding(&words)
        .updated(&out, ATTENTION, &all)
        .updated(&lse, ATTENTION, &all_lse);
    assert_leaves_reference(gpu, &case);
}

/// Attention of a query to tokens of scores and values.
fn attention(tokens: impl Iterator<Item = (f64, f64)> + Clone) -> (f64, f64) {
    let sum: f64 = tokens.clone().map(|(score, _)| score.exp()).sum();
    (tokens.map(|(score, value)| score.exp() * value).sum::<f64>() / sum, sum.ln())
}

proptest! {
    /// The correction makes dense attention, token by token, of blocks whose keys are alike, whatever is left out and whatever
    /// their values are.
    #[test]
    fn blocks_of_equal_keys_lose_nothing(
        blocks in prop::collection::vec((-2.0_f32..2.0, prop::collection::vec(-3.0_f32..3.0, 8), any::<bool>()), 1..20),
        own in prop::collection::vec((-2.0_f32..2.0, -3.0_f32..3.0), 1..8),
        query in -3.0_f32..3.0,
    ) {
        let score = |key: f32| f64::from(query) * f64::from(key);
        let of_block = |block: &(f32, Vec<f32>, bool)| {
            let score = score(block.0);
            block.1.iter().map(move |value| (score, f64::from(*value))).collect::<Vec<_>>()
        };
        let after = own.iter().map(|(key, value)| (score(*key), f64::from(*value)));
        let tokens = |all: bool| {
            let seen = blocks.iter().filter(|block| all || block.2).flat_map(of_block);
            seen.chain(after.clone()).collect::<Vec<_>>()
        };
        let (dense, dense_lse) = attention(tokens(true).into_iter());
        let (listed, listed_lse) = attention(tokens(false).into_iter());
        let count = u32::try_from(blocks.len()).unwrap();
        let shape = shape(1, 8, 8, KvDtype::F32);
        let f = FlashPrefill {
            num_heads: 1,
            q_stride: 1,
            q_first: 0,
            q_len: 1,
            kv_len: count * 8 + 1,
            table: 0,
            block: 8,
            alpha: 1.0,
            sink_blocks: 0,
            recent_blocks: 0,
        };
        // One channel is enough.
        let params = attend_means::AttendMeansParams { scale: 1.0, ..f.attend_means(&shape, count + 2, 0) };
        let keys: Vec<f32> = blocks.iter().map(|block| block.0).collect();
        let values: Vec<f32> = blocks.iter().map(|block| block.1.iter().sum::<f32>() / 8.0).collect();
        let list: Vec<u32> = (0..).zip(&blocks).filter(|(_, block)| block.2).map(|(n, _)| n).chain([count]).collect();
        #[expect(clippy::cast_possible_truncation, reason = "what attention kernels hand on")]
        let (mut out, mut lse) = ([listed as f32], [listed_lse as f32]);
        let to = (&mut out[..], &mut lse[..]);
        cpu::attend_means::attend_means(&params, [8, 1], &[query], [&keys, &values], &[list], to);
        prop_assert!((f64::from(out[0]) - dense).abs() < 1e-5, "{out:?} for {dense}");
        prop_assert!((f64::from(lse[0]) - dense_lse).abs() < 1e-5, "{lse:?} for {dense_lse}");
    }
}

#[test]
fn rounds_do_not_change_the_result() {
    let Some(gpu) = gpu() else { return };
    for chunk in chunks() {
        let whole = chunk.on_gpu(gpu, u32::MAX);
        assert_eq!(whole.rounds.len(), 1);
        let cut = chunk.on_gpu(gpu, 1);
        assert_eq!(cut.rounds.len(), chunk.of.query_blocks() as usize);
        assert_eq!(cut.lists, whole.lists, "{:?}", chunk.of);
    }
}

#[test]
fn launches_out_of_range_are_refused() {
    let shape = shape(2, 64, 16, KvDtype::F16);
    let chunk = Chunk::new(shape, 2, (300, 400), 32);
    let (lists, lens) = ([14, 0], [303 * 260 - 4, 20 * 14]);
    let check = |change: fn(&mut FlashPrefill), lists: [u32; 2], lens: [usize; 2]| {
        let mut of = chunk.of;
        change(&mut of);
        let tables = (&chunk.layer.tables[..27], chunk.layer.num_blocks());
        of.check(&shape, lists, tables, lens).map_err(|e| e.to_string())
    };
    assert_eq!(check(|_| {}, lists, lens), Ok(()));
    let error = |change| check(change, lists, lens).unwrap_err();
    insta::assert_snapshot!(error(|f| f.block = 40), @"flashprefill: block is 40, not a multiple of 16");
    insta::assert_snapshot!(error(|f| f.block = 48), @"flashprefill: block is 48, not a power of two");
    insta::assert_snapshot!(error(|f| f.q_len = 401), @"flashprefill: queries is 401, the limit is 400");
    insta::assert_snapshot!(error(|f| f.q_len = 0), @"flashprefill: queries is 0");
    insta::assert_snapshot!(error(|f| f.q_first = 4), @"flashprefill: end in q is 79036, the limit is 78776");
    insta::assert_snapshot!(error(|f| f.num_heads = 3), @"flashprefill: query heads is 3, not a multiple of 2");
    insta::assert_snapshot!(error(|f| f.table = 3), @"flashprefill: end in the tables of entry 0 is 28, the limit is 27");
    insta::assert_snapshot!(check(|_| {}, [13, 0], lens).unwrap_err(), @"flashprefill: blocks of a list is 14, the limit is 13");
    insta::assert_snapshot!(check(|_| {}, [14, 1], lens).unwrap_err(), @"flashprefill: u32 of lists is 294, the limit is 280");
}
