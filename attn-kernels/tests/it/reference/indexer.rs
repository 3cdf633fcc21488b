//! `index_logits` with `top_k` against the DSA policy of `sparse-select`.

use super::by_hand::dispatch;
use super::device::gpu;
use super::layer::Layer;
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::kernel::index_logits::{self, IndexKeys, IndexLogitsParams};
use attn_kernels::kernel::top_k::{self, Output, TopKParams, Transform};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sparse_select::dsa::fp8::{self, ScaleFormat};
use sparse_select::dsa::logits::PagedIndexKeys;
use sparse_select::{Heads, Input, Selection};

const HEAD_DIM: u32 = 128;
const PAGE: u32 = 64;

/// Keys of one sequence in scattered pages, and what they were before they became codes of fp8.
struct Indexed {
    cache: PagedIndexKeys,
    tables: Vec<u32>,
    /// `[len, HEAD_DIM]`
    given: Vec<f32>,
}

impl Indexed {
    fn new(len: u32, seed: u64) -> Self {
        let (head_dim, dtype, layout) = (HEAD_DIM, KvDtype::F32, KvLayout::Native);
        let shape = KvShape { num_kv_heads: 1, head_dim, block_size: PAGE, dtype, layout };
        let layer = Layer::new(shape, &[len], seed);
        let mut cache = PagedIndexKeys::new(layer.tables.len() + 2, PAGE as usize, HEAD_DIM as usize);
        let mut given = Vec::new();
        for t in 0..len as usize {
            #[expect(clippy::cast_possible_truncation, reason = "the f64 holds an f32")]
            let key: Vec<f32> = layer.kv().key(&layer.tables, 0, t).map(|x| x as f32).collect();
            let (codes, scale) = fp8::quantise(&key, ScaleFormat::F32);
            let block = layer.tables[t / PAGE as usize] as usize;
            cache.store(block * PAGE as usize + t % PAGE as usize, &codes, scale);
            given.extend(key);
        }
        Self { cache, tables: layer.tables, given }
    }

    /// The `k` best positions before `len` for one row of queries.
    fn best(&self, gpu: &Gpu, q: &[f32], gates: &[f32], [len, k]: [u32; 2]) -> Vec<u32> {
        let num_heads = u32::try_from(gates.len()).unwrap();
        let params = IndexLogitsParams { num_heads, logit_stride: len, neg_inf: f32::NEG_INFINITY, rows: 1 };
        let [q, gates] = [q, gates].map(|data| gpu.upload("q", data).unwrap());
        let cache: Vec<u32> = bytemuck::pod_collect_to_vec(self.cache.bytes());
        let [cache, tables] = [&cache, &self.tables].map(|data| gpu.upload("keys", data).unwrap());
        let rows = gpu.upload("rows", &[[0, 0, len, 0]]).unwrap();
        let logits = gpu.upload("logits", &vec![f32::NAN; len as usize]).unwrap();
        let mut pass = Pass::new("indexer");
        let bindings: [_; 6] = [
            (&q).into(),
            (&cache).into(),
            (&tables).into(),
            (&rows).into(),
            (&gates).into(),
            (&logits).into(),
        ];
        let variant = index_logits::variant(&IndexKeys::Fp8 { head_dim: HEAD_DIM, page: PAGE });
        dispatch(gpu, &mut pass, &variant, &params, &bindings);

        let top_rows = gpu.upload("rows", &[[0, len, k, 0]]).unwrap();
        let top = TopKParams { rows: 1, out_stride: k, copies: 1, page_size: 1 };
        let out = gpu.buffer::<u32>("out", k as usize).unwrap();
        let bindings = [(&logits).into(), (&top_rows).into(), (&tables).into(), (&out).into()];
        let variant = top_k::variant(Output::Positions(Transform::Ragged), gpu.profile().top_k_level());
        dispatch(gpu, &mut pass, &variant, &top, &bindings);
        let read = pass.read(&out, 0..out.len());
        gpu.submit(pass).unwrap().wait().unwrap().get(read)
    }
}

/// Selects the tokens that the policy does, which quantises queries and keys itself.
#[test]
fn selects_as_the_policy_does() {
    let Some(gpu) = gpu() else { return };
    let (dim, len, best) = (HEAD_DIM as usize, 700_u32, 100);
    for heads in [64, 32] {
        let indexed = Indexed::new(len, 7);
        let mut rng = StdRng::seed_from_u64(7);
        let q: Vec<f32> = (0..heads * dim).map(|_| rng.random_range(-1.0..1.0)).collect();
        let gates: Vec<f32> = (0..heads).map(|_| rng.random_range(-0.5..1.0)).collect();
        let norm = 1.0 / ((heads as f32).sqrt() * (dim as f32).sqrt());
        let (mut coded, mut scaled) = (Vec::new(), Vec::new());
        for (q, gate) in q.chunks_exact(dim).zip(&gates) {
            let (codes, scale) = fp8::quantise(q, ScaleFormat::F32);
            coded.extend(codes.into_iter().map(fp8::decode));
            scaled.push(gate * scale * norm);
        }
        let got = indexed.best(gpu, &coded, &scaled, [len, best]);
        let policy = sparse_select::build("dsa:index_topk=100").unwrap();
        let q = Heads::new("q", &q, [heads, 1, dim]).unwrap();
        let k = Heads::new("k", &indexed.given, [1, len as usize, dim]).unwrap();
        let mut out = Selection::new();
        policy.select_into(&Input { gates: Some(&gates), ..Input::decode(q, k) }, &mut out).unwrap();
        let want: Vec<u32> = out.row(0, 0).iter().map(|b| b.get()).collect();
        assert_eq!(got, want, "{heads} heads");
    }
}
