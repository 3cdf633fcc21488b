//! Policies that select among blocks on disk, all of them or those that memory of the host does not hold.

use attn_kernels::kernel::KvDtype;
use insta::assert_snapshot;
use kvblock::BlockId;
use models::batch::{Phase, Slice};
use models::{Decoder, DecoderOptions, HostMemory, Predictions, SelectionPlace, SparseOptions};
use prefetch::engine::EngineConfig;
use prefetch::testing::{DiskFaults, SimVolume};

use super::super::invariance::assert_same;
use super::super::served::{Request, serve};
use super::super::tiny::tiny;
use super::{Mapped, on_volume, roomy};
use crate::{is_long, usual};

/// Blocks beside `spec`, of which `host_blocks` lie in memory of the host, 1 for the null block alone, and the others on the disk
/// of `volume`, whose calls move less than was asked for and are interrupted; of the device's `num_blocks` most are slots.
pub(super) fn selecting(
    volume: &SimVolume,
    spec: &str,
    kv_dtype: KvDtype,
    num_blocks: u32,
    host_blocks: u32,
) -> DecoderOptions {
    let mut faults = DiskFaults::default();
    (faults.short, faults.interrupted) = (100, 100);
    volume.set_faults(faults);
    let memory = if host_blocks > 1 { Mapped } else { HostMemory::Device };
    let sizes = [16, num_blocks, host_blocks, 2];
    on_volume(volume, &tiny().config, resident(spec, kv_dtype), memory, sizes)
}

/// Options of the same policy with all KV on the device.
pub(super) fn resident(spec: &str, kv_dtype: KvDtype) -> DecoderOptions {
    let policy = sparse_select::build(spec).unwrap().into();
    roomy(16).kv_dtype(kv_dtype).sparse(SparseOptions::new(policy, SelectionPlace::Device).trace(true))
}

pub(super) fn predictions(decoder: &Decoder) -> Predictions {
    decoder.page_traffic().unwrap().unwrap().predictions.unwrap()
}

pub(super) const QUEST: &str = "quest:page_budget=6,dense_layers=0,block_size=16";
pub(super) const UCM: &str =
    "gsa-ucm:sparse_ratio=0.2,block_size=32,min_topk=1,max_topk=100,seg_prefill_threshold=0";

#[test]
fn selected_blocks_of_contexts_on_disk_give_the_same_bits() {
    let ids: Vec<u32> = tiny().prompts[3].ids.iter().copied().cycle().take(700).collect();
    let requests = [Request { prefill: 680, ..Request::new(&ids, 10) }, Request::new(&ids[7..330], 16)];
    // A host of one block has the null block alone; of 40 the first sequence's blocks are in both places. By default each
    // policy has one of them.
    let cases = [
        (QUEST, KvDtype::F16, 64, &[1, 40][..]),
        // More pages than there are slots: partition by partition.
        ("quest:page_budget=20,dense_layers=0,block_size=16", KvDtype::F16, 48, &[40, 1]),
        ("gsa:scoring=mean_k,sparse_ratio=0.3,block_size=16", KvDtype::F16, 64, &[1]),
        ("kvcomp:block_size=16,topk_tokens=96,length_threshold=96", KvDtype::F16, 64, &[60, 1]),
        (UCM, KvDtype::F16, 64, &[1, 41]),
        (QUEST, KvDtype::Int8, 64, &[1, 9]),
        ("quest:page_budget=6,dense_layers=1,block_size=16", KvDtype::F16, 64, &[1, 40]),
    ];
    for &(spec, kv_dtype, num_blocks, hosts) in usual(3, &cases) {
        let want = serve(&mut tiny().decoder(&resident(spec, kv_dtype)), &requests, 200);
        for host_blocks in usual(1, hosts) {
            let volume = SimVolume::new(3, u64::MAX);
            let options = selecting(&volume, spec, kv_dtype, num_blocks, *host_blocks);
            // Those on the host, and the keys that are taken in, in several buffers.
            let buffer_blocks = if *host_blocks > 1 { 25 } else { u32::MAX };
            let offload = options.offload.map(|offload| offload.buffer_blocks(buffer_blocks));
            let mut decoder = tiny().decoder(&options.offload(offload));
            let got = serve(&mut decoder, &requests, 200);
            let case = format!("{spec}, {kv_dtype:?}, {host_blocks} blocks on the host");
            for (got, want) in got.iter().zip(&want) {
                assert_eq!(got.attended, want.attended, "{case}");
                assert_same(&case, got, want);
            }
            let traffic = decoder.page_traffic().unwrap().unwrap();
            assert!(traffic.hits > 0 && traffic.misses > 0 && traffic.prefetched == 0, "{case}: {traffic:?}");
            let moved = decoder.kv().spill().unwrap().traffic();
            assert!(moved.read_bytes > 0 && moved.errors == 0, "{case}: {moved:?}");
        }
    }
}

/// Positions and earlier accesses choose in prefill too, where tiles of rows add up in another order.
#[test]
fn positions_select_among_blocks_on_disk() {
    let ids: Vec<u32> = tiny().prompts[3].ids.iter().copied().cycle().take(500).collect();
    let requests = [Request { prefill: 490, ..Request::new(&ids, 6) }];
    let specs = [
        "gsa:block_size=16",
        "streaming:sink=1,recent=6,block_size=16+quest:page_budget=6,dense_layers=0,block_size=16",
        "streaming:sink=1,recent=6,block_size=16",
    ];
    let mut hosts = [1, 16];
    for &spec in usual(2, &specs) {
        hosts.rotate_left(1);
        let want = serve(&mut tiny().decoder(&resident(spec, KvDtype::F16)), &requests, 128);
        for &host_blocks in usual(1, &hosts) {
            let volume = SimVolume::new(4, u64::MAX);
            let options = selecting(&volume, spec, KvDtype::F16, 64, host_blocks);
            let got = serve(&mut tiny().decoder(&options), &requests, 128);
            assert_eq!(got[0].drawn, want[0].drawn, "{spec}");
            let apart = got[0].logits.iter().zip(&want[0].logits).map(|(a, b)| (a - b).abs());
            let worst = apart.fold(0.0, f32::max);
            assert!(worst < 1e-3, "{spec}, {host_blocks} blocks on the host: a logit differs by {worst}");
        }
    }
}

#[test]
fn what_may_be_selected_next_is_read_ahead_within_the_cache() {
    let ids: Vec<u32> = tiny().prompts[3].ids.iter().copied().cycle().take(700).collect();
    let prefill = if is_long() { 640 } else { 680 };
    let requests = [Request { prefill, ..Request::new(&ids, 20) }];
    let served = |limits: EngineConfig, host_blocks| {
        let volume = SimVolume::new(5, u64::MAX);
        let options = selecting(&volume, QUEST, KvDtype::F16, 48, host_blocks);
        let mut decoder = tiny().decoder(&options.reads_ahead(limits));
        let served = serve(&mut decoder, &requests, 200);
        (served, predictions(&decoder))
    };
    let (want, all) = served(EngineConfig::GSA, 1);
    // Half of the blocks on the host are never asked of the disk.
    let (got, half) = served(EngineConfig::GSA, 21);
    assert_same("half on the host", &got[0], &want[0]);
    for ahead in [all, half] {
        assert!(ahead.predicted > 0 && ahead.used + ahead.late > 0, "{ahead:?}");
        assert!(ahead.used + ahead.late <= ahead.predicted, "{ahead:?}");
    }
    assert!(half.predicted < all.predicted, "{half:?}, {all:?}");
    // A cache of one block, and no window to predict for: everything is read when it is needed.
    for limits in [
        EngineConfig::GSA.prefetch_cache_size(1),
        EngineConfig::GSA.prefetch_workers(1).max_pending_prefetch(1),
    ] {
        assert_same("small limits", &served(limits, 1).0[0], &want[0]);
    }
    let (got, none) = served(EngineConfig::GSA.prefetch_ahead(0), 1);
    assert_same("nothing ahead", &got[0], &want[0]);
    assert_eq!(none, Predictions::default());
}

#[test]
fn blocks_that_change_are_not_found_as_they_were() {
    [1, 12].into_iter().for_each(blocks_change);
}

fn blocks_change(host_blocks: u32) {
    let ids: Vec<u32> = tiny().prompts[3].ids.iter().copied().cycle().take(500).collect();
    let requests = [Request { prefill: 490, ..Request::new(&ids, 4) }];
    let volume = SimVolume::new(6, u64::MAX);
    let options = selecting(&volume, QUEST, KvDtype::F16, 48, host_blocks);
    let mut decoder = tiny().decoder(&options);
    let want = serve(&mut decoder, &requests, 200);
    // Another request takes the same blocks.
    let other: Vec<u32> = ids.iter().rev().copied().collect();
    serve(&mut decoder, &[Request { prefill: 495, ..Request::new(&other, 2) }], 200);
    assert_same("after another", &serve(&mut decoder, &requests, 200)[0], &want[0]);
    // And something other than a step writes them: what they held comes back.
    let blocks: Vec<BlockId> = (1..40).map(BlockId::new).collect();
    let contents = decoder.read_blocks(&blocks).unwrap();
    for id in &blocks {
        decoder.write_block(*id, &vec![7; contents[0].len()]).unwrap();
    }
    for (id, contents) in blocks.iter().zip(&contents) {
        decoder.write_block(*id, contents).unwrap();
    }
    let mut step = |tokens: std::ops::Range<usize>, phase| {
        let groups = [&blocks[..]];
        let slice = Slice {
            logits: 1,
            ..Slice::new(&ids[tokens.clone()], u32::try_from(tokens.start).unwrap(), &groups, phase)
        };
        decoder.step(&[slice], &[]).unwrap().logits
    };
    // A prefix of 480 tokens that is found there.
    let behind = [step(480..490, Phase::Prefill), step(490..491, Phase::Decode)].concat();
    let vocab = tiny().config.vocab_size as usize;
    let rows = [489, 490].map(|row| want[0].logits[row * vocab..][..vocab].to_vec()).concat();
    assert_eq!(
        behind.iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
        rows.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
    );
}

#[test]
fn a_disk_that_loses_selected_blocks_ends_their_sequence_alone() {
    [1, 15].into_iter().for_each(lose_selected);
}

fn lose_selected(host_blocks: u32) {
    let volume = SimVolume::new(7, u64::MAX);
    let options = selecting(&volume, QUEST, KvDtype::F16, 64, host_blocks);
    let mut decoder = tiny().decoder(&options);
    let shape = decoder.kv().spill().unwrap().shape();
    assert!(shape.blocks.is_multiple_of(2), "regions begin with a block of the first sequence");
    let ids: Vec<u32> = tiny().prompts[3].ids.iter().copied().cycle().take(420).collect();
    let tables = [0, 1].map(|n| (0..26).map(|b| BlockId::new(1 + 2 * b + n)).collect::<Vec<_>>());
    let mut step = |range: std::ops::Range<usize>, phase| {
        let groups = tables.each_ref().map(|table| [&table[..]]);
        let slice = |n: usize| Slice {
            logits: 1,
            ..Slice::new(
                &ids[range.start + n..range.end + n],
                u32::try_from(range.start).unwrap(),
                &groups[n],
                phase,
            )
        };
        let output = decoder.step(&[slice(0), slice(1)], &[]).unwrap();
        decoder.kv().spill().unwrap().settle();
        output
    };
    step(0..128, Phase::Prefill);
    step(128..256, Phase::Prefill);
    // Every second block, those of the first sequence: the first block beyond the host is number 0 of the file.
    let block = shape.block_bytes;
    volume.change("spill", |bytes| {
        for at in (0..bytes.len()).step_by(2 * block) {
            bytes[at] ^= 1;
        }
    });
    let hurt = step(256..257, Phase::Decode);
    assert!(!hurt.lost.is_empty());
    let of_first = |block: &BlockId| block.get() >= host_blocks && tables[0].contains(block);
    assert!(hurt.lost.iter().all(|(block, _)| of_first(block)), "{:?}", hurt.lost);
}

#[test]
fn policies_whose_keys_must_be_at_hand_keep_off_the_disk() {
    let refused = |spec: &str, place| {
        let policy = sparse_select::build(spec).unwrap().into();
        let sparse = roomy(16).sparse(SparseOptions::new(policy, place));
        let volume = SimVolume::new(8, u64::MAX);
        let options = on_volume(&volume, &tiny().config, sparse, HostMemory::Device, [16, 64, 1, 2]);
        tiny().try_decoder(&options).unwrap_err().to_string()
    };
    let told = refused("xattn:block_size=16", SelectionPlace::Device);
    assert_snapshot!(told, @"KV blocks in memory of the host need a policy that selects by position, or that kernels rank by digests or hashes, where they lie on disk");
    assert_eq!(refused("quest:block_size=16", SelectionPlace::Host), told);
    assert_eq!(refused("quest:mass=0.9,block_size=16", SelectionPlace::Device), told);
}
