//! Scores from binary hashes of keys and queries (hash retrieval).

use attn_kernels::kernel::hamming_score::HammingScoreBuffers;
use attn_kernels::kernel::hash_codes::HashCodesBuffers;
use attn_kernels::rows::KvWord;
use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::KvShape;
use attn_kernels::kernel::hamming_score::{self, HammingScoreParams};
use attn_kernels::kernel::hash_codes::{self, HashCodesParams, HashSource, NO_ENTRY};
use bytemuck::Zeroable;
use sparse_select::{ByHashes, SelectError};

use super::super::SelectingRows;
use super::context::RankContext;
use crate::ModelError;
use crate::cast::u32_of;
use crate::decoder::buffers::{GrowBuf, OfLayers};
use crate::decoder::kernels::LoadContext;

/// Maximum number of slots that one dispatch hashes.
const SLOTS: usize = 1 << 17;

/// Hashes of every token and KV head, in each layer that selects.
#[derive(Debug)]
pub(super) struct HashScorer {
    by: ByHashes,
    shape: KvShape,
    num_blocks: u32,
    num_heads: u32,
    /// Number of channels of each part, and the matrix of the part, `[channels, bits]`.
    parts: Vec<(u32, Buf<f32>)>,
    keys: Arc<Pipeline>,
    queries: Arc<Pipeline>,
    score: Arc<Pipeline>,
    /// Hashes of each layer, `[num_blocks, num_kv_heads, block_size, words]`; `None` if the layer does not select.
    pools: Vec<Option<Buf<u32>>>,
    /// Slots of keys to hash, by attention group.
    slots: Vec<(usize, GrowBuf<u32>)>,
    /// Rows of queries to hash.
    rows: GrowBuf<u32>,
    /// Hashes of queries, `[rows, num_kv_heads, words]`.
    codes: OfLayers<u32>,
    params: HammingScoreParams,
}

/// Input of a hash pass: vectors, and a list of `count` entries that names the vectors to hash.
struct Hashed {
    entries: Bind<u32>,
    count: usize,
    vectors: HashInputs,
}

/// Vectors that a hash pass reads.
enum HashInputs {
    /// Keys of a range of blocks.
    Keys(Range<u32>, Bind<KvWord>),
    Queries(Bind<f32>),
}

impl HashScorer {
    pub(super) fn new(
        load: &LoadContext<'_>,
        by: ByHashes,
        select_block: u32,
        selects: &[bool],
        at_once: bool,
    ) -> Result<Self, ModelError> {
        let LoadContext { gpu, config, kv, attn_groups, .. } = *load;
        let (shape, num_blocks) = (*kv.shape(), kv.num_blocks());
        let dim = shape.head_dim as usize;
        let hashed: usize = by.parts.iter().sum();
        if hashed != 0 && hashed != dim {
            return Err(SelectError::Count { tensor: "parts", needed: dim, actual: hashed }.into());
        }
        let upload = |(channels, weights): (usize, Vec<f32>)| -> Result<_, ModelError> {
            Ok((u32_of(channels), gpu.upload("projection", &weights)?))
        };
        let parts: Vec<_> = by.projection(dim).parts().map(upload).collect::<Result<_, _>>()?;
        let words = by.bits / 32 * u32_of(parts.len());
        let len = num_blocks as usize * (shape.num_kv_heads * shape.block_size * words) as usize;
        let pool = |selects: &bool| selects.then(|| gpu.buffer("hashes", len)).transpose();
        Ok(Self {
            keys: gpu.pipeline(&hash_codes::variant(&shape, HashSource::Keys))?,
            queries: gpu.pipeline(&hash_codes::variant(&shape, HashSource::Queries))?,
            score: gpu.pipeline(&hamming_score::variant(&shape, select_block, words))?,
            pools: selects.iter().map(pool).collect::<Result<_, _>>()?,
            slots: (0..attn_groups.all.len())
                .map(|_| Ok((0, GrowBuf::new(gpu, "slots", 1)?)))
                .collect::<Result<_, ModelError>>()?,
            rows: GrowBuf::new(gpu, "hashed_rows", 1)?,
            codes: OfLayers::new(gpu, "query_hashes", 1, at_once.then_some(selects.len()))?,
            params: HammingScoreParams::zeroed(),
            num_heads: config.num_heads,
            by,
            shape,
            num_blocks,
            parts,
        })
    }

    /// Plans the full blocks to hash in the layers of an attention group, in a list of `list_len` blocks.
    pub(super) fn touch(
        &mut self,
        gpu: &Gpu,
        attn_group: usize,
        blocks: &[u32],
        list_len: usize,
    ) -> Result<(), ModelError> {
        let size = self.shape.block_size;
        let mut list: Vec<u32> = blocks.iter().flat_map(|block| block * size..(block + 1) * size).collect();
        list.resize(list_len * size as usize, NO_ENTRY);
        let limit = self.num_blocks as usize * size as usize;
        for list in list.chunks(SLOTS) {
            hash_codes::check(&self.shape, &self.hash(0, list.len(), 0..u32::MAX), list, limit)?;
        }
        let (count, slots) = &mut self.slots[attn_group];
        slots.write(gpu, &list)?;
        *count = list.len();
        Ok(())
    }

    /// Plans the decode rows of a step.
    pub(super) fn begin(
        &mut self,
        gpu: &Gpu,
        selecting: &[SelectingRows],
        score_stride: u32,
    ) -> Result<(), ModelError> {
        let rows: Vec<u32> = selecting.iter().map(|selecting| selecting.q_row).collect();
        self.rows.write(gpu, &rows)?;
        let code_words = self.shape.num_kv_heads * self.words();
        self.codes.fit(gpu, rows.len() * code_words as usize)?;
        let mut must_select = [0; 4];
        must_select[..self.by.must_select.len()].copy_from_slice(&self.by.must_select);
        self.params = HammingScoreParams {
            num_kv_heads: self.shape.num_kv_heads,
            score_stride,
            sink_tokens: self.by.sink_tokens,
            recent_tokens: self.by.recent_tokens,
            must_select,
            num_must: u32_of(self.by.must_select.len()),
            infinity: f32::INFINITY,
            // Each dispatch sets its own.
            rows: 0,
        };
        Ok(())
    }

    /// Adds the numbers that the step's commands depend on.
    pub(super) fn shape(&self, shape: &mut Vec<usize>) {
        shape.extend(self.slots.iter().flat_map(|(count, list)| [*count, list.len()]));
        shape.extend([self.rows.len(), self.codes.of(0).len()]);
    }

    pub(super) fn summarise(&self, pass: &mut Pass, context: &RankContext<'_>) {
        let (Some(pool), (count, slots)) = (&self.pools[context.layer], &self.slots[context.attn_group])
        else {
            return;
        };
        for first in (0..*count).step_by(SLOTS) {
            for (held, [k, _]) in context.kv.by_id(context.layer) {
                let (entries, count) = (slots.bind_from(first), SLOTS.min(count - first));
                let of = Hashed { entries, count, vectors: HashInputs::Keys(held, k.bind()) };
                self.record(pass, &self.keys, &of, pool);
            }
        }
    }

    pub(super) fn prepare(&self, pass: &mut Pass, context: &RankContext<'_>) {
        let (entries, count) = (self.rows.bind(), context.count as usize);
        let of = Hashed { entries, count, vectors: HashInputs::Queries(context.q.bind()) };
        self.record(pass, &self.queries, &of, self.codes.of(context.layer));
    }

    pub(super) fn score(&self, pass: &mut Pass, context: &RankContext<'_>, scores: &Buf<f32>) {
        let Some(pool) = &self.pools[context.layer] else { return };
        let buffers = HammingScoreBuffers {
            queries: self.codes.of(context.layer).bind(),
            codes: pool.bind(),
            tables: context.tables.bind(),
            rows: context.rows.bind(),
            scores: scores.bind(),
        };
        let params = HammingScoreParams { rows: context.count, ..self.params };
        pass.dispatch(&self.score, &params, buffers);
    }

    /// Records the hashes of vectors, part by part.
    fn record(&self, pass: &mut Pass, pipeline: &Arc<Pipeline>, of: &Hashed, codes: &Buf<u32>) {
        for (part, (_, weights)) in self.parts.iter().enumerate() {
            let (held, k_cache, q) = match &of.vectors {
                HashInputs::Keys(held, keys) => (held.clone(), Some(keys.clone()), None),
                HashInputs::Queries(queries) => (0..u32::MAX, None, Some(queries.clone())),
            };
            let params = self.hash(part, of.count, held);
            let (entries, weights, codes) = (of.entries.clone(), weights.bind(), codes.bind());
            let buffers = HashCodesBuffers { entries, k_cache, q, weights, codes };
            pass.dispatch(pipeline, &params, buffers);
        }
    }

    /// Returns the parameters of part `part` of the hashes of `entries` vectors. Keys are hashed if they are in the
    /// blocks `held`.
    fn hash(&self, part: usize, entries: usize, held: Range<u32>) -> HashCodesParams {
        HashCodesParams {
            num_kv_heads: self.shape.num_kv_heads,
            entries: u32_of(entries),
            group: self.num_heads / self.shape.num_kv_heads,
            q_stride: self.num_heads * self.shape.head_dim,
            first_channel: self.parts[..part].iter().map(|(channels, _)| channels).sum(),
            channels: self.parts[part].0,
            bits: self.by.bits,
            first_word: self.by.bits / 32 * u32_of(part),
            words: self.words(),
            first_block: held.start,
            num_blocks: held.end - held.start,
        }
    }

    /// Length of a hash, in u32.
    fn words(&self) -> u32 {
        self.by.bits / 32 * u32_of(self.parts.len())
    }
}
