//! The remote tier: blocks in a service or directory that several engines share, through OpenDAL.
//!
//! A block is one object: for each shard, its checksum (8 bytes, seeded with hash and shard number) and its
//! bytes. One ranged read is thus enough to check a shard, and an object under the wrong name is noticed.
//! Names begin with a digest of namespace and layout, so that engines with different models or cache types
//! can share storage without conflict. Next to these objects lies one named `format`, by which storage of
//! another version is recognised and refused.

mod lookup;
mod naming;
mod rendezvous;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use kvblock::BlockHash;
use opendal::layers::{RetryLayer, TimeoutLayer};
use opendal::{ErrorKind, Operator, services};
use tokio::runtime::Runtime;
use xxhash_rust::xxh3::xxh3_128;

use super::{BlockLayout, Stored, Tier, TierError, TierName, shard_sum};
use crate::spec::RemoteSpec;
use crate::sync::lock;
use naming::Naming;

const SUM_BYTES: usize = size_of::<u64>();
/// Version of object contents and names.
const FORMAT: u32 = 1;
/// Name of the object that says the version of a place.
const FORMAT_NAME: &str = "format";

/// How a remote tier is set up.
#[derive(Clone, Debug)]
pub struct RemoteConfig {
    /// Size and division of every block.
    pub layout: BlockLayout,
    /// Names what the blocks hold, for instance model, cache group and element type.
    pub namespace: String,
    /// Time limit for one request to the service, which is tried at most twice.
    pub timeout: Duration,
    /// After a failed request, the tier answers [`TierError::Down`] immediately for this long, so that a dead
    /// service does not delay every lookup by its timeout.
    pub retry_after: Duration,
}

/// Blocks that several engines share.
pub struct RemoteTier {
    layout: BlockLayout,
    /// A block lies in the backend that its hash selects.
    backends: Vec<Operator>,
    /// The storage around the backends, shared with other namespaces.
    places: Vec<Operator>,
    naming: Naming,
    timeout: Duration,
    retry_after: Duration,
    down_until: Mutex<Option<Instant>>,
    /// Taken in `drop` only: a runtime may not be dropped where tasks of another one run.
    runtime: Option<Runtime>,
}

impl RemoteTier {
    /// Opens the storage that a tier spec names. It is not contacted yet, but a directory must exist.
    ///
    /// # Errors
    /// [`TierError::Backend`] when it cannot be set up or the build lacks the feature for it.
    pub fn open(spec: &RemoteSpec, config: RemoteConfig) -> Result<Self, TierError> {
        let space = namespace_digest(&config);
        match spec {
            RemoteSpec::Redis { endpoint, database } => {
                let at = |root: &str| {
                    let redis = services::Redis::default().endpoint(endpoint).db(i64::from(*database));
                    operator(redis.root(root), config.timeout)
                };
                let (place, backend) = (at("/pagoda")?, at(&format!("/pagoda/{space}"))?);
                Self::assemble(vec![place], vec![backend], Naming::Flat, config)
            }
            RemoteSpec::Directory { path } => Self::directories(std::slice::from_ref(path), None, config),
            #[cfg(feature = "s3")]
            RemoteSpec::S3 { bucket, prefix } => {
                // Sets the HTTP client of the process, unless the program has set one.
                opendal::install_default();
                let at =
                    |root: &str| operator(services::S3::default().bucket(bucket).root(root), config.timeout);
                let (place, backend) = (at(&format!("/{prefix}"))?, at(&format!("/{prefix}/{space}"))?);
                Self::assemble(vec![place], vec![backend], Naming::Flat, config)
            }
            #[cfg(not(feature = "s3"))]
            RemoteSpec::S3 { .. } => {
                let missing =
                    std::io::Error::new(std::io::ErrorKind::Unsupported, "built without the feature `s3`");
                Err(failed("opening an s3 bucket", missing))
            }
        }
    }

    /// Opens plain directories in the Posix layout of UCM: a block is the file `data/HEX`, or, with
    /// `dir_shard_chars` = n, lies in a directory named by the first n hex characters. While it is being
    /// written, its name ends in `.tmp`. With several directories, the hash selects one; listing one twice is
    /// allowed.
    ///
    /// # Errors
    /// [`TierError::Directory`] when a directory is missing: it is not created, since it may be a mount that
    /// is down.
    pub fn directories(
        paths: &[PathBuf],
        dir_shard_chars: Option<u8>,
        config: RemoteConfig,
    ) -> Result<Self, TierError> {
        let space = namespace_digest(&config);
        let (mut places, mut backends) = (Vec::new(), Vec::new());
        for path in paths {
            let unusable =
                |source| TierError::Directory { tier: TierName::REMOTE, path: path.clone(), source };
            if !std::fs::metadata(path).map_err(unusable)?.is_dir() {
                return Err(unusable(std::io::ErrorKind::NotADirectory.into()));
            }
            let at =
                |root: &Path| operator(services::Fs::default().root(&root.to_string_lossy()), config.timeout);
            places.push(at(path)?);
            backends.push(at(&path.join(&space))?);
        }
        if backends.is_empty() {
            return Err(failed("opening directories", std::io::Error::from(std::io::ErrorKind::NotFound)));
        }
        Self::assemble(places, backends, Naming::Posix { dir_shard_chars }, config)
    }

    fn assemble(
        places: Vec<Operator>,
        backends: Vec<Operator>,
        naming: Naming,
        config: RemoteConfig,
    ) -> Result<Self, TierError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("remote-tier")
            .enable_all()
            .build()
            .map_err(|e| failed("starting the runtime", e))?;
        let RemoteConfig { layout, timeout, retry_after, .. } = config;
        let down_until = Mutex::new(None);
        let runtime = Some(runtime);
        Ok(Self { layout, backends, places, naming, timeout, retry_after, down_until, runtime })
    }

    /// Runs a request on the tier's own runtime and waits for it. May be called from any thread, also of
    /// other runtimes.
    fn run<T: Send + 'static>(
        &self,
        action: &'static str,
        request: impl Future<Output = Result<T, opendal::Error>> + Send + 'static,
    ) -> Result<T, Failure> {
        let down_for = lock(&self.down_until).and_then(|until| until.checked_duration_since(Instant::now()));
        if let Some(retry_in) = down_for.filter(|rest| !rest.is_zero()) {
            return Err(Failure::Other(TierError::Down { tier: TierName::REMOTE, retry_in }));
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let runtime = self.runtime.as_ref().expect("taken only in drop");
        runtime.spawn(async move {
            // The receiver waits, unless its thread is gone with a panic.
            let _ = sender.send(request.await);
        });
        let failure = match receiver.recv() {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) if error.kind() == ErrorKind::NotFound => return Err(Failure::NotFound),
            Ok(Err(error)) => failed(action, error),
            Err(gone) => failed(action, gone),
        };
        *lock(&self.down_until) = Some(Instant::now() + self.retry_after);
        Err(Failure::Other(failure))
    }

    /// Writes an object atomically: readers never see part of it.
    fn write_object(&self, to: Operator, name: String, object: Vec<u8>) -> Result<Stored, Failure> {
        let is_posix = matches!(self.naming, Naming::Posix { .. });
        let patience = self.timeout * 4;
        self.run("writing an object", async move {
            if is_posix {
                return rendezvous::write(&to, &name, object, patience).await;
            }
            // One request of these services shows the whole object or nothing.
            to.write(&name, object).await.map(|_| Stored::Written)
        })
    }

    /// Checks the version of the storage; new storage is marked with this one.
    fn check_format(&self, place: &Operator) -> Result<(), TierError> {
        let expected = format!("KV blocks of format {FORMAT}");
        let reader = place.clone();
        let found = self.run("reading the format", async move { reader.read(FORMAT_NAME).await });
        let found = match found {
            Ok(found) => String::from_utf8_lossy(&found.to_vec()).into_owned(),
            Err(Failure::NotFound) => {
                let written =
                    self.write_object(place.clone(), FORMAT_NAME.into(), expected.clone().into_bytes());
                return match written {
                    Err(Failure::Other(error)) => Err(error),
                    Err(Failure::NotFound) => {
                        Err(failed("writing the format", std::io::Error::from(std::io::ErrorKind::NotFound)))
                    }
                    Ok(_) => Ok(()),
                };
            }
            Err(Failure::Other(error)) => return Err(error),
        };
        if found == expected {
            return Ok(());
        }
        let (tier, found) = (TierName::REMOTE, found.into());
        Err(TierError::Mismatch { tier, found, expected: expected.into() })
    }

    /// Refuses a missing bucket: reads of an object cannot tell it from an empty one, and some services
    /// create it on the first write. Keys without permission to list buckets skip the check.
    fn check_bucket(&self, place: &Operator) -> Result<(), TierError> {
        if place.info().scheme() != "s3" {
            return Ok(());
        }
        let lister = place.clone();
        let missing = self.run("looking for the bucket", async move {
            match lister.list(FORMAT_NAME).await {
                // So OpenDAL calls `NoSuchBucket`.
                Err(error) if error.kind() == ErrorKind::ConfigInvalid => Ok(true),
                Err(error) if error.kind() != ErrorKind::PermissionDenied => Err(error),
                _ => Ok(false),
            }
        });
        match missing {
            Ok(true) => {
                let bucket = place.info().name().into();
                Err(TierError::NoBucket { tier: TierName::REMOTE, bucket })
            }
            Err(Failure::Other(error)) => Err(error),
            Ok(false) | Err(Failure::NotFound) => Ok(()),
        }
    }

    fn backend(&self, key: BlockHash) -> Operator {
        let [a, b, c, d, ..] = *key.as_bytes();
        let at = u32::from_le_bytes([a, b, c, d]) as usize % self.backends.len();
        self.backends[at].clone()
    }

    /// Reads the frames of `shards` shards from `first` on, checks them, and copies their bytes.
    fn read_frames(&self, key: BlockHash, first: u32, into: &mut [u8]) -> Result<(), TierError> {
        let frame_bytes = SUM_BYTES + self.layout.shard_bytes();
        let count = into.len() / self.layout.shard_bytes();
        let start = (first as usize * frame_bytes) as u64;
        let range = start..start + (count * frame_bytes) as u64;
        let (backend, name) = (self.backend(key), self.naming.name(key));
        let whole = count == self.layout.shards() as usize;
        let read = async move {
            // A read of everything is one request less where ranges need the length first.
            if whole {
                return backend.read(&name).await;
            }
            match backend.read_with(&name).range(range).await {
                // Cut short: no shard to check is a wrong shard.
                Err(error) if error.kind() == ErrorKind::RangeNotSatisfied => Ok(opendal::Buffer::new()),
                read => read,
            }
        };
        let frames = self.run("reading an object", read).map_err(|failure| failure.of(key))?.to_vec();
        let shards = into.chunks_exact_mut(self.layout.shard_bytes());
        for (shard, (position, bytes)) in (first..).zip(shards.enumerate()) {
            let frame = frames.get(position * frame_bytes..(position + 1) * frame_bytes).unwrap_or_default();
            let (sum, stored) = frame.split_at(SUM_BYTES.min(frame.len()));
            let expected = sum.try_into().map_or(0, u64::from_le_bytes);
            let found = shard_sum(key, shard, stored);
            if stored.len() != bytes.len() || found != expected {
                // Nobody can use it; the next writer puts a good one in its place.
                let _ = self.remove(key);
                return Err(TierError::Corrupt { tier: TierName::REMOTE, key, shard, found, expected });
            }
            bytes.copy_from_slice(stored);
        }
        Ok(())
    }
}

/// Why a request failed, before it is tied to a block.
enum Failure {
    NotFound,
    Other(TierError),
}

impl Failure {
    fn of(self, key: BlockHash) -> TierError {
        match self {
            Self::NotFound => TierError::NotFound { tier: TierName::REMOTE, key },
            Self::Other(error) => error,
        }
    }
}

impl Tier for RemoteTier {
    fn name(&self) -> TierName {
        TierName::REMOTE
    }

    fn layout(&self) -> BlockLayout {
        self.layout
    }

    /// `None`: the service has its own limit and eviction.
    fn capacity_blocks(&self) -> Option<u64> {
        None
    }

    /// Checks the version of all storage, and marks new storage with this one. A missing bucket is not
    /// created: [`TierError::NoBucket`].
    fn probe(&self) -> Result<(), TierError> {
        self.places.iter().try_for_each(|place| {
            self.check_bucket(place)?;
            self.check_format(place)
        })
    }

    fn contains(&self, key: BlockHash) -> Result<bool, TierError> {
        let (backend, name) = (self.backend(key), self.naming.name(key));
        let exists = self.run("looking up an object", async move { backend.exists(&name).await });
        exists.map_err(|failure| failure.of(key))
    }

    fn contains_many(&self, keys: &[BlockHash]) -> Result<Vec<bool>, TierError> {
        let Some(&first) = keys.first() else { return Ok(Vec::new()) };
        let objects = keys.iter().map(|&key| (self.backend(key), self.naming.name(key))).collect();
        self.run("looking up objects", lookup::all_exist(objects)).map_err(|failure| failure.of(first))
    }

    fn read(&self, key: BlockHash, shard: u32, into: &mut [u8]) -> Result<(), TierError> {
        self.layout.check_shard(shard, into.len())?;
        self.read_frames(key, shard, into)
    }

    fn read_block(&self, key: BlockHash, into: &mut [u8]) -> Result<(), TierError> {
        self.layout.check_block(into.len())?;
        self.read_frames(key, 0, into)
    }

    fn write(&self, key: BlockHash, block: &[u8]) -> Result<Stored, TierError> {
        self.layout.check_block(block.len())?;
        if self.contains(key)? {
            return Ok(Stored::AlreadyThere);
        }
        let mut object = Vec::with_capacity(block.len() + self.layout.shards() as usize * SUM_BYTES);
        for (shard, bytes) in (0..).zip(block.chunks_exact(self.layout.shard_bytes())) {
            object.extend(shard_sum(key, shard, bytes).to_le_bytes());
            object.extend(bytes);
        }
        let written = self.write_object(self.backend(key), self.naming.name(key), object);
        written.map_err(|failure| failure.of(key))
    }

    fn remove(&self, key: BlockHash) -> Result<bool, TierError> {
        let there = self.contains(key)?;
        let (backend, name) = (self.backend(key), self.naming.name(key));
        let removed = self.run("removing an object", async move { backend.delete(&name).await });
        removed.map(|()| there).map_err(|failure| failure.of(key))
    }
}

impl Drop for RemoteTier {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn operator(service: impl opendal::Builder, timeout: Duration) -> Result<Operator, TierError> {
    let operator = Operator::new(service).map_err(|e| failed("configuring the service", e))?;
    let timeouts = TimeoutLayer::new().with_timeout(timeout).with_io_timeout(timeout);
    Ok(operator.layer(timeouts).layer(RetryLayer::new().with_max_times(1)))
}

/// The first part of every name: equal only for equal contents of equal blocks.
fn namespace_digest(config: &RemoteConfig) -> String {
    let (shards, shard_bytes) = (config.layout.shards(), config.layout.shard_bytes());
    let about = format!("format {FORMAT}, {shards} shards of {shard_bytes} bytes, {}", config.namespace);
    format!("{:032x}", xxh3_128(about.as_bytes()))
}

fn failed(action: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> TierError {
    TierError::Backend { tier: TierName::REMOTE, action, source: Box::new(source) }
}
