//! Opens adapters without the kernels that a self-test found wrong on them. `cargo xtask doctor --self-test` writes the
//! verdicts.

use attn_kernels::gpu::{Gpu, GpuOptions};

pub use crate::adapter_records::{Verdict, Verdicts, WrongKernel};

use crate::error::{Error, IGNORE};
use crate::{Note, Notes, tuning};

/// Opens an adapter. Kernel choices avoid variants that are known to be wrong on the adapter, and use the
/// [measured](tuning::measure) sizes. Sizes that are not known yet are measured now.
///
/// # Errors
/// Those of [`Gpu::open`].
pub fn open(options: &GpuOptions, notes: &Notes) -> Result<Gpu, Error> {
    let ignore = std::env::var_os(IGNORE).is_some_and(|value| !value.is_empty());
    let mut verdicts = Verdicts::of_this_user();
    let gpu = open_with(options, &verdicts, ignore, notes)?;
    Ok(tuning::tuned(gpu, options, &mut verdicts, notes, tuning::measure))
}

fn open_with(options: &GpuOptions, verdicts: &Verdicts, ignore: bool, notes: &Notes) -> Result<Gpu, Error> {
    let gpu = Gpu::open(options)?;
    let Some(verdict) = verdicts.get(gpu.info()).filter(|verdict| !verdict.wrong.is_empty()) else {
        return Ok(gpu);
    };
    if ignore {
        let verdict = format!("{verdict}, but {IGNORE} is set");
        notes.tell(&Note::SelfTest { adapter: gpu.info().name.clone(), verdict });
        return Ok(gpu);
    }
    let heeded = verdict.of_variants(&gpu);
    Ok(gpu.with_verdicts(heeded))
}

/// Reports, once each, the wrong variants that other variants replaced.
pub(crate) fn tell_passed_over(gpu: &Gpu, notes: &Notes) {
    for named in gpu.profile().verdicts.passed_over() {
        notes.tell(&Note::PassedOver {
            variant: named.name.clone(),
            level: named.level(),
            adapter: gpu.info().name.clone(),
            driver: gpu.info().driver_info.clone(),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use attn_kernels::Level;
    use models::kernel::rms_norm;

    use super::*;

    /// Needs an adapter; `ATTN_GPU=skip` skips it.
    #[test]
    fn an_adapter_opens_at_its_level_without_what_is_wrong() {
        if std::env::var_os("ATTN_GPU").is_some_and(|value| value == "skip") {
            return;
        }
        let options = GpuOptions::new(attn_kernels::gpu::Checks::Off);
        let best = Gpu::open(&options).unwrap();
        let wrong = |(variant, level): (&str, Level)| WrongKernel {
            variant: variant.into(),
            level: level.name().into(),
            fault: "rows: element 3".into(),
        };
        let known = [("paged_decode-fp8", Level::Baseline), ("rms_norm-rows-subgroup", Level::Subgroup)];
        let of_another_version = ("gone", Level::Baseline);
        let wrong = known.into_iter().chain([of_another_version]).map(wrong).collect();
        let mut verdicts = Verdicts::default();
        verdicts.put(best.info(), Verdict { tested: 80, wrong });
        let told = Arc::new(Mutex::new(Vec::new()));
        let telling = Arc::clone(&told);
        let notes = Notes::to(move |note| telling.lock().unwrap().push(note.to_string()));
        let told = || std::mem::take(&mut *told.lock().unwrap());

        let ignoring = open_with(&options, &verdicts, true, &notes).unwrap();
        assert!(ignoring.profile().verdicts.is_empty());
        assert!(told()[0].ends_with("but PAGODA_IGNORE_SELF_TEST is set"));

        let gpu = open_with(&options, &verdicts, false, &notes).unwrap();
        assert_eq!(gpu.level(), best.level());
        let norm = |level| rms_norm::variant(rms_norm::NormForm::Store, 64, level);
        let chosen = gpu.profile().best(norm);
        if best.level() >= Level::Subgroup {
            assert_eq!(chosen.level, Level::Baseline);
            tell_passed_over(&gpu, &notes);
            let [note] = &told()[..] else { panic!("one note") };
            assert!(note.starts_with("rms_norm-rows-subgroup is wrong on "), "{note}");
            assert!(note.ends_with(": kernels without subgroups are used instead"), "{note}");
        }
        tell_passed_over(&gpu, &notes);
        assert_eq!(told(), [""; 0]);
    }
}
