//! Certificates of `mass_bound` and `mass_merge`, behind the kernels that feed them, against the true mass.

use super::device::{cases, gpu};
use super::layer::{Layer, queries, shape_of};
use super::options::{AttentionInputs, Lists};
use super::properties::after;
use attn_kernels::cpu::block_digest::Rounding;
use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::block_digest::{self, BlockDigestParams, Digest};
use attn_kernels::kernel::block_score::{self, BlockScoreParams};
use attn_kernels::kernel::mass_bound::{self, MassBoundParams};
use attn_kernels::kernel::mass_merge::{self, MassMergeParams};
use attn_kernels::kernel::paged_decode::{self, Lanes, PARTITION, PagedDecodeParams};
use attn_kernels::kernel::{KvDtype, KvShape};
use attn_kernels::self_test::Case;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Sequences to select for, one row each.
pub(crate) struct Sequences {
    pub(crate) shape: KvShape,
    pub(crate) num_heads: u32,
    pub(crate) select_block: u32,
    pub(crate) lens: Vec<u32>,
    pub(crate) scale: f32,
}

impl Sequences {
    pub(crate) fn new((shape, num_heads): (KvShape, u32), pages: u32, lens: &[u32]) -> Self {
        let scale = 1.0 / (shape.head_dim as f32).sqrt();
        Self { shape, num_heads, select_block: pages * shape.block_size, lens: lens.into(), scale }
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.lens.iter().map(|len| len.div_ceil(self.select_block)).max().unwrap()
    }

    pub(crate) fn rows(&self, layer: &Layer) -> Vec<[u32; 4]> {
        let sequences = (0..).zip(self.lens.iter().zip(&layer.table_of));
        sequences.map(|(row, (len, table))| [row, *len, *table, 0]).collect()
    }
}

/// Sequences that attend to lists in several layers.
pub(crate) struct Certified {
    pub(crate) of: Sequences,
    pub(crate) layers: Vec<(Layer, AttentionInputs, Vec<f32>)>,
}

impl Certified {
    fn new((shape, num_heads): (KvShape, u32), pages: u32, lens: &[u32], chance: f64, seed: u64) -> Self {
        let select_block = pages * shape.block_size;
        let width = (num_heads * shape.head_dim) as usize;
        let layer = |seed: u64| {
            let each = lens.iter().flat_map(|len| std::iter::repeat_n(*len, shape.num_kv_heads as usize));
            let mut asked = AttentionInputs::default();
            asked.list(Lists::random(each, select_block, chance, seed));
            (Layer::new(shape, lens, seed), asked, queries(lens.len(), width, width, seed))
        };
        let layers = [seed, seed ^ 1, seed ^ 2].map(layer).into();
        // So that no key has all the mass.
        let scale = 0.3 / (shape.head_dim as f32).sqrt();
        Self { of: Sequences { scale, ..Sequences::new((shape, num_heads), pages, lens) }, layers }
    }

    /// Kept keys whose logits are what is left of terms of size `largest` that cancel, and dropped keys that are equal, so that
    /// their bounds are tight.
    #[expect(clippy::cast_possible_truncation, reason = "rounds to f32, and then to f16")]
    pub(crate) fn cancelling(shape: KvShape, num_heads: u32, len: u32, largest: f32, seed: u64) -> Self {
        // The errors of few keys do not cancel.
        let chance = f64::from(shape.block_size) / f64::from(len);
        let mut case = Self::new((shape, num_heads), 1, &[len], chance, seed);
        case.layers.truncate(1);
        let (kv_heads, dim) = (shape.num_kv_heads as usize, shape.head_dim as usize);
        let round = |x: f64| f64::from(half::f16::from_f64(x).to_f32());
        let size = f64::from(largest).sqrt();
        let mut rng = StdRng::seed_from_u64(seed);
        for (layer, asked, q) in &mut case.layers {
            let lists = asked.lists.as_ref().unwrap().selected();
            q.iter_mut().for_each(|q| *q = round(size * rng.random_range(0.5..1.0)) as f32);
            // The last channel makes up for what f16 leaves of the one before.
            q.chunks_exact_mut(dim).for_each(|q| q[dim - 1] = 1.0);
            for (token, head) in (0..len).flat_map(|t| (0..kv_heads).map(move |h| (t, h))) {
                let block = token / shape.block_size;
                let list = &lists.lists[head * lists.stride..];
                let is_kept = list[1..=list[0] as usize].contains(&block);
                let at = [layer.tables[block as usize], token % shape.block_size].map(|n| n as usize);
                let q = &q[head * dim * (num_heads as usize / kv_heads)..][..dim];
                let mut sum = 0.0;
                for (d, q) in q.iter().map(|q| f64::from(*q)).enumerate() {
                    let wanted = if d + 2 < dim { size * rng.random_range(-1.0..1.0) } else { -sum / q };
                    let key = if is_kept { round(wanted) } else { round(0.01 / size) };
                    sum += key * q;
                    layer.k[shape.k_index(at[0], head, at[1], d)] = key as f32;
                }
            }
        }
        case
    }

    /// Attends to these lists `[rows, num_kv_heads]` in the first layer.
    pub(crate) fn keep(&mut self, lists: &[Vec<u32>]) {
        let stride = 1 + lists.iter().map(Vec::len).max().unwrap_or(0);
        let padded = |list: &Vec<u32>| {
            let mut entries = vec![u32::try_from(list.len()).unwrap()];
            entries.extend(list);
            entries.resize(stride, u32::MAX);
            entries
        };
        let lists = lists.iter().flat_map(padded).collect();
        let stride = u32::try_from(stride).unwrap();
        self.layers[0].1.list(Lists { block: self.of.select_block, stride, lists });
    }

    /// Masses `[rows, num_heads]`, in `share_stride` shares a head.
    fn on_gpu(&self, gpu: &Gpu) -> Vec<f32> {
        let rows = u32::try_from(self.of.lens.len()).unwrap();
        let heads = rows * self.of.num_heads;
        let share_stride = mass_bound::share_stride(self.of.blocks());
        let layers = u32::try_from(self.layers.len()).unwrap();
        let merge = MassMergeParams { layers, rows: heads, share_stride };
        let mut shares = vec![f32::NAN.to_bits(); (layers * heads * share_stride) as usize];
        for (index, layer) in (0..).zip(&self.layers) {
            shares = self.shares(gpu, layer, [index * heads * share_stride, share_stride], &shares);
        }
        let masses = Case::new("masses", &mass_merge::variant(), &merge);
        let masses = masses.binding(&shares).binding(&vec![f32::NAN; heads as usize]);
        bytemuck::cast_vec(after(gpu, &masses).swap_remove(1))
    }

    /// The shares of all layers, with those of a layer from the first one of `share` on.
    fn shares(
        &self,
        gpu: &Gpu,
        (layer, asked, q): &(Layer, AttentionInputs, Vec<f32>),
        [first_share, share_stride]: [u32; 2],
        shares: &[u32],
    ) -> Vec<u32> {
        let (of, shape, num_heads) = (&self.of, &self.of.shape, self.of.num_heads);
        let rows = of.rows(layer);
        let max_partitions =
            of.lens.iter().map(|len| paged_decode::partitions(PARTITION, 0, *len)).max().unwrap().max(2);
        let decode = PagedDecodeParams {
            num_heads,
            num_kv_heads: shape.num_kv_heads,
            q_stride: num_heads * shape.head_dim,
            max_partitions,
            partition_size: PARTITION,
            scale: of.scale,
            reduced: 1,
            list_stride: asked.list_stride(),
            rows: u32::try_from(rows.len()).unwrap(),
            ..PagedDecodeParams::default()
        };
        let parts = rows.len() * (num_heads * max_partitions) as usize;
        let [k, v] = layer.words();
        let lists = asked.words().unwrap();
        let variant = paged_decode::variant(shape, num_heads, Lanes::Workgroup, &asked.attention);
        let attention = Case::new("attention", &variant, &decode)
            .binding(q)
            .binding(&k)
            .binding(&v)
            .binding(&layer.tables)
            .binding(&rows)
            .binding(&vec![f32::NAN; parts * shape.head_dim as usize])
            .binding(&vec![[f32::NAN; 2]; parts])
            .binding(&lists);
        let stats = after(gpu, &attention).swap_remove(6);
        let [_, bounds] = scores_and_bounds(gpu, of, layer, q);
        let params = MassBoundParams {
            num_heads,
            num_kv_heads: shape.num_kv_heads,
            select_block: of.select_block,
            list_stride: decode.list_stride,
            max_partitions,
            bound_stride: of.blocks(),
            first_row: 0,
            first_share,
            share_stride,
            partition_size: PARTITION,
            slack: mass_bound::slack(Lanes::Workgroup),
            rows: decode.rows,
        };
        let bound = Case::new("shares", &mass_bound::variant(), &params)
            .binding(&bounds)
            .binding(&rows)
            .binding(&lists)
            .binding(&stats)
            .binding(shares);
        after(gpu, &bound).swap_remove(4)
    }

    /// `[rows, num_heads]`: the least mass that lists keep over the layers, and what is left of it beside the bound of what
    /// they drop; f64, from the keys.
    pub(crate) fn by_keys(&self) -> Vec<[f64; 2]> {
        let (dim, kv_heads) = (self.of.shape.head_dim as usize, self.of.shape.num_kv_heads as usize);
        let (heads, block) = (self.of.num_heads as usize, self.of.select_block as usize);
        let mut least = vec![[1.0_f64; 2]; self.of.lens.len() * heads];
        for (layer, asked, q) in &self.layers {
            let (kv, lists) = (layer.kv(), asked.lists.as_ref().unwrap());
            for (i, least) in least.iter_mut().enumerate() {
                let (row, head) = (i / heads, i % heads);
                let (kv_head, len) = (head / (heads / kv_heads), self.of.lens[row] as usize);
                let list = &lists.lists[(row * kv_heads + kv_head) * lists.stride as usize..];
                let kept = &list[1..=list[0] as usize];
                let q = &q[i * dim..][..dim];
                let table = &layer.tables[layer.table_of[row] as usize..];
                let (mut inside, mut outside, mut bound) = (0.0, 0.0, 0.0);
                for b in 0..len.div_ceil(block) {
                    let keys: Vec<Vec<f64>> = (b * block..len.min((b + 1) * block))
                        .map(|t| kv.key(table, kv_head, t).collect())
                        .collect();
                    let terms = |key: &Vec<f64>| -> Vec<f64> {
                        key.iter().zip(q).map(|(k, q)| k * f64::from(*q) * f64::from(self.of.scale)).collect()
                    };
                    let terms: Vec<Vec<f64>> = keys.iter().map(terms).collect();
                    let sum: f64 = terms.iter().map(|terms| terms.iter().sum::<f64>().exp()).sum();
                    if kept.contains(&u32::try_from(b).unwrap()) {
                        inside += sum;
                    } else {
                        outside += sum;
                        let digest = MinMax::new(&keys, self.of.shape.dtype);
                        bound += keys.len() as f64 * (f64::from(self.of.scale) * digest.bound(q)).exp();
                    }
                }
                if bound > 0.0 {
                    *least =
                        [least[0].min(inside / (inside + outside)), least[1].min(inside / (inside + bound))];
                }
            }
        }
        least
    }
}

/// Channelwise minima and maxima of keys as their digests keep them.
struct MinMax(Vec<[f64; 2]>);

impl MinMax {
    #[expect(clippy::cast_possible_truncation, reason = "the f64 holds an f32")]
    fn new(keys: &[Vec<f64>], dtype: KvDtype) -> Self {
        let channel = |d: usize| {
            let channel = keys.iter().map(|key| key[d] as f32);
            let least = Rounding::Down.kept(dtype, channel.clone().fold(f32::INFINITY, f32::min));
            [least, Rounding::Up.kept(dtype, channel.fold(f32::NEG_INFINITY, f32::max))].map(f64::from)
        };
        Self((0..keys[0].len()).map(channel).collect())
    }

    fn bound(&self, q: &[f32]) -> f64 {
        let term = |([least, most], q): (&[f64; 2], &f32)| (f64::from(*q) * least).max(f64::from(*q) * most);
        self.0.iter().zip(q).map(term).sum()
    }
}

/// Scores and bounds of all blocks, by digests of all pages.
pub(crate) fn scores_and_bounds(gpu: &Gpu, of: &Sequences, layer: &Layer, q: &[f32]) -> [Vec<u32>; 2] {
    let shape = &of.shape;
    let page_of = |(len, table): (&u32, &u32)| {
        let (len, table, size) = (*len, *table, shape.block_size);
        let page = move |page| [layer.tables[(table + page) as usize], size.min(len - page * size)];
        (0..len.div_ceil(size)).map(page)
    };
    let touched: Vec<[u32; 2]> = of.lens.iter().zip(&layer.table_of).flat_map(page_of).collect();
    let params = BlockDigestParams::new(shape.num_kv_heads, u32::try_from(touched.len()).unwrap());
    let [k, _] = layer.words();
    let digests = Case::new("digests", &block_digest::variant(shape, Digest::MinMax), &params)
        .binding(&touched)
        .binding(&k)
        .binding(&vec![u32::MAX; Digest::MinMax.pool_len(shape, layer.num_blocks() as usize)]);
    let digests = after(gpu, &digests).swap_remove(2);
    let rows = of.rows(layer);
    let params = BlockScoreParams {
        num_heads: of.num_heads,
        num_kv_heads: shape.num_kv_heads,
        q_stride: of.num_heads * shape.head_dim,
        heads_per_set: of.num_heads / shape.num_kv_heads,
        score_stride: of.blocks(),
        logit_scale: of.scale,
        rows: u32::try_from(rows.len()).unwrap(),
        ..BlockScoreParams::default()
    };
    let scores =
        Case::new("bounds", &block_score::with_bounds(shape, of.num_heads, of.select_block), &params)
            .binding(q)
            .binding(&digests)
            .binding(&layer.tables)
            .binding(&rows)
            .binding(&vec![f32::NAN; block_score::scores_len(&params, rows.len())])
            .binding(&vec![f32::NAN; block_score::bounds_len(&params, rows.len())]);
    let mut left = after(gpu, &scores);
    [left.swap_remove(4), left.pop().unwrap()]
}

proptest! {
    #![proptest_config(cases(3))]

    /// Rounding of f32 grows with the terms of a logit, not with what is left of them.
    #[test]
    fn what_is_certified_is_kept_where_terms_cancel(
        shape in 0_usize..4,
        dtype in prop::sample::select(vec![KvDtype::F16, KvDtype::F32]),
        len in 100..1000_u32,
        exponent in 2.0..6.0_f32,
        seed in any::<u64>(),
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let (shape, num_heads) = shape_of(shape, dtype);
        let case = Certified::cancelling(shape, num_heads, len, 10_f32.powf(exponent), seed);
        for (got, [kept, _]) in case.on_gpu(gpu).into_iter().zip(case.by_keys()) {
            prop_assert!(f64::from(got) <= kept, "certified {got}, kept {kept}");
        }
    }

    #[test]
    fn what_is_certified_is_kept(
        shape in prop::sample::select(vec![2_usize, 4]),
        // With digests that are exact in f16, rounded outwards, and in f32.
        dtype in prop::sample::select(vec![KvDtype::F16, KvDtype::Int8, KvDtype::F32]),
        pages in prop::sample::select(vec![1_u32, 2]),
        lens in prop::collection::vec(1..3000_u32, 1..4),
        chance in prop_oneof![Just(0.0), Just(1.0), 0.0..1.0_f64],
        seed in any::<u64>(),
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let shape = shape_of(shape, dtype);
        let case = Certified::new(shape, pages, &lens, chance, seed);
        for (got, [kept, bound]) in case.on_gpu(gpu).into_iter().zip(case.by_keys()) {
            let got = f64::from(got);
            prop_assert!(got <= kept, "certified {got}, kept {kept}");
            prop_assert!(got <= bound && got >= bound * (1.0 - 2e-3) - 1e-30, "{got}, the digests say {bound}");
        }
    }
}
