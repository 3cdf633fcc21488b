//! Loads a decoder from a checkpoint.

mod compressed;
mod experts;
mod fused;
mod latent;
mod placed;
mod used;

use std::ops::Range;
use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu};
use attn_kernels::kernel::copy_blocks;

use self::used::Used;
use super::activations::Activations;
use super::attention::{Attention, AttentionWeights, HeadWeights, NsaWeights, QkNormWeights, plain_norm};
use super::attention_groups::AttentionGroups;
use super::batch::{Batch, Prefill};
use super::draws::DrawState;
use super::head::{LogitRows, LogitWeights};
use super::hyper::{HyperWeights, Residual};
use super::indexed::Indexed;
use super::kernels::{Forms, LoadContext};
use super::keys::{KeySource, OffloadPlan};
use super::mlp::{Mlp, Mlps};
use super::moe::MoeState;
use super::ops::Ops;
use super::splits::Splits;
use super::{Decoder, DecoderOptions};
use crate::host_weights::{HostWeights, WeightAllocator, WeightStream};
use crate::matrix::{FewExperts, Kernels, Matrix, MaxProduct};
use crate::pack::Format;
use crate::{
    AttentionForm, BlockNorms, DecoderConfig, KvPlan, KvPool, Mode, ModelError, PoolOptions, QkNorm, Role,
    Tensor, WeightSizes, WeightSource,
};

/// Weights of a checkpoint on the device, which decoders share.
#[derive(Clone, Debug)]
pub(super) struct Weights {
    /// Token embedding; `None` if the first layers of the model are on another device.
    pub(super) embedding: Option<Matrix>,
    /// Weights of the output head; `None` if the last layers of the model are on another device.
    pub(super) head: Option<LogitWeights>,
    pub(super) layers: Arc<[LayerWeights]>,
    attention: AttentionWeights,
    /// Hyper-connections, if there are several residual streams.
    hyper: Option<HyperWeights>,
    pub(super) sizes: WeightSizes,
    /// Matrices in host memory, if there are any.
    pub(super) host: Option<Arc<HostWeights>>,
}

/// Weights of a layer, without its attention.
#[derive(Clone, Debug)]
pub(super) struct LayerWeights {
    /// Norm before attention; the next field is the norm before the MLP. `None` if the layer reads the residual as it is.
    pub(super) attn_norm: Option<Buf<f32>>,
    pub(super) mlp_norm: Option<Buf<f32>>,
    pub(super) mlp: Mlp,
}

impl Decoder {
    /// Uploads `weights`, still quantised, and allocates the KV pool.
    ///
    /// # Errors
    /// Missing, misshapen or unknown tensors, parts of an architecture that the forward pass lacks, and what the device
    /// reports. A pool for which memory is short is halved; see [`KvPool::num_blocks`].
    pub fn load(
        gpu: &Arc<Gpu>,
        config: &DecoderConfig,
        weights: &dyn WeightSource,
        options: &DecoderOptions,
    ) -> Result<Self, ModelError> {
        check(config, options)?;
        let weights = placed::load(gpu, config, weights, options)?;
        Self::assemble(gpu, config, weights, options)
    }

    /// Loads a decoder for each of `stages`, which gives its device and its layers. The ranges of layers are consecutive,
    /// and cover all layers.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) fn load_stages(
        stages: &[(&Arc<Gpu>, Range<u32>)],
        config: &DecoderConfig,
        weights: &dyn WeightSource,
        options: &DecoderOptions,
    ) -> Result<Vec<Self>, ModelError> {
        check(config, options)?;
        let loaded = placed::load_stages(stages, config, weights, &options.loading)?;
        let assemble = |(weights, (gpu, layers)): (Weights, &(&Arc<Gpu>, Range<u32>))| {
            let mut options = options.clone();
            if let Some(sparse) = &mut options.sparse {
                sparse.first_layer = layers.start;
            }
            Self::assemble(gpu, &config.of_layers(layers.clone()), weights, &options)
        };
        loaded.into_iter().zip(stages).map(assemble).collect()
    }

    /// Returns the bytes of each layer's weights, without loading them.
    ///
    /// # Errors
    /// Missing, misshapen or unknown tensors.
    pub(crate) fn layer_bytes(
        gpu: &Gpu,
        config: &DecoderConfig,
        weights: &dyn WeightSource,
    ) -> Result<Vec<u64>, ModelError> {
        Ok(placed::measure(gpu, config, weights)?.layers.iter().map(|layer| layer.bytes).collect())
    }

    /// Returns the model with a new, empty cache and other options. The weights are kept.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn with_options(self, options: &DecoderOptions) -> Result<Self, ModelError> {
        check(&self.config, options)?;
        let (gpu, config, weights) = (Arc::clone(&self.gpu), self.config.clone(), self.weights.clone());
        drop(self);
        Self::assemble(&gpu, &config, weights, options)
    }

    /// Returns a second decoder that shares the weights, has its own cache, and can work at the same time.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn beside(&self, options: &DecoderOptions) -> Result<Self, ModelError> {
        check(&self.config, options)?;
        Self::assemble(&self.gpu, &self.config, self.weights.clone(), options)
    }

    fn assemble(
        gpu: &Arc<Gpu>,
        config: &DecoderConfig,
        weights: Weights,
        options: &DecoderOptions,
    ) -> Result<Self, ModelError> {
        // Slots for weights come first: the pool takes what memory is left.
        let stream =
            weights.host.as_ref().map(|host| WeightStream::new(gpu, Arc::clone(host))).transpose()?;
        let kv = KvPlan::new(config, options.kv())?;
        let attn_groups = AttentionGroups::new(config, &kv);
        let pool = PoolOptions::new(options.num_blocks).offload(options.offload).spill(options.spill.clone());
        let pool = pool.selects(options.selection().is_some());
        let kv = KvPool::new(gpu, config, kv, pool)?;
        let precision = options.precision(gpu);
        let width = config.hidden_size.max(config.intermediate_size).max(config.num_heads * config.head_dim);
        let rows = options.max_rows.max(options.max_seqs);
        let routed_width = config.moe.map_or(0, |moe| moe.top_k * moe.inner_size);
        let expert_rows = config.moe.map_or(0, |moe| FewExperts::max_rows(&moe, precision));
        let normed_width = config.hidden_size;
        let max = MaxProduct { rows, width, normed_width, routed_width, expert_rows, precision };
        let kernels = Kernels::new(gpu, max, stream)?;
        let forms = Forms::new(gpu, config, options, kv.shape());
        let load = LoadContext { gpu, config, options, kv: &kv, attn_groups: &attn_groups };
        let prefill = Prefill {
            by_rows: options.reproducible
                || options.offload.is_some() && options.selection().is_some() && !forms.coop
                || !config.has_heads()
                || config.nsa.is_some(),
            // A GPU has lanes for every row, partition and head at once, and the decode kernel keeps them busier than tiles
            // whose lanes walk the keys one by one (27,600 against 10,000 tok/s of prefill at 7,680 tokens on an H200).
            by_rows_unless_skipping: !(gpu.profile().software || forms.coop),
            tile_rows: forms.tile_rows(),
        };
        Ok(Self {
            ops: Ops::new(gpu, kernels, precision, weights.embedding.as_ref())?,
            copy: gpu.pipeline(&copy_blocks::variant())?,
            attention: Attention::new(&load, &weights.attention)?,
            keys: KeySource::new(gpu, config, options, &kv)?,
            residual: Residual::new(gpu, config, options, weights.hyper.as_ref())?,
            mlps: Mlps { experts: MoeState::new(gpu, config, options)? },
            activations: Activations::new(gpu, config, options)?,
            batch: Batch::new(gpu, config, options, &attn_groups.all, prefill)?,
            offload_plan: OffloadPlan::new(gpu, options)?,
            logit_rows: LogitRows::new(gpu, options)?,
            draws: DrawState::new(gpu, config, options)?,
            splits: Splits::new(gpu, config, options, &kv),
            gpu: Arc::clone(gpu),
            config: config.clone(),
            options: options.clone(),
            layers: 0..weights.layers.len(),
            weights,
            kv,
            attn_groups,
            choices: None,
            indexed: Indexed::of(config),
            ahead: None,
            steps_ahead: 0,
            steps_following: 0,
            streamed_bytes: 0,
        })
    }
}

/// Rejects combinations of configuration and options that this forward pass does not support.
fn check(config: &DecoderConfig, options: &DecoderOptions) -> Result<(), ModelError> {
    if !config.head_dim.is_multiple_of(8) {
        return Err(ModelError::Unsupported { feature: "head sizes that are no multiple of 8" });
    }
    options.modes().try_for_each(|mode| mode.check(config))?;
    if let Some(sparse) = options.skipping() {
        sparse.check(options.block_size)?;
        if !config.has_heads() {
            return Err(ModelError::Unsupported { feature: "keys left out of attention over latents" });
        }
        if config.nsa.is_some() {
            return Err(ModelError::Unsupported { feature: "keys left out of native sparse attention" });
        }
        if options.reproducible {
            // What a tile leaves out follows from all of its rows.
            return Err(ModelError::Skips { policy: sparse.policy.name(), asked: "be reproducible" });
        }
    }
    if options.sparse.is_some() && config.score_softcap.is_some() {
        // What ranks and estimates blocks does not know the bound.
        let (mode, form) = (Mode::Sparse, AttentionForm::of(config));
        return Err(ModelError::Mode { mode, form, lacks: "scores without a bound" });
    }
    Ok(())
}

struct WeightLoader<'a> {
    config: &'a DecoderConfig,
    /// Layers that are loaded.
    layers: Range<u32>,
    allocator: WeightAllocator<'a>,
    weights: Used<'a>,
}

impl WeightLoader<'_> {
    /// Loads one item for each of the layers.
    fn each<T>(&self, load: impl Fn(u32) -> Result<T, ModelError>) -> Result<Arc<[T]>, ModelError> {
        let of_layer = |l| {
            self.allocator.enter(Some(l - self.layers.start));
            load(l)
        };
        let all = self.layers.clone().map(of_layer).collect();
        self.allocator.enter(None);
        all
    }

    fn layer(&self, l: u32) -> Result<LayerWeights, ModelError> {
        Ok(LayerWeights {
            attn_norm: match self.config.norms {
                BlockNorms::Before | BlockNorms::Around => Some(self.norm(Role::AttnNorm(l))?),
                BlockNorms::Behind => None,
            },
            mlp_norm: match self.config.norms {
                BlockNorms::Before => Some(self.norm(Role::MlpNorm(l))?),
                BlockNorms::Around => Some(self.norm(Role::PreMlpNorm(l))?),
                BlockNorms::Behind => None,
            },
            mlp: match self.config.layers[l as usize].mlp {
                crate::Mlp::Experts | crate::Mlp::HashedExperts => Mlp::Experts(Box::new(self.moe(l)?)),
                crate::Mlp::Dense => Mlp::Dense {
                    gate_up: Matrix::paired(
                        &self.allocator,
                        self.tensor(Role::Gate(l))?,
                        self.tensor(Role::Up(l))?,
                    )?,
                    down: self.matrix(Role::Down(l))?,
                    post_norm: self.post_norm(Role::PostMlpNorm(l))?,
                },
            },
        })
    }

    /// Loads the attention of all layers, in the form that the model uses.
    fn attention(&self) -> Result<AttentionWeights, ModelError> {
        let with_gates =
            |l| Ok(NsaWeights { heads: self.heads(l)?, gates: self.matrix(Role::BranchGates(l))? });
        Ok(match (self.config.latent, &self.config.compressed) {
            (None, None) if self.config.nsa.is_some() => AttentionWeights::Nsa(self.each(with_gates)?),
            (Some(c), _) => AttentionWeights::Latent(c, self.each(|l| self.latent(l, &c))?),
            (None, Some(c)) => {
                AttentionWeights::Compressed(Box::new(c.clone()), self.each(|l| self.compressed(l, c))?)
            }
            (None, None) => AttentionWeights::Heads(self.each(|l| self.heads(l))?),
        })
    }

    fn heads(&self, l: u32) -> Result<HeadWeights, ModelError> {
        Ok(HeadWeights {
            qkv: self.qkv(l)?,
            qkv_bias: match self.config.qkv_bias {
                true => Some(self.joined(&[Role::QBias(l), Role::KBias(l), Role::VBias(l)])?),
                false => None,
            },
            sinks: self.sinks(l)?,
            qk_norm: match self.config.qk_norm {
                QkNorm::None => None,
                QkNorm::Unweighted if !self.config.layers[l as usize].rotary => None,
                QkNorm::Unweighted => {
                    let values = plain_norm(self.config).repeat(2);
                    Some(QkNormWeights::Heads(self.allocator.vector("plain_norm", &values)?))
                }
                QkNorm::Rms => {
                    let [q, k] = [Role::QNorm(l), Role::KNorm(l)].map(|role| self.head_norm_values(role));
                    Some(QkNormWeights::Heads(self.allocator.vector("qk_norm", &[q?, k?].concat())?))
                }
                QkNorm::Whole => Some(QkNormWeights::Whole([
                    self.head_norm(Role::QNorm(l))?,
                    self.head_norm(Role::KNorm(l))?,
                ])),
            },
            o: self.matrix(Role::O(l))?,
            post_norm: self.post_norm(Role::PostAttnNorm(l))?,
            o_bias: match self.config.o_bias {
                true => Some(self.vector(Role::OBias(l))?),
                false => None,
            },
        })
    }

    /// Loads the sink logits.
    fn sinks(&self, l: u32) -> Result<Option<Buf<f32>>, ModelError> {
        self.config.sinks.then(|| self.vector(Role::Sinks(l))).transpose()
    }

    /// Loads queries, keys and values; neighbours of the same type become one matrix.
    fn qkv(&self, l: u32) -> Result<Vec<(Matrix, u32)>, ModelError> {
        let tensors = [self.tensor(Role::Q(l))?, self.tensor(Role::K(l))?, self.tensor(Role::V(l))?];
        let mut first = 0;
        let same = |a: &Tensor<'_>, b: &Tensor<'_>| Format::from(a.dtype) == Format::from(b.dtype);
        tensors
            .chunk_by(same)
            .map(|chunk| {
                let matrix = Matrix::stacked(&self.allocator, chunk)?;
                let at = first;
                first += chunk.iter().map(|t| t.shape[0]).sum::<usize>();
                Ok((matrix, u32::try_from(at).expect("dimensions of a model fit in 32 bits")))
            })
            .collect()
    }

    /// Returns the tensor of a role, in the shape that the configuration gives.
    fn tensor(&self, role: Role) -> Result<Tensor<'_>, ModelError> {
        self.part(role)
    }

    /// Loads a single matrix.
    fn matrix(&self, role: Role) -> Result<Matrix, ModelError> {
        Matrix::stacked(&self.allocator, &[self.tensor(role)?])
    }

    fn vector(&self, role: Role) -> Result<Buf<f32>, ModelError> {
        let tensor = self.tensor(role)?;
        self.allocator.vector(&tensor.name, &tensor.to_f32())
    }

    /// Loads the weights of an RMS norm of rows.
    fn norm(&self, role: Role) -> Result<Buf<f32>, ModelError> {
        self.allocator.vector(&self.tensor(role)?.name, &self.norm_weights(role)?)
    }

    /// Loads the weights of the norm before the output head, times the factor on logits.
    fn final_norm(&self) -> Result<Buf<f32>, ModelError> {
        let mut weights = self.norm_weights(Role::FinalNorm)?;
        weights.iter_mut().for_each(|weight| *weight *= self.config.logit_scale);
        self.allocator.vector("final_norm", &weights)
    }

    /// Loads the weights of the norm after attention or MLP, if there is one.
    fn post_norm(&self, role: Role) -> Result<Option<Buf<f32>>, ModelError> {
        (self.config.norms != BlockNorms::Before).then(|| self.norm(role)).transpose()
    }

    /// Returns the weights of an RMS norm, adding the offset that some checkpoints leave out.
    fn norm_weights(&self, role: Role) -> Result<Vec<f32>, ModelError> {
        let offset = self.config.norm_offset;
        Ok(self.tensor(role)?.to_f32().into_iter().map(|weight| offset + weight).collect())
    }

    /// Loads several vectors and concatenates them.
    fn joined(&self, roles: &[Role]) -> Result<Buf<f32>, ModelError> {
        let mut values = Vec::new();
        for role in roles {
            values.extend(self.tensor(*role)?.to_f32());
        }
        self.allocator.vector("bias", &values)
    }

    /// Loads the factors of an RMS norm of heads or latents, followed by zeros as its bias.
    fn head_norm(&self, role: Role) -> Result<Buf<f32>, ModelError> {
        self.allocator.vector(&self.tensor(role)?.name, &self.head_norm_values(role)?)
    }

    /// Reads the factors of an RMS norm of heads or latents, followed by zeros as its bias.
    fn head_norm_values(&self, role: Role) -> Result<Vec<f32>, ModelError> {
        let mut values = self.norm_weights(role)?;
        values.resize(2 * values.len(), 0.0);
        Ok(values)
    }

    fn checked<'t>(&self, tensor: Tensor<'t>, expected: &[usize]) -> Result<Tensor<'t>, ModelError> {
        if tensor.shape != expected {
            let (name, shape) = (tensor.name.to_string(), tensor.shape.clone());
            return Err(ModelError::Shape { name, shape, expected: expected.to_vec() });
        }
        Ok(tensor)
    }
}
