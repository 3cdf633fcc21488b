//! `hash_codes` and `hamming_score` against their references, and with a top-k against the KVComp policy of
//! `sparse-select`.

use super::by_hand::dispatch;
use super::device::{assert_bits, gpu};
use super::layer::{Layer, queries};
use attn_kernels::cpu;
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::kernel::hamming_score::{self, HammingScoreParams};
use attn_kernels::kernel::hash_codes::{self, HashCodesParams, HashSource};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sparse_select::policy::kvcomp::{self, KvComp, Projection};
use sparse_select::topk::top_k;
use sparse_select::{Heads, Params, Spec};

/// Rows that retrieve from hashed caches.
struct Retrieval {
    layer: Layer,
    group: u32,
    lens: Vec<u32>,
    q: Vec<f32>,
    policy: KvComp,
}

/// Outputs of the kernels.
struct Retrieved {
    key_codes: Vec<u32>,
    query_codes: Vec<u32>,
    scores: Vec<f32>,
}

impl Retrieval {
    fn new(shape: KvShape, group: u32, lens: &[u32], spec: &str) -> Self {
        let spec: Spec = spec.parse().unwrap();
        let params = Params::new("kvcomp", kvcomp::ENTRY.keys, &spec.params).unwrap();
        let width = (shape.num_kv_heads * group * shape.head_dim) as usize;
        Self {
            layer: Layer::new(shape, lens, 3),
            group,
            lens: lens.into(),
            q: queries(lens.len(), width, width, 3),
            policy: KvComp::from_params(&params).unwrap(),
        }
    }

    fn projection(&self) -> Projection {
        let p = &self.policy;
        Projection::seeded(self.layer.shape.head_dim as usize, &p.parts, p.hash_bits, p.seed)
    }

    /// Words of a code.
    fn words(&self) -> u32 {
        self.policy.hash_bits / 32 * u32::try_from(self.policy.parts.len().max(1)).unwrap()
    }

    fn rows(&self) -> Vec<[u32; 4]> {
        let row = |(len, table): (&u32, &u32)| [0, *len, *table, 0];
        self.lens.iter().zip(&self.layer.table_of).map(row).collect()
    }

    fn score_params(&self) -> HammingScoreParams {
        let block = self.policy.block_size.get();
        let mut must_select = [0; 4];
        let must = self.policy.must_select.iter().map(|&m| i32::try_from(m).unwrap());
        must_select.iter_mut().zip(must).for_each(|(to, m)| *to = m);
        HammingScoreParams {
            num_kv_heads: self.layer.shape.num_kv_heads,
            score_stride: self.lens.iter().max().unwrap().div_ceil(block) + 2,
            sink_tokens: self.policy.sink * block,
            recent_tokens: self.policy.recent * block,
            must_select,
            num_must: u32::try_from(self.policy.must_select.len()).unwrap(),
            infinity: f32::INFINITY,
            rows: params_rows(&self.lens),
        }
    }

    fn on_gpu(&self, gpu: &Gpu) -> Retrieved {
        let (shape, words) = (&self.layer.shape, self.words());
        let [k_cache, _] = self.layer.upload(gpu).unwrap();
        let width = self.group * shape.num_kv_heads * shape.head_dim;
        let slots: Vec<u32> = self.slots();
        let row_ids: Vec<u32> = (0..u32::try_from(self.lens.len()).unwrap()).collect();
        let blocks = u32::try_from(self.layer.k.len()).unwrap() / (shape.num_kv_heads * shape.head_dim);
        let key_codes = gpu.buffer::<u32>("codes", (blocks * shape.num_kv_heads * words) as usize).unwrap();
        let query_len = row_ids.len() * (shape.num_kv_heads * words) as usize;
        let query_codes = gpu.buffer::<u32>("codes", query_len).unwrap();
        let q = gpu.upload("q", &self.q).unwrap();
        let mut pass = Pass::new("hash");
        let mut first = 0;
        for (part, (channels, weights)) in (0..).zip(self.projection().parts()) {
            let channels = u32::try_from(channels).unwrap();
            let weights = gpu.upload("weights", &weights).unwrap();
            let mut hash = |source, entries: &[u32], x, limit: u32, codes| {
                let params = HashCodesParams {
                    num_kv_heads: shape.num_kv_heads,
                    entries: u32::try_from(entries.len()).unwrap(),
                    group: self.group,
                    q_stride: width,
                    first_channel: first,
                    channels,
                    bits: self.policy.hash_bits,
                    first_word: part * self.policy.hash_bits / 32,
                    words,
                    first_block: 0,
                    num_blocks: u32::MAX,
                };
                hash_codes::check(shape, &params, entries, limit as usize).unwrap();
                let entries = gpu.upload("entries", entries).unwrap();
                let bindings = [(&entries).into(), x, (&weights).into(), codes];
                let variant = hash_codes::variant(shape, source);
                dispatch(gpu, &mut pass, &variant, &params, &bindings);
            };
            hash(HashSource::Keys, &slots, (&k_cache).into(), blocks * shape.block_size, (&key_codes).into());
            hash(HashSource::Queries, &row_ids, (&q).into(), params_rows(&row_ids), (&query_codes).into());
            first += channels;
        }
        let (params, rows, block) = (self.score_params(), self.rows(), self.policy.block_size.get());
        let len = rows.len() * params.score_stride as usize;
        let tables = gpu.upload("tables", &self.layer.tables).unwrap();
        let rows_buf = gpu.upload("rows", &rows).unwrap();
        let scores = gpu.upload("scores", &vec![f32::NAN; len]).unwrap();
        let bindings: [_; 5] = [
            (&query_codes).into(),
            (&key_codes).into(),
            (&tables).into(),
            (&rows_buf).into(),
            (&scores).into(),
        ];
        dispatch(gpu, &mut pass, &hamming_score::variant(shape, block, words), &params, &bindings);
        let reads = [&key_codes, &query_codes].map(|buf| pass.read(buf, 0..buf.len()));
        let read = pass.read(&scores, 0..len);
        let outcome = gpu.submit(pass).unwrap().wait().unwrap();
        let [key_codes, query_codes] = reads.map(|read| outcome.get(read));
        Retrieved { key_codes, query_codes, scores: outcome.get(read) }
    }

    /// Slots of all tokens.
    fn slots(&self) -> Vec<u32> {
        let size = self.layer.shape.block_size;
        let of_row = |row: &[u32; 4]| {
            let [_, len, table, _] = *row;
            let tables = &self.layer.tables;
            (0..len).map(move |t| tables[(table + t / size) as usize] * size + t % size)
        };
        self.rows().iter().flat_map(of_row).collect()
    }

    /// Query `[heads, 1, head_dim]` and keys of a row.
    fn tensors(&self, row: usize) -> (Vec<f32>, Vec<f32>) {
        let (shape, table) = (&self.layer.shape, self.layer.table_of[row] as usize);
        let width = (shape.num_kv_heads * self.group * shape.head_dim) as usize;
        let (kv, table) = (self.layer.kv(), &self.layer.tables[table..]);
        let len = self.lens[row] as usize;
        let keys = (0..shape.num_kv_heads as usize)
            .flat_map(|head| (0..len).flat_map(move |t| kv.key(table, head, t).collect::<Vec<_>>()));
        #[expect(clippy::cast_possible_truncation, reason = "the f64 holds an f32")]
        let keys = keys.map(|x| x as f32).collect();
        (self.q[row * width..][..width].to_vec(), keys)
    }

    fn check(&self, gpu: &Gpu) {
        let got = self.on_gpu(gpu);
        let (shape, words) = (&self.layer.shape, self.words() as usize);
        let (dim, kv_heads) = (shape.head_dim as usize, shape.num_kv_heads as usize);
        let params = self.score_params();
        let mut want = vec![f32::NAN; got.scores.len()];
        let block = self.policy.block_size.get() as usize;
        let kinds = (shape, block, words);
        let (tables, rows) = (&self.layer.tables, self.rows());
        cpu::hamming_score::hamming_score(
            kinds,
            &params,
            &got.query_codes,
            &got.key_codes,
            tables,
            &rows,
            &mut want,
        );
        assert_bits(&format!("scores, {shape:?}, {:?}", self.lens), &got.scores, &want);
        for row in 0..self.lens.len() {
            let (q, k) = self.tensors(row);
            let len = self.lens[row] as usize;
            let q = Heads::new("q", &q, [kv_heads * self.group as usize, 1, dim]).unwrap();
            let k = Heads::new("k", &k, [kv_heads, len, dim]).unwrap();
            for (head, query) in sparse_select::heads::group_mean(&q, kv_heads, 0).iter().enumerate() {
                let code: Vec<u32> = bytemuck::pod_collect_to_vec(&self.projection().hash(query));
                let at = (row * kv_heads + head) * words;
                assert_eq!(got.query_codes[at..at + words], code, "query {row}, {head}");
            }
            let blocks = self.policy.budget_blocks(None, len);
            let want = self.policy.select_blocks(&self.policy.distances(&q, &k), blocks);
            let scores = &got.scores[row * params.score_stride as usize..][..len.div_ceil(block)];
            assert_eq!(top_k(scores, blocks), want, "{shape:?}, row {row}");
        }
    }
}

fn params_rows(rows: &[u32]) -> u32 {
    u32::try_from(rows.len()).unwrap()
}

fn shape(num_kv_heads: u32, head_dim: u32, block_size: u32, dtype: KvDtype) -> KvShape {
    KvShape { num_kv_heads, head_dim, block_size, dtype, layout: KvLayout::Native }
}

#[test]
fn retrieves_as_the_policy_does() {
    let Some(gpu) = gpu() else { return };
    let (f16, f32) = (KvDtype::F16, KvDtype::F32);
    let small = "kvcomp:block_size=16,sink=1,recent=2,topk_tokens=80,length_threshold=80";
    Retrieval::new(shape(2, 64, 16, f16), 3, &[500, 77, 1, 16, 17], small).check(gpu);
    // Pages smaller than blocks; parts hashed apart.
    let parts = "kvcomp:block_size=64,sink=0,recent=1,topk_tokens=128,length_threshold=128,\
                 hash_bits=64,parts=48:24,must_select=-1:1";
    Retrieval::new(shape(1, 72, 8, f32), 2, &[700, 65], parts).check(gpu);
    let large = "kvcomp:block_size=512,sink=0,recent=1,topk_tokens=1024,length_threshold=1024,\
                 hash_bits=160";
    Retrieval::new(shape(1, 16, 256, f16), 1, &[2600], large).check(gpu);
}

#[test]
fn codes_of_exact_products_are_those_of_the_reference() {
    let Some(gpu) = gpu() else { return };
    // Multiples of 1/8: products are exact, and some sums are exactly 0, whose bit is 0.
    let retrieval = {
        let spec = "kvcomp:block_size=16,sink=0,recent=1,topk_tokens=32,length_threshold=32";
        let mut retrieval = Retrieval::new(shape(1, 8, 16, KvDtype::F32), 1, &[150], spec);
        retrieval.layer.k.iter_mut().for_each(|x| *x = (*x * 2.0).round() / 8.0);
        retrieval
    };
    let mut rng = StdRng::seed_from_u64(5);
    let weights: Vec<f32> = (0..8 * 96).map(|_| f32::from(rng.random_range(-2..=2_i8)) / 8.0).collect();
    let slots = retrieval.slots();
    let params = HashCodesParams {
        num_kv_heads: 1,
        entries: 150,
        group: 1,
        q_stride: 8,
        first_channel: 0,
        channels: 8,
        bits: 96,
        first_word: 1,
        words: 4,
        first_block: 0,
        num_blocks: u32::MAX,
    };
    let [k, _] = retrieval.layer.upload(gpu).unwrap();
    let [entries, weight_buf] = [
        gpu.upload("slots", &slots).unwrap(),
        gpu.upload("weights", bytemuck::cast_slice(&weights)).unwrap(),
    ];
    let codes = gpu.upload("codes", &vec![77_777_u32; retrieval.layer.k.len() / 8 * 4]).unwrap();
    let mut pass = Pass::new("hash");
    let bindings = [(&entries).into(), (&k).into(), (&weight_buf).into(), (&codes).into()];
    let variant = hash_codes::variant(&retrieval.layer.shape, HashSource::Keys);
    dispatch(gpu, &mut pass, &variant, &params, &bindings);
    let read = pass.read(&codes, 0..codes.len());
    let got: Vec<u32> = gpu.submit(pass).unwrap().wait().unwrap().get(read);
    let (_, keys) = retrieval.tensors(0);
    for (t, &slot) in slots.iter().enumerate() {
        let want = cpu::hash_codes::hash_code(&params, &keys[t * 8..][..8], &weights);
        assert_eq!(got[slot as usize * 4], 77_777, "a word of another part");
        assert_eq!(got[slot as usize * 4 + 1..][..3], want, "token {t}");
    }
}

#[test]
fn launches_out_of_range_are_refused() {
    let shape = shape(1, 72, 8, KvDtype::F16);
    let hash = HashCodesParams {
        num_kv_heads: 1,
        entries: 2,
        group: 1,
        q_stride: 72,
        first_channel: 48,
        channels: 24,
        bits: 64,
        first_word: 2,
        words: 4,
        first_block: 0,
        num_blocks: u32::MAX,
    };
    let error = |change: fn(&mut HashCodesParams), entries: &[u32]| {
        let mut params = hash;
        change(&mut params);
        hash_codes::check(&shape, &params, entries, 80).unwrap_err().to_string()
    };
    assert_eq!(hash_codes::check(&shape, &hash, &[0, 79], 80), Ok(()));
    insta::assert_snapshot!(error(|_| {}, &[0, 80]), @"hash_codes: index + 1 of entry 1 is 81, the limit is 80");
    insta::assert_snapshot!(error(|p| p.channels = 32, &[0, 1]), @"hash_codes: channel after the last is 80, the limit is 72");
    insta::assert_snapshot!(error(|p| p.bits = 60, &[0, 1]), @"hash_codes: bits is 60, not a multiple of 32");
    insta::assert_snapshot!(error(|p| p.bits = 96, &[0, 1]), @"hash_codes: word after the last is 5, the limit is 4");
}
