//! `index_logits` against its reference and, with `top_k`, against the DSA policy of `sparse-select`.

use super::device::{assert_close, cases, dispatch, gpu};
use super::layer::{Layer, words};
use attn_kernels::cpu::{self, Tolerance};
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::kernel::index_logits::{self, IndexKeys, IndexLogitsParams};
use attn_kernels::kernel::top_k::{self, Output, TopKParams, Transform};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sparse_select::dsa::fp8::{self, ScaleFormat};
use sparse_select::dsa::logits::PagedIndexKeys;
use sparse_select::{Heads, Input, Selection};

/// A sum of heads, each of some hundred terms.
const LOGITS: Tolerance = Tolerance { abs: 2e-5, rel: 2e-5 };

/// Queries, gates and cached keys of some sequences; rows are queries of them.
struct Indexer {
    keys: IndexKeys,
    num_heads: u32,
    /// `[tables][values]` as the device has them
    cache: Vec<u32>,
    tables: Vec<u32>,
    /// Keys of each sequence, `[len, head_dim]`, as given before quantisation
    given: Vec<Vec<f32>>,
    /// Keys as the cache has them, by first entry of their table.
    kept: Vec<(usize, Vec<Vec<f32>>)>,
    /// `[rows, num_heads, head_dim]` and `[rows, num_heads]`
    q: Vec<f32>,
    gates: Vec<f32>,
    rows: Vec<[u32; 4]>,
    stride: u32,
}

impl Indexer {
    /// A row for each `(first key, key after the last)`, each of its own sequence of 5 more keys.
    fn new(keys: IndexKeys, num_heads: u32, spans: &[(u32, u32)], seed: u64) -> Self {
        let (head_dim, page) = keys.head_dim_and_page();
        let lens: Vec<u32> = spans.iter().map(|span| span.1 + 5).collect();
        // The layer's tables and keys serve both kinds; fp8 codes are made of the same keys.
        let dtype = if let IndexKeys::Cached(shape) = keys { shape.dtype } else { KvDtype::F32 };
        let shape = KvShape { num_kv_heads: 1, head_dim, block_size: page, dtype, layout: KvLayout::Native };
        let layer = Layer::new(shape, &lens, seed);
        let mut rng = StdRng::seed_from_u64(seed);
        let width = (num_heads * head_dim) as usize;
        let q = (0..spans.len() * width).map(|_| rng.random_range(-1.0_f32..1.0)).collect();
        let gates = (0..spans.len() * num_heads as usize).map(|_| rng.random_range(-0.5_f32..1.0)).collect();
        let mut indexer = Self {
            keys,
            num_heads,
            cache: words(dtype, &layer.k),
            tables: layer.tables.clone(),
            given: vec![],
            kept: vec![],
            q,
            gates,
            rows: vec![],
            stride: lens.iter().max().unwrap() + 3,
        };
        let mut pages = PagedIndexKeys::new(layer.tables.len() + 2, page as usize, head_dim as usize);
        for (i, (&table, &len)) in layer.table_of.iter().zip(&lens).enumerate() {
            indexer.rows.push([u32::try_from(i).unwrap(), spans[i].0, spans[i].1, table]);
            let mut kept = Vec::new();
            for t in 0..len as usize {
                #[expect(clippy::cast_possible_truncation, reason = "the f64 holds an f32")]
                let key: Vec<f32> =
                    layer.kv().key(&layer.tables[table as usize..], 0, t).map(|x| x as f32).collect();
                if matches!(keys, IndexKeys::Fp8 { .. }) {
                    let (codes, scale) = fp8::quantise(&key, ScaleFormat::F32);
                    let block = layer.tables[table as usize + t / page as usize] as usize;
                    pages.store(block * page as usize + t % page as usize, &codes, scale);
                    kept.push(codes.iter().map(|&code| fp8::decode(code) * scale).collect());
                } else {
                    kept.push(key.clone());
                }
                if t == 0 {
                    indexer.given.push(vec![])
                }
                indexer.given[i].extend(key);
            }
            indexer.kept.push((table as usize, kept));
        }
        if matches!(keys, IndexKeys::Fp8 { .. }) {
            indexer.cache = bytemuck::pod_collect_to_vec(pages.bytes());
        }
        indexer
    }

    fn params(&self) -> IndexLogitsParams {
        let (num_heads, logit_stride) = (self.num_heads, self.stride);
        IndexLogitsParams { num_heads, logit_stride, neg_inf: f32::NEG_INFINITY }
    }

    /// Logits, and the `k` best positions of every row.
    fn on_gpu(&self, gpu: &Gpu, k: u32) -> (Vec<f32>, Vec<Vec<u32>>) {
        let (params, rows) = (self.params(), u32::try_from(self.rows.len()).unwrap());
        let len = (rows * self.stride) as usize;
        let [q, gates] = [&self.q, &self.gates].map(|data| gpu.upload("q", data).unwrap());
        let [cache, tables] = [&self.cache, &self.tables].map(|data| gpu.upload("keys", data).unwrap());
        let row_buf = gpu.upload("rows", &self.rows).unwrap();
        let logits = gpu.upload("logits", &vec![f32::NAN; len]).unwrap();
        let mut pass = Pass::new("indexer");
        let bindings: [_; 6] = [
            (&q).into(),
            (&cache).into(),
            (&tables).into(),
            (&row_buf).into(),
            (&gates).into(),
            (&logits).into(),
        ];
        let grid = index_logits::grid(&params, rows);
        dispatch(gpu, &mut pass, &index_logits::variant(&self.keys), &params, &bindings, grid);

        // Positions count from a row's first key.
        let row =
            |(i, row): (u32, &[u32; 4])| [i * self.stride + row[1], row[2].saturating_sub(row[1]), k, row[1]];
        let top_rows: Vec<[u32; 4]> = (0..).zip(&self.rows).map(row).collect();
        let top_rows = gpu.upload("rows", &top_rows).unwrap();
        let top = TopKParams { rows, out_stride: k, copies: 1, page_size: 1 };
        let out = gpu.buffer::<u32>("out", (rows * k) as usize).unwrap();
        let bindings = [(&logits).into(), (&top_rows).into(), (&tables).into(), (&out).into()];
        let variant = top_k::variant(Output::Positions(Transform::Ragged), gpu.profile().top_k_level());
        dispatch(gpu, &mut pass, &variant, &top, &bindings, top_k::grid(&top));
        let reads = (pass.read(&logits, 0..len), pass.read(&out, 0..out.len()));
        let outcome = gpu.submit(pass).unwrap().wait().unwrap();
        let list = |list: &[u32]| list.iter().copied().take_while(|&p| p != u32::MAX).collect();
        (outcome.get(reads.0), outcome.get(reads.1).chunks(k as usize).map(list).collect())
    }

    fn check(&self, gpu: &Gpu) {
        let (got, _) = self.on_gpu(gpu, 4);
        let mut want = vec![f32::NAN; got.len()];
        let key = |table: usize, t: usize| {
            let (_, keys) = self.kept.iter().find(|(first, _)| *first == table).unwrap();
            keys[t].clone()
        };
        let (head_dim, _) = self.keys.head_dim_and_page();
        let params = self.params();
        cpu::index_logits::index_logits(
            &params,
            head_dim as usize,
            &self.q,
            &self.rows,
            &self.gates,
            key,
            &mut want,
        );
        let what = format!("{:?}, {} heads, {:?}", self.keys, self.num_heads, self.rows);
        // Errors are those of the largest terms, which may cancel.
        let size = (self.num_heads * head_dim) as f64;
        assert_close(&what, Tolerance { abs: LOGITS.abs * size.sqrt() / 8.0, ..LOGITS }, &got, &want);
    }
}

/// Every kind of keys: fp8 as published, other pages and sizes, caches.
fn kinds() -> [IndexKeys; 5] {
    let cached = |dtype, head_dim| {
        IndexKeys::Cached(KvShape {
            num_kv_heads: 1,
            head_dim,
            block_size: 16,
            dtype,
            layout: KvLayout::Native,
        })
    };
    [
        IndexKeys::Fp8 { head_dim: 128, page: 64 },
        IndexKeys::Fp8 { head_dim: 40, page: 16 },
        IndexKeys::Fp8 { head_dim: 8, page: 4 },
        cached(KvDtype::F16, 128),
        cached(KvDtype::F32, 24),
    ]
}

#[test]
fn logits_of_every_kind_of_key() {
    let Some(gpu) = gpu() else { return };
    for keys in kinds() {
        for num_heads in [64, 5] {
            Indexer::new(keys, num_heads, &[(0, 1), (0, 64), (3, 65), (130, 300), (10, 10), (0, 127)], 1)
                .check(gpu);
        }
    }
    Indexer::new(IndexKeys::Fp8 { head_dim: 128, page: 64 }, 80, &[(0, 70)], 2).check(gpu);
}

/// Selects the tokens that the policy does, which quantises queries and keys itself.
#[test]
fn selects_as_the_policy_does() {
    let Some(gpu) = gpu() else { return };
    let (head_dim, len, k) = (128_u32, 700_u32, 100);
    for num_heads in [64, 32] {
        let keys = IndexKeys::Fp8 { head_dim, page: 64 };
        let mut indexer = Indexer::new(keys, num_heads, &[(0, len)], 7);
        let (heads, dim) = (num_heads as usize, head_dim as usize);
        let (q, gates) = (indexer.q.clone(), indexer.gates.clone());
        let norm = 1.0 / ((heads as f32).sqrt() * (dim as f32).sqrt());
        for head in 0..heads {
            let (codes, scale) = fp8::quantise(&q[head * dim..][..dim], ScaleFormat::F32);
            let decoded = codes.iter().map(|&code| fp8::decode(code));
            indexer.q[head * dim..][..dim].iter_mut().zip(decoded).for_each(|(q, x)| *q = x);
            indexer.gates[head] *= scale * norm;
        }
        let (_, got) = indexer.on_gpu(gpu, k);
        let policy = sparse_select::build("dsa:index_topk=100").unwrap();
        let keys = &indexer.given[0][..len as usize * dim];
        let q = Heads::new("q", &q, [heads, 1, dim]).unwrap();
        let k = Heads::new("k", keys, [1, len as usize, dim]).unwrap();
        let mut out = Selection::new();
        policy.select_into(&Input { gates: Some(&gates), ..Input::decode(q, k) }, &mut out).unwrap();
        let want: Vec<u32> = out.row(0, 0).iter().map(|b| b.get()).collect();
        assert_eq!(got[0], want, "{num_heads} heads");
    }
}

proptest! {
    #![proptest_config(cases(4))]
    #[test]
    fn scores_as_the_reference_does(
        kind in 0usize..5,
        num_heads in 1u32..70,
        spans in prop::collection::vec((0u32..200, 0u32..200), 1..5),
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            let spans: Vec<_> = spans.into_iter().map(|(first, more)| (first, first + more)).collect();
            Indexer::new(kinds()[kind], num_heads, &spans, seed).check(gpu);
        }
    }
}
