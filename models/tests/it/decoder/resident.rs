//! Selected blocks of contexts larger than the pool on the device: what is attended does not depend on what is resident.

use attn_kernels::kernel::KvDtype;
use kvblock::BlockId;
use models::{
    Decoder, DecoderOptions, HostMemory, ModelError, Offload, PageTraffic, SelectionPlace, SparseOptions,
    Tally,
};

use super::invariance::assert_same;
use super::served::{Request, Served, serve, serve_behind};
use super::tiny::{family, tiny};
use super::{blocks_of, options};
use crate::usual;

/// Everything on the device.
fn roomy(spec: &str, place: SelectionPlace, block_size: u32) -> DecoderOptions {
    let policy = sparse_select::build(spec).unwrap().into();
    let sparse = Some(SparseOptions::new(policy, place).trace(true).certify(true));
    blocks_of(block_size, &options(KvDtype::F32)).sparse(sparse).reproducible(true)
}

/// A device pool of `num_blocks` blocks, of which `ring_slots` slots of 256 tokens are the ring.
fn tight(
    spec: &str,
    place: SelectionPlace,
    [block_size, num_blocks, ring_slots]: [u32; 3],
) -> DecoderOptions {
    let offload = Some(Offload::new(4096 / block_size, ring_slots, HostMemory::Mapped));
    roomy(spec, place, block_size).num_blocks(num_blocks).offload(offload)
}

fn prompt(tokens: usize) -> Vec<u32> {
    tiny().prompts[3].ids.iter().copied().cycle().take(tokens).collect()
}

/// 500 tokens of prompt; the last 10, and 4 that are drawn, as decode steps.
fn run(decoder: &mut Decoder) -> Served {
    let ids = prompt(500);
    serve(decoder, &[Request { prefill: 490, ..Request::new(&ids, 4) }], 128).remove(0)
}

fn traffic(decoder: &Decoder) -> PageTraffic {
    decoder.page_traffic().unwrap().unwrap()
}

/// Holds a small pool to one that has room for all.
fn same_in(pool: [u32; 3], spec: &str, place: SelectionPlace) -> PageTraffic {
    let want = run(&mut tiny().decoder(&roomy(spec, place, pool[0])));
    let mut decoder = tiny().decoder(&tight(spec, place, pool));
    let got = run(&mut decoder);
    assert_eq!(got.attended, want.attended, "{spec}");
    assert_same(spec, &got, &want);
    traffic(&decoder)
}

/// A mass takes most of the blocks, so that few slots are of little use; keys are read where they lie.
#[test]
fn a_mass_is_certified_of_keys_on_the_host() {
    let traffic =
        same_in([16, 27, 2], "quest:mass=0.001,dense_layers=0,block_size=16", SelectionPlace::Device);
    assert!(traffic.misses > 0 && traffic.prefetched == 0, "{traffic:?}");
}

#[test]
fn policies_of_decode_give_the_bits_of_a_pool_that_holds_all() {
    let ucm = "min_topk=1,max_topk=100,seg_prefill_threshold=0";
    let ucm = format!("gsa-ucm:sparse_ratio=0.2,block_size=32,{ucm}");
    let cases = [
        // 16 pages for 26 or more blocks, of which 6 are selected.
        ("quest:page_budget=6,dense_layers=0,block_size=16", SelectionPlace::Device, [16, 27, 2]),
        // Slots of all layers are given as a step begins; one dense layer is not asked; and of more pages than there are slots
        // layer by layer.
        (
            "gsa:scoring=mean_k,sparse_ratio=0.3,block_size=16,dense_layers=1,query=previous",
            SelectionPlace::Device,
            [16, 27, 2],
        ),
        (
            "quest:page_budget=20,dense_layers=0,block_size=16,query=previous",
            SelectionPlace::Device,
            [16, 40, 1],
        ),
        // Of 127 pages 20 are selected, of 84.
        ("quest:page_budget=5,dense_layers=0,block_size=16", SelectionPlace::Device, [4, 148, 1]),
        ("quest:page_budget=6,dense_layers=1,block_size=16", SelectionPlace::Host, [16, 40, 1]),
        (&ucm, SelectionPlace::Device, [16, 27, 2]),
        // More pages than there are slots: partition by partition.
        ("quest:page_budget=20,dense_layers=0,block_size=16", SelectionPlace::Device, [16, 40, 1]),
        ("gsa:scoring=mean_k,sparse_ratio=0.3,block_size=16", SelectionPlace::Device, [16, 27, 2]),
        ("esa:block_size=16", SelectionPlace::Device, [16, 27, 2]),
        (
            "quest:page_budget=6,dense_layers=0,block_size=16,query=previous",
            SelectionPlace::Device,
            [16, 27, 2],
        ),
    ];
    for &(spec, place, pool) in usual(6, &cases) {
        let traffic = same_in(pool, spec, place);
        assert!(traffic.hits > traffic.misses && traffic.misses > 0, "{spec}: {traffic:?}");
        assert_eq!(traffic.bytes(), (traffic.misses + traffic.prefetched) * traffic.page_bytes);
    }
}

/// Blocks of which a buffer holds a few, as where one binding does not hold all: in memory of the host, and on the device.
#[test]
fn policies_among_blocks_of_several_buffers_give_the_bits_of_one() {
    let kvcomp = "kvcomp:hash_bits=64,block_size=16,topk_tokens=64,sink=1,recent=1,length_threshold=64";
    let mut buffers = [(HostMemory::Mapped, 7), (HostMemory::InPlace, 10)];
    let policies = [
        ("quest:page_budget=6,dense_layers=1,block_size=16", SelectionPlace::Device),
        ("quest:page_budget=6,dense_layers=0,block_size=16", SelectionPlace::Host),
        (kvcomp, SelectionPlace::Device),
        ("streaming:sink=1,recent=2,block_size=16", SelectionPlace::Device),
        ("gsa:scoring=mean_k,sparse_ratio=0.3,block_size=16,query=previous", SelectionPlace::Device),
        ("nsa:kernel_size=32,kernel_stride=16,block_size=32,topk=6", SelectionPlace::Device),
    ];
    for &(spec, place) in usual(4, &policies) {
        let want = run(&mut tiny().decoder(&roomy(spec, place, 16)));
        buffers.rotate_left(1);
        for &(memory, buffer_blocks) in usual(1, &buffers) {
            let options = tight(spec, place, [16, 40, 1]);
            let offload = options.offload.map(|offload| offload.memory(memory).buffer_blocks(buffer_blocks));
            let mut decoder = tiny().decoder(&options.offload(offload));
            let got = run(&mut decoder);
            let what = format!("{spec}, {memory:?}, buffers of {buffer_blocks} blocks");
            assert_eq!(got.attended, want.attended, "{what}");
            assert_same(&what, &got, &want);
        }
    }
}

/// Layers that see a window or a chunk go through the ring, the others select.
#[test]
fn layers_that_reach_less_far_stream_beside_those_that_select() {
    for (name, kv_dtype) in [("tiny-gpt-oss", KvDtype::F16), ("tiny-llama4", KvDtype::Int8)] {
        let tiny = family(name);
        let ids: Vec<u32> = tiny.prompts[3].ids.iter().copied().cycle().take(500).collect();
        let request = Request { prefill: 490, ..Request::new(&ids, 4) };
        let spec = "quest:page_budget=6,dense_layers=0,block_size=16";
        let of = |options: DecoderOptions| options.recycle(false).kv_dtype(kv_dtype);
        let served = |decoder: &mut Decoder| serve(decoder, &[request], 128).remove(0);
        let want = served(&mut tiny.decoder(&of(roomy(spec, SelectionPlace::Device, 16))));
        let mut decoder = tiny.decoder(&of(tight(spec, SelectionPlace::Device, [16, 27, 2])));
        let got = served(&mut decoder);
        assert_eq!(got.attended, want.attended, "{name}");
        assert_same(name, &got, &want);
        let traffic = traffic(&decoder);
        assert!(traffic.hits > 0 && traffic.misses > 0 && traffic.prefetched > 0, "{name}: {traffic:?}");
        assert!(decoder.host_traffic().fetched_bytes > 0, "{name}: nothing went through the ring");
    }
}

#[test]
fn pages_of_codes_come_with_their_scales() {
    let spec = "quest:page_budget=6,dense_layers=0,block_size=16";
    for kv_dtype in [KvDtype::Fp8, KvDtype::Int8] {
        let of = |options: DecoderOptions| options.kv_dtype(kv_dtype);
        let want = run(&mut tiny().decoder(&of(roomy(spec, SelectionPlace::Device, 16))));
        let mut decoder = tiny().decoder(&of(tight(spec, SelectionPlace::Device, [16, 27, 2])));
        let got = run(&mut decoder);
        assert_eq!(got.attended, want.attended, "{kv_dtype:?}");
        assert_same("codes", &got, &want);
        let traffic = traffic(&decoder);
        assert!(traffic.misses > 0 && traffic.prefetched > 0, "{kv_dtype:?}: {traffic:?}");
        let bytes = decoder.kv().shape().block_bytes() as u64 / u64::from(decoder.kv().shape().num_kv_heads);
        assert_eq!(traffic.page_bytes, 2 * bytes);
    }
}

#[test]
fn fetches_cost_time_that_is_measured() {
    let spec = "quest:page_budget=6,dense_layers=0,block_size=16";
    let mut decoder = tiny().decoder(&tight(spec, SelectionPlace::Device, [16, 27, 2]));
    assert_eq!(decoder.fetch_cost().unwrap(), None, "nothing is on the device yet");
    let want = run(&mut decoder);
    if let Some(cost) = decoder.fetch_cost().unwrap() {
        assert!(cost.ns_per_byte > 0.0 && (0.0..=1.0).contains(&cost.hidden_ahead), "{cost:?}");
        let (transfer, waited) = cost.of(&traffic(&decoder));
        assert!(waited > 0.0 && waited <= transfer * 1.000_001, "{waited} of {transfer} ns");
    }
    // Measuring changes nothing.
    assert_same("measured", &run(&mut decoder), &want);
}

#[test]
fn where_the_host_tier_lies_changes_no_decision() {
    let spec = "quest:page_budget=6,dense_layers=0,block_size=16";
    let of = |memory| {
        let options = tight(spec, SelectionPlace::Device, [16, 27, 2]);
        let offload = options.offload.map(|offload| offload.memory(memory));
        let mut decoder = tiny().decoder(&options.offload(offload));
        (run(&mut decoder), traffic(&decoder))
    };
    let [(want, mapped), (got, device)] = [HostMemory::Mapped, HostMemory::Device].map(of);
    assert_same("device memory", &got, &want);
    assert_eq!(device, mapped);
}

#[test]
fn policies_of_prefill_load_what_they_select() {
    let mut pools = [(40, true, 2e-2), (64, false, 1e-3)];
    let policies = [
        ("gsa:block_size=16", SelectionPlace::Device),
        ("xattn:threshold=0.5,stride=4,block_size=16", SelectionPlace::Device),
        (
            "flashprefill:alpha=0.9,sink_blocks=1,recent_blocks=1,block_size=16,correction=true",
            SelectionPlace::Device,
        ),
        (
            "flashprefill:alpha=0.9,sink_blocks=1,recent_blocks=1,block_size=16+streaming:block_size=16",
            SelectionPlace::Host,
        ),
        ("xattn:threshold=0.5,block_size=16", SelectionPlace::Host),
        ("streaming:sink=1,recent=2,block_size=16", SelectionPlace::Device),
        ("flashprefill:alpha=0.9,sink_blocks=1,recent_blocks=1,block_size=16", SelectionPlace::Device),
        (
            "streaming:sink=1,recent=2,block_size=16+quest:page_budget=4,dense_layers=0,block_size=16",
            SelectionPlace::Device,
        ),
    ];
    for &(spec, place) in usual(4, &policies) {
        // In f16 by matrices, where the device has them: weights and the parts of few slots are rounded.
        let halves = |options: DecoderOptions| options.kv_dtype(KvDtype::F16).reproducible(false);
        pools.rotate_left(1);
        for &(num_blocks, by_matrices, bound) in usual(1, &pools) {
            let of = |options: DecoderOptions| if by_matrices { halves(options) } else { options };
            let want = run(&mut tiny().decoder(&of(roomy(spec, place, 16))));
            let mut decoder = tiny().decoder(&of(tight(spec, place, [16, num_blocks, 2])));
            let got = run(&mut decoder);
            // Tiles of rows add up piece by piece, so that bits may differ.
            assert_eq!(got.drawn, want.drawn, "{spec}");
            let worst = got.logits.iter().zip(&want.logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < bound, "{spec}: a logit differs by {worst}");
            assert!(traffic(&decoder).misses > 0, "{spec}");
        }
    }
}

#[test]
fn estimates_of_chunks_load_nothing_but_what_they_select() {
    for place in [SelectionPlace::Host, SelectionPlace::Device] {
        let spec = "xattn:threshold=0.5,stride=4,block_size=16";
        let mut decoder = tiny().decoder(&tight(spec, place, [16, 64, 2]));
        let served = run(&mut decoder);
        let [blocks, visible] = [|tally: Tally| tally.blocks, |tally: Tally| tally.visible]
            .map(|part| served.attended.iter().map(|attended| part(attended.total())).sum::<u64>());
        let traffic = traffic(&decoder);
        // A page is one KV head of a block of 16 tokens, and so is what is counted; lists of a chunk share pages.
        assert_eq!(traffic.hits + traffic.misses, blocks, "{place:?}");
        assert!(blocks < visible, "{place:?}: {blocks} of {visible}");
        assert!(traffic.misses > 0 && traffic.misses < blocks, "{place:?}: {traffic:?}");
        assert_eq!(traffic.prefetched, 0, "{place:?}: nothing is wished for");
    }
}

#[test]
fn what_may_be_selected_next_is_fetched_ahead() {
    let spec = "quest:page_budget=6,dense_layers=0,block_size=16";
    // Only kernels leave scores from which the next step's wishes follow.
    let [device, host] = [SelectionPlace::Device, SelectionPlace::Host].map(|place| {
        let mut decoder = tiny().decoder(&tight(spec, place, [16, 27, 2]));
        run(&mut decoder);
        traffic(&decoder)
    });
    assert!(device.prefetched > 0 && host.prefetched == 0);
    assert_eq!(device.hits + device.misses, host.hits + host.misses);
    assert!(device.misses < host.misses, "{device:?} {host:?}");
}

/// Positions and accesses name the blocks that they named before, and those that begin, which no earlier step could fetch: that
/// is why nothing is wished for.
#[test]
fn positions_and_history_lack_only_the_blocks_that_begin() {
    let ids = prompt(800);
    for spec in ["gsa:block_size=16", "streaming:sink=1,recent=4,block_size=16"] {
        let [one, many] = [1, 65].map(|tokens| {
            let mut decoder = tiny().decoder(&tight(spec, SelectionPlace::Device, [16, 64, 1]));
            serve(&mut decoder, &[Request::new(&ids, tokens)], 128);
            traffic(&decoder)
        });
        // 64 tokens begin four blocks, of which each layer and KV head has a page.
        let config = &tiny().config;
        let begun = u64::from(4 * config.num_layers * config.num_kv_heads);
        assert_eq!(many.misses - one.misses, begun, "{spec}: {one:?}, {many:?}");
        assert!(many.hits - one.hits > 50 * begun, "{spec}: {one:?}, {many:?}");
    }
}

#[test]
fn sequences_share_the_slots() {
    let spec = "quest:page_budget=6,dense_layers=0,block_size=16";
    let (long, other) = (prompt(500), prompt(330).split_off(30));
    let requests = || {
        let request = |ids| Request { prefill: 290, ..Request::new(ids, 6) };
        [request(&long[..]), request(&other[..])]
    };
    let want = serve(&mut tiny().decoder(&roomy(spec, SelectionPlace::Device, 16)), &requests(), 128);
    let got = serve(&mut tiny().decoder(&tight(spec, SelectionPlace::Device, [16, 64, 2])), &requests(), 128);
    assert_same("the long one", &got[0], &want[0]);
    assert_same("the other", &got[1], &want[1]);
}

#[test]
fn a_request_is_not_given_the_pages_of_the_one_before() {
    let spec = "quest:page_budget=6,dense_layers=0,block_size=16";
    let mut decoder = tiny().decoder(&tight(spec, SelectionPlace::Device, [16, 64, 2]));
    let ids: Vec<u32> = prompt(500).into_iter().rev().collect();
    serve(&mut decoder, &[Request { prefill: 495, ..Request::new(&ids, 2) }], 128);
    assert_same(
        "after another",
        &run(&mut decoder),
        &run(&mut tiny().decoder(&roomy(spec, SelectionPlace::Device, 16))),
    );
}

#[test]
fn blocks_written_from_outside_are_fetched_anew() {
    let spec = "quest:page_budget=20,dense_layers=0,block_size=16";
    let mut decoder = tiny().decoder(&tight(spec, SelectionPlace::Device, [16, 64, 2]));
    let want = run(&mut decoder);
    // The blocks of a second request lie elsewhere: those of the first hold something else meanwhile.
    let ids: Vec<BlockId> = (0..40).map(BlockId::new).collect();
    let contents = decoder.read_blocks(&ids).unwrap();
    for id in &ids {
        decoder.write_block(*id, &vec![0; contents[0].len()]).unwrap();
    }
    for (id, contents) in ids.iter().zip(&contents) {
        decoder.write_block(*id, contents).unwrap();
    }
    let pairs: Vec<_> = ids.iter().map(|id| (*id, BlockId::new(id.get() + 100))).collect();
    decoder.copy_blocks(&pairs).unwrap();
    let copies: Vec<BlockId> = pairs.iter().map(|(_, to)| *to).collect();
    assert_eq!(decoder.read_blocks(&copies).unwrap(), contents);
    assert_same("again", &run(&mut decoder), &want);
}

#[test]
fn pools_that_hold_no_partition_of_a_selection_are_refused() {
    let spec = "quest:page_budget=6,dense_layers=0,block_size=16";
    let small = tiny().try_decoder(&tight(spec, SelectionPlace::Device, [16, 26, 2]));
    let Err(small) = small else { panic!("no room for a partition of pages beside the ring") };
    assert!(matches!(small, ModelError::DevicePool { blocks: 26, needed: 27 }), "{small}");
    let pool = tight(spec, SelectionPlace::Device, [16, 27, 2]);
    let staged = pool.offload.map(|offload| offload.memory(HostMemory::Staged));
    let staged = tiny().try_decoder(&pool.offload(staged)).unwrap_err();
    assert!(staged.to_string().ends_with("mappable storage buffers beside a sparse policy"), "{staged}");
    let kv = |pool| tiny().decoder(&tight(spec, SelectionPlace::Device, pool)).kv().max_sequences();
    assert_eq!([kv([16, 27, 2]), kv([16, 60, 2]), kv([16, 300, 2])], [Some(1), Some(3), None]);
}

/// A million tokens are more blocks than 16 bits count.
#[test]
fn blocks_of_a_million_tokens_are_blocks_like_others() {
    let spec = "streaming:sink=1,recent=2,block_size=16+quest:page_budget=6,dense_layers=0,block_size=16";
    let ids = prompt(500);
    let requests = [Request { prefill: 490, ..Request::new(&ids, 4) }];
    for spec in [spec, "flashprefill:alpha=0.9,block_size=16"] {
        let halves = |options: DecoderOptions| options.kv_dtype(KvDtype::Int8);
        let beyond = |blocks| {
            let offload = Some(Offload::new(blocks, 2, HostMemory::Mapped));
            halves(roomy(spec, SelectionPlace::Device, 16)).num_blocks(64).offload(offload)
        };
        let want = serve(&mut tiny().decoder(&beyond(256)), &requests, 128);
        let got = serve_behind(&mut tiny().decoder(&beyond(66_000)), &requests, 128, 65_600 * 16);
        assert_same(spec, &got[0], &want[0]);
        // All on the device.
        let roomy = halves(roomy(spec, SelectionPlace::Device, 16));
        let want = serve(&mut tiny().decoder(&roomy), &requests, 128);
        let got = serve_behind(&mut tiny().decoder(&roomy.num_blocks(66_000)), &requests, 128, 65_600 * 16);
        assert_same(spec, &got[0], &want[0]);
    }
}
