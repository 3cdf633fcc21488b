//! Pooling of embeddings and tokens of rerankers, as checkpoints state them.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use checkpoint::{Checkpoint, Embedding, Gguf, Lengths, Pooling, Role};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture;
use crate::gguf_writer::{GgufWriter, u32_value};

/// A folder with these files, besides those of a model.
fn folder(files: &[(&str, Value)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture("tiny-qwen3").join(file), folder.path().join(file)).unwrap();
    }
    for (name, json) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, json.to_string()).unwrap();
    }
    folder
}

fn of_hf(files: &[(&str, Value)]) -> Result<Embedding, String> {
    Checkpoint::open(folder(files).path()).unwrap().embedding().map_err(|error| error.to_string())
}

fn pooling(files: &[(&str, Value)]) -> Result<Pooling, String> {
    of_hf(files).map(|embedding| embedding.pooling)
}

fn modules(types: &[&str]) -> Value {
    let path = |class: &str| if class == "Pooling" { "2_P" } else { "" };
    let module = |class: &&str| json!({ "path": path(class), "type": format!("sentence_transformers.models.{class}") });
    types.iter().map(module).collect()
}

#[test]
fn sentence_transformers_say_how_to_pool() {
    let file = "1_Pooling/config.json";
    let last = json!({ "word_embedding_dimension": 64, "pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true });
    assert_eq!(pooling(&[]), Ok(Pooling::Last));
    assert_eq!(
        [of_hf(&[]), of_hf(&[(file, last.clone())])].map(|embedding| embedding.unwrap().stated),
        [false, true]
    );
    assert_eq!(pooling(&[(file, last.clone())]), Ok(Pooling::Last));
    assert_eq!(
        pooling(&[(file, json!({ "pooling_mode_mean_tokens": true, "include_prompt": true }))]),
        Ok(Pooling::Mean)
    );
    assert_eq!(pooling(&[(file, json!({ "pooling_mode": "mean" }))]), Ok(Pooling::Mean));
    // The list of modules says where the pooling is.
    let listed = modules(&["Transformer", "Pooling", "Normalize"]);
    let mean = ("2_P/config.json", json!({ "pooling_mode": "mean" }));
    assert_eq!(pooling(&[("modules.json", listed), mean, (file, last)]), Ok(Pooling::Mean));
}

#[test]
fn rerankers_name_their_tokens() {
    let score = |files: &[(&str, Value)]| {
        let folder = folder(files);
        Checkpoint::open(folder.path()).unwrap().logit_score().map_err(|error| error.to_string())
    };
    let path = "1_LogitScore";
    let modules = |last: &str| {
        let class = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore";
        json!([
            { "idx": 0, "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer" },
            { "idx": 1, "path": path, "type": class },
            { "idx": 2, "path": "", "type": format!("x.{last}") },
        ])
    };
    let files =
        |last: &str, config: Value| [("modules.json", modules(last)), ("1_LogitScore/config.json", config)];
    let config = json!({ "true_token_id": 9, "false_token_id": 2, "module_input_name": "causal_logits" });
    let listed = files("Transformer", config.clone());
    let found = score(&listed).unwrap().unwrap();
    assert_eq!((found.relevant, found.irrelevant), (9, Some(2)));
    assert!(of_hf(&listed).unwrap_err().contains("LogitScore"), "a reranker has no embeddings");
    let alone =
        score(&files("Transformer", json!({ "true_token_id": 9, "false_token_id": null }))).unwrap().unwrap();
    assert_eq!((alone.relevant, alone.irrelevant), (9, None));
    assert_eq!(score(&[]), Ok(None));
    assert!(score(&files("Dense", config)).unwrap_err().contains("x.Dense"));
    assert!(score(&files("Transformer", json!({}))).unwrap_err().contains("true_token_id"));
}

#[test]
fn what_pools_otherwise_is_refused_by_name() {
    let told = |files: &[(&str, Value)]| of_hf(files).unwrap_err();
    let file = "1_Pooling/config.json";
    insta::assert_snapshot!(told(&[(file, json!({ "pooling_mode_cls_token": true }))]), @"1_Pooling/config.json: pooling_mode = cls_token would change the result and is not implemented");
    let two = json!({ "pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true });
    insta::assert_snapshot!(told(&[(file, two)]), @"1_Pooling/config.json: pooling_mode = max_tokens, mean_tokens would change the result and is not implemented");
    let dense = modules(&["Transformer", "Pooling", "Dense"]);
    insta::assert_snapshot!(told(&[("modules.json", dense)]), @"modules.json = sentence_transformers.models.Dense would change the result and is not implemented");
    let elsewhere = json!([{ "path": "../other", "type": "sentence_transformers.models.Pooling" }]);
    insta::assert_snapshot!(told(&[("modules.json", elsewhere)]), @"modules.json = sentence_transformers.models.Pooling would change the result and is not implemented");
}

#[test]
fn keys_of_gguf_say_how_to_pool() {
    let of = |kind: Option<u32>| {
        let mut writer = GgufWriter::small();
        if let Some(kind) = kind {
            writer.set("llama.pooling_type", u32_value(kind));
        }
        let file = Checkpoint::Gguf(Gguf::from_bytes(writer.bytes()).unwrap());
        file.embedding().map(|embedding| embedding.pooling).map_err(|error| error.to_string())
    };
    assert_eq!(
        [of(None), of(Some(0)), of(Some(3))],
        [Ok(Pooling::Last), Ok(Pooling::Last), Ok(Pooling::Last)]
    );
    assert_eq!(of(Some(1)), Ok(Pooling::Mean));
    insta::assert_snapshot!(of(Some(2)).unwrap_err(), @"llama.pooling_type = 2 (the first token) would change the result and is not implemented");
    insta::assert_snapshot!(of(Some(4)).unwrap_err(), @"llama.pooling_type = 4 (ranks of documents) would change the result and is not implemented");
}

#[test]
fn lengths_are_those_of_the_configuration() {
    let of = |fields: Value| {
        let mut config: Value =
            serde_json::from_slice(&fs::read(fixture("tiny-qwen3").join("config.json")).unwrap()).unwrap();
        config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        of_hf(&[("config.json", config)]).unwrap().lengths
    };
    assert_eq!(of(json!({})), Lengths::Whole);
    assert_eq!(of(json!({ "is_matryoshka": true })), Lengths::Any);
    assert_eq!(
        of(json!({ "is_matryoshka": true, "matryoshka_dimensions": [16, 32] })),
        Lengths::Listed(vec![16, 32])
    );
}

/// Embedding models are saved without their head, and the names of their tensors without `model.`.
#[test]
fn a_decoder_without_a_head_has_the_names_of_a_whole_one() {
    let whole = fixture("tiny-qwen3");
    let folder = tempfile::tempdir().unwrap();
    fs::copy(whole.join("config.json"), folder.path().join("config.json")).unwrap();
    behead(&whole.join("model.safetensors"), &folder.path().join("model.safetensors"));
    let (whole, bare) = (Checkpoint::open(whole).unwrap(), Checkpoint::open(folder.path()).unwrap());
    for role in [Role::Embed, Role::FinalNorm, Role::Q(1)] {
        let [whole, bare] =
            [&whole, &bare].map(|checkpoint| checkpoint.weights().tensor(role).unwrap().to_f32());
        assert_eq!(whole, bare, "{role:?}");
    }
    assert!(!whole.config().unwrap().tie_embeddings && bare.config().unwrap().tie_embeddings);
}

fn behead(from: &Path, to: &Path) {
    let bytes = fs::read(from).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let bare = file
        .tensors()
        .into_iter()
        .filter_map(|(name, tensor)| Some((name.strip_prefix("model.")?.to_owned(), tensor)));
    let bare: HashMap<String, _> = bare.collect();
    fs::write(to, safetensors::serialize(&bare, None).unwrap()).unwrap();
}
