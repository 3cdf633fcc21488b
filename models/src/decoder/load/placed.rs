//! Loads weights of a checkpoint to the device, or partly to host memory.

use std::sync::Arc;

use attn_kernels::gpu::Gpu;

use super::used::Used;
use super::{WeightLoader, Weights};
use crate::host_weights::{WeightAllocator, WeightOutline, WeightPlacement};
use crate::{DecoderConfig, DecoderOptions, ModelError, Role, WeightSizes, WeightSource};

/// Loads the weights of a checkpoint.
pub(super) fn load(
    gpu: &Gpu,
    config: &DecoderConfig,
    weights: &dyn WeightSource,
    options: &DecoderOptions,
) -> Result<Weights, ModelError> {
    let allocator = match options.weights_on_gpu {
        None => WeightAllocator::device(gpu, config.num_layers),
        Some(budget_bytes) => {
            let outline = measure(gpu, config, weights)?;
            let placement = WeightPlacement::within(&outline, budget_bytes)?;
            WeightAllocator::placed(gpu, outline, placement)
        }
    };
    let progress = &options.loading;
    progress.begin(config);
    let allocator = allocator.counting(progress);
    let source = WeightLoader { config, allocator, weights: Used::new(weights, progress) };
    let mut loaded = source.all()?;
    progress.end();
    loaded.sizes = source.weights.sizes();
    source.weights.check_rest(config)?;
    loaded.host = source.allocator.host_weights().map(Arc::new);
    Ok(loaded)
}

/// Adds up the sizes of the weights, without packing them.
fn measure(
    gpu: &Gpu,
    config: &DecoderConfig,
    weights: &dyn WeightSource,
) -> Result<WeightOutline, ModelError> {
    let allocator = WeightAllocator::measuring(gpu, config.num_layers);
    let source = WeightLoader { config, allocator, weights: Used::outlines(weights) };
    source.all()?;
    Ok(source.allocator.outline())
}

impl WeightLoader<'_> {
    fn all(&self) -> Result<Weights, ModelError> {
        Ok(Weights {
            embedding: self.matrix(Role::Embed)?,
            head: match self.config.tie_embeddings {
                true => None,
                false => Some(self.matrix(Role::LmHead)?),
            },
            final_norm: self.final_norm()?,
            layers: self.each(|l| self.layer(l))?,
            attention: self.attention()?,
            hyper: self.hyper()?,
            sizes: WeightSizes::default(),
            host: None,
        })
    }
}
