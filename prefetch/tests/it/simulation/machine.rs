//! The machine: what it does next, what may fail meanwhile, and what must hold.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvblock::SeqId;
use prefetch::clock::Clock as _;
use prefetch::engine::{EngineConfig, Loaded, Submission, TaskBoard, TaskKey, TaskOutcome};
use prefetch::plan::Priority;
use prefetch::policy::PolicyKind;
use prefetch::stack::TierStack;
use prefetch::testing::{DiskFaults, Rng, SimVolume};
use prefetch::tier::{
    DiskConfig, DiskTier, HostTier, MacKey, RemoteConfig, RemoteTier, Stored, Tier, TierError, TierName,
    Volume as _,
};

use super::counts::Counts;
use super::service::{ServiceFaults, SimClock, SimService};
use crate::conformance::{block, key, layout};

/// Blocks that requests share.
const BLOCKS: u16 = 24;
const HOST_BLOCKS: u32 = 5;
const DISK_BLOCKS: u32 = 10;
const SEQUENCES: u64 = 6;
/// A disk on which the index and all slots fit.
const ROOM: u64 = 1 << 20;

const BOARD: EngineConfig = {
    let mut config = EngineConfig::GSA;
    config.prefetch_workers = 3;
    config.max_pending_prefetch = 4;
    config.prefetch_cache_size = 9;
    config
};

pub(super) struct Machine {
    rng: Rng,
    clock: SimClock,
    volume: SimVolume,
    service: SimService,
    mac: Option<MacKey>,
    /// Only missing while it cannot be opened.
    process: Option<Process>,
    generation: u64,
    pub(super) counts: Counts,
}

/// All that a kill takes.
struct Process {
    stack: TierStack,
    disk: Arc<DiskTier>,
    remote: Arc<RemoteTier>,
    is_writable: bool,
    board: TaskBoard,
    step: u64,
    /// Loads that workers have taken and not brought back.
    taken: Vec<prefetch::kvblock::BlockHash>,
    /// Blocks of the tasks that have not ended.
    open: Vec<(TaskKey, Vec<u16>)>,
}

impl Machine {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let clock = SimClock::default();
        let service = SimService::new(rng.split(), clock.clone());
        let volume = SimVolume::new(rng.bits(), ROOM);
        let mac = rng.chance(500).then(|| MacKey::new([rng.bits().to_le_bytes()[0]; 32]));
        let counts = Counts::default();
        let mut machine = Self { rng, clock, volume, service, mac, process: None, generation: 0, counts };
        machine.start();
        machine
    }

    /// Starts a process on what the last one left.
    fn start(&mut self) {
        let mut config =
            DiskConfig::new(Path::new("simulated"), layout(), "simulation", u64::from(DISK_BLOCKS) * 4096);
        config.blocks_per_sync = 3;
        let is_writable = self.volume.is_writable();
        let Ok(disk) = DiskTier::on(Arc::new(self.volume.clone()), config) else {
            self.counts.failed_opens += 1;
            return;
        };
        let disk = Arc::new(disk);
        let mut config = RemoteConfig::new(layout(), "simulation");
        config.mac = self.mac.clone();
        let remote =
            RemoteTier::over(vec![Arc::new(self.service.clone())], Arc::new(self.clock.clone()), config);
        let remote = Arc::new(remote);
        let host = HostTier::new(layout(), HOST_BLOCKS, PolicyKind::Lru, None);
        let tiers: Vec<Arc<dyn Tier>> = vec![Arc::new(host), disk.clone(), remote.clone()];
        let stack = TierStack::new(tiers).expect("three tiers of one layout");
        let board = TaskBoard::new(BOARD);
        let (taken, open) = (Vec::new(), Vec::new());
        self.process = Some(Process { stack, disk, remote, is_writable, board, step: 0, taken, open });
    }

    /// Does one thing.
    pub(super) fn step(&mut self) {
        match self.rng.below(100) {
            0 => self.change_faults(),
            1 => self.kill(),
            2..4 => self.clock.advance(Duration::from_millis(self.rng.below(3000))),
            _ if self.process.is_none() => self.start(),
            4..30 => self.store(),
            30..50 => self.load(),
            50..60 => self.submit(),
            60..92 => self.work(),
            92..94 => self.cancel(),
            94..96 => self.remove(),
            96..98 => {
                let flushed = self.running().stack.flush();
                self.counts.failed_flushes += u64::from(flushed.is_err());
            }
            _ => {
                let process = self.running();
                process.step += 1;
                process.board.advance(process.step);
            }
        }
        self.check();
        if self.volume.is_dead() {
            self.kill();
        }
    }

    fn running(&mut self) -> &mut Process {
        self.process.as_mut().expect("other operations start one")
    }

    fn any_block(&mut self) -> u16 {
        u16::try_from(self.rng.below(BLOCKS.into())).expect("below a u16")
    }

    fn change_faults(&mut self) {
        let quiet = self.rng.chance(300);
        let mut chance =
            |most: u64| if quiet { 0 } else { u16::try_from(self.rng.below(most)).expect("a share") };
        let mut disk = DiskFaults::default();
        (disk.short, disk.interrupted, disk.flip) = (chance(300), chance(100), chance(50));
        (disk.read, disk.write, disk.sync, disk.open) = (chance(200), chance(200), chance(200), chance(200));
        let service =
            ServiceFaults { lost: chance(200), late: chance(200), forged: chance(200), meddled: chance(100) };
        self.volume.set_faults(disk);
        self.service.set_faults(service);
        let room = if quiet { ROOM } else { self.rng.below(2 * u64::from(DISK_BLOCKS) * 4096) };
        self.volume.set_capacity(room);
        self.volume.set_writable(quiet || self.rng.chance(900));
        if self.rng.chance(300) {
            self.volume.kill_after(self.rng.below(60_000));
        }
    }

    /// Kills the process; what waited for it ends.
    fn kill(&mut self) {
        self.volume.kill();
        if let Some(mut process) = self.process.take() {
            process.board.cancel_all();
            process.settle(&mut self.counts);
            assert!(process.open.is_empty(), "{:?} never ended", process.open);
        }
        let power_lost = self.rng.chance(400);
        self.counts.kills += 1;
        self.counts.power_losses += u64::from(power_lost);
        self.volume.restart(power_lost);
        self.start();
    }

    fn store(&mut self) {
        let n = self.any_block();
        // Memory takes every block, so that nobody is told of a tier that does not: a flush is.
        self.running().stack.store(key(n), &block(n)).expect("memory takes every block");
        self.counts.stores += 1;
    }

    fn load(&mut self) {
        let n = self.any_block();
        let mut bytes = vec![0; layout().block_bytes()];
        let loaded = self.running().stack.load(key(n), &mut bytes);
        self.counts.loads += 1;
        match loaded {
            Ok(_) => assert_eq!(bytes, block(n), "block {n}"),
            Err(_) => self.counts.failed_loads += 1,
        }
    }

    /// A request that will run soon: blocks of one prefix that a lookup finds, or says it finds.
    fn submit(&mut self) {
        let (first, seq) = (self.any_block(), SeqId::new(self.rng.below(SEQUENCES)));
        let len = 1 + u16::try_from(self.rng.below(6)).expect("below 6");
        let wanted: Vec<u16> = (first..(first + len).min(BLOCKS)).collect();
        let (ahead, priority) = (self.rng.below(4), Priority::ALL[self.rng.index(Priority::ALL.len())]);
        self.generation += 1;
        let key_of = TaskKey { seq, generation: self.generation };
        let process = self.running();
        let found = process.stack.lookup_prefix(&wanted.iter().map(|n| key(*n)).collect::<Vec<_>>()).len();
        let wanted = wanted[..found].to_vec();
        let blocks = wanted.iter().map(|n| key(*n)).collect();
        let submission = Submission::new(key_of, priority, blocks).step(process.step + ahead);
        if process.board.submit(submission).is_ok() {
            process.open.push((key_of, wanted));
            self.counts.tasks += 1;
        }
        self.settle();
    }

    /// A worker takes a load, or brings one back: they end in any order.
    fn work(&mut self) {
        let (finishes, pick) = (self.rng.chance(500), self.rng.bits());
        let now = self.clock.now();
        let process = self.running();
        if !finishes && process.taken.len() < BOARD.prefetch_workers {
            let next = process.board.next_load(now);
            process.taken.extend(next);
        } else if !process.taken.is_empty() {
            let at = usize::try_from(pick % process.taken.len() as u64).expect("below a length");
            let block = process.taken.swap_remove(at);
            let mut bytes = vec![0; layout().block_bytes()];
            let loaded = process.stack.load(block, &mut bytes);
            let loaded = loaded.map(|tier| Loaded { bytes: bytes.into(), tier }).map_err(Arc::new);
            process.board.finish(block, loaded, now);
        }
        self.settle();
    }

    fn cancel(&mut self) {
        let seq = SeqId::new(self.rng.below(SEQUENCES));
        self.running().board.cancel(seq);
        self.settle();
    }

    fn remove(&mut self) {
        let n = self.any_block();
        drop(self.running().stack.remove(key(n)));
    }

    fn settle(&mut self) {
        let Self { process, counts, .. } = self;
        process.as_mut().expect("other operations start one").settle(counts);
    }

    /// Invariants after every operation.
    fn check(&mut self) {
        self.counts.forgeries = self.service.lies();
        let Some(process) = &self.process else { return };
        assert!(process.board.cached_blocks() <= BOARD.prefetch_cache_size);
        assert!(process.board.pending() <= BOARD.max_pending_prefetch);
        assert_eq!(process.board.pending(), process.open.len(), "a task ended without a word, or twice");
        let names = self.volume.names();
        assert!(names.len() <= 4, "files are left behind: {names:?}");
    }

    /// Nothing fails any more: every task ends, and every tier serves again.
    pub(super) fn recover(&mut self) {
        self.volume.set_faults(DiskFaults::default());
        self.volume.set_capacity(ROOM);
        self.volume.set_writable(true);
        self.service.set_faults(ServiceFaults::default());
        self.service.settle();
        self.clock.advance(Duration::from_secs(10));
        // What was opened read-only, or with an index for few blocks, stays so.
        let is_small = |process: &Process| process.disk.capacity_blocks() < Some(DISK_BLOCKS.into());
        if self.process.as_ref().is_none_or(|process| !process.is_writable || is_small(process)) {
            self.kill();
        }
        while self.process.as_ref().is_some_and(|process| process.board.pending() + process.taken.len() > 0) {
            self.work();
        }
        self.check();
        // After a sync that failed, the system may show files otherwise than the disk has them, and a tier that opens them
        // cannot know: a power loss tells.
        self.kill_calmly();
        // Objects that somebody changed are found out when they are read.
        let mut bytes = vec![0; layout().block_bytes()];
        (0..4).for_each(|n| drop(self.running().remote.read_block(key(n), &mut bytes)));
        for n in 0..BLOCKS {
            let removed = self.running().stack.remove(key(n));
            assert!(removed.is_ok(), "block {n}: {removed:?}");
        }
        // The disk serves what memory no longer has, and the service what the disk no longer has.
        for tier in [TierName::HOST, TierName::DISK, TierName::REMOTE] {
            for n in 0..4 {
                let process = self.process.as_ref().expect("it starts without faults");
                let stored = process.stack.store(key(n), &block(n));
                assert!(stored.is_ok(), "block {n}: {stored:?}");
            }
            for n in 0..4 {
                let written = self.running().disk.write(key(n), &block(n));
                assert!(matches!(written, Ok(Stored::AlreadyThere)), "block {n} on disk: {written:?}");
            }
            self.running().stack.flush().expect("nothing fails");
            match tier {
                TierName::DISK => self.kill_calmly(),
                TierName::REMOTE => {
                    (0..4).for_each(|n| assert!(self.running().disk.remove(key(n)).expect("nothing fails")));
                    self.running().stack.flush().expect("nothing fails");
                    self.kill_calmly();
                }
                _ => {}
            }
            for n in 0..4 {
                let mut bytes = vec![0; layout().block_bytes()];
                let served = self.running().stack.load(key(n), &mut bytes);
                assert!(
                    matches!(served, Ok(name) if name == tier),
                    "block {n}: {served:?}, not by the {tier} tier"
                );
                assert_eq!(bytes, block(n));
            }
        }
    }

    fn kill_calmly(&mut self) {
        self.volume.kill();
        self.process = None;
        self.volume.restart(true);
        self.start();
    }
}

impl Process {
    /// Checks the tasks that ended.
    fn settle(&mut self, counts: &mut Counts) {
        for settled in self.board.take_settled() {
            let at = self.open.iter().position(|(key, _)| *key == settled.key).expect("a task ends once");
            let (_, blocks) = self.open.swap_remove(at);
            match settled.outcome {
                TaskOutcome::Ready { loaded, cached } => {
                    assert_eq!((loaded + cached) as usize, blocks.len());
                    for n in blocks {
                        let bytes = self.board.get(key(n));
                        assert!(bytes.is_none_or(|bytes| *bytes == *block(n)), "block {n} is wrong");
                    }
                }
                TaskOutcome::Failed(bad) => {
                    assert!(
                        !bad.is_empty()
                            && bad.iter().all(|bad| bad.block == key(blocks[bad.position as usize]))
                    );
                    assert!(
                        bad.iter().all(|bad| !matches!(*bad.error, TierError::Panicked { .. })),
                        "{bad:?}"
                    );
                }
                TaskOutcome::Cancelled => counts.cancelled += 1,
                other => panic!("a board has no {other:?}"),
            }
        }
    }
}
