//! `--sparse auto:loss=0.5%`: the fastest policy within a limit of loss, by measurements of the user's own model and device.
//!
//! `bench policies --report` leaves them in the user's cache folder. If there are none, a short plan is measured once, except
//! on software drivers, on which it would take hours.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use pagoda::measured::{self, Measurement, Measurements, fastest_within};
use pagoda::{EngineOptions, Model, Sparse};

use crate::bench::policies::report;
use crate::cli::{Auto, EngineArgs, SparseArg};
use crate::model;

/// Chooses the policy, if `--sparse` is a limit of loss.
///
/// # Errors
/// If nothing was measured and the device is a software driver, and errors of measuring.
pub fn settle(args: &EngineArgs, model: &Arc<Model>) -> Result<()> {
    let Some(SparseArg::Auto(auto)) = &args.sparse else { return Ok(()) };
    if auto.taken.get().is_some() {
        return Ok(());
    }
    ensure!(
        !args.reproducible,
        "sparse auto goes by times, and reproducible results depend on none: name a policy"
    );
    let dense = EngineArgs { sparse: None, ..args.clone() };
    let options = EngineOptions::from(&dense);
    let gpu = model.gpu(&options)?;
    let key = measured::key(model::fingerprint(args, model)?, gpu.info(), &options);
    let say = |note: &str| {
        if !args.quiet {
            eprintln!("sparse: {note}");
        }
    };
    let measure = || {
        if gpu.is_cpu() {
            bail!(
                "sparse auto: no policy was measured for this model, KV type and device, and a software driver takes long: {} \
                 measures them",
                command(&report::program(), &dense)
            );
        }
        say("measuring policies for this model, KV type and device, once");
        report::measure_short(&dense, &auto.registry, model)
    };
    let measurement = known(&mut Measurements::of_this_user(), key, &say, measure)?;
    let suits = |sparse: &Sparse| model.check_sparse(sparse, args.block_size).is_ok();
    let taken = take(auto, measurement, &suits, &say);
    // Another thread would have found the same.
    auto.taken.get_or_init(|| taken);
    Ok(())
}

/// The measurement under a key: the stored one, or else a new one, which is then stored.
fn known(
    kept: &mut Measurements,
    key: String,
    say: &dyn Fn(&str),
    measure: impl FnOnce() -> Result<Measurement>,
) -> Result<Measurement> {
    if let Some(measurement) = kept.get(&key) {
        return Ok(measurement.clone());
    }
    if let Some(damage) = kept.damage() {
        say(&format!("what was measured before cannot be read and has to be measured anew: {damage}"));
    }
    let measurement = measure()?;
    kept.put(key, measurement.clone());
    if let Err(error) = kept.save() {
        say(&format!("the measurement is not kept: {}", pagoda::error_chain::joined(&error)));
    }
    Ok(measurement)
}

/// The policy to run, out of the measured ones that this program knows and the model supports; `None` for dense
/// attention.
fn take(
    auto: &Auto,
    measurement: Measurement,
    suits: &dyn Fn(&Sparse) -> bool,
    say: &dyn Fn(&str),
) -> Option<Sparse> {
    let Measurement { date, text, policies } = measurement;
    let sparse = |spec: &str| Sparse::new(&auto.registry, &spec.parse().ok()?).ok().filter(suits);
    let known: Vec<_> = policies.into_iter().filter(|row| sparse(&row.spec).is_some()).collect();
    let Some(row) = fastest_within(&known, auto.limit) else {
        say(&format!(
            "attention is dense: no policy measured on {date} is faster and loses at most {}",
            auto.limit
        ));
        return None;
    };
    say(&format!("auto takes {row}, measured on {date} with {text}"));
    sparse(&row.spec)
}

/// The command that makes the measurements for an engine with the flags `args`. It has the flags that measurements
/// depend on, except those with default values.
fn command(program: &str, args: &EngineArgs) -> String {
    let other = |value: String, default: &str| (value != default).then_some(value);
    let flags = [
        ("--model", args.model.as_ref().map(|path| path.display().to_string())),
        ("--random", args.random.as_ref().map(ToString::to_string)),
        ("--quantize", args.quantize.map(|dtype| dtype.name().to_lowercase())),
        ("--kv-dtype", other(args.kv_dtype.to_string(), "f16")),
        ("--block-size", other(args.block_size.to_string(), "16")),
        ("--weights-on-gpu", args.weights_on_gpu.map(|bytes| bytes.to_string())),
        ("--chunk", other(args.chunk.to_string(), "2048")),
        ("--activations", other(args.activations.to_string(), "auto")),
        ("--device", args.device.clone()),
        ("--split", args.split.as_ref().map(ToString::to_string)),
    ];
    let given = flags.into_iter().filter_map(|(flag, value)| Some(format!(" {flag} {}", value?)));
    let no_coop = args.no_coop.then(|| " --no-coop".to_owned());
    format!("{program} bench policies --report{}", given.chain(no_coop).collect::<String>())
}

#[cfg(test)]
mod tests;
