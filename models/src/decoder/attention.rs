//! Attention of a layer, in the form that the model uses.

mod compressed;
mod head_weights;
mod heads;
mod index;
mod indexer;
mod latent;
mod merge;
mod nsa;
mod prefix;
mod projection;
mod record;
mod rows;
mod streamed;
mod tiles;

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu};
use attn_kernels::split::SplitPlan;

use super::batch::Batch;
use super::choices::ChoiceBuffer;
use super::kernels::LoadContext;
use super::ops::Ctx;
use super::options::DecoderOptions;
use super::sparse::Sparse;
use super::splits::Splits;
use crate::batch::Slice;
use crate::{CompressedConfig, DecoderConfig, LatentConfig, ModelError};

pub(super) use compressed::{
    CompressedAttention, CompressedWeights, CompressorWeights, EntryWeights, IndexWeights, plain_norm,
};
pub(super) use head_weights::{HeadWeights, QkNormWeights};
pub(super) use heads::Heads;
pub(super) use index::IndexQueries;
pub(super) use indexer::IndexerWeights;
pub(super) use latent::{LatentAttention, LatentQueries, LatentWeights};
pub(super) use nsa::{NsaAttention, NsaWeights};

/// Weights of the attention of all layers, which decoders share.
#[derive(Clone, Debug)]
pub(super) enum AttentionWeights {
    /// Heads with keys and values of their own.
    Heads(Arc<[HeadWeights]>),
    /// Heads whose keys and values go through latents.
    Latent(LatentConfig, Arc<[LatentWeights]>),
    /// Heads over windows and compressed entries.
    Compressed(Box<CompressedConfig>, Arc<[CompressedWeights]>),
    /// Heads over means of blocks, selected blocks and a window.
    Nsa(Arc<[NsaWeights]>),
}

/// Attention with its weights, kernels and buffers.
#[derive(Debug)]
pub(super) enum Attention {
    Heads(Box<Heads>),
    Latent(Box<LatentAttention>),
    Compressed(Box<CompressedAttention>),
    Nsa(Box<NsaAttention>),
}

impl Attention {
    /// Returns the selection of blocks, if the heads select any.
    pub(super) fn sparse(&self) -> Option<&Sparse> {
        match self {
            Self::Heads(heads) => heads.sparse.as_ref(),
            Self::Latent(_) | Self::Compressed(_) | Self::Nsa(_) => None,
        }
    }

    pub(super) fn sparse_mut(&mut self) -> Option<&mut Sparse> {
        match self {
            Self::Heads(heads) => heads.sparse.as_mut(),
            Self::Latent(_) | Self::Compressed(_) | Self::Nsa(_) => None,
        }
    }

    /// Returns the numbers that the step's commands depend on, apart from its rows; `None` if steps of the same rows may record
    /// different commands.
    pub(super) fn shape(&self) -> Option<Vec<usize>> {
        match self {
            Self::Heads(heads) => heads.sparse.as_ref().map_or(Some(Vec::new()), Sparse::shape),
            Self::Latent(_) | Self::Compressed(_) | Self::Nsa(_) => None,
        }
    }

    /// Returns the splits of the rows that attend lists, layer by layer.
    pub(super) fn list_splits(&self, batch: &Batch, splits: &Splits) -> Vec<SplitPlan> {
        match self {
            Self::Heads(heads) => heads.list_splits(batch, splits),
            Self::Latent(_) | Self::Compressed(_) | Self::Nsa(_) => Vec::new(),
        }
    }

    /// Plans what the attention adds to a step.
    pub(super) fn plan(
        &mut self,
        config: &DecoderConfig,
        options: &DecoderOptions,
        slices: &[Slice<'_>],
        batch: &Batch,
    ) {
        match self {
            Self::Heads(heads) => heads.plan(options, slices),
            Self::Latent(latent) => latent.plan(batch),
            Self::Compressed(compressed) => compressed.plan(config, slices, batch),
            Self::Nsa(nsa) => nsa.plan(config, slices, batch),
        }
    }

    /// Returns the maximum number of partitions of a row, if the attention splits rows itself.
    pub(super) fn max_partitions(&self) -> Option<u32> {
        match self {
            Self::Heads(_) | Self::Latent(_) => None,
            Self::Compressed(compressed) => Some(compressed.max_partitions()),
            Self::Nsa(nsa) => Some(nsa.max_partitions()),
        }
    }

    /// Uploads the lists of a step.
    pub(super) fn upload(&mut self, gpu: &Gpu) -> Result<(), ModelError> {
        match self {
            Self::Heads(_) => Ok(()),
            Self::Latent(latent) => latent.upload(gpu),
            Self::Compressed(compressed) => compressed.upload(gpu),
            Self::Nsa(nsa) => nsa.upload(gpu),
        }
    }

    /// Records the work that all layers share.
    pub(super) fn begin(&mut self, ctx: &mut Ctx<'_>) -> Result<(), ModelError> {
        match self {
            Self::Heads(heads) => heads.begin(ctx),
            Self::Latent(_) | Self::Nsa(_) => Ok(()),
            Self::Compressed(compressed) => {
                compressed.begin(ctx);
                Ok(())
            }
        }
    }

    /// Records the first half of a layer: norm, attention, and the addition to the residual.
    pub(super) fn record(
        &mut self,
        ctx: &mut Ctx<'_>,
        layer: usize,
        norm: Option<&Buf<f32>>,
    ) -> Result<(), ModelError> {
        match self {
            Self::Heads(heads) => heads.record(ctx, layer, norm),
            Self::Latent(latent) => latent.record(ctx, layer, norm),
            Self::Compressed(compressed) => compressed.record(ctx, layer, norm),
            Self::Nsa(nsa) => nsa.record(ctx, layer, norm),
        }
    }

    /// Records, concurrently with the MLP, the pending prefetch of the next layer and the prefetch lists of this one.
    pub(super) fn look_ahead(&self, ctx: &mut Ctx<'_>, layer: usize) {
        if ctx.keys.pages().is_none() {
            return;
        }
        // Their buffers were used by the attention before, but nothing that follows waits for them.
        ctx.pass.split();
        ctx.on_pages(|pages, context| pages.fetch_ahead(context, layer + 1));
        if let Some(lists) = self.sparse().and_then(|sparse| sparse.prefetch_lists(layer)) {
            ctx.on_pages(|pages, context| pages.list_prefetch(context, layer, &lists));
        }
    }

    /// Returns the choice of a layer's indexer, if it has one and some row sees more than it may attend.
    pub(super) fn choice(&self, layer: usize, batch: &Batch) -> Option<ChoiceBuffer<'_>> {
        match self {
            Self::Heads(_) | Self::Nsa(_) => None,
            Self::Latent(latent) => latent.choice(batch),
            Self::Compressed(compressed) => compressed.choice(layer),
        }
    }

    /// Returns the entries at `slots`, which the indexer selected for row number `row`, ascending.
    pub(super) fn entries_at(&self, batch: &Batch, row: usize, slots: &[u32]) -> Vec<u32> {
        match self {
            Self::Compressed(compressed) => compressed.entries_at(batch, row, slots),
            Self::Heads(_) | Self::Latent(_) | Self::Nsa(_) => Vec::new(),
        }
    }

    /// Drops the state that only the current step needed.
    pub(super) fn end(&mut self, gpu: &Gpu) {
        if let Self::Heads(heads) = self {
            heads.end(gpu);
        }
    }
}

impl Attention {
    pub(super) fn new(load: &LoadContext<'_>, weights: &AttentionWeights) -> Result<Self, ModelError> {
        Ok(match weights {
            AttentionWeights::Heads(layers) => Self::Heads(Box::new(Heads::new(load, layers)?)),
            AttentionWeights::Latent(config, layers) => {
                Self::Latent(Box::new(LatentAttention::new(load, *config, layers)?))
            }
            AttentionWeights::Compressed(config, layers) => {
                Self::Compressed(Box::new(CompressedAttention::new(load, (**config).clone(), layers)?))
            }
            AttentionWeights::Nsa(layers) => Self::Nsa(Box::new(NsaAttention::new(load, layers)?)),
        })
    }
}
