//! Layers split over devices: the adapter that is there, opened several times. Nothing differs from one device, bit by bit.

use attn_kernels::kernel::KvDtype;
use kvblock::BlockId;
use models::batch::{Phase, Slice};
use models::sampling::Sampling;
use models::{DecoderOptions, HostMemory, ModelError, Offload, Pipeline, SelectionPlace, SparseOptions};

use super::invariance::assert_same;
use super::options;
use super::served::{Request, Served, serve};
use super::tiny::{Tiny, family, tiny};
use crate::usual;

/// The first layers on one device, the others on another one.
fn halves(tiny: &Tiny) -> [u32; 2] {
    let layers = tiny.config.num_layers;
    [layers.div_ceil(2), layers / 2]
}

/// Requests that ask for everything a step can return, decode while others prefill, and share steps.
fn requests<'a>(tiny: &'a Tiny, sampling: &'a Sampling, allowed: &'a [u32]) -> Vec<Request<'a>> {
    let of = |prompt: usize| Request::new(&tiny.prompts[prompt].ids, 10);
    vec![
        Request { echo: Some(3), ..of(3) },
        Request { sampling: Some(sampling), logits: false, prefill: 2, ..of(1) },
        Request { allowed: Some(allowed), late: true, ..of(2) },
        Request { logits: false, echo: Some(0), ..of(0) },
    ]
}

fn served<S: super::served::Steps>(decoder: &mut S, tiny: &Tiny, chunk: usize) -> Vec<Served> {
    let mut sampling = Sampling::default();
    (sampling.temperature, sampling.seed, sampling.log_probs) = (0.8, 5, Some(2));
    let allowed: Vec<u32> = (0..tiny.config.vocab_size.div_ceil(32)).map(|word| 0x5555_5555 ^ word).collect();
    serve(decoder, &requests(tiny, &sampling, &allowed), chunk)
}

fn with_rows(max_rows: u32, options: &DecoderOptions) -> DecoderOptions {
    let mut options = options.clone();
    options.max_rows = max_rows;
    options
}

fn assert_all_same(what: &str, got: &[Served], want: &[Served]) {
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        assert_same(&format!("{what}, request {index}"), got, want);
        assert_eq!(got, want, "{what}, request {index}");
    }
}

#[test]
fn two_devices_compute_what_one_does() {
    let names = [
        "tiny-gpt-oss",
        "tiny-llama4",
        "tiny-deepseek-v32",
        "tiny-nsa",
        "tiny-llama",
        "tiny-gemma2",
        "tiny-qwen3-moe",
        "tiny-deepseek-v3",
    ];
    for &name in usual(4, &names) {
        let (tiny, options) = (family(name), options(KvDtype::F16).recycle(false));
        let mut one = tiny.decoder(&options);
        let want = served(&mut one, tiny, 48);
        let mut pipeline = tiny.pipeline(&halves(tiny), &options).unwrap();
        assert_all_same(name, &served(&mut pipeline, tiny, 48), &want);
        for stage in pipeline.stages() {
            assert!(stage.steps_ahead() >= one.steps_ahead(), "{name}");
        }
    }
}

/// Steps of several parts, which the devices work on at the same time.
#[test]
fn parts_of_a_step_compute_what_the_step_does() {
    let dense = options(KvDtype::F16).reproducible(true);
    let want = served(&mut tiny().decoder(&dense), tiny(), 100);
    let layers = tiny().config.num_layers;
    for (max_rows, split) in
        [(16, vec![1, layers - 1]), (24, vec![layers - 1, 1]), (7, vec![1; layers as usize])]
    {
        let options = with_rows(max_rows, &dense);
        let mut pipeline = tiny().pipeline(&split, &options).unwrap();
        for run in 0..2 {
            let what = format!("parts of {max_rows} rows, layers {split:?}, run {run}");
            assert_all_same(&what, &served(&mut pipeline, tiny(), 100), &want);
        }
        // With times of dispatches, parts take turns.
        let timed = pipeline.stages().iter().all(|stage| stage.gpu().time_dispatches(true));
        if timed {
            assert_all_same("timed", &served(&mut pipeline, tiny(), 100), &want);
            pipeline.stages().iter().for_each(|stage| assert!(stage.gpu().time_dispatches(false)));
        }
    }
}

/// A model's indexer says what it attended without a read of the device.
#[test]
fn parts_count_what_all_layers_attended() {
    let tiny = family("tiny-deepseek-v32");
    let options = options(KvDtype::F16).reproducible(true);
    let want = served(&mut tiny.decoder(&options), tiny, 100);
    assert!(want.iter().all(|served| !served.attended.is_empty()));
    let mut pipeline = tiny.pipeline(&halves(tiny), &with_rows(24, &options)).unwrap();
    assert_all_same("parts", &served(&mut pipeline, tiny, 100), &want);
}

#[test]
fn sums_of_hidden_states_go_on_from_part_to_part() {
    let tokens = &tiny().prompts[3].ids[..96];
    let options = options(KvDtype::F32).reproducible(true);
    let table: Vec<BlockId> = (1..=6).map(BlockId::new).collect();
    let tables = [&table[..]];
    let pooled = |rows: usize| Slice { pooled: rows, ..Slice::new(tokens, 0, &tables, Phase::Prefill) };
    let mut one = tiny().decoder(&options);
    let few = with_rows(20, &options);
    let mut split = tiny().pipeline(&halves(tiny()), &few).unwrap();
    for rows in [0, 1, 16, 17, 60, 96] {
        let want = one.step(&[pooled(rows)], &[]).unwrap().pooled;
        let got = split.step(&[pooled(rows)], &[]).unwrap().pooled;
        assert_eq!(got.len(), want.len(), "{rows} rows");
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * (1.0 + b.abs()) * (rows as f32);
        assert!(got.iter().zip(&want).all(near), "{rows} rows");
    }
}

#[test]
fn policies_count_layers_from_the_models_first() {
    for spec in [
        "quest:page_budget=2,dense_layers=1,min_tokens=0",
        "kvcomp:block_size=16,topk_tokens=64,sink=1,recent=1,length_threshold=64,layer_ratios=1:0.5:0.3",
        "xattn:threshold=0.6,stride=4,block_size=16,dense_layers=2,min_tokens=0",
    ] {
        let policy = sparse_select::build(spec).unwrap_or_else(|error| panic!("{spec}: {error}"));
        let sparse = SparseOptions::new(policy.into(), SelectionPlace::Device).trace(true);
        let options = options(KvDtype::F16).sparse(Some(sparse)).recycle(false);
        let want = served(&mut tiny().decoder(&options), tiny(), 64);
        assert!(want.iter().any(|served| !served.attended.is_empty()), "{spec} selects");
        let mut pipeline = tiny().pipeline(&halves(tiny()), &options).unwrap();
        assert_all_same(spec, &served(&mut pipeline, tiny(), 64), &want);
    }
}

/// Blocks have one form, so that stores serve engines of any split.
#[test]
fn blocks_are_those_of_one_device() {
    let options = options(KvDtype::F16);
    let (mut one, mut split) =
        (tiny().decoder(&options), tiny().pipeline(&halves(tiny()), &options).unwrap());
    let table: Vec<BlockId> = (1..=4).map(BlockId::new).collect();
    let tables = [&table[..]];
    let slice = || Slice::new(&tiny().prompts[3].ids[..64], 0, &tables, Phase::Prefill);
    one.step(&[slice()], &[]).unwrap();
    split.step(&[slice()], &[]).unwrap();
    let blocks = one.read_blocks(&table).unwrap();
    assert_eq!(split.read_blocks(&table).unwrap(), blocks);
    let bytes: Vec<Vec<u8>> = blocks.iter().map(|block| bytemuck::cast_slice(block).to_vec()).collect();
    let read = split.begin_read(&table).unwrap().finish().unwrap();
    assert!(read.iter().zip(&bytes).all(|(read, bytes)| read[..] == bytes[..]));
    let [from, to] = [1, 9].map(BlockId::new);
    split.copy_blocks(&[(from, to)]).unwrap();
    split.write_block(BlockId::new(10), &blocks[1]).unwrap();
    assert_eq!(split.read_blocks(&[to, BlockId::new(10)]).unwrap(), blocks[..2]);
    assert_eq!(u64::from(split.num_blocks()), u64::from(one.kv().num_blocks()));
    let embedding = one.weight_sizes().embedding;
    assert!(tiny().config.tie_embeddings, "both ends have it");
    assert_eq!(split.weight_sizes().bytes(), one.weight_sizes().bytes() + embedding.bytes);
    let close = |a: f64, b: f64| (a - b).abs() < 1e-6 * b;
    assert!(close(split.decode_bytes(2, 64), one.decode_bytes(2, 64)));
    assert!(close(split.prefill_operations(64), one.prefill_operations(64)));
}

#[test]
fn splits_that_cannot_be_are_refused() {
    let plain = options(KvDtype::F16);
    let layers = tiny().config.num_layers;
    for split in [vec![1], vec![layers, 0], vec![layers, 1], vec![1; layers as usize + 1]] {
        let refused = tiny().pipeline(&split, &plain);
        assert!(
            matches!(&refused, Err(ModelError::Stages { given, .. }) if *given == split),
            "{split:?}: {refused:?}"
        );
    }
    let lacks = |tiny: &Tiny, options: &DecoderOptions| match tiny.pipeline(&halves(tiny), options) {
        Err(error @ ModelError::StagesLack { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        lacks(family("tiny-gemma2"), &plain.clone().recycle(true)),
        "layers split over several devices need caches with one group of blocks"
    );
    assert_eq!(
        lacks(family("tiny-deepseek-v4"), &options(KvDtype::F32)),
        "layers split over several devices need caches with one group of blocks"
    );
    let offload = plain.clone().offload(Some(Offload::new(64, 2, HostMemory::Device)));
    assert_eq!(
        lacks(tiny(), &offload),
        "layers split over several devices need all KV blocks on the devices"
    );
    assert_eq!(
        lacks(tiny(), &plain.weights_on_gpu(Some(1 << 20))),
        "layers split over several devices need all weights on the devices"
    );
}

#[test]
fn even_splits_have_as_many_bytes() {
    let (gpu, config) = (super::tiny::gpu(), &tiny().config);
    let even = |stages| Pipeline::even_layers(gpu, config, tiny().weights(), stages);
    assert_eq!(even(1).unwrap(), [config.num_layers]);
    let halves = even(2).unwrap();
    assert_eq!(halves, [config.num_layers.div_ceil(2), config.num_layers / 2]);
    assert!(matches!(even(config.num_layers as usize + 1), Err(ModelError::Stages { .. })));
    assert!(matches!(even(0), Err(ModelError::Stages { .. })));
}
