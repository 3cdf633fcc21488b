//! Attention over paged KV in random blocks: one step of decode, and rows of a prompt, dense and over listed blocks.

use std::ops::Range;

use anyhow::Result;
use attn_kernels::Level;
use attn_kernels::gpu::{Bound, Buf, Gpu};
use attn_kernels::kernel::attention::Attention;
use attn_kernels::kernel::paged_decode::{self, Lanes, PagedDecodeParams};
use attn_kernels::kernel::paged_prefill::{self, KeyLoads, PagedPrefillParams, Tile};
use attn_kernels::kernel::paged_reduce::{self, PagedReduceParams};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape, paged_prefill_coop};
use attn_kernels::rows::DecodeRow;
use attn_kernels::self_test::Size;
use attn_kernels::split::{SplitCache, SplitPlan, SplitPlanner};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::ceiling::random;
use super::lists::{Lists, SELECT_BLOCK};
use super::work::Work;

/// Heads and types of a model's attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    pub(super) num_heads: u32,
    pub(super) shape: KvShape,
}

impl Heads {
    pub(super) fn new(num_heads: u32, num_kv_heads: u32, head_dim: u32, dtype: KvDtype) -> Self {
        Self {
            num_heads,
            shape: KvShape { num_kv_heads, head_dim, block_size: 16, dtype, layout: KvLayout::Native },
        }
    }

    /// Sets the tokens of a block.
    pub(super) fn paged(self, block_size: u32) -> Self {
        Self { shape: KvShape { block_size, ..self.shape }, ..self }
    }

    /// One sequence and one row, and lists of a tenth of the blocks.
    pub(super) fn size(&self) -> Size {
        let Self { num_heads, shape: cache } = *self;
        Size {
            num_heads,
            cache,
            rows: 1,
            batch: 1,
            context: 1,
            select_block: SELECT_BLOCK,
            density: 0.1,
            k: 1,
        }
    }

    pub(super) fn name(&self) -> String {
        let KvShape { num_kv_heads, head_dim, block_size, dtype, .. } = self.shape;
        format!("{}/{num_kv_heads} heads, D {head_dim}, {dtype:?}, block {block_size}", self.num_heads)
    }

    /// f32 of a row of queries.
    pub(super) fn width(&self) -> u32 {
        self.num_heads * self.shape.head_dim
    }

    /// Bytes of a token's keys and values.
    pub(super) fn token_bytes(&self) -> f64 {
        2.0 * self.shape.block_bytes() as f64 / f64::from(self.shape.block_size)
    }

    /// Multiply-adds, counted as two, of one query row and key.
    pub(super) fn pair_operations(&self) -> f64 {
        4.0 * f64::from(self.width())
    }

    pub(super) fn scale(&self) -> f32 {
        1.0 / (self.shape.head_dim as f32).sqrt()
    }
}

/// Sequences, each in blocks of its own, in random order.
pub(super) struct Cache {
    pub(super) k: Buf<u32>,
    pub(super) v: Buf<u32>,
    pub(super) tables: Buf<u32>,
    pub(super) table: Vec<u32>,
    /// Rows of decode, one a sequence: row of q, KV length, first entry of its table, first key.
    pub(super) rows: Vec<[u32; 4]>,
}

impl Cache {
    pub(super) fn new(gpu: &Gpu, shape: &KvShape, lens: &[u32]) -> Result<Self> {
        let mut rows = Vec::with_capacity(lens.len());
        let mut blocks = 0;
        for (row, len) in (0..).zip(lens) {
            rows.push([row, *len, blocks, 0]);
            blocks += len.div_ceil(shape.block_size);
        }
        let mut table: Vec<u32> = (0..blocks).collect();
        table.shuffle(&mut StdRng::seed_from_u64(1));
        let elements = table.len() * shape.block_bytes() / shape.dtype.bytes() as usize;
        Ok(Self {
            k: random(gpu, shape.dtype, elements, 1)?,
            v: random(gpu, shape.dtype, elements, 2)?,
            tables: gpu.upload("tables", &table)?,
            table,
            rows,
        })
    }

    /// Tokens of all sequences.
    fn tokens(&self) -> f64 {
        self.rows.iter().map(|row| f64::from(row[1])).sum()
    }
}

/// One step of decode.
pub(super) struct Step {
    pub(super) heads: Heads,
    pub(super) cache: Cache,
    pub(super) q: Buf<u32>,
    pub(super) rows: Buf<[u32; 4]>,
    /// Lengths, as text.
    pub(super) name: String,
}

impl Step {
    /// `batch` sequences of `context` tokens.
    pub(super) fn new(gpu: &Gpu, heads: &Heads, [batch, context]: [u32; 2]) -> Result<Self> {
        Self::of(gpu, heads, &vec![context; batch as usize], format!("{batch} x {context}"))
    }

    pub(super) fn of(gpu: &Gpu, heads: &Heads, lens: &[u32], name: String) -> Result<Self> {
        let cache = Cache::new(gpu, &heads.shape, lens)?;
        let q = random(gpu, KvDtype::F32, lens.len() * heads.width() as usize, 4)?;
        let rows = gpu.upload("rows", &cache.rows)?;
        Ok(Self { heads: *heads, cache, q, rows, name })
    }

    /// Sequences.
    pub(super) fn batch(&self) -> u32 {
        u32::try_from(self.cache.rows.len()).expect("few sequences")
    }

    /// Splits the keys of all rows, or of the blocks of lists.
    pub(super) fn split(&self, gpu: &Gpu, lists: Option<&Lists>) -> SplitPlan {
        let Heads { num_heads, shape } = &self.heads;
        let most = lists.map_or(u32::MAX, |lists| (lists.stride - 1) * lists.block);
        let row = |row: &[u32; 4]| DecodeRow { row: row[0], len: row[1], table: row[2], first_key: row[3] };
        let rows: Vec<_> = self.cache.rows.iter().map(row).collect();
        let longest = rows.iter().map(|row| row.len).max().unwrap_or(0);
        let planner = SplitPlanner::new(gpu.profile(), SplitCache::Heads(*shape), *num_heads, longest);
        planner.listed(&rows, most, None)
    }

    /// Attention of all rows, including the reduce pass; if there are lists, of the listed blocks.
    pub(super) fn attend(&self, gpu: &Gpu, lists: Option<&Lists>) -> Result<Work> {
        let Heads { num_heads, shape } = &self.heads;
        let (heads, batch) = (&self.heads, self.batch());
        let attention = lists.map_or(Attention::default(), |lists| Attention::blocks(lists.block));
        let tokens = lists.map_or_else(|| self.cache.tokens(), |lists| lists.tokens);
        let SplitPlan { lanes, partition_size, max_partitions } = self.split(gpu, lists);
        let partials = (batch * num_heads * max_partitions) as usize;
        let partial = gpu.buffer::<f32>("partial", partials * shape.head_dim as usize)?;
        let stats = gpu.buffer::<[f32; 2]>("stats", partials)?;
        let out = gpu.buffer::<f32>("out", (batch * heads.width()) as usize)?;
        let (reduced, list_stride) = (u32::from(max_partitions > 1), lists.map_or(0, |lists| lists.stride));
        let params = PagedDecodeParams {
            num_heads: *num_heads,
            num_kv_heads: shape.num_kv_heads,
            q_stride: heads.width(),
            max_partitions,
            partition_size,
            scale: heads.scale(),
            reduced,
            list_stride,
            ..PagedDecodeParams::default()
        };
        let listed = || lists.map(|lists| Bound::from(&lists.buffer));
        let binds: Vec<Bound> = vec![
            (&self.q).into(),
            (&self.cache.k).into(),
            (&self.cache.v).into(),
            (&self.cache.tables).into(),
            (&self.rows).into(),
            (&partial).into(),
            (&stats).into(),
        ];
        let (kernel, kind) =
            lists.map_or(("decode", String::new()), |lists| ("decode, selected", lists.kind()));
        let level = match lanes {
            Lanes::Workgroup => Level::Baseline,
            Lanes::Subgroup(_) => Level::Subgroup,
            Lanes::Matrices => Level::Coop,
        };
        let work = Work::new(kernel, level.name(), format!("{}, {}{kind}", self.name, heads.name()))
            .costs(tokens * heads.token_bytes(), tokens * heads.pair_operations())
            .dispatch(
                paged_decode::variant(shape, *num_heads, lanes, &attention),
                &params,
                binds.into_iter().chain(listed()),
                paged_decode::grid(&params, shape, lanes, batch),
            );
        if reduced == 0 {
            return Ok(work);
        }
        let params = PagedReduceParams::from(&params);
        let binds: Vec<Bound> = vec![(&partial).into(), (&stats).into(), (&self.rows).into(), (&out).into()];
        let variant = paged_reduce::variant(shape, &attention);
        let grid = paged_reduce::grid(&params, batch);
        Ok(work.dispatch(variant, &params, binds.into_iter().chain(listed()), grid))
    }
}

/// Rows of a prompt, whose queries are the rows of `q`, over all keys up to their own.
pub(super) struct Rows<'a> {
    pub(super) heads: Heads,
    pub(super) cache: &'a Cache,
    pub(super) q: Bound,
    /// Positions.
    pub(super) range: Range<u32>,
    /// f32 `[rows, heads, head_dim]`, and `[rows, heads]`.
    pub(super) out: Bound,
    pub(super) lse: Bound,
    /// Natural logarithm of the threshold times the keys of a row, if keys of little weight are skipped.
    pub(super) log_skip: Option<f32>,
}

/// Query rows of a workgroup, which lists are shared by at least.
pub(super) fn tile_rows(gpu: &Gpu, shape: &KvShape) -> u32 {
    match runs_coop(gpu, shape) {
        true => paged_prefill_coop::TILE_ROWS,
        false => paged_prefill::tile_rows(key_loads(gpu)),
    }
}

/// The loads of keys that suit `paged_prefill` on a device.
fn key_loads(gpu: &Gpu) -> KeyLoads {
    if gpu.profile().broadcasts() { KeyLoads::Broadcast } else { KeyLoads::Uniform }
}

fn runs_coop(gpu: &Gpu, shape: &KvShape) -> bool {
    gpu.runs_coop() && paged_prefill_coop::serves(shape)
}

impl Rows<'_> {
    /// Causal attention; if there are lists, of the listed blocks, one group per query block of `query_block` rows.
    pub(super) fn attend(&self, gpu: &Gpu, lists: Option<(&Lists, u32)>) -> Result<Work> {
        let Heads { num_heads, shape } = self.heads;
        let tile_rows = tile_rows(gpu, &shape);
        let query_block = lists.map_or(tile_rows, |(_, rows)| rows);
        let Range { start, end } = self.range;
        let tile = |row: u32| {
            let rows = row..end.min(start + row + tile_rows) - start;
            Tile::new(rows, start + row, 0).listed(row / query_block)
        };
        let tiles: Vec<Tile> = (0..end - start).step_by(tile_rows as usize).map(tile).collect();
        let count = u32::try_from(tiles.len())?;
        let tiles = gpu.upload("tiles", &tiles)?;
        let lists = lists.map(|(lists, _)| lists);
        let (variant, grid, level) = self.kernel(gpu, lists, count);
        let bytes = f64::from(end) * self.heads.token_bytes()
            + 2.0 * f64::from(end - start) * f64::from(self.heads.width()) * 4.0;
        let rows = f64::from(end - start);
        let pairs = match lists {
            None => rows * f64::midpoint(f64::from(start), f64::from(end)),
            // A row sees half of the keys of its own query block.
            Some(lists) => (lists.tokens - rows / 2.0) * f64::from(query_block),
        };
        let (kernel, kind) =
            lists.map_or(("prefill", String::new()), |lists| ("prefill, selected", lists.kind()));
        let mut work = Work::new(kernel, level.name(), format!("{end}, {}{kind}", self.heads.name()))
            .costs(bytes, pairs * self.heads.pair_operations());
        for (first_key, num_keys) in paged_prefill::segments(0, end - 1, gpu.is_cpu()) {
            let params = PagedPrefillParams {
                num_heads,
                num_kv_heads: shape.num_kv_heads,
                q_stride: self.heads.width(),
                first_key,
                scale: self.heads.scale(),
                num_keys,
                list_stride: lists.map_or(0, |lists| lists.stride),
                log_skip: self.log_skip.unwrap_or_default(),
                ..PagedPrefillParams::default()
            };
            let binds: Vec<Bound> = vec![
                self.q.clone(),
                (&self.cache.k).into(),
                (&self.cache.v).into(),
                (&self.cache.tables).into(),
                (&tiles).into(),
                self.out.clone(),
                self.lse.clone(),
            ];
            let binds = binds.into_iter().chain(lists.map(|lists| Bound::from(&lists.buffer)));
            work = work.dispatch(variant.clone(), &params, binds, grid);
        }
        Ok(work)
    }

    fn kernel(
        &self,
        gpu: &Gpu,
        lists: Option<&Lists>,
        tiles: u32,
    ) -> (attn_kernels::Variant, [u32; 3], Level) {
        let Heads { num_heads, shape } = &self.heads;
        let attention = lists.map_or(Attention::default(), |lists| Attention::blocks(lists.block));
        let attention = Attention { skip: self.log_skip.is_some(), ..attention };
        if runs_coop(gpu, shape) {
            let variant = paged_prefill_coop::variant(shape, &attention);
            return (variant, paged_prefill_coop::grid(*num_heads, tiles), Level::Coop);
        }
        let (loads, level) = match key_loads(gpu) {
            KeyLoads::Broadcast => (KeyLoads::Broadcast, Level::Subgroup),
            KeyLoads::Uniform => (KeyLoads::Uniform, Level::Baseline),
        };
        let variant = paged_prefill::variant(shape, *num_heads, loads, &attention);
        (variant, paged_prefill::grid(shape, *num_heads, loads, tiles), level)
    }
}

/// Causal prefill of one prompt; with `density` over selected blocks of the visible ones, chosen by tile and KV head.
pub(super) fn prefill(gpu: &Gpu, heads: &Heads, len: u32, density: Option<f64>) -> Result<Work> {
    let cache = Cache::new(gpu, &heads.shape, &[len])?;
    let q = random(gpu, KvDtype::F32, len as usize * heads.width() as usize, 4)?;
    let out = gpu.buffer::<f32>("out", q.len())?;
    let lse = gpu.buffer::<f32>("lse", (len * heads.num_heads) as usize)?;
    let [q, out, lse] = [(&q).into(), (&out).into(), (&lse).into()];
    let rows = Rows { heads: *heads, cache: &cache, q, range: 0..len, out, lse, log_skip: None };
    let tile = tile_rows(gpu, &heads.shape);
    let kv_heads = heads.shape.num_kv_heads;
    let ends = (0..len).step_by(tile as usize).map(|row| len.min(row + tile));
    let lists = density
        .map(|density| {
            let ends = ends.flat_map(|end| (0..kv_heads).map(move |_| end));
            Lists::random(gpu, ends, kv_heads, density)
        })
        .transpose()?;
    rows.attend(gpu, lists.as_ref().map(|lists| (lists, tile)))
}
