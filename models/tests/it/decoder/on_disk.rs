//! Contexts larger than the pool on the device and the host's part of it together: the rest lies on disk.

use std::sync::Arc;

use attn_kernels::kernel::KvDtype;
use insta::assert_snapshot;
use kvblock::BlockId;
use models::batch::{Phase, Slice, StepOutput};
use models::{
    Decoder, DecoderConfig, DecoderOptions, HostMemory, KvPlan, Offload, Place, Predictions, SparseOptions,
};
use prefetch::engine::EngineConfig;
use prefetch::spill::Spill;
use prefetch::testing::{DiskFaults, SimVolume};
use prefetch::tier::{Access, Volume};

use super::invariance::assert_same;
use super::served::{Request, serve};
use super::tiny::{family, tiny};
use super::{blocks_of, options};

use HostMemory::{Mapped, Staged};

/// Sizes of a pool: tokens a block, blocks on the device and on the host, slots of the ring.
type Sizes = [u32; 4];

fn roomy(block_size: u32) -> DecoderOptions {
    blocks_of(block_size, &options(KvDtype::F16).reproducible(true)).num_blocks(3200 / block_size)
}

/// Up to 3,200 tokens on a disk whose calls move less than was asked for, and are interrupted.
fn on_disk(
    config: &DecoderConfig,
    options: DecoderOptions,
    memory: HostMemory,
    sizes: Sizes,
) -> DecoderOptions {
    let volume = SimVolume::new(u64::from(sizes[1]), u64::MAX);
    let mut faults = DiskFaults::default();
    (faults.short, faults.interrupted) = (100, 100);
    volume.set_faults(faults);
    on_volume(&volume, config, options, memory, sizes)
}

fn on_volume(
    volume: &SimVolume,
    config: &DecoderConfig,
    options: DecoderOptions,
    memory: HostMemory,
    [block_size, num_blocks, host_blocks, ring_slots]: Sizes,
) -> DecoderOptions {
    let options = blocks_of(block_size, &options).num_blocks(num_blocks);
    let shape = KvPlan::new(config, options.kv()).unwrap().spill_shape(3200 / block_size).unwrap();
    let file = volume.open("spill", Access::Replace, true).unwrap();
    // Memory for five blocks: chunks of sixteen come in parts.
    let spill = Spill::new(file, "spill", shape, 5 * shape.block_bytes).unwrap();
    options.offload(Offload::new(host_blocks, ring_slots, memory)).spill(Arc::new(spill))
}

#[test]
fn a_context_that_goes_on_to_the_disk_gives_the_same_bits() {
    let ids: Vec<u32> = tiny().prompts[3].ids.iter().copied().cycle().take(900).collect();
    let requests = [Request { prefill: 890, ..Request::new(&ids, 6) }, Request::new(&ids[7..330], 4)];
    for kv_dtype in [KvDtype::F16, KvDtype::Int8, KvDtype::Fp8] {
        let want = serve(&mut tiny().decoder(&roomy(16).kv_dtype(kv_dtype)), &requests, 200);
        let pools: &[(HostMemory, Sizes)] = match kv_dtype {
            KvDtype::F16 => &[
                (Mapped, [16, 17, 20, 2]),
                (Staged, [16, 33, 20, 2]),
                (Mapped, [16, 40, 0, 1]),
                (Staged, [4, 150, 30, 3]),
            ],
            _ => &[(Mapped, [16, 33, 10, 2])],
        };
        for (memory, sizes) in pools {
            let options = on_disk(&tiny().config, roomy(16).kv_dtype(kv_dtype), *memory, *sizes);
            let mut decoder = tiny().decoder(&options);
            let got = serve(&mut decoder, &requests, 200);
            for (got, want) in got.iter().zip(&want) {
                assert_same(&format!("{kv_dtype:?}, {memory:?}, {sizes:?}"), got, want);
            }
            let moved = decoder.kv().spill().unwrap().traffic();
            assert!(moved.read_bytes > moved.written_bytes && moved.errors == 0, "{moved:?}");
        }
    }
}

#[test]
fn windows_sinks_latents_and_tiles_go_on_to_the_disk() {
    for name in ["tiny-mistral", "tiny-gpt-oss", "tiny-deepseek-v3"] {
        let tiny = family(name);
        let ids: Vec<u32> = tiny.prompts[3].ids.iter().copied().cycle().take(600).collect();
        let requests = [Request { prefill: 590, ..Request::new(&ids, 5) }];
        let base = roomy(16).recycle(false);
        let want = serve(&mut tiny.decoder(&base), &requests, 250);
        let options = on_disk(&tiny.config, base.clone(), Mapped, [16, 20, 6, 2]);
        assert_same(name, &serve(&mut tiny.decoder(&options), &requests, 250)[0], &want[0]);
        // Rows of prefills in tiles: the sum over a chunk is rounded between chunks.
        let base = base.reproducible(false).kv_dtype(KvDtype::F32);
        let want = serve(&mut tiny.decoder(&base), &requests, 250);
        let options = on_disk(&tiny.config, base, Mapped, [16, 20, 6, 2]);
        let got = serve(&mut tiny.decoder(&options), &requests, 250);
        let pairs = got[0].logits.iter().zip(&want[0].logits);
        let apart = pairs.map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-4 && got[0].drawn == want[0].drawn, "{name}: logits are {apart} apart");
    }
}

#[test]
fn blocks_move_to_the_disk_and_back() {
    for memory in [Mapped, Staged] {
        let mut decoder = tiny().decoder(&on_disk(&tiny().config, roomy(16), memory, [16, 12, 4, 2]));
        // 1 block is resident, 4 lie on the host, the others on disk; 8 was never written.
        let ids = [0, 3, 6, 7, 8, 20].map(BlockId::new);
        let words = u32::try_from(decoder.read_blocks(&ids).unwrap()[0].len()).unwrap();
        let contents =
            |n: u32| (0..words).map(|word| if n == 4 { 0 } else { word * 8 + n }).collect::<Vec<u32>>();
        for (id, n) in ids.iter().zip(0..).filter(|(_, n)| *n != 4) {
            decoder.write_block(*id, &contents(n)).unwrap();
        }
        assert_eq!(decoder.read_blocks(&ids).unwrap(), (0..6).map(contents).collect::<Vec<_>>());
        let copies = [(0, 30), (2, 31), (5, 2), (1, 32), (3, 4)].map(|(n, to)| (ids[n], BlockId::new(to)));
        decoder.copy_blocks(&copies).unwrap();
        let copies = decoder.read_blocks(&[30, 31, 2, 32, 4].map(BlockId::new)).unwrap();
        assert_eq!(copies, [0, 2, 5, 1, 3].map(contents));
    }
}

/// Two sequences of 256 tokens in blocks on disk, and one more token of each once `fault` has happened.
fn two_steps(fault: impl Fn(&SimVolume, &Decoder)) -> (Vec<BlockId>, StepOutput) {
    let volume = SimVolume::new(1, u64::MAX);
    let options = on_volume(&volume, &tiny().config, roomy(16), Mapped, [16, 24, 4, 2]);
    let mut decoder = tiny().decoder(&options);
    let first = decoder.kv().num_blocks() - decoder.kv().disk_blocks();
    // The second one's blocks lie between those of the first.
    let tables = [0, 1].map(|n| (0..17).map(|b| BlockId::new(first + 2 * b + n)).collect::<Vec<_>>());
    let ids: Vec<u32> = tiny().prompts[3].ids.iter().copied().cycle().take(260).collect();
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
        if phase == Phase::Prefill {
            assert!(output.lost.is_empty());
            fault(&volume, &decoder);
        }
        output
    };
    step(0..256, Phase::Prefill);
    let output = step(256..257, Phase::Decode);
    (tables[0].clone(), output)
}

#[test]
fn lost_blocks_are_told_and_cost_no_other_sequence_a_bit() {
    let (table, whole) = two_steps(|_, _| ());
    assert!(whole.lost.is_empty());
    let (_, hurt) = two_steps(|volume, decoder| {
        let shape = decoder.kv().spill().unwrap().shape();
        // Number 6 of the file is block 3 of the first sequence; V of the second layer is region 3.
        let at = (3 * shape.blocks as usize + 6) * shape.block_bytes;
        volume.change("spill", |bytes| bytes[at + 5] ^= 4);
    });
    let told: Vec<String> = hurt.lost.iter().map(|(block, error)| format!("{block:?}: {error}")).collect();
    assert_eq!(hurt.lost[0].0, table[3]);
    let begin = format!("{:?}: KV block 6 of spill cannot be read: its bytes sum to ", table[3]);
    assert!(told[0].starts_with(&begin), "{told:?}");
    let vocab = tiny().config.vocab_size as usize;
    let bits = |output: &StepOutput| output.logits[vocab..].iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!((hurt.lost.len(), bits(&hurt)), (1, bits(&whole)));
    // A disk that does not answer at all.
    let (_, silent) = two_steps(|volume, _| {
        let mut faults = DiskFaults::default();
        faults.read = 1000;
        volume.set_faults(faults);
    });
    assert_eq!(silent.lost.len(), 2 * 16, "every block of both");
}

/// Blocks beside `spec`, all of them on the disk of `volume`, whose calls move less than was asked for and are interrupted; of
/// the device's `num_blocks` most are slots.
fn selecting(volume: &SimVolume, spec: &str, kv_dtype: KvDtype, num_blocks: u32) -> DecoderOptions {
    selecting_beside(volume, spec, kv_dtype, num_blocks, 1)
}

/// As [`selecting`], with `host_blocks` blocks in memory of the host; 1 is the null block.
fn selecting_beside(
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
fn resident(spec: &str, kv_dtype: KvDtype) -> DecoderOptions {
    let policy = sparse_select::build(spec).unwrap().into();
    roomy(16).kv_dtype(kv_dtype).sparse(SparseOptions::new(policy, Place::Device).trace(true))
}

fn predictions(decoder: &Decoder) -> Predictions {
    decoder.page_traffic().unwrap().unwrap().predictions.unwrap()
}

const QUEST: &str = "quest:page_budget=6,dense_layers=0,block_size=16";

#[test]
fn selected_blocks_of_contexts_on_disk_give_the_same_bits() {
    let ids: Vec<u32> = tiny().prompts[3].ids.iter().copied().cycle().take(900).collect();
    let requests = [Request { prefill: 860, ..Request::new(&ids, 20) }, Request::new(&ids[7..330], 25)];
    let ucm = "gsa-ucm:sparse_ratio=0.2,block_size=32,min_topk=1,max_topk=100,seg_prefill_threshold=0";
    // A host of one block has the null block alone; of 40 the first sequence's blocks are in both places.
    for (spec, kv_dtype, num_blocks, hosts) in [
        (QUEST, KvDtype::F16, 64, &[1, 40][..]),
        (QUEST, KvDtype::Int8, 64, &[1, 9]),
        // More pages than there are slots: partition by partition.
        ("quest:page_budget=20,dense_layers=0,block_size=16", KvDtype::F16, 48, &[1, 40]),
        ("quest:page_budget=6,dense_layers=1,block_size=16", KvDtype::F16, 64, &[1, 40]),
        ("gsa:scoring=mean_k,sparse_ratio=0.3,block_size=16", KvDtype::F16, 64, &[1]),
        ("kvcomp:block_size=16,topk_tokens=96,length_threshold=96", KvDtype::F16, 64, &[1, 60]),
        (ucm, KvDtype::F16, 64, &[1, 41]),
    ] {
        let want = serve(&mut tiny().decoder(&resident(spec, kv_dtype)), &requests, 200);
        for host_blocks in hosts {
            let volume = SimVolume::new(3, u64::MAX);
            let options = selecting_beside(&volume, spec, kv_dtype, num_blocks, *host_blocks);
            let mut decoder = tiny().decoder(&options);
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
    for spec in [
        "gsa:block_size=16",
        "streaming:sink=1,recent=6,block_size=16",
        "streaming:sink=1,recent=6,block_size=16+quest:page_budget=6,dense_layers=0,block_size=16",
    ] {
        let want = serve(&mut tiny().decoder(&resident(spec, KvDtype::F16)), &requests, 128);
        for host_blocks in [1, 16] {
            let volume = SimVolume::new(4, u64::MAX);
            let options = selecting_beside(&volume, spec, KvDtype::F16, 64, host_blocks);
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
    let requests = [Request { prefill: 640, ..Request::new(&ids, 20) }];
    let served = |limits: EngineConfig| {
        let volume = SimVolume::new(5, u64::MAX);
        let mut decoder = tiny().decoder(&selecting(&volume, QUEST, KvDtype::F16, 48).reads_ahead(limits));
        let served = serve(&mut decoder, &requests, 200);
        (served, predictions(&decoder))
    };
    let (want, ahead) = served(EngineConfig::GSA);
    assert!(ahead.predicted > 0 && ahead.used + ahead.late > 0, "{ahead:?}");
    assert!(ahead.used + ahead.late <= ahead.predicted, "{ahead:?}");
    // A cache of one block, and no window to predict for: everything is read when it is needed.
    for limits in [
        EngineConfig::GSA.prefetch_cache_size(1),
        EngineConfig::GSA.prefetch_workers(1).max_pending_prefetch(1),
    ] {
        assert_same("small limits", &served(limits).0[0], &want[0]);
    }
    let (got, none) = served(EngineConfig::GSA.prefetch_ahead(0));
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
    let options = selecting_beside(&volume, QUEST, KvDtype::F16, 48, host_blocks);
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
    let volume = SimVolume::new(7, u64::MAX);
    let mut decoder = tiny().decoder(&selecting(&volume, QUEST, KvDtype::F16, 64));
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
    // Every second block, those of the first sequence: block 1 of the pool is number 0 of the file.
    let block = shape.block_bytes;
    volume.change("spill", |bytes| {
        for at in (0..bytes.len()).step_by(2 * block) {
            bytes[at] ^= 1;
        }
    });
    let hurt = step(256..257, Phase::Decode);
    assert!(!hurt.lost.is_empty());
    assert!(hurt.lost.iter().all(|(block, _)| tables[0].contains(block)), "{:?}", hurt.lost);
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
    let told = refused("xattn:block_size=16", Place::Device);
    assert_snapshot!(told, @"KV blocks in memory of the host need a policy that selects by position, or that kernels rank by digests or hashes, where they lie on disk");
    assert_eq!(refused("quest:block_size=16", Place::Host), told);
    assert_eq!(refused("quest:mass=0.9,block_size=16", Place::Device), told);
}
