//! Disks that are slow, or fail for a while, below contexts of which blocks are selected.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use attn_kernels::kernel::KvDtype;
use kvblock::BlockId;
use models::Decoder;
use models::batch::{Phase, Slice, StepOutput};
use prefetch::engine::EngineConfig;
use prefetch::testing::{DiskFaults, SimVolume};
use proptest::prelude::*;

use super::super::invariance::assert_same;
use super::super::served::{Request, serve};
use super::super::tiny::tiny;
use super::selected::{QUEST, predictions, resident, selecting};
use crate::{cases, usual};

/// A limit for what must come, so that a failed test ends.
const LONG: Duration = Duration::from_secs(60);

/// Ranks in every third step, more blocks than those at the ends.
const RANKED: &str =
    "gsa-ucm:sparse_ratio=0.3,block_size=16,init_window_sz=0,min_topk=1,max_topk=100,seg_prefill_threshold=0";

fn prompt(tokens: usize) -> Vec<u32> {
    tiny().prompts[3].ids.iter().copied().cycle().take(tokens).collect()
}

/// Whether the thread reads selected blocks.
fn reads_ahead() -> bool {
    thread::current().name().is_some_and(|name| name.starts_with("prefetch"))
}

/// Selected blocks that are late are waited for.
#[test]
fn a_slow_disk_changes_no_token_and_no_order_of_results() {
    let ids = prompt(500);
    let requests = [Request { prefill: 480, ..Request::new(&ids, 10) }, Request::new(&ids[7..330], 16)];
    for (spec, hosts) in [(QUEST, [1, 30]), (RANKED, [30, 1])] {
        let want = serve(&mut tiny().decoder(&resident(spec, KvDtype::F16)), &requests, 200);
        for &host_blocks in usual(1, &hosts) {
            let volume = SimVolume::new(9, u64::MAX);
            let options = selecting(&volume, spec, KvDtype::F16, 48, host_blocks);
            let slow: Arc<AtomicUsize> = Arc::default();
            let reads = Arc::clone(&slow);
            volume.before_read(move |_, _| {
                if reads_ahead() {
                    reads.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(15));
                }
            });
            let limits = EngineConfig::GSA.prefetch_workers(1);
            let mut decoder = tiny().decoder(&options.reads_ahead(limits));
            let got = serve(&mut decoder, &requests, 200);
            let case = format!("{spec}, {host_blocks} blocks on the host");
            for (got, want) in got.iter().zip(&want) {
                assert_eq!((&got.drawn, &got.attended), (&want.drawn, &want.attended), "{case}");
                assert_same(&case, got, want);
            }
            let moved = decoder.kv().spill().unwrap().traffic();
            assert!(moved.read_bytes > 0 && moved.errors == 0, "{case}: {moved:?}");
            let ahead = predictions(&decoder);
            assert!(ahead.used + ahead.late <= ahead.predicted, "{case}: {ahead:?}");
            assert!(ahead.predicted > 0 && slow.load(Ordering::Relaxed) > 10, "{case}: {ahead:?}, {slow:?}");
        }
    }
}

/// Two sequences whose blocks take turns in the file.
struct Pair {
    decoder: Decoder,
    ids: Vec<u32>,
    tables: Vec<Vec<BlockId>>,
}

impl Pair {
    /// Both with 256 tokens.
    fn new(decoder: Decoder) -> Self {
        let table = |n: u32| (0..26).map(|b| BlockId::new(1 + 2 * b + n)).collect();
        let mut pair = Self { decoder, ids: prompt(420), tables: vec![table(0), table(1)] };
        for range in [0..128, 128..256] {
            pair.step(&[0, 1], range, Phase::Prefill);
        }
        pair
    }

    /// A step of some of the sequences, `range` of the tokens of each. Every second one has the same.
    fn step(&mut self, of: &[usize], range: Range<usize>, phase: Phase) -> StepOutput {
        let groups: Vec<[&[BlockId]; 1]> = self.tables.iter().map(|table| [&table[..]]).collect();
        let first = u32::try_from(range.start).unwrap();
        let slice = |n: &usize| Slice {
            logits: 1,
            ..Slice::new(&self.ids[range.start + n % 2..range.end + n % 2], first, &groups[*n], phase)
        };
        let output = self.decoder.step(&of.iter().map(slice).collect::<Vec<_>>(), &[]).unwrap();
        self.decoder.kv().spill().unwrap().settle();
        output
    }

    fn decode(&mut self, of: &[usize], token: usize) -> StepOutput {
        self.step(of, token..token + 1, Phase::Decode)
    }
}

/// The logits of each sequence of a step, bit by bit.
fn bits(output: &StepOutput) -> Vec<Vec<u32>> {
    let vocab = tiny().config.vocab_size as usize;
    output.logits.chunks_exact(vocab).map(|row| row.iter().map(|v| v.to_bits()).collect()).collect()
}

/// Blocks that cannot be had are told; whoever has all of his own has the bits of a disk that is well. So has a sequence that was
/// not of the step and shares them, once the disk is well again: nothing is left of what came in their place.
#[test]
fn a_disk_that_fails_for_a_while_gives_no_wrong_token() {
    for (spec, reads) in [(QUEST, 0), (QUEST, 7), (RANKED, 0), (RANKED, 7)] {
        let case = format!("{spec}, after {reads} reads");
        let volumes = [(); 2].map(|()| SimVolume::new(10, u64::MAX));
        let [mut want, mut got] = volumes.each_ref().map(|volume| {
            let options = selecting(volume, spec, KvDtype::F16, 48, 1).max_seqs(3);
            let mut pair = Pair::new(tiny().decoder(&options));
            // A third one has the prefix of the first.
            let mut third = pair.tables[0].clone();
            third[16..].iter_mut().zip(60..).for_each(|(block, own)| *block = BlockId::new(own));
            pair.tables.push(third);
            pair
        });
        let well = [vec![0, 1], vec![1], vec![2]].map(|of| bits(&want.decode(&of, 256)));
        let (left, failing) = (AtomicUsize::new(reads), volumes[1].clone());
        volumes[1].before_read(move |_, _| {
            let less = |left: usize| left.checked_sub(1);
            if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
                let mut faults = DiskFaults::default();
                faults.read = 1000;
                failing.set_faults(faults);
            }
        });
        let hurt = got.decode(&[0, 1], 256);
        assert!(!hurt.lost.is_empty(), "{case}: nothing was lost");
        for (n, (hurt_bits, well)) in bits(&hurt).iter().zip(&well[0]).enumerate() {
            let whole = hurt.lost.iter().all(|(block, _)| !got.tables[n].contains(block));
            assert!(!whole || hurt_bits == well, "{case}: {:?}", hurt.lost);
        }
        volumes[1].before_read(|_, _| ());
        volumes[1].set_faults(DiskFaults::default());
        for (of, well) in [(1, &well[1]), (2, &well[2])] {
            let after = got.decode(&[of], 256);
            assert_eq!((after.lost.len(), &bits(&after)), (0, well), "{case}: sequence {of}");
        }
    }
}

/// Reads of blocks ahead of their use. Those of the second sequence wait while the gate is closed.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_closed: bool,
    /// Layers and blocks that were read since the gate was turned, of each sequence.
    read: [BTreeSet<(usize, usize)>; 2],
}

impl Gate {
    fn turn(&self, is_closed: bool) {
        *self.state.lock().unwrap() = GateState { is_closed, ..GateState::default() };
        self.changed.notify_all();
    }

    /// A read of K or V of a block. Of the file's blocks the odd ones are of the second sequence.
    fn pass(&self, region: usize, block: usize) {
        let mut state = self.state.lock().unwrap();
        state.read[block % 2].insert((region / 2, block));
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| state.is_closed && block % 2 == 1).unwrap());
    }

    /// The blocks of the second sequence that were read, once `count` of a sequence were.
    fn wait_for(&self, count: usize, of: usize) -> BTreeSet<(usize, usize)> {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, LONG, |state| state.read[of].len() < count);
        let (state, result) = waited.unwrap();
        assert!(!result.timed_out(), "not {count} blocks of sequence {of}: {:?}", state.read);
        state.read[1].clone()
    }
}

/// Predictions for a sequence are still to be read when that ends, since the first read of them lasts, and are not read any more.
#[test]
fn what_was_predicted_for_a_sequence_that_ended_is_not_read() {
    let volume = SimVolume::new(11, u64::MAX);
    let spec = "quest:page_budget=10,dense_layers=0,block_size=16";
    let options = selecting(&volume, spec, KvDtype::F16, 64, 1);
    // A step that repeats another one still predicts: a small cache does not hold all that the first has named.
    let limits = EngineConfig::GSA.prefetch_workers(1).prefetch_cache_size(6);
    let mut pair = Pair::new(tiny().decoder(&options.reads_ahead(limits)));
    pair.step(&[0, 1], 256..400, Phase::Prefill);
    let shape = pair.decoder.kv().spill().unwrap().shape();
    let gate: Arc<Gate> = Arc::default();
    let reads = Arc::clone(&gate);
    volume.before_read(move |_, offset| {
        let (blocks, at) = (shape.blocks as usize, usize::try_from(offset).unwrap() / shape.block_bytes);
        if reads_ahead() {
            reads.pass(at / blocks, at % blocks);
        }
    });
    let decode = |pair: &mut Pair, of: &[usize]| {
        let before = predictions(&pair.decoder).predicted;
        pair.decode(of, 400);
        predictions(&pair.decoder).predicted - before
    };
    decode(&mut pair, &[0, 1]);
    gate.turn(true);
    // The same again lacks nothing, so that no step waits at the gate, or ends what was predicted for its layer.
    assert!(decode(&mut pair, &[0, 1]) >= 10, "little is to be read");
    let under_way = gate.wait_for(1, 1);
    // The first step replaces the predictions of all layers but the last one, the second one those.
    decode(&mut pair, &[0]);
    let own = usize::try_from(decode(&mut pair, &[0])).unwrap();
    assert!(own > 0, "nothing comes after what was predicted for both");
    assert_eq!(gate.wait_for(1, 1), under_way, "one thread reads");
    gate.turn(false);
    let read = gate.wait_for(own, 0);
    assert!(read.is_subset(&under_way), "{read:?} were read, {under_way:?} were under way");
    let ahead = predictions(&pair.decoder);
    assert!(ahead.predicted > ahead.used + ahead.late, "{ahead:?}");
}

proptest! {
    #![proptest_config(cases(2))]

    /// A block that is not the one that a list names changes bits. The fetcher itself holds its cache to its limit.
    #[test]
    fn no_limit_and_no_delay_brings_a_wrong_block(
        (pages, host_blocks) in (3u32..8, 1u32..30),
        (cached, workers, pending, ahead) in (1usize..6, 1usize..5, 1usize..9, 0u32..3),
        (seed, micros) in (any::<u64>(), 0u64..800),
        from in 0usize..60,
    ) {
        let spec = format!("quest:page_budget={pages},dense_layers=0,block_size=16");
        let ids = prompt(460).split_off(from);
        let requests = [Request { prefill: ids.len() - 4, ..Request::new(&ids, 8) }, Request::new(&ids[5..250], 6)];
        let want = serve(&mut tiny().decoder(&resident(&spec, KvDtype::F16)), &requests, 200);
        let volume = SimVolume::new(seed, u64::MAX);
        let limits = EngineConfig::GSA.prefetch_cache_size(cached).prefetch_workers(workers);
        let limits = limits.max_pending_prefetch(pending).prefetch_ahead(ahead);
        let options = selecting(&volume, &spec, KvDtype::F16, 48, host_blocks).reads_ahead(limits);
        let calls = AtomicUsize::new(0);
        volume.before_read(move |_, _| {
            // Some are fast.
            let slow = calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(3);
            thread::sleep(Duration::from_micros(if slow { micros } else { 0 }));
        });
        let mut decoder = tiny().decoder(&options);
        let got = serve(&mut decoder, &requests, 200);
        for (got, want) in got.iter().zip(&want) {
            prop_assert_eq!((&got.drawn, &got.attended), (&want.drawn, &want.attended));
            prop_assert_eq!(got.bits(), want.bits());
        }
        let counts = predictions(&decoder);
        prop_assert!(counts.used + counts.late <= counts.predicted, "{counts:?}");
        prop_assert!(ahead > 0 || counts.predicted == 0, "{counts:?}");
    }
}
