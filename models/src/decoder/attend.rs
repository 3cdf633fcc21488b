//! Attention of a step's rows: all of them to everything, or some of them to listed blocks.

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::apply_sinks::{self, ApplySinksParams};
use attn_kernels::kernel::attention::{self, Mask};
use attn_kernels::kernel::paged_decode::{self, PagedDecodeParams, TILE, most_partitions};
use attn_kernels::kernel::paged_prefill::{self, KeyLoads, PagedPrefillParams, Tile};
use attn_kernels::kernel::paged_reduce::{self, PagedReduceParams};
use attn_kernels::kernel::{KvShape, paged_prefill_coop};

use super::inputs::{Plan, RowBufs, Rows};
use super::sparse::Lists;
use super::stream::{Loaded, Stream};
use super::{Decoder, decode_portion};
use crate::{ModelError, Reach};

/// Pipelines of one kind of attention.
#[derive(Debug)]
pub(super) struct Attention {
    decode: Arc<Pipeline>,
    reduce: Arc<Pipeline>,
    pub(super) prefill: Arc<Pipeline>,
}

impl Attention {
    pub(super) fn new(
        gpu: &Gpu,
        shape: &KvShape,
        num_heads: u32,
        (key_loads, coop): (KeyLoads, bool),
        kind: &attention::Attention,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            decode: gpu.pipeline(&paged_decode::variant(shape, num_heads, kind))?,
            reduce: gpu.pipeline(&paged_reduce::variant(shape, kind))?,
            prefill: gpu.pipeline(&match coop {
                true => paged_prefill_coop::variant(shape, kind),
                false => paged_prefill::variant(shape, num_heads, key_loads, kind),
            })?,
        })
    }
}

/// Rows that are attended alike.
struct Task<'a> {
    kind: &'a Attention,
    rows: &'a Rows,
    bufs: &'a RowBufs,
    /// Lists of selected blocks; `None` where all is attended.
    lists: Option<Lists>,
    /// Where keys of the step lie on the host.
    stream: Option<&'a Stream>,
}

impl Task<'_> {
    fn list_stride(&self) -> u32 {
        self.lists.as_ref().map_or(0, |lists| lists.stride)
    }

    /// `bindings` and, with lists, theirs.
    fn with_lists<const N: usize>(&self, bindings: [Bind; N]) -> Vec<Bind> {
        bindings.into_iter().chain(self.lists.as_ref().map(|lists| lists.bind.clone())).collect()
    }
}

impl Decoder {
    /// Records the attention of all rows in layer `index`.
    pub(super) fn attend(&self, pass: &mut Pass, index: usize, plan: &Plan) {
        let view = self.layers[index].view;
        let kind = &self.pipelines.attention[view];
        let stream = plan.stream.as_ref();
        let (plan, inputs) = (&plan.views[view], &self.inputs.views[view]);
        let lists = self.sparse.as_ref().and_then(|sparse| sparse.lists(index));
        let Some((lists, selected)) = lists.zip(self.pipelines.selected.as_ref()) else {
            let task = Task { kind, rows: &plan.all, bufs: &inputs.all, lists: None, stream };
            return self.attend_task(pass, index, &task, plan.all.max_partitions);
        };
        let whole = Task { kind, rows: &plan.whole, bufs: &inputs.whole, lists: None, stream };
        self.attend_task(pass, index, &whole, plan.whole.max_partitions);
        let tokens = (lists.stride - 1) * self.options.select_block();
        let max_partitions = plan.selected.max_partitions.min(most_partitions(tokens).max(1));
        let bufs = &inputs.selected;
        let listed = Task { kind: selected, rows: &plan.selected, bufs, lists: Some(lists), stream };
        self.attend_task(pass, index, &listed, max_partitions);
    }

    fn attend_task(&self, pass: &mut Pass, index: usize, task: &Task<'_>, max_partitions: u32) {
        let portion = decode_portion(&self.config, max_partitions);
        let mut loaded = self.unloaded();
        for start in (0..task.rows.decode.len()).step_by(portion) {
            let rows = portion.min(task.rows.decode.len() - start);
            self.attend_decode(pass, index, task, max_partitions, start..start + rows, &mut loaded);
        }
        self.attend_prefill(pass, index, task);
    }

    /// Rows `range` of the list of decode rows.
    fn attend_decode(
        &self,
        pass: &mut Pass,
        index: usize,
        task: &Task<'_>,
        max_partitions: u32,
        range: Range<usize>,
        loaded: &mut Loaded,
    ) {
        let (a, c) = (&self.activations, &self.config);
        let count = |n: usize| u32::try_from(n).expect("at most max_rows");
        let (rows, first_list) = (count(range.len()), count(range.start));
        let sinks = &self.layers[index].sinks;
        let reduced = max_partitions > 1 || sinks.is_some();
        let list = Bind::at(task.bufs.decode.raw(), range.start as u64 * 16);
        let params = PagedDecodeParams {
            num_heads: c.num_heads,
            num_kv_heads: c.num_kv_heads,
            q_stride: c.num_heads * c.head_dim,
            max_partitions,
            scale: c.scale,
            reduced: u32::from(reduced),
            list_stride: task.list_stride(),
            first_list,
            first_key: 0,
            num_keys: u32::MAX,
            softcap: 0.0,
            k_scale: 1.0,
            v_scale: 1.0,
            pad0: 0,
            pad1: 0,
            pad2: 0,
        };
        let (k, v) = self.kv.layer(index);
        let out = if reduced { &a.partial } else { &a.attended };
        let tables = (&self.inputs.tables).into();
        let bindings = task.with_lists([
            (&a.q).into(),
            k.into(),
            v.into(),
            tables,
            list.clone(),
            out.into(),
            (&a.stats).into(),
        ]);
        let num_keys = task.stream.map_or(u32::MAX, |stream| stream.chunk_tokens);
        let longest = task.rows.decode[range].iter().map(|row| row[1]).max().unwrap_or(0);
        for (number, first_key) in (0..longest).step_by(num_keys as usize).enumerate() {
            if let Some(stream) = task.stream {
                self.fetch(pass, index, stream, number, loaded);
            }
            let params = PagedDecodeParams { first_key, num_keys, ..params };
            let count = max_partitions.min(num_keys / TILE);
            let grid = paged_decode::grid(self.kv.shape(), c.num_heads, rows, count);
            pass.dispatch(&task.kind.decode, &params, &bindings, grid);
        }
        if let Some(lists) = &task.lists {
            self.bound_mass(pass, index, (list.clone(), lists), &params, rows);
        }
        if reduced {
            let params = PagedReduceParams {
                num_heads: c.num_heads,
                num_kv_heads: c.num_kv_heads,
                max_partitions,
                list_stride: task.list_stride(),
                first_list,
                pad0: 0,
                pad1: 0,
                pad2: 0,
            };
            let mut bindings =
                task.with_lists([(&a.partial).into(), (&a.stats).into(), list, (&a.attended).into()]);
            bindings.extend(sinks.as_ref().map(Bind::from));
            pass.dispatch(&task.kind.reduce, &params, &bindings, paged_reduce::grid(c.num_heads, rows));
        }
    }

    fn attend_prefill(&self, pass: &mut Pass, index: usize, task: &Task<'_>) {
        let tiles = u32::try_from(task.rows.tiles.len()).expect("at most max_rows");
        let (a, c) = (&self.activations, &self.config);
        let Some(last) = task.rows.tiles.iter().map(|tile| tile.position + tile.rows - 1).max() else {
            return;
        };
        assert!(task.stream.is_none(), "{tiles} tiles, whose keys are not all on the device");
        let reach = c.layers[index].reach;
        let first = task.rows.tiles.iter().map(|tile| reach.first_key(tile.position)).min().unwrap_or(0);
        let (k, v) = self.kv.layer(index);
        let bindings = task.with_lists([
            (&a.q).into(),
            k.into(),
            v.into(),
            (&self.inputs.tables).into(),
            (&task.bufs.tiles).into(),
            (&a.attended).into(),
            (&a.lse).into(),
        ]);
        let grid = match self.coop {
            true => paged_prefill_coop::grid(c.num_heads, tiles),
            false => paged_prefill::grid(self.kv.shape(), c.num_heads, self.key_loads, tiles),
        };
        let params = PagedPrefillParams {
            num_heads: c.num_heads,
            num_kv_heads: c.num_kv_heads,
            q_stride: c.num_heads * c.head_dim,
            first_key: 0,
            scale: c.scale,
            neg_inf: f32::NEG_INFINITY,
            num_keys: u32::MAX,
            list_stride: task.list_stride(),
            window: mask(reach).window(),
            softcap: 0.0,
            k_scale: 1.0,
            v_scale: 1.0,
        };
        let in_chunks = self.attend_prefixes(pass, index, params);
        let whole = paged_prefill::segments(first, last, self.gpu.is_cpu()).filter(|_| !in_chunks);
        for (first_key, num_keys) in whole {
            let params = PagedPrefillParams { first_key, num_keys, ..params };
            pass.dispatch(&task.kind.prefill, &params, &bindings, grid);
        }
        if let Some(sinks) = &self.layers[index].sinks {
            self.apply_sinks(pass, sinks, &task.rows.tiles);
        }
    }

    /// Gives the rows of tiles their sinks, which decode rows have from the reduction.
    fn apply_sinks(&self, pass: &mut Pass, sinks: &Buf<f32>, tiles: &[Tile]) {
        let (a, c) = (&self.activations, &self.config);
        for run in tiles.chunk_by(|a, b| a.row + a.rows == b.row) {
            let (first_row, rows) = (run[0].row, run.iter().map(|tile| tile.rows).sum());
            let params = ApplySinksParams { first_row, rows, num_heads: c.num_heads, pad0: 0 };
            let bindings = [(&a.lse).into(), sinks.into(), (&a.attended).into()];
            let grid = apply_sinks::grid(c.num_heads, c.head_dim, rows);
            pass.dispatch(&self.pipelines.apply_sinks, &params, &bindings, grid);
        }
    }
}

/// The mask of a reach.
pub(super) fn mask(reach: Reach) -> Mask {
    match reach {
        Reach::Full => Mask::Causal,
        Reach::Window(window) => Mask::Window(window),
        Reach::Chunk(chunk) => Mask::Chunk(chunk),
    }
}
