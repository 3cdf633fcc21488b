//! Selected blocks of contexts that live on the host: their pages are fetched into slots on the device before they are
//! attended, and those that a next step may select are fetched ahead.
//!
//! Everything is decided on the device, from the lists that the policy left there, so that nothing of a layer is read back.
//! Slots are of each layer and KV head. New keys and values are written on the host, and anew to pages that have a slot.

mod cost;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::fetch_pages::{self, FetchPagesParams};
use attn_kernels::kernel::paged_decode::PARTITION;
use attn_kernels::kernel::residency::{self, HEADER, ResidencyParams};

use super::inputs::Plan;
use super::sparse::{Lists, fit};
use super::{Decoder, DecoderOptions};
use crate::kv::ROWS;
use crate::{DecoderConfig, KvPool, ModelError, PageTraffic, Reach};

/// What is on the device of the layers that select.
#[derive(Debug)]
pub(super) struct Residency {
    assign: Arc<Pipeline>,
    copy: Arc<Pipeline>,
    num_slots: u32,
    /// Bytes of K and V that one head keeps of a block.
    page_bytes: u64,
    pages_a_block: u32,
    block_size: u32,
    /// Pages of a partition.
    partition_pages: u32,
    layers: Vec<Option<Resident>>,
    /// List group, tokens and table of everything that blocks are selected for.
    asks: Buf<[u32; 4]>,
    /// Of them those of decode rows; the others are of tiles.
    decode_asks: u32,
    num_asks: u32,
    /// Blocks that the step writes.
    touched: Buf<[u32; 2]>,
    num_touched: u32,
    /// Tables of the step by KV head: where pages of the layer at hand are.
    pages: Buf<u32>,
}

/// The slots of one layer; see the kernel [`residency`].
#[derive(Debug)]
struct Resident {
    places: Buf<u32>,
    slots: Buf<[u32; 2]>,
    /// What the selection of a step lacked.
    needed: Buf<u32>,
    /// What the next step may select.
    wished: Buf<u32>,
    calls: AtomicU32,
    /// Whether wishes wait to be fetched.
    pending: AtomicBool,
}

impl Resident {
    /// Decisions so far.
    fn num_calls(&self) -> u64 {
        self.calls.load(Relaxed).into()
    }
}

impl Residency {
    /// Where the pool keeps slots for selected pages.
    pub(super) fn new(
        gpu: &Gpu,
        config: &DecoderConfig,
        options: &DecoderOptions,
        kv: &KvPool,
    ) -> Result<Option<Self>, ModelError> {
        let Some(sparse) = options.sparse.as_ref().filter(|_| kv.page_slots() > 0) else { return Ok(None) };
        let (shape, num_slots) = (kv.shape(), kv.page_slots());
        let (heads, select_block) = (shape.num_kv_heads as usize, options.select_block());
        let resident = |(layer, reach): (u32, Reach)| {
            // Layers that see a window or a chunk attend to all of it, through the ring.
            let dense = reach != Reach::Full || sparse.policy.keeps_all(Some(layer), usize::MAX);
            let fetches = residency::fetches_len(shape, num_slots);
            let resident = || -> Result<Resident, ModelError> {
                Ok(Resident {
                    places: gpu.buffer("places", kv.num_blocks() as usize * heads)?,
                    slots: gpu.buffer("slots", num_slots as usize * heads)?,
                    needed: gpu.buffer("needed", fetches)?,
                    wished: gpu.buffer("wished", fetches)?,
                    calls: AtomicU32::new(0),
                    pending: AtomicBool::new(false),
                })
            };
            (!dense).then(resident).transpose()
        };
        Ok(Some(Self {
            assign: gpu.pipeline(&residency::variant(shape, select_block))?,
            copy: gpu.pipeline(&fetch_pages::variant())?,
            num_slots,
            page_bytes: 2 * shape.block_bytes() as u64 / u64::from(shape.num_kv_heads),
            pages_a_block: select_block / shape.block_size,
            block_size: shape.block_size,
            partition_pages: (PARTITION / shape.block_size).max(1),
            layers: (0..)
                .zip(config.layers.iter().map(|layer| layer.reach))
                .map(resident)
                .collect::<Result<_, _>>()?,
            asks: gpu.buffer("asks", 1)?,
            decode_asks: 0,
            num_asks: 0,
            touched: gpu.buffer("touched", 1)?,
            num_touched: 0,
            pages: gpu.buffer("pages", 1)?,
        }))
    }

    /// Pages of one layer and KV head that the device holds.
    pub(super) fn num_slots(&self) -> u32 {
        self.num_slots
    }

    /// Forgets a block that something other than a step writes.
    pub(super) fn forget(&self, gpu: &Gpu, block: u32) {
        for layer in self.layers.iter().flatten() {
            let heads = layer.places.len() / self.num_blocks(layer);
            gpu.write(&layer.places, block as usize * heads, &vec![0; heads]);
        }
    }

    fn num_blocks(&self, layer: &Resident) -> usize {
        layer.places.len() * self.num_slots as usize / layer.slots.len()
    }

    /// Decode rows that are attended together: as many as find room for a partition each.
    pub(super) fn rows_together(&self) -> usize {
        let rows = self.num_slots / self.partition_pages;
        if rows < ROWS { rows as usize } else { (rows / ROWS * ROWS) as usize }
    }

    /// Keys of each of `rows` lists of at most `keys` keys that find room together: all of them, or whole partitions.
    pub(super) fn keys_together(&self, rows: u32, keys: u32) -> u32 {
        if rows * keys.div_ceil(self.block_size) <= self.num_slots {
            return u32::MAX;
        }
        self.num_slots / (rows * self.partition_pages) * self.partition_pages * self.block_size
    }

    /// Pages of each list of tiles that find room together.
    pub(super) fn tile_pages(&self) -> u32 {
        self.num_slots / (self.num_asks - self.decode_asks).max(1)
    }

    /// The asks of tiles.
    pub(super) fn tile_asks(&self) -> Range<u32> {
        self.decode_asks..self.num_asks
    }

    /// Tables by KV head.
    pub(super) fn pages(&self) -> &Buf<u32> {
        &self.pages
    }
}

impl Decoder {
    /// Lays out what the step asks of the device, and what it writes.
    pub(super) fn begin_residency(&mut self, plan: &Plan) -> Result<(), ModelError> {
        let Some(residency) = &mut self.residency else { return Ok(()) };
        let (gpu, shape) = (&self.gpu, self.kv.shape());
        // Views share the tables, for there is one group; blocks are selected in the one that sees everything.
        let view = plan.views.iter().find(|view| !view.chosen.is_empty()).unwrap_or(&plan.views[0]);
        let mut asks = Vec::new();
        residency.decode_asks = 0;
        for chosen in &view.chosen {
            for list in 0..chosen.lists {
                asks.push([chosen.list + list, u32_of(chosen.kv_len()), u32_of(chosen.table.start), 0]);
            }
            residency.decode_asks += u32::from(chosen.is_decode());
        }
        residency.num_asks = u32_of(asks.len());
        let rows = residency.decode_asks.min(ROWS);
        let unit = 8_u32.div_ceil(shape.block_size);
        let needed =
            (rows * residency.partition_pages).max((residency.num_asks - residency.decode_asks) * unit);
        if needed > residency.num_slots {
            return Err(ModelError::PageSlots { needed, slots: residency.num_slots });
        }
        let mut touched: Vec<u32> = plan.written_blocks(view, shape.block_size).collect();
        touched.sort_unstable();
        touched.dedup();
        let touched: Vec<[u32; 2]> = touched.into_iter().map(|block| [block, 0]).collect();
        residency.num_touched = u32_of(touched.len());
        fit(gpu, &mut residency.asks, asks.len())?;
        gpu.write(&residency.asks, 0, &asks);
        fit(gpu, &mut residency.touched, touched.len())?;
        gpu.write(&residency.touched, 0, &touched);
        fit(gpu, &mut residency.pages, plan.tables.len() * shape.num_kv_heads as usize)
    }

    /// Records that `pages` of the lists of `asks` come to the device, with what the step wrote of them.
    pub(super) fn make_resident(
        &self,
        pass: &mut Pass,
        layer: usize,
        lists: &Lists,
        asks: Range<u32>,
        pages: Range<u32>,
    ) {
        let Some(residency) = &self.residency else { return };
        let Some(resident) = &residency.layers[layer] else { return };
        let most = (lists.stride - 1) * residency.pages_a_block;
        let pages = pages.start..pages.end.min(most.max(pages.start));
        self.assign(pass, residency, resident, &resident.needed, lists, (asks, pages, true));
        self.fetch_pages(pass, layer, &resident.needed, true, (&residency.touched, residency.num_touched));
    }

    /// Records that pages on the device get what the step wrote, in a layer where nothing is selected.
    pub(super) fn renew_pages(&self, pass: &mut Pass, layer: usize) {
        let Some(residency) = &self.residency else { return };
        let Some(resident) = &residency.layers[layer] else { return };
        self.fetch_pages(pass, layer, &resident.needed, false, (&residency.touched, residency.num_touched));
    }

    /// Records, beside the product that follows, the fetch of what the last step wished for in the next layer, and the wishes
    /// of `layer`.
    pub(super) fn look_ahead(&self, pass: &mut Pass, layer: usize) {
        if self.residency.is_none() {
            return;
        }
        // Their buffers were used by the attention before, but nothing that follows waits for them.
        pass.split();
        self.fetch_wishes(pass, layer + 1);
        self.wish(pass, layer);
    }

    /// Records which pages the next step may select, behind the selection of this one: the best of what it left out.
    fn wish(&self, pass: &mut Pass, layer: usize) {
        let Some(residency) = &self.residency else { return };
        let Some(resident) = &residency.layers[layer] else { return };
        // Without a decode row nothing was scored.
        let scored = residency.decode_asks > 0;
        let Some(lists) = scored.then(|| self.wish_lists(layer)).flatten() else { return };
        let pages = 0..(lists.stride - 1) * residency.pages_a_block;
        let asks = 0..residency.decode_asks;
        self.assign(pass, residency, resident, &resident.wished, &lists, (asks, pages, false));
        resident.pending.store(true, Relaxed);
    }

    /// Records the fetch of what the last step wished for in a layer, if there is such a layer and it was not fetched yet.
    pub(super) fn fetch_wishes(&self, pass: &mut Pass, layer: usize) {
        let Some(residency) = &self.residency else { return };
        let Some(Some(resident)) = residency.layers.get(layer) else { return };
        if resident.pending.swap(false, Relaxed) {
            self.fetch_pages(pass, layer, &resident.wished, true, (&residency.touched, 0));
        }
    }

    fn assign(
        &self,
        pass: &mut Pass,
        residency: &Residency,
        resident: &Resident,
        fetches: &Buf<u32>,
        lists: &Lists,
        (asks, pages, attended): (Range<u32>, Range<u32>, bool),
    ) {
        let shape = self.kv.shape();
        let params = ResidencyParams {
            first_ask: asks.start,
            asks: asks.end - asks.start,
            num_kv_heads: shape.num_kv_heads,
            list_stride: lists.stride,
            block_size: shape.block_size,
            first_page: pages.start,
            num_pages: pages.end - pages.start,
            num_slots: residency.num_slots,
            now: resident.calls.fetch_add(1, Relaxed) + 1,
            most: residency.num_slots,
            write_pages: u32::from(attended),
            pad0: 0,
        };
        let together = params.asks * params.num_pages;
        assert!(together <= residency.num_slots, "{together} pages for {} slots", residency.num_slots);
        let bindings: [Bind; 7] = [
            (&residency.asks).into(),
            lists.bind.clone(),
            (&self.inputs.tables).into(),
            (&resident.places).into(),
            (&resident.slots).into(),
            fetches.into(),
            (&residency.pages).into(),
        ];
        pass.dispatch(&residency.assign, &params, &bindings, residency::grid(shape));
    }

    fn fetch_pages(
        &self,
        pass: &mut Pass,
        layer: usize,
        fetches: &Buf<u32>,
        fetch: bool,
        (blocks, touched): (&Buf<[u32; 2]>, u32),
    ) {
        let Some(residency) = &self.residency else { return };
        let Some(resident) = &residency.layers[layer] else { return };
        let Some((host_k, host_v)) = self.kv.host_layer(layer) else { return };
        let (k, v) = self.kv.layer(layer);
        let params = FetchPagesParams {
            fetch: u32::from(fetch),
            touched,
            ..FetchPagesParams::new(self.kv.shape(), residency.num_slots)
        };
        let bindings: [Bind; 7] = [
            fetches.into(),
            host_k.into(),
            host_v.into(),
            (&resident.places).into(),
            blocks.into(),
            k.into(),
            v.into(),
        ];
        pass.dispatch(&residency.copy, &params, &bindings, fetch_pages::grid(&params));
    }

    /// Traffic between slots and host so far; `None` where no selected blocks are fetched.
    ///
    /// # Errors
    /// What the device reports.
    pub fn page_traffic(&self) -> Result<Option<PageTraffic>, ModelError> {
        let Some(residency) = &self.residency else { return Ok(None) };
        let mut pass = Pass::new("page_traffic");
        let layers = || residency.layers.iter().flatten();
        let reads: Vec<_> = layers()
            .flat_map(|layer| [&layer.needed, &layer.wished])
            .map(|fetches| pass.read(fetches, 0..fetches.len()))
            .collect();
        let done = self.gpu.submit(pass)?.wait()?;
        let mut traffic = PageTraffic { page_bytes: residency.page_bytes, ..PageTraffic::default() };
        for (index, read) in reads.into_iter().enumerate() {
            let fetches: Vec<u32> = done.get(read);
            for of_head in fetches.chunks_exact(HEADER + 2 * residency.num_slots as usize) {
                let [hits, misses, dropped] = [of_head[1], of_head[2], of_head[3]].map(u64::from);
                if index % 2 == 0 {
                    traffic.hits += hits;
                    traffic.misses += misses;
                } else {
                    traffic.prefetched += misses - dropped;
                }
            }
        }
        Ok(Some(traffic))
    }
}

fn u32_of(n: usize) -> u32 {
    u32::try_from(n).expect("lists of a step fit in 32 bits")
}
