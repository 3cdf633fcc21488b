//! Tier specs: the text form of a stack of tiers,
//! `host=2GiB,disk=PATH:20GiB,remote=redis://127.0.0.1:6379/0`.

mod remote;

pub use remote::RemoteSpec;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::failure::FailurePolicy;
use derive_setters::Setters;
use remote::SCHEMES;

/// Tiers to build, fastest first.
///
/// | key | value |
/// |---|---|
/// | `host` | bytes |
/// | `disk` | `PATH:BYTES` |
/// | `remote` | `redis://HOST:PORT/DB`, `rediss://HOST:PORT/DB`, `file:///DIRECTORY` or `s3://BUCKET/PREFIX` |
/// | `mac` | `file:PATH` or `env:NAME`, where the key is that authenticates remote blocks: 64 hexadecimal digits |
/// | `tenant` | a name; blocks on disk and remote are served to engines of the same tenant only |
/// | `compress` | `none`, `fp8` or `int8`, for the blocks of disk and remote |
/// | `failure` | `recompute` or `fail`: what happens to a request when blocks that it relies on cannot be read |
///
/// Sizes take the suffixes of [`parse_bytes`]. Keys come in any order, each at most once. A path may hold colons (the last
/// one starts the size) but no comma.
///
/// ```
/// use prefetch::spec::TierSpec;
///
/// let spec: TierSpec = "host=2GiB,disk=/var/cache/kv:20GiB,tenant=ann".parse()?;
/// assert_eq!(spec.host_bytes, Some(2 << 30));
/// let error = "host=2GiB,hots=3GiB".parse::<TierSpec>().unwrap_err();
/// assert!(error.to_string().contains("hots"), "{error}");
/// # Ok::<(), prefetch::spec::SpecError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug, Setters)]
#[non_exhaustive]
pub struct TierSpec {
    /// Capacity of the host tier.
    #[setters(into)]
    pub host_bytes: Option<u64>,
    /// Directory and capacity of the disk tier.
    #[setters(into)]
    pub disk: Option<DiskSpec>,
    /// The remote tier.
    #[setters(into)]
    pub remote: Option<RemoteSpec>,
    /// Source of the key of the MACs of remote blocks.
    #[setters(into)]
    pub mac: Option<KeySource>,
    /// Owner of the blocks on disk and remote.
    #[setters(into)]
    pub tenant: Option<String>,
    /// Encoding of blocks below the host tier.
    pub compression: Compression,
    /// Response to blocks that cannot be read.
    pub failure: FailurePolicy,
}

impl TierSpec {
    /// No tiers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

/// Source of a key. The key itself is never part of a spec, which is printed and seen in process lists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeySource {
    /// A file.
    File(PathBuf),
    /// A variable of the environment.
    Env(String),
}

/// A disk tier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskSpec {
    /// The directory.
    pub path: PathBuf,
    /// Capacity in bytes.
    pub capacity_bytes: u64,
}

/// Encoding of blocks below the host tier.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Compression {
    /// Blocks are stored without compression.
    #[default]
    None,
    /// fp8 e4m3.
    Fp8,
    /// int8 with a scale for each token and head.
    Int8,
}

const KEYS: &[&str] = &["host", "disk", "remote", "mac", "tenant", "compress", "failure"];
const COMPRESSIONS: &[(&str, Compression)] =
    &[("none", Compression::None), ("fp8", Compression::Fp8), ("int8", Compression::Int8)];
const FAILURES: &[(&str, FailurePolicy)] =
    &[("recompute", FailurePolicy::Recompute), ("fail", FailurePolicy::Fail)];
/// Suffixes of sizes with their numbers of bytes, largest first.
const UNITS: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("KB", 1_000),
    ("B", 1),
];

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
    /// The URL of a server contains a user or a password. The error does not repeat the URL.
    #[error(
        "the URL of a Redis server holds a user or a password; set REDIS_USERNAME and REDIS_PASSWORD, or \
         REDIS_PASSWORD_FILE, instead"
    )]
    Credentials,
    /// A key is neither in a file nor in the environment. The value may be the key itself, so the error does not repeat
    /// it.
    #[error("mac is not of the form file:PATH or env:NAME")]
    KeySource,
    /// A tenant without a name.
    #[error("tenant has no name")]
    Tenant,
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
        /// Part that is missing or wrong.
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
        if remote::holds_credentials(text) {
            return Err(SpecError::Credentials);
        }
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
                "mac" => spec.mac = Some(value.parse()?),
                "tenant" if value.is_empty() => return Err(SpecError::Tenant),
                "tenant" => spec.tenant = Some(value.to_owned()),
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

/// Reads a number of bytes, at least 1: a whole number with a suffix `B`, `KB`, `MB`, `GB`, `TB` (powers of 1,000) or
/// `KiB`, `MiB`, `GiB`, `TiB` (of 1,024), in any case, or without a suffix, in bytes. `None` for any other text, and
/// for 2^64 and more.
#[must_use]
pub fn parse_bytes(text: &str) -> Option<u64> {
    let of_unit = |(name, unit): &(&str, u64)| {
        let (digits, suffix) = text.split_at_checked(text.len().checked_sub(name.len())?)?;
        suffix.eq_ignore_ascii_case(name).then_some((digits.trim_end(), *unit))
    };
    let (digits, unit) = UNITS.iter().find_map(of_unit).unwrap_or((text, 1));
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse::<u64>().ok()?.checked_mul(unit)).flatten().filter(|bytes| *bytes > 0)
}

fn size(key: &'static str, text: &str) -> Result<u64, SpecError> {
    parse_bytes(text).ok_or_else(|| SpecError::Size { key, size: text.into() })
}

fn disk(value: &str) -> Result<DiskSpec, SpecError> {
    match value.rsplit_once(':') {
        Some((path, bytes)) if !path.is_empty() => {
            Ok(DiskSpec { path: path.into(), capacity_bytes: size("disk", bytes)? })
        }
        _ => Err(SpecError::Disk { value: value.into() }),
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
        if let Some(key) = &self.mac {
            items.push(format!("mac={key}"));
        }
        if let Some(tenant) = &self.tenant {
            items.push(format!("tenant={tenant}"));
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

impl FromStr for KeySource {
    type Err = SpecError;

    fn from_str(value: &str) -> Result<Self, SpecError> {
        match value.split_once(':') {
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            Some(("env", name)) if !name.is_empty() => Ok(Self::Env(name.to_owned())),
            _ => Err(SpecError::KeySource),
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Env(name) => write!(f, "env:{name}"),
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
