//! What differs from layer to layer.

use serde_json::Value;

use super::deepseek_v4;
use super::fields::{Fields, as_u32, mismatch};
use crate::{ConfigError, Family, LayerConfig, Mlp, Reach, Temperature};

/// All layers of a model.
pub(super) fn layers(
    config: &Fields,
    family: Family,
    num_layers: u32,
) -> Result<Vec<LayerConfig>, ConfigError> {
    let reaches = reaches(config, family, num_layers)?;
    let mlps = mlps(config, family, num_layers)?;
    let rotary = rotary(config, family, num_layers)?;
    let layer = |((reach, mlp), rotary)| LayerConfig { reach, rotary, mlp };
    Ok(reaches.into_iter().zip(mlps).zip(rotary).map(layer).collect())
}

/// What grows the queries of layers that do not rotate.
pub(super) fn temperature(config: &Fields, family: Family) -> Result<Option<Temperature>, ConfigError> {
    // Published configurations hold a number here, of which only the truth counts.
    let tunes = match config.get("attn_temperature_tuning") {
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        _ => config.bool("attn_temperature_tuning")?.unwrap_or(true),
    };
    if family != Family::Llama4 || !tunes {
        return Ok(None);
    }
    let floor_scale = config.f64("floor_scale")?.unwrap_or(8192.0);
    if !(floor_scale.is_finite() && floor_scale >= 1.0) {
        let (field, value) = ("floor_scale", floor_scale.to_string());
        return Err(ConfigError::Invalid { field, value, rule: "finite and at least 1" });
    }
    Ok(Some(Temperature { floor_scale, attn_scale: config.f64("attn_scale")?.unwrap_or(0.1) }))
}

/// Which layers rotate queries and keys.
fn rotary(config: &Fields, family: Family, num_layers: u32) -> Result<Vec<bool>, ConfigError> {
    if family != Family::Llama4 {
        return Ok(vec![true; num_layers as usize]);
    }
    let flags = list(config, "no_rope_layers")?;
    if flags.is_empty() {
        let interval = step(config, "no_rope_layer_interval", 4)?;
        return Ok((0..num_layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect());
    }
    if flags.len() != num_layers as usize {
        let value = format!("a list of {}", flags.len());
        let (field, rule) = ("no_rope_layers", "a list of num_hidden_layers");
        return Err(ConfigError::Invalid { field, value, rule });
    }
    // In spite of the name, 1 marks the layers that rotate.
    Ok(flags.into_iter().map(|flag| flag != 0).collect())
}

/// The list in `field`, one text a layer, if it is there.
pub(super) fn texts<'a>(
    config: &'a Fields,
    field: &'static str,
    num_layers: u32,
) -> Result<Option<Vec<&'a str>>, ConfigError> {
    let Some(list) = config.get(field) else { return Ok(None) };
    let layers = list.as_array().ok_or_else(|| mismatch(field, "a list", list))?;
    if layers.len() != num_layers as usize {
        let value = format!("a list of {}", layers.len());
        let rule = "a list of num_hidden_layers";
        return Err(ConfigError::Invalid { field, value, rule });
    }
    let text = |layer: &'a Value| layer.as_str().ok_or_else(|| mismatch(field, "a list of names", list));
    layers.iter().map(text).collect::<Result<_, _>>().map(Some)
}

fn reaches(config: &Fields, family: Family, num_layers: u32) -> Result<Vec<Reach>, ConfigError> {
    let qwen = matches!(family, Family::Qwen2 | Family::Qwen3);
    let window = window(config, family)?;
    let with = |window: Option<u32>| window.map_or(Reach::Full, Reach::Window);
    if family == Family::DeepseekV4 {
        let field = "sliding_window";
        return Ok(vec![Reach::Window(window.ok_or(ConfigError::Missing { field })?); num_layers as usize]);
    }
    let chunk = config.u32("attention_chunk_size")?.unwrap_or(8192);
    if family == Family::Llama4 && chunk == 0 {
        return Err(ConfigError::Invalid {
            field: "attention_chunk_size",
            value: "0".into(),
            rule: "at least 1",
        });
    }
    let types = texts(config, "layer_types", num_layers)?;
    // The classes of these families have no types of layers: all are alike.
    if matches!(family, Family::Llama | Family::Mistral | Family::Qwen3Moe) {
        let alike = if window.is_some() { "sliding_attention" } else { "full_attention" };
        return match types.iter().flatten().find(|layer| **layer != alike) {
            Some(other) => {
                Err(ConfigError::Unsupported { field: "layer_types".into(), value: format!("{other:?}") })
            }
            None => Ok(vec![with(window); num_layers as usize]),
        };
    }
    let Some(types) = types else {
        if family == Family::Llama4 {
            let reach = |rotary| if rotary { Reach::Chunk(chunk) } else { Reach::Full };
            return Ok(rotary(config, family, num_layers)?.into_iter().map(reach).collect());
        }
        let first = if qwen { config.u32("max_window_layers")?.unwrap_or(28) } else { 0 };
        let windowed = |layer: u32| match family {
            Family::GptOss => layer.is_multiple_of(2),
            _ => layer >= first,
        };
        return Ok((0..num_layers).map(|layer| with(window.filter(|_| windowed(layer)))).collect());
    };
    let of_layer = |layer: &str| match layer {
        "full_attention" => Ok(Reach::Full),
        "sliding_attention" if window.is_some() => Ok(with(window)),
        "indexed_attention" if family == Family::DeepseekV32 => Ok(Reach::Full),
        "chunked_attention" if family == Family::Llama4 => Ok(Reach::Chunk(chunk)),
        _ => Err(ConfigError::Unsupported { field: "layer_types".into(), value: format!("{layer:?}") }),
    };
    types.into_iter().map(of_layer).collect()
}

/// The sliding window of the layers that have one.
fn window(config: &Fields, family: Family) -> Result<Option<u32>, ConfigError> {
    // `null` switches the window off, absence is the default of the configuration class.
    let or = |default| match config.0.contains_key("sliding_window") {
        true => config.u32("sliding_window"),
        false => Ok(Some(default)),
    };
    let window = match family {
        Family::Llama | Family::Llama4 | Family::DeepseekV3 | Family::DeepseekV32 => None,
        Family::Mistral => or(4096)?,
        Family::GptOss | Family::DeepseekV4 => or(128)?,
        _ if !config.bool("use_sliding_window")?.unwrap_or(false) => None,
        _ => Some(config.u32("sliding_window")?.unwrap_or(4096)),
    };
    if window == Some(0) {
        return Err(ConfigError::Invalid { field: "sliding_window", value: "0".into(), rule: "at least 1" });
    }
    Ok(window)
}

fn mlps(config: &Fields, family: Family, num_layers: u32) -> Result<Vec<Mlp>, ConfigError> {
    match family {
        Family::GptOss => Ok(vec![Mlp::Experts; num_layers as usize]),
        Family::DeepseekV4 => deepseek_v4::mlps(config, num_layers),
        Family::DeepseekV3 | Family::DeepseekV32 => match texts(config, "mlp_layer_types", num_layers)? {
            Some(types) => types.into_iter().map(deepseek_mlp).collect(),
            None => {
                let dense = config.u32("first_k_dense_replace")?.unwrap_or(3);
                let mlp = |layer| if layer < dense { Mlp::Dense } else { Mlp::Experts };
                Ok((0..num_layers).map(mlp).collect())
            }
        },
        Family::Llama4 => {
            let step = step(config, "interleave_moe_layer_step", 1)?;
            let experts = match config.get("moe_layers") {
                Some(_) => layer_numbers(config, "moe_layers", num_layers)?,
                None => (step - 1..num_layers).step_by(step as usize).collect(),
            };
            let mlp = |layer| if experts.contains(&layer) { Mlp::Experts } else { Mlp::Dense };
            Ok((0..num_layers).map(mlp).collect())
        }
        Family::Qwen3Moe => {
            let step = step(config, "decoder_sparse_step", 1)?;
            let dense = layer_numbers(config, "mlp_only_layers", num_layers)?;
            let mlp = |layer: u32| match (layer + 1).is_multiple_of(step) && !dense.contains(&layer) {
                true => Mlp::Experts,
                false => Mlp::Dense,
            };
            Ok((0..num_layers).map(mlp).collect())
        }
        _ => Ok(vec![Mlp::Dense; num_layers as usize]),
    }
}

fn deepseek_mlp(name: &str) -> Result<Mlp, ConfigError> {
    match name {
        "dense" => Ok(Mlp::Dense),
        "sparse" => Ok(Mlp::Experts),
        _ => Err(ConfigError::Unsupported { field: "mlp_layer_types".into(), value: format!("{name:?}") }),
    }
}

/// From one layer to the next of its kind.
fn step(config: &Fields, field: &'static str, default: u32) -> Result<u32, ConfigError> {
    match config.u32(field)? {
        Some(0) => Err(ConfigError::Invalid { field, value: "0".into(), rule: "at least 1" }),
        step => Ok(step.unwrap_or(default)),
    }
}

/// A list of layers, from 0.
fn layer_numbers(config: &Fields, field: &'static str, num_layers: u32) -> Result<Vec<u32>, ConfigError> {
    let layers = list(config, field)?;
    match layers.iter().find(|layer| **layer >= num_layers) {
        Some(layer) => {
            let (value, rule) = (format!("a list with {layer}"), "a list of numbers under num_hidden_layers");
            Err(ConfigError::Invalid { field, value, rule })
        }
        None => Ok(layers),
    }
}

/// A list of numbers; absent is empty.
pub(super) fn list(config: &Fields, field: &str) -> Result<Vec<u32>, ConfigError> {
    let Some(list) = config.get(field) else { return Ok(Vec::new()) };
    let numbers = list.as_array().and_then(|list| list.iter().map(as_u32).collect());
    numbers.ok_or_else(|| mismatch(field, "a list of integers", list))
}
