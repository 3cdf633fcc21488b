//! Why a model of the hub cannot be had.

use std::io;
use std::path::{Path, PathBuf};

/// Why a model of the hub cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// A text that names no model of the hub.
    #[error("{text:?} {reason}")]
    Reference {
        /// The text.
        text: String,
        /// The fault.
        reason: String,
    },
    /// The user has no folder for caches.
    #[error("this user has no home; set HF_HOME to a folder")]
    NoHome,
    /// The network may not be used, and the cache lacks the model.
    #[error("{reference} is not in {}, and HF_HUB_OFFLINE forbids to fetch it", cache.display())]
    Offline {
        /// The model.
        reference: String,
        /// The cache folder.
        cache: PathBuf,
    },
    /// The hub, or the network, does not answer.
    #[error("{endpoint} does not answer")]
    Unreachable {
        /// Address of the hub.
        endpoint: String,
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The hub does not answer, and the cache lacks the model.
    #[error(
        "{reference} cannot be fetched: without a network, open a model file by its path, or copy the repository's cache \
         folder to {}", cache.display()
    )]
    NotCached {
        /// The model.
        reference: String,
        /// The cache folder.
        cache: PathBuf,
        /// Why the hub did not answer.
        source: Box<HubError>,
    },
    /// The hub refuses, or knows no such repository, revision or file.
    #[error("{reference}: {reason} ({url}: {status})")]
    Refused {
        /// The model.
        reference: String,
        /// Meaning of the refusal.
        reason: &'static str,
        /// The address that was requested.
        url: String,
        /// Status of the answer, such as `404 Not Found`.
        status: String,
    },
    /// An answer differs from what the hub announced.
    #[error("{url}: {reason}")]
    Answer {
        /// The address that was requested.
        url: String,
        /// The fault.
        reason: String,
    },
    /// The repository has no model, or several.
    #[error("{reference}: {reason}")]
    Files {
        /// The model.
        reference: String,
        /// File that the repository lacks, or the names to choose from.
        reason: String,
    },
    /// A file of the cache cannot be read or written.
    #[error("{}: cannot be {action}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The act that failed: `written`, `made`, ..
        action: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The system refuses a thread or the sockets that fetching takes.
    #[error("models cannot be fetched")]
    System {
        /// The reason.
        source: io::Error,
    },
}

impl HubError {
    /// An error of a file of the cache.
    pub(super) fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, action, source }
    }
}
