//! Properties that differ between layers.

use serde_json::Value;

use super::fields::{Fields, as_u32, mismatch};
use crate::{ConfigError, Reach};

/// Reads the list in `field`, one text per layer, if it is there.
pub(in crate::config) fn texts<'a>(
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

/// Reads the masks of layers by their types; `reach` maps each type of the family to its mask. `None` if no types are
/// given.
pub(in crate::config) fn by_type(
    config: &Fields,
    num_layers: u32,
    reach: impl Fn(&str) -> Option<Reach>,
) -> Result<Option<Vec<Reach>>, ConfigError> {
    let of_layer = |layer: &str| reach(layer).ok_or_else(|| unknown("layer_types", layer));
    let types = texts(config, "layer_types", num_layers)?;
    types.map(|types| types.into_iter().map(of_layer).collect()).transpose()
}

/// Reads the masks of layers, some of which may have a window. If the configuration states no layer types, `default`
/// says which layers have a window.
pub(in crate::config) fn reaches(
    config: &Fields,
    num_layers: u32,
    window: Option<u32>,
    default: impl Fn(u32) -> bool,
) -> Result<Vec<Reach>, ConfigError> {
    let with = |windowed| window.filter(|_| windowed).map_or(Reach::Full, Reach::Window);
    let types = by_type(config, num_layers, |kind| match kind {
        "full_attention" => Some(Reach::Full),
        "sliding_attention" => window.map(Reach::Window),
        _ => None,
    })?;
    Ok(types.unwrap_or_else(|| (0..num_layers).map(|layer| with(default(layer))).collect()))
}

/// Reads the masks of layers for configuration classes that have one mask for all layers.
pub(in crate::config) fn alike(
    config: &Fields,
    num_layers: u32,
    window: Option<u32>,
) -> Result<Vec<Reach>, ConfigError> {
    let (kind, reach) = match window {
        Some(window) => ("sliding_attention", Reach::Window(window)),
        None => ("full_attention", Reach::Full),
    };
    let types = by_type(config, num_layers, |found| (found == kind).then_some(reach))?;
    Ok(types.unwrap_or_else(|| vec![reach; num_layers as usize]))
}

/// Reads the sliding window. `null` switches it off; if absent, it is the default of the configuration class.
pub(in crate::config) fn window(config: &Fields, default: Option<u32>) -> Result<Option<u32>, ConfigError> {
    let window = match config.0.contains_key("sliding_window") {
        true => config.u32("sliding_window")?,
        false => default,
    };
    match window {
        Some(0) => {
            Err(ConfigError::Invalid { field: "sliding_window", value: "0".into(), rule: "at least 1" })
        }
        window => Ok(window),
    }
}

/// Reads the window of the Qwen models, which is off by default.
pub(in crate::config) fn window_on_demand(config: &Fields) -> Result<Option<u32>, ConfigError> {
    if !config.bool("use_sliding_window")?.unwrap_or(false) {
        return Ok(None);
    }
    Ok(window(config, None)?.or(Some(4096)))
}

/// Reads the distance between layers of one kind.
pub(in crate::config) fn step(
    config: &Fields,
    field: &'static str,
    default: u32,
) -> Result<u32, ConfigError> {
    match config.u32(field)? {
        Some(0) => Err(ConfigError::Invalid { field, value: "0".into(), rule: "at least 1" }),
        step => Ok(step.unwrap_or(default)),
    }
}

/// Reads a list of layers, from 0.
pub(in crate::config) fn layer_numbers(
    config: &Fields,
    field: &'static str,
    num_layers: u32,
) -> Result<Vec<u32>, ConfigError> {
    let layers = list(config, field)?;
    match layers.iter().find(|layer| **layer >= num_layers) {
        Some(layer) => {
            let (value, rule) = (format!("a list with {layer}"), "a list of numbers under num_hidden_layers");
            Err(ConfigError::Invalid { field, value, rule })
        }
        None => Ok(layers),
    }
}

/// Reads a list of numbers; empty if absent.
pub(in crate::config) fn list(config: &Fields, field: &str) -> Result<Vec<u32>, ConfigError> {
    let Some(list) = config.get(field) else { return Ok(Vec::new()) };
    let numbers = list.as_array().and_then(|list| list.iter().map(as_u32).collect());
    numbers.ok_or_else(|| mismatch(field, "a list of integers", list))
}

/// Error for a name that the family does not know.
pub(in crate::config) fn unknown(field: &str, value: &str) -> ConfigError {
    ConfigError::Unsupported { field: field.to_owned(), value: format!("{value:?}") }
}
