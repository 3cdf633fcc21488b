//! Builds the stack of tiers that a spec describes.

use std::sync::Arc;
use std::time::Duration;

use crate::codec::{Codec, CodecError, CodedTier, RowLayout};
use crate::policy::PolicyKind;
use crate::spec::{Compression, DiskSpec, RemoteSpec, TierSpec};
use crate::stack::{StackError, TierStack};
use crate::tier::{BlockLayout, HostTier, Tier, TierError, TierName};

/// What a spec does not say: the blocks, and how the tiers treat them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StackConfig {
    /// Size and division of every block above the codec.
    pub layout: BlockLayout,
    /// Names what the blocks hold: model, cache group, element type. Blocks stored under another name are
    /// never served.
    pub namespace: String,
    /// Position of the rows in a shard, for int8.
    pub rows: RowLayout,
    /// Order of eviction in the host and disk tiers.
    pub policy: PolicyKind,
    /// Blocks between two syncs of the disk tier.
    pub blocks_per_sync: u32,
    /// Time limit for one request to a remote service.
    pub remote_timeout: Duration,
    /// After a failed request, a remote service is not asked again for this long.
    pub remote_retry_after: Duration,
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
    /// The compression does not fit the blocks.
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
        let mut tiers: Vec<Arc<dyn Tier>> = Vec::new();
        if let Some(capacity_bytes) = self.host_bytes {
            tiers.push(Arc::new(host(capacity_bytes, config)?));
        }
        let codec = match self.compression {
            Compression::None => Codec::AsStored,
            Compression::Fp8 => Codec::Fp8 { scale: 1.0 },
            Compression::Int8 => Codec::Int8 { rows: config.rows },
        };
        // What lies below the codec is another kind of block, in size and in name.
        let below = StackConfig {
            layout: codec.encoded_layout(config.layout)?,
            namespace: format!("{}, {codec:?}", config.namespace),
            ..config.clone()
        };
        let coded = |tier| CodedTier::new(codec, config.layout, tier);
        if let Some(spec) = &self.disk {
            // Without a host tier, the page cache takes its place.
            tiers.push(Arc::new(coded(disk(spec, &below, self.host_bytes.is_some())?)?));
        }
        if let Some(spec) = &self.remote {
            tiers.push(Arc::new(coded(remote(spec, &below)?)?));
        }
        Ok(TierStack::new(tiers)?)
    }
}

fn host(capacity_bytes: u64, config: &StackConfig) -> Result<HostTier, AssembleError> {
    let block_bytes = config.layout.block_bytes();
    let blocks = u32::try_from(capacity_bytes / block_bytes as u64).unwrap_or(u32::MAX);
    if blocks == 0 {
        return Err(AssembleError::TooSmall { capacity_bytes, block_bytes });
    }
    Ok(HostTier::new(config.layout, blocks, config.policy, None))
}

#[cfg(feature = "disk")]
fn disk(spec: &DiskSpec, config: &StackConfig, direct: bool) -> Result<Arc<dyn Tier>, AssembleError> {
    let disk =
        crate::tier::DiskConfig::new(&spec.path, config.layout, &config.namespace, spec.capacity_bytes);
    Ok(Arc::new(crate::tier::DiskTier::open(crate::tier::DiskConfig {
        policy: config.policy,
        blocks_per_sync: config.blocks_per_sync,
        direct,
        ..disk
    })?))
}

#[cfg(not(feature = "disk"))]
fn disk(_: &DiskSpec, _: &StackConfig, _: bool) -> Result<Arc<dyn Tier>, AssembleError> {
    Err(AssembleError::Feature { tier: TierName::DISK, feature: "disk" })
}

#[cfg(feature = "remote")]
fn remote(spec: &RemoteSpec, config: &StackConfig) -> Result<Arc<dyn Tier>, AssembleError> {
    if cfg!(not(feature = "s3")) && matches!(spec, RemoteSpec::S3 { .. }) {
        return Err(AssembleError::Feature { tier: TierName::REMOTE, feature: "s3" });
    }
    let remote = crate::tier::RemoteConfig {
        layout: config.layout,
        namespace: config.namespace.clone(),
        timeout: config.remote_timeout,
        retry_after: config.remote_retry_after,
    };
    Ok(Arc::new(crate::tier::RemoteTier::open(spec, remote)?))
}

#[cfg(not(feature = "remote"))]
fn remote(_: &RemoteSpec, _: &StackConfig) -> Result<Arc<dyn Tier>, AssembleError> {
    Err(AssembleError::Feature { tier: TierName::REMOTE, feature: "remote" })
}
