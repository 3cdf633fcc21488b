//! Models of the Hugging Face hub: `hf:USER/REPO[@REVISION][:FILE]`, fetched into the cache that other tools share.
//!
//! The crate `hf-hub` has an interface for synchronous programs with an HTTP client and TLS of its own, in addition to those
//! of remote tiers, and neither checks hashes nor reads `HF_HUB_OFFLINE`; so here is the small part of the hub's API that
//! fetching takes.

mod cache;
mod client;
mod error;
mod files;
mod reference;

use std::env;
use std::path::{Path, PathBuf};
use std::thread;

pub use cache::{Cached, HubCache};
use client::Client;
pub use client::choose_cryptography;
pub use error::HubError;
pub use reference::Reference;

/// Address of the hub.
const ENDPOINT: &str = "https://huggingface.co";

/// Settings of the environment, by the variables of the hub's own tools.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address of the hub: `HF_ENDPOINT`.
    pub endpoint: String,
    /// Folder of the cache: `HF_HUB_CACHE`, or `hub` in `HF_HOME`, which is by default `~/.cache/huggingface`.
    pub cache: PathBuf,
    /// Access token: `HF_TOKEN`, or the file that logging in with the hub's own tools leaves.
    pub token: Option<String>,
    /// Whether the network must not be used: `HF_HUB_OFFLINE`.
    pub offline: bool,
}

impl Settings {
    /// Reads the environment.
    ///
    /// # Errors
    /// If the user has no folder for caches.
    pub fn of_this_user() -> Result<Self, HubError> {
        let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let home = match set("HF_HOME") {
            Some(home) => PathBuf::from(home),
            None => match set("XDG_CACHE_HOME") {
                Some(cache) => PathBuf::from(cache).join("huggingface"),
                None => {
                    let home = env::home_dir().ok_or(HubError::NoHome)?;
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

/// Progress of a fetch.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// More of a file has come.
    Bytes {
        /// Path of the file in the repository.
        file: &'a str,
        /// Bytes that are in the cache.
        bytes: u64,
        /// Size of the file in bytes.
        total: u64,
    },
    /// The hub does not answer, and the cache has the model.
    FromCache {
        /// Why the hub does not answer.
        error: &'a HubError,
        /// The checkpoint.
        path: &'a Path,
    },
}

/// Returns the path of the checkpoint that a reference names. What the cache lacks is fetched, and checked against the hashes
/// that the hub announces. Blocks; async code may call it too.
///
/// # Errors
/// [`HubError`] if the hub has no such model, refuses it, cannot be reached, or sends something else than it announced.
pub fn fetch(
    reference: &Reference,
    settings: &Settings,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Result<PathBuf, HubError> {
    let cache = HubCache::new(&settings.cache, &reference.repo);
    let from_cache = || {
        let snapshot = cache.snapshot(&reference.revision)?;
        let wanted = files::choose(&HubCache::files(&snapshot), reference).ok()?;
        wanted.is_complete(&snapshot).then(|| wanted.checkpoint(&snapshot))
    };
    let (name, folder) = (|| reference.to_string(), || settings.cache.clone());
    if settings.offline {
        return from_cache().ok_or_else(|| HubError::Offline { reference: name(), cache: folder() });
    }
    // A machine that has lost its network still has what it fetched before.
    match blocking(online(reference, settings, &cache, progress))? {
        Err(error @ HubError::Unreachable { .. }) => match from_cache() {
            Some(path) => {
                progress(Progress::FromCache { error: &error, path: &path });
                Ok(path)
            }
            None => Err(HubError::NotCached { reference: name(), cache: folder(), source: Box::new(error) }),
        },
        done => done,
    }
}

/// Runs a future to its end, on a thread of its own, because a thread of an async runtime must not block in another one.
fn blocking<T: Send>(future: impl Future<Output = T> + Send) -> Result<T, HubError> {
    let system = |source| HubError::System { source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system)?;
    thread::scope(|scope| {
        let running = thread::Builder::new().name("pagoda-hub".into());
        let running = running.spawn_scoped(scope, || runtime.block_on(future)).map_err(system)?;
        Ok(running.join().expect("fetching does not panic"))
    })
}

async fn online(
    reference: &Reference,
    settings: &Settings,
    cache: &HubCache,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Result<PathBuf, HubError> {
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
