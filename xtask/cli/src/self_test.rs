//! Compares every kernel and level of `attn-kernels` and `dense-kernels` with its CPU reference on one adapter, for
//! `doctor --self-test`.

use std::fmt;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use attn_kernels::gpu::{Gpu, GpuError, GpuOptions, wgpu};
use attn_kernels::self_test::{Case, Fault, Spec, cases, skipped};
use attn_kernels::{NamedVariant, variants_of};
use indicatif::ProgressBar;
use pagoda::verdicts::{Verdict, WrongKernel};
use serde::Serialize;

use crate::progress::Template;

/// Number of elements per head: as in most models, and few enough that a software driver compiles in seconds.
const HEAD_DIM: u32 = 128;
const HEAD_DIM_SOFTWARE: u32 = 16;

/// One kernel variant on one adapter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tested {
    /// The variant.
    pub variant: String,
    /// Level of the variant.
    pub level: &'static str,
    /// Outcome of the variant's cases.
    pub outcome: VariantOutcome,
    /// Time of run and comparison, in milliseconds; of compilation too on a software driver, and after a device was lost.
    pub ms: f64,
}

/// Outcome of a variant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VariantOutcome {
    /// Equal to the reference, within the kernel's tolerance.
    Right,
    /// The kernel did not run, or its results differ.
    Wrong(String),
    /// The adapter lacks a feature that the variant needs.
    Skipped(String),
}

/// Results of one adapter.
#[derive(Debug)]
pub struct Adapter {
    /// The adapter.
    pub info: wgpu::AdapterInfo,
    /// One row per variant.
    pub rows: Vec<Tested>,
}

/// Random cases that run in addition to the usual ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Random {
    /// Number of specs for each variant.
    pub specs: u32,
    /// The seed of the first case, from which the seeds of the others follow.
    pub seed: u64,
}

impl Random {
    /// Takes `specs` specs a variant from `seed` on, or from a seed of the clock.
    #[must_use]
    pub fn new(specs: u32, seed: Option<u64>) -> Self {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
        Self { specs, seed: seed.unwrap_or_else(|| clock().into()) }
    }

    fn seeds(self) -> impl Iterator<Item = u64> {
        (0..u64::from(self.specs)).map(move |spec| self.seed.wrapping_add(spec))
    }
}

impl fmt::Display for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--random {} --seed {}", self.specs, self.seed)
    }
}

/// Number of wrong variants.
#[must_use]
pub fn wrong(rows: &[Tested]) -> usize {
    rows.iter().filter(|row| matches!(row.outcome, VariantOutcome::Wrong(_))).count()
}

/// Runs every variant on `gpu`, which was opened with `options`, the usual cases and then those at random; kernels run as in
/// the engine. A lost device is opened again for the next variant.
///
/// # Errors
/// If a device does not open.
pub fn run(options: &GpuOptions, gpu: Gpu, random: Option<Random>) -> Result<Adapter> {
    let head_dim = if gpu.is_cpu() { HEAD_DIM_SOFTWARE } else { HEAD_DIM };
    let variants = variants(head_dim, |_| true);
    let info = gpu.info().clone();
    let bar = Template::TESTS.bar(Some(variants.len()));
    bar.set_message("compiling");
    bar.tick();
    let mut devices = vec![gpu];
    if devices[0].is_cpu() {
        // A software driver compiles a kernel only when it first runs, on the one thread of its device's queue.
        for _ in 1..processors() {
            devices.push(Gpu::open(options)?);
        }
    } else {
        compile(&devices[0], &variants);
    }
    let next = AtomicUsize::new(0);
    let (variants, next, bar) = (&variants[..], &next, &bar);
    let rows = std::thread::scope(|scope| {
        let workers: Vec<_> = devices
            .into_iter()
            .map(|gpu| scope.spawn(move || compare(options, gpu, (variants, random), next, bar)))
            .collect();
        let joined = workers.into_iter().map(|worker| worker.join().expect("no case panics"));
        joined.collect::<Result<Vec<_>>>()
    })?;
    bar.finish_and_clear();
    let mut rows = rows.concat();
    rows.sort_by_key(|(index, _)| *index);
    Ok(Adapter { info, rows: rows.into_iter().map(|(_, row)| row).collect() })
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Runs variants on one device, each time the next that no device has taken; results by index.
fn compare(
    options: &GpuOptions,
    mut gpu: Gpu,
    (variants, random): (&[(NamedVariant, Vec<Case>)], Option<Random>),
    next: &AtomicUsize,
    bar: &ProgressBar,
) -> Result<Vec<(usize, Tested)>> {
    let mut rows = Vec::new();
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some((named, cases)) = variants.get(index) else { return Ok(rows) };
        bar.set_message(named.name.clone());
        let start = Instant::now();
        let (outcome, lost) = outcome(&gpu, named, cases, random);
        let ms = start.elapsed().as_secs_f64() * 1e3;
        rows.push((index, Tested { variant: named.name.clone(), level: named.level().name(), outcome, ms }));
        if lost {
            gpu = Gpu::open(options)?;
        }
        bar.inc(1);
    }
}

/// Requests the kernels that will run, so that threads of the device compile them: a driver takes up to seconds for a kernel.
fn compile(gpu: &Gpu, variants: &[(NamedVariant, Vec<Case>)]) {
    for (named, cases) in variants {
        if cases.first().is_some_and(|case| skipped(gpu, named, case).is_none()) {
            // What does not compile is reported when its cases run.
            let _ = gpu.pipeline(&named.variant);
        }
    }
}

/// The variants of all crates that are chosen with their cases, by name.
pub fn variants(head_dim: u32, chosen: impl Fn(&NamedVariant) -> bool) -> Vec<(NamedVariant, Vec<Case>)> {
    let all = variants_of(head_dim).into_iter().chain(models::kernel::variants());
    let mut all: Vec<_> = all.filter(chosen).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let with_cases = |named: NamedVariant| {
        let cases = cases(&named.variant, &Spec::default());
        (named, cases)
    };
    all.into_iter().map(with_cases).collect()
}

/// Outcome of a variant's usual cases and of those at random, and whether the device was lost.
fn outcome(
    gpu: &Gpu,
    named: &NamedVariant,
    usual: &[Case],
    random: Option<Random>,
) -> (VariantOutcome, bool) {
    let Some(case) = usual.first() else {
        return (VariantOutcome::Skipped("there is no case of it".into()), false);
    };
    if let Some(reason) = skipped(gpu, named, case) {
        return (VariantOutcome::Skipped(reason), false);
    }
    let run = |cases: &[Case]| cases.iter().try_for_each(|case| case.run(gpu));
    let lost = |fault: &Fault| matches!(fault, Fault::Gpu(GpuError::Lost { .. }));
    if let Err(fault) = run(usual) {
        return (VariantOutcome::Wrong(fault.to_string()), lost(&fault));
    }
    for seed in random.into_iter().flat_map(Random::seeds) {
        if let Err(fault) = run(&cases(&named.variant, &Spec::random(seed))) {
            let again = Random { specs: 1, seed };
            let told = format!("{fault}; again by: doctor --self-test {again}");
            return (VariantOutcome::Wrong(told), lost(&fault));
        }
    }
    (VariantOutcome::Right, false)
}

/// The verdict from these rows, which the engine heeds.
#[must_use]
pub fn verdict(rows: &[Tested]) -> Verdict {
    let wrong = rows.iter().filter_map(|row| match &row.outcome {
        VariantOutcome::Wrong(fault) => {
            Some(WrongKernel { variant: row.variant.clone(), level: row.level.into(), fault: fault.clone() })
        }
        _ => None,
    });
    let skipped = |row: &&Tested| matches!(row.outcome, VariantOutcome::Skipped(_));
    Verdict { wrong: wrong.collect(), tested: rows.len() - rows.iter().filter(skipped).count() }
}

impl fmt::Display for Tested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { variant, level, outcome, ms } = self;
        write!(f, "{variant:42} {level:9} ")?;
        match outcome {
            VariantOutcome::Right => write!(f, "right {ms:8.0} ms"),
            VariantOutcome::Wrong(fault) => write!(f, "WRONG {ms:8.0} ms: {fault}"),
            VariantOutcome::Skipped(reason) => write!(f, "skipped: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_of_every_crate_is_tested() {
        let names: Vec<String> =
            variants(HEAD_DIM, |_| true).into_iter().map(|(named, _)| named.name).collect();
        assert!(names.is_sorted());
        let all = attn_kernels::variants().len() + models::kernel::variants().len();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn specs_count_up_from_their_seed() {
        let random = Random::new(3, Some(u64::MAX));
        assert_eq!(random.seeds().collect::<Vec<_>>(), [u64::MAX, 0, 1]);
        assert_eq!(Random::new(20, Some(7)).to_string(), "--random 20 --seed 7");
    }

    #[test]
    fn rows_become_a_verdict() {
        let row = |outcome| Tested { variant: "embed-q4".into(), level: "subgroup", outcome, ms: 1.0 };
        let rows = [
            row(VariantOutcome::Right),
            row(VariantOutcome::Skipped("x".into())),
            row(VariantOutcome::Wrong("y".into())),
        ];
        let verdict = verdict(&rows);
        assert_eq!((verdict.tested, verdict.wrong.len()), (2, 1));
        assert_eq!((&*verdict.wrong[0].level, &*verdict.wrong[0].fault), ("subgroup", "y"));
    }

    #[test]
    fn rows_are_lines() {
        let row = |outcome| Tested { variant: "top_k-list".into(), level: "baseline", outcome, ms: 12.4 };
        let rows = [
            row(VariantOutcome::Right),
            row(VariantOutcome::Wrong("rows: element 3 of 9".into())),
            row(VariantOutcome::Skipped("the adapter's level is baseline".into())),
        ];
        assert_eq!(wrong(&rows), 1);
        insta::assert_snapshot!(rows.map(|row| row.to_string()).join("\n"), @r"
        top_k-list                                 baseline  right       12 ms
        top_k-list                                 baseline  WRONG       12 ms: rows: element 3 of 9
        top_k-list                                 baseline  skipped: the adapter's level is baseline
        ");
    }
}
