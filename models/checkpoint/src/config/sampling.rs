//! Sampling parameters that a checkpoint recommends.

use std::path::Path;

use super::ConfigError;
use super::hf::Fields;
use super::read::generation_config;
use crate::sampling::{Penalties, Sampling};
use crate::{Gguf, Value};

/// Parameters as a checkpoint states them.
#[derive(Debug, Default, PartialEq)]
struct Stated {
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition: Option<f32>,
}

/// Parameters of `generation_config.json` in a folder. `None` if it is missing or states none.
pub(crate) fn of_hf_dir(dir: &Path) -> Result<Option<Sampling>, ConfigError> {
    generation_config(dir)?.map_or(Ok(None), |text| of_hf_json(&text))
}

fn of_hf_json(generation_config: &str) -> Result<Option<Sampling>, ConfigError> {
    let fields = Fields(serde_json::from_str(generation_config)?);
    let stated = Stated {
        temperature: fields.f32("temperature")?,
        top_k: fields.f64("top_k")?.map(count),
        top_p: fields.f32("top_p")?,
        min_p: fields.f32("min_p")?,
        repetition: fields.f32("repetition_penalty")?,
    };
    Ok(stated.sampling())
}

/// Parameters of the keys `general.sampling` of GGUF. `None` if there are none.
pub(crate) fn of_gguf(file: &Gguf) -> Result<Option<Sampling>, ConfigError> {
    #[expect(clippy::cast_possible_truncation, reason = "sampling runs in f32")]
    let float = |name: &str| -> Result<Option<f32>, ConfigError> {
        Ok(file.float(&format!("general.sampling.{name}"))?.map(|value| value as f32))
    };
    let stated = Stated {
        temperature: float("temp")?,
        top_k: match file.value("general.sampling.top_k") {
            Some(Value::Signed(..0)) => Some(0),
            _ => file.u32("general.sampling.top_k")?,
        },
        top_p: float("top_p")?,
        min_p: float("min_p")?,
        repetition: float("penalty_repeat")?,
    };
    Ok(stated.sampling())
}

/// Converts a number of tokens; numbers below 0, which stand for all tokens, become 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the value is limited to the range"
)]
fn count(number: f64) -> u32 {
    number.clamp(0.0, f64::from(u32::MAX)) as u32
}

impl Stated {
    /// Returns the sampling parameters. Parameters that are not stated, or whose value is out of range, change nothing.
    fn sampling(self) -> Option<Sampling> {
        let in_range = Self {
            temperature: self.temperature.filter(|t| t.is_finite() && *t >= 0.0),
            top_k: self.top_k,
            top_p: self.top_p.filter(|p| *p > 0.0 && *p <= 1.0),
            min_p: self.min_p.filter(|p| (0.0..=1.0).contains(p)),
            repetition: self.repetition.filter(|r| r.is_finite() && *r > 0.0),
        };
        if in_range == Self::default() {
            return None;
        }
        let penalties = Penalties::OFF.repetition(in_range.repetition.unwrap_or(1.0));
        Some(
            Sampling::default()
                .temperature(in_range.temperature.unwrap_or(1.0))
                .top_k(in_range.top_k.unwrap_or(0))
                .top_p(in_range.top_p.unwrap_or(1.0))
                .min_p(in_range.min_p.unwrap_or(0.0))
                .penalties(penalties),
        )
    }
}
