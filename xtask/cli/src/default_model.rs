//! Models with a name, one of which is used without `--model`: fetched on first use, with a progress bar on stderr.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use indicatif::ProgressBar;
use pagoda::fetch::{ModelCache, ModelPackage, Progress, SMOLLM2_135M_INSTRUCT};
use pagoda::hub::{self, Reference, Settings};
use pagoda::{HubError, error_chain};

use crate::progress::Template;
use crate::setup::{self, Need};

/// The model that is used without `--model`.
pub const PACKAGE: ModelPackage = SMOLLM2_135M_INSTRUCT;

/// Path of the cached model file, if it exists.
///
/// # Errors
///
/// When the user has no cache folder.
pub fn cached() -> Result<Option<PathBuf>> {
    Ok(ModelCache::user()?.cached(&PACKAGE))
}

/// Requirements for running the model that `--model` names, or the default model without `--model`; with `random`
/// weights, no model is fetched. They include pip if a Python package contains the model and the model is not cached.
///
/// # Errors
/// If the user has no cache folder.
pub fn needs(model: Option<&Path>, random: bool) -> Result<&'static [Need]> {
    let package = match model {
        None => (!random).then_some(&PACKAGE),
        Some(path) if path.exists() => None,
        Some(path) => path
            .to_str()
            .and_then(|name| if name == "default" { Some(&PACKAGE) } else { ModelPackage::named(name) }),
    };
    let is_missing = match package {
        Some(package) => ModelCache::user()?.cached(package).is_none(),
        None => false,
    };
    Ok(if is_missing { &[Need::Gpu, Need::DefaultModel] } else { &[Need::Gpu] })
}

/// Path of the default model's file. If it is not cached yet, fetches it.
///
/// # Errors
///
/// If Python with pip is missing, or the model cannot be fetched.
pub fn path() -> Result<PathBuf> {
    fetched(&PACKAGE)
}

/// Path of the checkpoint that `--model` asks for: a path or, if no such file exists, `default`, the name of a model that is
/// fetched like the default one, or one of the Hugging Face hub.
///
/// # Errors
///
/// Those of [`path`] and [`hub::fetch`].
pub fn resolve(model: Option<&Path>) -> Result<PathBuf> {
    let Some(model) = model else { return path() };
    match model.to_str() {
        Some(name) if !model.exists() => match ModelPackage::named(name) {
            Some(package) => fetched(package),
            None if name == "default" => path(),
            None if Reference::is_meant(name) => fetched_from_hub(&name.parse()?),
            None => bail!("model {name}: {}", missing(name)),
        },
        _ => Ok(model.to_owned()),
    }
}

/// Says what is wrong with a value of `--model` that is neither a path nor a name, and suggests similar names.
fn missing(name: &str) -> String {
    let address = name.split_once("://").map(|(_, rest)| rest.split_once('/').unwrap_or_default().1);
    let parts: Vec<&str> = address.unwrap_or(name).split('/').collect();
    // A path would begin or end otherwise, or go on.
    let is_repo = address.is_some() || parts.len() == 2 && !name.ends_with(".gguf");
    let reference = format!("hf:{}", parts[..parts.len().min(2)].join("/"));
    let meant = (is_repo && reference.parse::<Reference>().is_ok()).then_some(reference);
    match (address, meant) {
        (Some(_), meant) => {
            let meant = meant.as_deref().unwrap_or("hf:USER/REPO");
            format!("an address is not fetched; a model of the Hugging Face hub is {meant}")
        }
        (None, Some(meant)) => format!("no such file or folder; a model of the Hugging Face hub is {meant}"),
        (None, None) => {
            let names = ModelPackage::ALL.iter().map(|package| package.name).collect::<Vec<_>>().join(", ");
            format!("no such file or folder; names are default, {names} and hf:USER/REPO")
        }
    }
}

fn fetched(package: &ModelPackage) -> Result<PathBuf> {
    let cache = ModelCache::user()?;
    if let Some(path) = cache.cached(package) {
        return Ok(path);
    }
    // The GPU is required here too, although only the next step needs it, so that a user who has to install
    // something gets one command for everything.
    let python = setup::ensure(&[Need::Gpu, Need::DefaultModel])?.python;
    let cache = python.into_iter().fold(cache, |cache, python| cache.python(python.command));
    eprintln!("fetching {} once, to {}", package.name, cache.path(package).display());
    if let Some(terms) = package.terms {
        eprintln!("{terms}");
    }
    let bar = Template::BYTES.bar(None);
    let path = cache.fetch(package, |progress| show(&bar, progress))?;
    bar.finish_and_clear();
    Ok(path)
}

/// Path of the checkpoint that a reference names. What the hub's cache lacks is fetched, with a bar on stderr.
fn fetched_from_hub(reference: &Reference) -> Result<PathBuf> {
    let bar = Template::FILE.bar(None);
    let path = hub::fetch(reference, &Settings::of_this_user()?, &mut |progress| match progress {
        hub::Progress::Bytes { file, bytes, total } => {
            if bar.message() != file {
                bar.set_message(file.to_owned());
                bar.set_length(total);
                bar.reset_eta();
            }
            bar.set_position(bytes);
        }
        hub::Progress::FromCache { error, path } => {
            eprintln!("{}; taking {}", error_chain::joined(error), path.display());
        }
        _ => {}
    });
    bar.finish_and_clear();
    path.map_err(|error| match error {
        HubError::NotCached { cache, source, .. } => anyhow::Error::from(*source).context(format!(
            "{reference} cannot be fetched: without a network, name a model file with --model PATH, or copy the repository's \
             cache folder to {}",
            cache.display()
        )),
        other => other.into(),
    })
}

fn show(bar: &ProgressBar, progress: Progress) {
    let (stage, bytes, total) = match progress {
        Progress::Downloading { bytes, total } => ("downloading", bytes, total),
        Progress::Unpacking { bytes, total } => ("unpacking", bytes, total),
    };
    bar.set_message(stage);
    bar.set_length(total);
    bar.set_position(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_models_where_no_file_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gemma-3-270m");
        std::fs::write(&path, "").unwrap();
        assert_eq!(resolve(Some(&path)).unwrap(), path);
        let gemma = ModelPackage::named("gemma-3-270m").unwrap();
        assert!(gemma.terms.is_some_and(|terms| terms.contains("Gemma Terms of Use")));
        assert_ne!(gemma, &PACKAGE);
    }

    #[test]
    fn what_is_no_model_says_what_may_have_been_meant() {
        let names = [
            "no-such-model",
            "models/a.gguf",
            "/srv/models/a",
            "people/tiny",
            "https://huggingface.co/people/tiny/resolve/main/a.gguf",
            "https://example.org",
        ];
        let told = names.map(|name| resolve(Some(Path::new(name))).unwrap_err().to_string());
        insta::assert_snapshot!(told.join("\n"), @"
        model no-such-model: no such file or folder; names are default, smollm2-135m-instruct, gemma-3-270m and hf:USER/REPO
        model models/a.gguf: no such file or folder; names are default, smollm2-135m-instruct, gemma-3-270m and hf:USER/REPO
        model /srv/models/a: no such file or folder; names are default, smollm2-135m-instruct, gemma-3-270m and hf:USER/REPO
        model people/tiny: no such file or folder; a model of the Hugging Face hub is hf:people/tiny
        model https://huggingface.co/people/tiny/resolve/main/a.gguf: an address is not fetched; a model of the Hugging Face hub is hf:people/tiny
        model https://example.org: an address is not fetched; a model of the Hugging Face hub is hf:USER/REPO
        ");
    }

    #[test]
    fn the_bar_follows_both_stages() {
        let bar = ProgressBar::hidden();
        let state = |progress| {
            show(&bar, progress);
            (bar.message(), bar.position(), bar.length())
        };
        let downloading = state(Progress::Downloading { bytes: 3, total: 10 });
        assert_eq!(downloading, ("downloading".to_string(), 3, Some(10)));
        let unpacking = state(Progress::Unpacking { bytes: 1, total: 20 });
        assert_eq!(unpacking, ("unpacking".to_string(), 1, Some(20)));
    }
}
