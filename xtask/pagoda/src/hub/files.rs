//! The files of a repository that make a model.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::error::HubError;
use super::reference::{Reference, is_relative};

/// Files of a checkpoint in Hugging Face's layout other than its weights. Not every checkpoint has all of them.
const BESIDE: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
];

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Paths in the repository, the weights last.
    pub(super) files: Vec<String>,
    /// The GGUF file to open; `None` for the folder itself.
    gguf: Option<String>,
}

impl Wanted {
    /// Path of the checkpoint in a snapshot.
    pub(super) fn checkpoint(&self, snapshot: &Path) -> PathBuf {
        self.gguf.as_ref().map_or_else(|| snapshot.to_owned(), |file| snapshot.join(file))
    }

    /// Whether a snapshot has all weights: every part that the names or the shard index speak of.
    pub(super) fn is_complete(&self, snapshot: &Path) -> bool {
        let there = |file: &String| snapshot.join(file).is_file();
        if let Some((_, _, count)) = self.gguf.as_deref().and_then(part_of) {
            return self.files.len() == count && self.files.iter().all(there);
        }
        let index = std::fs::read(snapshot.join("model.safetensors.index.json")).ok();
        let index: Option<serde_json::Value> = index.and_then(|text| serde_json::from_slice(&text).ok());
        let shards = index.as_ref().and_then(|index| index["weight_map"].as_object());
        let shards = shards.into_iter().flat_map(|shards| shards.values().filter_map(|name| name.as_str()));
        self.files.iter().all(there) && shards.into_iter().all(|shard| snapshot.join(shard).is_file())
    }
}

/// Chooses the model that `reference` asks for among the files of its repository.
///
/// # Errors
/// If there is none, or several, with their names.
pub(super) fn choose(files: &[String], reference: &Reference) -> Result<Wanted, HubError> {
    let files: Vec<&String> = files.iter().filter(|file| is_relative(file)).collect();
    if let Some(wanted) = &reference.file {
        return chosen_gguf(&files, wanted, reference);
    }
    let has = |name: &str| files.iter().any(|file| *file == name);
    let weights: Vec<&str> = match has("model.safetensors.index.json") {
        // Some repositories hold the same weights a second time, in files for other programs.
        true => files.iter().map(|file| file.as_str()).filter(|file| is_shard(file)).collect(),
        false => files.iter().map(|file| file.as_str()).filter(|file| *file == "model.safetensors").collect(),
    };
    if has("config.json") && !weights.is_empty() {
        let beside = BESIDE.into_iter().filter(|name| has(name));
        return Ok(Wanted { files: beside.chain(weights).map(str::to_owned).collect(), gguf: None });
    }
    chosen_gguf(&files, "", reference)
}

/// Whether a file is one of several that hold the weights: `model-00001-of-00002.safetensors`.
fn is_shard(file: &str) -> bool {
    file.starts_with("model-") && file.ends_with(".safetensors") && !file.contains('/')
}

/// The one model in GGUF whose name equals or contains `wanted`, ignoring case.
fn chosen_gguf(files: &[&String], wanted: &str, reference: &Reference) -> Result<Wanted, HubError> {
    let is_model = |file: &str| {
        let name = file.rsplit('/').next().unwrap_or(file);
        name.ends_with(".gguf") && !name.starts_with("mmproj")
    };
    // The first part stands for a split model.
    let firsts: BTreeSet<&str> = files
        .iter()
        .map(|file| file.as_str())
        .filter(|file| is_model(file) && part_of(file).is_none_or(|(_, part, _)| part == 1))
        .collect();
    let like = |file: &&str| file.to_lowercase().contains(&wanted.to_lowercase());
    let mut found: Vec<&str> = firsts.iter().copied().filter(like).collect();
    if firsts.contains(wanted) {
        found = vec![wanted];
    }
    let wrong = |reason: String| Err(HubError::Files { reference: reference.to_string(), reason });
    match found[..] {
        [gguf] => {
            let same = |file: &&&String| match (part_of(gguf), part_of(file)) {
                (Some((name, _, count)), Some((other, _, of))) => name == other && count == of,
                _ => file.as_str() == gguf,
            };
            let files = files.iter().filter(same).map(|file| (*file).clone()).collect();
            Ok(Wanted { files, gguf: Some(gguf.to_owned()) })
        }
        [] if firsts.is_empty() => {
            wrong("the repository has neither config.json with safetensors nor a GGUF file".into())
        }
        [] => wrong(format!("no GGUF file has this name; there are {}", list(&firsts))),
        _ => wrong(format!("several models; add one of {}", list(&found.into_iter().collect()))),
    }
}

fn list(names: &BTreeSet<&str>) -> String {
    names.iter().map(|name| format!(":{name}")).collect::<Vec<_>>().join(", ")
}

/// Name, number from 1, and number of parts of one part of a split model, such as `NAME-00002-of-00003.gguf`.
fn part_of(file: &str) -> Option<(&str, usize, usize)> {
    let (rest, count) = file.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (name, part) = rest.rsplit_once('-')?;
    Some((name, part.parse().ok()?, count.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(reference: &str, files: &[&str]) -> String {
        let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        match choose(&files, &reference.parse().unwrap()) {
            Ok(wanted) => {
                format!("{} opens {}", wanted.files.join(" "), wanted.gguf.as_deref().unwrap_or("the folder"))
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_model_is_chosen_by_what_the_repository_holds() {
        let ggufs = ["README.md", "a-Q4_K_M.gguf", "a-Q8_0.gguf", "mmproj-a.gguf"];
        let split = ["x/a-Q4_0-00001-of-00002.gguf", "x/a-Q4_0-00002-of-00002.gguf", "a-F16.gguf"];
        let plain =
            ["config.json", "model.safetensors", "tokenizer.json", "pytorch_model.bin", "onnx/m.safetensors"];
        let sharded = [
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "consolidated.safetensors",
            "model.safetensors",
        ];
        let said = [
            chosen("hf:a/b", &plain),
            chosen("hf:a/b", &sharded),
            chosen("hf:a/b:q4_k_m", &ggufs),
            chosen("hf:a/b:a-Q8_0.gguf", &ggufs),
            chosen("hf:a/b:q4_0", &split),
            chosen("hf:a/b", &ggufs),
            chosen("hf:a/b:q2", &ggufs),
            chosen("hf:a/b", &["README.md", "../evil.gguf"]),
            chosen("hf:a/b", &["one.gguf"]),
        ];
        insta::assert_snapshot!(said.join("\n"), @"
        config.json tokenizer.json model.safetensors opens the folder
        config.json model.safetensors.index.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors opens the folder
        a-Q4_K_M.gguf opens a-Q4_K_M.gguf
        a-Q8_0.gguf opens a-Q8_0.gguf
        x/a-Q4_0-00001-of-00002.gguf x/a-Q4_0-00002-of-00002.gguf opens x/a-Q4_0-00001-of-00002.gguf
        hf:a/b: several models; add one of :a-Q4_K_M.gguf, :a-Q8_0.gguf
        hf:a/b:q2: no GGUF file has this name; there are :a-Q4_K_M.gguf, :a-Q8_0.gguf
        hf:a/b: the repository has neither config.json with safetensors nor a GGUF file
        one.gguf opens one.gguf
        ");
    }
}
