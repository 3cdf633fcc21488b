//! Loads weights of a checkpoint to the device, or partly to host memory.

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::Gpu;

use super::used::Used;
use super::{LogitWeights, WeightLoader, Weights};
use crate::host_weights::{WeightAllocator, WeightOutline, WeightPlacement};
use crate::{DecoderConfig, DecoderOptions, LoadProgress, ModelError, Role, WeightSizes, WeightSource};

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
    let (loaded, used) = load_layers(allocator, 0..config.num_layers, config, weights, progress)?;
    progress.end();
    used.check_rest(config)?;
    Ok(loaded)
}

/// Loads the weights of each of `stages`: its device and its layers. The ranges follow each other and are all layers.
pub(super) fn load_stages(
    stages: &[(&Arc<Gpu>, Range<u32>)],
    config: &DecoderConfig,
    weights: &dyn WeightSource,
    progress: &LoadProgress,
) -> Result<Vec<Weights>, ModelError> {
    progress.begin(config);
    let mut all_used = Used::new(weights, progress);
    let mut all = Vec::with_capacity(stages.len());
    for (gpu, layers) in stages {
        let allocator = WeightAllocator::device(gpu, layers.end - layers.start);
        let (loaded, used) = load_layers(allocator, layers.clone(), config, weights, progress)?;
        all_used.extend(used);
        all.push(loaded);
    }
    progress.end();
    all_used.check_rest(config)?;
    Ok(all)
}

fn load_layers<'a>(
    allocator: WeightAllocator<'a>,
    layers: Range<u32>,
    config: &'a DecoderConfig,
    weights: &'a dyn WeightSource,
    progress: &'a LoadProgress,
) -> Result<(Weights, Used<'a>), ModelError> {
    let (allocator, weights) = (allocator.counting(progress), Used::new(weights, progress));
    let source = WeightLoader { config, layers, allocator, weights };
    let mut loaded = source.all()?;
    loaded.sizes = source.weights.sizes();
    loaded.host = source.allocator.host_weights().map(Arc::new);
    Ok((loaded, source.weights))
}

/// Adds up the sizes of the weights, without packing them.
pub(super) fn measure(
    gpu: &Gpu,
    config: &DecoderConfig,
    weights: &dyn WeightSource,
) -> Result<WeightOutline, ModelError> {
    let allocator = WeightAllocator::measuring(gpu, config.num_layers);
    let source =
        WeightLoader { config, layers: 0..config.num_layers, allocator, weights: Used::outlines(weights) };
    source.all()?;
    Ok(source.allocator.outline())
}

impl WeightLoader<'_> {
    fn all(&self) -> Result<Weights, ModelError> {
        let embedding = || self.matrix(Role::Embed);
        let first = (self.layers.start == 0).then(embedding).transpose()?;
        let head = || {
            let matrix = match (self.config.tie_embeddings, &first) {
                (false, _) => self.matrix(Role::LmHead)?,
                (true, Some(embedding)) => embedding.clone(),
                (true, None) => embedding()?,
            };
            Ok::<_, ModelError>(LogitWeights { norm: self.final_norm()?, matrix })
        };
        Ok(Weights {
            head: (self.layers.end == self.config.num_layers).then(head).transpose()?,
            embedding: first,
            layers: self.each(|l| self.layer(l))?,
            attention: self.attention()?,
            hyper: self.hyper()?,
            sizes: WeightSizes::default(),
            host: None,
        })
    }
}
