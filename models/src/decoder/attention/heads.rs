//! Multi-head attention with keys and values per head, to all blocks or to selected ones.

use std::sync::Arc;

use attn_kernels::gpu::{Gpu, Pipeline};
use attn_kernels::kernel::attention::{Attention as AttentionSpec, Logit};
use attn_kernels::kernel::{apply_sinks, prefill_reduce};
use attn_kernels::launch::PrefixPass;
use attn_kernels::split::SplitPlan;

use super::head_weights::HeadWeights;
use super::merge::Merge;
use super::projection::append_kernel;
use crate::batch::Slice;
use crate::cast::f32_of;
use crate::decoder::batch::Batch;
use crate::decoder::kernels::{Forms, HeadKernels, LoadContext};
use crate::decoder::options::DecoderOptions;
use crate::decoder::sparse::Sparse;
use crate::decoder::splits::Splits;
use crate::{ModelError, Reach, SparseOptions};

/// Weights, kernels and block selection of heads with keys and values of their own.
#[derive(Debug)]
pub(in crate::decoder) struct Heads {
    pub(super) layers: Arc<[HeadWeights]>,
    pub(super) forms: Forms,
    pub(super) prefix_capacity: u32,
    pub(super) rope_append: Arc<Pipeline>,
    /// Kernels of each attention group, for attention to all keys.
    kernels: Vec<HeadKernels>,
    pub(super) apply_sinks: Arc<Pipeline>,
    pub(super) prefill_reduce: Arc<Pipeline>,
    /// Merge of partial results: for prefill with cooperative matrices, if keys of tiles come to the device in parts;
    /// `None` otherwise.
    pub(super) merge: Option<Merge>,
    pub(in crate::decoder) sparse: Option<Sparse>,
    /// Prefixes that the current step attends in chunks, by attention group.
    pub(super) prefixes: Vec<Option<PrefixPass>>,
    skipping: Option<Skipping>,
}

/// Prefill attention that skips keys.
#[derive(Debug)]
struct Skipping {
    options: SparseOptions,
    /// Kernels of each attention group.
    kernels: Vec<HeadKernels>,
    /// Whether the current step skips keys.
    acts: bool,
}

impl Heads {
    pub(super) fn new(load: &LoadContext<'_>, layers: &Arc<[HeadWeights]>) -> Result<Self, ModelError> {
        let LoadContext { gpu, config, options, kv, attn_groups } = *load;
        let (shape, forms) = (kv.shape(), Forms::new(gpu, config, options, kv.shape()));
        let logit = if config.score_softcap.is_some() { Logit::Softcap } else { Logit::Plain };
        let kernels = |skips: bool| -> Result<Vec<HeadKernels>, ModelError> {
            let of_group = |reach| {
                let skip = skips && reach == Reach::Full;
                let spec = AttentionSpec {
                    mask: reach,
                    sinks: config.sinks,
                    logit,
                    skip,
                    ..AttentionSpec::default()
                };
                HeadKernels::new(gpu, shape, config.num_heads, forms, &spec)
            };
            attn_groups.all.iter().map(|attn_group| of_group(attn_group.reach)).collect()
        };
        let skipping = |options: &SparseOptions| -> Result<Skipping, ModelError> {
            Ok(Skipping { options: options.clone(), kernels: kernels(true)?, acts: false })
        };
        let sparse = options.selection();
        Ok(Self {
            layers: Arc::clone(layers),
            forms,
            prefix_capacity: options.prefix_capacity,
            rope_append: append_kernel(gpu, config, shape)?,
            kernels: kernels(false)?,
            apply_sinks: gpu.pipeline(&apply_sinks::variant(shape.head_dim))?,
            prefill_reduce: gpu.pipeline(&prefill_reduce::variant(shape.head_dim))?,
            merge: (forms.coop && options.offload.is_some())
                .then(|| Merge::new(gpu, config, options))
                .transpose()?,
            sparse: sparse.map(|sparse| Sparse::new(load, sparse, forms)).transpose()?,
            prefixes: Vec::new(),
            skipping: options.skipping().map(skipping).transpose()?,
        })
    }

    /// Plans whether the prompts of a step skip keys.
    pub(super) fn plan(&mut self, options: &DecoderOptions, slices: &[Slice<'_>]) {
        if let Some(skipping) = &mut self.skipping {
            skipping.acts = options.skips_in(slices);
        }
    }

    /// Returns the kernels of an attention group for rows that attend everything they see, apart from skipped keys.
    pub(super) fn kernels(&self, attn_group: usize) -> &HeadKernels {
        let skipping = self.skipping.as_ref().filter(|skipping| skipping.acts);
        &skipping.map_or(&self.kernels, |skipping| &skipping.kernels)[attn_group]
    }

    /// Returns the logarithm of the skip threshold times the number of a row's keys, for prefill in a layer. The longest context
    /// of the step has `longest` tokens. A huge value skips nothing.
    pub(super) fn log_skip(&self, layer: usize, longest: u32) -> f32 {
        let options = self.skipping.as_ref().map(|skipping| &skipping.options);
        let keeps_all = |options: &SparseOptions| {
            options.policy.keeps_all(Some(options.in_model(layer)), longest as usize)
        };
        let scale = options.filter(|options| !keeps_all(options)).and_then(|options| options.policy.skips());
        scale.map_or(f32::MAX, |scale| f32_of(f64::from(scale).ln()))
    }

    /// Returns the splits of the rows that attend lists, layer by layer.
    pub(super) fn list_splits(&self, batch: &Batch, splits: &Splits) -> Vec<SplitPlan> {
        let Some(sparse) = &self.sparse else { return Vec::new() };
        let lists = (0..self.layers.len()).filter_map(|layer| Some((layer, sparse.list_tokens(layer)?)));
        let split =
            |(layer, tokens)| splits.listed(&batch.attn_groups[sparse.group_of(layer)].selected, tokens);
        lists.map(split).collect()
    }

    /// Drops the buffers of the step's prefixes.
    pub(super) fn end(&mut self, gpu: &Gpu) {
        if self.prefixes.iter().any(Option::is_some) {
            gpu.forget_bind_groups();
        }
        self.prefixes.clear();
    }
}
