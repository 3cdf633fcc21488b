//! Contexts larger than the pool on the device: the ring pipeline gives the bits of a pool that holds all.

use attn_kernels::kernel::KvDtype;
use insta::assert_snapshot;
use kvblock::BlockId;
use models::{
    Decoder, DecoderOptions, HostMemory, HostTraffic, ModelError, Offload, SelectionPlace, SparseOptions,
};

use super::invariance::assert_same;
use super::served::{Request, Served, serve};
use super::tiny::{family, tiny};
use super::{blocks_of, options};
use crate::usual;

use HostMemory::{InPlace, Mapped, Staged};

fn offloading(memory: HostMemory, [block_size, num_blocks, ring_slots]: [u32; 3]) -> DecoderOptions {
    let offload = Some(Offload::new(4096 / block_size, ring_slots, memory));
    let roomy = blocks_of(block_size, &options(KvDtype::F16).reproducible(true));
    roomy.num_blocks(num_blocks).offload(offload)
}

fn long_prompt(tokens: usize) -> Vec<u32> {
    tiny().prompts[3].ids.iter().copied().cycle().take(tokens).collect()
}

fn served(options: &DecoderOptions, prompts: &[&[u32]], chunk: usize) -> Vec<Served> {
    // The end of each prompt goes through as decode rows.
    let request = |ids: &&'static [u32]| Request { prefill: ids.len() - 10, ..Request::new(ids, 6) };
    let prompts: Vec<&'static [u32]> = prompts.iter().map(|ids| &*ids.to_vec().leak()).collect();
    serve(&mut tiny().decoder(options), &prompts.iter().map(request).collect::<Vec<_>>(), chunk)
}

#[test]
fn a_context_larger_than_the_pool_gives_the_same_bits_whatever_the_ring() {
    let long = long_prompt(600);
    let roomy = offloading(Mapped, [16, 0, 1]).num_blocks(100).offload(None);
    let want = served(&roomy, &[&long], 200);
    // 600 tokens are 38 blocks of 16 and 150 of 4; a chunk has at least 256 tokens.
    let mut ways = [(Mapped, 200), (Staged, 512)];
    let pools = [[16, 9, 1], [16, 24, 2], [4, 110, 2], [16, 34, 3], [16, 13, 2], [16, 38, 2]];
    for &pool in usual(3, &pools) {
        ways.rotate_left(1);
        for &(memory, chunk) in usual(1, &ways) {
            let got = served(&offloading(memory, pool), &[&long], chunk);
            let what = format!("{memory:?}, block size, blocks and slots {pool:?}, chunks of {chunk}");
            assert_same(&what, &got[0], &want[0]);
        }
    }
}

/// Windows and chunks see a part of what streams: layers of one model differ in it, and some have sinks.
#[test]
fn layers_that_reach_less_far_stream_too() {
    let mut pools = [(Mapped, [16, 17, 1]), (Staged, [16, 33, 2]), (Mapped, [4, 260, 3])];
    for name in ["tiny-mistral", "tiny-gpt-oss", "tiny-llama4"] {
        let tiny = family(name);
        pools.rotate_left(1);
        let ids: Vec<u32> = tiny.prompts[3].ids.iter().copied().cycle().take(700).collect();
        let request = Request { prefill: 690, ..Request::new(&ids, 6) };
        let run = |options: &DecoderOptions| serve(&mut tiny.decoder(options), &[request], 300).remove(0);
        let kept = |options: DecoderOptions| options.recycle(false);
        let want = run(&kept(offloading(Mapped, [16, 0, 1]).num_blocks(100).offload(None)));
        for &(memory, pool) in usual(1, &pools) {
            let got = run(&kept(offloading(memory, pool)));
            assert_same(&format!("{name}, {memory:?}, block size, blocks and slots {pool:?}"), &got, &want);
        }
    }
}

#[test]
fn latents_stream_too() {
    let tiny = family("tiny-deepseek-v3");
    let ids: Vec<u32> = tiny.prompts[3].ids.iter().copied().cycle().take(450).collect();
    let requests = [Request { prefill: 440, ..Request::new(&ids, 6) }, Request::new(&ids[5..300], 6)];
    let mut pools = [(Mapped, [16, 17, 1]), (Staged, [16, 40, 2]), (Mapped, [4, 170, 3])];
    for kv_dtype in [KvDtype::F16, KvDtype::Int8] {
        pools.rotate_left(1);
        let run =
            |options: DecoderOptions| serve(&mut tiny.decoder(&options.kv_dtype(kv_dtype)), &requests, 200);
        let want = run(offloading(Mapped, [16, 0, 1]).num_blocks(200).offload(None));
        for &(memory, pool) in usual(1, &pools) {
            let got = run(offloading(memory, pool));
            let what = format!("{kv_dtype:?}, {memory:?}, block size, blocks and slots {pool:?}");
            assert_same(&what, &got[0], &want[0]);
            assert_same(&what, &got[1], &want[1]);
        }
    }
}

/// Prefills in tiles go through the ring chunk by chunk as well, which rounds a row's sum between them: groups that take turns,
/// decode rows beside them, windows, and sinks.
#[test]
fn tiles_of_prefills_stream() {
    let mut pools = [(Mapped, [16, 40, 1]), (Staged, [16, 80, 2]), (Mapped, [4, 260, 3])];
    for &name in usual(3, &["tiny-llama", "tiny-mistral", "tiny-gpt-oss", "tiny-gemma3"]) {
        let tiny = family(name);
        pools.rotate_left(1);
        let long: Vec<u32> = tiny.prompts[3].ids.iter().copied().cycle().take(700).collect();
        let requests = [
            Request { prefill: 690, ..Request::new(&long, 6) },
            Request::new(&long[5..330], 6),
            Request::new(&long[..40], 6),
        ];
        let run = |options: DecoderOptions| {
            let options = options.kv_dtype(KvDtype::F32).reproducible(false).recycle(false);
            serve(&mut tiny.decoder(&options), &requests, 200)
        };
        let want = run(offloading(Mapped, [16, 0, 1]).num_blocks(200).offload(None));
        for &(memory, pool) in usual(1, &pools) {
            let got = run(offloading(memory, pool));
            for (got, want) in got.iter().zip(&want) {
                let pairs = got.logits.iter().zip(&want.logits);
                let apart = pairs.map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
                assert!(apart < 1e-4, "{name}, {memory:?}, {pool:?}: logits are {apart} apart");
                assert_eq!(got.drawn, want.drawn, "{name}, {memory:?}, {pool:?}");
            }
        }
    }
}

/// Bytes that `serve` should have moved for one prompt in chunks of `chunk` tokens, then one row a step: every block that a layer
/// sees comes once a step, unless it is resident or the step writes it, and what a step adds to comes first.
fn moved(decoder: &Decoder, [prompt, tokens, chunk]: [u32; 3], windows: &[Option<u32>]) -> HostTraffic {
    let kv = decoder.kv();
    let size = kv.shape().block_size;
    let resident = kv.num_blocks() - kv.host_blocks();
    // Block 0 is the null block, and a sequence takes the others in order.
    let on_host = |block: u32| block + 1 >= resident;
    let layer_bytes = kv.plan().block_bytes() / windows.len() as u64;
    let mut traffic = HostTraffic::default();
    let mut first = 0;
    while first < prompt + tokens - 1 {
        let rows = prompt.saturating_sub(10).saturating_sub(first).clamp(1, chunk);
        let written = first / size..(first + rows).div_ceil(size);
        let begun = u64::from(first % size > 0 && on_host(first / size));
        for window in windows {
            let seen = window.map_or(0, |window| (first + 1).saturating_sub(window)) / size;
            let old = (seen..written.start).filter(|block| on_host(*block)).count() as u64;
            traffic.fetched_bytes += (old + begun) * layer_bytes;
            traffic.written_bytes +=
                written.clone().filter(|block| on_host(*block)).count() as u64 * layer_bytes;
        }
        first += rows;
    }
    traffic
}

/// Chunks of a layer, and what windows leave of it, come once: fetching ahead brings nothing that is not attended.
#[test]
fn every_block_comes_once_a_layer() {
    let cases: [(&str, &[Option<u32>]); 2] = [("tiny-llama", &[None; 3]), ("tiny-mistral", &[Some(24); 3])];
    for (name, windows) in cases {
        let tiny = family(name);
        let ids: Vec<u32> = tiny.prompts[3].ids.iter().copied().cycle().take(500).collect();
        let request = Request { prefill: 490, logits: false, ..Request::new(&ids, 6) };
        let mut ways = [true, false];
        for &pool in usual(2, &[[16, 9, 1], [16, 33, 2], [16, 12, 2], [4, 150, 3]]) {
            ways.rotate_left(1);
            for &reproducible in usual(1, &ways) {
                let options = offloading(Mapped, pool).reproducible(reproducible).recycle(false);
                let mut decoder = tiny.decoder(&options);
                serve(&mut decoder, &[request], 200);
                let want = moved(&decoder, [500, 6, 200], windows);
                assert_eq!(
                    decoder.host_traffic(),
                    want,
                    "{name}, pool {pool:?}, reproducible {reproducible}"
                );
            }
        }
    }
}

/// Blocks beyond the first buffers of which a buffer holds a few, as where one binding does not hold all: on the host, and on the
/// device.
#[test]
fn blocks_of_several_buffers_give_the_bits_of_one() {
    let cut = |options: DecoderOptions, blocks| {
        let offload = options.offload.map(|offload| offload.buffer_blocks(blocks));
        options.offload(offload)
    };
    let mut pools = [
        (Mapped, [16, 24, 1], 7),
        (Staged, [16, 33, 2], 1),
        (InPlace, [16, 20, 2], 21),
        (Mapped, [4, 150, 3], 50),
        (InPlace, [4, 150, 1], 100),
    ];
    for name in ["tiny-llama", "tiny-mistral", "tiny-deepseek-v3"] {
        let tiny = family(name);
        let long: Vec<u32> = tiny.prompts[3].ids.iter().copied().cycle().take(400).collect();
        let requests = [Request { prefill: 390, ..Request::new(&long, 6) }, Request::new(&long[5..230], 6)];
        let run = |options: DecoderOptions| {
            let mut decoder = tiny.decoder(&options.recycle(false));
            (serve(&mut decoder, &requests, 200), decoder.host_traffic())
        };
        let (want, _) = run(offloading(Mapped, [16, 0, 1]).num_blocks(200).offload(None));
        for &(memory, pool, buffer_blocks) in usual(if name == "tiny-llama" { 4 } else { 1 }, &pools) {
            let whole = offloading(memory, pool);
            let (got, moved) = run(cut(whole.clone(), buffer_blocks));
            let what = format!("{name}, {memory:?}, {pool:?}, buffers of {buffer_blocks} blocks");
            assert_same(&what, &got[0], &want[0]);
            assert_same(&what, &got[1], &want[1]);
            if memory == Mapped {
                assert_eq!(moved, run(whole).1, "{what}");
            }
        }
        pools.rotate_left(1);
    }
    let xattn = sparse_select::build("xattn:block_size=16").unwrap().into();
    let sparse = Some(SparseOptions::new(xattn, SelectionPlace::Device));
    let options = cut(offloading(Mapped, [16, 64, 2]), 100).sparse(sparse);
    assert_snapshot!(tiny().try_decoder(&options).unwrap_err(), @"KV blocks in memory of the host need one buffer a layer beside a policy that chooses by the keys of all blocks");
}

#[test]
fn sequences_share_the_slots_of_a_ring_or_take_turns() {
    let (long, other) = (long_prompt(600), long_prompt(330).split_off(30));
    let roomy = offloading(Mapped, [16, 0, 1]).num_blocks(200).offload(None);
    let want = served(&roomy, &[&long, &other], 100);
    // A slot has room for a chunk of both, or of one.
    for &(memory, num_blocks) in usual(2, &[(Staged, 80), (Mapped, 20), (Mapped, 80), (Mapped, 40)]) {
        let got = served(&offloading(memory, [16, num_blocks, 1]), &[&long, &other], 100);
        assert_same("the long one", &got[0], &want[0]);
        assert_same("the other", &got[1], &want[1]);
    }
}

#[test]
fn blocks_move_between_host_and_device() {
    for (memory, buffer_blocks) in
        [(Mapped, u32::MAX), (Staged, u32::MAX), (Mapped, 6), (Staged, 5), (InPlace, 6)]
    {
        check_moves(memory, buffer_blocks);
    }
}

fn check_moves(memory: HostMemory, buffer_blocks: u32) {
    let options = offloading(memory, [16, 12, 2]);
    let offload = options.offload.map(|offload| offload.buffer_blocks(buffer_blocks));
    let mut decoder = tiny().decoder(&options.offload(offload));
    // One block is resident, so 0 lies on the device and the others on the host; 7 follows 6.
    let ids = [0, 6, 7, 20].map(BlockId::new);
    let words = u32::try_from(decoder.read_blocks(&ids).unwrap()[0].len()).unwrap();
    let contents: Vec<Vec<u32>> = (0..4).map(|n| (0..words).map(|word| word * 4 + n).collect()).collect();
    for (id, contents) in ids.iter().zip(&contents) {
        decoder.write_block(*id, contents).unwrap();
    }
    assert_eq!(decoder.read_blocks(&ids).unwrap(), contents);
    let copies = [(ids[0], 30), (ids[3], 31), (ids[2], 32), (ids[0], 33)];
    decoder.copy_blocks(&copies.map(|(from, to)| (from, BlockId::new(to)))).unwrap();
    let copies = decoder.read_blocks(&[30, 31, 32, 33].map(BlockId::new)).unwrap();
    assert_eq!(copies, [0, 3, 2, 0].map(|n| contents[n].clone()));
}

#[test]
fn pools_and_models_that_cannot_stream_are_refused() {
    let small = tiny().try_decoder(&offloading(Mapped, [16, 11, 2])).unwrap_err();
    assert!(matches!(small, ModelError::DevicePool { blocks: 11, needed: 12 }), "{small}");
    let refused = |name| family(name).try_decoder(&offloading(Mapped, [64, 64, 2])).unwrap_err().to_string();
    assert_snapshot!(refused("tiny-deepseek-v32"), @"KV in memory of the host needs attention to all latents: an indexer scores every token and attends to few of them, anywhere; the model has latents with an indexer");
    assert_snapshot!(refused("tiny-deepseek-v4"), @"KV in memory of the host needs one cache a layer: compressed attention keeps windows, entries and states beside; the model has compressed attention");
    assert_snapshot!(refused("tiny-nsa"), @"KV in memory of the host needs attention to all keys in turn: means of all blocks choose the few that are attended; the model has native sparse attention (NSA)");
}
