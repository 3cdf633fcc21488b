//! Attention kernels of heads in the form that suits a device, and the parameters that parts are built from.

use std::sync::Arc;

use attn_kernels::Level;
use attn_kernels::gpu::{Gpu, Pipeline};
use attn_kernels::kernel::attention;
use attn_kernels::kernel::mass_bound;
use attn_kernels::kernel::paged_decode::{self, Lanes};
use attn_kernels::kernel::paged_prefill::{self, KeyLoads};
use attn_kernels::kernel::{KvShape, paged_prefill_coop, paged_reduce};

use super::attention_groups::AttentionGroups;
use super::options::DecoderOptions;
use crate::{DecoderConfig, KvPool, ModelError};

/// Parameters that attention and selection are built from.
pub(super) struct LoadContext<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) config: &'a DecoderConfig,
    pub(super) options: &'a DecoderOptions,
    pub(super) kv: &'a KvPool,
    pub(super) attn_groups: &'a AttentionGroups,
}

/// Forms of the attention kernels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forms {
    /// Lanes of decode for few keys and for many.
    lanes: [Lanes; 2],
    /// Key loads of prefill without cooperative matrices.
    key_loads: KeyLoads,
    /// Whether prefill uses cooperative matrices.
    pub(super) coop: bool,
}

impl Forms {
    pub(super) fn new(gpu: &Gpu, config: &DecoderConfig, options: &DecoderOptions, shape: &KvShape) -> Self {
        let coop = options.uses_coop(gpu);
        let profile = gpu.profile().rounded(coop);
        let trusts = |kernel, level| profile.trusts(kernel, level, shape.dtype);
        let broadcasts = profile.broadcasts() && config.head_dim.is_multiple_of(16);
        Self {
            lanes: [0, u64::from(u32::MAX)].map(|keys| Lanes::of(&profile, shape, config.num_heads, keys)),
            key_loads: match broadcasts && trusts(&paged_prefill::KERNEL, Level::Subgroup) {
                true => KeyLoads::Broadcast,
                false => KeyLoads::Uniform,
            },
            coop: coop
                && paged_prefill_coop::serves(shape, &profile)
                && trusts(&paged_prefill_coop::KERNEL, Level::Coop),
        }
    }

    /// Maximum number of rows of a tile.
    pub(super) fn tile_rows(&self) -> u32 {
        if self.coop { paged_prefill_coop::TILE_ROWS } else { paged_prefill::tile_rows(self.key_loads) }
    }
}

/// Pipelines of one attention variant.
#[derive(Debug)]
pub(super) struct HeadKernels {
    /// Decode kernels, one for each form that a step may use.
    decode: [(Lanes, Arc<Pipeline>); 2],
    pub(super) reduce: Arc<Pipeline>,
    pub(super) prefill: Arc<Pipeline>,
}

impl HeadKernels {
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
            reduce: gpu.pipeline(&paged_reduce::best(gpu.profile(), shape, kind))?,
            prefill: gpu.pipeline(&match forms.coop {
                true => paged_prefill_coop::variant(shape, kind),
                false => paged_prefill::variant(shape, num_heads, forms.key_loads, kind),
            })?,
        })
    }

    /// Returns the error that decode may add to a logit, compared with f32: see [`mass_bound::slack`].
    pub(super) fn slack(&self) -> f32 {
        self.decode.iter().map(|(lanes, _)| mass_bound::slack(*lanes)).fold(1.0, f32::max)
    }

    pub(super) fn decode(&self, lanes: Lanes) -> &Arc<Pipeline> {
        let found = self.decode.iter().find(|(of, _)| *of == lanes);
        &found.unwrap_or_else(|| panic!("decode of {lanes:?} among {:?}", self.decode)).1
    }
}
