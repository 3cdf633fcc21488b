//! Tier specs: the text form of a stack of tiers,
//! `host=2GiB,disk=PATH:20GiB,remote=redis://127.0.0.1:6379/0`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::failure::FailurePolicy;

/// Tiers to build, fastest first.
///
/// | key | value |
/// |---|---|
/// | `host` | bytes |
/// | `disk` | `PATH:BYTES` |
/// | `remote` | `redis://HOST:PORT/DB`, `file:///DIRECTORY` or `s3://BUCKET/PREFIX` |
/// | `compress` | `none`, `fp8` or `int8`, for the blocks of disk and remote |
/// | `failure` | `recompute` or `fail`: what happens to a request when blocks that it relies on cannot be read |
///
/// Sizes take the suffixes `B`, `KiB`, `MiB`, `GiB` and `TiB`; without one they are bytes. Keys come in any
/// order, each at most once. A path may hold colons (the last one starts the size) but no comma.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TierSpec {
    /// Capacity of the host tier.
    pub host_bytes: Option<u64>,
    /// Directory and capacity of the disk tier.
    pub disk: Option<DiskSpec>,
    /// The remote tier.
    pub remote: Option<RemoteSpec>,
    /// How blocks are kept below the host tier.
    pub compression: Compression,
    /// What happens to a request whose blocks cannot be read.
    pub failure: FailurePolicy,
}

/// A disk tier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskSpec {
    /// The directory.
    pub path: PathBuf,
    /// Its capacity.
    pub capacity_bytes: u64,
}

/// A remote tier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RemoteSpec {
    /// A Redis server.
    Redis {
        /// `redis://HOST:PORT`.
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

/// How blocks are kept below the host tier.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Compression {
    /// As stored.
    #[default]
    None,
    /// fp8 e4m3.
    Fp8,
    /// int8 with a scale for each token and head.
    Int8,
}

const KEYS: &[&str] = &["host", "disk", "remote", "compress", "failure"];
const COMPRESSIONS: &[(&str, Compression)] =
    &[("none", Compression::None), ("fp8", Compression::Fp8), ("int8", Compression::Int8)];
const FAILURES: &[(&str, FailurePolicy)] =
    &[("recompute", FailurePolicy::Recompute), ("fail", FailurePolicy::Fail)];
const UNITS: &[(&str, u64)] =
    &[("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
const SCHEMES: &[&str] = &["redis://", "file://", "s3://"];

/// Why a spec could not be parsed.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SpecError {
    /// An item without `=`.
    #[error("tier `{item}` is not of the form key=value; keys are {}", KEYS.join(", "))]
    NoValue {
        /// The item.
        item: Box<str>,
    },
    /// An unknown key.
    #[error("unknown tier key `{key}`; keys are {}", KEYS.join(", "))]
    UnknownKey {
        /// The key.
        key: Box<str>,
    },
    /// A key that appears twice.
    #[error("tier key `{key}` is given twice")]
    Repeated {
        /// The key.
        key: Box<str>,
    },
    /// An invalid size.
    #[error(
        "size `{size}` of {key} is not a positive number of bytes with one of the units {}",
        unit_names()
    )]
    Size {
        /// The key.
        key: &'static str,
        /// The size.
        size: Box<str>,
    },
    /// A disk value without path or size.
    #[error("disk `{value}` is not of the form PATH:SIZE")]
    Disk {
        /// The value.
        value: Box<str>,
    },
    /// A remote value that names no service.
    #[error("remote `{value}` does not start with one of {}", SCHEMES.join(", "))]
    Scheme {
        /// The value.
        value: Box<str>,
    },
    /// A remote value with an invalid part.
    #[error("remote `{value}` has no valid {part}")]
    Remote {
        /// The value.
        value: Box<str>,
        /// What is missing or wrong.
        part: &'static str,
    },
    /// An unknown compression.
    #[error("unknown compression `{value}`; known are {}", names(COMPRESSIONS))]
    Compression {
        /// The value.
        value: Box<str>,
    },
    /// An unknown failure policy.
    #[error("unknown failure policy `{value}`; known are {}", names(FAILURES))]
    Failure {
        /// The value.
        value: Box<str>,
    },
}

fn unit_names() -> String {
    UNITS.iter().rev().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

fn names<T>(known: &[(&str, T)]) -> String {
    known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

fn named<T: Copy>(known: &[(&str, T)], wanted: &str) -> Option<T> {
    known.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value)
}

fn name_of<T: PartialEq>(known: &[(&'static str, T)], value: &T) -> &'static str {
    known.iter().find(|(_, other)| other == value).expect("every value has a name").0
}

impl FromStr for TierSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut spec = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (key, value) =
                item.split_once('=').ok_or_else(|| SpecError::NoValue { item: item.into() })?;
            if seen.contains(&key) {
                return Err(SpecError::Repeated { key: key.into() });
            }
            match key {
                "host" => spec.host_bytes = Some(size("host", value)?),
                "disk" => spec.disk = Some(disk(value)?),
                "remote" => spec.remote = Some(value.parse()?),
                "compress" => {
                    let known = named(COMPRESSIONS, value);
                    spec.compression = known.ok_or_else(|| SpecError::Compression { value: value.into() })?;
                }
                "failure" => {
                    let known = named(FAILURES, value);
                    spec.failure = known.ok_or_else(|| SpecError::Failure { value: value.into() })?;
                }
                _ => return Err(SpecError::UnknownKey { key: key.into() }),
            }
            seen.push(key);
        }
        Ok(spec)
    }
}

fn size(key: &'static str, text: &str) -> Result<u64, SpecError> {
    let (digits, unit) =
        UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit))).unwrap_or((text, 1));
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let bytes = is_number.then(|| digits.parse::<u64>().ok()?.checked_mul(unit)).flatten();
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| SpecError::Size { key, size: text.into() })
}

fn disk(value: &str) -> Result<DiskSpec, SpecError> {
    match value.rsplit_once(':') {
        Some((path, bytes)) if !path.is_empty() => {
            Ok(DiskSpec { path: path.into(), capacity_bytes: size("disk", bytes)? })
        }
        _ => Err(SpecError::Disk { value: value.into() }),
    }
}

impl FromStr for RemoteSpec {
    type Err = SpecError;

    fn from_str(value: &str) -> Result<Self, SpecError> {
        let wrong = |part| SpecError::Remote { value: value.into(), part };
        if let Some(rest) = value.strip_prefix("redis://") {
            let (address, database) = rest.split_once('/').unwrap_or((rest, ""));
            let database = if database.is_empty() { "0" } else { database };
            let database = database.parse().map_err(|_| wrong("database number"))?;
            let host = address.rsplit_once('@').map_or(address, |(_, host)| host);
            let (name, port) = host.rsplit_once(':').unwrap_or((host, "6379"));
            if name.is_empty() {
                return Err(wrong("host"));
            }
            // The last colon of an IPv6 address in brackets begins no port.
            if !port.ends_with(']') && port.parse::<u16>().is_err() {
                return Err(wrong("port"));
            }
            return Ok(Self::Redis { endpoint: format!("redis://{address}"), database });
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

impl fmt::Display for TierSpec {
    /// The text form of this spec, with sizes in the largest unit that divides them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut items = Vec::new();
        if let Some(bytes) = self.host_bytes {
            items.push(format!("host={}", Size(bytes)));
        }
        if let Some(disk) = &self.disk {
            items.push(format!("disk={}:{}", disk.path.display(), Size(disk.capacity_bytes)));
        }
        if let Some(remote) = &self.remote {
            items.push(format!("remote={remote}"));
        }
        if self.compression != Compression::None {
            items.push(format!("compress={}", name_of(COMPRESSIONS, &self.compression)));
        }
        if self.failure != FailurePolicy::default() {
            items.push(format!("failure={}", name_of(FAILURES, &self.failure)));
        }
        f.write_str(&items.join(","))
    }
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

struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, unit) =
            UNITS.iter().find(|(_, unit)| self.0.is_multiple_of(*unit)).expect("1 divides all");
        write!(f, "{}{name}", self.0 / unit)
    }
}
