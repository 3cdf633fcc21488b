//! `pagoda models`: the models in the caches and in folders, what loads, and why not.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use indicatif::BinaryBytes;
use models::WeightMemory;
use pagoda::fetch::{ModelCache, ModelPackage};
use pagoda::hub::{HubCache, Settings};
use pagoda::{Model, error_chain};
use serde::Serialize;

use crate::cli::ModelsArgs;
use crate::report;

/// A model on this machine.
#[derive(Debug, Serialize)]
pub struct Listed {
    /// Value of `--model` for this model.
    pub model: String,
    /// File or folder.
    pub path: PathBuf,
    /// Bytes of its files of weights.
    pub bytes: u64,
    /// Family, as its configuration calls it; null if it is not supported.
    pub family: Option<&'static str>,
    /// Type of most of its elements.
    pub dtype: Option<&'static str>,
    /// Maximum number of tokens of a sequence.
    pub context: Option<u32>,
    /// Reason why the model does not load; null if it does.
    pub reason: Option<String>,
}

impl Listed {
    /// A model with a known size and nothing else.
    fn unread(model: String, path: PathBuf) -> Self {
        Self { model, bytes: bytes_of(&path), path, family: None, dtype: None, context: None, reason: None }
    }
}

/// Runs the command.
///
/// # Errors
/// If a given path has no model; all paths are listed nevertheless.
pub fn run(args: &ModelsArgs) -> Result<()> {
    let listed = match &args.paths[..] {
        [] => cached(),
        paths => paths.iter().flat_map(|path| at(path)).collect(),
    };
    print(args, &listed)?;
    let without = args.paths.iter().filter(|path| candidates(path).is_empty()).count();
    ensure!(without == 0, "{without} of {} paths have no model", args.paths.len());
    Ok(())
}

/// Models at a given path, or why there is none.
fn at(path: &Path) -> Vec<Listed> {
    let found = candidates(path);
    if found.is_empty() {
        let reason = match fs::metadata(path) {
            Ok(_) => "there is no config.json and no GGUF file in it, nor in the folders in it".to_owned(),
            Err(error) => error.to_string(),
        };
        return vec![Listed {
            reason: Some(reason),
            ..Listed::unread(path.display().to_string(), path.into())
        }];
    }
    found.into_iter().map(|path| describe(path.display().to_string(), path)).collect()
}

fn print(args: &ModelsArgs, listed: &[Listed]) -> Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        for model in listed {
            report::json_line(&mut out, model)?;
        }
        return Ok(());
    }
    if listed.is_empty() {
        eprintln!("no model is cached; the first command that runs one fetches the default model");
    }
    let width = listed.iter().map(|model| model.model.len()).max().unwrap_or(0);
    for model in listed {
        let Listed { model, bytes, family, dtype, context, reason, .. } = model;
        write!(out, "{model:width$}  {:>10}", BinaryBytes(*bytes).to_string())?;
        write!(out, "  {:12} {:6}", family.unwrap_or("-"), dtype.unwrap_or("-"))?;
        match (reason, context) {
            (Some(reason), _) => writeln!(out, "  does not load: {reason}")?,
            (None, context) => writeln!(out, "  {} tokens", context.unwrap_or(0))?,
        }
    }
    Ok(())
}

/// Models of this program's cache, then of the hub's.
fn cached() -> Vec<Listed> {
    let mut listed = Vec::new();
    if let Ok(cache) = ModelCache::user() {
        for path in candidates(cache.dir()) {
            let package = ModelPackage::ALL.iter().find(|package| cache.path(package) == path);
            let name = package.map_or_else(|| path.display().to_string(), |package| package.name.to_owned());
            listed.push(describe(name, path));
        }
    }
    let Ok(settings) = Settings::of_this_user() else { return listed };
    for cached in HubCache::list(&settings.cache) {
        for path in candidates(&cached.snapshot) {
            let file = path.strip_prefix(&cached.snapshot).unwrap_or(&path).display().to_string();
            let file = if file.is_empty() { file } else { format!(":{file}") };
            listed.push(describe(format!("hf:{}{file}", cached.repo), path));
        }
    }
    listed
}

/// Paths of the models at `path`: `path` itself if it is a model, or else the models in this folder, or, if it has
/// none, those in its subfolders.
fn candidates(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut entries: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    entries.sort();
    if path.join("config.json").is_file() {
        return vec![path.to_owned()];
    }
    let mut found: Vec<PathBuf> = entries.iter().filter(|path| is_gguf_model(path)).cloned().collect();
    if found.is_empty() {
        let folders = entries.iter().filter(|path| path.is_dir());
        let has_model = |folder: &&PathBuf| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            folder.join("config.json").is_file()
                || entries.into_iter().any(|entry| is_gguf_model(&entry.path()))
        };
        found.extend(folders.filter(has_model).flat_map(|folder| candidates(folder)));
    }
    found
}

/// Whether a path is the first or only GGUF file of a model. Image projectors and later parts of a split model do not
/// count.
fn is_gguf_model(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let later = name.rsplit_once("-of-").is_some_and(|(start, _)| !start.ends_with("-00001"));
    path.is_file() && name.ends_with(".gguf") && !name.starts_with("mmproj") && !later
}

fn describe(model: String, path: PathBuf) -> Listed {
    let mut listed = Listed::unread(model, path);
    let open = match Model::open(&listed.path) {
        Ok(open) => open,
        Err(error) => {
            // The path is told already.
            let reason = std::error::Error::source(&error).map(error_chain::joined);
            listed.reason = Some(reason.unwrap_or_else(|| error.to_string()));
            return listed;
        }
    };
    let family = open.config.family;
    listed.family = family.model_type().or(family.architecture());
    listed.context = Some(open.config.context_length);
    match WeightMemory::of(open.checkpoint(), &open.config) {
        Ok(memory) => listed.dtype = memory.types.first().map(|(dtype, _)| dtype.name()),
        Err(error) => listed.reason = Some(error.to_string()),
    }
    listed
}

/// Bytes of the weights: of a file, with the later parts of a split model, or of the safetensors of a folder.
fn bytes_of(path: &Path) -> u64 {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (start, end) = name.split_once("-00001-of-").unwrap_or((&name, ""));
    let folder = match path.parent() {
        _ if path.is_dir() => path,
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let belongs = |file: &str| match path.is_dir() {
        true => file.ends_with(".safetensors"),
        false => file.starts_with(start) && file.ends_with(end) && (!end.is_empty() || file == name),
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let weights = entries.filter(|entry| belongs(&entry.file_name().to_string_lossy()));
    // Follows links, unlike the entry.
    weights.map(|entry| fs::metadata(entry.path()).map_or(0, |meta| meta.len())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixtures_are_listed_with_what_they_are() {
        let fixtures = [env!("CARGO_MANIFEST_DIR"), "..", "..", "models", "tests", "fixtures"];
        let fixtures: PathBuf = fixtures.iter().collect();
        let broken = tempfile::tempdir().unwrap();
        fs::write(broken.path().join("a.gguf"), "GGUF").unwrap();
        fs::write(broken.path().join("mmproj-a.gguf"), "GGUF").unwrap();
        let told = |path: &Path| {
            let line = |path: PathBuf| {
                let Listed { family, dtype, context, reason, bytes, .. } = describe(String::new(), path);
                assert!(bytes > 0);
                let reason = reason.map(|reason| reason.replace(broken.path().to_str().unwrap(), "FOLDER"));
                format!("{family:?} {dtype:?} {context:?} {reason:?}")
            };
            candidates(path).into_iter().map(line).collect::<Vec<_>>().join("\n")
        };
        let said = [
            told(&fixtures.join("tiny-llama")),
            told(&fixtures.join("tiny-qwen3-moe-gguf")),
            told(&fixtures.join("tiny-gpt-oss-mxfp4")),
            told(&fixtures.join("tiny-phi3")),
            told(broken.path()),
        ];
        insta::assert_snapshot!(said.join("\n"), @r#"
        Some("llama") Some("F32") Some(4096) None
        Some("qwen3_moe") Some("F32") Some(4096) None
        Some("gpt_oss") Some("MXFP4") Some(4096) None
        Some("phi3") Some("F32") Some(4096) None
        None None None Some("FOLDER/a.gguf is not a readable GGUF file: the file ends inside the version: 4 bytes at offset 4, but only 0 are left")
        "#);
    }
}
