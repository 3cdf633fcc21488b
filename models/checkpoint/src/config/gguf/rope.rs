//! Rotary embeddings.

use super::keys::Keys;
use crate::config::rope::{long_mscale, yarn_mscale};
use crate::{ConfigError, Pairing, Role, Rope, RopeScaling, ShortFactors, WeightSource};

pub(super) fn rope(keys: &Keys<'_>, head_dim: u32, context_length: u32) -> Result<Rope, ConfigError> {
    Ok(Rope {
        theta: keys.f64("rope.freq_base")?.unwrap_or(10_000.0),
        rotary_dims: keys.u32("rope.dimension_count")?.unwrap_or(head_dim),
        pairing: Pairing::Halves,
        scaling: scaling(keys, context_length)?,
    })
}

fn scaling(keys: &Keys<'_>, context_length: u32) -> Result<RopeScaling, ConfigError> {
    let factor = match keys.f64("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.f64("rope.scale_linear")?,
    }
    // Zero and one are written for "none".
    .filter(|&factor| factor != 0.0 && factor != 1.0);
    // Files older than the type key have a linear factor, if any.
    let kind = keys.file.str(&keys.key("rope.scaling.type"))?.unwrap_or("linear");
    if keys.file.has(Role::RopeFactors) {
        if factor.is_some() {
            return Err(keys.unsupported("rope.scaling.type", &format!("{kind} beside rope_freqs.weight")));
        }
        let factors = keys.file.tensor(Role::RopeFactors);
        let factors = factors.map_err(|source| ConfigError::RopeFactors { source })?;
        return Ok(RopeScaling::Factors(factors.to_f32()));
    }
    if keys.file.has(Role::RopeLong) || keys.file.has(Role::RopeShort) {
        return long(keys, context_length);
    }
    let Some(factor) = factor else { return Ok(RopeScaling::None) };
    Ok(match kind {
        "none" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor },
        "yarn" => {
            let original = keys.u32("rope.scaling.original_context_length")?.unwrap_or(context_length);
            let multiplier = |name| Ok::<_, ConfigError>(keys.f64(name)?.unwrap_or(1.0));
            let multiplier =
                multiplier("rope.scaling.attn_factor")? * multiplier("rope.scaling.yarn_attn_factor")?;
            RopeScaling::Yarn {
                factor,
                original_context: original.into(),
                beta_fast: keys.f64("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: keys.f64("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                attention_factor: multiplier * yarn_mscale(factor, 1.0),
                truncate: true,
            }
        }
        _ => return Err(keys.unsupported("rope.scaling.type", kind)),
    })
}

/// Reads LongRoPE, whose divisors are tensors.
fn long(keys: &Keys<'_>, context_length: u32) -> Result<RopeScaling, ConfigError> {
    let original_context = keys.need_u32("rope.scaling.original_context_length")?;
    let (original, context) = (f64::from(original_context), f64::from(context_length));
    let factors = |role| {
        let tensor = keys.file.tensor(role).map_err(|source| ConfigError::RopeFactors { source })?;
        Ok::<_, ConfigError>(tensor.to_f32())
    };
    let stretched = context > original;
    let short = match stretched && keys.file.has(Role::RopeShort) {
        true => Some(ShortFactors { factors: factors(Role::RopeShort)?, original_context }),
        false => None,
    };
    let attention_factor = match keys.f64("rope.scaling.attn_factor")? {
        Some(factor) => factor,
        None => long_mscale(context / original, original),
    };
    let factors = factors(if stretched { Role::RopeLong } else { Role::RopeShort })?;
    Ok(RopeScaling::Long { factors, short, attention_factor })
}
