use super::deepseek_v3::{READS, drafts, read};
use super::{Hf, Spec};
use crate::config::hf::by_type;
use crate::{Family, IndexerConfig, Reach};

pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf {
        model_type: "deepseek_v32",
        reads: READS,
        read: |config| {
            let mut decoder = read(config, Family::DeepseekV32)?;
            decoder.indexer = Some(IndexerConfig {
                num_heads: config.u32("index_n_heads")?.unwrap_or(64),
                head_dim: config.u32("index_head_dim")?.unwrap_or(128),
                top_k: config.u32("index_topk")?.unwrap_or(2048),
            });
            let full = |kind: &str| ["full_attention", "indexed_attention"].contains(&kind);
            // All see everything, of which the indexer chooses.
            by_type(config, decoder.num_layers, |kind| full(kind).then_some(Reach::Full))?;
            Ok(decoder)
        },
    }),
    unread: drafts,
    ..Spec::NONE
};
