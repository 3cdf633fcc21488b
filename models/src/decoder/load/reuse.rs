//! One model's weights for several caches and policies.

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu};

use super::check;
use crate::decoder::hyper::{Hyper, HyperState};
use crate::decoder::layer::Layer;
use crate::decoder::{Decoder, DecoderOptions};
use crate::matrix::Matrix;
use crate::{DecoderConfig, ModelError, WeightSizes};

/// What comes from a checkpoint.
pub(super) struct Weights {
    pub(super) embedding: Matrix,
    pub(super) head: Option<Matrix>,
    pub(super) final_norm: Buf<f32>,
    pub(super) layers: Vec<Layer>,
    /// Of the end of residual streams, where there are several.
    pub(super) end: Option<Hyper>,
    pub(super) sizes: WeightSizes,
}

impl Decoder {
    /// The same model for something else: with another cache, which is empty, and another policy. Weights stay where they
    /// are.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn with_options(self, options: &DecoderOptions) -> Result<Self, ModelError> {
        check(&self.config, options)?;
        let (gpu, config, weights) = (Arc::clone(&self.gpu), self.config.clone(), self.weights());
        drop(self);
        // Buffers of the cache and of steps stay alive as long as a bind group names them.
        gpu.forget_bind_groups();
        Self::assemble(&gpu, &config, weights, options)
    }

    /// The same model at work on something else at the same time: both share the weights.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn beside(&self, options: &DecoderOptions) -> Result<Self, ModelError> {
        check(&self.config, options)?;
        Self::assemble(&self.gpu, &self.config, self.weights(), options)
    }

    /// Handles of what came from the checkpoint.
    fn weights(&self) -> Weights {
        Weights {
            embedding: self.embedding.clone(),
            head: self.head.clone(),
            final_norm: self.final_norm.clone(),
            layers: self.layers.clone(),
            end: self.hyper.as_ref().map(HyperState::end),
            sizes: self.sizes,
        }
    }
}

/// An RMS norm of heads that has no weights.
pub(super) fn plain_norm(gpu: &Gpu, config: &DecoderConfig) -> Result<Buf<f32>, ModelError> {
    let width = config.head_dim as usize;
    let values: Vec<f32> =
        [1.0, 0.0].into_iter().flat_map(|value| std::iter::repeat_n(value, width)).collect();
    Ok(gpu.upload("plain_norm", &values)?)
}
