//! Events of the tiers: the blocks that they hold, the sequences of these blocks, and their medium.
//!
//! Tiers tell of objects by name, on threads of their own; the engine knows the blocks of an object when it saves them or
//! looks for them. Both meet here, on the engine's thread, and a block is told of once all of its objects are held.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use kvblock::{BlockHash, CacheEvent, CacheKey, Medium, StoredBlocks};
use prefetch::changes::Changes;
use prefetch::tier::TierName;

/// Maximum number of known blocks that neither the host nor the disk holds. The capacities of host and disk bound all
/// other blocks. The number exceeds the blocks that are saved or loaded at one time; the rest are the last ones in
/// the remote store, which has no bound here and reports no evictions.
const MAX_LOOSE: usize = 1 << 18;

/// Tiers, each with its medium in KV events.
const MEDIA: [(TierName, Medium); 3] =
    [(TierName::HOST, Medium::Cpu), (TierName::DISK, Medium::Storage), (TierName::REMOTE, Medium::Storage)];

/// Position of the remote store in [`MEDIA`].
const REMOTE: usize = 2;

/// An object that tiers hold, or that a known block needs.
#[derive(Default)]
struct Object {
    /// Whether each tier of [`MEDIA`] holds the object.
    held: [bool; MEDIA.len()],
    /// Block that the object is a part of, if that is known.
    of: Option<CacheKey>,
}

/// A block whose sequence is known.
struct Block {
    content: StoredBlocks,
    /// Names of the block's objects, for each origin that the block may have.
    names: Vec<Vec<BlockHash>>,
    /// Media for which events have reported the block as stored.
    told: Vec<Medium>,
    /// Whether neither host nor disk holds the block.
    loose: bool,
    /// Number of the block's last entry in the queue of loose blocks.
    entry: u64,
}

/// Records the blocks and objects of the tiers, and the events about them that were not taken yet. Needs memory for
/// each block that the tiers hold, and for the last blocks of the remote store: the block's tokens and some 300
/// bytes.
pub(super) struct Ledger {
    changes: Changes,
    objects: HashMap<BlockHash, Object>,
    blocks: HashMap<CacheKey, Block>,
    /// Blocks that were loose when they were entered, the oldest first. An evicted block may be written again before
    /// the engine learns of either.
    loose: VecDeque<(u64, CacheKey)>,
    max_loose: usize,
    next_entry: u64,
    events: Vec<CacheEvent>,
}

impl Ledger {
    /// A ledger of the tiers that put their changes into `changes`.
    pub(super) fn new(changes: Changes) -> Self {
        Self {
            changes,
            objects: HashMap::new(),
            blocks: HashMap::new(),
            loose: VecDeque::new(),
            max_loose: MAX_LOOSE,
            next_entry: 0,
            events: Vec::new(),
        }
    }

    /// Records a block, with the names of its objects for each origin that the block may have.
    pub(super) fn know(&mut self, content: StoredBlocks, names: Vec<Vec<BlockHash>>) {
        let key = CacheKey { hash: content.hashes[0], group: content.group };
        if let Entry::Vacant(place) = self.blocks.entry(key) {
            for name in names.iter().flatten() {
                self.objects.entry(*name).or_default().of = Some(key);
            }
            place.insert(Block { content, names, told: Vec::new(), loose: false, entry: 0 });
            self.judge(key);
        } else if self.blocks[&key].loose {
            self.keep(key);
        }
    }

    /// Enters a block at the end of the queue of loose blocks. If the queue is too long, forgets the oldest one.
    fn keep(&mut self, key: CacheKey) {
        self.next_entry += 1;
        self.blocks.entry(key).and_modify(|block| block.entry = self.next_entry);
        self.loose.push_back((self.next_entry, key));
        if self.loose.len() > self.max_loose
            && let Some((entry, oldest)) = self.loose.pop_front()
            && self.blocks.get(&oldest).is_some_and(|block| block.loose && block.entry == entry)
        {
            self.forget(oldest);
        }
    }

    /// The events since the last call, oldest first.
    pub(super) fn take_events(&mut self) -> Vec<CacheEvent> {
        for change in self.changes.take() {
            let Some(tier) = MEDIA.iter().position(|(tier, _)| *tier == change.tier) else { continue };
            let object = match self.objects.entry(change.key) {
                // Nothing bounds what a remote store holds; the next request for it looks again.
                Entry::Vacant(_) if !change.held || tier == REMOTE => continue,
                entry => entry.or_default(),
            };
            object.held[tier] = change.held && (tier != REMOTE || object.of.is_some());
            match object.of {
                Some(key) => self.judge(key),
                None => self.drop_unheld(change.key),
            }
        }
        std::mem::take(&mut self.events)
    }

    /// Reports the media of a block, as far as they have changed.
    fn judge(&mut self, key: CacheKey) {
        let objects = &self.objects;
        let block = self.blocks.get_mut(&key).expect("objects are of known blocks");
        let on_tier =
            |tier: usize| block.names.iter().any(|names| names.iter().all(|name| objects[name].held[tier]));
        let on = |medium| (0..).zip(MEDIA).any(|(tier, (_, of))| of == medium && on_tier(tier));
        let held: Vec<Medium> =
            [Medium::Cpu, Medium::Storage].into_iter().filter(|medium| on(*medium)).collect();
        for medium in held.iter().filter(|medium| !block.told.contains(medium)) {
            push_stored(&mut self.events, block.content.clone().on(*medium));
        }
        let gone = block.told.iter().filter(|medium| !held.contains(medium));
        self.events.extend(gone.map(|medium| CacheEvent::removed(key, *medium)));
        block.told = held;
        let loose = !(0..REMOTE).any(on_tier);
        if !std::mem::replace(&mut block.loose, loose) && loose {
            self.keep(key);
        }
    }

    /// Forgets a loose block until it is known again, and reports it as removed.
    fn forget(&mut self, key: CacheKey) {
        let Some(block) = self.blocks.remove(&key) else { return };
        self.events.extend(block.told.into_iter().map(|medium| CacheEvent::removed(key, medium)));
        for name in block.names.into_iter().flatten() {
            if let Some(object) = self.objects.get_mut(&name) {
                object.of = None;
                object.held[REMOTE] = false;
            }
            self.drop_unheld(name);
        }
    }

    fn drop_unheld(&mut self, name: BlockHash) {
        if let Entry::Occupied(object) = self.objects.entry(name)
            && object.get().of.is_none()
            && !object.get().held.contains(&true)
        {
            object.remove();
        }
    }
}

/// Appends stored blocks to the last event if they continue it; otherwise, adds a new event.
fn push_stored(events: &mut Vec<CacheEvent>, blocks: StoredBlocks) {
    let rest = match events.last_mut() {
        Some(CacheEvent::Stored(last)) => last.append(blocks),
        _ => Some(blocks),
    };
    events.extend(rest.map(CacheEvent::Stored));
}

#[cfg(test)]
#[cfg(feature = "disk")]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::sync::Arc;

    use kvblock::{BlockSize, ExtraKeys, GroupId, HashAlgorithm, HashChain, SeqContent};
    use prefetch::policy::PolicyKind;
    use prefetch::stack::TierStack;
    use prefetch::tier::{BlockLayout, DiskConfig, DiskTier, HostTier, Tier};
    #[cfg(feature = "remote")]
    use prefetch::tier::{RemoteConfig, RemoteTier, Stored};
    use proptest::prelude::*;

    use super::*;

    /// Number of blocks of the text.
    const BLOCKS: usize = 12;
    const SIZE: BlockSize = BlockSize::new(2).unwrap();
    /// Bytes of an object; a slot of a disk is a page.
    const BYTES: u32 = 64;

    #[derive(Clone, Debug)]
    enum Op {
        /// A step fills a block, whose objects are then written; the last one may fail.
        Save { block: usize, origin: usize, fails: bool },
        /// A request loads a block, which copies its objects to the host.
        Load(usize),
        /// A block is found wrong.
        Remove(usize),
        /// The engine ends, and another one opens the disk.
        Restart,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => (0..BLOCKS, 0_usize..2, prop::bool::weighted(0.1))
                .prop_map(|(block, origin, fails)| Op::Save { block, origin, fails }),
            5 => (0..BLOCKS).prop_map(Op::Load),
            1 => (0..BLOCKS).prop_map(Op::Remove),
            1 => Just(Op::Restart),
        ]
    }

    /// Names of the objects of a block: two for each of two origins.
    fn names(block: usize) -> Vec<Vec<BlockHash>> {
        let name =
            |origin: u8, part: u8| HashAlgorithm::Xxh3.hash(&[u8::try_from(block).unwrap(), origin, part]);
        (0..2).map(|origin| (0..2).map(|part| name(origin, part)).collect()).collect()
    }

    struct Machine {
        host: Arc<HostTier>,
        disk: Arc<DiskTier>,
        stack: TierStack,
        ledger: Ledger,
        /// Blocks that this engine has saved or looked for, and what its events say of all.
        known: BTreeSet<usize>,
        told: BTreeSet<(Medium, usize)>,
        contents: Vec<StoredBlocks>,
    }

    impl Machine {
        fn open(folder: &Path, host_objects: u32, disk_objects: u64) -> Self {
            let changes = Changes::default();
            let layout = BlockLayout::new(1, BYTES).unwrap();
            let host = HostTier::new(layout, host_objects, PolicyKind::Lru, None);
            host.follow(&changes);
            let config =
                DiskConfig::new(folder, layout, "test", disk_objects * 4096).changes(changes.clone());
            let (host, disk) = (Arc::new(host), Arc::new(DiskTier::open(config).unwrap()));
            let stack = TierStack::new(vec![host.clone(), disk.clone()]).unwrap();
            let tokens: Vec<u32> = (0..).take(BLOCKS * SIZE.get() as usize).collect();
            let hasher = kvblock::BlockHasher::new(HashAlgorithm::Xxh3, b"", SIZE);
            let mut chain = HashChain::new(hasher, ExtraKeys::default());
            chain.extend(&tokens);
            let content = SeqContent::new(&tokens, chain.hashes());
            let block = |at| StoredBlocks::new(content, at..at + 1, SIZE, SIZE, GroupId::new(0));
            let contents = (0..BLOCKS).map(block).collect();
            let (known, told) = (BTreeSet::new(), BTreeSet::new());
            Self { host, disk, stack, ledger: Ledger::new(changes), known, told, contents }
        }

        fn know(&mut self, block: usize) {
            self.known.insert(block);
            self.ledger.know(self.contents[block].clone(), names(block));
        }

        fn apply(&mut self, op: &Op) {
            match *op {
                Op::Save { block, origin, fails } => {
                    self.know(block);
                    let written = if fails { 1 } else { 2 };
                    for name in &names(block)[origin][..written] {
                        self.stack.store(*name, &[7; BYTES as usize]).unwrap();
                    }
                }
                Op::Load(block) => {
                    self.know(block);
                    for name in names(block).concat() {
                        let _ = self.stack.load(name, &mut [0; BYTES as usize]);
                    }
                }
                Op::Remove(block) => {
                    for name in names(block).concat() {
                        self.stack.remove(name).unwrap();
                    }
                }
                Op::Restart => {}
            }
        }

        /// Does what the events say.
        fn follow(&mut self) {
            let place =
                |hash: &BlockHash| self.contents.iter().position(|block| block.hashes[0] == *hash).unwrap();
            for event in self.ledger.take_events() {
                match event {
                    CacheEvent::Stored(blocks) => {
                        let mut parts = blocks.tokens.chunks(SIZE.get() as usize);
                        let mut parent = blocks.parent;
                        for hash in &blocks.hashes {
                            let content = &self.contents[place(hash)];
                            assert_eq!((parent, parts.next()), (content.parent, Some(&content.tokens[..])));
                            assert!(self.told.insert((blocks.medium, place(hash))), "told twice");
                            parent = Some(*hash);
                        }
                    }
                    CacheEvent::Removed { key, medium, .. } => {
                        assert!(self.told.remove(&(medium, place(&key.hash))), "never told");
                    }
                    other => panic!("{other:?}"),
                }
            }
        }

        /// The blocks whose objects of one origin are all held.
        fn held(&self) -> BTreeSet<(Medium, usize)> {
            let on = |tier: &dyn Tier, block: usize| {
                names(block).iter().any(|names| names.iter().all(|name| tier.contains(*name).unwrap()))
            };
            let blocks = || self.known.iter().copied();
            let host = blocks().filter(|block| on(&*self.host, *block)).map(|block| (Medium::Cpu, block));
            let disk = blocks().filter(|block| on(&*self.disk, *block)).map(|block| (Medium::Storage, block));
            host.chain(disk).collect()
        }
    }

    proptest! {
        #[test]
        fn the_events_say_what_the_tiers_hold(
            ops in prop::collection::vec(op(), 0..60), host in 2_u32..20, disk in 2_u64..40,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut machine = Machine::open(folder.path(), host, disk);
            for op in ops {
                machine.apply(&op);
                machine.follow();
                prop_assert_eq!(&machine.told, &machine.held(), "after {:?}", op);
                if matches!(op, Op::Restart) {
                    drop(machine);
                    machine = Machine::open(folder.path(), host, disk);
                    machine.follow();
                    prop_assert!(machine.told.is_empty());
                    // Requests look for all blocks.
                    (0..BLOCKS).for_each(|block| machine.know(block));
                    machine.follow();
                    prop_assert_eq!(&machine.told, &machine.held());
                }
            }
            // It keeps nothing of blocks that are gone.
            for block in 0..BLOCKS {
                machine.apply(&Op::Remove(block));
            }
            machine.follow();
            let of_known = machine.ledger.blocks.len();
            prop_assert!(machine.ledger.blocks.values().all(|block| block.told.is_empty()));
            prop_assert!(machine.ledger.objects.len() <= 4 * of_known, "{} objects", machine.ledger.objects.len());
        }
    }

    /// A store that others empty tells nothing, so that the last blocks alone are kept.
    #[cfg(feature = "remote")]
    #[test]
    fn the_last_blocks_of_a_remote_store_are_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let mut machine = Machine::open(folder.path(), 2, 2);
        let remote = folder.path().join("remote");
        std::fs::create_dir(&remote).unwrap();
        let layout = BlockLayout::new(1, BYTES).unwrap();
        let config = RemoteConfig::new(layout, "test").changes(machine.ledger.changes.clone());
        let remote = RemoteTier::directories(&[remote], None, config).unwrap();
        machine.ledger.max_loose = 3;
        let on_storage = |blocks: &[usize]| blocks.iter().map(|block| (Medium::Storage, *block)).collect();
        for block in 0..6 {
            machine.know(block);
            for name in &names(block)[0] {
                assert_eq!(remote.write(*name, &[7; BYTES as usize]).unwrap(), Stored::Written);
            }
            machine.follow();
        }
        assert_eq!(machine.told, on_storage(&[3, 4, 5]));
        // A request finds an older one again.
        let look = |machine: &mut Machine, block: usize| {
            remote.contains_many(&names(block)[0]).unwrap();
            machine.know(block);
            machine.follow();
        };
        look(&mut machine, 1);
        look(&mut machine, 4);
        look(&mut machine, 2);
        assert_eq!(machine.told, on_storage(&[1, 2, 4]));
        assert!(remote.remove(names(4)[0][0]).unwrap());
        machine.follow();
        assert_eq!(machine.told, on_storage(&[1, 2]));
        // What nobody of this engine knows takes no room.
        remote.contains_many(&names(3)[0]).unwrap();
        machine.follow();
        assert_eq!((machine.ledger.blocks.len(), machine.ledger.objects.len()), (3, 12));
    }
}
