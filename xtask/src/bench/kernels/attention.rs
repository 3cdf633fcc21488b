//! Attention over paged KV in random blocks: one step of decode, by the case of its self-test, and rows of a prompt, dense and
//! over listed blocks. Rows are built here, because a long prompt goes by in chunks over one cache, by lists that a selection has
//! just written.

use std::ops::Range;

use anyhow::Result;
use attn_kernels::gpu::{Bound, Buf, Gpu};
use attn_kernels::kernel::attention::{Attention, Context};
use attn_kernels::kernel::paged_decode::{self, PARTITION};
use attn_kernels::kernel::paged_prefill::{self, KeyLoads, PagedPrefillParams, Tile};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape, paged_prefill_coop, paged_reduce};
use attn_kernels::rows::DecodeRow;
use attn_kernels::self_test::{Size, options};
use attn_kernels::split::{SplitCache, SplitPlanner};
use attn_kernels::{Level, Variant};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::ceiling::random;
use super::lists::{self, Lists, SELECT_BLOCK};
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

    /// Size of a case with one sequence, one row, and lists of a tenth of the blocks.
    pub(super) fn size(&self) -> Size {
        let Self { num_heads, shape: cache } = *self;
        Size {
            num_heads,
            cache,
            rows: 1,
            batch: 1,
            context: 1,
            shortest: None,
            partition: PARTITION,
            select_block: SELECT_BLOCK,
            density: 0.1,
            k: 1,
            width: 32,
            cols: 1,
            vocab: 1,
        }
    }

    pub(super) fn name(&self) -> String {
        let KvShape { num_kv_heads, head_dim, block_size, dtype, .. } = self.shape;
        format!("{}/{num_kv_heads} heads, D {head_dim}, {dtype:?}, block {block_size}", self.num_heads)
    }

    /// Number of f32 of a row of queries.
    pub(super) fn width(&self) -> u32 {
        self.num_heads * self.shape.head_dim
    }

    /// Number of bytes of a token's keys and values.
    pub(super) fn token_bytes(&self) -> f64 {
        2.0 * self.shape.block_bytes() as f64 / f64::from(self.shape.block_size)
    }

    /// Number of operations for one query row and one key; a multiply-add counts as two.
    pub(super) fn pair_operations(&self) -> f64 {
        4.0 * f64::from(self.width())
    }

    pub(super) fn scale(&self) -> f32 {
        1.0 / (self.shape.head_dim as f32).sqrt()
    }
}

/// The keys and values of one prompt, in blocks in random order.
pub(super) struct Cache {
    pub(super) k: Buf<u32>,
    pub(super) v: Buf<u32>,
    pub(super) tables: Buf<u32>,
    pub(super) table: Vec<u32>,
}

impl Cache {
    pub(super) fn new(gpu: &Gpu, shape: &KvShape, len: u32) -> Result<Self> {
        let mut table: Vec<u32> = (0..len.div_ceil(shape.block_size)).collect();
        table.shuffle(&mut StdRng::seed_from_u64(1));
        let elements = table.len() * shape.block_bytes() / shape.dtype.bytes() as usize;
        Ok(Self {
            k: random(gpu, shape.dtype, elements, 1)?,
            v: random(gpu, shape.dtype, elements, 2)?,
            tables: gpu.upload("tables", &table)?,
            table,
        })
    }
}

/// One step of decode of sequences of `size`, which `name` describes.
pub(super) struct Step {
    pub(super) heads: Heads,
    pub(super) size: Size,
    pub(super) name: String,
}

impl Step {
    /// A step of `batch` sequences of `context` tokens, with `density` as the share of blocks of selections.
    pub(super) fn new(heads: &Heads, [batch, context]: [u32; 2], density: f64) -> Self {
        let size = Size { batch, context, density, ..heads.size() };
        Self { heads: *heads, size, name: format!("{batch} x {context}") }
    }

    /// Attention of all rows, and the merge of its partitions.
    pub(super) fn dense(&self, gpu: &Gpu) -> Result<Work> {
        self.attend(gpu, "decode", Attention::default(), &[])
    }

    /// Attention to a share of the blocks, with the data of `dense`. `selection` lists the blocks; without it, the lists
    /// of the self-test's case are used.
    pub(super) fn selected(&self, gpu: &Gpu, dense: &Work, selection: Option<&Work>) -> Result<Work> {
        let mut shared = dense.shared(&["q", "k_cache", "v_cache", "tables", "rows"]);
        shared.extend(selection.into_iter().flat_map(|work| work.renamed("out", "selected")));
        self.attend(gpu, "decode, selected", Attention::blocks(self.size.select_block), &shared)
    }

    fn attend(
        &self,
        gpu: &Gpu,
        kernel: &str,
        attention: Attention,
        shared: &[(&str, Bound)],
    ) -> Result<Work> {
        let Heads { num_heads, shape } = &self.heads;
        let Size { select_block, density, .. } = self.size;
        let row = |(row, len)| DecodeRow { row, len, table: 0, first_key: 0 };
        let rows: Vec<_> = (0..).zip(self.size.lens()).map(row).collect();
        let longest = rows.iter().map(|row| row.len).max().unwrap_or(0);
        let (most, kind) = match attention.context {
            Context::Full => (u32::MAX, String::new()),
            _ => {
                (options::Lists::budget(longest, select_block, density) * select_block, lists::kind(density))
            }
        };
        let planner = SplitPlanner::new(gpu.profile(), SplitCache::Heads(*shape), *num_heads, longest);
        let plan = planner.listed(&rows, most, None);
        let size = Size { partition: plan.partition_size, ..self.size };
        let variant = paged_decode::variant(shape, *num_heads, plan.lanes, &attention);
        let name = format!("{}, {}{kind}", self.name, self.heads.name());
        let decode = Work::sharing(gpu, kernel, &variant, size, &name, shared)?;
        if plan.max_partitions == 1 {
            return Ok(decode);
        }
        merged(gpu, decode, &paged_reduce::best(gpu.profile(), shape, &attention), size)
    }
}

/// Attention whose partitions `variant` merges.
pub(super) fn merged(gpu: &Gpu, attention: Work, variant: &Variant, size: Size) -> Result<Work> {
    let shared = attention.shared(&["partial", "stats", "rows", "selected"]);
    Ok(attention.followed(Work::sharing(gpu, "paged_reduce", variant, size, "", &shared)?))
}

/// A range of rows of a prompt, whose queries are the rows of `q`. Each row attends to all keys up to its own.
pub(super) struct Rows<'a> {
    pub(super) heads: Heads,
    pub(super) cache: &'a Cache,
    pub(super) q: Bound,
    /// Positions.
    pub(super) range: Range<u32>,
    /// Output of attention, f32 `[rows, heads, head_dim]`; the next field is its log-sum-exp, `[rows, heads]`.
    pub(super) out: Bound,
    pub(super) lse: Bound,
    /// Natural logarithm of the threshold times the number of a row's keys, if keys of little weight are skipped.
    pub(super) log_skip: Option<f32>,
}

/// Number of query rows of a workgroup. Lists are shared by at least so many rows.
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
    gpu.runs_coop() && paged_prefill_coop::serves(shape, gpu.profile())
}

impl Rows<'_> {
    /// Causal attention. With lists, it attends only to the listed blocks; each query block of as many rows as are given
    /// with the lists has lists of its own.
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
        let list = gpu.upload("tiles", &tiles)?;
        let lists = lists.map(|(lists, _)| lists);
        let (variant, level) = self.kernel(gpu, lists);
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
                tiles: u32::try_from(tiles.len())?,
                list_stride: lists.map_or(0, |lists| lists.stride),
                log_skip: self.log_skip.unwrap_or_default(),
                ..PagedPrefillParams::default()
            };
            let binds: Vec<Bound> = vec![
                self.q.clone(),
                (&self.cache.k).into(),
                (&self.cache.v).into(),
                (&self.cache.tables).into(),
                (&list).into(),
                self.out.clone(),
                self.lse.clone(),
            ];
            let binds = binds.into_iter().chain(lists.map(|lists| Bound::from(&lists.buffer)));
            work = work.dispatch(variant.clone(), &params, binds);
        }
        Ok(work)
    }

    fn kernel(&self, gpu: &Gpu, lists: Option<&Lists>) -> (Variant, Level) {
        let Heads { num_heads, shape } = &self.heads;
        let attention = lists.map_or(Attention::default(), |lists| Attention::blocks(lists.block));
        let attention = Attention { skip: self.log_skip.is_some(), ..attention };
        if runs_coop(gpu, shape) {
            return (paged_prefill_coop::variant(shape, &attention), Level::Coop);
        }
        let (loads, level) = match key_loads(gpu) {
            KeyLoads::Broadcast => (KeyLoads::Broadcast, Level::Subgroup),
            KeyLoads::Uniform => (KeyLoads::Uniform, Level::Baseline),
        };
        (paged_prefill::variant(shape, *num_heads, loads, &attention), level)
    }
}

/// Causal prefill of one prompt. With `density`, it attends to this share of the visible blocks, which are chosen at
/// random for each tile and KV head.
pub(super) fn prefill(gpu: &Gpu, heads: &Heads, len: u32, density: Option<f64>) -> Result<Work> {
    let cache = Cache::new(gpu, &heads.shape, len)?;
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
