//! Sizes at which products change kernels, measured when an adapter is first used under its driver, and kept with the verdicts.

use std::sync::Arc;
use std::time::Instant;

use attn_kernels::gpu::{Gpu, GpuOptions};
use attn_kernels::profile::Tuning;
use models::tuning::{ContestTimes, Crossings, Rig, Shapes};

pub use crate::kept_tuning::KeptTuning;

use crate::adapter_records::{Verdict, Verdicts};
use crate::error::Error;
use crate::error_chain::joined;
use crate::{Note, Notes};

/// Times of an adapter's matrix products, and the crossings (sizes at which another kernel becomes faster) that
/// follow from them.
#[derive(Debug)]
#[non_exhaustive]
pub struct Measurement {
    /// Part of the tuning that is kept.
    pub kept: KeptTuning,
    /// The times.
    pub times: Vec<ContestTimes>,
    /// Number of seconds that the tuning took, with compilation.
    pub seconds: f64,
}

/// Measures matrix products on a separate device, so that a failure affects no other device. `verdict` says which
/// kernels of the adapter are known to be wrong.
#[must_use]
pub fn measure(options: &GpuOptions, verdict: Option<&Verdict>) -> Measurement {
    let begun = Instant::now();
    let timed = || -> Result<Vec<ContestTimes>, Error> {
        let gpu = Gpu::open(&options.clone().kernel_cache(None))?;
        let heeded =
            verdict.map_or(attn_kernels::verdicts::Verdicts::NONE, |verdict| verdict.of_variants(&gpu));
        Ok(Rig::new(&Arc::new(gpu.with_verdicts(heeded)), Shapes::OF_8B)?.measure()?)
    };
    let (times, fault) = match timed() {
        Ok(times) => (times, None),
        Err(error) => (Vec::new(), Some(joined(&error))),
    };
    let measured = fault.map_or_else(|| Crossings::of(&times).map_err(|absurd| absurd.to_string()), Err);
    Measurement { kept: KeptTuning::of(measured), times, seconds: begun.elapsed().as_secs_f64() }
}

/// Gives a device that was opened with `options` its crossings. Unknown crossings are measured, reported and kept.
///
/// Software drivers choose otherwise, and options with a tuning of their own are obeyed. If nothing can be kept nothing is
/// measured either: every engine would do so again.
pub(crate) fn tuned(
    gpu: Gpu,
    options: &GpuOptions,
    known: &mut Verdicts,
    notes: &Notes,
    measure: impl FnOnce(&GpuOptions, Option<&Verdict>) -> Measurement,
) -> Gpu {
    if gpu.profile().software || options.tuning != Tuning::default() {
        return gpu;
    }
    let info = gpu.info();
    let kept = match known.tuning(info) {
        Some(kept) => kept.clone(),
        None if !known.can_be_kept() => return gpu,
        None => {
            let kept = measure(options, known.get(info)).kept;
            notes.tell(&Note::Products { adapter: info.name.clone(), tuning: kept.to_string() });
            known.put_tuning(info, kept.clone());
            // If that fails the next engine measures again.
            let _ = known.save();
            kept
        }
    };
    gpu.with_tuning(kept.crossings.apply(options.tuning))
}

#[cfg(test)]
mod tests;
