//! The tensors of a configuration, and their shapes.

use super::{BlockNorms, Compressor, DecoderConfig, HyperConfig, Mlp, NsaConfig, QkNorm};
use crate::{CompressorPart, HyperPart, Role};

const HYPER_PARTS: [HyperPart; 3] = [HyperPart::Mix, HyperPart::Base, HyperPart::Scale];

const COMPRESSOR_PARTS: [CompressorPart; 4] =
    [CompressorPart::Kv, CompressorPart::Gate, CompressorPart::Bias, CompressorPart::Norm];

impl DecoderConfig {
    /// Row-major extents of a tensor, outermost first; tensors of all experts are shaped as if each expert's lay by rows.
    ///
    /// # Panics
    /// When the configuration has no such tensor, because it lacks latents, experts, compressed entries or streams.
    #[must_use]
    pub fn shape(&self, role: Role) -> Vec<usize> {
        let [hidden, inner, vocab] = [self.hidden_size, self.intermediate_size, self.vocab_size];
        let heads = self.num_heads * self.head_dim;
        let kv = self.num_kv_heads * self.head_dim;
        let shape: &[u32] = match role {
            Role::Embed | Role::LmHead => &[vocab, hidden],
            Role::RopeFactors | Role::RopeLong | Role::RopeShort => &[self.rope.rotary_dims / 2],
            Role::FinalNorm | Role::AttnNorm(_) | Role::MlpNorm(_) | Role::OBias(_) => &[hidden],
            Role::PreMlpNorm(_) | Role::PostAttnNorm(_) | Role::PostMlpNorm(_) => &[hidden],
            Role::Q(_) => &[heads, hidden],
            Role::K(_) | Role::V(_) => &[kv, hidden],
            Role::O(_) => {
                &[hidden, self.num_heads * self.latent.map_or(self.head_dim, |latent| latent.value_dim)]
            }
            Role::Qkv(_) => &[heads + 2 * kv, hidden],
            Role::GateUp(_) => &[2 * inner, hidden],
            Role::QBias(_) => &[heads],
            Role::KBias(_) | Role::VBias(_) => &[kv],
            Role::QNorm(_) if self.qk_norm == QkNorm::Whole => &[heads],
            Role::KNorm(_) if self.qk_norm == QkNorm::Whole => &[kv],
            Role::QNorm(_) | Role::KNorm(_) | Role::KvNorm(_) => &[self.head_dim],
            Role::Sinks(_) => &[self.num_heads],
            Role::BranchGates(_) => &[self.num_heads * NsaConfig::BRANCHES, hidden],
            Role::Gate(_) | Role::Up(_) => &[inner, hidden],
            Role::Down(_) => &[hidden, inner],
            Role::Kv(_) => &[self.head_dim, hidden],
            Role::Compressor(l, part) => &self.compressor_shape(l, part, self.head_dim),
            Role::AttnHyper(_, part) | Role::MlpHyper(_, part) => &self.block_mix_shape(part),
            Role::HeadHyper(part) => &self.head_mix_shape(part),
            _ => return self.latent_shape(role),
        };
        extents(shape)
    }

    /// The part of [`shape`](Self::shape) that latents and indexers have.
    fn latent_shape(&self, role: Role) -> Vec<usize> {
        let (hidden, heads) = (self.hidden_size, self.num_heads * self.head_dim);
        let q_rank = match (&self.latent, &self.compressed) {
            (Some(latent), _) => latent.q_rank.unwrap_or(0),
            (None, Some(compressed)) => compressed.q_rank,
            (None, None) => 0,
        };
        let latent = || self.latent.as_ref().expect("the configuration has latents");
        let compressed = || self.compressed.as_ref().expect("the configuration has compressed entries");
        let indexer = || self.indexer.as_ref().expect("the configuration has an indexer");
        let shape: &[u32] = match role {
            Role::QA(_) => &[q_rank, hidden],
            Role::QANorm(_) => &[q_rank],
            Role::QB(_) => &[heads, q_rank],
            Role::KvA(_) => &[latent().cached(), hidden],
            Role::KvANorm(_) => &[latent().kv_rank],
            Role::KvB(_) => &[self.num_heads * (latent().nope_dim + latent().value_dim), latent().kv_rank],
            Role::KB(_) => &[self.num_heads, latent().kv_rank, latent().nope_dim],
            Role::VB(_) => &[self.num_heads, latent().value_dim, latent().kv_rank],
            Role::OA(_) => {
                &[compressed().output_groups * compressed().output_rank, heads / compressed().output_groups]
            }
            Role::OB(_) => &[hidden, compressed().output_groups * compressed().output_rank],
            Role::IndexQ(_) => &[indexer().num_heads * indexer().head_dim, q_rank],
            Role::IndexK(_) => &[indexer().head_dim, hidden],
            Role::IndexKNorm(_) | Role::IndexKNormBias(_) => &[indexer().head_dim],
            Role::IndexGates(_) => &[indexer().num_heads, hidden],
            Role::IndexCompressor(l, part) => &self.compressor_shape(l, part, indexer().head_dim),
            _ => return self.expert_shape(role),
        };
        extents(shape)
    }

    /// The part of [`shape`](Self::shape) that experts have.
    fn expert_shape(&self, role: Role) -> Vec<usize> {
        let moe = self.moe.as_ref().expect("the configuration has experts");
        let (hidden, experts, inner) = (self.hidden_size, moe.num_experts, moe.inner_size);
        let shared = moe.shared_size.unwrap_or(0);
        let shape: &[u32] = match role {
            Role::Router(_) => &[experts, hidden],
            Role::RouterBias(_) | Role::RouterCorrection(_) => &[experts],
            Role::RouterTable(_) => &[self.vocab_size, moe.top_k],
            Role::ExpertGate(..) | Role::ExpertUp(..) => &[inner, hidden],
            Role::ExpertDown(..) => &[hidden, inner],
            Role::ExpertsGate(_) | Role::ExpertsUp(_) => &[experts, inner, hidden],
            Role::ExpertsGateUp(_) => &[experts, 2 * inner, hidden],
            Role::ExpertsDown(_) => &[experts, hidden, inner],
            Role::ExpertsGateBias(_) | Role::ExpertsUpBias(_) => &[experts, inner],
            Role::ExpertsGateUpBias(_) => &[experts, 2 * inner],
            Role::ExpertsDownBias(_) => &[experts, hidden],
            Role::SharedGate(_) | Role::SharedUp(_) => &[shared, hidden],
            Role::SharedDown(_) => &[hidden, shared],
            _ => unreachable!("{role:?} is in an earlier table"),
        };
        extents(shape)
    }

    fn compressor_shape(&self, layer: u32, part: CompressorPart, dim: u32) -> Vec<u32> {
        let compressor = self.compressor(layer).expect("the layer has a compressor");
        let width = compressor.windows() * dim;
        match part {
            CompressorPart::Kv | CompressorPart::Gate => vec![width, self.hidden_size],
            CompressorPart::Bias => vec![compressor.ratio, width],
            CompressorPart::Norm => vec![dim],
        }
    }

    /// Shape of a part of the mix around a block, which has a factor for weights, one for gates and one for pairs of streams.
    fn block_mix_shape(&self, part: HyperPart) -> Vec<u32> {
        let mixes = self.streams().block_mixes();
        match part {
            HyperPart::Mix => vec![mixes, self.streams().streams * self.hidden_size],
            HyperPart::Base => vec![mixes],
            HyperPart::Scale => vec![3],
        }
    }

    /// Shape of a part of the mix before the output head, where the streams end.
    fn head_mix_shape(&self, part: HyperPart) -> Vec<u32> {
        let streams = self.streams().streams;
        match part {
            HyperPart::Mix => vec![streams, streams * self.hidden_size],
            HyperPart::Base => vec![streams],
            HyperPart::Scale => vec![1],
        }
    }

    fn streams(&self) -> &HyperConfig {
        self.hyper.as_ref().expect("the configuration has several streams")
    }

    fn compressor(&self, layer: u32) -> Option<&Compressor> {
        self.compressed.as_ref()?.compressors[layer as usize].as_ref()
    }

    /// Keeps the first `layers` layers.
    pub(crate) fn shorten(&mut self, layers: u32) {
        self.num_layers = self.num_layers.min(layers);
        self.layers.truncate(layers as usize);
        if let Some(compressed) = &mut self.compressed {
            compressed.compressors.truncate(layers as usize);
        }
    }

    /// Every tensor that a decoder of this configuration reads, each expert's by itself. O(layers * experts).
    #[must_use]
    pub fn tensors(&self) -> Vec<Role> {
        let mut roles = vec![Role::Embed, Role::FinalNorm];
        roles.extend((!self.tie_embeddings).then_some(Role::LmHead));
        if self.hyper.is_some() {
            roles.extend(HYPER_PARTS.map(Role::HeadHyper));
        }
        for l in 0..self.num_layers {
            match self.norms {
                BlockNorms::Before => roles.extend([Role::AttnNorm(l), Role::MlpNorm(l)]),
                BlockNorms::Behind => roles.extend([Role::PostAttnNorm(l), Role::PostMlpNorm(l)]),
                BlockNorms::Around => {
                    roles.extend([Role::AttnNorm(l), Role::PostAttnNorm(l)]);
                    roles.extend([Role::PreMlpNorm(l), Role::PostMlpNorm(l)]);
                }
            }
            if self.hyper.is_some() {
                roles.extend(HYPER_PARTS.map(|part| Role::AttnHyper(l, part)));
                roles.extend(HYPER_PARTS.map(|part| Role::MlpHyper(l, part)));
            }
            self.attention_tensors(l, &mut roles);
            match self.layers[l as usize].mlp {
                Mlp::Dense => roles.extend([Role::Gate(l), Role::Up(l), Role::Down(l)]),
                mlp => self.expert_tensors(l, mlp, &mut roles),
            }
        }
        roles
    }

    fn attention_tensors(&self, l: u32, roles: &mut Vec<Role>) {
        let mut add = |present: bool, tensors: &[Role]| {
            if present {
                roles.extend(tensors);
            }
        };
        let (heads, latent, compressed) =
            (self.has_heads(), self.latent.is_some(), self.compressed.is_some());
        let q_latent = compressed || self.latent.is_some_and(|latent| latent.q_rank.is_some());
        add(!q_latent, &[Role::Q(l)]);
        add(heads, &[Role::K(l), Role::V(l)]);
        add(self.qkv_bias, &[Role::QBias(l), Role::KBias(l), Role::VBias(l)]);
        add(matches!(self.qk_norm, QkNorm::Rms | QkNorm::Whole), &[Role::QNorm(l), Role::KNorm(l)]);
        add(self.sinks, &[Role::Sinks(l)]);
        add(self.nsa.is_some(), &[Role::BranchGates(l)]);
        add(!compressed, &[Role::O(l)]);
        add(self.o_bias, &[Role::OBias(l)]);
        add(q_latent, &[Role::QA(l), Role::QANorm(l), Role::QB(l)]);
        add(latent, &[Role::KvA(l), Role::KvANorm(l), Role::KvB(l)]);
        add(compressed, &[Role::Kv(l), Role::KvNorm(l), Role::OA(l), Role::OB(l)]);
        let compressor = self.compressor(l);
        add(compressor.is_some(), &COMPRESSOR_PARTS.map(|part| Role::Compressor(l, part)));
        let indexed = compressor.is_some_and(|compressor| compressor.indexed) && self.indexer.is_some();
        add(indexed, &COMPRESSOR_PARTS.map(|part| Role::IndexCompressor(l, part)));
        let indexer = latent && self.indexer.is_some();
        add(indexed || indexer, &[Role::IndexQ(l), Role::IndexGates(l)]);
        add(indexer, &[Role::IndexK(l), Role::IndexKNorm(l), Role::IndexKNormBias(l)]);
    }

    fn expert_tensors(&self, l: u32, mlp: Mlp, roles: &mut Vec<Role>) {
        let moe = self.moe.as_ref().expect("a layer of experts has a configuration of them");
        let hashed = mlp == Mlp::HashedExperts;
        roles.push(Role::Router(l));
        roles.extend(hashed.then_some(Role::RouterTable(l)));
        roles.extend((moe.router.correction && !hashed).then_some(Role::RouterCorrection(l)));
        if moe.biases {
            roles.extend([Role::RouterBias(l), Role::ExpertsGateBias(l), Role::ExpertsUpBias(l)]);
            roles.push(Role::ExpertsDownBias(l));
        }
        if moe.shared_size.is_some() {
            roles.extend([Role::SharedGate(l), Role::SharedUp(l), Role::SharedDown(l)]);
        }
        for e in 0..moe.num_experts {
            roles.extend([Role::ExpertGate(l, e), Role::ExpertUp(l, e), Role::ExpertDown(l, e)]);
        }
    }
}

fn extents(shape: &[u32]) -> Vec<usize> {
    shape.iter().map(|n| *n as usize).collect()
}
