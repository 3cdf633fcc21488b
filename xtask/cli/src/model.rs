//! Opens the engine or decoder of a command, as its flags say.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use attn_kernels::gpu::Gpu;
use indicatif::{BinaryBytes, MultiProgress};
use models::Pipeline;
use pagoda::{Demand, Engine, EngineOptions, LayerSplit, Model, Notes, Preemption};

use crate::cli::EngineArgs;
use crate::devices;
use crate::progress::{StatusLine, compile_line, load_line, reading_line};
use crate::setup::{self, Need};

/// Maximum time of a step with prompt tokens on a software driver. Between steps, Ctrl-C and other requests are
/// answered and progress is shown.
const STEP_TIME: Duration = Duration::from_secs(1);

/// Opens an engine with room for `demand`.
///
/// # Errors
/// If there is no device, not enough memory, or the decoder does not support the model.
pub fn engine(
    args: &EngineArgs,
    model: &Arc<Model>,
    demand: Demand,
    preemption: Preemption,
) -> Result<Engine> {
    setup::ensure(&[Need::Gpu])?;
    let mut options = EngineOptions::from(args).demand(demand);
    options.preemption = preemption;
    bound_steps(args, model, &mut options)?;
    let begun = Instant::now();
    if options.kv_tiers.as_ref().is_some_and(|tiers| tiers.disk.is_some() || tiers.remote.is_some()) {
        fingerprint(args, model)?;
    }
    let lines = opening_lines(args, &options, &model.gpu(&options)?);
    let engine = Engine::open(Arc::clone(model), options).map_err(of_flags)?;
    drop(lines);
    note_pool(args, &engine);
    if args.verbose {
        eprintln!("{}", loaded(model, &engine, begun.elapsed()));
    }
    Ok(engine)
}

/// Converts an error of the engine, and names the command-line flag instead of the engine's option.
pub fn of_flags(error: pagoda::Error) -> anyhow::Error {
    match error {
        pagoda::Error::KvTiers { spec, source } => {
            anyhow::Error::from(*source).context(format!("--kv-tiers {spec}"))
        }
        other => other.into(),
    }
}

/// Says on stderr that the model's context is shorter than `asked`, if it is.
pub fn note_context(args: &EngineArgs, asked: Option<u32>, model: &Model) {
    if let Some(note) = context_note(asked, model.config.context_length).filter(|_| !args.quiet) {
        eprintln!("{note}");
    }
}

fn context_note(asked: Option<u32>, stated: u32) -> Option<String> {
    let asked = asked.filter(|asked| *asked > stated)?;
    Some(format!("--context {asked}: the model has a context of {stated} tokens, and gets no longer one"))
}

/// Says on stderr that the KV pool is smaller than `--kv-memory`, if it is.
pub fn note_pool(args: &EngineArgs, engine: &Engine) {
    let pipeline = engine.pipeline();
    let block = pipeline.plan().block_bytes();
    let asked = args.kv_memory.filter(|_| args.kv_blocks.is_none() && !args.quiet);
    if let Some(note) = pool_note(asked, u64::from(pipeline.num_blocks()) * block, block) {
        eprintln!("{note}");
    }
}

fn pool_note(asked: Option<u64>, pool: u64, block: u64) -> Option<String> {
    let asked = asked.filter(|asked| *asked >= pool + block.max(asked / 100))?;
    let [asked, pool] = [asked, pool].map(BinaryBytes);
    Some(format!("--kv-memory {asked}: the KV pool takes {pool}, the most that the device holds"))
}

/// Limits the time of steps on a software driver, where a step with a whole chunk may take a minute. Has no effect on
/// a GPU, or with reproducible results, which must not depend on a clock.
///
/// # Errors
/// If there is no device.
pub fn bound_steps(args: &EngineArgs, model: &Model, options: &mut EngineOptions) -> Result<()> {
    if !args.reproducible && model.gpu(options)?.is_cpu() {
        options.max_step_time = Some(STEP_TIME);
    }
    Ok(())
}

/// The model's fingerprint. The first call reads the whole checkpoint.
///
/// # Errors
/// If it cannot be read.
pub fn fingerprint(args: &EngineArgs, model: &Model) -> Result<u128> {
    let _line = (!args.quiet).then(reading_line);
    Ok(model.fingerprint()?)
}

/// Shows status lines about the weights and kernels of a model while it is loaded; no lines with `--quiet`.
pub fn opening_lines(args: &EngineArgs, options: &EngineOptions, gpu: &Arc<Gpu>) -> Vec<StatusLine> {
    if args.quiet {
        return Vec::new();
    }
    let bars = MultiProgress::new();
    vec![load_line(&bars, &options.loading, args.verbose), compile_line(&bars, gpu)]
}

/// A line about what was loaded, and how long it took.
pub fn loaded(model: &Model, engine: &Engine, time: Duration) -> String {
    let config = &model.config;
    let pipeline = engine.pipeline();
    let family = config.family.model_type().or(config.family.architecture()).unwrap_or("of no name");
    let blocks = u64::from(pipeline.num_blocks());
    format!(
        "loaded in {:.1} s: family {family}, {} layers, {} of weights; {blocks} KV blocks of {} tokens, {}",
        time.as_secs_f64(),
        config.num_layers,
        BinaryBytes(pipeline.weight_sizes().bytes()),
        pipeline.plan().block_sizes().next().unwrap_or(0),
        BinaryBytes(blocks * pipeline.plan().block_bytes()),
    )
}

/// Loads the decoder for one sequence of `tokens` tokens in steps of `--chunk` rows.
///
/// # Errors
/// If there is no device or not enough memory, or a tensor does not fit the configuration.
pub fn decoder(args: &EngineArgs, model: &Model, tokens: u64) -> Result<Pipeline> {
    let options = EngineOptions::from(args).demand(Demand::one(tokens));
    setup::ensure(&[Need::Gpu])?;
    let _lines = opening_lines(args, &options, &model.gpu(&options)?);
    load(&options, model)
}

/// Loads the decoder with these options.
///
/// # Errors
/// Those of [`decoder`].
pub fn load(options: &EngineOptions, model: &Model) -> Result<Pipeline> {
    setup::ensure(&[Need::Gpu])?;
    Ok(model.load(options, options.chunk)?)
}

/// Notes go to stderr.
impl From<&EngineArgs> for EngineOptions {
    fn from(args: &EngineArgs) -> Self {
        let mut options = Self::new().chunk(args.chunk).kv_dtype(args.kv_dtype);
        options.device.clone_from(&args.device);
        options.split = args.split.as_ref().zip(args.device.as_ref()).map(|(by, devices)| LayerSplit {
            devices: devices::split(devices, attn_kernels::gpu::adapters),
            layers: by.layers.clone(),
        });
        options.host_buffers = !args.no_host_buffers;
        options.host_tier_on_device = args.host_tier_on_device;
        options.index_dtype = args.index_dtype;
        options.block_size = args.block_size;
        options.kv_blocks = args.kv_blocks;
        options.kv_memory = args.kv_memory;
        options.weights_on_gpu = args.weights_on_gpu;
        options.reproducible = args.reproducible;
        options.coop = !args.no_coop;
        options.async_scheduling = args.no_async_scheduling.then_some(false);
        options.activations = args.activations;
        options.kv_tiers.clone_from(&args.kv_tiers);
        if !args.quiet {
            options.notes = Notes::to(|note| eprintln!("{note}"));
        }
        options.sparse = args.policy().cloned();
        if let Some(sparse) = &mut options.sparse {
            sparse.place = args.select_on;
            sparse.certify = args.certify;
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_beyond_what_there_is_are_told() {
        assert_eq!([context_note(None, 8), context_note(Some(8), 8)], [None, None]);
        let told = context_note(Some(9), 8).unwrap();
        assert_eq!(told, "--context 9: the model has a context of 8 tokens, and gets no longer one");
        // Less than a block, or than a hundredth, is no difference.
        assert_eq!(
            [pool_note(None, 32, 16), pool_note(Some(47), 32, 16), pool_note(Some(1000), 991, 1)],
            [const { None }; 3]
        );
        let told = pool_note(Some(1 << 40), 1 << 30, 1 << 20).unwrap();
        assert_eq!(told, "--kv-memory 1.00 TiB: the KV pool takes 1.00 GiB, the most that the device holds");
    }
}
