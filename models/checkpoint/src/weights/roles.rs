//! Roles of tensors, in one table: their names in each checkpoint format, their shapes, and the configurations that read them.

use super::role_table::{Each as _, Names};
use super::{CompressorPart, HyperPart};
use crate::config::{BlockNorms, DecoderConfig, NsaConfig};

roles! { c, layer;
    model {
        /// Token embedding, `[vocab_size, hidden_size]`.
        Embed {
            hf: &["model.embed_tokens.weight"],
            gguf: &["token_embd.weight"],
            published: &["embed.weight"],
            nsa: &["model.embeddings.weight"],
            shape: [c.vocab_size, c.hidden_size],
            read: true,
        }
        /// RMS norm before the output head, `[hidden_size]`.
        FinalNorm {
            hf: &["model.norm.weight"],
            gguf: &["output_norm.weight"],
            published: &["norm.weight"],
            shape: [c.hidden_size],
            read: true,
        }
        /// Output head, `[vocab_size, hidden_size]`; absent if the embedding is tied.
        LmHead {
            hf: &["lm_head.weight"],
            gguf: &["output.weight"],
            published: &["head.weight"],
            shape: [c.vocab_size, c.hidden_size],
            read: !c.tie_embeddings,
        }
        /// Divisors of the rotary inverse frequencies, `[rotary_dims / 2]`; only GGUF stores them.
        RopeFactors {
            gguf: &["rope_freqs.weight"],
            shape: [c.rope.rotary_dims / 2],
        }
        /// Divisors of rotary frequencies for long contexts (LongRoPE), in the shape of [`Self::RopeFactors`].
        RopeLong {
            gguf: &["rope_factors_long.weight"],
            shape: [c.rope.rotary_dims / 2],
        }
        /// Divisors of rotary frequencies for the context that the model was first trained with (LongRoPE).
        RopeShort {
            gguf: &["rope_factors_short.weight"],
            shape: [c.rope.rotary_dims / 2],
        }
        /// A part of the hyper-connection that merges the streams before the output head.
        HeadHyper(part: HyperPart) {
            hf: part.pick(&[&["model.hc_head.hc_fn"], &["model.hc_head.hc_base"], &["model.hc_head.hc_scale"]]),
            published: part.pick(&[&["hc_head_fn"], &["hc_head_base"], &["hc_head_scale"]]),
            shape: c.head_mix_shape(part),
            read: c.hyper.is_some(),
        }
    }
    layer {
        /// RMS norm before attention, `[hidden_size]`.
        AttnNorm {
            hf: &["input_layernorm.weight"],
            gguf: &["attn_norm.weight"],
            published: &["attn_norm.weight"],
            shape: [c.hidden_size],
            read: c.norms != BlockNorms::Behind,
        }
        /// RMS norm of the output of attention, `[hidden_size]`, if there is one (Gemma).
        PostAttnNorm {
            hf: &["post_self_attn_layernorm.weight", "post_attention_layernorm.weight"],
            gguf: &["post_attention_norm.weight"],
            shape: [c.hidden_size],
            read: c.norms != BlockNorms::Before,
        }
        /// RMS norm before the MLP, `[hidden_size]`.
        MlpNorm {
            hf: &["post_attention_layernorm.weight"],
            gguf: &["ffn_norm.weight", "post_attention_norm.weight"],
            published: &["ffn_norm.weight"],
            nsa: &["mlp_norm.weight"],
            shape: [c.hidden_size],
            read: c.norms == BlockNorms::Before,
        }
        /// `MlpNorm` of models that also have norms after attention and after the MLP.
        PreMlpNorm {
            hf: &["pre_feedforward_layernorm.weight", "post_attention_layernorm.weight"],
            gguf: &["ffn_norm.weight"],
            shape: [c.hidden_size],
            read: c.norms == BlockNorms::Around,
        }
        /// RMS norm of the output of the MLP, `[hidden_size]`, if there is one.
        PostMlpNorm {
            hf: &["post_feedforward_layernorm.weight", "post_mlp_layernorm.weight"],
            gguf: &["post_ffw_norm.weight"],
            shape: [c.hidden_size],
            read: c.norms != BlockNorms::Before,
        }
        /// A part of the hyper-connection of attention.
        AttnHyper(part: HyperPart) {
            hf: part.pick(&[&["attn_hc.fn"], &["attn_hc.base"], &["attn_hc.scale"]]),
            published: part.pick(&[&["hc_attn_fn"], &["hc_attn_base"], &["hc_attn_scale"]]),
            shape: c.block_mix_shape(part),
            read: c.hyper.is_some(),
        }
        /// A part of the hyper-connection of the MLP.
        MlpHyper(part: HyperPart) {
            hf: part.pick(&[&["ffn_hc.fn"], &["ffn_hc.base"], &["ffn_hc.scale"]]),
            published: part.pick(&[&["hc_ffn_fn"], &["hc_ffn_base"], &["hc_ffn_scale"]]),
            shape: c.block_mix_shape(part),
            read: c.hyper.is_some(),
        }
        /// Query projection, `[num_heads * head_dim, hidden_size]`.
        Q {
            hf: &["self_attn.q_proj.weight"],
            gguf: &["attn_q.weight"],
            nsa: &["attn.q_proj.weight"],
            shape: [c.q_width(), c.hidden_size],
            read: !c.has_query_latent(),
        }
        /// Key projection, `[num_kv_heads * head_dim, hidden_size]`.
        K {
            hf: &["self_attn.k_proj.weight"],
            gguf: &["attn_k.weight"],
            nsa: &["attn.k_proj.weight"],
            shape: [c.kv_width(), c.hidden_size],
            read: c.has_heads(),
        }
        /// Value projection, `[num_kv_heads * head_dim, hidden_size]`.
        V {
            hf: &["self_attn.v_proj.weight"],
            gguf: &["attn_v.weight"],
            nsa: &["attn.v_proj.weight"],
            shape: [c.kv_width(), c.hidden_size],
            read: c.has_heads(),
        }
        /// `Q`, `K` and `V` in one tensor.
        Qkv {
            hf: &["self_attn.qkv_proj.weight"],
            gguf: &["attn_qkv.weight"],
            shape: [c.q_width() + 2 * c.kv_width(), c.hidden_size],
        }
        /// Bias of `Q`.
        QBias {
            hf: &["self_attn.q_proj.bias"],
            gguf: &["attn_q.bias"],
            nsa: &["attn.q_proj.bias"],
            shape: [c.q_width()],
            read: c.qkv_bias,
        }
        /// Bias of `K`.
        KBias {
            hf: &["self_attn.k_proj.bias"],
            gguf: &["attn_k.bias"],
            nsa: &["attn.k_proj.bias"],
            shape: [c.kv_width()],
            read: c.qkv_bias,
        }
        /// Bias of `V`.
        VBias {
            hf: &["self_attn.v_proj.bias"],
            gguf: &["attn_v.bias"],
            nsa: &["attn.v_proj.bias"],
            shape: [c.kv_width()],
            read: c.qkv_bias,
        }
        /// RMS norm of each query head, `[head_dim]`.
        QNorm {
            hf: &["self_attn.q_norm.weight"],
            gguf: &["attn_q_norm.weight"],
            shape: [c.norm_width(c.q_width())],
            read: c.has_weighted_qk_norm(),
        }
        /// RMS norm of each key head, `[head_dim]`.
        KNorm {
            hf: &["self_attn.k_norm.weight"],
            gguf: &["attn_k_norm.weight"],
            shape: [c.norm_width(c.kv_width())],
            read: c.has_weighted_qk_norm(),
        }
        /// Attention sinks, `[num_heads]`.
        Sinks {
            hf: &["self_attn.sinks"],
            gguf: &["attn_sinks.weight"],
            published: &["attn.attn_sink"],
            shape: [c.num_heads],
            read: c.sinks,
        }
        /// Projection to the gates of the branches of NSA, `[num_heads * 3, hidden_size]`.
        BranchGates {
            hf: &["attn.g_proj.weight"],
            shape: [c.num_heads * NsaConfig::BRANCHES, c.hidden_size],
            read: c.nsa.is_some(),
        }
        /// Attention output projection, `[hidden_size, num_heads * head_dim]`.
        O {
            hf: &["self_attn.o_proj.weight"],
            gguf: &["attn_output.weight"],
            nsa: &["attn.o_proj.weight"],
            shape: [c.hidden_size, c.num_heads * c.value_dim()],
            read: c.compressed.is_none(),
        }
        /// Bias of `O`.
        OBias {
            hf: &["self_attn.o_proj.bias"],
            gguf: &["attn_output.bias"],
            shape: [c.hidden_size],
            read: c.o_bias,
        }
        /// Projection from the residual stream to the latent of queries, `[q_rank, hidden_size]`.
        QA {
            hf: &["self_attn.q_a_proj.weight"],
            gguf: &["attn_q_a.weight"],
            published: &["attn.wq_a.weight"],
            shape: [c.q_rank(), c.hidden_size],
            read: c.has_query_latent(),
        }
        /// RMS norm of the latent of queries, `[q_rank]`.
        QANorm {
            hf: &["self_attn.q_a_layernorm.weight", "self_attn.q_a_norm.weight"],
            gguf: &["attn_q_a_norm.weight"],
            published: &["attn.q_norm.weight"],
            shape: [c.q_rank()],
            read: c.has_query_latent(),
        }
        /// Projection from the latent of queries to queries, `[num_heads * head_dim, q_rank]`.
        QB {
            hf: &["self_attn.q_b_proj.weight"],
            gguf: &["attn_q_b.weight"],
            published: &["attn.wq_b.weight"],
            shape: [c.q_width(), c.q_rank()],
            read: c.has_query_latent(),
        }
        /// Projection to the latent of keys and values and to the rotary keys, `[kv_rank + rope_dim, hidden_size]`.
        KvA {
            hf: &["self_attn.kv_a_proj_with_mqa.weight"],
            gguf: &["attn_kv_a_mqa.weight"],
            shape: [c.kv_latent().cached(), c.hidden_size],
            read: c.latent.is_some(),
        }
        /// RMS norm of the latent of keys and values, `[kv_rank]`.
        KvANorm {
            hf: &["self_attn.kv_a_layernorm.weight"],
            gguf: &["attn_kv_a_norm.weight"],
            shape: [c.kv_latent().kv_rank],
            read: c.latent.is_some(),
        }
        /// Projection from the latent to keys and values, by head, `[num_heads * (nope_dim + value_dim), kv_rank]`.
        KvB {
            hf: &["self_attn.kv_b_proj.weight"],
            gguf: &["attn_kv_b.weight"],
            shape: [c.num_heads * (c.kv_latent().nope_dim + c.kv_latent().value_dim), c.kv_latent().kv_rank],
            read: c.latent.is_some(),
        }
        /// Projection from the latent to keys, by head and transposed, `[num_heads, kv_rank, nope_dim]`, in newer GGUF files.
        KB {
            gguf: &["attn_k_b.weight"],
            shape: [c.num_heads, c.kv_latent().kv_rank, c.kv_latent().nope_dim],
        }
        /// Projection from the latent to values, by head, `[num_heads, value_dim, kv_rank]`.
        VB {
            gguf: &["attn_v_b.weight"],
            shape: [c.num_heads, c.kv_latent().value_dim, c.kv_latent().kv_rank],
        }
        /// Projection to the vector that is both key and value of a token, `[head_dim, hidden_size]` (DeepSeek V4).
        Kv {
            hf: &["self_attn.kv_proj.weight"],
            published: &["attn.wkv.weight"],
            shape: [c.head_dim, c.hidden_size],
            read: c.compressed.is_some(),
        }
        /// RMS norm of the vector that is both key and value, `[head_dim]`; `transformers` saves it under the name of the norm of
        /// entries.
        KvNorm {
            hf: &["self_attn.kv_norm.weight", "attn.norm.weight"],
            published: &["attn.kv_norm.weight"],
            shape: [c.head_dim],
            read: c.compressed.is_some(),
        }
        /// First half of an output projection by groups, `[groups * rank, num_heads * head_dim / groups]`.
        OA {
            hf: &["self_attn.o_a_proj.weight"],
            published: &["attn.wo_a.weight"],
            shape: [c.group_width(), c.q_width() / c.entries().output_groups],
            read: c.compressed.is_some(),
        }
        /// Second half of an output projection by groups, `[hidden_size, groups * rank]`.
        OB {
            hf: &["self_attn.o_b_proj.weight"],
            published: &["attn.wo_b.weight"],
            shape: [c.hidden_size, c.group_width()],
            read: c.compressed.is_some(),
        }
        /// A part of the compressor that makes the entries of attention.
        Compressor(part: CompressorPart) {
            hf: part.pick(&[
                &["self_attn.compressor.kv_proj.weight"],
                &["self_attn.compressor.gate_proj.weight"],
                &["self_attn.compressor.position_bias"],
                &["self_attn.compressor.kv_norm.weight"],
            ]),
            published: part.pick(&[
                &["attn.compressor.wkv.weight"],
                &["attn.compressor.wgate.weight"],
                &["attn.compressor.ape"],
                &["attn.compressor.norm.weight"],
            ]),
            shape: c.compressor_shape(layer, part, c.head_dim),
            read: c.compressor(layer).is_some(),
        }
        /// A part of the compressor that makes the entries of the indexer.
        IndexCompressor(part: CompressorPart) {
            hf: part.pick(&[
                &["self_attn.compressor.indexer.kv_proj.weight"],
                &["self_attn.compressor.indexer.gate_proj.weight"],
                &["self_attn.compressor.indexer.position_bias"],
                &["self_attn.compressor.indexer.kv_norm.weight"],
            ]),
            published: part.pick(&[
                &["attn.indexer.compressor.wkv.weight"],
                &["attn.indexer.compressor.wgate.weight"],
                &["attn.indexer.compressor.ape"],
                &["attn.indexer.compressor.norm.weight"],
            ]),
            shape: c.compressor_shape(layer, part, c.index().head_dim),
            read: c.indexes_entries(layer),
        }
        /// Projection from the latent of queries to the queries of the indexer.
        IndexQ {
            hf: &["self_attn.indexer.wq_b.weight", "self_attn.compressor.indexer.q_b_proj.weight"],
            published: &["attn.indexer.wq_b.weight"],
            shape: [c.index().num_heads * c.index().head_dim, c.q_rank()],
            read: c.indexes_tokens() || c.indexes_entries(layer),
        }
        /// Projection to the head weights of the indexer, `[num_heads, hidden_size]`.
        IndexGates {
            hf: &["self_attn.indexer.weights_proj.weight", "self_attn.compressor.indexer.scorer.weights_proj.weight"],
            published: &["attn.indexer.weights_proj.weight"],
            shape: [c.index().num_heads, c.hidden_size],
            read: c.indexes_tokens() || c.indexes_entries(layer),
        }
        /// Projection to the keys of the indexer, `[head_dim, hidden_size]`.
        IndexK {
            hf: &["self_attn.indexer.wk.weight"],
            shape: [c.index().head_dim, c.hidden_size],
            read: c.indexes_tokens(),
        }
        /// Layer norm of the indexer's keys.
        IndexKNorm {
            hf: &["self_attn.indexer.k_norm.weight"],
            shape: [c.index().head_dim],
            read: c.indexes_tokens(),
        }
        /// Bias of the layer norm of the indexer's keys.
        IndexKNormBias {
            hf: &["self_attn.indexer.k_norm.bias"],
            shape: [c.index().head_dim],
            read: c.indexes_tokens(),
        }
        /// Gate projection, `[intermediate_size, hidden_size]`.
        Gate {
            hf: &["mlp.gate_proj.weight", "feed_forward.gate_proj.weight"],
            gguf: &["ffn_gate.weight"],
            shape: [c.intermediate_size, c.hidden_size],
            read: c.is_dense(layer),
        }
        /// Up projection, `[intermediate_size, hidden_size]`.
        Up {
            hf: &["mlp.up_proj.weight", "feed_forward.up_proj.weight"],
            gguf: &["ffn_up.weight"],
            shape: [c.intermediate_size, c.hidden_size],
            read: c.is_dense(layer),
        }
        /// `Gate` and `Up` in one tensor; GGUF uses the name of `Up`.
        GateUp {
            hf: &["mlp.gate_up_proj.weight"],
            shape: [2 * c.intermediate_size, c.hidden_size],
        }
        /// Down projection, `[hidden_size, intermediate_size]`.
        Down {
            hf: &["mlp.down_proj.weight", "feed_forward.down_proj.weight"],
            gguf: &["ffn_down.weight"],
            shape: [c.hidden_size, c.intermediate_size],
            read: c.is_dense(layer),
        }
        /// Router of experts, `[num_experts, hidden_size]`.
        Router {
            hf: &["mlp.gate.weight", "mlp.router.weight", "feed_forward.router.weight"],
            gguf: &["ffn_gate_inp.weight"],
            published: &["ffn.gate.weight"],
            shape: [c.experts().num_experts, c.hidden_size],
            read: !c.is_dense(layer),
        }
        /// Experts of each token id, integers `[vocab_size, top_k]`.
        RouterTable {
            hf: &["mlp.gate.tid2eid"],
            published: &["ffn.gate.tid2eid"],
            shape: [c.vocab_size, c.experts().top_k],
            read: c.is_hashed(layer),
        }
        /// Correction added to router scores for selection, `[num_experts]`.
        RouterCorrection {
            hf: &["mlp.gate.e_score_correction_bias"],
            gguf: &["exp_probs_b.bias"],
            published: &["ffn.gate.bias"],
            shape: [c.experts().num_experts],
            read: !c.is_dense(layer) && !c.is_hashed(layer) && c.experts().router.correction,
        }
        /// Bias of `Router`.
        RouterBias {
            hf: &["mlp.router.bias"],
            gguf: &["ffn_gate_inp.bias"],
            shape: [c.experts().num_experts],
            read: c.has_expert_biases(layer),
        }
        /// Gate and up projections of all experts, packed in the layout of [`ExpertPacking`](crate::ExpertPacking).
        ExpertsGateUp {
            hf: &["mlp.experts.gate_up_proj", "feed_forward.experts.gate_up_proj"],
            shape: [c.experts().num_experts, 2 * c.experts().inner_size, c.hidden_size],
            routed: true,
        }
        /// Biases of `ExpertsGateUp`, `[num_experts, 2 * inner_size]`.
        ExpertsGateUpBias {
            hf: &["mlp.experts.gate_up_proj_bias"],
            shape: [c.experts().num_experts, 2 * c.experts().inner_size],
        }
        /// Gate projections of all experts, `[num_experts, inner_size, hidden_size]`, if stored apart from the ups.
        ExpertsGate {
            gguf: &["ffn_gate_exps.weight"],
            shape: [c.experts().num_experts, c.experts().inner_size, c.hidden_size],
            routed: true,
        }
        /// Up projections of all experts, `[num_experts, inner_size, hidden_size]`, if stored apart from the gates.
        ExpertsUp {
            gguf: &["ffn_up_exps.weight"],
            shape: [c.experts().num_experts, c.experts().inner_size, c.hidden_size],
            routed: true,
        }
        /// Biases of `ExpertsGate`, `[num_experts, inner_size]`.
        ExpertsGateBias {
            gguf: &["ffn_gate_exps.bias"],
            shape: [c.experts().num_experts, c.experts().inner_size],
            read: c.has_expert_biases(layer),
        }
        /// Biases of `ExpertsUp`.
        ExpertsUpBias {
            gguf: &["ffn_up_exps.bias"],
            shape: [c.experts().num_experts, c.experts().inner_size],
            read: c.has_expert_biases(layer),
        }
        /// Down projections of all experts.
        ExpertsDown {
            hf: &["mlp.experts.down_proj", "feed_forward.experts.down_proj"],
            gguf: &["ffn_down_exps.weight"],
            shape: [c.experts().num_experts, c.hidden_size, c.experts().inner_size],
            routed: true,
        }
        /// Biases of `ExpertsDown`, `[num_experts, hidden_size]`.
        ExpertsDownBias {
            hf: &["mlp.experts.down_proj_bias"],
            gguf: &["ffn_down_exps.bias"],
            shape: [c.experts().num_experts, c.hidden_size],
            read: c.has_expert_biases(layer),
        }
        /// Gate of one expert, `[inner_size, hidden_size]`, if experts are stored apart.
        ExpertGate(expert: u32) {
            hf: &["mlp.experts.{}.gate_proj.weight"],
            published: &["ffn.experts.{}.w1.weight"],
            shape: [c.experts().inner_size, c.hidden_size],
            read: !c.is_dense(layer),
            routed: true,
        }
        /// Up projection of one expert.
        ExpertUp(expert: u32) {
            hf: &["mlp.experts.{}.up_proj.weight"],
            published: &["ffn.experts.{}.w3.weight"],
            shape: [c.experts().inner_size, c.hidden_size],
            read: !c.is_dense(layer),
            routed: true,
        }
        /// Down projection of one expert, `[hidden_size, inner_size]`.
        ExpertDown(expert: u32) {
            hf: &["mlp.experts.{}.down_proj.weight"],
            published: &["ffn.experts.{}.w2.weight"],
            shape: [c.hidden_size, c.experts().inner_size],
            read: !c.is_dense(layer),
            routed: true,
        }
        /// Gate of the shared expert, `[shared_size, hidden_size]`.
        SharedGate {
            hf: &["mlp.shared_experts.gate_proj.weight", "feed_forward.shared_expert.gate_proj.weight"],
            gguf: &["ffn_gate_shexp.weight"],
            published: &["ffn.shared_experts.w1.weight"],
            shape: [c.shared_size(), c.hidden_size],
            read: c.has_shared_expert(layer),
        }
        /// Up projection of the shared expert.
        SharedUp {
            hf: &["mlp.shared_experts.up_proj.weight", "feed_forward.shared_expert.up_proj.weight"],
            gguf: &["ffn_up_shexp.weight"],
            published: &["ffn.shared_experts.w3.weight"],
            shape: [c.shared_size(), c.hidden_size],
            read: c.has_shared_expert(layer),
        }
        /// Down projection of the shared expert.
        SharedDown {
            hf: &["mlp.shared_experts.down_proj.weight", "feed_forward.shared_expert.down_proj.weight"],
            gguf: &["ffn_down_shexp.weight"],
            published: &["ffn.shared_experts.w2.weight"],
            shape: [c.hidden_size, c.shared_size()],
            read: c.has_shared_expert(layer),
        }
    }
}
