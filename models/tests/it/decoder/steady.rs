//! Steps of shapes that were there before make no buffer, bind group or pipeline, and are encoded ahead.

use std::sync::Arc;
use std::time::Duration;

use attn_kernels::gpu::{Checks, Gpu, GpuOptions, wgpu};
use attn_kernels::kernel::KvDtype;
use kvblock::BlockId;
use models::batch::{Phase, Slice};
use models::sampling::{Sampler, Sampling};
use models::{
    ChunkCrossing, ChunkGrid, Crossing, Decoder, DecoderOptions, HostMemory, Offload, Pipeline,
    SelectionPlace, SparseOptions, StepGrid, StepTimes,
};

use sparse_select::Policy;

use super::served::{Request, serve};
use super::tiny::{Tiny, family, tiny};
use super::{blocks_of, options};
use crate::usual;

fn quest() -> DecoderOptions {
    let policy = sparse_select::build("quest:page_budget=4").unwrap().into();
    with_policy(SparseOptions::new(policy, SelectionPlace::Device))
}

fn with_policy(sparse: SparseOptions) -> DecoderOptions {
    blocks_of(4, &options(KvDtype::F16)).sparse(Some(sparse))
}

/// Two prompts in chunks, then decode steps of both.
fn made_again(tiny: &Tiny, options: &DecoderOptions, logits: bool) -> u64 {
    let request = |prompt: usize| Request { logits, ..Request::new(&tiny.prompts[prompt].ids, 20) };
    let requests = [3, 1].map(request);
    // The count is the device's, and other tests run beside this one.
    let mut decoder = tiny.decoder_alone(options);
    // Buffers that grow in the first run take the bind groups of all with them.
    for _ in 0..2 {
        serve(&mut decoder, &requests, 64);
    }
    let made = decoder.gpu().objects_made();
    assert!(made > 0, "nothing is counted");
    serve(&mut decoder, &requests, 64);
    decoder.gpu().objects_made() - made
}

#[test]
fn requests_of_known_shapes_make_no_gpu_object() {
    for logits in [true, false] {
        assert_eq!(made_again(tiny(), &options(KvDtype::F16), logits), 0, "dense, logits {logits}");
    }
    assert_eq!(made_again(tiny(), &quest(), true), 0, "with a sparse policy");
    for name in usual(1, &["tiny-gpt-oss", "tiny-deepseek-v32", "tiny-nsa"]) {
        assert_eq!(made_again(family(name), &options(KvDtype::F32), false), 0, "{name}");
    }
}

#[test]
fn a_prepared_decoder_has_the_kernels_of_any_step() {
    let dense = options(KvDtype::F16);
    let of = |name| (name, family(name), options(KvDtype::F32));
    let decoders = [
        ("dense", tiny(), dense.clone()),
        ("quest", tiny(), quest()),
        of("tiny-gpt-oss"),
        of("tiny-deepseek-v4"),
        ("reproducible", tiny(), dense.reproducible(true)),
        of("tiny-qwen3-moe"),
        of("tiny-deepseek-v32"),
    ];
    for (name, tiny, options) in usual(4, &decoders) {
        let mut decoder = tiny.decoder_alone(options);
        let loaded = decoder.gpu().num_kernels();
        decoder.prepare().unwrap();
        let prepared = decoder.gpu().num_kernels();
        assert!(prepared > loaded, "{name}: nothing was asked for");
        for (sequences, chunk) in [(1, 7), (2, 33), (3, 64), (4, 200)] {
            let request =
                |n: usize| Request { logits: false, ..Request::new(&tiny.prompts[n].ids, 2 * n + 1) };
            let requests: Vec<Request<'_>> = (0..sequences).map(request).collect();
            serve(&mut decoder, &requests, chunk);
            let now = decoder.gpu().num_kernels();
            assert_eq!(now, prepared, "{name}: {sequences} sequences with chunks of {chunk} asked for more");
        }
    }
}

/// Tokens of two sequences, and the steps that were encoded ahead.
fn drawn_ahead(tiny: &Tiny, options: &DecoderOptions, logits: bool) -> ([Vec<u32>; 2], u64) {
    // One ends before the other.
    let request = |(prompt, tokens): (usize, usize)| Request {
        logits,
        ..Request::new(&tiny.prompts[prompt].ids, tokens)
    };
    let mut decoder = tiny.decoder(options);
    let served = serve(&mut decoder, &[(3, 20), (1, 10)].map(request), 200);
    let [one, other] = served.try_into().expect("one each");
    ([one.drawn, other.drawn], decoder.steps_ahead())
}

#[test]
fn decode_steps_are_encoded_while_others_run() {
    for name in ["tiny-llama", "tiny-gpt-oss", "tiny-qwen3-moe"] {
        let tiny = if name == "tiny-llama" { tiny() } else { family(name) };
        let (drawn, ahead) = drawn_ahead(tiny, &options(KvDtype::F32), false);
        // Nine steps of both and ten of one; the first of each repeats no other.
        assert_eq!(ahead, 8 + 9, "{name}");
        assert_eq!(drawn_ahead(tiny, &options(KvDtype::F32), true), (drawn, 0), "{name}: one by one");
    }
}

/// Two sequences step by step, or each step sent before the one before it is taken; the tokens of each step.
fn drawn_by_turns(tiny: &Tiny, follows: bool) -> Vec<Vec<u32>> {
    let mut decoder = Pipeline::from(tiny.decoder(&options(KvDtype::F16)));
    let size = decoder.first().kv().shape().block_size;
    let blocks = 64u32.div_ceil(size);
    let tables = [0, 1].map(|n| (1 + n * blocks..1 + (n + 1) * blocks).map(BlockId::new).collect::<Vec<_>>());
    let groups = tables.each_ref().map(|table| [&table[..]]);
    let mut sampling = Sampling::default();
    (sampling.temperature, sampling.seed) = (1.0, 9);
    let sampler = Sampler::new(sampling, &[]);
    let prompts = [&tiny.prompts[3].ids[..17], &tiny.prompts[1].ids[..5]];
    let positions = prompts.map(|ids| u32::try_from(ids.len()).unwrap());
    let slices = [0, 1].map(|n| Slice::new(prompts[n], 0, &groups[n], Phase::Prefill));
    let samples = |at: u32| [0, 1].map(|n| sampler.sample(n, positions[n] + at, None));
    let mut drawn = vec![decoder.step(&slices, &samples(0)).unwrap().sampled];
    let mut sent = None;
    for at in 0..20 {
        let last = drawn.last().unwrap().clone();
        let at_position =
            |n: usize, at, token| Slice::new(token, positions[n] + at, &groups[n], Phase::Decode);
        let slices = [0, 1].map(|n| at_position(n, at, &last[n..=n]));
        let step = match sent.take() {
            Some(step) => step,
            None => decoder.send(&slices, &samples(at + 1), &mut |_, _| {}).unwrap(),
        };
        if follows && at < 19 {
            assert!(decoder.can_be_followed());
            // The tokens are any.
            let slices = [0, 1].map(|n| at_position(n, at + 1, &[0]));
            sent = Some(decoder.send_following(&slices, &samples(at + 2)).unwrap());
        }
        drawn.push(decoder.take(step).unwrap().sampled);
    }
    assert_eq!(decoder.first().steps_following(), if follows { 19 } else { 0 });
    drawn
}

#[test]
fn decode_steps_follow_before_tokens_are_read() {
    for name in ["tiny-llama", "tiny-qwen3-moe"] {
        let tiny = if name == "tiny-llama" { tiny() } else { family(name) };
        assert_eq!(drawn_by_turns(tiny, true), drawn_by_turns(tiny, false), "{name}");
    }
}

const KVCOMP: &str = "kvcomp:hash_bits=64,block_size=16,topk_tokens=64,sink=1,recent=1,length_threshold=64";

/// Steps with a policy are like steps without one, whichever way it selects: by ranks of any kind, by positions, or not at all
/// in decode. What is compared with step by step are the same requests with logits, which no step is encoded ahead of.
#[test]
fn decode_steps_with_a_policy_are_encoded_while_others_run() {
    let skipping = [format!("{KVCOMP},skip_layers=2,query=previous"), format!("{KVCOMP},skip_layers=2")];
    let specs = [
        "quest:page_budget=4,dense_layers=1",
        "quest:page_budget=4,dense_layers=1,query=previous",
        "quest:mass=0.5,block_size=8",
        "gsa:scoring=mean_k,layer_ratios=1:0.5:0.2,block_size=16",
        "esa:sparse_ratio=0.3,block_size=16",
        "gsa-ucm:sparse_ratio=0.2,block_size=16,min_topk=1,max_topk=100,seg_prefill_threshold=0",
        KVCOMP,
        "nsa:kernel_size=8,kernel_stride=4,block_size=16,topk=6,window_size=0",
        "streaming:sink=1,recent=2,block_size=16",
        "kvstar:block_size=16",
        &skipping[0],
        "gsa:block_size=16",
        "xattn:threshold=0.9,block_size=16,stride=4",
        "flashprefill:block_size=16+quest:page_budget=4,dense_layers=1,block_size=16",
        // The same policies with other numbers, and in other company.
        "quest:page_budget=4",
        "esa:sparse_ratio=0.3,block_size=16,query=previous",
        "gsa-ucm:sparse_ratio=0.2,block_size=16,min_topk=1,seg_prefill_threshold=0,query=previous",
        &skipping[1],
        "nsa:kernel_size=8,kernel_stride=4,block_size=16,topk=6,window_size=0,query=previous",
        "gsa:block_size=16,layer_ratios=0.3:0.5:0.2",
        "xattn:threshold=0.9,block_size=16",
        "flashprefill:block_size=16",
        "streaming:sink=1,recent=2,block_size=16+gsa:scoring=mean_k,block_size=16",
    ];
    for spec in usual(9, &specs) {
        let policy = sparse_select::build(spec).unwrap().into();
        encoded_ahead(spec, &with_policy(SparseOptions::new(policy, SelectionPlace::Device)));
    }
}

/// Steps of contexts on the host, which pass through the ring, or of which selected pages have slots on the device, or both.
#[test]
fn decode_steps_with_keys_on_the_host_are_encoded_while_others_run() {
    let specs = [
        "quest:page_budget=4,dense_layers=1,block_size=16",
        "gsa:scoring=mean_k,sparse_ratio=0.3,block_size=16,query=previous",
        "gsa-ucm:sparse_ratio=0.2,block_size=16,min_topk=1,max_topk=100,seg_prefill_threshold=0",
        "streaming:sink=1,recent=2,block_size=16",
        "full",
        "quest:page_budget=4,dense_layers=0,block_size=16",
        "gsa:scoring=mean_k,sparse_ratio=0.3,block_size=16",
    ];
    for &spec in usual(3, &specs) {
        let policy: Arc<dyn Policy> = sparse_select::build(spec).unwrap().into();
        let sparse = (spec != "full").then(|| SparseOptions::new(policy, SelectionPlace::Device));
        let options = blocks_of(16, &options(KvDtype::F16)).sparse(sparse).num_blocks(49);
        // In two buffers, of which the prompts fill one.
        let offload = Offload::new(256, 2, HostMemory::Mapped).buffer_blocks(15);
        encoded_ahead(spec, &options.offload(Some(offload)));
    }
}

/// As many sequences as there are rows from which prompts go to the host as whole blocks: their new tokens go there one by one.
#[test]
fn decode_steps_of_many_sequences_with_keys_on_the_host_are_encoded_while_others_run() {
    const SEQUENCES: u32 = 66;
    let policy = sparse_select::build("quest:page_budget=2,dense_layers=0,block_size=16").unwrap().into();
    let sparse = SparseOptions::new(policy, SelectionPlace::Device);
    let options = blocks_of(16, &options(KvDtype::F16)).sparse(Some(sparse)).max_seqs(SEQUENCES);
    let offload = Some(Offload::new(512, 2, HostMemory::Mapped));
    let mut options = options.num_blocks(300).offload(offload);
    options.max_rows = 4096;
    let mut decoder = tiny().decoder(&options);
    let ids: Vec<u32> = tiny().prompts[3].ids.iter().copied().cycle().take(60).collect();
    let request = Request { logits: false, ..Request::new(&ids, 10) };
    serve(&mut decoder, &[request; SEQUENCES as usize], 128);
    // Of nine steps the first repeats no other, nor does the one that begins a block of each sequence.
    assert!(decoder.steps_ahead() >= 7, "{} of 9 steps were encoded ahead", decoder.steps_ahead());
}

/// Two sequences write to blocks on the host until one of them begins a block on the device: that changes the commands, but no
/// length of a list.
#[test]
fn a_block_that_begins_on_the_device_is_written_there() {
    let options = blocks_of(16, &options(KvDtype::F16)).num_blocks(49).recycle(false);
    let options = options.offload(Some(Offload::new(256, 2, HostMemory::Mapped)));
    let ids: Vec<u32> = tiny().prompts[3].ids.iter().copied().cycle().take(50).collect();
    let run = |logits: usize| {
        let mut decoder = tiny().decoder(&options);
        let host = decoder.kv().num_blocks() - decoder.kv().host_blocks();
        let tables = [[1, host, host + 1], [host + 2, host + 3, 2]].map(|table| table.map(BlockId::new));
        let groups = tables.each_ref().map(|table| [&table[..]]);
        let sampler = Sampler::new(Sampling::default(), &[]);
        let mut drawn = Vec::new();
        for at in 0..40 {
            let position = u32::try_from(at).unwrap();
            let slice = |n: usize| Slice {
                logits,
                ..Slice::new(&ids[at + n..=at + n], position, &groups[n], Phase::Decode)
            };
            let samples = [0, 1].map(|n| sampler.sample(n, position + 1, None));
            drawn.push(decoder.step(&[slice(0), slice(1)], &samples).unwrap().sampled);
        }
        (drawn, decoder.steps_ahead())
    };
    let ((drawn, ahead), (one_by_one, none)) = (run(0), run(1));
    // The first step of each block repeats no other.
    assert_eq!((ahead, none), (37, 0));
    assert_eq!(drawn, one_by_one);
}

/// Two sequences of one prompt, of which one ends before the other.
fn encoded_ahead(spec: &str, options: &DecoderOptions) {
    let ids: Vec<u32> = tiny().prompts[3].ids.iter().copied().cycle().take(220).collect();
    let run = |logits, tokens: usize| {
        let request = |tokens| Request { logits, ..Request::new(&ids, tokens) };
        let mut decoder = tiny().decoder(options);
        let served = serve(&mut decoder, &[request(tokens), request(18)], 128);
        let drawn: Vec<Vec<u32>> = served.into_iter().map(|one| one.drawn).collect();
        (drawn, decoder.steps_ahead())
    };
    let (drawn, ahead) = run(false, 121);
    mostly_ahead(spec, ahead, 120);
    let (one_by_one, none) = run(true, 36);
    let until = [&drawn[0][..36], &drawn[1]];
    assert_eq!((&one_by_one[0][..], &one_by_one[1][..], none), (until[0], until[1], 0), "{spec}: one by one");
}

/// Demands what the bench does. Two steps of a run repeat no other: the first, and the first of fewer sequences; partitions and
/// lists that grow change a few more.
fn mostly_ahead(spec: &str, ahead: u64, steps: u64) {
    assert!(ahead * 100 >= steps * 95, "{spec}: {ahead} of {steps} steps were encoded ahead");
}

/// Sequences of different lengths begin blocks in different steps, and select with their queries in different ones.
#[test]
fn decode_steps_of_sequences_of_different_lengths_are_encoded_while_others_run() {
    let ids: Vec<u32> = tiny().prompts[3].ids.iter().copied().cycle().take(420).collect();
    let specs = [
        "quest:page_budget=4,dense_layers=1,block_size=16",
        "gsa:scoring=mean_k,block_size=16,query=previous",
        "gsa-ucm:sparse_ratio=0.2,block_size=16,min_topk=1,max_topk=100,seg_prefill_threshold=0",
        KVCOMP,
        "gsa:block_size=16",
        "quest:mass=0.5,block_size=16",
        "gsa:scoring=mean_k,block_size=16",
        "kvstar:block_size=16",
    ];
    for spec in usual(3, &specs) {
        let policy = sparse_select::build(spec).unwrap().into();
        let options = with_policy(SparseOptions::new(policy, SelectionPlace::Device)).max_seqs(7);
        let mut options = blocks_of(16, &options);
        options.max_rows = 2048;
        let mut decoder = tiny().decoder(&options);
        let request = |n: usize| Request { logits: false, ..Request::new(&ids[n..83 + n * 47], 121) };
        // Prompts of one chunk each, so that all decode at the same time.
        serve(&mut decoder, &[0, 1, 2, 3, 4, 5, 6].map(request), 512);
        mostly_ahead(spec, decoder.steps_ahead(), 120);
    }
}

/// A row attends to everything up to the crossing and selects from there on, and the steps on both sides are encoded ahead.
#[test]
fn a_row_that_crosses_is_dense_before_and_selects_after() {
    let policy = || sparse_select::build("quest:page_budget=2,dense_layers=0").unwrap().into();
    let with =
        |crossing| with_policy(SparseOptions::new(policy(), SelectionPlace::Device).crossing(crossing));
    let times = |context, selecting| StepTimes {
        rows: 1,
        context,
        dense: Duration::from_micros(1000),
        selecting: Duration::from_micros(selecting),
    };
    let at_128 = StepGrid::new(64, 128, 1, 1024).crossing(&[times(64, 2000), times(128, 980)]);
    assert_eq!(at_128.to_string(), "dense below 128 tokens");
    let ids: Vec<u32> = tiny().prompts[3].ids.iter().copied().cycle().take(120).collect();
    let run = |options: &DecoderOptions, logits| {
        let mut decoder = tiny().decoder(options);
        let served = serve(&mut decoder, &[Request { logits, ..Request::new(&ids, 20) }], 128);
        (served.into_iter().next().expect("one"), decoder.steps_ahead())
    };
    let (crossed, ahead) = run(&with(at_128.clone()), false);
    // Nineteen steps, of which the first and the one that crosses repeat no other, and lists that grow change a few more.
    assert!((14..=17).contains(&ahead), "{ahead} of 19 steps were encoded ahead");
    // They decode the tokens at 120 to 138.
    let whole: Vec<bool> = crossed.attended.iter().map(|attended| attended.density() == 1.0).collect();
    assert_eq!(whole, (121..140).map(|tokens| tokens < 128).collect::<Vec<_>>());
    let (one_by_one, _) = run(&with(at_128), true);
    assert_eq!((&one_by_one.drawn, &one_by_one.attended), (&crossed.drawn, &crossed.attended));
    // Before it the logits are those of dense attention, bit by bit.
    let dense = run(&blocks_of(4, &options(KvDtype::F16)), true).0;
    let before = dense.logits.len() / 139 * 127;
    assert_eq!(one_by_one.bits()[..before], dense.bits()[..before]);
    assert_ne!(one_by_one.bits(), dense.bits());
    assert_eq!(run(&with(Crossing::never()), true).0.bits(), dense.bits());
}

/// Whoever rehearses leaves a decoder as it was: the same tokens, whether it selects then or not.
#[test]
fn a_rehearsal_changes_no_token() {
    let ids: Vec<u32> = tiny().prompts[3].ids.iter().copied().cycle().take(200).collect();
    let requests = [Request::new(&ids, 12), Request::new(&ids[..150], 12)];
    let options = quest();
    let drawn = |decoder: &mut Decoder| -> Vec<Vec<u32>> {
        serve(decoder, &requests, 128).into_iter().map(|one| one.drawn).collect()
    };
    let fresh = drawn(&mut tiny().decoder(&options));
    let dense = drawn(&mut tiny().decoder(&blocks_of(4, &self::options(KvDtype::F16))));
    for (crossing, expected) in [(Crossing::default(), &fresh), (Crossing::never(), &dense)] {
        let mut decoder = tiny().decoder(&options);
        let mut rehearsal = decoder.rehearsal(1024).expect("quest selects on the device");
        let mut times = Vec::new();
        while let Some((rows, context)) = rehearsal.grid().next(&times) {
            for selecting in [false, true, true, false] {
                rehearsal.run(rows, context, selecting).unwrap();
            }
            let [dense, selecting] = [Duration::from_millis(1); 2];
            times.push(StepTimes { rows, context, dense, selecting });
        }
        assert!(!times.is_empty());
        decoder.set_crossing(crossing).unwrap();
        assert_eq!(&drawn(&mut decoder), expected);
    }
}

/// Steps between two selections are rehearsed too, and encoded ahead as those of requests are.
#[test]
fn a_rehearsal_goes_from_one_selection_to_the_next() {
    let spec = "gsa-ucm:sparse_ratio=0.2,block_size=16,min_topk=1,seg_prefill_threshold=0,retrieval_stride=3";
    let policy = sparse_select::build(spec).unwrap().into();
    let mut decoder = tiny().decoder(&with_policy(SparseOptions::new(policy, SelectionPlace::Device)));
    let mut rehearsal = decoder.rehearsal(1024).expect("gsa-ucm selects on the device");
    assert_eq!(rehearsal.steps(), 3);
    for _ in 0..4 {
        rehearsal.run(2, 512, true).unwrap();
    }
    assert!(decoder.steps_ahead() >= 9, "{} of 12 steps were encoded ahead", decoder.steps_ahead());
}

/// A prompt is dense in the chunks before the crossing and selects from there on, whichever way its policy does.
#[test]
fn chunks_before_the_crossing_are_dense() {
    let ids: Vec<u32> = tiny().prompts[3].ids.iter().copied().cycle().take(280).collect();
    let times = |rows, context, selecting| StepTimes {
        rows,
        context,
        dense: Duration::from_micros(1000),
        selecting: Duration::from_micros(selecting),
    };
    let never = [16, 32, 64, 128, 256].map(|context| times(8, context, 2000));
    let late: Vec<StepTimes> = [times(64, 128, 1980), times(64, 256, 980)].into_iter().chain(never).collect();
    let at_256 = ChunkGrid::new(64, 16, 256, 1024).crossing(&late);
    let bits = |options: &DecoderOptions| {
        let mut decoder = tiny().decoder(&blocks_of(16, options));
        serve(&mut decoder, &[Request { logits: true, ..Request::new(&ids, 1) }], 64)[0].bits()
    };
    let dense = bits(&options(KvDtype::F16));
    for spec in [
        "streaming:sink=1,recent=1,block_size=16",
        "xattn:threshold=0.5,block_size=16,stride=4",
        "flashprefill:alpha=1,sink_blocks=1,recent_blocks=1,block_size=16",
        "skip-softmax:scale=60",
    ] {
        let with = |crossing| {
            let policy = sparse_select::build(spec).unwrap().into();
            bits(&with_policy(SparseOptions::new(policy, SelectionPlace::Device).chunk_crossing(crossing)))
        };
        assert_eq!(with(ChunkCrossing::never()), dense, "{spec}");
        let (crossed, selected) = (with(at_256.clone()), with(ChunkCrossing::default()));
        // Chunks of 64 rows of a prompt of 280 tokens: the fourth is the first to reach 256, the fifth is too short.
        let [before, after] = [192, 256].map(|tokens| dense.len() / 280 * tokens);
        assert_eq!(crossed[..before], dense[..before], "{spec}");
        assert_ne!(crossed[before..after], dense[before..after], "{spec}");
        assert_ne!(selected[..before], dense[..before], "{spec}");
    }
}

/// Whoever rehearses chunks leaves a decoder as it was.
#[test]
fn a_rehearsal_of_chunks_changes_no_token() {
    let ids: Vec<u32> = tiny().prompts[3].ids.iter().copied().cycle().take(200).collect();
    for (spec, by_content) in [
        ("streaming:sink=1,recent=1,block_size=16", false),
        ("flashprefill:sink_blocks=1,recent_blocks=1,block_size=16", true),
        ("flashprefill:sink_blocks=1,recent_blocks=1,block_size=16+quest:page_budget=2,block_size=16", true),
        ("skip-softmax:scale=60", false),
    ] {
        let policy = sparse_select::build(spec).unwrap().into();
        let options = with_policy(SparseOptions::new(policy, SelectionPlace::Device));
        let options = blocks_of(16, &options);
        let drawn = |decoder: &mut Decoder| serve(decoder, &[Request::new(&ids, 12)], 64)[0].drawn.clone();
        let fresh = drawn(&mut tiny().decoder(&options));
        let mut decoder = tiny().decoder(&options);
        let mut rehearsal = decoder.chunk_rehearsal(64, 1024).expect("chunks select on the device");
        let mut times = Vec::new();
        while let Some((rows, context)) = rehearsal.grid().next(&times) {
            assert_eq!(rehearsal.run(rows, context, false).unwrap(), None);
            let density = rehearsal.run(rows, context, true).unwrap();
            assert_eq!(density.is_some(), by_content, "{spec}");
            assert!(density.is_none_or(|density| density > 0.0 && density <= 1.0), "{spec}: {density:?}");
            let [dense, selecting] = [Duration::from_millis(1); 2];
            times.push(StepTimes { rows, context, dense, selecting });
        }
        assert!(times.iter().any(|times| times.rows == 64) && times.iter().any(|times| times.rows == 8));
        decoder.set_chunk_crossing(ChunkCrossing::default());
        assert_eq!(drawn(&mut decoder), fresh, "{spec}");
    }
    let mut dense = tiny().decoder(&quest());
    assert!(dense.chunk_rehearsal(64, 1024).is_none(), "quest leaves prefill dense");
}

/// Whoever ends an engine and opens another one finds the device's memory free, though the device lives on.
#[test]
fn a_dropped_decoder_leaves_no_memory_on_the_device() {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapter = pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default()));
    let adapter = adapter.expect("GPU tests need an adapter");
    let (device, queue) =
        pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor::default())).unwrap();
    let gpu = Gpu::of(&adapter, device.clone(), queue, &GpuOptions::new(Checks::Off)).unwrap();
    let allocated = || {
        device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        device.generate_allocator_report().expect("the driver's memory is counted").total_allocated_bytes
    };
    let mut decoder = tiny().decoder_on(gpu, &options(KvDtype::F16));
    let _device = Arc::clone(decoder.gpu());
    let before = allocated();
    serve(&mut decoder, &[Request::new(&tiny().prompts[1].ids, 3)], 64);
    let held = allocated();
    assert!(before > 0 && held >= before);
    drop(decoder);
    let left = allocated();
    assert!(left < before / 10, "{left} bytes of {held} are left");
}
