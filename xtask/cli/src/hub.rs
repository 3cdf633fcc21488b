//! Models of the Hugging Face hub: `hf:USER/REPO[@REVISION][:FILE]`, fetched into the cache that other tools share.
//!
//! The crate `hf-hub` has an interface for synchronous programs with an HTTP client and TLS of its own, in addition to those
//! of this program, and neither checks hashes nor reads `HF_HUB_OFFLINE`; so here is the small part of the hub's API that
//! fetching takes.

mod cache;
mod client;
mod files;
mod reference;

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

pub use cache::{Cached, HubCache};
pub use client::Client;
pub(crate) use client::choose_cryptography;
pub use reference::Reference;

/// The hub itself.
const ENDPOINT: &str = "https://huggingface.co";

/// Settings of the environment, by the variables of the hub's own tools.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address of the hub: `HF_ENDPOINT`.
    pub endpoint: String,
    /// Folder of the cache: `HF_HUB_CACHE`, or `hub` in `HF_HOME`, which is by default `~/.cache/huggingface`.
    pub cache: PathBuf,
    /// `HF_TOKEN`, or the file that logging in with the hub's own tools leaves.
    pub token: Option<String>,
    /// Whether nothing is fetched: `HF_HUB_OFFLINE`.
    pub offline: bool,
}

impl Settings {
    /// Reads the environment.
    ///
    /// # Errors
    /// If the user has no folder for caches.
    pub fn of_this_user() -> Result<Self> {
        let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let home = match set("HF_HOME") {
            Some(home) => PathBuf::from(home),
            None => match set("XDG_CACHE_HOME") {
                Some(cache) => PathBuf::from(cache).join("huggingface"),
                None => {
                    let home = env::home_dir().context("this user has no home; set HF_HOME to a folder")?;
                    home.join(".cache").join("huggingface")
                }
            },
        };
        let kept = || {
            let path = set("HF_TOKEN_PATH").map_or_else(|| home.join("token"), PathBuf::from);
            std::fs::read_to_string(path).ok()
        };
        let token = env::var("HF_TOKEN").ok().or_else(kept).map(|token| token.trim().to_owned());
        let yes = |value: String| ["1", "true", "yes", "on"].contains(&value.to_lowercase().as_str());
        Ok(Self {
            endpoint: env::var("HF_ENDPOINT")
                .unwrap_or_else(|_| ENDPOINT.to_owned())
                .trim_end_matches('/')
                .to_owned(),
            cache: set("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from),
            token: token.filter(|token| !token.is_empty()),
            offline: env::var("HF_HUB_OFFLINE").is_ok_and(yes),
        })
    }
}

/// Path of the checkpoint that a reference names. What the cache lacks is fetched, with a bar on stderr.
///
/// # Errors
/// If the hub has no such model, refuses it, cannot be reached, or sends something else than it announced.
pub fn fetch(reference: &Reference) -> Result<PathBuf> {
    let settings = Settings::of_this_user()?;
    let bar = ProgressBar::no_length().with_style(
        ProgressStyle::with_template("{msg} [{bar:40}] {bytes} of {total_bytes}, {eta} left")?
            .progress_chars("=> "),
    );
    let path = fetch_with(reference, &settings, &mut |progress: Progress<'_>| {
        if bar.message() != progress.file {
            bar.set_message(progress.file.to_owned());
            bar.set_length(progress.total);
            bar.reset_eta();
        }
        bar.set_position(progress.bytes);
    });
    bar.finish_and_clear();
    path
}

/// Bytes of a file that are there.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Path of the file in the repository.
    pub file: &'a str,
    /// Bytes that are in the cache.
    pub bytes: u64,
    /// Size of the file in bytes.
    pub total: u64,
}

/// Fetches as [`fetch`] does, with `settings` in place of the environment's and a view of the progress of one's own.
///
/// # Errors
/// Those of [`fetch`].
pub fn fetch_with(
    reference: &Reference,
    settings: &Settings,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf> {
    let cache = HubCache::new(&settings.cache, &reference.repo);
    let from_cache = || {
        let snapshot = cache.snapshot(&reference.revision)?;
        let wanted = files::choose(&HubCache::files(&snapshot), reference).ok()?;
        wanted.is_complete(&snapshot).then(|| wanted.checkpoint(&snapshot))
    };
    if settings.offline {
        return from_cache().with_context(|| {
            format!(
                "{reference} is not in {}, and HF_HUB_OFFLINE forbids to fetch it",
                settings.cache.display()
            )
        });
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match runtime.block_on(online(reference, settings, &cache, progress)) {
        // A machine that has lost its network still has what it fetched before.
        Err(error) if client::is_unreachable(&error) => match from_cache() {
            Some(path) => {
                eprintln!("{}; taking {}", pagoda::error_chain::joined(error.as_ref()), path.display());
                Ok(path)
            }
            None => Err(error.context(format!(
                "{reference} cannot be fetched: without a network, name a model file with --model PATH, or copy the \
                 repository's cache folder to {}",
                settings.cache.display()
            ))),
        },
        done => done,
    }
}

async fn online(
    reference: &Reference,
    settings: &Settings,
    cache: &HubCache,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf> {
    let client = Client::new(settings)?;
    let repository = client.repository(reference).await?;
    let wanted = files::choose(&repository.files, reference)?;
    let snapshot = cache.begin(&reference.revision, &repository.commit)?;
    for file in &wanted.files {
        if snapshot.join(file).is_file() {
            continue;
        }
        let remote = client.describe(reference, &repository.commit, file).await?;
        let _lock = cache.lock(&remote.etag)?;
        if cache.blob(&remote.etag).is_none() {
            client.download(&remote, &cache.unfinished(&remote.etag), progress).await?;
            cache.keep(&remote.etag)?;
        }
        cache.link(&snapshot, file, &remote.etag)?;
    }
    cache.end(&reference.revision, &repository.commit)?;
    Ok(wanted.checkpoint(&snapshot))
}
