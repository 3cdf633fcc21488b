//! Configurations of published models: which of them are read, and why others are not.
//!
//! `published.json` holds the fields of their `config.json` that say what is computed, and nothing else of them. They are written
//! down from what is publicly known of these models, not copied from their files: a model's own file may state more. The
//! factors of
//! LongRoPE are ones in place of the 48 numbers.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use checkpoint::DecoderConfig;
use serde_json::Value;

use super::fixture;

/// A row of the table of [docs/models.md](../../../../docs/models.md).
fn row(name: &str, config: &Value) -> String {
    let result = match DecoderConfig::from_hf_json(&config.to_string(), None) {
        Ok(_) => "yes".to_owned(),
        // A table in Markdown, and not the list of all families in every row.
        Err(error) => format!("no: {}", error.to_string().split(" (implemented").next().unwrap_or_default()),
    };
    let of = |config: &Value| config["model_type"].as_str().unwrap_or_default().to_owned();
    let kind = match config.get("text_config") {
        Some(text) => format!("`{}` in `{}`", of(text), of(config)),
        None => format!("`{}`", of(config)),
    };
    format!("| {name} | {kind} | {} | {result} |", weights(config))
}

/// Storage of the weights.
fn weights(config: &Value) -> String {
    let quantisation = &config["quantization_config"];
    let text = |field: &str| quantisation[field].as_str().unwrap_or_default();
    match (text("quant_method"), quantisation["bits"].as_u64()) {
        ("", _) => "plain".to_owned(),
        ("compressed-tensors", _) => text("format").to_owned(),
        (method, Some(bits)) => format!("{method}, {bits} bits"),
        (method, None) if config["expert_dtype"] == "fp4" => format!("{method}, experts fp4"),
        (method, None) => method.to_owned(),
    }
}

#[test]
fn published_models_are_read_or_refused_as_the_docs_say() {
    let text = fs::read_to_string(fixture("published.json")).unwrap();
    let all: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
    assert!(all.len() >= 40, "{} models", all.len());
    let mut rows: Vec<String> = all.iter().map(|(name, config)| row(name, config)).collect();
    rows.sort_by_key(|row| row.to_lowercase());
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once("\n## Published models\n").expect("a section on published models");
    let section = section.split("\n## ").next().unwrap_or_default();
    let stated: Vec<&str> = section.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    assert_eq!(stated.join("\n"), rows.join("\n"), "docs/models.md should say:\n{}", rows.join("\n"));
}
