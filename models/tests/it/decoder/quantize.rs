//! Checkpoints that are quantised at load.

use models::{Checkpoint, Dtype, RandomSpec, WeightError};

use super::random::{last_logits, load};
use super::tiny::{family, fixture};

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
    for name in [
        "tiny-llama",
        "tiny-phi3",
        "tiny-gemma2",
        "tiny-qwen3-moe",
        "tiny-llama4",
        "tiny-gpt-oss",
        "tiny-deepseek-v3",
        "tiny-deepseek-v4",
    ] {
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

/// Fewer bits are farther from what transformers computes, within the classes of 8, 6, 5 and 4 bits.
#[test]
fn types_of_fewer_bits_lose_more() {
    let random = || Checkpoint::random(RandomSpec::parse("smollm2-135m:f32,layers=2").unwrap());
    let tokens: Vec<u32> = (0..24).map(|i| 7 + 97 * i).collect();
    let want = last_logits(&mut load(&random()), &tokens);
    let config = random().config().unwrap();
    let loss = |to| {
        let checkpoint = random().quantize(&config, to).unwrap();
        distance(&last_logits(&mut load(&checkpoint), &tokens), &want)
    };
    let [eight, six, five, four] = [Dtype::Q8_0, Dtype::Q6_K, Dtype::Q5_1, Dtype::Q4_0].map(loss);
    let grows = 0.0 < eight && eight < six && six < five && five < four && four < 0.4;
    assert!(grows, "{eight} {six} {five} {four}");
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
