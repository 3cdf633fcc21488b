//! Sampling parameters that checkpoints recommend.

use std::fs;

use checkpoint::sampling::{Penalties, Sampling};
use checkpoint::{Checkpoint, Gguf};

use crate::fixture;
use crate::gguf_writer::{GgufWriter, f32_value, u32_value, value};

/// Parameters that a folder with this `generation_config.json` recommends.
fn of_hf(generation_config: &str) -> Result<Option<Sampling>, String> {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture("tiny-llama").join(file), folder.path().join(file)).unwrap();
    }
    fs::write(folder.path().join("generation_config.json"), generation_config).unwrap();
    Checkpoint::open(folder.path()).unwrap().sampling().map_err(|error| error.to_string())
}

fn of_gguf(keys: &[(&str, Vec<u8>)]) -> Result<Option<Sampling>, String> {
    let mut writer = GgufWriter::small();
    for (key, value) in keys {
        writer.set(&format!("general.sampling.{key}"), value.clone());
    }
    Checkpoint::Gguf(Gguf::from_bytes(writer.bytes()).unwrap()).sampling().map_err(|error| error.to_string())
}

#[test]
fn generation_config_says_how_to_sample() {
    let all =
        r#"{"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.05}"#;
    let wanted = Sampling::default().temperature(0.6).top_k(20).top_p(0.95).min_p(0.01);
    assert_eq!(of_hf(all), Ok(Some(wanted.penalties(Penalties::OFF.repetition(1.05)))));
    // What is not stated changes nothing, and -1 stands for all tokens.
    let some = r#"{"do_sample": true, "top_k": -1, "top_p": 0.9, "temperature": null}"#;
    assert_eq!(of_hf(some), Ok(Some(Sampling::default().temperature(1.0).top_p(0.9))));
}

#[test]
fn keys_of_gguf_say_how_to_sample() {
    let keys = [
        ("temp", f32_value(0.6)),
        ("top_k", u32_value(64)),
        ("top_p", f32_value(0.9)),
        ("min_p", f32_value(0.1)),
        ("penalty_repeat", f32_value(1.5)),
    ];
    let wanted = Sampling::default().temperature(0.6).top_k(64).top_p(0.9).min_p(0.1);
    assert_eq!(of_gguf(&keys), Ok(Some(wanted.penalties(Penalties::OFF.repetition(1.5)))));
    // Converters write a signed number.
    let signed = of_gguf(&[("top_k", value(5, (-1_i32).to_le_bytes())), ("temp", f32_value(0.5))]);
    assert_eq!(signed, Ok(Some(Sampling::default().temperature(0.5))));
}

#[test]
fn what_says_nothing_usable_recommends_nothing() {
    assert_eq!(of_hf("{\"eos_token_id\": 2}"), Ok(None));
    assert_eq!(of_hf(r#"{"temperature": -1, "top_p": 0, "min_p": 2, "repetition_penalty": 0}"#), Ok(None));
    assert_eq!(of_gguf(&[]), Ok(None));
    assert_eq!(Checkpoint::open(fixture("tiny-llama")).unwrap().sampling().unwrap(), None);
    let told = of_hf(r#"{"temperature": "hot"}"#).unwrap_err();
    assert!(told.contains("temperature") && told.contains("a number"), "{told}");
}
