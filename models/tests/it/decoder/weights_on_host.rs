//! Weights in memory of the host: layers that pass through slots give the bits of a model that lies on the device.

use std::sync::Arc;

use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::KvDtype;
use insta::assert_snapshot;
use models::{
    Checkpoint, Decoder, DecoderConfig, DecoderOptions, Dtype, HostMemory, ModelError, Offload, RandomSpec,
};

use super::invariance::assert_same;
use super::served::{Request, Served, serve};
use super::tiny::{fixture, gpu, gpu_without_host_buffers, open_gpu, tiny};
use super::{blocks_of, options};
use crate::usual;

/// A model of which some weights may lie on the host.
struct Model {
    checkpoint: Checkpoint,
    config: DecoderConfig,
}

impl Model {
    /// A random model in the shape of a tiny one, with seven layers.
    fn random(shape: &str, dtype: Dtype) -> Self {
        let mut config = RandomSpec::parse(shape).unwrap().config;
        config.num_layers = 7;
        config.layers = vec![config.layers[0]; 7];
        let checkpoint = Checkpoint::random(RandomSpec::new(shape, config.clone()).dtype(dtype));
        Self { checkpoint, config }
    }

    fn fixture(name: &str) -> Self {
        let checkpoint = Checkpoint::open(fixture(name)).unwrap();
        Self { config: checkpoint.config().unwrap(), checkpoint }
    }

    fn load(&self, gpu: &Arc<Gpu>, options: &DecoderOptions) -> Result<Decoder, ModelError> {
        Decoder::load(gpu, &self.config, self.checkpoint.weights(), options)
    }

    /// The fewest bytes of weights on the device.
    fn least(&self, options: &DecoderOptions) -> u64 {
        match self.load(gpu(), &options.clone().weights_on_gpu(0)) {
            Err(ModelError::WeightBudget { needed_bytes, .. }) => needed_bytes,
            other => panic!("{other:?} with no byte for weights"),
        }
    }

    /// As many bytes as all weights take on the device, or a few more.
    fn all(&self, options: &DecoderOptions) -> u64 {
        let Err(ModelError::WeightBudget { fixed_bytes, needed_bytes, .. }) =
            self.load(gpu(), &options.clone().weights_on_gpu(0))
        else {
            panic!("no byte for weights is enough")
        };
        let decoder = self.load(gpu(), &options.clone().weights_on_gpu(needed_bytes)).unwrap();
        fixed_bytes + decoder.weight_placement().unwrap().host_bytes
    }
}

/// Two prompts, one of whose ends go through as decode rows, and what follows them.
fn served(decoder: &mut Decoder) -> Vec<Served> {
    let vocab = decoder.config().vocab_size;
    let ids: Vec<u32> = (0..70).map(|n| (n * 31 + n / 7) % vocab).collect();
    let requests = [Request { prefill: 66, ..Request::new(&ids, 3) }, Request::new(&ids[20..40], 4)];
    serve(decoder, &requests, 40)
}

fn assert_all_same(what: &str, got: &[Served], want: &[Served]) {
    assert_eq!(got.len(), want.len(), "{what}");
    got.iter().zip(want).for_each(|(got, want)| assert_same(what, got, want));
}

#[test]
fn every_family_gives_the_bits_of_weights_on_the_device() {
    let names = [
        "tiny-llama",
        "tiny-phi3",
        "tiny-gemma2-gguf/model.gguf",
        "tiny-qwen3-moe",
        "tiny-gpt-oss-mxfp4",
        "tiny-deepseek-v32",
        "tiny-deepseek-v4",
        "tiny-gemma3",
        "tiny-llama4",
        "tiny-deepseek-v3",
    ];
    for name in usual(7, &names) {
        let model = Model::fixture(name);
        let options = options(KvDtype::F16);
        let want = served(&mut model.load(gpu(), &options).unwrap());
        let least = options.clone().weights_on_gpu(model.least(&options));
        for gpu in [gpu(), gpu_without_host_buffers()] {
            let mut decoder = model.load(gpu, &least).unwrap();
            let what = format!("{name}, host buffers {}", gpu.has_host_buffers());
            assert!(decoder.weight_placement().is_some(), "{what}: all is on the device");
            assert_all_same(&what, &served(&mut decoder), &want);
        }
    }
}

#[test]
fn every_budget_gives_the_bits_of_weights_on_the_device() {
    let shapes = [
        ("tiny-llama", Dtype::Q4_K),
        ("tiny-moe", Dtype::Q8_0),
        ("tiny-llama", Dtype::F16),
        ("tiny-llama", Dtype::Q8_0),
    ];
    for &(shape, dtype) in usual(2, &shapes) {
        let model = Model::random(shape, dtype);
        let options = options(KvDtype::F16);
        let want = served(&mut model.load(gpu(), &options).unwrap());
        let (least, all) = (model.least(&options), model.all(&options));
        let mut on_host = Vec::new();
        for budget in [least, least + (all - least) / 2, all - (8 << 10), all] {
            let mut decoder = model.load(gpu(), &options.clone().weights_on_gpu(budget)).unwrap();
            let layers = decoder.weight_placement().map_or(0, |placement| placement.host_layers.len());
            on_host.push(layers);
            let what = format!("{shape} as {dtype} with {layers} layers on the host");
            assert_all_same(&what, &served(&mut decoder), &want);
        }
        // Two slots take as much as two layers.
        assert_eq!(on_host, [7, 5, 3, 0], "{shape} as {dtype}");
    }
}

/// Only what a placement says is on the device, and every step brings what is not.
#[test]
fn a_budget_is_what_the_device_allocates_for_weights() {
    let model = Model::random("tiny-llama", Dtype::Q8_0);
    let options = options(KvDtype::F16);
    let (least, all) = (model.least(&options), model.all(&options));
    let allocated = |budget: u64| {
        let gpu = Arc::new(open_gpu());
        let mut decoder = model.load(&gpu, &options.clone().weights_on_gpu(budget)).unwrap();
        let [all, host] = [gpu.allocated_bytes(), gpu.host_allocated_bytes()];
        let placement = decoder.weight_placement().cloned();
        serve(&mut decoder, &[Request::new(&[1, 2, 3], 4)], 64);
        let streamed = decoder.streamed_weight_bytes();
        assert_eq!(streamed, placement.as_ref().map_or(0, |placement| 4 * placement.host_bytes));
        assert!(placement.as_ref().is_none_or(|placement| placement.host_bytes == host));
        (all - host, placement.map(|placement| placement.device_bytes))
    };
    let (bytes, placed) = allocated(least);
    assert!(placed.unwrap() <= least);
    let others = bytes - placed.unwrap();
    let half = least + (all - least) / 2;
    let (bytes, placed) = allocated(half);
    assert!((least + 1..=half).contains(&placed.unwrap()), "{placed:?} with a budget of {half}");
    assert_eq!(bytes - others, placed.unwrap(), "with a budget of {half}");
    let (bytes, placed) = allocated(all);
    assert_eq!(placed, None, "all is on the device");
    assert!((all - (8 << 10)..=all).contains(&(bytes - others)), "{} of {all}", bytes - others);
    assert!(least < all * 2 / 3, "{least} of {all}");
}

#[test]
fn kv_on_the_host_and_prefixes_work_with_weights_there() {
    let model = Model::fixture("tiny-llama");
    let roomy = blocks_of(16, &options(KvDtype::F16).reproducible(true)).num_blocks(100);
    let ids: Vec<u32> = tiny().prompts[3].ids.iter().copied().cycle().take(700).collect();
    let requests = [Request { prefill: 690, ..Request::new(&ids, 6) }, Request::new(&ids[5..90], 4)];
    let want = serve(&mut tiny().decoder(&roomy), &requests, 200);
    let least = model.least(&roomy);
    for (gpu, memory) in [(gpu(), HostMemory::Mapped), (gpu_without_host_buffers(), HostMemory::Staged)] {
        let offload = Offload::new(256, 2, memory);
        let options = roomy.clone().num_blocks(17).offload(offload).weights_on_gpu(least);
        let got = serve(&mut model.load(gpu, &options).unwrap(), &requests, 200);
        assert_all_same(&format!("{memory:?}"), &got, &want);
    }
}

/// Another cache takes other slots, and decoders that share the weights may take turns.
#[test]
fn decoders_that_share_weights_on_the_host_have_slots_of_their_own() {
    let model = Model::random("tiny-llama", Dtype::Q8_0);
    let options = options(KvDtype::F16);
    let want = served(&mut model.load(gpu(), &options).unwrap());
    let placed = options.clone().weights_on_gpu(model.least(&options));
    let mut one = model.load(gpu(), &placed).unwrap();
    let mut other = one.beside(&options).unwrap();
    assert_all_same("the first", &served(&mut one), &want);
    assert_all_same("the one beside it", &served(&mut other), &want);
    drop(one);
    let mut again = other.with_options(&options.clone().num_blocks(300)).unwrap();
    assert_all_same("with another cache", &served(&mut again), &want);
}

/// Steps of known shapes make nothing, and are encoded ahead.
#[test]
fn a_steady_step_makes_no_gpu_object() {
    let model = Model::random("tiny-llama", Dtype::Q8_0);
    let options = options(KvDtype::F16);
    let placed = options.clone().weights_on_gpu(model.least(&options));
    let mut decoder = model.load(&Arc::new(open_gpu()), &placed).unwrap();
    let ids: Vec<u32> = (0..90).collect();
    let request = Request { logits: false, ..Request::new(&ids, 12) };
    serve(&mut decoder, &[request], 64);
    let (made, ahead) = (decoder.gpu().objects_made(), decoder.steps_ahead());
    serve(&mut decoder, &[request], 64);
    assert_eq!(decoder.gpu().objects_made() - made, 0);
    // Eleven decode steps, of which the first repeats no other.
    assert_eq!(decoder.steps_ahead() - ahead, 10);
}

#[test]
fn a_budget_without_room_for_two_layers_is_refused() {
    let options = options(KvDtype::F16).weights_on_gpu(1 << 20);
    let refused = Model::random("tiny-llama", Dtype::Q8_0).load(gpu(), &options).unwrap_err();
    assert_snapshot!(refused, @"1048576 bytes for weights on the device are too few: 1552160 are needed, 293888 of them for embedding, output head and vectors, the others for two of the largest layers");
}
