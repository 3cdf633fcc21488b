//! Slots of a cache of latents.

use attn_kernels::cpu::latent_write::stored_latent;
use attn_kernels::gpu::{Buf, Gpu};
use attn_kernels::kernel::mla_decode::LatentShape;
use attn_kernels::self_test::latents::latent_words;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

/// Slots of a cache, random where they are used and NaN elsewhere.
pub(crate) struct Slots {
    pub(crate) values: Vec<f32>,
    pub(crate) free: Vec<u32>,
}

impl Slots {
    pub(crate) fn new(blocks: usize, shape: &LatentShape, seed: u64) -> Self {
        let mut free: Vec<u32> = (0..u32::try_from(blocks).unwrap()).collect();
        free.shuffle(&mut StdRng::seed_from_u64(seed));
        let elements = (shape.block_size * shape.width()) as usize;
        Self { values: vec![f32::NAN; blocks * elements], free }
    }

    pub(crate) fn fill(&mut self, shape: &LatentShape, slot: usize, rng: &mut StdRng) {
        let width = shape.width() as usize;
        let token: Vec<f32> = (0..width).map(|_| rng.random_range(-1.0..1.0)).collect();
        self.values[slot * width..(slot + 1) * width].copy_from_slice(&stored_latent(shape, &token));
    }

    pub(crate) fn latent(&self, shape: &LatentShape, slot: usize) -> &[f32] {
        let width = shape.width() as usize;
        &self.values[slot * width..(slot + 1) * width]
    }

    pub(crate) fn upload(&self, gpu: &Gpu, shape: &LatentShape) -> Buf<u32> {
        gpu.upload("latents", &latent_words(shape, &self.values)).unwrap()
    }
}
