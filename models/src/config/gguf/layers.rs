//! What differs from layer to layer, and experts.

use super::keys::Keys;
use crate::config::moe::CHOICE;
use crate::{
    Activation, ConfigError, ExpertPacking, Family, LayerConfig, Mlp, MoeConfig, Reach, Role, Router, Score,
    WeightSource,
};

/// All layers of a model.
pub(super) fn layers(
    keys: &Keys<'_>,
    family: Family,
    num_layers: u32,
) -> Result<Vec<LayerConfig>, ConfigError> {
    let reaches = match family {
        Family::GptOss => windows(keys, num_layers)?,
        _ => vec![Reach::Full; num_layers as usize],
    };
    let layer = |(layer, reach)| {
        let experts =
            matches!(family, Family::GptOss | Family::Qwen3Moe) && keys.file.has(Role::Router(layer));
        LayerConfig { reach, rotary: true, mlp: if experts { Mlp::Experts } else { Mlp::Dense } }
    };
    Ok((0..).zip(reaches).map(layer).collect())
}

/// Windows in every other layer from the first on, unless a pattern says which: a flag for each layer, or the length of a
/// period whose last layer attends to everything.
fn windows(keys: &Keys<'_>, num_layers: u32) -> Result<Vec<Reach>, ConfigError> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let window = keys.need_u32("attention.sliding_window")?;
    if window == 0 {
        let field = "attention.sliding_window";
        return Err(ConfigError::Invalid { field, value: "0".into(), rule: "at least 1" });
    }
    let pattern = keys.file.ints(&keys.key(PATTERN));
    let windowed: Vec<bool> = match (pattern, keys.u32(PATTERN)) {
        (Ok(Some(flags)), _) if flags.len() == num_layers as usize => {
            flags.into_iter().map(|flag| flag != 0).collect()
        }
        (Ok(Some(flags)), _) => {
            let value = format!("an array of {}", flags.len());
            return Err(ConfigError::Invalid { field: PATTERN, value, rule: "an array of block_count" });
        }
        (_, Ok(Some(period))) => (0..num_layers).map(|l| period == 0 || l % period + 1 < period).collect(),
        (Ok(None), _) => (0..num_layers).map(|layer| layer.is_multiple_of(2)).collect(),
        (Err(error), _) => return Err(error.into()),
    };
    let reach = |windowed| if windowed { Reach::Window(window) } else { Reach::Full };
    Ok(windowed.into_iter().map(reach).collect())
}

/// The experts of a family that has any.
pub(super) fn moe(keys: &Keys<'_>, family: Family) -> Result<Option<MoeConfig>, ConfigError> {
    let (score, gating, activation) = match family {
        // The constants of the swiglu are not in the metadata.
        Family::GptOss => (Score::SoftmaxOfChosen, 3, Activation::LimitedSwiglu { alpha: 1.702, limit: 7.0 }),
        Family::Qwen3Moe => (Score::Softmax, 1, Activation::Silu),
        _ => return Ok(None),
    };
    if let Some(value) = keys.u32("expert_gating_func")?.filter(|value| *value != gating) {
        return Err(keys.unsupported("expert_gating_func", &value.to_string()));
    }
    let normalise = family == Family::Qwen3Moe && keys.bool("expert_weights_norm")?.unwrap_or(true);
    Ok(Some(MoeConfig {
        num_experts: keys.need_u32("expert_count")?,
        top_k: keys.need_u32("expert_used_count")?,
        inner_size: match keys.u32("expert_feed_forward_length")? {
            Some(inner) => inner,
            None => keys.need_u32("feed_forward_length")?,
        },
        shared_size: None,
        router: Router { score, normalise, ..CHOICE },
        activation,
        biases: family == Family::GptOss,
        weighted_input: false,
        packing: ExpertPacking::Rows,
    }))
}
