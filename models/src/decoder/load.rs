//! From a checkpoint to a decoder.

mod compressed;
mod experts;
mod latent;
mod reuse;
mod used;

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu};
use attn_kernels::kernel::attention::{Attention as Kind, Pages};
use attn_kernels::kernel::{KvShape, apply_sinks, copy_blocks, paged_prefill, paged_prefill_coop};

use self::reuse::{Weights, plain_norm};
use self::used::Used;
use super::attend::{Attention, Forms, mask};
use super::compressed::CompressedState;
use super::draws::DrawState;
use super::hyper::HyperState;
use super::inputs::{Inputs, View};
use super::latent::LatentState;
use super::layer::Layer;
use super::mlp::Mlp;
use super::moe::MoeState;
use super::residency::Residency;
use super::sparse::Sparse;
use super::staged::Staged;
use super::turns::Turns;
use super::{Activations, Decoder, DecoderOptions, Pipelines};
use crate::kernel::{bias, embed, log_prob, matmul, norm_heads, rms_norm, rope_append};
use crate::matrix::{Kernels, Matrix, MaxProduct, broadcasts};
use crate::pack::Format;
use crate::{
    DecoderConfig, KvPlan, KvPool, ModelError, QkNorm, Reach, Role, Tensor, WeightSizes, WeightSource,
};

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
        let source = Source { gpu, config, weights: Used::new(weights) };
        let embedding = source.matrix(Role::Embed)?;
        let head = match config.tie_embeddings {
            true => None,
            false => Some(source.matrix(Role::LmHead)?),
        };
        let mut weights = Weights {
            embedding,
            head,
            final_norm: source.vector(Role::FinalNorm)?,
            layers: (0..config.num_layers).map(|l| source.layer(l)).collect::<Result<_, _>>()?,
            end: source.hyper(Role::HeadHyper)?,
            sizes: WeightSizes::default(),
        };
        weights.sizes = source.weights.sizes();
        source.weights.check_rest(config)?;
        Self::assemble(gpu, config, weights, options)
    }

    fn assemble(
        gpu: &Arc<Gpu>,
        config: &DecoderConfig,
        weights: Weights,
        options: &DecoderOptions,
    ) -> Result<Self, ModelError> {
        let Weights { embedding, head, final_norm, mut layers, end, sizes } = weights;
        let kv = KvPlan::new(config, options.kv())?;
        let views = views(config, &kv);
        layers.iter_mut().zip(&views.of_layers).for_each(|(layer, view)| layer.view = *view);
        let shape = kv.shape(config);
        let key_loads = match broadcasts(gpu) && config.head_dim.is_multiple_of(16) {
            true => paged_prefill::KeyLoads::Broadcast,
            false => paged_prefill::KeyLoads::Uniform,
        };
        let kv = KvPool::new(gpu, config, kv, options.num_blocks, options.offload, options.sparse.is_some())?;
        let pages = if kv.page_slots() > 0 { Pages::OfHeads } else { Pages::Shared };
        let latent = LatentState::new(gpu, config, options, kv.plan())?;
        let compressed = (kv.plan(), &views.all[..]);
        let compressed = CompressedState::new(gpu, config, options, compressed, plain_norm(gpu, config)?)?;
        let hyper = HyperState::new(gpu, config, options, end)?;
        let sparse = options.sparse.as_ref();
        let select_block = sparse.map(|sparse| sparse.policy.block_size().get());
        // Tiles of rows go through all their keys in one dispatch, so these must be on the device.
        let coop = options.coop(gpu) && options.offload.is_none() && paged_prefill_coop::serves(&shape);
        let precision = options.precision(gpu);
        let width = config.hidden_size.max(config.intermediate_size).max(config.num_heads * config.head_dim);
        let rows = options.max_rows.max(options.max_seqs);
        let lanes = [0, u64::from(u32::MAX)]
            .map(|keys| gpu.decode_lanes(&shape, config.num_heads, keys, options.coop(gpu)));
        Ok(Self {
            kernels: Kernels::new(gpu, MaxProduct { rows, width, precision })?,
            precision,
            pipelines: pipelines(
                gpu,
                config,
                &shape,
                embedding.format(),
                Forms { lanes, key_loads, coop },
                (
                    &views.all,
                    select_block.map(|block| Kind { pages, sinks: config.sinks, ..Kind::blocks(block) }),
                ),
            )?,
            final_norm,
            sparse: sparse
                .map(|sparse| {
                    let views = (&views.all[..], &views.of_layers[..]);
                    Sparse::new(gpu, sparse, config, views, &kv, options.coop(gpu))
                })
                .transpose()?,
            residency: Residency::new(gpu, config, options, &kv)?,
            staged: Staged::new(gpu, &kv, config.num_layers)?,
            kv,
            activations: Activations::new(gpu, config, options)?,
            moe: MoeState::new(gpu, config, options)?,
            latent,
            compressed,
            hyper,
            inputs: Inputs::new(gpu, config, options, &views.all)?,
            draws: DrawState::new(gpu, config, options)?,
            views: views.all,
            turns: Turns::new(&config.rope),
            gpu: Arc::clone(gpu),
            config: config.clone(),
            options: options.clone(),
            embedding,
            head,
            layers,
            sizes,
            key_loads,
            // A GPU has lanes for every row, partition and head at once, and the decode kernel keeps them busier than tiles
            // whose lanes walk the keys one by one (27,600 against 10,000 tok/s of prefill at 7,680 tokens on an H200).
            by_rows: options.reproducible
                || options.offload.is_some()
                || !config.has_heads()
                || !(gpu.is_cpu() || coop),
            coop,
            choices: None,
            prefixes: Vec::new(),
            ahead: None,
            steps_ahead: 0,
        })
    }
}

/// What the configuration and the options may ask for and this forward pass does not do.
fn check(config: &DecoderConfig, options: &DecoderOptions) -> Result<(), ModelError> {
    if !config.head_dim.is_multiple_of(8) {
        return Err(ModelError::Unsupported { feature: "head sizes that are no multiple of 8" });
    }
    let full = config.layers.iter().any(|layer| layer.reach == Reach::Full);
    if options.sparse.is_some() && (config.latent.is_some() || !full) {
        return Err(ModelError::Sparse { lacks: "layers of full attention to keys and values" });
    }
    // It reads its cache as floats.
    let dtype = options.kv_dtype;
    if config.compressed.is_some() && dtype.is_code() {
        return Err(ModelError::KvDtype { dtype, what: "compressed attention" });
    }
    Ok(())
}

/// Distinct views, and which each layer has.
struct Views {
    all: Vec<View>,
    of_layers: Vec<usize>,
}

fn views(config: &DecoderConfig, kv: &KvPlan) -> Views {
    let mut all: Vec<View> = Vec::new();
    let mut of_layers = Vec::with_capacity(config.layers.len());
    for (layer, of_layer) in config.layers.iter().enumerate() {
        let cache = kv.of_layer(layer);
        let block_size = cache.spec.block_size.get();
        let view = View { group: cache.group, reach: of_layer.reach, block_size };
        let index = all.iter().position(|other| *other == view);
        of_layers.push(index.unwrap_or_else(|| {
            all.push(view);
            all.len() - 1
        }));
    }
    Views { all, of_layers }
}

struct Source<'a> {
    gpu: &'a Gpu,
    config: &'a DecoderConfig,
    weights: Used<'a>,
}

impl Source<'_> {
    fn layer(&self, l: u32) -> Result<Layer, ModelError> {
        Ok(Layer {
            view: 0,
            attn_norm: self.vector(Role::AttnNorm(l))?,
            qkv: if self.config.has_heads() { self.qkv(l)? } else { Vec::new() },
            compressed: self.compressed(l)?,
            latent: self.latent(l)?,
            qkv_bias: match self.config.qkv_bias {
                true => Some(self.joined(&[Role::QBias(l), Role::KBias(l), Role::VBias(l)])?),
                false => None,
            },
            sinks: match self.config.sinks {
                true => Some(self.vector(Role::Sinks(l))?),
                false => None,
            },
            qk_norm: match self.config.qk_norm {
                QkNorm::None => None,
                QkNorm::Unweighted if !self.config.layers[l as usize].rotary => None,
                QkNorm::Unweighted => {
                    Some([plain_norm(self.gpu, self.config)?, plain_norm(self.gpu, self.config)?])
                }
                QkNorm::Rms => Some([self.head_norm(Role::QNorm(l))?, self.head_norm(Role::KNorm(l))?]),
            },
            o: match self.config.compressed {
                None => Some(self.matrix(Role::O(l))?),
                Some(_) => None,
            },
            o_bias: match self.config.o_bias {
                true => Some(self.vector(Role::OBias(l))?),
                false => None,
            },
            mlp_norm: self.vector(Role::MlpNorm(l))?,
            hyper: [
                self.hyper(|part| Role::AttnHyper(l, part))?,
                self.hyper(|part| Role::MlpHyper(l, part))?,
            ],
            mlp: match self.config.layers[l as usize].mlp {
                crate::Mlp::Experts | crate::Mlp::HashedExperts => Mlp::Experts(Box::new(self.moe(l)?)),
                crate::Mlp::Dense => Mlp::Dense {
                    gate_up: Matrix::paired(
                        self.gpu,
                        self.tensor(Role::Gate(l))?,
                        self.tensor(Role::Up(l))?,
                    )?,
                    down: self.matrix(Role::Down(l))?,
                },
            },
        })
    }

    /// Queries, keys and values, neighbours of one type together.
    fn qkv(&self, l: u32) -> Result<Vec<(Matrix, u32)>, ModelError> {
        let tensors = [self.tensor(Role::Q(l))?, self.tensor(Role::K(l))?, self.tensor(Role::V(l))?];
        let mut first = 0;
        let same = |a: &Tensor<'_>, b: &Tensor<'_>| Format::from(a.dtype) == Format::from(b.dtype);
        tensors
            .chunk_by(same)
            .map(|chunk| {
                let matrix = Matrix::stacked(self.gpu, chunk)?;
                let at = first;
                first += chunk.iter().map(|t| t.shape[0]).sum::<usize>();
                Ok((matrix, u32::try_from(at).expect("dimensions of a model fit in 32 bits")))
            })
            .collect()
    }

    /// The tensor of a role, in the shape that the configuration says.
    fn tensor(&self, role: Role) -> Result<Tensor<'_>, ModelError> {
        self.checked(self.weights.tensor(role)?, &self.config.shape(role))
    }

    /// A matrix by itself.
    fn matrix(&self, role: Role) -> Result<Matrix, ModelError> {
        Matrix::stacked(self.gpu, &[self.tensor(role)?])
    }

    fn vector(&self, role: Role) -> Result<Buf<f32>, ModelError> {
        let tensor = self.tensor(role)?;
        Ok(self.gpu.upload(&tensor.name, &tensor.to_f32())?)
    }

    /// Vectors one after the other.
    fn joined(&self, roles: &[Role]) -> Result<Buf<f32>, ModelError> {
        let mut values = Vec::new();
        for role in roles {
            values.extend(self.tensor(*role)?.to_f32());
        }
        Ok(self.gpu.upload("bias", &values)?)
    }

    /// Factors of an RMS norm of heads or latents, and the zeros that it adds.
    fn head_norm(&self, role: Role) -> Result<Buf<f32>, ModelError> {
        let tensor = self.tensor(role)?;
        let mut values = tensor.to_f32();
        values.resize(2 * values.len(), 0.0);
        Ok(self.gpu.upload(&tensor.name, &values)?)
    }

    fn checked<'t>(&self, tensor: Tensor<'t>, expected: &[usize]) -> Result<Tensor<'t>, ModelError> {
        if tensor.shape != expected {
            let (name, shape) = (tensor.name.to_string(), tensor.shape.clone());
            return Err(ModelError::Shape { name, shape, expected: expected.to_vec() });
        }
        Ok(tensor)
    }
}

fn pipelines(
    gpu: &Gpu,
    config: &DecoderConfig,
    shape: &KvShape,
    embedding: Format,
    forms: Forms,
    (views, selected): (&[View], Option<Kind>),
) -> Result<Pipelines, ModelError> {
    let attention = |kind: &Kind| Attention::new(gpu, shape, config.num_heads, forms, kind);
    // Lanes of a software driver run one after the other.
    let lanes = if gpu.is_cpu() { 64 } else { matmul::NORM_LANES };
    Ok(Pipelines {
        embed: gpu.pipeline(&embed::variant(embedding.module()))?,
        norm: gpu.pipeline(&rms_norm::variant(false, lanes, gpu.level()))?,
        norm_heads: gpu.pipeline(&norm_heads::variant(false, gpu.level()))?,
        bias: gpu.pipeline(&bias::variant(false))?,
        bias_add: gpu.pipeline(&bias::variant(true))?,
        norm_gather: gpu.pipeline(&rms_norm::variant(true, lanes, gpu.level()))?,
        rope_append: gpu.pipeline(&rope_append::variant(shape, config.rope.interleaved))?,
        copy_blocks: gpu.pipeline(&copy_blocks::variant())?,
        // Latents and compressed entries have kernels of their own.
        attention: views
            .iter()
            .filter(|_| config.has_heads())
            .map(|view| attention(&Kind { mask: mask(view.reach), sinks: config.sinks, ..Kind::default() }))
            .collect::<Result<_, _>>()?,
        apply_sinks: gpu.pipeline(&apply_sinks::variant(shape.head_dim))?,
        selected: selected.map(|kind| attention(&kind)).transpose()?,
        log_prob: gpu.pipeline(&log_prob::variant())?,
    })
}
