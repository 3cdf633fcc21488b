//! Objects of a store that others write: the bytes as they are, or after an odd first byte, changes of a good object.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kvblock::BlockHash;
use prefetch::clock::Clock;
use prefetch::testing::FakeTier;
use prefetch::tier::{
    BlockLayout, MacKey, ObjectError, Objects, RemoteConfig, RemoteTier, Stored, Tier as _, TierError,
};

/// Every object is the same until one is written.
struct Store(Mutex<Vec<u8>>);

impl Store {
    fn object(&self) -> std::sync::MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Objects for Store {
    fn read(&self, _: &str, range: Range<u64>) -> Result<Vec<u8>, ObjectError> {
        let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX);
        self.object().get(at(range.start)..at(range.end)).map(<[u8]>::to_vec).ok_or(ObjectError::Short)
    }

    fn size(&self, _: &str) -> Result<u64, ObjectError> {
        Ok(self.object().len() as u64)
    }

    fn exist(&self, names: &[String]) -> Result<Vec<bool>, ObjectError> {
        Ok(vec![!self.object().is_empty(); names.len()])
    }

    fn write(&self, _: &str, object: Vec<u8>) -> Result<Stored, ObjectError> {
        *self.object() = object;
        Ok(Stored::Written)
    }

    fn remove(&self, _: &str) -> Result<(), ObjectError> {
        self.object().clear();
        Ok(())
    }
}

struct Noon;

impl Clock for Noon {
    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

/// Each change is a place, and what is there is changed by or cut off at.
fn changed(mut object: Vec<u8>, changes: &[u8]) -> Vec<u8> {
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % (object.len() + 1);
        match object.get_mut(at) {
            Some(byte) if change[2] > 0 => *byte ^= change[2],
            _ => object.truncate(at),
        }
    }
    object
}

/// Reads a block whole and by shards, and the format; then writes the block and reads it again.
pub fn run(bytes: &[u8]) -> bool {
    let layout = BlockLayout::new(3, 40).expect("three small shards");
    let key = BlockHash::from_bytes([7; 32]);
    let block = FakeTier::contents(layout, key);
    let mut taken = false;
    for mac in [None, Some(MacKey::new([5; 32]))] {
        let tier_of = |store: Arc<Store>| {
            let mut config = RemoteConfig::new(layout, "fuzzed");
            config.mac.clone_from(&mac);
            RemoteTier::over(vec![store], Arc::new(Noon), config)
        };
        let tier = |object: &[u8]| tier_of(Arc::new(Store(Mutex::new(object.to_vec()))));
        let store = Arc::new(Store(Mutex::default()));
        assert!(matches!(tier_of(Arc::clone(&store)).write(key, &block), Ok(Stored::Written)));
        let good = store.object().clone();
        let bytes = &match bytes.split_first() {
            Some((first, changes)) if first % 2 == 1 => changed(good, changes),
            _ => bytes.to_vec(),
        };
        if let Err(error) = tier(bytes).probe() {
            assert!(error.to_string().len() < 4096, "{error}");
        }
        let mut into = vec![0; layout.block_bytes()];
        match tier(bytes).read_block(key, &mut into) {
            // Without a key, whoever writes the store decides.
            Ok(()) => assert!(mac.is_none() || into == block, "a forged block was served"),
            Err(error) => assert!(error.to_string().len() < 4096, "{error}"),
        }
        taken |= into == block;
        for shard in 0..layout.shards() {
            let _ = tier(bytes).read(key, shard, &mut into[..layout.shard_bytes()]);
        }
        // A bad object is gone after one look, and the next writer's is found.
        let tier = tier(bytes);
        if tier.read_block(key, &mut into).is_err() {
            assert!(matches!(tier.write(key, &block), Ok(Stored::Written)), "a bad object stays");
            let read = tier.read_block(key, &mut into);
            assert!(
                read.is_ok() && into == block,
                "{:?}",
                read.err().map(|error: TierError| error.to_string())
            );
        }
    }
    taken
}
