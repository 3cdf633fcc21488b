//! Canonical tensor roles and their names in each checkpoint format.

mod deepseek_v4;
mod nsa;

use std::fmt;

/// Role of a tensor, independent of the file that holds it. The number is the layer, from 0.
///
/// Matrices are `[out_features, in_features]`, so `y = W x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Token embedding, `[vocab_size, hidden_size]`.
    Embed,
    /// RMS norm before the output head, `[hidden_size]`.
    FinalNorm,
    /// Output head, `[vocab_size, hidden_size]`; absent where the embedding is tied.
    LmHead,
    /// Divisors of the rotary inverse frequencies, `[rotary_dims / 2]`; only GGUF stores them.
    RopeFactors,
    /// Divisors of rotary frequencies for long contexts (LongRoPE), in the shape of [`Self::RopeFactors`].
    RopeLong,
    /// Divisors of rotary frequencies for the context that the model was first trained with (LongRoPE).
    RopeShort,
    /// RMS norm before attention, `[hidden_size]`.
    AttnNorm(u32),
    /// Query projection, `[num_heads * head_dim, hidden_size]`.
    Q(u32),
    /// Key projection, `[num_kv_heads * head_dim, hidden_size]`.
    K(u32),
    /// Value projection, `[num_kv_heads * head_dim, hidden_size]`.
    V(u32),
    /// Attention output projection, `[hidden_size, num_heads * head_dim]`.
    O(u32),
    /// `Q`, `K` and `V` in one tensor.
    Qkv(u32),
    /// Bias of `Q`.
    QBias(u32),
    /// Bias of `K`.
    KBias(u32),
    /// Bias of `V`.
    VBias(u32),
    /// Bias of `O`.
    OBias(u32),
    /// RMS norm of each query head, `[head_dim]`.
    QNorm(u32),
    /// RMS norm of each key head, `[head_dim]`.
    KNorm(u32),
    /// Projection to the gates of the branches of NSA, `[num_heads * 3, hidden_size]`.
    BranchGates(u32),
    /// RMS norm before the MLP, `[hidden_size]`.
    MlpNorm(u32),
    /// RMS norm of the output of attention, `[hidden_size]`, where there is one (Gemma).
    PostAttnNorm(u32),
    /// `MlpNorm` of models that have norms behind attention and the MLP too.
    PreMlpNorm(u32),
    /// RMS norm of the output of the MLP, `[hidden_size]`, where there is one.
    PostMlpNorm(u32),
    /// Gate projection, `[intermediate_size, hidden_size]`.
    Gate(u32),
    /// Up projection, `[intermediate_size, hidden_size]`.
    Up(u32),
    /// `Gate` and `Up` in one tensor; GGUF calls it as it calls `Up`.
    GateUp(u32),
    /// Down projection, `[hidden_size, intermediate_size]`.
    Down(u32),
    /// Projection from the residual stream to the latent of queries, `[q_rank, hidden_size]`.
    QA(u32),
    /// RMS norm of the latent of queries, `[q_rank]`.
    QANorm(u32),
    /// Projection from the latent of queries to queries, `[num_heads * head_dim, q_rank]`.
    QB(u32),
    /// Projection to the latent of keys and values and to the rotary keys, `[kv_rank + rope_dim, hidden_size]`.
    KvA(u32),
    /// RMS norm of the latent of keys and values, `[kv_rank]`.
    KvANorm(u32),
    /// Projection from the latent to keys and values, by head, `[num_heads * (nope_dim + value_dim), kv_rank]`.
    KvB(u32),
    /// Projection from the latent to keys, by head and transposed, `[num_heads, kv_rank, nope_dim]`, in newer GGUF files.
    KB(u32),
    /// Projection from the latent to values, by head, `[num_heads, value_dim, kv_rank]`.
    VB(u32),
    /// Projection from the latent of queries to the queries of the indexer.
    IndexQ(u32),
    /// Projection to the keys of the indexer, `[head_dim, hidden_size]`.
    IndexK(u32),
    /// Layer norm of the indexer's keys.
    IndexKNorm(u32),
    /// Bias of the layer norm of the indexer's keys.
    IndexKNormBias(u32),
    /// Projection to the head weights of the indexer, `[num_heads, hidden_size]`.
    IndexGates(u32),
    /// Projection to the one vector that is key and value of a token, `[head_dim, hidden_size]` (DeepSeek V4).
    Kv(u32),
    /// RMS norm of the vector that is key and value, `[head_dim]`.
    KvNorm(u32),
    /// First half of an output projection by groups, `[groups * rank, num_heads * head_dim / groups]`.
    OA(u32),
    /// Second half of an output projection by groups, `[hidden_size, groups * rank]`.
    OB(u32),
    /// A part of the compressor that makes the entries of attention.
    Compressor(u32, CompressorPart),
    /// A part of the compressor that makes the entries of the indexer.
    IndexCompressor(u32, CompressorPart),
    /// A part of the hyper-connection of attention.
    AttnHyper(u32, HyperPart),
    /// A part of the hyper-connection of the MLP.
    MlpHyper(u32, HyperPart),
    /// A part of the hyper-connection that merges the streams before the output head.
    HeadHyper(HyperPart),
    /// Attention sinks, `[num_heads]`.
    Sinks(u32),
    /// Router of experts, `[num_experts, hidden_size]`.
    Router(u32),
    /// Bias of `Router`.
    RouterBias(u32),
    /// Experts of each token id, integers `[vocab_size, top_k]`.
    RouterTable(u32),
    /// Correction that is added to router scores for the choice, `[num_experts]`.
    RouterCorrection(u32),
    /// Gate and up projections of all experts, packed as [`ExpertPacking`](crate::ExpertPacking) says.
    ExpertsGateUp(u32),
    /// Biases of `ExpertsGateUp`, `[num_experts, 2 * inner_size]`.
    ExpertsGateUpBias(u32),
    /// Gate projections of all experts, `[num_experts, inner_size, hidden_size]`, where they are apart from the ups.
    ExpertsGate(u32),
    /// Up projections of all experts, `[num_experts, inner_size, hidden_size]`, where they are apart from the gates.
    ExpertsUp(u32),
    /// Biases of `ExpertsGate`, `[num_experts, inner_size]`.
    ExpertsGateBias(u32),
    /// Biases of `ExpertsUp`.
    ExpertsUpBias(u32),
    /// Down projections of all experts.
    ExpertsDown(u32),
    /// Biases of `ExpertsDown`, `[num_experts, hidden_size]`.
    ExpertsDownBias(u32),
    /// Gate of one expert, `[inner_size, hidden_size]`, where checkpoints keep experts apart.
    ExpertGate(u32, u32),
    /// Up projection of one expert.
    ExpertUp(u32, u32),
    /// Down projection of one expert, `[hidden_size, inner_size]`.
    ExpertDown(u32, u32),
    /// Gate of the shared expert, `[shared_size, hidden_size]`.
    SharedGate(u32),
    /// Up projection of the shared expert.
    SharedUp(u32),
    /// Down projection of the shared expert.
    SharedDown(u32),
}

/// A tensor of a compressor, over vectors of `dim` elements and `windows` windows an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompressorPart {
    /// Values to sum, `[windows * dim, hidden_size]`.
    Kv,
    /// Logits of the weights of that sum, in the same shape.
    Gate,
    /// Bias of the logits by position in a window, `[ratio, windows * dim]`.
    Bias,
    /// RMS norm of entries, `[dim]`.
    Norm,
}

/// A tensor of a hyper-connection that makes `mixes` numbers of `streams` streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HyperPart {
    /// Projection to the mixing coefficients, `[mixes, streams * hidden_size]`.
    Mix,
    /// Bias of the mixing coefficients, `[mixes]`.
    Base,
    /// Factor of each kind of coefficient, `[3]`; `[1]` in the merge before the output head.
    Scale,
}

/// A convention of tensor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Hugging Face: `model.layers.0.self_attn.q_proj.weight`.
    Hf,
    /// GGUF: `blk.0.attn_q.weight`.
    Gguf,
}

impl Naming {
    /// Name of `role`, or `None` if the format has no such tensor. Where families differ it is the commonest.
    pub fn name(self, role: Role) -> Option<String> {
        self.names(role).next()
    }

    /// Every name that families use for `role`.
    pub fn names(self, role: Role) -> impl Iterator<Item = String> {
        let (layer, hf, gguf) = table(role);
        let (names, prefix) = match self {
            Self::Hf => (hf, "model.layers"),
            Self::Gguf => (gguf, "blk"),
        };
        let full = move |prefix: &str, layer, name: &str| match (layer, role) {
            (Some(layer), Role::ExpertGate(_, e) | Role::ExpertUp(_, e) | Role::ExpertDown(_, e)) => {
                format!("{prefix}.{layer}.{}", name.replace("{}", &e.to_string()))
            }
            (Some(layer), _) => format!("{prefix}.{layer}.{name}"),
            (None, _) => name.to_owned(),
        };
        let published = deepseek_v4::published(role).filter(|_| self == Self::Hf);
        let published = published.into_iter().flat_map(move |(layer, name)| {
            ["model.layers", "layers"].map(|prefix| full(prefix, layer, name))
        });
        // `transformers` takes the norm of entries for that of keys when it renames.
        let saved = match (self, role) {
            (Self::Hf, Role::KvNorm(l)) => Some(format!("{prefix}.{l}.attn.norm.weight")),
            _ => None,
        };
        let of_nsa = nsa::name(role).filter(|_| self == Self::Hf);
        let of_nsa = of_nsa.into_iter().map(move |(layer, name)| full(prefix, layer, name));
        names.iter().map(move |name| full(prefix, layer, name)).chain(published).chain(of_nsa).chain(saved)
    }
}

/// Layer, names in HF and names in GGUF; none where the format has no such tensor.
fn table(role: Role) -> (Option<u32>, &'static [&'static str], &'static [&'static str]) {
    match role {
        Role::Embed => (None, &["model.embed_tokens.weight"], &["token_embd.weight"]),
        Role::FinalNorm => (None, &["model.norm.weight"], &["output_norm.weight"]),
        Role::LmHead => (None, &["lm_head.weight"], &["output.weight"]),
        Role::RopeFactors => (None, &[], &["rope_freqs.weight"]),
        Role::RopeLong => (None, &[], &["rope_factors_long.weight"]),
        Role::RopeShort => (None, &[], &["rope_factors_short.weight"]),
        Role::AttnNorm(l) => (Some(l), &["input_layernorm.weight"], &["attn_norm.weight"]),
        Role::Q(l) => (Some(l), &["self_attn.q_proj.weight"], &["attn_q.weight"]),
        Role::K(l) => (Some(l), &["self_attn.k_proj.weight"], &["attn_k.weight"]),
        Role::V(l) => (Some(l), &["self_attn.v_proj.weight"], &["attn_v.weight"]),
        Role::O(l) => (Some(l), &["self_attn.o_proj.weight"], &["attn_output.weight"]),
        Role::Qkv(l) => (Some(l), &["self_attn.qkv_proj.weight"], &["attn_qkv.weight"]),
        Role::QBias(l) => (Some(l), &["self_attn.q_proj.bias"], &["attn_q.bias"]),
        Role::KBias(l) => (Some(l), &["self_attn.k_proj.bias"], &["attn_k.bias"]),
        Role::VBias(l) => (Some(l), &["self_attn.v_proj.bias"], &["attn_v.bias"]),
        Role::OBias(l) => (Some(l), &["self_attn.o_proj.bias"], &["attn_output.bias"]),
        Role::QNorm(l) => (Some(l), &["self_attn.q_norm.weight"], &["attn_q_norm.weight"]),
        Role::KNorm(l) => (Some(l), &["self_attn.k_norm.weight"], &["attn_k_norm.weight"]),
        Role::Sinks(l) => (Some(l), &["self_attn.sinks"], &["attn_sinks.weight"]),
        Role::BranchGates(l) => (Some(l), &["attn.g_proj.weight"], &[]),
        Role::QA(l) => (Some(l), &["self_attn.q_a_proj.weight"], &["attn_q_a.weight"]),
        Role::QANorm(l) => (
            Some(l),
            &["self_attn.q_a_layernorm.weight", "self_attn.q_a_norm.weight"],
            &["attn_q_a_norm.weight"],
        ),
        Role::QB(l) => (Some(l), &["self_attn.q_b_proj.weight"], &["attn_q_b.weight"]),
        Role::KvA(l) => (Some(l), &["self_attn.kv_a_proj_with_mqa.weight"], &["attn_kv_a_mqa.weight"]),
        Role::KvANorm(l) => (Some(l), &["self_attn.kv_a_layernorm.weight"], &["attn_kv_a_norm.weight"]),
        Role::KvB(l) => (Some(l), &["self_attn.kv_b_proj.weight"], &["attn_kv_b.weight"]),
        Role::KB(l) => (Some(l), &[], &["attn_k_b.weight"]),
        Role::VB(l) => (Some(l), &[], &["attn_v_b.weight"]),
        Role::IndexQ(l) => {
            (Some(l), &["self_attn.indexer.wq_b.weight", "self_attn.compressor.indexer.q_b_proj.weight"], &[])
        }
        Role::IndexK(l) => (Some(l), &["self_attn.indexer.wk.weight"], &[]),
        Role::IndexKNorm(l) => (Some(l), &["self_attn.indexer.k_norm.weight"], &[]),
        Role::IndexKNormBias(l) => (Some(l), &["self_attn.indexer.k_norm.bias"], &[]),
        Role::IndexGates(l) => (
            Some(l),
            &[
                "self_attn.indexer.weights_proj.weight",
                "self_attn.compressor.indexer.scorer.weights_proj.weight",
            ],
            &[],
        ),
        _ => compressed_table(role),
    }
}

/// The part of [`table`] that compressed attention and hyper-connections have.
fn compressed_table(role: Role) -> (Option<u32>, &'static [&'static str], &'static [&'static str]) {
    let (layer, name): (Option<u32>, &'static [&'static str]) = match role {
        Role::Kv(l) => (Some(l), &["self_attn.kv_proj.weight"]),
        Role::KvNorm(l) => (Some(l), &["self_attn.kv_norm.weight"]),
        Role::OA(l) => (Some(l), &["self_attn.o_a_proj.weight"]),
        Role::OB(l) => (Some(l), &["self_attn.o_b_proj.weight"]),
        Role::Compressor(l, part) => (
            Some(l),
            match part {
                CompressorPart::Kv => &["self_attn.compressor.kv_proj.weight"],
                CompressorPart::Gate => &["self_attn.compressor.gate_proj.weight"],
                CompressorPart::Bias => &["self_attn.compressor.position_bias"],
                CompressorPart::Norm => &["self_attn.compressor.kv_norm.weight"],
            },
        ),
        Role::IndexCompressor(l, part) => (
            Some(l),
            match part {
                CompressorPart::Kv => &["self_attn.compressor.indexer.kv_proj.weight"],
                CompressorPart::Gate => &["self_attn.compressor.indexer.gate_proj.weight"],
                CompressorPart::Bias => &["self_attn.compressor.indexer.position_bias"],
                CompressorPart::Norm => &["self_attn.compressor.indexer.kv_norm.weight"],
            },
        ),
        Role::AttnHyper(l, HyperPart::Mix) => (Some(l), &["attn_hc.fn"]),
        Role::AttnHyper(l, HyperPart::Base) => (Some(l), &["attn_hc.base"]),
        Role::AttnHyper(l, HyperPart::Scale) => (Some(l), &["attn_hc.scale"]),
        Role::MlpHyper(l, HyperPart::Mix) => (Some(l), &["ffn_hc.fn"]),
        Role::MlpHyper(l, HyperPart::Base) => (Some(l), &["ffn_hc.base"]),
        Role::MlpHyper(l, HyperPart::Scale) => (Some(l), &["ffn_hc.scale"]),
        Role::HeadHyper(HyperPart::Mix) => (None, &["model.hc_head.hc_fn"]),
        Role::HeadHyper(HyperPart::Base) => (None, &["model.hc_head.hc_base"]),
        Role::HeadHyper(HyperPart::Scale) => (None, &["model.hc_head.hc_scale"]),
        _ => return mlp_table(role),
    };
    (layer, name, &[])
}

/// The part of [`table`] behind attention.
fn mlp_table(role: Role) -> (Option<u32>, &'static [&'static str], &'static [&'static str]) {
    match role {
        Role::MlpNorm(l) => (
            Some(l),
            &["post_attention_layernorm.weight"],
            &["ffn_norm.weight", "post_attention_norm.weight"],
        ),
        Role::PostAttnNorm(l) => {
            let hf = &["post_self_attn_layernorm.weight", "post_attention_layernorm.weight"];
            (Some(l), hf, &["post_attention_norm.weight"])
        }
        Role::PreMlpNorm(l) => (
            Some(l),
            &["pre_feedforward_layernorm.weight", "post_attention_layernorm.weight"],
            &["ffn_norm.weight"],
        ),
        Role::PostMlpNorm(l) => (
            Some(l),
            &["post_feedforward_layernorm.weight", "post_mlp_layernorm.weight"],
            &["post_ffw_norm.weight"],
        ),
        Role::GateUp(l) => (Some(l), &["mlp.gate_up_proj.weight"], &[]),
        Role::Gate(l) => {
            (Some(l), &["mlp.gate_proj.weight", "feed_forward.gate_proj.weight"], &["ffn_gate.weight"])
        }
        Role::Up(l) => (Some(l), &["mlp.up_proj.weight", "feed_forward.up_proj.weight"], &["ffn_up.weight"]),
        Role::Down(l) => {
            (Some(l), &["mlp.down_proj.weight", "feed_forward.down_proj.weight"], &["ffn_down.weight"])
        }
        Role::Router(l) => (
            Some(l),
            &["mlp.gate.weight", "mlp.router.weight", "feed_forward.router.weight"],
            &["ffn_gate_inp.weight"],
        ),
        Role::RouterBias(l) => (Some(l), &["mlp.router.bias"], &["ffn_gate_inp.bias"]),
        Role::RouterTable(l) => (Some(l), &["mlp.gate.tid2eid"], &[]),
        Role::RouterCorrection(l) => (Some(l), &["mlp.gate.e_score_correction_bias"], &["exp_probs_b.bias"]),
        Role::ExpertsGateUp(l) => {
            (Some(l), &["mlp.experts.gate_up_proj", "feed_forward.experts.gate_up_proj"], &[])
        }
        Role::ExpertsGate(l) => (Some(l), &[], &["ffn_gate_exps.weight"]),
        Role::ExpertsUp(l) => (Some(l), &[], &["ffn_up_exps.weight"]),
        Role::ExpertsGateBias(l) => (Some(l), &[], &["ffn_gate_exps.bias"]),
        Role::ExpertsUpBias(l) => (Some(l), &[], &["ffn_up_exps.bias"]),
        Role::ExpertsGateUpBias(l) => (Some(l), &["mlp.experts.gate_up_proj_bias"], &[]),
        Role::ExpertsDown(l) => {
            (Some(l), &["mlp.experts.down_proj", "feed_forward.experts.down_proj"], &["ffn_down_exps.weight"])
        }
        Role::ExpertsDownBias(l) => (Some(l), &["mlp.experts.down_proj_bias"], &["ffn_down_exps.bias"]),
        Role::ExpertGate(l, _) => (Some(l), &["mlp.experts.{}.gate_proj.weight"], &[]),
        Role::ExpertUp(l, _) => (Some(l), &["mlp.experts.{}.up_proj.weight"], &[]),
        Role::ExpertDown(l, _) => (Some(l), &["mlp.experts.{}.down_proj.weight"], &[]),
        Role::SharedGate(l) => (
            Some(l),
            &["mlp.shared_experts.gate_proj.weight", "feed_forward.shared_expert.gate_proj.weight"],
            &["ffn_gate_shexp.weight"],
        ),
        Role::SharedUp(l) => (
            Some(l),
            &["mlp.shared_experts.up_proj.weight", "feed_forward.shared_expert.up_proj.weight"],
            &["ffn_up_shexp.weight"],
        ),
        Role::SharedDown(l) => (
            Some(l),
            &["mlp.shared_experts.down_proj.weight", "feed_forward.shared_expert.down_proj.weight"],
            &["ffn_down_shexp.weight"],
        ),
        _ => unreachable!("{role:?} is in the first table"),
    }
}

impl fmt::Display for Naming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hf => "safetensors",
            Self::Gguf => "GGUF",
        })
    }
}
