//! Mixtures of experts.

use super::fields::Fields;
use crate::config::moe::CHOICE;
use crate::{Activation, ConfigError, ExpertPacking, Family, MoeConfig, Router, Score};

/// The experts of a family that has any.
pub(super) fn moe(config: &Fields, family: Family) -> Result<Option<MoeConfig>, ConfigError> {
    Ok(match family {
        Family::GptOss => Some(gpt_oss(config)?),
        Family::Qwen3Moe => Some(qwen3(config)?),
        Family::Llama4 => Some(llama4(config)?),
        Family::DeepseekV3 | Family::DeepseekV32 => Some(deepseek(config)?),
        Family::DeepseekV4 => Some(deepseek_v4(config)?),
        _ => None,
    })
}

fn gpt_oss(config: &Fields) -> Result<MoeConfig, ConfigError> {
    Ok(MoeConfig {
        num_experts: either(config, ["num_local_experts", "num_experts"])?,
        top_k: either(config, ["num_experts_per_tok", "experts_per_token"])?,
        inner_size: config.need_u32("intermediate_size")?,
        shared_size: None,
        router: CHOICE,
        activation: Activation::LimitedSwiglu {
            alpha: config.f32("swiglu_alpha")?.unwrap_or(1.702),
            limit: config.f32("swiglu_limit")?.unwrap_or(7.0),
        },
        biases: true,
        weighted_input: false,
        packing: ExpertPacking::AlternateColumns,
    })
}

fn qwen3(config: &Fields) -> Result<MoeConfig, ConfigError> {
    let normalise = config.bool("norm_topk_prob")?.unwrap_or(false);
    Ok(MoeConfig {
        num_experts: either(config, ["num_experts", "num_local_experts"])?,
        top_k: config.need_u32("num_experts_per_tok")?,
        inner_size: config.need_u32("moe_intermediate_size")?,
        shared_size: None,
        router: Router { score: Score::Softmax, normalise, ..CHOICE },
        activation: Activation::Silu,
        biases: false,
        weighted_input: false,
        packing: ExpertPacking::Rows,
    })
}

fn llama4(config: &Fields) -> Result<MoeConfig, ConfigError> {
    let inner_size = config.need_u32("intermediate_size")?;
    Ok(MoeConfig {
        num_experts: config.need_u32("num_local_experts")?,
        top_k: config.u32("num_experts_per_tok")?.unwrap_or(1),
        inner_size,
        shared_size: Some(inner_size),
        router: Router { score: Score::Sigmoid, ..CHOICE },
        activation: Activation::Silu,
        biases: false,
        weighted_input: true,
        packing: ExpertPacking::Columns,
    })
}

fn deepseek(config: &Fields) -> Result<MoeConfig, ConfigError> {
    let inner_size = config.need_u32("moe_intermediate_size")?;
    let shared = config.u32("n_shared_experts")?.unwrap_or(1);
    Ok(MoeConfig {
        num_experts: either(config, ["n_routed_experts", "num_local_experts"])?,
        top_k: config.need_u32("num_experts_per_tok")?,
        inner_size,
        shared_size: Some(inner_size.saturating_mul(shared)),
        router: Router {
            score: Score::Sigmoid,
            groups: config.u32("n_group")?.unwrap_or(8),
            top_groups: config.u32("topk_group")?.unwrap_or(4),
            normalise: config.bool("norm_topk_prob")?.unwrap_or(true),
            scale: config.f32("routed_scaling_factor")?.unwrap_or(2.5),
            correction: true,
        },
        activation: Activation::Silu,
        biases: false,
        weighted_input: false,
        packing: ExpertPacking::Rows,
    })
}

/// The reference divides weights by their sum whatever `norm_topk_prob` says, and has one shared expert of the width of the
/// others.
fn deepseek_v4(config: &Fields) -> Result<MoeConfig, ConfigError> {
    let inner_size = config.need_u32("moe_intermediate_size")?;
    let score = match config.str("scoring_func")?.unwrap_or("sqrtsoftplus") {
        "sqrtsoftplus" => Score::SqrtSoftplus,
        "sigmoid" => Score::Sigmoid,
        other => {
            let (field, value) = ("scoring_func".to_owned(), format!("{other:?}"));
            return Err(ConfigError::Unsupported { field, value });
        }
    };
    let scale = config.f32("routed_scaling_factor")?.unwrap_or(1.5);
    let limit = config.f32("swiglu_limit")?.unwrap_or(10.0);
    if !(limit.is_finite() && limit > 0.0) {
        let (field, value) = ("swiglu_limit", limit.to_string());
        return Err(ConfigError::Invalid { field, value, rule: "finite and over 0" });
    }
    Ok(MoeConfig {
        num_experts: either(config, ["n_routed_experts", "num_local_experts"])?,
        top_k: config.u32("num_experts_per_tok")?.unwrap_or(6),
        inner_size,
        shared_size: Some(inner_size),
        router: Router { score, normalise: true, scale, correction: true, ..CHOICE },
        activation: Activation::LimitedSilu { limit },
        biases: false,
        weighted_input: false,
        packing: ExpertPacking::Rows,
    })
}

/// A number that goes by two names, of which the first is reported when both are absent.
fn either(config: &Fields, fields: [&'static str; 2]) -> Result<u32, ConfigError> {
    match config.u32(fields[1])? {
        Some(n) if config.get(fields[0]).is_none() => Ok(n),
        _ => config.need_u32(fields[0]),
    }
}
