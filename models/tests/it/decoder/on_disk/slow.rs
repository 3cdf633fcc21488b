//! Disks that are slow, or fail for a while, below contexts of which blocks are selected.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
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

/// Predictions for a sequence are still to be read when that ends, since they are read slowly, and are not read any more.
#[test]
fn what_was_predicted_for_a_sequence_that_ended_is_not_read() {
    let volume = SimVolume::new(11, u64::MAX);
    let spec = "quest:page_budget=10,dense_layers=0,block_size=16";
    let options = selecting(&volume, spec, KvDtype::F16, 64, 1);
    let options = options.reads_ahead(EngineConfig::GSA.prefetch_workers(1));
    let mut pair = Pair::new(tiny().decoder(&options));
    pair.step(&[0, 1], 256..400, Phase::Prefill);
    pair.decode(&[0, 1], 400);
    let shape = pair.decoder.kv().spill().unwrap().shape();
    // Of the file's blocks the odd ones are of the second sequence.
    let read: Arc<Mutex<BTreeSet<usize>>> = Arc::default();
    let reads = Arc::clone(&read);
    volume.before_read(move |_, offset| {
        let block = usize::try_from(offset).unwrap() / shape.block_bytes % shape.blocks as usize;
        if reads_ahead() && block % 2 == 1 {
            reads.lock().unwrap().insert(block);
            thread::sleep(Duration::from_millis(60));
        }
    });
    let before = predictions(&pair.decoder).predicted;
    pair.decode(&[0, 1], 401);
    assert!(predictions(&pair.decoder).predicted >= before + 10, "little is to be read");
    // The same again lacks nothing, which would end what was predicted for its layer. The first step replaces the predictions
    // of all layers but the last one, the second one those.
    pair.decode(&[0], 401);
    pair.decode(&[0], 401);
    // One may be on its way.
    thread::sleep(Duration::from_millis(150));
    read.lock().unwrap().clear();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(*read.lock().unwrap(), BTreeSet::new());
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
