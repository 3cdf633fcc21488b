//! Properties that differ between layers, and experts.

use super::keys::Keys;
use crate::config::moe::CHOICE;
use crate::{
    Activation, ConfigError, DecoderConfig, ExpertPacking, Mlp, MoeConfig, Reach, Role, WeightSource,
};

/// Reads which layers have a window. A pattern in the file is a flag per layer, or the length of a period whose last
/// layer has full attention. Without a pattern, `default` decides.
pub(in crate::config) fn windows(
    keys: &Keys<'_>,
    num_layers: u32,
    default: impl Fn(u32) -> bool,
) -> Result<Vec<Reach>, ConfigError> {
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
        (Ok(None), _) => (0..num_layers).map(default).collect(),
        (Err(error), _) => return Err(error.into()),
    };
    let reach = |windowed| if windowed { Reach::Window(window) } else { Reach::Full };
    Ok(windowed.into_iter().map(reach).collect())
}

/// Reads the experts of layers with a router; `family` sets what no key states. `gating` is the number of the router function.
pub(in crate::config) fn set_experts(
    keys: &Keys<'_>,
    decoder: &mut DecoderConfig,
    gating: u32,
    family: impl FnOnce(MoeConfig) -> MoeConfig,
) -> Result<(), ConfigError> {
    if let Some(value) = keys.u32("expert_gating_func")?.filter(|value| *value != gating) {
        return Err(keys.unsupported("expert_gating_func", &value.to_string()));
    }
    decoder.moe = Some(family(MoeConfig {
        num_experts: keys.need_u32("expert_count")?,
        top_k: keys.need_u32("expert_used_count")?,
        inner_size: match keys.u32("expert_feed_forward_length")? {
            Some(inner) => inner,
            None => keys.need_u32("feed_forward_length")?,
        },
        shared_size: None,
        router: CHOICE,
        activation: Activation::Silu,
        biases: false,
        weighted_input: false,
        packing: ExpertPacking::Rows,
    }));
    let mlp = |layer| if keys.file.has(Role::Router(layer)) { Mlp::Experts } else { Mlp::Dense };
    decoder.set_mlps((0..decoder.num_layers).map(mlp));
    Ok(())
}
