//! Checkpoints that are quantised at load.

use std::collections::HashMap;

use attn_kernels::kernel::KvDtype;
use models::{Checkpoint, Decoder, Dtype, Naming, RandomSpec, Safetensors, Tensor, WeightError};
use safetensors::tensor::TensorView;
use sparse_select::dsa::fp8;

use super::options;
use super::random::{last_logits, load};
use super::tiny::{family, fixture, gpu};
use crate::{every, usual};

/// Standard deviation of what is between two lists over that of the second.
fn distance(got: &[f32], want: &[f32]) -> f32 {
    let mean = want.iter().sum::<f32>() / want.len() as f32;
    let off: f32 = got.iter().zip(want).map(|(got, want)| (got - want).powi(2)).sum();
    (off / want.iter().map(|want| (want - mean).powi(2)).sum::<f32>()).sqrt()
}

fn quantized(name: &str, to: Dtype) -> Checkpoint {
    let checkpoint = Checkpoint::open(fixture(name)).unwrap();
    let config = checkpoint.config().unwrap();
    checkpoint.quantize(&config, to).unwrap()
}

/// Experts by rows, by columns and with gates and ups in turns; fused projections; latents; an indexer; several streams.
#[test]
fn every_layout_of_tensors_computes_nearly_the_same() {
    let names = [
        "tiny-phi3",
        "tiny-qwen3-moe",
        "tiny-gpt-oss",
        "tiny-deepseek-v3",
        "tiny-deepseek-v4",
        "tiny-llama",
        "tiny-gemma2",
        "tiny-llama4",
    ];
    for &name in usual(5, &names) {
        let mut decoder = load(&quantized(name, Dtype::Q8_0));
        let plain = load(&Checkpoint::open(fixture(name)).unwrap());
        assert!(decoder.weight_sizes().bytes() < plain.weight_sizes().bytes(), "{name}");
        let prompt = &family(name).prompts[0];
        let vocab = decoder.config().vocab_size as usize;
        let got = last_logits(&mut decoder, &prompt.ids);
        let distance = distance(&got, &prompt.logits[prompt.logits.len() - vocab..]);
        // Elements in another order would be at a distance above 1; models this small feel eight bits more than real ones.
        assert!(distance > 1e-4 && distance < 0.1, "{name}: {distance}");
    }
}

/// Fewer bits are farther from what transformers computes, within the classes of 8, 6, 5 and 4 bits; by default the first and
/// the last.
#[test]
fn types_of_fewer_bits_lose_more() {
    let mut spec = RandomSpec::parse("smollm2-135m:f32,layers=1").unwrap();
    // As many as the prompt has: a large table of embeddings says nothing more, and takes seconds to make.
    spec.config.vocab_size = 4096;
    let random = || Checkpoint::random(spec.clone());
    let tokens: Vec<u32> = (0..24).map(|i| 7 + 97 * i).collect();
    let want = last_logits(&mut load(&random()), &tokens);
    let config = random().config().unwrap();
    let loss = |to| {
        let checkpoint = random().quantize(&config, to).unwrap();
        distance(&last_logits(&mut load(&checkpoint), &tokens), &want)
    };
    let types = [Dtype::Q8_0, Dtype::Q6_K, Dtype::Q5_1, Dtype::Q4_0];
    let losses: Vec<f32> = types.into_iter().step_by(every(3)).map(loss).collect();
    let grows = losses.is_sorted_by(|less, more| less < more) && losses.iter().all(|loss| *loss < 0.4);
    assert!(grows && losses[0] > 0.0, "{losses:?}");
}

#[test]
fn what_is_quantized_already_stays_as_it_is() {
    let name = "tiny-qwen3-moe-gguf";
    let checkpoint = Checkpoint::open(fixture(name)).unwrap();
    let config = checkpoint.config().unwrap();
    let stored = checkpoint.weights().tensor(models::Role::Q(0)).unwrap().dtype;
    let again = checkpoint.quantize(&config, Dtype::Q4_0).unwrap();
    if stored.block_elems() > 1 {
        assert_eq!(again.weights().tensor(models::Role::Q(0)).unwrap().dtype, stored);
    }
    let twice = again.quantize(&config, Dtype::Q4_0);
    assert!(matches!(twice, Err(WeightError::NothingToQuantize { .. })), "{twice:?}");
}

#[test]
fn other_weights_are_another_fingerprint() {
    let of = |checkpoint: Checkpoint| checkpoint.fingerprint().unwrap();
    let plain = of(Checkpoint::open(fixture("tiny-llama")).unwrap());
    let eight = of(quantized("tiny-llama", Dtype::Q8_0));
    assert_ne!(eight, plain);
    assert_ne!(eight, of(quantized("tiny-llama", Dtype::Q4_0)));
    assert_eq!(eight, of(quantized("tiny-llama", Dtype::Q8_0)));
}

/// Rows and columns that share a scale.
const BLOCK: usize = 128;

/// A stored tensor: name, type, shape, data.
type Stored = (String, safetensors::Dtype, Vec<usize>, Vec<u8>);

fn f32_bytes(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// A matrix in codes with a scale for each block, as DeepSeek publishes them, and the numbers that they stand for.
fn in_fp8(tensor: &Tensor<'_>) -> ([Stored; 2], Stored) {
    let (values, name) = (tensor.to_f32(), tensor.name.to_string());
    let [rows, width] = [tensor.shape[0], tensor.shape[1]];
    let across = width.div_ceil(BLOCK);
    // All different, and none a power of two.
    let scale = |block: usize| 3e-4 * (1.0 + 0.01 * block as f32);
    let scales = (0..rows.div_ceil(BLOCK) * across).map(scale);
    let scale_of = |at: usize| scale(at / width / BLOCK * across + at % width / BLOCK);
    let codes: Vec<u8> =
        values.iter().enumerate().map(|(at, value)| fp8::encode(value / scale_of(at))).collect();
    let numbers = codes.iter().enumerate().map(|(at, code)| fp8::decode(*code) * scale_of(at));
    let whole = (name.clone(), safetensors::Dtype::F32, tensor.shape.clone(), f32_bytes(numbers));
    let scales = f32_bytes(scales);
    let parts = [
        (format!("{name}_scale_inv"), safetensors::Dtype::F32, vec![rows.div_ceil(BLOCK), across], scales),
        (name, safetensors::Dtype::F8_E4M3, tensor.shape.clone(), codes),
    ];
    (parts, whole)
}

fn opened(stored: &[Stored]) -> Safetensors {
    let views = stored.iter().map(|(name, dtype, shape, data)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    Safetensors::from_bytes(safetensors::serialize(views, None::<HashMap<String, String>>).unwrap()).unwrap()
}

/// Codes stay codes on the device, and compute to the bit what their numbers do in f32.
#[test]
fn published_fp8_computes_what_its_numbers_do() {
    for &shape in usual(1, &["tiny-moe", "tiny-llama"]) {
        let random = Checkpoint::random(RandomSpec::parse(shape).unwrap());
        let config = random.config().unwrap();
        let (mut codes, mut numbers) = (Vec::new(), Vec::new());
        for role in config.tensors() {
            let name = Naming::Hf.name(role).unwrap();
            let tensor = Tensor { name: name.into(), ..random.weights().tensor(role).unwrap() };
            if tensor.name.ends_with("proj.weight") {
                let (parts, whole) = in_fp8(&tensor);
                codes.extend(parts);
                numbers.push(whole);
            } else {
                let data = f32_bytes(tensor.to_f32());
                let plain = (tensor.name.to_string(), safetensors::Dtype::F32, tensor.shape.clone(), data);
                codes.push(plain.clone());
                numbers.push(plain);
            }
        }
        let [mut codes, mut numbers] = [codes, numbers]
            .map(|stored| Decoder::load(gpu(), &config, &opened(&stored), &options(KvDtype::F32)).unwrap());
        let bytes = |decoder: &Decoder| decoder.weight_sizes().bytes();
        assert!(bytes(&codes) * 2 < bytes(&numbers), "{shape}: {} {}", bytes(&codes), bytes(&numbers));
        let tokens: Vec<u32> = (0..24).map(|i| 7 + 17 * i).collect();
        let [got, want] = [&mut codes, &mut numbers].map(|decoder| last_logits(decoder, &tokens));
        assert!(want.iter().all(|logit| logit.is_finite()), "{shape}");
        assert_eq!(got, want, "{shape}");
    }
}
