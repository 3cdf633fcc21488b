//! One kernel's work as data, and its comparison with the reference.

use std::ops::RangeInclusive;

use bytemuck::Pod;

use super::floats::FloatLayout;
use super::hostile::indices::Indices;
use super::{latents, layer};
use crate::cpu::{Mismatch, Tolerance};
use crate::gpu::{Bound, Buf, Gpu, GpuError, Pass};
use crate::kernel::mla_decode::LatentShape;
use crate::kernel::{KvDtype, KvShape};
use crate::{Access, Variant};

/// One kernel's work, and the expected contents of its buffers.
#[derive(Clone, Debug)]
pub struct Case {
    /// Description of the case.
    pub what: &'static str,
    /// The kernel.
    pub variant: Variant,
    /// Parameter block of each dispatch, in order.
    pub dispatches: Vec<Vec<u8>>,
    /// Contents of bindings 1, 2, ... before the dispatches; empty for random contents.
    pub buffers: Vec<Vec<u32>>,
    /// Random contents of bindings (counted from 0 in `buffers`), of cases that are only timed.
    pub random: Vec<(usize, Random)>,
    /// Expected contents of bindings (counted from 0 in `buffers`).
    pub wants: Vec<(usize, Values)>,
    /// Number of lanes that every subgroup must have.
    pub subgroups: RangeInclusive<u32>,
    /// Number of bytes that the kernel must read and write, each counted once, if the case [states](Self::costs) it.
    pub bytes: Option<f64>,
    /// Number of bytes of results that the kernel reads before it writes them.
    pub updated: f64,
    /// Number of operations that the kernel must do; a multiply-add counts as two.
    pub operations: f64,
}

/// Random numbers that the program which runs a case generates.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    /// Type of the numbers; codes of 8 bits are any bytes.
    pub dtype: KvDtype,
    /// Number of words of 32 bits that the numbers take.
    pub words: usize,
}

/// Expected contents of a buffer, with the allowed difference.
#[derive(Clone, Debug)]
pub enum Values {
    /// Words that must be equal.
    Words(Vec<u32>),
    /// Floats in this layout.
    Floats(FloatLayout, Tolerance, Vec<f32>),
    /// f32 values: elements that are finite here are compared, and others may have any value.
    Finite(Tolerance, Vec<f32>),
    /// Logarithms of sums of exponentials. They are stored as pairs of f32: any number, and the sum divided by the
    /// exponential of that number.
    LogSums(Tolerance, Vec<f32>),
    /// Any indices that later kernels may use.
    Indices(Indices),
}

/// Reason why a case failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The kernel did not run.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// A float is too far off.
    #[error("{what}, binding {binding}: {mismatch}")]
    Floats {
        /// The case.
        what: &'static str,
        /// Number of the binding, counted from 1 as in the kernel.
        binding: usize,
        /// The worst element.
        mismatch: Mismatch,
    },
    /// A word differs.
    #[error("{what}, binding {binding}: word {index} of {len} is {got:#x}, the reference says {want:#x}")]
    Words {
        /// The case.
        what: &'static str,
        /// Number of the binding, counted from 1 as in the kernel.
        binding: usize,
        /// The first word that differs.
        index: usize,
        /// Number of words that were compared.
        len: usize,
        /// The kernel's word.
        got: u32,
        /// The reference's word.
        want: u32,
    },
    /// The result has indices with which a later kernel would read or write outside its buffers.
    #[error("{what}, binding {binding}: {message}")]
    Indices {
        /// The case.
        what: &'static str,
        /// Number of the binding, counted from 1 as in the kernel.
        binding: usize,
        /// The first index that breaks a rule, and the rule.
        message: String,
    },
    /// A word outside a buffer was written.
    #[error("{what}, binding {binding}: word {index} of {len} was written, which is outside the buffer")]
    Guard {
        /// The case.
        what: &'static str,
        /// Number of the binding, counted from 1 as in the kernel.
        binding: usize,
        /// Index of the word, counted from the first of the buffer.
        index: isize,
        /// Number of words of the buffer.
        len: usize,
    },
}

impl Case {
    /// Creates a case of one dispatch.
    pub fn new<P: Pod>(what: &'static str, variant: &Variant, params: &P) -> Self {
        Self {
            what,
            variant: variant.clone(),
            dispatches: Vec::new(),
            buffers: Vec::new(),
            random: Vec::new(),
            wants: Vec::new(),
            subgroups: variant.subgroups.clone(),
            bytes: None,
            updated: 0.0,
            operations: 0.0,
        }
        .dispatch(params)
    }

    /// Adds a dispatch on the same buffers.
    #[must_use]
    pub fn dispatch<P: Pod>(mut self, params: &P) -> Self {
        self.dispatches.push(bytemuck::bytes_of(params).into());
        self
    }

    /// Sets the number of bytes that the kernel must read and write, each counted once, and the number of its
    /// operations; a multiply-add counts as two.
    #[must_use]
    pub const fn costs(mut self, bytes: f64, operations: f64) -> Self {
        (self.bytes, self.operations) = (Some(bytes), operations);
        self
    }

    /// Number of bytes that the kernel must read and write, each counted once: those that the case states, or those of
    /// all its buffers, with those that it reads and then writes twice.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        let words =
            self.buffers.iter().map(Vec::len).chain(self.random.iter().map(|(_, random)| random.words));
        self.bytes.unwrap_or_else(|| self.updated + (words.sum::<usize>() * size_of::<u32>()) as f64)
    }

    /// Adds the next binding, random numbers of `dtype` in `words` words, of a case that is only timed.
    #[must_use]
    pub fn random(mut self, dtype: KvDtype, words: usize) -> Self {
        self.random.push((self.buffers.len(), Random { dtype, words }));
        self.binding::<u32>(&[])
    }

    /// Adds the next binding, `len` random floats, of a case that is only timed.
    #[must_use]
    pub fn floats_of(self, len: u32) -> Self {
        self.random(KvDtype::F32, len as usize)
    }

    /// Adds the next binding, `len` random words, of a case that is only timed.
    #[must_use]
    pub fn words_of(self, len: u32) -> Self {
        self.random(KvDtype::Int8, len as usize)
    }

    /// Adds the next binding, `blocks` blocks of random keys or values, of a case that is only timed.
    #[must_use]
    pub fn blocks_of(self, shape: &KvShape, blocks: u32) -> Self {
        self.random(shape.dtype, shape.block_bytes() / size_of::<u32>() * blocks as usize)
    }

    /// Adds the next binding.
    #[must_use]
    pub fn binding<T: Pod>(mut self, data: &[T]) -> Self {
        self.buffers.push(bytemuck::pod_collect_to_vec(data));
        self
    }

    /// Adds a binding with these data, if they are `Some`.
    #[must_use]
    pub(crate) fn optional<T: Pod>(self, data: Option<&[T]>) -> Self {
        match data {
            Some(data) => self.binding(data),
            None => self,
        }
    }

    /// Adds the next binding, all NaN, which the kernel must turn into `want`.
    #[must_use]
    pub fn output(self, tolerance: Tolerance, want: &[f32]) -> Self {
        self.cache(KvDtype::F32, &vec![f32::NAN; want.len()], tolerance, want)
    }

    /// Adds the next binding, which the kernel reads and must turn into `want`.
    #[must_use]
    pub fn updated(mut self, before: &[f32], tolerance: Tolerance, want: &[f32]) -> Self {
        self.updated += size_of_val(before) as f64;
        self.cache(KvDtype::F32, before, tolerance, want)
    }

    /// Adds the next binding, all NaN. The kernel must write the elements of `want` that are finite.
    #[must_use]
    pub fn finite(mut self, tolerance: Tolerance, want: &[f32]) -> Self {
        self.wants.push((self.buffers.len(), Values::Finite(tolerance, want.into())));
        self.binding(&vec![f32::NAN; want.len()])
    }

    /// Adds the next binding, all NaN, for pairs of a number and a sum divided by the exponential of that number. The
    /// logarithms of the sums that the kernel writes must become those of `want`.
    #[must_use]
    pub fn log_sums(mut self, tolerance: Tolerance, want: &[[f32; 2]]) -> Self {
        self.wants.push((self.buffers.len(), Values::LogSums(tolerance, log_sums(want.as_flattened()))));
        self.binding(&vec![[f32::NAN; 2]; want.len()])
    }

    /// Adds the next binding, floats of `dtype`, which the kernel must turn into `want`.
    #[must_use]
    pub fn cache(self, dtype: KvDtype, before: &[f32], tolerance: Tolerance, want: &[f32]) -> Self {
        self.floats(&layer::words(dtype, before), FloatLayout::of(dtype), tolerance, want)
    }

    /// Adds the next binding, zeros, which the kernel must turn into these codes or their neighbours: sums in another order round
    /// otherwise.
    #[must_use]
    pub fn codes(self, want: &[i8]) -> Self {
        let values: Vec<f32> = want.iter().copied().map(f32::from).collect();
        let step = Tolerance { abs: 1.0, rel: 0.0 };
        self.floats(&vec![0; want.len() / 4], FloatLayout::codes(), step, &values)
    }

    /// Adds the next binding, floats in `layout`, which the kernel must turn into `want`.
    fn floats(mut self, before: &[u32], layout: FloatLayout, tolerance: Tolerance, want: &[f32]) -> Self {
        self.wants.push((self.buffers.len(), Values::Floats(layout, tolerance, want.into())));
        self.binding(before)
    }

    /// Adds the next binding, a cache of `shape` in the layout of `index`, which the kernel must turn into `want`.
    #[must_use]
    pub fn paged(
        self,
        shape: &KvShape,
        index: layer::Index,
        before: &[f32],
        tolerance: Tolerance,
        want: &[f32],
    ) -> Self {
        let before = layer::cache_words(shape, index, before);
        self.floats(&before, FloatLayout::cache(shape, index), tolerance, want)
    }

    /// Adds the next binding, a cache of latents, which the kernel must turn into `want`.
    #[must_use]
    pub fn latents(self, shape: &LatentShape, before: &[f32], tolerance: Tolerance, want: &[f32]) -> Self {
        self.floats(&latents::latent_words(shape, before), FloatLayout::latents(shape), tolerance, want)
    }

    /// Adds the next binding, which the kernel must turn into the words of `want`.
    #[must_use]
    pub fn words<T: Pod>(self, before: &[T], want: &[T]) -> Self {
        let mut case = self.binding(before);
        case.wants.push((case.buffers.len() - 1, Values::Words(bytemuck::pod_collect_to_vec(want))));
        case
    }

    /// Adds the next binding, to which the kernel must write indices that conform to `want`.
    #[must_use]
    pub fn indices<T: Pod>(self, before: &[T], indices: Indices) -> Self {
        let mut case = self.binding(before);
        case.wants.push((case.buffers.len() - 1, Values::Indices(indices)));
        case
    }

    /// Runs the case between guard words that no kernel may write, and compares the results.
    ///
    /// # Errors
    /// [`Fault`]: it did not run, wrote outside its buffers, or the result is not the reference's.
    ///
    /// # Panics
    /// For a case that is only timed, which has no reference.
    pub fn run(&self, gpu: &Gpu) -> Result<(), Fault> {
        assert!(self.random.is_empty(), "{}: random data have no reference", self.what);
        let after = self.after(gpu)?;
        self.wants.iter().try_for_each(|(index, want)| want.compare(self.what, index + 1, &after[*index]))
    }

    /// Runs the case between guard words that no kernel may write, and returns the contents of its buffers afterwards.
    ///
    /// # Errors
    /// [`Fault`]: it did not run, or wrote outside its buffers.
    pub fn after(&self, gpu: &Gpu) -> Result<Vec<Vec<u32>>, Fault> {
        let pipeline = gpu.pipeline(&self.variant)?;
        let guarded = |words: &Vec<u32>| gpu.upload(self.what, &guarded(words));
        let buffers: Vec<_> = self.buffers.iter().map(guarded).collect::<Result<_, _>>()?;
        let bindings: Vec<Bound> = std::iter::zip(&buffers, &self.variant.bindings)
            .map(|(buffer, declared)| self.bound(gpu, buffer, declared.access))
            .collect::<Result<_, _>>()?;
        let mut pass = Pass::new("self-test");
        for params in &self.dispatches {
            pass.dispatch_bytes(&pipeline, params, &bindings);
        }
        let reads: Vec<_> = buffers.iter().map(|buffer| pass.read(buffer, 0..buffer.len())).collect();
        let outcome = gpu.submit(pass)?.wait()?;
        let within = |(index, read)| {
            let words: Vec<u32> = outcome.get(read);
            self.check_guards(index, &words)?;
            Ok(words[GUARD..words.len() - GUARD].to_vec())
        };
        reads.into_iter().enumerate().map(within).collect()
    }

    /// Binds a buffer between its guard words.
    fn bound(&self, gpu: &Gpu, buffer: &Buf<u32>, access: Access) -> Result<Bound, GpuError> {
        let words = GUARD..buffer.len() - GUARD;
        Ok(match access {
            Access::Read | Access::Write => buffer.bind_from(GUARD).bound(),
            Access::Image => gpu.image(self.what, &gpu.read(buffer, words)?)?.bind().bound(),
            Access::Window => gpu.upload_windowed(self.what, &gpu.read(buffer, words)?)?.bind().bound(),
        })
    }

    fn check_guards(&self, index: usize, words: &[u32]) -> Result<(), Fault> {
        let len = self.buffers[index].len();
        let outside = (0..GUARD).chain(GUARD + len..words.len());
        match outside.into_iter().find(|at| words[*at] != UNTOUCHED) {
            None => Ok(()),
            Some(at) => {
                let index_of = at.cast_signed() - GUARD.cast_signed();
                Err(Fault::Guard { what: self.what, binding: index + 1, index: index_of, len })
            }
        }
    }
}

/// Number of guard words on either side of a buffer: the alignment of bindings, which is 256 bytes at most.
const GUARD: usize = 64;

/// Contents of guard words: no valid float, and as an index out of every range.
const UNTOUCHED: u32 = 0xffe1_dead;

fn guarded(words: &[u32]) -> Vec<u32> {
    let guard = [UNTOUCHED; GUARD];
    [&guard, words, &guard].concat()
}

fn log_sums(pairs: &[f32]) -> Vec<f32> {
    pairs.as_chunks().0.iter().map(|[top, sum]| top + sum.ln()).collect()
}

impl Values {
    fn compare(&self, what: &'static str, binding: usize, got: &[u32]) -> Result<(), Fault> {
        match self {
            Self::Words(want) => {
                assert_eq!(got.len(), want.len(), "words of result and reference");
                match got.iter().zip(want).position(|(got, want)| got != want) {
                    None => Ok(()),
                    Some(index) => {
                        let (got, want, len) = (got[index], want[index], want.len());
                        Err(Fault::Words { what, binding, index, len, got, want })
                    }
                }
            }
            Self::Floats(layout, tolerance, want) => tolerance
                .compare(&layout.values(got), want)
                .map_err(|mismatch| Fault::Floats { what, binding, mismatch }),
            Self::LogSums(tolerance, want) => tolerance
                .compare(&log_sums(&layer::values(KvDtype::F32, got)), want)
                .map_err(|mismatch| Fault::Floats { what, binding, mismatch }),
            Self::Indices(indices) => {
                indices.check(got).map_err(|message| Fault::Indices { what, binding, message })
            }
            Self::Finite(tolerance, want) => {
                let got = layer::values(KvDtype::F32, got);
                let matters = |(got, want): (&f32, &f32)| if want.is_finite() { *got } else { *want };
                let got: Vec<f32> = got.iter().zip(want).map(matters).collect();
                tolerance.compare(&got, want).map_err(|mismatch| Fault::Floats { what, binding, mismatch })
            }
        }
    }
}
