//! Decode attention in one call: the fastest form of the kernel, its partitions, its scratch and the pass that merges
//! them.

use crate::cast::u32_of;
use crate::gpu::{Buf, Gpu, GpuError, Pass};
use crate::kernel::attention::Attention;
use crate::kernel::paged_decode::{self, PagedDecodeBuffers, PagedDecodeParams};
use crate::kernel::paged_reduce::{self, PagedReduceBuffers, PagedReduceParams};
use crate::kernel::{KvShape, LaunchError};
use crate::rows::{DecodeRow, KvWord, PhysicalBlock};
use crate::split::{SplitCache, SplitPlan, SplitPlanner};

/// Causal attention of one query row per sequence over all keys of a paged cache.
#[derive(Clone, Copy, Debug)]
pub struct Attend<'a> {
    /// Shape of the cache.
    pub shape: KvShape,
    /// Number of query heads, a multiple of the KV heads.
    pub num_heads: u32,
    /// Factor on scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Queries `[rows, num_heads, head_dim]`.
    pub q: &'a Buf<f32>,
    /// Keys, in the layout of [`KvShape`].
    pub k: &'a Buf<KvWord>,
    /// Values, in the layout of [`KvShape`].
    pub v: &'a Buf<KvWord>,
    /// Block tables, one after the other: ids of physical blocks by position.
    pub tables: &'a [u32],
    /// Keys of each query row.
    pub rows: &'a [AttendRow],
    /// Result `[rows, num_heads, head_dim]`.
    pub out: &'a Buf<f32>,
}

/// The keys of one query row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttendRow {
    /// Number of keys, from position 0 on. A row without keys gets zeros.
    pub keys: u32,
    /// Entry of `tables` at which the block table of the sequence begins.
    pub table: u32,
}

/// Reason why attention was not recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttendError {
    /// A row, table or buffer does not fit the cache.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The device has no memory for the scratch, or does not run the kernel.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

impl Gpu {
    /// Records attention in `pass`, in the form and the partitions that a [`SplitPlanner`] chooses, followed by
    /// `paged_reduce` if there are several partitions. Each call allocates scratch buffers; a caller that decodes
    /// many steps should keep them, and record [`paged_decode`] and [`paged_reduce`] directly.
    ///
    /// Reads `4 * keys * num_kv_heads * head_dim` bytes a row of an f16 cache.
    ///
    /// # Errors
    /// [`AttendError::Launch`] names the row, table or buffer that is not inside of the cache; nothing is recorded then.
    pub fn attend(&self, pass: &mut Pass, attend: &Attend<'_>) -> Result<(), AttendError> {
        let Attend { shape, num_heads, .. } = *attend;
        if attend.rows.is_empty() {
            return Ok(());
        }
        let launch = Launch::new(self, attend)?;
        let params = &launch.params;
        let plain = Attention::default();

        let rows = self.upload("rows", &launch.rows)?;
        let tables = self.upload::<PhysicalBlock>("tables", bytemuck::cast_slice(attend.tables))?;
        let partial =
            if params.reduced == 1 { Some(self.buffer("partial", launch.partial_len)?) } else { None };
        let stats = self.buffer::<[f32; 2]>("stats", launch.stats_len)?;
        let sums = partial.as_ref().unwrap_or(attend.out);
        let buffers = PagedDecodeBuffers {
            q: attend.q.bind(),
            k_cache: attend.k.bind(),
            v_cache: attend.v.bind(),
            tables: tables.bind(),
            rows: rows.bind(),
            partial: sums.bind(),
            stats: stats.bind(),
            selected: None,
            slopes: None,
        };

        let decode = self.pipeline(&paged_decode::variant(&shape, num_heads, launch.lanes, &plain))?;
        let reduce = match &partial {
            Some(_) => Some(self.pipeline(&paged_reduce::best(self.profile(), &shape, &plain))?),
            None => None,
        };
        pass.dispatch(&decode, params, buffers);
        if let Some(reduce) = reduce {
            let buffers = PagedReduceBuffers {
                partial: sums.bind(),
                stats: stats.bind(),
                rows: rows.bind(),
                out: attend.out.bind(),
                selected: None,
                sinks: None,
            };
            let params = PagedReduceParams::from(params);
            pass.dispatch(&reduce, &params, buffers);
        }
        Ok(())
    }
}

/// Checked arguments of `paged_decode`.
struct Launch {
    lanes: paged_decode::Lanes,
    params: PagedDecodeParams,
    rows: Vec<DecodeRow>,
    partial_len: usize,
    stats_len: usize,
}

impl Launch {
    fn new(gpu: &Gpu, attend: &Attend<'_>) -> Result<Self, LaunchError> {
        let Attend { shape, num_heads, .. } = *attend;
        shape.validate(num_heads)?;
        let row =
            |(row, of): (u32, &AttendRow)| DecodeRow { row, len: of.keys, table: of.table, first_key: 0 };
        let rows: Vec<_> = (0..).zip(attend.rows).map(row).collect();
        let longest = attend.rows.iter().map(|row| row.keys).max().unwrap_or(0);
        let profile = gpu.profile().rounded(false);
        let planner = SplitPlanner::new(&profile, SplitCache::Heads(shape), num_heads, longest);
        let SplitPlan { lanes, partition_size, max_partitions } = planner.all(&rows, None);
        let max_partitions = max_partitions.max(1);
        let params = PagedDecodeParams {
            num_heads,
            num_kv_heads: shape.num_kv_heads,
            q_stride: num_heads * shape.head_dim,
            max_partitions,
            partition_size,
            scale: attend.scale,
            reduced: (max_partitions > 1).into(),
            rows: u32_of(rows.len()),
            ..PagedDecodeParams::default()
        };
        let stats_len = rows.len() * num_heads as usize * max_partitions as usize;
        let partial_len = stats_len * shape.head_dim as usize;
        let sums = if max_partitions > 1 { partial_len } else { attend.out.len() };
        let blocks = attend.k.len().min(attend.v.len()) * size_of::<u32>() / shape.block_bytes();
        let cached = (attend.tables, u32::try_from(blocks).unwrap_or(u32::MAX));
        let row_words = bytemuck::cast_slice(&rows);
        paged_decode::check(&shape, &params, row_words, cached, [attend.q.len(), sums, stats_len])?;
        paged_decode::check_out(&shape, num_heads, rows.len(), attend.out.len())?;
        Ok(Self { lanes, params, rows, partial_len, stats_len })
    }
}
