//! The part of a tier spec that names shared storage.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::SpecError;

pub(super) const SCHEMES: &[&str] = &["redis://", "rediss://", "file://", "s3://"];

/// Storage that several engines share.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RemoteSpec {
    /// A Redis server. User and password come from the environment.
    Redis {
        /// `redis://HOST:PORT`, or `rediss://HOST:PORT` for TLS.
        endpoint: String,
        /// Database number.
        database: u32,
    },
    /// A directory that several engines mount.
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// A bucket; endpoint, region and credentials come from the environment, as for other S3 clients.
    S3 {
        /// The bucket.
        bucket: String,
        /// Prefix of every object, without slashes at the ends; may be empty.
        prefix: String,
    },
}

/// Whether a spec may contain a user or a password: an `@` in the URL of a Redis server. A comma in a password ends
/// the item, so the rest of the spec is searched too, up to the next item that has a path.
pub(super) fn holds_credentials(spec: &str) -> bool {
    ["redis:", "rediss:"].iter().any(|scheme| {
        spec.match_indices(scheme).any(|(at, _)| {
            let rest = &spec[at..];
            let end = rest.find(",disk=").unwrap_or(rest.len());
            rest[..end].contains('@')
        })
    })
}

impl FromStr for RemoteSpec {
    type Err = SpecError;

    fn from_str(value: &str) -> Result<Self, SpecError> {
        if holds_credentials(value) {
            return Err(SpecError::Credentials);
        }
        let wrong = |part| SpecError::Remote { value: value.into(), part };
        for scheme in ["redis://", "rediss://"] {
            if let Some(rest) = value.strip_prefix(scheme) {
                return redis(scheme, rest).map_err(wrong);
            }
        }
        if let Some(path) = value.strip_prefix("file://") {
            return if path.is_empty() {
                Err(wrong("path"))
            } else {
                Ok(Self::Directory { path: path.into() })
            };
        }
        if let Some(rest) = value.strip_prefix("s3://") {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.is_empty() {
                return Err(wrong("bucket"));
            }
            return Ok(Self::S3 { bucket: bucket.into(), prefix: prefix.trim_matches('/').into() });
        }
        Err(SpecError::Scheme { value: value.into() })
    }
}

/// Reads `HOST:PORT/DB`, or says which part is wrong.
fn redis(scheme: &str, rest: &str) -> Result<RemoteSpec, &'static str> {
    let (address, database) = rest.split_once('/').unwrap_or((rest, ""));
    let database = if database.is_empty() { "0" } else { database };
    let database = database.parse().map_err(|_| "database number")?;
    let (name, port) = address.rsplit_once(':').unwrap_or((address, "6379"));
    if name.is_empty() {
        return Err("host");
    }
    // The last colon of an IPv6 address in brackets begins no port.
    if !port.ends_with(']') && port.parse::<u16>().is_err() {
        return Err("port");
    }
    Ok(RemoteSpec::Redis { endpoint: format!("{scheme}{address}"), database })
}

impl fmt::Display for RemoteSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redis { endpoint, database } => write!(f, "{endpoint}/{database}"),
            Self::Directory { path } => write!(f, "file://{}", path.display()),
            Self::S3 { bucket, prefix } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            Self::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
        }
    }
}
