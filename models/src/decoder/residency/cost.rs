//! What a fetch costs, measured on what the device holds already.

use attn_kernels::gpu::{Buf, Pass};

use super::{Residency, Resident, u32_of};
use crate::decoder::Decoder;
use crate::decoder::mlp::Mlp;
use crate::kernel::matmul::Epilogue;
use crate::matrix::Product;
use crate::{FetchCost, ModelError, PageTraffic};

impl Decoder {
    /// What fetches of selected pages cost, and how much of a fetch ahead hides beside the product that it runs beside:
    /// both alone, then together, with as many pages as steps fetched ahead so far. `None` where no page was fetched or the
    /// adapter has no timestamps.
    ///
    /// # Errors
    /// What the device reports.
    pub fn fetch_cost(&self) -> Result<Option<FetchCost>, ModelError> {
        let Some(residency) = &self.residency else { return Ok(None) };
        let mut layers = residency.layers.iter().enumerate();
        let Some((layer, resident)) = layers.find_map(|(l, resident)| Some((l, resident.as_ref()?))) else {
            return Ok(None);
        };
        let places = self.gpu.read(&resident.places, 0..resident.places.len())?;
        let held: Vec<[u32; 2]> = places
            .chunks_exact(places.len() / self.kv.num_blocks() as usize)
            .zip(0..)
            .filter(|(heads, _)| heads.iter().any(|place| *place > 1))
            .map(|(_, block)| [block, 0])
            .collect();
        let bytes = places.iter().filter(|place| **place > 1).count() as u64 * residency.page_bytes;
        if bytes == 0 || !self.gpu.time_passes(true) {
            return Ok(None);
        }
        let ahead = self.blocks_ahead(residency)?.min(held.len());
        let touched = self.gpu.upload("held_blocks", &held)?;
        let times = self.time_fetches(layer, resident, &touched, ahead);
        self.gpu.time_passes(false);
        self.gpu.forget_bind_groups();
        let [all, fetch, product, both] = times?;
        #[expect(clippy::cast_precision_loss, reason = "bytes of a pool are far below 2^52")]
        let ns_a_byte = all / bytes as f64;
        Ok(Some(FetchCost { ns_a_byte, hidden_ahead: ((fetch + product - both) / fetch).clamp(0.0, 1.0) }))
    }

    /// Nanoseconds of a fetch of everything, of a fetch of the first `ahead` blocks, of the product beside it, and of both.
    fn time_fetches(
        &self,
        layer: usize,
        resident: &Resident,
        touched: &Buf<[u32; 2]>,
        ahead: usize,
    ) -> Result<[f64; 4], ModelError> {
        let mut pass = Pass::new("fetches");
        let fetch = |pass: &mut Pass, blocks| {
            self.fetch_pages(pass, layer, &resident.needed, false, (touched, u32_of(blocks)));
        };
        // The first round warms up.
        for _ in 0..2 {
            for (blocks, multiplies) in [(touched.len(), false), (ahead, false), (0, true), (ahead, true)] {
                pass.split();
                if blocks > 0 {
                    fetch(&mut pass, blocks);
                }
                if multiplies {
                    self.multiply_beside(&mut pass, layer)?;
                }
            }
        }
        let done = self.gpu.submit(pass)?.wait()?;
        let ns: Vec<f64> = done.timings.iter().map(|timing| timing.ns).collect();
        Ok(match ns[..] {
            [.., all, fetch, product, both] if ns.len() == 8 => [all, fetch, product, both],
            // Experts have no one product: nothing is counted as hidden beside them.
            [.., all, fetch, both] => [all, fetch, 0.0, both],
            _ => [0.0; 4],
        })
    }

    /// The product that fetches ahead run beside, of one row of whatever its input holds.
    fn multiply_beside(&self, pass: &mut Pass, layer: usize) -> Result<(), ModelError> {
        let Mlp::Dense { gate_up, .. } = &self.layers[layer].mlp else { return Ok(()) };
        let product = Product {
            x: &self.activations.normed,
            rows: 1,
            precision: self.precision,
            y: &self.activations.inner,
            y_stride: self.config.intermediate_size,
            y_offset: 0,
            epilogue: Epilogue::SiluMul,
            norm: None,
        };
        gate_up.multiply(&self.kernels, pass, &product)
    }

    /// Blocks that a step fetched ahead of one layer, on average over the calls so far.
    fn blocks_ahead(&self, residency: &Residency) -> Result<usize, ModelError> {
        let PageTraffic { prefetched, .. } = self.page_traffic()?.unwrap_or_default();
        let calls: u64 = residency.layers.iter().flatten().map(Resident::num_calls).sum();
        // Every second call wishes.
        let heads = u64::from(self.kv.shape().num_kv_heads);
        Ok(usize::try_from((2 * prefetched).div_ceil((calls * heads).max(1)))
            .expect("blocks of a pool")
            .max(1))
    }
}
