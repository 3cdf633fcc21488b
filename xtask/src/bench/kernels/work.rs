//! One kernel, or several that belong together, at one shape: the dispatches, their bytes and their operations.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use attn_kernels::Variant;
use attn_kernels::gpu::{Bound, Gpu, Pass};
use attn_kernels::self_test::{self, Case, Size, Spec};
use bytemuck::Pod;

use super::ceiling::{Pace, random_words};

/// The device, the reads that fill its caches between runs, and the number of runs of a work.
pub(super) struct Bench<'a> {
    pub(super) gpu: &'a Arc<Gpu>,
    pub(super) flush: &'a dyn Fn(&mut Pass),
    pub(super) pace: &'a Pace,
    /// Number of runs of a work, whose median is its time.
    pub(super) runs: usize,
    /// Names of the kernels that works dispatched so far.
    pub(super) dispatched: RefCell<BTreeSet<&'static str>>,
}

/// Name, bytes and operations of a work.
#[derive(Debug, Clone)]
pub(super) struct Cost {
    /// Name of the kernel that the work measures.
    pub(super) kernel: String,
    /// The level for which the kernels of the work are built.
    pub(super) level: &'static str,
    /// Shapes and types, as text.
    pub(super) shape: String,
    /// Number of bytes that the kernel must read and write, each counted once.
    pub(super) bytes: f64,
    /// Number of operations that the kernel must do; a multiply-add counts as two.
    pub(super) operations: f64,
}

/// A work that has run.
#[derive(Debug)]
pub(super) struct Timed {
    pub(super) cost: Cost,
    /// Seconds on the device.
    pub(super) seconds: f64,
    /// Seconds of dense attention of the same shape, measured in the same run.
    pub(super) dense: Option<f64>,
    /// Share of the visible blocks that is attended, if a selection decides.
    pub(super) density: Option<f64>,
    /// Share of the attention's mass that the attended blocks have, on average over rows and heads.
    pub(super) recall: Option<f64>,
}

/// Dispatches that are timed together, and their bytes and operations.
pub(super) struct Work {
    pub(super) cost: Cost,
    dispatches: Vec<Dispatch>,
}

struct Dispatch {
    variant: Variant,
    params: Vec<u8>,
    bindings: Vec<Bound>,
}

/// The case of a variant's self-test that is timed at `size`.
pub(super) fn timed_case(variant: &Variant, size: Size) -> Case {
    let of_heads = attn_kernels::catalog().iter().any(|kernel| std::ptr::eq(*kernel, variant.kernel));
    let cases = if of_heads { self_test::cases } else { models::self_test::cases };
    cases(variant, &Spec::sized(size)).swap_remove(0)
}

impl Work {
    pub(super) fn new(kernel: &str, level: &'static str, shape: String) -> Self {
        let cost = Cost { kernel: kernel.into(), level, shape, bytes: 0.0, operations: 0.0 };
        Self { cost, dispatches: Vec::new() }
    }

    /// Creates the work of a variant at `size`, which `shape` describes, with the data of its self-test's case.
    pub(super) fn of(gpu: &Gpu, kernel: &str, variant: &Variant, size: Size, shape: &str) -> Result<Self> {
        Self::sharing(gpu, kernel, variant, size, shape, &[])
    }

    /// Creates a work as [`Self::of`] does, with `shared` in place of the bindings of these names.
    pub(super) fn sharing(
        gpu: &Gpu,
        kernel: &str,
        variant: &Variant,
        size: Size,
        shape: &str,
        shared: &[(&str, Bound)],
    ) -> Result<Self> {
        let case = timed_case(variant, size);
        let mut bindings = Vec::with_capacity(case.buffers.len());
        for (index, words) in case.buffers.iter().enumerate() {
            let name = variant.bindings[index].name;
            if let Some((_, bound)) = shared.iter().find(|(shared, _)| *shared == name) {
                bindings.push(bound.clone());
                continue;
            }
            let random = case.random.iter().find(|(binding, _)| *binding == index);
            let buffer = match random {
                Some((_, random)) => random_words(gpu, random, u32::try_from(index)?)?,
                None => gpu.upload("words", words)?,
            };
            bindings.push(Bound::from(&buffer));
        }
        let dispatch = |params| {
            let (variant, bindings) = (case.variant.clone(), bindings.clone());
            Dispatch { variant, params, bindings }
        };
        let work = Self::new(kernel, variant.level.name(), shape.into()).costs(case.bytes(), case.operations);
        Ok(Self { dispatches: case.dispatches.into_iter().map(dispatch).collect(), ..work })
    }

    /// Sets the bytes and the operations.
    pub(super) fn costs(mut self, bytes: f64, operations: f64) -> Self {
        (self.cost.bytes, self.cost.operations) = (bytes, operations);
        self
    }

    /// Adds a dispatch.
    pub(super) fn dispatch<P: Pod>(
        mut self,
        variant: Variant,
        params: &P,
        bindings: impl IntoIterator<Item = Bound>,
    ) -> Self {
        let params = bytemuck::bytes_of(params).into();
        self.dispatches.push(Dispatch { variant, params, bindings: bindings.into_iter().collect() });
        self
    }

    /// The bindings of these names, as far as the work has them, for works that continue with the same data.
    pub(super) fn shared(&self, names: &[&'static str]) -> Vec<(&'static str, Bound)> {
        let of = |dispatch: &Dispatch, name| {
            let index = dispatch.variant.bindings.iter().position(|binding| binding.name == name)?;
            Some((name, dispatch.bindings[index].clone()))
        };
        names
            .iter()
            .filter_map(|name| self.dispatches.iter().find_map(|dispatch| of(dispatch, *name)))
            .collect()
    }

    /// The binding `name`, under the name that another work has for it.
    pub(super) fn renamed(&self, name: &'static str, other: &'static str) -> Vec<(&'static str, Bound)> {
        self.shared(&[name]).into_iter().map(|(_, bound)| (other, bound)).collect()
    }

    /// Adds the dispatches of a work that follows without a cost of its own.
    pub(super) fn followed(mut self, next: Self) -> Self {
        self.dispatches.extend(next.dispatches);
        self
    }

    /// Adds the dispatches of another work, alternating with the dispatches of this one, and adds its bytes.
    pub(super) fn in_turn(mut self, next: Self) -> Self {
        self.cost.bytes += next.cost.bytes;
        let turns = self.dispatches.into_iter().zip(next.dispatches);
        Self { dispatches: turns.flat_map(|(one, other)| [one, other]).collect(), ..self }
    }

    /// Appends `next`, and adds its cost. The sum is reported as `kernel`, with the shape of `next` and the level of the
    /// work that computes more.
    pub(super) fn then(mut self, kernel: &str, next: Self) -> Self {
        let level =
            if self.cost.operations > next.cost.operations { self.cost.level } else { next.cost.level };
        self.cost = Cost {
            kernel: kernel.into(),
            level,
            shape: next.cost.shape.clone(),
            bytes: self.cost.bytes + next.cost.bytes,
            operations: self.cost.operations + next.cost.operations,
        };
        self.followed(next)
    }
}

impl Bench<'_> {
    /// Times one work alone.
    pub(super) fn alone(&self, work: Work) -> Result<Vec<Timed>> {
        self.each([work])
    }

    /// Times works that have nothing to compare.
    pub(super) fn each<const N: usize>(&self, works: [Work; N]) -> Result<Vec<Timed>> {
        works.into_iter().map(|work| self.time(work)).collect()
    }

    /// Times dense attention, and works that replace it.
    pub(super) fn beside(&self, dense: Work, others: impl IntoIterator<Item = Work>) -> Result<Vec<Timed>> {
        let mut all = vec![self.time(dense)?];
        let seconds = all[0].seconds;
        for work in others {
            all.push(Timed { dense: Some(seconds), ..self.time(work)? });
        }
        Ok(all)
    }

    /// Times one work in seconds on the device. Before each run, the caches of the device are filled with other data.
    pub(super) fn time(&self, work: Work) -> Result<Timed> {
        let seconds = self.seconds(&work)?;
        Ok(Timed { cost: work.cost, seconds, dense: None, density: None, recall: None })
    }

    fn seconds(&self, work: &Work) -> Result<f64> {
        let gpu = self.gpu;
        self.dispatched.borrow_mut().extend(work.dispatches.iter().map(|d| d.variant.kernel.name));
        let pipelines: Vec<_> =
            work.dispatches.iter().map(|d| gpu.pipeline(&d.variant)).collect::<Result<_, _>>()?;
        self.seconds_of(|pass| {
            for (dispatch, pipeline) in work.dispatches.iter().zip(&pipelines) {
                pass.dispatch_bytes(pipeline, &dispatch.params, &dispatch.bindings);
            }
        })
    }

    /// Seconds that the device needs for what `record` records. Repeats the measurement if the device's clock was low.
    pub(super) fn seconds_of(&self, mut record: impl FnMut(&mut Pass)) -> Result<f64> {
        let gpu = self.gpu;
        let mut seconds = time(gpu, self.runs, self.flush, &mut record)?;
        for _ in 0..MORE_RUNS {
            if !self.pace.is_down(gpu)? {
                break;
            }
            self.keep_busy()?;
            seconds = time(gpu, self.runs, self.flush, &mut record)?;
        }
        Ok(seconds)
    }

    /// Gives the device work for a while, so that its clock comes up again.
    fn keep_busy(&self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < BUSY {
            let mut pass = Pass::new("busy");
            (0..20).for_each(|_| (self.flush)(&mut pass));
            self.gpu.submit(pass)?.wait()?;
        }
        Ok(())
    }
}

/// Maximum number of repeated measurements of a work if the device's clock is low; the next constant is the duration
/// of the load before each.
const MORE_RUNS: usize = 8;
const BUSY: Duration = Duration::from_millis(100);

/// Median seconds of what `record` records, after one run that is not counted. A run lasts from the start of its
/// first dispatch, right after the fill of the caches, to the end of its last. If the adapter has no timestamps, the
/// run lasts until the result is there.
pub(super) fn time(
    gpu: &Gpu,
    max_runs: usize,
    flush: &dyn Fn(&mut Pass),
    mut record: impl FnMut(&mut Pass),
) -> Result<f64> {
    let stamped = gpu.time_passes(true);
    let median = median_time(gpu, stamped, max_runs, flush, &mut record);
    // Steps that are measured later have no timestamps.
    gpu.time_passes(false);
    median
}

fn median_time(
    gpu: &Gpu,
    stamped: bool,
    max_runs: usize,
    flush: &dyn Fn(&mut Pass),
    record: &mut dyn FnMut(&mut Pass),
) -> Result<f64> {
    let mut runs = Vec::with_capacity(max_runs);
    // A run that takes long need not be repeated often.
    let begun = Instant::now();
    for run in 0..=max_runs {
        let mut pass = Pass::new("bench");
        flush(&mut pass);
        if stamped {
            pass.cut();
        } else {
            gpu.submit(std::mem::replace(&mut pass, Pass::new("bench")))?.wait()?;
        }
        record(&mut pass);
        let start = Instant::now();
        let outcome = gpu.submit(pass)?.wait()?;
        let wall = start.elapsed().as_secs_f64();
        if run > 0 {
            runs.push(outcome.timings.last().map_or(wall, |timing| timing.ns * 1e-9));
        }
        if run > 0 && begun.elapsed().as_secs_f64() > 4.0 {
            break;
        }
    }
    runs.sort_by(f64::total_cmp);
    Ok(runs[runs.len() / 2])
}
