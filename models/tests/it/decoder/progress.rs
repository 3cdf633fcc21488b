//! Progress of loading.

use std::fs;
use std::sync::Mutex;

use attn_kernels::kernel::KvDtype;
use models::{Checkpoint, Decoder, Dtype, LoadProgress, RandomSpec, Role};

use super::options;
use super::tiny::{fixture, gpu};

/// Every element of a model is counted once, however its tensors are stored: fused, by expert, quantised, in two files' formats.
#[test]
fn all_weights_are_counted_once() {
    let tiny = fs::read_dir(fixture("")).unwrap().map(|entry| entry.unwrap().path());
    let quantized = fs::read_dir(fixture("quantized")).unwrap().map(|entry| entry.unwrap().path());
    let folders = tiny.chain(quantized).filter(|path| path.join("config.json").is_file());
    let files = fs::read_dir(fixture("")).unwrap().map(|entry| entry.unwrap().path().join("model.gguf"));
    let mut paths: Vec<_> = folders.chain(files.filter(|path| path.is_file())).collect();
    paths.sort();
    assert!(paths.len() > 40, "{paths:?}");
    for path in paths {
        counts(&Checkpoint::open(&path).unwrap(), &path.display().to_string());
    }
    let plain = Checkpoint::open(fixture("tiny-llama")).unwrap();
    let config = plain.config().unwrap();
    counts(&plain.quantize(&config, Dtype::Q8_0).unwrap(), "quantised at load");
}

fn counts(checkpoint: &Checkpoint, what: &str) {
    let config = checkpoint.config().unwrap();
    let progress = LoadProgress::default();
    assert!(!progress.loaded().is_running());
    let options = options(KvDtype::F32).loading(progress.clone());
    for _ in 0..2 {
        // A second time counts from the beginning.
        let decoder = Decoder::load(gpu(), &config, checkpoint.weights(), &options).unwrap();
        let loaded = progress.loaded();
        assert_eq!(loaded.elements, loaded.total_elements, "{what}");
        assert_eq!(loaded.bytes, decoder.weight_sizes().bytes(), "{what}");
        assert!(!loaded.is_running() && loaded.bytes > 0);
    }
}

#[test]
fn what_fails_is_left_where_it_was() {
    let checkpoint = Checkpoint::open(fixture("tiny-llama")).unwrap();
    let config = checkpoint.config().unwrap();
    let progress = LoadProgress::default();
    let mut longer = config.clone();
    longer.num_layers += 1;
    longer.layers.push(config.layers[0]);
    let options = options(KvDtype::F32).loading(progress.clone());
    Decoder::load(gpu(), &longer, checkpoint.weights(), &options).unwrap_err();
    let loaded = progress.loaded();
    assert!(loaded.is_running() && loaded.elements > 0, "{loaded:?}");
}

/// A large matrix is told of in parts while it is quantised.
#[test]
fn quantised_parts_make_the_whole() {
    let mut spec = RandomSpec::parse("tiny-llama").unwrap();
    spec.config.vocab_size = 20_000;
    let plain = Checkpoint::random(spec);
    let config = plain.config().unwrap();
    let quantized = plain.quantize(&config, Dtype::Q8_0).unwrap();
    let parts = Mutex::new(Vec::new());
    let tensor = quantized
        .weights()
        .tensor_by_parts(Role::Embed, &|part| parts.lock().unwrap().push((part.bytes, part.elements)))
        .unwrap();
    let parts = parts.into_inner().unwrap();
    assert!(parts.len() >= 5, "{parts:?}");
    let sum = parts.iter().fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
    assert_eq!(sum, (tensor.data.len() as u64, 20_000 * 256));
}
