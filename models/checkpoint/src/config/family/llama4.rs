use serde_json::Value;

use super::{Gguf, Hf, Spec};
use crate::config::gguf::{self, Keys};
use crate::config::hf::{Fields, HeadDim, Plain, by_type, layer_numbers, list, step};
use crate::config::moe::CHOICE;
use crate::{
    Activation, ConfigError, DecoderConfig, ExpertPacking, Family, Mlp, MoeConfig, Pairing, QkNorm, Reach,
    Router, Score, Temperature,
};

pub(super) const SPEC: Spec = Spec {
    hf: Some(Hf {
        model_type: "llama4_text",
        reads: &["num_local_experts", "no_rope_layers", "attention_chunk_size"],
        read,
    }),
    gguf: Some(Gguf {
        architecture: "llama4",
        reads: &["expert_count", "expert_used_count"],
        read: from_gguf,
    }),
    ..Spec::NONE
};

/// Number of tokens of a chunk, and of a step of the query scale, in both published models.
const CHUNK: u32 = 8192;

/// Distance between layers without rope.
const INTERVAL: u32 = 4;

/// Number by which GGUF files name the sigmoid as router function.
const SIGMOID: u32 = 2;

/// Reads GGUF metadata. It does not state chunks, rope and head norms: they are those of the published models, as in llama.cpp,
/// and Maverick's 128 experts imply heads without norms.
fn from_gguf(keys: &Keys<'_>) -> Result<DecoderConfig, ConfigError> {
    let plain = gguf::Plain { pairing: Pairing::Interleaved, ..gguf::Plain::new(Family::Llama4) };
    let mut decoder = plain.read(keys)?;
    gguf::set_experts(keys, &mut decoder, SIGMOID, |moe| MoeConfig {
        shared_size: Some(moe.inner_size),
        router: Router { score: Score::Sigmoid, ..CHOICE },
        weighted_input: true,
        ..moe
    })?;
    if decoder.moe.as_ref().is_some_and(|moe| moe.num_experts != 128) {
        decoder.qk_norm = QkNorm::Unweighted;
    }
    let floor_scale = f64::from(CHUNK);
    decoder.temperature = Some(Temperature { floor_scale, attn_scale: 0.1, first: 1, all_layers: false });
    let rotates = |layer: u32| !(layer + 1).is_multiple_of(INTERVAL);
    let reach = |layer| if rotates(layer) { Reach::Chunk(CHUNK) } else { Reach::Full };
    decoder.set_reaches((0..decoder.num_layers).map(reach));
    (0..).zip(&mut decoder.layers).for_each(|(index, layer)| layer.rotary = rotates(index));
    Ok(decoder)
}

fn read(config: &Fields) -> Result<DecoderConfig, ConfigError> {
    let plain = Plain {
        head_dim: HeadDim::Default(128),
        inner_size: "intermediate_size_mlp",
        rms_norm_eps: 1e-5,
        rope_theta: 500_000.0,
        pairing: Pairing::Interleaved,
        ..Plain::new(Family::Llama4)
    };
    let mut decoder = plain.read(config)?;
    decoder.qkv_bias = config.bool("attention_bias")?.unwrap_or(false);
    decoder.o_bias = decoder.qkv_bias;
    if config.bool("use_qk_norm")?.unwrap_or(true) {
        decoder.qk_norm = QkNorm::Unweighted;
    }
    decoder.temperature = temperature(config)?;
    decoder.moe = Some(moe(config)?);
    let rotary = rotary(config, decoder.num_layers)?;
    decoder.set_reaches(chunks(config, &rotary)?);
    decoder.set_mlps(mlps(config, decoder.num_layers)?);
    decoder.layers.iter_mut().zip(rotary).for_each(|(layer, rotary)| layer.rotary = rotary);
    Ok(decoder)
}

/// Reads the query scale of layers without rope.
fn temperature(config: &Fields) -> Result<Option<Temperature>, ConfigError> {
    // Published configurations hold a number here, of which only the truth counts.
    let tunes = match config.get("attn_temperature_tuning") {
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        _ => config.bool("attn_temperature_tuning")?.unwrap_or(true),
    };
    if !tunes {
        return Ok(None);
    }
    let floor_scale = config.f64("floor_scale")?.unwrap_or(CHUNK.into());
    if !(floor_scale.is_finite() && floor_scale >= 1.0) {
        let (field, value) = ("floor_scale", floor_scale.to_string());
        return Err(ConfigError::Invalid { field, value, rule: "finite and at least 1" });
    }
    let attn_scale = config.f64("attn_scale")?.unwrap_or(0.1);
    Ok(Some(Temperature { floor_scale, attn_scale, first: 1, all_layers: false }))
}

/// Returns whether each layer rotates queries and keys.
fn rotary(config: &Fields, num_layers: u32) -> Result<Vec<bool>, ConfigError> {
    let flags = list(config, "no_rope_layers")?;
    if flags.is_empty() {
        let interval = step(config, "no_rope_layer_interval", INTERVAL)?;
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

/// Returns the masks of layers by the stated layer types. Without types, layers with rope have chunks, and the others
/// full attention.
fn chunks(config: &Fields, rotary: &[bool]) -> Result<Vec<Reach>, ConfigError> {
    let chunk = config.u32("attention_chunk_size")?.unwrap_or(CHUNK);
    if chunk == 0 {
        let (field, rule) = ("attention_chunk_size", "at least 1");
        return Err(ConfigError::Invalid { field, value: "0".into(), rule });
    }
    let num_layers = u32::try_from(rotary.len()).expect("the number of layers is limited");
    let types = by_type(config, num_layers, |kind| match kind {
        "full_attention" => Some(Reach::Full),
        "chunked_attention" => Some(Reach::Chunk(chunk)),
        _ => None,
    })?;
    let reach = |rotary: &bool| if *rotary { Reach::Chunk(chunk) } else { Reach::Full };
    Ok(types.unwrap_or_else(|| rotary.iter().map(reach).collect()))
}

fn mlps(config: &Fields, num_layers: u32) -> Result<Vec<Mlp>, ConfigError> {
    let step = step(config, "interleave_moe_layer_step", 1)?;
    let experts = match config.get("moe_layers") {
        Some(_) => layer_numbers(config, "moe_layers", num_layers)?,
        None => (step - 1..num_layers).step_by(step as usize).collect(),
    };
    let mlp = |layer| if experts.contains(&layer) { Mlp::Experts } else { Mlp::Dense };
    Ok((0..num_layers).map(mlp).collect())
}

fn moe(config: &Fields) -> Result<MoeConfig, ConfigError> {
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
