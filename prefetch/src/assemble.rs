//! Builds the stack of tiers that a spec describes.

use derive_setters::Setters;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use crate::changes::Changes;
use crate::codec::RowLayout;
#[cfg(feature = "compress")]
use crate::codec::{Codec, CodecError, CodedTier};
use crate::policy::PolicyKind;
#[cfg(feature = "compress")]
use crate::spec::Compression;
#[cfg(feature = "compress")]
use crate::spec::RemoteSpec;
use crate::spec::{DiskSpec, KeySource, TierSpec};
use crate::spill::{Spill, SpillShape};
use crate::stack::{StackError, TierStack};
use crate::tier::{BlockLayout, HostTier, Tier, TierError, TierName};

/// Options of a stack that a spec does not name: the layout of blocks, and limits of the tiers.
#[derive(Clone, PartialEq, Eq, Debug, Setters)]
#[non_exhaustive]
pub struct StackConfig {
    /// Size and division of every block above the codec.
    #[setters(skip)]
    pub layout: BlockLayout,
    /// Name of the blocks' contents: model, cache group, element type. Blocks stored under another name are never served.
    #[setters(skip)]
    pub namespace: String,
    /// Position of the rows in a shard, which `compress=int8` needs.
    #[setters(strip_option)]
    pub rows: Option<RowLayout>,
    /// Order of eviction in the host and disk tiers.
    pub policy: PolicyKind,
    /// Number of blocks between two syncs of the disk tier.
    pub blocks_per_sync: u32,
    /// Time limit for one request to a remote service.
    pub remote_timeout: Duration,
    /// Time for which a remote service is not used after a failed request.
    pub remote_retry_after: Duration,
    /// Queue into which the tiers report the blocks that they hold from now on or no longer hold.
    #[setters(strip_option)]
    pub changes: Option<Changes>,
}

impl StackConfig {
    /// Least recently used blocks are evicted, 64 blocks are synced at a time, requests to a service take at most 5 s, and a
    /// failed service is retried after 1 s. There is no row layout.
    #[must_use]
    pub fn new(layout: BlockLayout, namespace: impl Into<String>) -> Self {
        Self {
            layout,
            namespace: namespace.into(),
            rows: None,
            policy: PolicyKind::Lru,
            blocks_per_sync: 64,
            remote_timeout: Duration::from_secs(5),
            remote_retry_after: Duration::from_secs(1),
            changes: None,
        }
    }
}

/// Why the tiers of a spec could not be built.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum AssembleError {
    /// The capacity is smaller than one block.
    #[error("host tier of {capacity_bytes} bytes holds no block of {block_bytes} bytes")]
    TooSmall {
        /// Capacity of the spec.
        capacity_bytes: u64,
        /// Bytes of a block.
        block_bytes: usize,
    },
    /// The tier was not compiled in.
    #[error("the {tier} tier needs the feature `{feature}`, which this build lacks")]
    Feature {
        /// The tier.
        tier: TierName,
        /// The feature.
        feature: &'static str,
    },
    /// The spec compresses to int8, which has a scale for each row, but no row layout says where rows are.
    #[error("compress=int8 needs the row layout of the blocks")]
    NoRowLayout,
    /// The key of the MACs cannot be read from where the spec says.
    #[error("no key in {place}")]
    Key {
        /// Place in which the key was expected.
        place: KeySource,
        /// Reason why the key cannot be used.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The compression does not fit the blocks.
    #[cfg(feature = "compress")]
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A tier did not open.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// The tiers do not form a stack, for example because the spec is empty.
    #[error(transparent)]
    Stack(#[from] StackError),
}

impl TierSpec {
    /// Builds the tiers of the spec, fastest first. The host tier keeps blocks as stored; compression starts
    /// below it.
    ///
    /// A stack holds blocks of one size. An engine with several cache groups builds one stack per group, each
    /// with its own directories and namespace.
    ///
    /// # Errors
    /// [`AssembleError`] names the tier that could not be built.
    pub fn build(&self, config: &StackConfig) -> Result<TierStack, AssembleError> {
        self.build_below(self.host(config)?.map(Arc::new), config)
    }

    /// The host tier of the spec, which several stacks can share; `None` if the spec has none.
    ///
    /// # Errors
    /// [`AssembleError::TooSmall`].
    pub fn host(&self, config: &StackConfig) -> Result<Option<HostTier>, AssembleError> {
        let Some(capacity_bytes) = self.host_bytes else { return Ok(None) };
        let block_bytes = config.layout.block_bytes();
        let blocks = u32::try_from(capacity_bytes / block_bytes as u64).unwrap_or(u32::MAX);
        if blocks == 0 {
            return Err(AssembleError::TooSmall { capacity_bytes, block_bytes });
        }
        Ok(Some(HostTier::new(config.layout, blocks, config.policy, None)))
    }

    /// [Builds](Self::build) the tiers below the host, and puts `host` on top of them. `host` may already be in other
    /// stacks. All its blocks must have the same namespace, which a host tier does not know.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use prefetch::assemble::StackConfig;
    /// use prefetch::kvblock::BlockHash;
    /// use prefetch::spec::TierSpec;
    /// use prefetch::tier::{BlockLayout, TierName};
    ///
    /// let spec: TierSpec = "host=1MiB".parse()?;
    /// let config = StackConfig::new(BlockLayout::new(1, 64).unwrap(), "a model");
    /// let host = spec.host(&config)?.map(Arc::new);
    /// let [one, other] = [spec.build_below(host.clone(), &config)?, spec.build_below(host, &config)?];
    /// let key = BlockHash::from_bytes([1; 32]);
    /// one.store(key, &[7; 64])?;
    /// assert_eq!(other.load(key, &mut [0; 64])?, TierName::HOST);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AssembleError`] names the tier that could not be built, or the host tier if its blocks have another layout.
    pub fn build_below(
        &self,
        host: Option<Arc<HostTier>>,
        config: &StackConfig,
    ) -> Result<TierStack, AssembleError> {
        let mut tiers: Vec<Arc<dyn Tier>> = Vec::new();
        if let Some(host) = host {
            let (tier, found, expected) = (host.name(), host.layout(), config.layout);
            if found != expected {
                return Err(StackError::Layout { tier, found, expected }.into());
            }
            if let Some(changes) = &config.changes {
                host.follow(changes);
            }
            tiers.push(host);
        }
        self.add_lower(config, &mut tiers)?;
        Ok(TierStack::new(tiers)?)
    }

    /// Refuses tiers below the host, which this build has no feature for.
    #[cfg(not(feature = "compress"))]
    fn add_lower(&self, _: &StackConfig, _: &mut Vec<Arc<dyn Tier>>) -> Result<(), AssembleError> {
        let lacks = |tier, feature| Err(AssembleError::Feature { tier, feature });
        match (&self.disk, &self.remote) {
            (Some(_), _) => lacks(TierName::DISK, "disk"),
            (None, Some(_)) => lacks(TierName::REMOTE, "remote"),
            (None, None) => Ok(()),
        }
    }

    /// Adds the tiers below the host.
    #[cfg(feature = "compress")]
    fn add_lower(&self, config: &StackConfig, tiers: &mut Vec<Arc<dyn Tier>>) -> Result<(), AssembleError> {
        let codec = match self.compression {
            Compression::None => Codec::AsStored,
            Compression::Fp8 => Codec::Fp8 { scale: 1.0 },
            Compression::Int8 => Codec::Int8 { rows: config.rows.ok_or(AssembleError::NoRowLayout)? },
        };
        // What lies below the codec is another kind of block, in size and in name.
        let tenant = self.tenant.as_ref().map_or_else(String::new, |tenant| format!(", tenant {tenant:?}"));
        let below = StackConfig {
            layout: codec.encoded_layout(config.layout)?,
            namespace: format!("{}, {codec:?}{tenant}", config.namespace),
            ..config.clone()
        };
        let coded = |tier| CodedTier::new(codec, config.layout, tier);
        if let Some(spec) = &self.disk {
            // Without a host tier, the page cache takes its place.
            let direct = !tiers.is_empty();
            tiers.push(Arc::new(coded(disk(spec, &below, direct)?)?));
        }
        if let Some(spec) = &self.remote {
            tiers.push(Arc::new(coded(remote(spec, self.mac.as_ref(), &below)?)?));
        }
        Ok(())
    }
}

#[cfg(feature = "disk")]
fn disk(spec: &DiskSpec, config: &StackConfig, direct: bool) -> Result<Arc<dyn Tier>, AssembleError> {
    let disk =
        crate::tier::DiskConfig::new(&spec.path, config.layout, &config.namespace, spec.capacity_bytes);
    Ok(Arc::new(crate::tier::DiskTier::open(crate::tier::DiskConfig {
        policy: config.policy,
        blocks_per_sync: config.blocks_per_sync,
        direct,
        changes: config.changes.clone(),
        ..disk
    })?))
}

#[cfg(all(feature = "compress", not(feature = "disk")))]
fn disk(_: &DiskSpec, _: &StackConfig, _: bool) -> Result<Arc<dyn Tier>, AssembleError> {
    Err(AssembleError::Feature { tier: TierName::DISK, feature: "disk" })
}

impl TierSpec {
    /// Scratch space of `shape` in the folder of the disk tier, with up to `staging_bytes` in transfer in each direction;
    /// `None` if the spec has no disk.
    ///
    /// # Errors
    /// [`AssembleError::Tier`] when the folder cannot be used or too little is free, [`AssembleError::Feature`] without the
    /// feature `disk`.
    pub fn spill(&self, shape: SpillShape, staging_bytes: usize) -> Result<Option<Spill>, AssembleError> {
        self.disk.as_ref().map(|spec| scratch(spec, shape, staging_bytes)).transpose()
    }
}

#[cfg(feature = "disk")]
fn scratch(spec: &DiskSpec, shape: SpillShape, staging_bytes: usize) -> Result<Spill, AssembleError> {
    Ok(crate::tier::scratch(&spec.path, shape, staging_bytes)?)
}

#[cfg(not(feature = "disk"))]
fn scratch(_: &DiskSpec, _: SpillShape, _: usize) -> Result<Spill, AssembleError> {
    Err(AssembleError::Feature { tier: TierName::DISK, feature: "disk" })
}

#[cfg(feature = "remote")]
fn remote(
    spec: &RemoteSpec,
    mac: Option<&KeySource>,
    config: &StackConfig,
) -> Result<Arc<dyn Tier>, AssembleError> {
    use crate::tier::{Credentials, RemoteConfig, RemoteTier};
    let tier = TierName::REMOTE;
    let lacks = |feature| Err(AssembleError::Feature { tier, feature });
    let mut credentials = None;
    match spec {
        RemoteSpec::S3 { .. } if cfg!(not(feature = "s3")) => return lacks("s3"),
        RemoteSpec::Redis { endpoint, .. } => {
            if cfg!(not(feature = "tls")) && endpoint.starts_with("rediss:") {
                return lacks("tls");
            }
            credentials = Credentials::from_env(tier)?;
        }
        _ => {}
    }
    let remote = RemoteConfig {
        timeout: config.remote_timeout,
        retry_after: config.remote_retry_after,
        mac: mac.map(mac_key).transpose()?,
        changes: config.changes.clone(),
        credentials,
        ..RemoteConfig::new(config.layout, &config.namespace)
    };
    Ok(Arc::new(RemoteTier::open(spec, remote)?))
}

#[cfg(feature = "remote")]
fn mac_key(place: &KeySource) -> Result<crate::tier::MacKey, AssembleError> {
    let failed = |source| AssembleError::Key { place: place.clone(), source };
    let text = match place {
        KeySource::File(path) => std::fs::read_to_string(path).map_err(|error| failed(error.into()))?,
        KeySource::Env(name) => std::env::var(name).map_err(|error| failed(unset(&error).into()))?,
    };
    crate::tier::MacKey::from_hex(&text).map_err(|error| failed(error.into()))
}

/// Says why an environment variable cannot be used. The message omits the variable's value, which the error itself
/// may hold.
#[cfg(feature = "remote")]
fn unset(error: &std::env::VarError) -> &'static str {
    match error {
        std::env::VarError::NotPresent => "it is not set",
        std::env::VarError::NotUnicode(_) => "its value is not UTF-8",
    }
}

#[cfg(all(feature = "compress", not(feature = "remote")))]
fn remote(_: &RemoteSpec, _: Option<&KeySource>, _: &StackConfig) -> Result<Arc<dyn Tier>, AssembleError> {
    Err(AssembleError::Feature { tier: TierName::REMOTE, feature: "remote" })
}
