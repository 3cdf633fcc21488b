//! The tiny models and what transformers computed with them.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::thread;

use attn_kernels::gpu::wgpu::DeviceType;
use attn_kernels::gpu::{Checks, Gpu, GpuOptions, adapters};
use attn_kernels::kernel::KvDtype;
use bytemuck::Pod;
use models::{
    Checkpoint, Decoder, DecoderConfig, DecoderOptions, HostMemory, ModelError, Pipeline, Safetensors,
};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use super::options;
use crate::is_long;

/// A model and its reference, opened once.
pub(crate) struct Tiny {
    pub(crate) name: &'static str,
    checkpoint: Checkpoint,
    pub(crate) config: DecoderConfig,
    pub(crate) prompts: Vec<Prompt>,
}

/// A prompt and its reference.
pub(crate) struct Prompt {
    pub(crate) ids: Vec<u32>,
    /// Logits of the last positions, `[rows, vocab]`.
    pub(crate) logits: Vec<f32>,
    /// Greedy continuation.
    pub(crate) greedy: Vec<u32>,
    /// Gap between the two largest logits at each greedy token.
    pub(crate) margins: Vec<f32>,
}

/// The Llama, on which everything is tested that is the same in every family.
pub(crate) fn tiny() -> &'static Tiny {
    family("tiny-llama")
}

/// The model in the fixture `name`: a folder, or a GGUF file in one.
pub(crate) fn family(name: &'static str) -> &'static Tiny {
    static OPEN: Mutex<Option<HashMap<&'static str, &'static Tiny>>> = Mutex::new(None);
    let mut open = OPEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    open.get_or_insert_default().entry(name).or_insert_with(|| Box::leak(Box::new(Tiny::open(name))))
}

/// One of the devices that tests share, throughout a test the same. A software driver runs all that one device is given on one
/// thread, so that there are several, but few: each translates and compiles kernels anew, and another test program runs at the
/// same time.
pub(crate) fn gpu() -> &'static Arc<Gpu> {
    static GPUS: LazyLock<Vec<OnceLock<Arc<Gpu>>>> = LazyLock::new(|| {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        (0..(processors / 2).clamp(1, 4)).map(|_| OnceLock::new()).collect()
    });
    static TESTS: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static TEST: usize = TESTS.fetch_add(1, Ordering::Relaxed));
    GPUS[TEST.with(|test| test % GPUS.len())].get_or_init(|| Arc::new(open_gpu()))
}

/// On software drivers, bounds checks in the long form alone: without them kernels are those of the engine, and compiled once for
/// the tests of both. The tests of single kernels have checks by default.
pub(crate) fn checks() -> Checks {
    static CHECKS: LazyLock<Checks> = LazyLock::new(|| {
        let on_software = adapters().first().is_some_and(|adapter| adapter.device_type == DeviceType::Cpu);
        if on_software && !is_long() { Checks::Off } else { Checks::On }
    });
    *CHECKS
}

/// A device that no other test uses.
pub(crate) fn open_gpu() -> Gpu {
    Gpu::open(&GpuOptions::new(checks())).expect("GPU tests need an adapter")
}

/// One without buffers in memory of the host.
pub(crate) fn gpu_without_host_buffers() -> &'static Arc<Gpu> {
    static GPU: OnceLock<Arc<Gpu>> = OnceLock::new();
    let options = GpuOptions::new(checks()).host_buffers(false);
    GPU.get_or_init(|| Arc::new(Gpu::open(&options).expect("GPU tests need an adapter")))
}

fn prompt(golden: &SafeTensors<'_>, n: usize) -> Prompt {
    Prompt {
        ids: ids(golden, &format!("prompt_{n}")),
        logits: values(golden, &format!("logits_{n}")),
        greedy: ids(golden, &format!("greedy_{n}")),
        margins: values(golden, &format!("margins_{n}")),
    }
}

pub(crate) fn values<T: Pod>(golden: &SafeTensors<'_>, name: &str) -> Vec<T> {
    bytemuck::pod_collect_to_vec(golden.tensor(name).unwrap().data())
}

fn ids(golden: &SafeTensors<'_>, name: &str) -> Vec<u32> {
    values::<i64>(golden, name).into_iter().map(|id| u32::try_from(id).unwrap()).collect()
}

pub(crate) fn fixture(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "fixtures", name].iter().collect()
}

impl Tiny {
    fn open(name: &'static str) -> Self {
        let path = fixture(name);
        let folder = if path.is_dir() { &path } else { path.parent().unwrap() };
        let golden = std::fs::read(folder.join("golden.safetensors")).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let golden = SafeTensors::deserialize(&golden).unwrap();
        Self {
            name,
            config: checkpoint.config().unwrap(),
            checkpoint,
            prompts: (0..4).map(|n| prompt(&golden, n)).collect(),
        }
    }

    pub(crate) fn decoder(&self, options: &DecoderOptions) -> Decoder {
        self.try_decoder(options).unwrap()
    }

    /// A decoder on a device that no other test uses.
    pub(crate) fn decoder_alone(&self, options: &DecoderOptions) -> Decoder {
        self.decoder_on(open_gpu(), options)
    }

    /// A decoder on a device of the caller's.
    pub(crate) fn decoder_on(&self, gpu: Gpu, options: &DecoderOptions) -> Decoder {
        Decoder::load(&Arc::new(gpu), &self.config, self.checkpoint.weights(), options).unwrap()
    }

    /// A decoder; on a device without buffers in memory of the host where blocks there are staged.
    pub(crate) fn try_decoder(&self, options: &DecoderOptions) -> Result<Decoder, ModelError> {
        let staged = options.offload.is_some_and(|offload| offload.memory == HostMemory::Staged);
        let gpu = if staged { gpu_without_host_buffers() } else { gpu() };
        Decoder::load(gpu, &self.config, self.checkpoint.weights(), options)
    }

    /// A pipeline with as many of the layers on each device as `layers` says. The devices are of the test, which has compiled
    /// kernels on those that it used before.
    pub(crate) fn pipeline(&self, layers: &[u32], options: &DecoderOptions) -> Result<Pipeline, ModelError> {
        thread_local!(static GPUS: RefCell<Vec<Arc<Gpu>>> = const { RefCell::new(Vec::new()) });
        GPUS.with_borrow_mut(|gpus| {
            gpus.resize_with(gpus.len().max(layers.len()), || Arc::new(open_gpu()));
            Pipeline::load(&gpus[..layers.len()], layers, &self.config, self.checkpoint.weights(), options)
        })
    }

    /// A decoder of tensors that `edit` has changed, with `change` to the configuration.
    pub(crate) fn edited(
        &self,
        edit: impl FnOnce(&mut BTreeMap<String, TensorView<'_>>),
        change: impl FnOnce(&mut DecoderConfig),
    ) -> Result<Decoder, ModelError> {
        let file = std::fs::read(fixture(self.name).join("model.safetensors")).unwrap();
        let mut tensors = SafeTensors::deserialize(&file).unwrap().tensors().into_iter().collect();
        edit(&mut tensors);
        let file = safetensors::serialize(tensors, None::<HashMap<String, String>>).unwrap();
        let mut config = self.config.clone();
        change(&mut config);
        let weights = Safetensors::from_bytes(file).unwrap();
        Decoder::load(gpu(), &config, &weights, &options(KvDtype::F32))
    }

    pub(crate) fn weights(&self) -> &dyn models::WeightSource {
        self.checkpoint.weights()
    }

    pub(crate) fn vocab(&self) -> usize {
        self.config.vocab_size as usize
    }
}
