//! Models of random weights: of every type, and in the shape of every family.

use attn_kernels::kernel::KvDtype;
use kvblock::BlockId;
use models::batch::{Phase, Slice};
use models::{Checkpoint, Decoder, DecoderConfig, Dtype, RandomSpec};

use super::options;
use super::tiny::{fixture, gpu};
use crate::{every, usual};

/// Logits of the last of 20 tokens.
fn logits(spec: RandomSpec) -> Vec<f32> {
    let checkpoint = Checkpoint::random(spec);
    let mut decoder = load(&checkpoint);
    let vocab = decoder.config().vocab_size;
    last_logits(&mut decoder, &(0..20).map(|i| i * 31 % vocab).collect::<Vec<u32>>())
}

/// A decoder with an exact cache.
pub(super) fn load(checkpoint: &Checkpoint) -> Decoder {
    let config = checkpoint.config().unwrap();
    Decoder::load(gpu(), &config, checkpoint.weights(), &options(KvDtype::F32)).unwrap()
}

/// Logits of the last of at most 320 tokens.
pub(super) fn last_logits(decoder: &mut Decoder, tokens: &[u32]) -> Vec<f32> {
    // Blocks of one size for all groups; block 0 is the null block.
    let blocks: Vec<Vec<BlockId>> = (0..decoder.kv().plan().layout.groups.len())
        .map(|group| (0..20).map(|i| BlockId::new(u32::try_from(1 + 20 * group + i).unwrap())).collect())
        .collect();
    let tables: Vec<&[BlockId]> = blocks.iter().map(Vec::as_slice).collect();
    let slice = Slice { logits: 1, ..Slice::new(tokens, 0, &tables, Phase::Prefill) };
    decoder.step(&[slice], &[]).unwrap().logits
}

/// Finite, of a size that a softmax tells apart without picking one.
fn assert_sane(what: &str, logits: &[f32]) {
    let count = logits.len() as f32;
    let mean = logits.iter().sum::<f32>() / count;
    let deviation = (logits.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / count).sqrt();
    assert!(
        (0.3..3.0).contains(&deviation) && mean.abs() < 1.0,
        "{what}: mean {mean}, deviation {deviation}"
    );
}

#[test]
fn every_type_gives_sane_logits() {
    // Products with experts are other kernels; by default every other type runs, and they take turns: the tests of single kernels
    // have all.
    let mut shapes = ["tiny-moe", "tiny-llama"];
    for dtype in Dtype::ALL.into_iter().step_by(every(2)) {
        shapes.rotate_left(1);
        for shape in usual(1, &shapes) {
            let spec = RandomSpec::parse(shape).unwrap().dtype(dtype);
            assert_sane(&spec.to_string(), &logits(spec.clone()));
        }
    }
}

/// That a decoder loads means that the list of tensors is the one that it reads: no more, no less, each in its shape.
#[test]
fn every_family_has_its_tensors() {
    let names = [
        "tiny-deepseek-v32",
        "tiny-deepseek-v4-odd",
        "tiny-gemma3",
        "tiny-glm4",
        "tiny-gpt-oss",
        "tiny-granite",
        "tiny-llama4",
        "tiny-qwen3-moe",
        "tiny-deepseek-v3",
        "tiny-deepseek-v4",
        "tiny-llama",
        "tiny-mistral",
        "tiny-phi3",
        "tiny-qwen2",
        "tiny-qwen3",
        "tiny-smollm3",
    ];
    for &name in usual(4, &names) {
        let config = DecoderConfig::from_hf_dir(fixture(name)).unwrap();
        // Granite trains logits that are divided: random ones are of the usual size before.
        let scale = config.logit_scale;
        let spec = RandomSpec::new(name, config).dtype(Dtype::Q8_0);
        assert_sane(name, &logits(spec).iter().map(|logit| logit / scale).collect::<Vec<_>>());
    }
}
