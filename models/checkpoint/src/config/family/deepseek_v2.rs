use super::deepseek_v3::{attention, routed};
use super::{Hf, Spec};
use crate::config::hf::{Fields, reaches, unknown};
use crate::{ConfigError, DecoderConfig, Family, Router, Score};

pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf {
        model_type: "deepseek_v2",
        reads: &["num_local_experts", "n_shared_experts", "scoring_func", "topk_method"],
        read,
    }),
    ..Spec::NONE
};

fn read(config: &Fields) -> Result<DecoderConfig, ConfigError> {
    let mut decoder = attention(config, Family::DeepseekV2)?;
    routed(config, &mut decoder, router(config)?, 0)?;
    decoder.set_reaches(reaches(config, decoder.num_layers, None, |_| false)?);
    Ok(decoder)
}

/// Reads the router: a softmax over all experts, and groups of experts, which V2 ranks by their best expert alone.
fn router(config: &Fields) -> Result<Router, ConfigError> {
    if let Some(other) = config.str("scoring_func")?.filter(|name| *name != "softmax") {
        return Err(unknown("scoring_func", other));
    }
    let [groups, top_groups] = match config.str("topk_method")? {
        None | Some("greedy") => [1, 1],
        Some("group_limited_greedy") => [config.need_u32("n_group")?, config.need_u32("topk_group")?],
        Some(other) => return Err(unknown("topk_method", other)),
    };
    if config.bool("norm_topk_prob")?.unwrap_or(false) {
        return Err(unknown("norm_topk_prob", "true"));
    }
    let scale = config.f32("routed_scaling_factor")?.unwrap_or(1.0);
    Ok(Router {
        score: Score::Softmax,
        groups,
        top_groups,
        group_top: 1,
        normalise: false,
        scale,
        correction: false,
    })
}
