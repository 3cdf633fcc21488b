//! The remote tier: blocks in a service or directory that several engines share.
//!
//! A block is one object: for each shard, a tag and its bytes. The tag is a checksum that depends on hash and shard
//! number, or with [`RemoteConfig::mac`] a MAC. One ranged read is thus enough to check a shard, and an object under
//! the wrong name is noticed.
//! Names begin with a digest of namespace and layout, so that engines with different models or cache types
//! can share storage without conflict. Next to these objects lies one named `format`, by which storage of
//! another version is recognised and refused.

mod naming;
mod objects;
mod seal;
#[cfg(feature = "remote")]
mod service;

pub use objects::{ObjectError, Objects};
pub use seal::{MacKey, MacKeyError};
#[cfg(feature = "remote")]
pub use service::Credentials;
#[cfg(any(feature = "s3", feature = "tls"))]
pub use service::choose_cryptography;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use derive_setters::Setters;
use kvblock::BlockHash;
use xxhash_rust::xxh3::xxh3_128;

use super::{BlockLayout, Stored, Tier, TierError, TierName};
use crate::changes::Changes;
use crate::clock::Clock;
use crate::sync::lock;
use naming::Naming;
use seal::Seal;

/// Version of object contents and names.
const FORMAT: u32 = 1;
/// Name of the object that contains the format version of a storage place.
const FORMAT_NAME: &str = "format";
/// Length of the pause after a failed request, as a multiple of the time that the request took.
const PAUSE_FACTOR: u32 = 4;
/// Maximum length of the version that is read; no writer's version is nearly as long.
const FORMAT_BYTES_MAX: u64 = 256;

/// Options of a remote tier.
#[derive(Clone, Debug, Setters)]
#[non_exhaustive]
pub struct RemoteConfig {
    /// Name in counters and errors.
    pub name: TierName,
    /// Size and division of every block.
    #[setters(skip)]
    pub layout: BlockLayout,
    /// Name of the blocks' contents, for instance model, cache group and element type.
    #[setters(skip)]
    pub namespace: String,
    /// Time limit for a request to the service. The client tries a request at most twice: the limit is for both tries
    /// together with Redis, and for each try with other services.
    pub timeout: Duration,
    /// Minimum time after a failed request in which the tier immediately answers [`TierError::Down`], so that a dead
    /// service does not delay every lookup by its timeout. If the request took long, the time is four times as long
    /// as the request, so that a service that hangs takes at most a fifth of the time.
    pub retry_after: Duration,
    /// Key of the MACs with which shards are tagged, so that only its owners can write blocks that are served.
    /// Without a key, everybody who can write to the storage decides what its readers compute.
    #[setters(strip_option)]
    pub mac: Option<MacKey>,
    /// Queue into which calls of this tier report the blocks that they write, find, miss and remove.
    #[setters(strip_option)]
    pub changes: Option<Changes>,
    /// User and password of a Redis server.
    #[cfg(feature = "remote")]
    #[setters(strip_option)]
    pub credentials: Option<Credentials>,
}

impl RemoteConfig {
    /// Options with these defaults: requests take at most 5 s, a failed service is retried after 1 s, and blocks
    /// carry checksums.
    #[must_use]
    pub fn new(layout: BlockLayout, namespace: impl Into<String>) -> Self {
        Self {
            name: TierName::REMOTE,
            layout,
            namespace: namespace.into(),
            timeout: Duration::from_secs(5),
            retry_after: Duration::from_secs(1),
            mac: None,
            changes: None,
            #[cfg(feature = "remote")]
            credentials: None,
        }
    }

    /// The first part of every object name, a hash of format, layout, namespace and MAC key.
    fn space(&self) -> String {
        let (shards, shard_bytes) = (self.layout.shards(), self.layout.shard_bytes());
        let mut about =
            format!("format {FORMAT}, {shards} shards of {shard_bytes} bytes, {}", self.namespace);
        if let Some(key) = &self.mac {
            about += &format!(", MAC by key {}", key.id());
        }
        format!("{:032x}", xxh3_128(about.as_bytes()))
    }
}

/// Blocks that several engines share.
pub struct RemoteTier {
    name: TierName,
    layout: BlockLayout,
    /// Storage places; the hash of a block selects one.
    places: Vec<Arc<dyn Objects>>,
    naming: Naming,
    seal: Seal,
    retry_after: Duration,
    clock: Arc<dyn Clock>,
    changes: Option<Changes>,
    /// Time until which the service is not used after a failure; `None` if the last request did not fail.
    down_until: Mutex<Option<Duration>>,
}

impl fmt::Debug for RemoteTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteTier")
            .field("name", &self.name)
            .field("layout", &self.layout)
            .field("places", &self.places.len())
            .finish_non_exhaustive()
    }
}

impl RemoteTier {
    /// A tier over the given storage. The hash of a block selects its place.
    ///
    /// # Panics
    /// When there is no place.
    #[must_use]
    pub fn over(places: Vec<Arc<dyn Objects>>, clock: Arc<dyn Clock>, config: RemoteConfig) -> Self {
        Self::assemble(places, Naming::flat(config.space()), clock, config)
    }

    /// Measures the pauses after failures by another clock than the system's. Limits for requests stay with that one.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    fn assemble(
        places: Vec<Arc<dyn Objects>>,
        naming: Naming,
        clock: Arc<dyn Clock>,
        config: RemoteConfig,
    ) -> Self {
        assert!(!places.is_empty(), "a remote tier of {} places keeps nothing", places.len());
        let space = config.space();
        let RemoteConfig { name, layout, retry_after, mac, changes, .. } = config;
        let seal = mac.map_or(Seal::Sum, |key| Seal::Mac { key, space });
        let down_until = Mutex::new(None);
        Self { name, layout, places, naming, seal, retry_after, clock, changes, down_until }
    }

    /// Sends a request to a storage place, unless the service failed a moment ago. After a failure, first checks that
    /// the place can be reached, because a client may try for seconds before it reports that a server is gone.
    fn ask<T>(
        &self,
        place: &dyn Objects,
        action: &'static str,
        request: impl FnOnce() -> Result<T, ObjectError>,
    ) -> Result<T, Failure> {
        let (now, down) = (self.clock.now(), *lock(&self.down_until));
        if let Some(until) = down.filter(|&until| until > now) {
            return Err(Failure::Other(TierError::Down { tier: self.name, retry_in: until - now }));
        }
        let there = down.map_or(Ok(()), |_| place.check_container());
        let answer = there.and_then(|()| request());
        if let Err(ObjectError::Failed(error)) = answer {
            let end = self.clock.now();
            *lock(&self.down_until) = Some(end + self.retry_after.max(PAUSE_FACTOR * (end - now)));
            return Err(Failure::Other(self.failed(action, error)));
        }
        let mut known = lock(&self.down_until);
        if *known == down {
            *known = None;
        }
        answer.map_err(|error| match error {
            ObjectError::NotFound => Failure::NotFound,
            ObjectError::Short => Failure::Short,
            ObjectError::NoContainer(bucket) => {
                Failure::Other(TierError::NoBucket { tier: self.name, bucket })
            }
            ObjectError::Failed(error) => Failure::Other(self.failed(action, error)),
        })
    }

    /// Reports to the queue of changes whether the tier holds a block.
    fn tell(&self, key: BlockHash, held: bool) {
        if let Some(changes) = &self.changes {
            changes.tell(self.name, key, held);
        }
    }

    fn failed(
        &self,
        action: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> TierError {
        TierError::Backend { tier: self.name, action, source: source.into() }
    }

    /// Checks the format version of a storage place. A new place gets the version of this build.
    fn check_format(&self, place: &dyn Objects) -> Result<(), TierError> {
        let expected = format!("KV blocks of format {FORMAT}");
        let found = match self.read_format(place, expected.len() as u64) {
            Ok(found) => found,
            Err(Failure::NotFound) => {
                let written = self.ask(place, "writing the format", || {
                    place.write(FORMAT_NAME, expected.clone().into_bytes())
                });
                return written.map(drop).map_err(|failure| match failure {
                    Failure::Other(error) => error,
                    _ => self.failed("writing the format", "the object is gone"),
                });
            }
            Err(Failure::Short) => "a format that changes while it is read".into(),
            Err(Failure::Other(error)) => return Err(error),
        };
        if found == expected {
            return Ok(());
        }
        Err(TierError::Mismatch { tier: self.name, found: found.into(), expected: expected.into() })
    }

    /// Reads the format version that a storage place states. Anybody who can write to the place can replace it by any
    /// text of any length.
    fn read_format(&self, place: &dyn Objects, expected_len: u64) -> Result<String, Failure> {
        // S3 answers a question for the size without a body: only a read brings its reason for a refusal.
        let begin = match self.ask(place, "reading the format", || place.read(FORMAT_NAME, 0..expected_len)) {
            Err(failure @ (Failure::NotFound | Failure::Other(_))) => return Err(failure),
            begin => begin,
        };
        let len = self.ask(place, "reading the format", || place.size(FORMAT_NAME))?;
        if len > FORMAT_BYTES_MAX {
            return Ok(format!("a format of {len} bytes"));
        }
        let found = match begin {
            Ok(found) if len == expected_len => found,
            _ => self.ask(place, "reading the format", || place.read(FORMAT_NAME, 0..len))?,
        };
        Ok(String::from_utf8_lossy(&found).escape_debug().to_string())
    }

    /// Index of the place of a block.
    fn place_of(&self, key: BlockHash) -> usize {
        let [a, b, c, d, ..] = *key.as_bytes();
        u32::from_le_bytes([a, b, c, d]) as usize % self.places.len()
    }

    fn place(&self, key: BlockHash) -> &dyn Objects {
        &*self.places[self.place_of(key)]
    }

    /// Reads a range of an object, or its part up to the end of the object.
    fn read_range(&self, key: BlockHash, range: Range<u64>) -> Result<Vec<u8>, Failure> {
        let (name, place) = (self.naming.name(key), self.place(key));
        match self.ask(place, "reading an object", || place.read(&name, range.clone())) {
            Err(Failure::Short) => {}
            read => return read,
        }
        let len = self.ask(place, "reading an object", || place.size(&name))?.min(range.end);
        if len <= range.start {
            return Ok(Vec::new());
        }
        self.ask(place, "reading an object", || place.read(&name, range.start..len))
    }

    /// Reads the frames of shards from `first` on, checks them, and copies their bytes. A shard that is cut off
    /// counts as damaged.
    fn read_frames(&self, key: BlockHash, first: u32, into: &mut [u8]) -> Result<(), TierError> {
        let (tag_bytes, shard_bytes) = (self.seal.tag_bytes(), self.layout.shard_bytes());
        let frame_bytes = tag_bytes + shard_bytes;
        let count = into.len() / shard_bytes;
        let start = (first as usize * frame_bytes) as u64;
        let range = start..start + (count * frame_bytes) as u64;
        let frames = self.read_range(key, range).map_err(|failure| {
            if matches!(failure, Failure::NotFound) {
                self.tell(key, false);
            }
            failure.of(self.name, key)
        })?;
        let shards = into.chunks_exact_mut(shard_bytes);
        for (shard, (position, bytes)) in (first..).zip(shards.enumerate()) {
            let frame = frames.get(position * frame_bytes..(position + 1) * frame_bytes).unwrap_or_default();
            // Nobody can use it; the next writer puts a good one in its place.
            self.seal.check(self.name, key, shard, frame).inspect_err(|_| drop(self.remove(key)))?;
            bytes.copy_from_slice(&frame[tag_bytes..]);
        }
        Ok(())
    }
}

/// Failure of a request, not yet tied to the key of a block.
enum Failure {
    NotFound,
    Short,
    Other(TierError),
}

impl Failure {
    fn of(self, tier: TierName, key: BlockHash) -> TierError {
        match self {
            Self::NotFound | Self::Short => TierError::NotFound { tier, key },
            Self::Other(error) => error,
        }
    }
}

impl Tier for RemoteTier {
    fn name(&self) -> TierName {
        self.name
    }

    fn layout(&self) -> BlockLayout {
        self.layout
    }

    /// `None`: the service has its own limit and eviction.
    fn capacity_blocks(&self) -> Option<u64> {
        None
    }

    /// Checks the format version of all storage places, and marks new ones with the version of this build. A missing
    /// bucket is not created: [`TierError::NoBucket`].
    fn probe(&self) -> Result<(), TierError> {
        self.places.iter().try_for_each(|place| {
            let checked = self.ask(&**place, "looking for the store", || place.check_container());
            match checked {
                Err(Failure::Other(error)) => Err(error),
                _ => self.check_format(&**place),
            }
        })
    }

    fn contains(&self, key: BlockHash) -> Result<bool, TierError> {
        Ok(self.contains_many(&[key])?[0])
    }

    fn contains_many(&self, keys: &[BlockHash]) -> Result<Vec<bool>, TierError> {
        let mut held = vec![false; keys.len()];
        for (index, place) in self.places.iter().enumerate() {
            let positions: Vec<usize> =
                (0..keys.len()).filter(|&at| self.place_of(keys[at]) == index).collect();
            let Some(&first) = positions.first() else { continue };
            let names: Vec<String> = positions.iter().map(|&at| self.naming.name(keys[at])).collect();
            let exist = self.ask(&**place, "looking up objects", || place.exist(&names));
            let exist = exist.map_err(|failure| failure.of(self.name, keys[first]))?;
            for (at, exists) in positions.into_iter().zip(exist) {
                held[at] = exists;
                self.tell(keys[at], exists);
            }
        }
        Ok(held)
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
        let tags = self.layout.shards() as usize * self.seal.tag_bytes();
        let mut object = Vec::with_capacity(block.len() + tags);
        for (shard, bytes) in (0..).zip(block.chunks_exact(self.layout.shard_bytes())) {
            self.seal.append(&mut object, key, shard, bytes);
        }
        let name = self.naming.name(key);
        let written = self.ask(self.place(key), "writing an object", || self.place(key).write(&name, object));
        if written.is_ok() {
            self.tell(key, true);
        }
        written.map_err(|failure| failure.of(self.name, key))
    }

    fn remove(&self, key: BlockHash) -> Result<bool, TierError> {
        let there = self.contains(key)?;
        let name = self.naming.name(key);
        let removed = self.ask(self.place(key), "removing an object", || self.place(key).remove(&name));
        if removed.is_ok() {
            self.tell(key, false);
        }
        removed.map(|()| there).map_err(|failure| failure.of(self.name, key))
    }
}
