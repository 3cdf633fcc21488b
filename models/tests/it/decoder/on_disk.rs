//! Contexts larger than the pool on the device and the host's part of it together: the rest lies on disk.

mod selected;
mod slow;

use std::sync::Arc;

use attn_kernels::kernel::KvDtype;
use kvblock::BlockId;
use models::batch::{Phase, Slice, StepOutput};
use models::{Decoder, DecoderConfig, DecoderOptions, HostMemory, KvPlan, Offload};
use prefetch::spill::Spill;
use prefetch::testing::{DiskFaults, SimVolume};
use prefetch::tier::{Access, Volume};

use super::invariance::assert_same;
use super::served::{Request, serve};
use super::tiny::{family, tiny};
use super::{blocks_of, options};
use crate::{is_long, usual};

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
    for &kv_dtype in usual(2, &[KvDtype::F16, KvDtype::Int8, KvDtype::Fp8]) {
        let want = serve(&mut tiny().decoder(&roomy(16).kv_dtype(kv_dtype)), &requests, 200);
        let pools: &[(HostMemory, Sizes)] = match kv_dtype {
            KvDtype::F16 => &[
                (Mapped, [16, 17, 20, 2]),
                (Staged, [4, 150, 30, 3]),
                (Mapped, [16, 40, 0, 1]),
                (Staged, [16, 33, 20, 2]),
            ],
            _ => &[(Mapped, [16, 33, 10, 2])],
        };
        for (memory, sizes) in usual(pools.len().min(2), pools) {
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
    for &name in usual(2, &["tiny-gpt-oss", "tiny-deepseek-v3", "tiny-mistral"]) {
        let tiny = family(name);
        let ids: Vec<u32> = tiny.prompts[3].ids.iter().copied().cycle().take(600).collect();
        let requests = [Request { prefill: 590, ..Request::new(&ids, 5) }];
        let base = roomy(16).recycle(false);
        let want = serve(&mut tiny.decoder(&base), &requests, 250);
        let options = on_disk(&tiny.config, base.clone(), Mapped, [16, 20, 6, 2]);
        assert_same(name, &serve(&mut tiny.decoder(&options), &requests, 250)[0], &want[0]);
        if name != "tiny-gpt-oss" && !is_long() {
            continue;
        }
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
