//! Configurations with every field changed to what no model has: an error, or sizes that every later product of them bears.

use models::DecoderConfig;
use serde_json::{Value, json};

use super::fixture;
use super::targets::config::use_sizes;

const FIXTURES: [&str; 10] = [
    "tiny-llama",
    "tiny-mistral",
    "tiny-qwen2",
    "tiny-qwen3-moe",
    "tiny-gpt-oss",
    "tiny-llama4",
    "tiny-deepseek-v3",
    "tiny-deepseek-v32",
    "tiny-deepseek-v4",
    "tiny-nsa",
];

/// Odd, huge and tiny numbers, and other types.
fn values() -> Vec<Value> {
    let integers = [0_i64, 1, 2, 3, 7, 8, 520, 4096, 65_535, 1 << 20, 1 << 24, 1 << 31, u32::MAX.into(), -1];
    let floats = [5e-324, 1e-310, 1e-40, 0.5, -0.0, 1e30, 1e300, f64::MAX];
    let mut values: Vec<Value> = integers.map(Value::from).into();
    values.extend(floats.map(Value::from));
    values.extend([
        json!([]),
        json!([0]),
        json!([4_294_967_295_u32, 1]),
        json!({}),
        json!("yarn"),
        json!(true),
        Value::Null,
    ]);
    values
}

#[test]
fn hostile_fields_are_errors_or_sizes_that_hold() {
    let (mut refused, mut taken) = (0, 0);
    for name in FIXTURES {
        let text = std::fs::read_to_string(fixture(name).join("config.json")).unwrap();
        let config: Value = serde_json::from_str(&text).unwrap();
        let fields = config.as_object().unwrap();
        let nested = fields.iter().filter_map(|(field, value)| Some((field, value.as_object()?)));
        let paths = fields
            .keys()
            .map(|field| vec![field])
            .chain(nested.flat_map(|(field, inner)| inner.keys().map(move |key| vec![field, key])));
        for path in paths {
            for value in values() {
                let mut changed = config.clone();
                let mut place = &mut changed;
                for key in &path {
                    place = &mut place[key.as_str()];
                }
                *place = value;
                match DecoderConfig::from_hf_json(&changed.to_string(), None) {
                    Ok(config) => {
                        use_sizes(&config);
                        taken += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
        }
    }
    assert!(refused > 1000 && taken > 1000, "{refused} refused, {taken} taken");
}
