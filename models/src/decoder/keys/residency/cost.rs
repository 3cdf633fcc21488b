//! Traffic between slots and host, and the cost of a fetch, measured with the pages that are on the device.

use attn_kernels::gpu::{Buf, Gpu, Pass};
use attn_kernels::kernel::residency::HEADER;
use attn_kernels::rows::WrittenBlock;

use super::copy::Copied;
use super::{FetchReason, Residency};
use crate::cast::u32_of;
use crate::{FetchCost, KvPool, ModelError, PageTraffic, Predictions};

/// Records the matrix product of a layer that prefetches run next to, for one row of arbitrary input.
pub(in crate::decoder) type Beside<'a> = dyn FnMut(&mut Pass, usize) -> Result<(), ModelError> + 'a;

impl Residency {
    /// Returns the traffic between slots and host so far.
    pub(in crate::decoder) fn traffic(&self, gpu: &Gpu) -> Result<PageTraffic, ModelError> {
        let mut pass = Pass::new("page_traffic");
        let layers = || self.layers.iter().flatten();
        let reads: Vec<_> = layers()
            .flat_map(|layer| [&layer.needed, &layer.prefetch_list])
            .map(|fetches| pass.read(fetches, 0..fetches.len()))
            .collect();
        let done = gpu.submit(pass)?.wait()?;
        let (page_bytes, predictions) = (self.page_bytes, self.predictions());
        let mut traffic = PageTraffic { page_bytes, predictions, ..PageTraffic::default() };
        for (index, read) in reads.into_iter().enumerate() {
            let fetches: Vec<u32> = done.get(read);
            for of_head in fetches.chunks_exact(HEADER + 2 * self.num_slots as usize) {
                let [hits, misses, dropped] = [of_head[1], of_head[2], of_head[3]].map(u64::from);
                if index % 2 == 0 {
                    traffic.hits += hits;
                    traffic.misses += misses;
                } else {
                    traffic.prefetched += misses - dropped;
                }
            }
        }
        Ok(traffic)
    }

    /// Returns counts of blocks that were read ahead of selections, if there are blocks on disk.
    pub(in crate::decoder) fn predictions(&self) -> Option<Predictions> {
        self.disk.as_ref().map(|disk| disk.fetcher.counts())
    }

    /// Measures the cost of fetching selected pages, and how much of a prefetch is hidden by the matrix product that runs
    /// next to it. Prefetch and product run alone, then together, with as many pages as steps have prefetched so far.
    /// `None` if no page was fetched or the adapter has no timestamps.
    pub(in crate::decoder) fn cost(
        &self,
        gpu: &Gpu,
        kv: &KvPool,
        beside: &mut Beside<'_>,
    ) -> Result<Option<FetchCost>, ModelError> {
        // Fetches from disk take the disk's time.
        if self.on_disk() {
            return Ok(None);
        }
        let mut layers = self.layers.iter().enumerate();
        let Some((layer, resident)) = layers.find_map(|(l, resident)| Some((l, resident.as_ref()?))) else {
            return Ok(None);
        };
        let places = gpu.read(&resident.places, 0..resident.places.len())?;
        let held: Vec<WrittenBlock> = places
            .chunks_exact(places.len() / kv.num_blocks() as usize)
            .zip(0..)
            .filter(|(heads, _)| heads.iter().any(|place| *place > 1))
            .map(|(_, block)| WrittenBlock { block, from: block })
            .collect();
        let bytes = places.iter().filter(|place| **place > 1).count() as u64 * self.page_bytes;
        if bytes == 0 || !gpu.time_passes(true) {
            return Ok(None);
        }
        let ahead = self.blocks_ahead(gpu, kv)?.min(held.len());
        let touched = gpu.upload("held_blocks", &held)?;
        let times = self.time_fetches(gpu, kv, layer, beside, &touched, ahead);
        gpu.time_passes(false);
        gpu.forget_bind_groups();
        let [all, fetch, product, both] = times?;
        #[expect(clippy::cast_precision_loss, reason = "bytes of a pool are far below 2^52")]
        let ns_per_byte = all / bytes as f64;
        Ok(Some(FetchCost { ns_per_byte, hidden_ahead: ((fetch + product - both) / fetch).clamp(0.0, 1.0) }))
    }

    /// Measures the nanoseconds of a fetch of everything, of a fetch of the first `ahead` blocks, of the product, and of
    /// that second fetch together with the product.
    fn time_fetches(
        &self,
        gpu: &Gpu,
        kv: &KvPool,
        layer: usize,
        beside: &mut Beside<'_>,
        touched: &Buf<WrittenBlock>,
        ahead: usize,
    ) -> Result<[f64; 4], ModelError> {
        let mut pass = Pass::new("fetches");
        // The first round warms up.
        for _ in 0..2 {
            for (blocks, multiplies) in [(touched.len(), false), (ahead, false), (0, true), (ahead, true)] {
                pass.split();
                for (held, source) in kv.host_layers(layer).filter(|_| blocks > 0) {
                    let (reason, count) = (FetchReason::Needed, u32_of(blocks));
                    let copied = Copied { reason, fetch: false, touched, count, source, held };
                    self.copy(&mut pass, kv, layer, &copied);
                }
                if multiplies {
                    beside(&mut pass, layer)?;
                }
            }
        }
        let done = gpu.submit(pass)?.wait()?;
        let ns: Vec<f64> = done.timings.iter().map(|timing| timing.ns).collect();
        Ok(match ns[..] {
            [.., all, fetch, product, both] if ns.len() == 8 => [all, fetch, product, both],
            // Experts have several products: nothing is counted as hidden by them.
            [.., all, fetch, both] => [all, fetch, 0.0, both],
            _ => [0.0; 4],
        })
    }

    /// Returns the average number of blocks that a step prefetched for one layer.
    fn blocks_ahead(&self, gpu: &Gpu, kv: &KvPool) -> Result<usize, ModelError> {
        let PageTraffic { prefetched, .. } = self.traffic(gpu)?;
        let mut pass = Pass::new("page_calls");
        let slots = self.layers.iter().flatten().map(|resident| &resident.slots);
        let reads: Vec<_> = slots.map(|slots| pass.read(slots, slots.len() - 1..slots.len())).collect();
        let done = gpu.submit(pass)?.wait()?;
        let calls: u64 = reads.into_iter().map(|read| u64::from(done.get(read)[0][1])).sum();
        // Every second call is a prefetch.
        let heads = u64::from(kv.shape().num_kv_heads);
        Ok(usize::try_from((2 * prefetched).div_ceil((calls * heads).max(1)))
            .expect("blocks of a pool")
            .max(1))
    }
}
