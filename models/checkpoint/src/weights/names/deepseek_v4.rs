//! The names that DeepSeek V4 is published under, and that `transformers` saves it under but for the first part.

use super::{CompressorPart, HyperPart, Role};

/// Layer and name of a tensor, where it goes by one; experts have a place for their number.
pub(super) fn published(role: Role) -> Option<(Option<u32>, &'static str)> {
    let (layer, name) = match role {
        Role::Embed => (None, "embed.weight"),
        Role::FinalNorm => (None, "norm.weight"),
        Role::LmHead => (None, "head.weight"),
        Role::HeadHyper(HyperPart::Mix) => (None, "hc_head_fn"),
        Role::HeadHyper(HyperPart::Base) => (None, "hc_head_base"),
        Role::HeadHyper(HyperPart::Scale) => (None, "hc_head_scale"),
        Role::AttnNorm(l) => (Some(l), "attn_norm.weight"),
        Role::Sinks(l) => (Some(l), "attn.attn_sink"),
        Role::QA(l) => (Some(l), "attn.wq_a.weight"),
        Role::QANorm(l) => (Some(l), "attn.q_norm.weight"),
        Role::QB(l) => (Some(l), "attn.wq_b.weight"),
        Role::Kv(l) => (Some(l), "attn.wkv.weight"),
        Role::KvNorm(l) => (Some(l), "attn.kv_norm.weight"),
        Role::OA(l) => (Some(l), "attn.wo_a.weight"),
        Role::OB(l) => (Some(l), "attn.wo_b.weight"),
        Role::Compressor(l, CompressorPart::Kv) => (Some(l), "attn.compressor.wkv.weight"),
        Role::Compressor(l, CompressorPart::Gate) => (Some(l), "attn.compressor.wgate.weight"),
        Role::Compressor(l, CompressorPart::Bias) => (Some(l), "attn.compressor.ape"),
        Role::Compressor(l, CompressorPart::Norm) => (Some(l), "attn.compressor.norm.weight"),
        Role::IndexCompressor(l, CompressorPart::Kv) => (Some(l), "attn.indexer.compressor.wkv.weight"),
        Role::IndexCompressor(l, CompressorPart::Gate) => (Some(l), "attn.indexer.compressor.wgate.weight"),
        Role::IndexCompressor(l, CompressorPart::Bias) => (Some(l), "attn.indexer.compressor.ape"),
        Role::IndexCompressor(l, CompressorPart::Norm) => (Some(l), "attn.indexer.compressor.norm.weight"),
        Role::IndexQ(l) => (Some(l), "attn.indexer.wq_b.weight"),
        Role::IndexGates(l) => (Some(l), "attn.indexer.weights_proj.weight"),
        Role::AttnHyper(l, HyperPart::Mix) => (Some(l), "hc_attn_fn"),
        Role::AttnHyper(l, HyperPart::Base) => (Some(l), "hc_attn_base"),
        Role::AttnHyper(l, HyperPart::Scale) => (Some(l), "hc_attn_scale"),
        Role::MlpHyper(l, HyperPart::Mix) => (Some(l), "hc_ffn_fn"),
        Role::MlpHyper(l, HyperPart::Base) => (Some(l), "hc_ffn_base"),
        Role::MlpHyper(l, HyperPart::Scale) => (Some(l), "hc_ffn_scale"),
        Role::MlpNorm(l) => (Some(l), "ffn_norm.weight"),
        Role::Router(l) => (Some(l), "ffn.gate.weight"),
        Role::RouterTable(l) => (Some(l), "ffn.gate.tid2eid"),
        Role::RouterCorrection(l) => (Some(l), "ffn.gate.bias"),
        Role::ExpertGate(l, _) => (Some(l), "ffn.experts.{}.w1.weight"),
        Role::ExpertDown(l, _) => (Some(l), "ffn.experts.{}.w2.weight"),
        Role::ExpertUp(l, _) => (Some(l), "ffn.experts.{}.w3.weight"),
        Role::SharedGate(l) => (Some(l), "ffn.shared_experts.w1.weight"),
        Role::SharedDown(l) => (Some(l), "ffn.shared_experts.w2.weight"),
        Role::SharedUp(l) => (Some(l), "ffn.shared_experts.w3.weight"),
        _ => return None,
    };
    Some((layer, name))
}
