//! The decoder on devices that this one is made to look like: kernels that GPUs choose, and adapters without optional features or
//! with WebGPU's smallest limits.

use std::sync::Arc;

use attn_kernels::gpu::wgpu::{Features, Limits};
use attn_kernels::gpu::{Checks, Gpu, GpuOptions};
use attn_kernels::kernel::KvDtype;
use attn_kernels::profile::{Registers, Tuning};
use models::{ActivationType, Checkpoint, Decoder, DecoderConfig, Dtype, RandomSpec};

use super::golden::{compared, relative_l2};
use super::options;
use super::random::last_logits;
use super::served::{Request, serve};
use super::tiny::{Prompt, Tiny, checks, family, fixture};
use crate::{is_long, usual};

/// A GPU on which matrices of a tiny model are large, and fill it with a tile.
pub(super) fn of_a_gpu() -> GpuOptions {
    let tuning = Tuning::H200.small_weights(0).plain_tiles(1).rows(4, 8, 8);
    GpuOptions::new(Checks::On).software(false).tuning(tuning)
}

/// An adapter with nothing but what WebGPU promises.
fn of_webgpu() -> GpuOptions {
    GpuOptions::new(checks()).features(Features::empty()).limits(Limits::default())
}

fn open(options: &GpuOptions) -> Gpu {
    Gpu::open(options).expect("GPU tests need an adapter")
}

/// The logits of a prompt and of 20 steps after it are those of transformers.
pub(super) fn equals_reference(tiny: &Tiny, prompt: &Prompt, gpu: Gpu) -> Decoder {
    let mut decoder = tiny.decoder_on(gpu, &options(KvDtype::F32));
    let served = serve(&mut decoder, &[Request::new(&prompt.ids, 20)], 64);
    let error = relative_l2(compared(tiny, prompt, &served[0]), &prompt.logits);
    assert!(error <= 2e-4, "{}: the logits are off by {error:.2e} of their length", tiny.name);
    decoder
}

#[test]
fn kernels_of_gpus_give_the_logits_of_transformers() {
    for name in ["tiny-llama", "tiny-deepseek-v3", "tiny-gemma3", "tiny-gpt-oss"] {
        equals_reference(family(name), &family(name).prompts[0], open(&of_a_gpu()));
    }
}

#[test]
fn lanes_with_few_registers_give_the_logits_of_transformers() {
    for name in ["tiny-llama", "tiny-deepseek-v3"] {
        let gpu = open(&of_a_gpu().registers(Registers::Few));
        equals_reference(family(name), &family(name).prompts[0], gpu);
    }
}

#[test]
fn webgpus_limits_and_no_feature_give_the_logits_of_transformers() {
    for name in ["tiny-llama", "tiny-deepseek-v4", "tiny-qwen3-moe"] {
        equals_reference(family(name), &family(name).prompts[0], open(&of_webgpu()));
    }
}

/// Drivers may have subgroups and no type f16, as SwiftShader does.
#[test]
fn subgroups_without_f16_give_the_logits_of_transformers() {
    let features = Features::all().difference(Features::SHADER_F16);
    let tiny = family("tiny-llama");
    equals_reference(tiny, &tiny.prompts[0], open(&GpuOptions::new(checks()).features(features)));
}

/// Few rows and many through integer dot products, which no other test of the decoder reaches: their matrices are too small.
#[test]
fn codes_of_eight_bits_stay_near_the_logits_of_transformers() {
    let checkpoint = || Checkpoint::open(fixture("tiny-llama")).unwrap();
    let config = checkpoint().config().unwrap();
    let prompts = family("tiny-llama").prompts.iter();
    let prompt = prompts.max_by_key(|prompt| prompt.ids.len()).unwrap();
    let vocab = config.vocab_size as usize;
    let want = &prompt.logits[prompt.logits.len() - vocab..];
    let gpus = [(); 2].map(|()| Arc::new(open(&of_a_gpu())));
    for &(dtype, bound) in usual(1, &[(Dtype::Q8_0, 0.1), (Dtype::Q4_K, 0.6)]) {
        let quantized = checkpoint().quantize(&config, dtype).unwrap();
        let load = |gpu, activations| {
            let options = options(KvDtype::F16).activations(activations);
            Decoder::load(gpu, &config, quantized.weights(), &options).unwrap()
        };
        let mut exact = load(&gpus[0], ActivationType::F32);
        let mut coded = load(&gpus[1], ActivationType::Int8);
        for rows in [2, prompt.ids.len()] {
            let [exact, coded] =
                [&mut exact, &mut coded].map(|decoder| last_logits(decoder, &prompt.ids[..rows]));
            let error = relative_l2(&coded, &exact);
            assert!(error > 0.0 && error < 0.05, "{dtype:?}, {rows} rows: off by {error:.2e}");
            if rows == prompt.ids.len() {
                let error = relative_l2(&coded, want);
                assert!(error < bound, "{dtype:?}: off by {error:.2e} of the reference");
            }
        }
    }
    let [without, with] = gpus.map(|gpu| gpu.kernels());
    for kernel in ["matmul_int8", "matmul_int8_tile"] {
        assert!(with.contains(&kernel) && !without.contains(&kernel), "{kernel}: {with:?}");
    }
}

/// Pairs of a row and an expert are multiplied one by one, with biases and limits, until there are as many as experts. Of types
/// that unpack slowly there are half as many.
#[test]
fn experts_of_few_rows_stay_near_those_in_f32() {
    let gpt_oss =
        RandomSpec::new("tiny-gpt-oss", DecoderConfig::from_hf_dir(fixture("tiny-gpt-oss")).unwrap());
    let qwen = RandomSpec::parse("tiny-moe").unwrap();
    // All other matrices are smaller than these, so that their products are in f32.
    for (spec, dtype, share, small) in [(gpt_oss, Dtype::MXFP4, 2, 20_000), (qwen, Dtype::Q4_K, 1, 500_000)] {
        let checkpoint = Checkpoint::random(spec.dtype(dtype));
        let config = checkpoint.config().unwrap();
        let moe = config.moe.unwrap();
        let few = moe.num_experts / moe.top_k / share;
        let tuning = Tuning::H200.small_weights(small);
        let of = |rows: u32, activations| {
            let gpu = Arc::new(open(&GpuOptions::new(Checks::On).software(false).tuning(tuning)));
            let options = options(KvDtype::F16).activations(activations);
            let mut decoder = Decoder::load(&gpu, &config, checkpoint.weights(), &options).unwrap();
            let ids: Vec<u32> = (0..rows).map(|i| i * 31 % config.vocab_size).collect();
            let logits = last_logits(&mut decoder, &ids);
            (logits, ["expert_gate_up", "expert_down"].map(|kernel| gpu.kernels().contains(&kernel)))
        };
        // By default the ends alone: each opens two devices, of which each has kernels of its own.
        for rows in (1..=few + 1).filter(|rows| is_long() || [1, few, few + 1].contains(rows)) {
            let (exact, _) = of(rows, ActivationType::F32);
            let (coded, kernels) = of(rows, ActivationType::Int8);
            let error = relative_l2(&coded, &exact);
            let bounds = if rows <= few { 1e-6..0.05 } else { 0.0..1e-9 };
            assert!(bounds.contains(&error), "{dtype:?}, {rows} rows: off by {error:.2e}");
            assert_eq!(kernels, [rows <= few; 2], "{dtype:?}, {rows} rows");
        }
    }
}

/// Lanes with few registers have fewer products each, of which none is rounded otherwise.
#[test]
fn registers_change_no_bit_of_products_by_codes() {
    let checkpoint = || Checkpoint::open(fixture("tiny-llama")).unwrap();
    let config = checkpoint().config().unwrap();
    let prompts = family("tiny-llama").prompts.iter();
    let ids = &prompts.max_by_key(|prompt| prompt.ids.len()).unwrap().ids;
    // First a type that the test of codes of eight bits has compiled kernels for.
    for &dtype in usual(1, &[Dtype::Q8_0, Dtype::Q4_K]) {
        let quantized = checkpoint().quantize(&config, dtype).unwrap();
        let of = |registers| {
            let gpu = Arc::new(open(&of_a_gpu().registers(registers)));
            let options = options(KvDtype::F16).activations(ActivationType::Int8);
            let mut decoder = Decoder::load(&gpu, &config, quantized.weights(), &options).unwrap();
            [7, ids.len()].map(|rows| last_logits(&mut decoder, &ids[..rows]))
        };
        assert_eq!(of(Registers::Few), of(Registers::Many), "{dtype:?}");
    }
}

/// Times of a device decide on kernels, but on no bit of results that must not depend on any.
#[test]
fn no_tuning_changes_reproducible_logits() {
    let checkpoint = || Checkpoint::open(fixture("tiny-llama")).unwrap();
    let config = checkpoint().config().unwrap();
    let quantized = checkpoint().quantize(&config, Dtype::Q8_0).unwrap();
    let prompts = family("tiny-llama").prompts.iter();
    let ids = &prompts.max_by_key(|prompt| prompt.ids.len()).unwrap().ids;
    let of = |rows, tiles, activations| {
        let tuning = Tuning::H200.small_weights(0).rows(rows, rows, rows).plain_tiles(tiles);
        // Matrices, where a driver has any, run without bounds checks.
        let gpu = Arc::new(open(&GpuOptions::new(Checks::Off).software(false).tuning(tuning)));
        let options = options(KvDtype::F16).reproducible(true).activations(activations);
        let mut decoder = Decoder::load(&gpu, &config, quantized.weights(), &options).unwrap();
        let logits = [2, 5, ids.len().min(64)].map(|rows| last_logits(&mut decoder, &ids[..rows]));
        (logits, gpu.kernels(), gpu.profile().runs_matrices())
    };
    for &activations in usual(1, &[ActivationType::F32, ActivationType::Int8]) {
        let [(few, tiles, by_matrices), (many, lanes, _)] =
            [(1, 1), (64, 512)].map(|(rows, full)| of(rows, full, activations));
        assert_eq!(few, many, "{activations:?}");
        // All rows go through matrices if there are any.
        assert_eq!(tiles == lanes, by_matrices, "{activations:?}: {tiles:?}");
    }
}
