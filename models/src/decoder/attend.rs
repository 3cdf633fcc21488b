//! Attention of a step's rows: all of them to everything, or some of them to listed blocks.

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::apply_sinks::{self, ApplySinksParams};
use attn_kernels::kernel::attention::{self, Mask};
use attn_kernels::kernel::paged_decode::{self, Lanes, PagedDecodeParams};
use attn_kernels::kernel::paged_prefill::{self, KeyLoads, PagedPrefillParams, Tile};
use attn_kernels::kernel::paged_reduce::{self, PagedReduceParams};
use attn_kernels::kernel::{KvShape, paged_prefill_coop};

use super::inputs::{Plan, RowBufs, Rows};
use super::partitions::Cut;
use super::residency::Residency;
use super::sparse::Lists;
use super::stream::{Group, Loaded, Stream};
use super::{Decoder, decode_portion, portions};
use crate::{ModelError, Reach};

/// In which form kernels attend.
#[derive(Clone, Copy)]
pub(super) struct Forms {
    /// Of decode with few keys, and with many.
    pub(super) lanes: [Lanes; 2],
    /// Of prefill without cooperative matrices.
    pub(super) key_loads: KeyLoads,
    /// Prefill with cooperative matrices.
    pub(super) coop: bool,
}

/// Pipelines of one kind of attention.
#[derive(Debug)]
pub(super) struct Attention {
    /// For each form that steps may take.
    decode: [(Lanes, Arc<Pipeline>); 2],
    reduce: Arc<Pipeline>,
    pub(super) prefill: Arc<Pipeline>,
}

impl Attention {
    pub(super) fn new(
        gpu: &Gpu,
        shape: &KvShape,
        num_heads: u32,
        forms: Forms,
        kind: &attention::Attention,
    ) -> Result<Self, ModelError> {
        let decode = |lanes| -> Result<_, ModelError> {
            Ok((lanes, gpu.pipeline(&paged_decode::variant(shape, num_heads, lanes, kind))?))
        };
        let [few, many] = forms.lanes;
        Ok(Self {
            decode: [decode(few)?, decode(many)?],
            reduce: gpu.pipeline(&paged_reduce::variant(shape, kind))?,
            prefill: gpu.pipeline(&match forms.coop {
                true => paged_prefill_coop::variant(shape, kind),
                false => paged_prefill::variant(shape, num_heads, forms.key_loads, kind),
            })?,
        })
    }
}

impl Attention {
    fn decode(&self, lanes: Lanes) -> &Arc<Pipeline> {
        let found = self.decode.iter().find(|(of, _)| *of == lanes);
        &found.unwrap_or_else(|| panic!("decode of {lanes:?} among {:?}", self.decode)).1
    }
}

/// Keys that the prefill kernel takes at once.
const KEYS: u32 = 8;

/// Rows that are attended alike.
struct Task<'a> {
    kind: &'a Attention,
    rows: &'a Rows,
    bufs: &'a RowBufs,
    /// Lists of selected blocks; `None` where all is attended.
    lists: Option<Lists>,
    keys: Keys<'a>,
}

/// Where the keys of rows are.
#[derive(Clone, Copy)]
enum Keys<'a> {
    /// On the device.
    Device,
    /// Some pass through the ring.
    Ring(&'a Stream),
    /// In slots for selected pages, once they are made resident.
    Slots(&'a Residency),
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
        let all = plan.stream.as_ref().map_or(Keys::Device, Keys::Ring);
        let listed = self.residency.as_ref().map_or(Keys::Device, Keys::Slots);
        let (plan, inputs) = (&plan.views[view], &self.inputs.views[view]);
        let lists = self.sparse.as_ref().and_then(|sparse| sparse.lists(index));
        let Some((lists, selected)) = lists.zip(self.pipelines.selected.as_ref()) else {
            self.renew_pages(pass, index);
            let task = Task { kind, rows: &plan.all, bufs: &inputs.all, lists: None, keys: all };
            return self.attend_task(pass, index, &task, plan.all.cut);
        };
        let whole = Task { kind, rows: &plan.whole, bufs: &inputs.whole, lists: None, keys: all };
        self.attend_task(pass, index, &whole, plan.whole.cut);
        let tokens = (lists.stride - 1) * self.options.select_block();
        let bufs = &inputs.selected;
        let task = Task { kind: selected, rows: &plan.selected, bufs, lists: Some(lists), keys: listed };
        self.attend_task(pass, index, &task, self.cut_lists(&plan.selected, tokens));
    }

    fn attend_task(&self, pass: &mut Pass, index: usize, task: &Task<'_>, cut: Cut) {
        let portion = decode_portion(&self.config, cut.max_partitions);
        match task.keys {
            Keys::Device => {
                for rows in portions(0..task.rows.decode.len(), portion) {
                    self.attend_decode(pass, index, task, cut, rows, None);
                }
            }
            Keys::Slots(residency) => {
                for rows in portions(0..task.rows.decode.len(), portion.min(residency.rows_together())) {
                    self.attend_decode(pass, index, task, cut, rows, None);
                }
            }
            Keys::Ring(stream) => {
                for group in &stream.groups {
                    let mut loaded = self.unloaded();
                    for rows in portions(group.rows(task.rows), portion) {
                        let ring = Some((group, &mut loaded));
                        self.attend_decode(pass, index, task, cut, rows, ring);
                    }
                }
            }
        }
        self.attend_prefill(pass, index, task);
    }

    /// Rows `range` of the list of decode rows.
    fn attend_decode(
        &self,
        pass: &mut Pass,
        index: usize,
        task: &Task<'_>,
        Cut { lanes, partition_size, max_partitions }: Cut,
        range: Range<usize>,
        mut ring: Option<(&Group, &mut Loaded)>,
    ) {
        let (a, c) = (&self.activations, &self.config);
        let count = |n: usize| u32::try_from(n).expect("at most max_rows");
        let (rows, first_list) = (count(range.len()), count(range.start));
        let sinks = &self.layers[index].sinks;
        // A chunk that a row sees nothing of leaves partials alone, but not outputs.
        let reduced = max_partitions > 1 || sinks.is_some() || ring.is_some();
        let list = Bind::at(task.bufs.decode.raw(), range.start as u64 * 16);
        let params = PagedDecodeParams {
            num_heads: c.num_heads,
            num_kv_heads: c.num_kv_heads,
            q_stride: c.num_heads * c.head_dim,
            max_partitions,
            partition_size,
            scale: c.scale,
            reduced: u32::from(reduced),
            list_stride: task.list_stride(),
            first_list,
            ..PagedDecodeParams::default()
        };
        let (k, v) = self.kv.layer(index);
        let out = if reduced { &a.partial } else { &a.attended };
        let tables = self.tables(task);
        let bindings = task.with_lists([
            (&a.q).into(),
            k.into(),
            v.into(),
            tables,
            list.clone(),
            out.into(),
            (&a.stats).into(),
        ]);
        let seen = task.rows.decode[range.clone()].iter().filter(|row| row[1] > 0);
        let first_seen = seen.map(|row| row[3]).min().unwrap_or(0);
        let longest = task.rows.decode[range].iter().map(|row| row[1]).max().unwrap_or(0);
        let listed = task.lists.as_ref().map(|lists| (lists.stride - 1) * self.options.select_block());
        let end = listed.map_or(longest, |listed| listed.min(longest));
        let num_keys = match (&ring, task.keys) {
            (Some((group, _)), _) => group.chunk_tokens,
            (None, Keys::Slots(residency)) => residency.keys_together(rows, end),
            (None, _) => u32::MAX,
        };
        for (number, first_key) in (0..end).step_by(num_keys as usize).enumerate() {
            // Windows and chunks of all rows begin later.
            if ring.is_some() && first_key.saturating_add(num_keys) <= first_seen {
                continue;
            }
            if let Some((group, loaded)) = &mut ring {
                self.fetch(pass, index, group, number, loaded);
            }
            if let (Keys::Slots(_), Some(lists)) = (task.keys, &task.lists) {
                let size = self.options.block_size;
                let pages = first_key / size..end.min(first_key.saturating_add(num_keys)).div_ceil(size);
                self.make_resident(pass, index, lists, first_list..first_list + rows, pages);
            }
            let params = PagedDecodeParams { first_key, num_keys, ..params };
            let count = max_partitions.min(num_keys / partition_size);
            let grid = paged_decode::grid(self.kv.shape(), c.num_heads, lanes, rows, count);
            pass.dispatch(task.kind.decode(lanes), &params, &bindings, grid);
        }
        if let Some(lists) = &task.lists {
            self.bound_mass(pass, index, (list.clone(), lists), &params, rows);
        }
        if reduced {
            let params = PagedReduceParams::from(&params);
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
        assert!(!matches!(task.keys, Keys::Ring(_)), "{tiles} tiles, whose keys are not all on the device");
        let reach = c.layers[index].reach;
        let first = task.rows.tiles.iter().map(|tile| reach.first_key(tile.position)).min().unwrap_or(0);
        let (k, v) = self.kv.layer(index);
        let bindings = task.with_lists([
            (&a.q).into(),
            k.into(),
            v.into(),
            self.tables(task),
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
            scale: c.scale,
            list_stride: task.list_stride(),
            window: mask(reach).window(),
            ..PagedPrefillParams::default()
        };
        let in_chunks = self.attend_prefixes(pass, index, params);
        for (first_key, num_keys) in self.segments(task, first, last).filter(|_| !in_chunks) {
            if let (Keys::Slots(residency), Some(lists)) = (task.keys, &task.lists) {
                let page = |key: u32| key / self.options.block_size;
                let pages = page(first_key)..page(first_key + num_keys);
                self.make_resident(pass, index, lists, residency.tile_asks(), pages);
            }
            let params = PagedPrefillParams { first_key, num_keys, ..params };
            pass.dispatch(&task.kind.prefill, &params, &bindings, grid);
        }
        if let Some(sinks) = &self.layers[index].sinks {
            self.apply_sinks(pass, sinks, &task.rows.tiles);
        }
    }

    /// `(first_key, num_keys)` of the dispatches over the tiles of a task that see keys from `first` to `last`: of pages in
    /// slots, only as many keys as all lists together have room for.
    fn segments(&self, task: &Task<'_>, first: u32, last: u32) -> impl Iterator<Item = (u32, u32)> + use<> {
        let (slots, end) = match (task.keys, &task.lists) {
            (Keys::Slots(residency), Some(lists)) => {
                let listed = (lists.stride - 1) * self.options.select_block();
                let keys = residency.tile_pages() * self.options.block_size;
                (Some(keys / KEYS * KEYS), last.min(listed.saturating_sub(1)))
            }
            _ => (None, last),
        };
        paged_prefill::segments(first, end, self.gpu.is_cpu()).flat_map(move |(segment, keys)| {
            let step = slots.map_or(keys, |slots| slots.min(keys));
            let past = segment.saturating_add(keys);
            (segment..past.min(end + 1))
                .step_by(step as usize)
                .map(move |first| (first, step.min(past - first)))
        })
    }

    /// The block tables that a task reads.
    fn tables(&self, task: &Task<'_>) -> Bind {
        match task.keys {
            Keys::Device => (&self.inputs.tables).into(),
            Keys::Ring(_) => (&self.inputs.stream_tables).into(),
            Keys::Slots(residency) => residency.pages().into(),
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
