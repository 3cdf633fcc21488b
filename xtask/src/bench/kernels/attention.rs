//! Attention: decode and prefill over paged KV in random blocks, dense and over selected blocks.

use anyhow::Result;
use attn_kernels::Level;
use attn_kernels::gpu::{Bind, Buf, Gpu};
use attn_kernels::kernel::attention::Attention;
use attn_kernels::kernel::paged_decode::{self, PagedDecodeParams, partitions};
use attn_kernels::kernel::paged_prefill::{self, KeyLoads, PagedPrefillParams, TILE_ROWS, Tile};
use attn_kernels::kernel::paged_reduce::{self, PagedReduceParams};
use attn_kernels::kernel::{KvDtype, KvShape, paged_prefill_coop};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};

use super::ceiling::random;
use super::work::Work;

/// Tokens of a block that lists select.
const SELECT_BLOCK: u32 = 64;

/// Heads and types of a model's attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    pub(super) num_heads: u32,
    pub(super) shape: KvShape,
}

impl Heads {
    pub(super) fn new(num_heads: u32, num_kv_heads: u32, head_dim: u32, dtype: KvDtype) -> Self {
        Self { num_heads, shape: KvShape { num_kv_heads, head_dim, block_size: 16, dtype } }
    }

    pub(super) fn name(&self) -> String {
        let KvShape { num_kv_heads, head_dim, block_size, dtype } = self.shape;
        format!("{}/{num_kv_heads} heads, D {head_dim}, {dtype:?}, block {block_size}", self.num_heads)
    }

    fn width(&self) -> u32 {
        self.num_heads * self.shape.head_dim
    }

    /// Bytes of a token's keys and values.
    fn token_bytes(&self) -> f64 {
        2.0 * self.shape.block_bytes() as f64 / f64::from(self.shape.block_size)
    }

    /// Multiply-adds, counted as two, of one query row and key.
    fn pair_operations(&self) -> f64 {
        4.0 * f64::from(self.width())
    }
}

/// Sequences of one length, each in blocks of its own, in random order.
pub(super) struct Cache {
    pub(super) k: Buf<u32>,
    pub(super) v: Buf<u32>,
    pub(super) tables: Buf<u32>,
    /// Entries of a sequence's table.
    pub(super) blocks: u32,
}

impl Cache {
    pub(super) fn new(gpu: &Gpu, shape: &KvShape, batch: u32, context: u32) -> Result<Self> {
        let blocks = context.div_ceil(shape.block_size);
        let mut tables: Vec<u32> = (0..blocks * batch).collect();
        tables.shuffle(&mut StdRng::seed_from_u64(1));
        let elements = tables.len() * shape.block_bytes() / shape.dtype.bytes();
        Ok(Self {
            k: random(gpu, shape.dtype, elements, 1)?,
            v: random(gpu, shape.dtype, elements, 2)?,
            tables: gpu.upload("tables", &tables)?,
            blocks,
        })
    }
}

/// Random lists `[count, blocks ascending..]`, one for each `(length, lists)`, of a share of its blocks and at least the
/// last one; and the entries from one to the next, and the tokens that all lists hold.
fn lists(lens: impl Iterator<Item = u32>, density: f64) -> (Vec<u32>, u32, f64) {
    let mut random = StdRng::seed_from_u64(3);
    let (mut all, mut tokens) = (Vec::new(), 0.0);
    for len in lens {
        let blocks: Vec<u32> = (0..len.div_ceil(SELECT_BLOCK)).collect();
        let (last, others) = blocks.split_last().expect("no row is empty");
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of the blocks")]
        let more = ((blocks.len() as f64 * density).ceil() as usize).saturating_sub(1).min(others.len());
        let mut list: Vec<u32> = others.sample(&mut random, more).copied().collect();
        list.sort_unstable();
        list.push(*last);
        tokens += f64::from((len - 1) % SELECT_BLOCK + 1) + more as f64 * f64::from(SELECT_BLOCK);
        all.push(list);
    }
    let stride = all.iter().map(Vec::len).max().unwrap_or(0) + 1;
    let mut words = Vec::with_capacity(all.len() * stride);
    for list in all {
        let end = words.len() + stride;
        words.push(u32::try_from(list.len()).expect("blocks fit in 32 bits"));
        words.extend(list);
        words.resize(end, 0);
    }
    (words, u32::try_from(stride).expect("blocks fit in 32 bits"), tokens)
}

/// One decode step of `batch` sequences, the reduce pass included; with `density` over selected blocks.
pub(super) fn decode(
    gpu: &Gpu,
    heads: &Heads,
    [batch, context]: [u32; 2],
    level: Level,
    density: Option<f64>,
) -> Result<Work> {
    let (shape, num_heads, kv_heads) = (&heads.shape, heads.num_heads, heads.shape.num_kv_heads);
    let cache = Cache::new(gpu, shape, batch, context)?;
    let attention = density.map_or(Attention::default(), |_| Attention::blocks(SELECT_BLOCK));
    let listed = density.map(|density| lists((0..batch * kv_heads).map(|_| context), density));
    let (list_stride, tokens) = match &listed {
        Some((_, stride, tokens)) => (*stride, *tokens / f64::from(kv_heads)),
        None => (0, f64::from(batch) * f64::from(context)),
    };
    let attended = if density.is_some() { (list_stride - 1) * SELECT_BLOCK } else { context };
    let max_partitions = partitions(0, attended).max(1);
    let q = random(gpu, KvDtype::F32, (batch * heads.width()) as usize, 4)?;
    let rows: Vec<[u32; 4]> = (0..batch).map(|row| [row, context, row * cache.blocks, 0]).collect();
    let rows = gpu.upload("rows", &rows)?;
    let partials = (batch * num_heads * max_partitions) as usize;
    let partial = gpu.buffer::<f32>("partial", partials * shape.head_dim as usize)?;
    let stats = gpu.buffer::<[f32; 2]>("stats", partials)?;
    let out = gpu.buffer::<f32>("out", (batch * heads.width()) as usize)?;
    let reduced = u32::from(max_partitions > 1);
    let params = PagedDecodeParams {
        num_heads,
        num_kv_heads: kv_heads,
        q_stride: heads.width(),
        max_partitions,
        scale: 1.0 / (shape.head_dim as f32).sqrt(),
        reduced,
        list_stride,
        first_list: 0,
        first_key: 0,
        num_keys: u32::MAX,
        softcap: 0.0,
        k_scale: 1.0,
        v_scale: 1.0,
        pad0: 0,
        pad1: 0,
        pad2: 0,
    };
    let lists = listed.map(|(words, ..)| gpu.upload("lists", &words)).transpose()?;
    let extra = || lists.as_ref().map(Bind::from);
    let kind = density.map_or(String::new(), |density| format!(", {:.0} % of the blocks", density * 100.0));
    let shape_name = format!("{batch} x {context}, {}{kind}", heads.name());
    let kernel = if density.is_some() { "decode, selected" } else { "decode" };
    let binds: Vec<Bind> = vec![
        (&q).into(),
        (&cache.k).into(),
        (&cache.v).into(),
        (&cache.tables).into(),
        (&rows).into(),
        (&partial).into(),
        (&stats).into(),
    ];
    let grid = paged_decode::grid(shape, num_heads, batch, max_partitions);
    let variant = paged_decode::variant(shape, num_heads, level, &attention);
    let work = Work::new(kernel, level.name(), shape_name)
        .costs(tokens * heads.token_bytes(), tokens * heads.pair_operations())
        .dispatch(variant, &params, binds.into_iter().chain(extra()), grid);
    if reduced == 0 {
        return Ok(work);
    }
    let params = PagedReduceParams {
        num_heads,
        num_kv_heads: kv_heads,
        max_partitions,
        list_stride,
        first_list: 0,
        pad0: 0,
        pad1: 0,
        pad2: 0,
    };
    let binds: Vec<Bind> = vec![(&partial).into(), (&stats).into(), (&rows).into(), (&out).into()];
    let grid = paged_reduce::grid(num_heads, batch);
    Ok(work.dispatch(
        paged_reduce::variant(shape, &attention),
        &params,
        binds.into_iter().chain(extra()),
        grid,
    ))
}

/// Causal prefill of one sequence; with `density` over selected blocks of the visible ones, chosen by tile and KV head.
pub(super) fn prefill(gpu: &Gpu, heads: &Heads, len: u32, density: Option<f64>) -> Result<Work> {
    let (shape, num_heads, kv_heads) = (&heads.shape, heads.num_heads, heads.shape.num_kv_heads);
    let coop = gpu.runs_coop() && paged_prefill_coop::serves(shape);
    let tile_rows = if coop { paged_prefill_coop::TILE_ROWS } else { TILE_ROWS };
    let tiles: Vec<Tile> = (0..len)
        .step_by(tile_rows as usize)
        .zip(0..)
        .map(|(row, list)| Tile {
            row,
            rows: tile_rows.min(len - row),
            position: row,
            table: 0,
            list,
            pad: [0; 3],
        })
        .collect();
    let attention = density.map_or(Attention::default(), |_| Attention::blocks(SELECT_BLOCK));
    let ends = tiles.iter().flat_map(|tile| (0..kv_heads).map(|_| tile.position + tile.rows));
    let listed = density.map(|density| lists(ends, density));
    // A row sees half of the keys on average; of a list those of its tile's share.
    let pairs = match (&listed, density) {
        (Some((_, _, tokens)), _) => {
            tokens / f64::from(kv_heads) * f64::from(tile_rows) - f64::from(len) * f64::from(tile_rows) / 2.0
        }
        _ => f64::from(len) * f64::from(len) / 2.0,
    };
    let cache = Cache::new(gpu, shape, 1, len)?;
    let q = random(gpu, KvDtype::F32, len as usize * heads.width() as usize, 4)?;
    let out = gpu.buffer::<f32>("out", q.len())?;
    let lse = gpu.buffer::<f32>("lse", (len * num_heads) as usize)?;
    let count = u32::try_from(tiles.len())?;
    let tiles = gpu.upload("tiles", &tiles)?;
    let lists = listed.as_ref().map(|(words, ..)| gpu.upload("lists", words)).transpose()?;
    let broadcast = gpu.is_cpu() && gpu.level() >= Level::Subgroup && gpu.info().subgroup_min_size >= 8;
    let loads = if broadcast { KeyLoads::Broadcast } else { KeyLoads::Uniform };
    let (variant, grid, level) = if coop {
        (
            paged_prefill_coop::variant(shape, &attention),
            paged_prefill_coop::grid(num_heads, count),
            Level::Coop,
        )
    } else {
        let variant = paged_prefill::variant(shape, num_heads, loads, &attention);
        let level = if broadcast { Level::Subgroup } else { Level::Baseline };
        (variant, paged_prefill::grid(shape, num_heads, loads, count), level)
    };
    let kind = density.map_or(String::new(), |density| format!(", {:.0} % of the blocks", density * 100.0));
    let kernel = if density.is_some() { "prefill, selected" } else { "prefill" };
    let kv = f64::from(len) * heads.token_bytes();
    let rows = 2.0 * f64::from(len) * f64::from(heads.width()) * 4.0;
    let mut work = Work::new(kernel, level.name(), format!("{len}, {}{kind}", heads.name()))
        .costs(kv + rows, pairs * heads.pair_operations());
    for (first_key, num_keys) in paged_prefill::segments(0, len - 1, gpu.is_cpu()) {
        let params = PagedPrefillParams {
            num_heads,
            num_kv_heads: kv_heads,
            q_stride: heads.width(),
            first_key,
            scale: 1.0 / (shape.head_dim as f32).sqrt(),
            neg_inf: f32::NEG_INFINITY,
            num_keys,
            list_stride: listed.as_ref().map_or(0, |(_, stride, _)| *stride),
            window: 0,
            softcap: 0.0,
            k_scale: 1.0,
            v_scale: 1.0,
        };
        let binds: Vec<Bind> = vec![
            (&q).into(),
            (&cache.k).into(),
            (&cache.v).into(),
            (&cache.tables).into(),
            (&tiles).into(),
            (&out).into(),
            (&lse).into(),
        ];
        let binds = binds.into_iter().chain(lists.as_ref().map(Bind::from));
        work = work.dispatch(variant.clone(), &params, binds, grid);
    }
    Ok(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_hold_their_share_and_the_last_block() {
        let (words, stride, tokens) = lists([6400, 130, 1].into_iter(), 0.1);
        assert_eq!((words.len(), stride), (33, 11));
        let list = |i: usize| &words[i * 11 + 1..][..words[i * 11] as usize];
        assert_eq!(list(0).len(), 10);
        assert!(list(0).is_sorted() && list(0)[9] == 99);
        assert_eq!((list(1), list(2)), (&[2][..], &[0][..]));
        assert_eq!(tokens, 640.0 + 2.0 + 1.0);
    }
}
