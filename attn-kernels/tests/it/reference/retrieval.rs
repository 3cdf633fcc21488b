//! `hash_codes` and `hamming_score` one after the other, and with a top-k, against the KVComp policy of `sparse-select`.

use super::device::gpu;
use super::layer::{Layer, queries};
use super::properties::{after, assert_leaves_reference};
use attn_kernels::cpu::{self, Tolerance};
use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::hamming_score::{self, HammingScoreParams};
use attn_kernels::kernel::hash_codes::{self, HashCodesParams, HashSource};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use attn_kernels::self_test::Case;
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

    /// Codes of all keys, in the order of slots, and of the mean queries of all rows.
    fn codes(&self, gpu: &Gpu) -> [Vec<u32>; 2] {
        let (shape, words) = (&self.layer.shape, self.words());
        let of_token = shape.num_kv_heads * words;
        let slots = self.layer.num_blocks() * shape.block_size;
        let rows: Vec<u32> = (0..params_rows(&self.lens)).collect();
        let [keys, _] = self.layer.words();
        let queries: Vec<u32> = self.q.iter().map(|x| x.to_bits()).collect();
        let mut first_channel = 0;
        let [mut of_keys, mut of_queries] =
            [slots, params_rows(&rows)].map(|tokens| vec![0; (tokens * of_token) as usize]);
        for (part, (channels, weights)) in (0..).zip(self.projection().parts()) {
            let channels = u32::try_from(channels).unwrap();
            let hash = |source, entries: &[u32], x: &[u32], limit: u32, codes: &mut Vec<u32>| {
                let params = HashCodesParams {
                    num_kv_heads: shape.num_kv_heads,
                    entries: u32::try_from(entries.len()).unwrap(),
                    group: self.group,
                    q_stride: self.group * shape.num_kv_heads * shape.head_dim,
                    first_channel,
                    channels,
                    bits: self.policy.hash_bits,
                    first_word: part * self.policy.hash_bits / 32,
                    words,
                    first_block: 0,
                    num_blocks: u32::MAX,
                };
                hash_codes::check(shape, &params, entries, limit as usize).unwrap();
                let case = Case::new("codes", &hash_codes::variant(shape, source), &params);
                let case = case.binding(entries).binding(x).binding(&weights).binding(codes);
                *codes = after(gpu, &case).swap_remove(3);
            };
            hash(HashSource::Keys, &self.slots(), &keys, slots, &mut of_keys);
            hash(HashSource::Queries, &rows, &queries, params_rows(&rows), &mut of_queries);
            first_channel += channels;
        }
        [of_keys, of_queries]
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

    /// Codes are those of the policy, scores of them are exact, and the best blocks are the policy's.
    fn check(&self, gpu: &Gpu) {
        let [key_codes, query_codes] = self.codes(gpu);
        let (shape, words) = (&self.layer.shape, self.words() as usize);
        let (dim, kv_heads) = (shape.head_dim as usize, shape.num_kv_heads as usize);
        let (params, rows, block) = (self.score_params(), self.rows(), self.policy.block_size.get());
        let mut scores = vec![f32::NAN; rows.len() * params.score_stride as usize];
        let (kinds, tables) = ((shape, block as usize, words), &self.layer.tables);
        cpu::hamming_score::hamming_score(
            kinds,
            &params,
            &query_codes,
            &key_codes,
            tables,
            &rows,
            &mut scores,
        );
        let case = Case::new("scores", &hamming_score::variant(shape, block, self.words()), &params)
            .binding(&query_codes)
            .binding(&key_codes)
            .binding(tables)
            .binding(&rows)
            .output(Tolerance::EXACT, &scores);
        assert_leaves_reference(gpu, &case);
        for row in 0..self.lens.len() {
            let (q, k) = self.tensors(row);
            let len = self.lens[row] as usize;
            let q = Heads::new("q", &q, [kv_heads * self.group as usize, 1, dim]).unwrap();
            let k = Heads::new("k", &k, [kv_heads, len, dim]).unwrap();
            for (head, query) in sparse_select::heads::group_mean(&q, kv_heads, 0).iter().enumerate() {
                let code: Vec<u32> = bytemuck::pod_collect_to_vec(&self.projection().hash(query));
                let at = (row * kv_heads + head) * words;
                assert_eq!(query_codes[at..at + words], code, "query {row}, {head}");
            }
            let blocks = self.policy.budget_blocks(None, len);
            let want = self.policy.select_blocks(&self.policy.distances(&q, &k), blocks);
            let scores = &scores[row * params.score_stride as usize..][..len.div_ceil(block as usize)];
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
