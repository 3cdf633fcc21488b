//! Digests of keys that f16 does not have, where they round: `block_digest`, and the bounds that `block_score` makes of them.

use super::device::{cases, gpu};
use super::layer::{Layer, cache_words, values};
use super::properties::after;
use attn_kernels::cpu::{self, Tolerance};
use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::block_digest::{self, BlockDigestParams, Digest};
use attn_kernels::kernel::block_score::{self, BlockScoreParams};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use attn_kernels::self_test::{Case, FloatLayout};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sparse_select::digest::{DigestFormat, mean_keys};

const SHAPE: KvShape =
    KvShape { num_kv_heads: 2, head_dim: 16, block_size: 16, dtype: KvDtype::Int8, layout: KvLayout::Native };

/// One sequence of keys in int8 whose sizes differ from token to token by powers of two, as `exponents` says.
struct Keys {
    layer: Layer,
    len: u32,
    /// K as the device has it.
    words: Vec<u32>,
    /// And what that stands for.
    k: Vec<f32>,
}

impl Keys {
    fn new(len: u32, exponents: std::ops::Range<i32>, seed: u64) -> Self {
        let mut layer = Layer::new(SHAPE, &[len], seed);
        let mut rng = StdRng::seed_from_u64(seed);
        for token in 0..len as usize {
            let block = layer.tables[token / SHAPE.block_size as usize] as usize;
            for head in 0..SHAPE.num_kv_heads as usize {
                let factor = f32::exp2(rng.random_range(exponents.clone()) as f32);
                for dim in 0..SHAPE.head_dim as usize {
                    layer.k[SHAPE.k_index(block, head, token % SHAPE.block_size as usize, dim)] *= factor;
                }
            }
        }
        let words = cache_words(&SHAPE, KvShape::k_index, &layer.k);
        let k = FloatLayout::cache(&SHAPE, KvShape::k_index).values(&words);
        Self { layer, len, words, k }
    }

    fn num_blocks(&self) -> usize {
        self.k.len() / SHAPE.block_elements()
    }

    fn touched(&self) -> Vec<[u32; 2]> {
        let size = SHAPE.block_size;
        let page = |(i, block): (u32, &u32)| [*block, size.min(self.len - i * size)];
        (0..).zip(&self.layer.tables).map(page).collect()
    }

    /// The pool.
    fn digests(&self, gpu: &Gpu, digest: Digest) -> Vec<u32> {
        let touched = self.touched();
        let params = BlockDigestParams::new(2, u32::try_from(touched.len()).unwrap());
        let case = Case::new("digests", &block_digest::variant(&SHAPE, digest), &params)
            .binding(&touched)
            .binding(&self.words)
            .binding(&vec![0; digest.pool_len(&SHAPE, self.num_blocks())]);
        after(gpu, &case).swap_remove(2)
    }

    /// Scores and bounds `[heads, pages]` of `q`, a head each.
    fn scores(&self, gpu: &Gpu, digests: &[u32], q: &[f32]) -> [Vec<f32>; 2] {
        let pages = self.touched().len();
        let params = BlockScoreParams {
            num_heads: 2,
            num_kv_heads: 2,
            q_stride: 2 * SHAPE.head_dim,
            heads_per_set: 1,
            score_stride: u32::try_from(pages).unwrap(),
            rows: 1,
            ..BlockScoreParams::default()
        };
        let case = Case::new("bounds", &block_score::with_bounds(&SHAPE, 2, SHAPE.block_size), &params)
            .binding(q)
            .binding(digests)
            .binding(&self.layer.tables)
            .binding(&[0, self.len, 0, 0])
            .binding(&vec![f32::NAN; 2 * pages])
            .binding(&vec![[f32::NAN; 2]; 2 * pages]);
        let mut left = after(gpu, &case);
        [left.swap_remove(4), left.pop().unwrap()].map(bytemuck::cast_vec)
    }

    fn reference(&self, digest: Digest) -> Vec<f32> {
        let mut digests = vec![0.0; digest.pool_elements(&SHAPE, self.num_blocks())];
        cpu::block_digest::block_digest(&SHAPE, digest, &self.touched(), &self.k, &mut digests);
        digests
    }

    /// Mean keys `[page][head][dim]` as hosts keep them that select what kernels do.
    fn means_on_host(&self) -> Vec<Vec<Vec<f32>>> {
        let (size, dim) = (SHAPE.block_size as usize, SHAPE.head_dim as usize);
        let at =
            |head: usize, t: usize, d| SHAPE.k_index(self.layer.tables[t / size] as usize, head, t % size, d);
        let len = self.len as usize;
        let of_head = |head| (0..len).flat_map(move |t| (0..dim).map(move |d| at(head, t, d)));
        let keys: Vec<f32> = (0..2).flat_map(of_head).map(|at| self.k[at]).collect();
        let page = kvblock::BlockSize::new(SHAPE.block_size).unwrap();
        let keys = sparse_select::Heads::new("k", &keys, [2, len, dim]).unwrap();
        mean_keys(&keys, page, DigestFormat::F16 { page })
    }

    /// The largest magnitude in a block.
    fn size_of(&self, block: usize) -> f64 {
        let keys = self.k.chunks(SHAPE.block_elements()).nth(block).unwrap();
        f64::from(keys.iter().map(|x| x.abs()).fold(0.0, f32::max))
    }

    /// The largest `q . k` of a page, in f64.
    fn largest(&self, q: &[f32], head: usize, page: usize) -> f64 {
        let (size, dim) = (SHAPE.block_size as usize, SHAPE.head_dim as usize);
        let tokens = page * size..(self.len as usize).min((page + 1) * size);
        let block = self.layer.tables[page] as usize;
        let product = |t: usize| -> f64 {
            let key = |d| f64::from(self.k[SHAPE.k_index(block, head, t % size, d)]);
            (0..dim).map(|d| f64::from(q[head * dim + d]) * key(d)).sum()
        };
        tokens.map(product).fold(f64::NEG_INFINITY, f64::max)
    }
}

proptest! {
    #![proptest_config(cases(24))]

    /// From what f16 rounds to nothing to what it cannot hold.
    #[test]
    fn digests_round_outwards_and_bounds_hold(
        len in 1_u32..90,
        (least, more) in (-40..20_i32, 1..20_i32),
        zeros in 0_usize..32,
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let keys = Keys::new(len, least..least + more, seed);
        let mut q: Vec<f32> = Layer::new(SHAPE, &[1], !seed).k[..32].iter().map(|x| if x.is_nan() { 0.5 } else { *x }).collect();
        q[..zeros].fill(0.0);
        let digests = keys.digests(gpu, Digest::MinMax);
        let [scores, bounds] = keys.scores(gpu, &digests, &q);
        let want = keys.reference(Digest::MinMax);
        Tolerance::EXACT.compare(&values(KvDtype::F16, &digests), &want).unwrap();
        let means = values(KvDtype::F16, &keys.digests(gpu, Digest::Mean));
        let on_host = keys.means_on_host();
        for (page, [block, tokens]) in keys.touched().into_iter().enumerate() {
            let of_page = |means: &[f32]| means.chunks(32).nth(block as usize).unwrap().to_vec();
            // Sums in f32 lose a share of their terms, which may cancel; then there is one rounding to f16.
            let abs = 6e-8 + 2e-6 * keys.size_of(block as usize);
            let halves = Tolerance { abs, rel: f64::exp2(-10.0) };
            halves.compare(&of_page(&means), &of_page(&keys.reference(Digest::Mean))).unwrap();
            // Kernel and host have the same sums of full pages.
            prop_assert!(tokens < SHAPE.block_size || of_page(&means) == on_host[page].concat(), "page {page}");
        }
        let pages = keys.touched().len();
        for (i, (score, [bound, _])) in scores.iter().zip(bounds.as_chunks::<2>().0).enumerate() {
            let largest = keys.largest(&q, i / pages, i % pages);
            prop_assert!(bound.is_finite() && f64::from(*bound) >= largest, "a bound of {bound} on {largest}");
            // The last page is forced, the others are not, however large.
            prop_assert_eq!(*score == f32::INFINITY, i % pages == pages - 1);
            prop_assert!(i % pages == pages - 1 || (*score < f32::MAX && f64::from(*score) >= largest - largest.abs() * 1e-4 - 1e-30), "{score}, {largest}");
        }
    }
}
