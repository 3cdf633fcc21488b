//! Decoding as the engine does it, over cases of the self-test: partitions in any number of dispatches, and the reduce pass.

use std::marker::PhantomData;

use attn_kernels::cpu::Tolerance;
use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::KvShape;
use attn_kernels::kernel::mla_decode::MlaDecodeParams;
use attn_kernels::kernel::paged_decode::{Lanes, PagedDecodeParams};
use attn_kernels::kernel::paged_decode_subgroup::{FORMS, serves};
use attn_kernels::kernel::paged_reduce::PagedReduceParams;
use attn_kernels::self_test::{self, Case, Spec, Values};
use attn_kernels::{Level, Variant};
use bytemuck::Pod;

use super::by_hand::assert_close;
use super::device::{assert_bits, described};
use super::properties::{after, dispatched, params};

/// The ways to share keys that `gpu` has for a cache of `shape`, the fastest or not.
pub(crate) fn lanes_of(gpu: &Gpu, shape: &KvShape) -> Vec<Lanes> {
    let size = gpu.profile().subgroup_size().filter(|_| gpu.level() >= Level::Subgroup);
    let runs = |form: &Lanes| match *form {
        Lanes::Subgroup(lanes) | Lanes::Alone(lanes) => size == Some(lanes) && serves(shape, *form),
        Lanes::Workgroup | Lanes::Matrices => false,
    };
    std::iter::once(Lanes::Workgroup).chain(FORMS.into_iter().filter(runs)).collect()
}

/// Rows and keys of the dispatches of a decoding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    first_row: u32,
    rows: u32,
    max_partitions: u32,
    /// Partitions of a dispatch.
    step: u32,
    reduced: bool,
}

/// Parameters of a kernel whose partitions `paged_reduce` merges.
pub(crate) trait Partitioned: Pod {
    /// The buffer of rows. Partial outputs, stats and lists are behind it.
    const ROWS: usize;
    fn reduce(&self) -> PagedReduceParams;
    /// The parameters for rows and keys from `first_key` on.
    fn cut(self, cut: &Cut, first_key: u32, num_keys: u32) -> Self;
}

macro_rules! partitioned {
    ($($params:ty: $rows:expr),*) => {$(
        impl Partitioned for $params {
            const ROWS: usize = $rows;

            fn reduce(&self) -> PagedReduceParams {
                self.into()
            }

            fn cut(self, cut: &Cut, first_key: u32, num_keys: u32) -> Self {
                let Cut { first_row, rows, max_partitions, reduced, .. } = *cut;
                Self { first_row, rows, max_partitions, reduced: reduced.into(), first_key, num_keys, ..self }
            }
        }
    )*};
}

partitioned!(PagedDecodeParams: 4, MlaDecodeParams: 3);

/// A kernel of decoding and the reduce pass after it.
pub(crate) struct Decoder<'a, P> {
    pub(crate) variant: Variant,
    pub(crate) reduce: Variant,
    /// Type of the kernel's parameters.
    pub(crate) params: PhantomData<P>,
    /// Sinks of so many heads, if the reduce pass adds some.
    pub(crate) sinks: Option<&'a dyn Fn(u32) -> Vec<f32>>,
}

impl<P: Partitioned> Decoder<'_, P> {
    fn case(&self, spec: &Spec) -> Case {
        self_test::cases(&self.variant, spec).remove(0)
    }

    fn rows(case: &Case) -> &[[u32; 4]] {
        bytemuck::cast_slice(&case.buffers[P::ROWS])
    }

    /// All rows and keys at once.
    fn whole(&self, case: &Case) -> Cut {
        let params = params::<P>(case).reduce();
        let rows = u32::try_from(Self::rows(case).len()).unwrap();
        let max_partitions = params.max_partitions;
        let reduced = max_partitions > 1 || self.sinks.is_some();
        Cut { first_row: 0, rows, max_partitions, step: u32::MAX, reduced }
    }

    /// Outputs of the rows of `cut`, `[rows, num_heads, head_dim]`.
    fn outputs(&self, gpu: &Gpu, case: &Case, cut: &Cut) -> Vec<f32> {
        let (given, rows) = (params::<P>(case), Self::rows(case));
        let PagedReduceParams { num_heads, max_partitions, partition_size, .. } = given.reduce();
        let heads = rows.len() * num_heads as usize;
        let dim = case.buffers[P::ROWS + 1].len() / (heads * max_partitions as usize);
        let longest = rows.iter().map(|row| row[1]).max().unwrap_or(0).max(1);
        let num_keys = cut.step.saturating_mul(partition_size);
        let of_dispatch = |first_key| given.cut(cut, first_key, num_keys);
        let mut run = dispatched(case, (0..longest).step_by(num_keys as usize).map(of_dispatch));
        let parts = (cut.rows * num_heads * cut.max_partitions) as usize;
        let nan = |len: usize| vec![f32::NAN.to_bits(); len];
        run.buffers[P::ROWS + 1] = nan(dim * parts.max(heads));
        run.buffers[P::ROWS + 2] = nan(2 * parts);
        let mut left = after(gpu, &run);
        let mut out = std::mem::take(&mut left[P::ROWS + 1]);
        if cut.reduced {
            let params = given.cut(cut, 0, u32::MAX).reduce();
            let mut pass = Case::new("reduce pass", &self.reduce, &params)
                .binding(&out)
                .binding(&left[P::ROWS + 2])
                .binding(rows)
                .binding(&nan(dim * heads));
            if self.reduce.bindings.iter().any(|binding| binding.name == "selected") {
                pass = pass.binding(&case.buffers[P::ROWS + 3]);
            }
            if let Some(sinks) = self.sinks {
                pass = pass.binding(&sinks(num_heads));
            }
            out = after(gpu, &pass).swap_remove(3);
        }
        let width = num_heads as usize * dim;
        let rows = rows.iter().skip(cut.first_row as usize).take(cut.rows as usize);
        let of_row = |row: &[u32; 4]| out[row[0] as usize * width..][..width].iter();
        rows.flat_map(of_row).map(|bits| f32::from_bits(*bits)).collect()
    }

    /// Outputs of attention to all keys of the rows at once, with the sinks.
    fn want(&self, case: &Case) -> (Tolerance, Vec<f32>) {
        let Values::Floats(_, tolerance, out) = &case.wants[0].1 else {
            panic!("partial outputs are floats")
        };
        let lse: Vec<f32> = match &case.wants[1].1 {
            Values::LogSums(_, sums) => sums.clone(),
            Values::Floats(_, _, stats) => {
                stats.as_chunks().0.iter().map(|[top, sum]| top + sum.ln()).collect()
            }
            other => panic!("stats are {other:?}"),
        };
        let heads = params::<P>(case).reduce().num_heads as usize;
        let sinks = self.sinks.map(|sinks| sinks(u32::try_from(heads).unwrap()));
        let (rows, dim) = (Self::rows(case), out.len() / lse.len());
        let of_head = |index: usize| {
            let row = rows[index / heads][0] as usize;
            // Nothing but the sink is left of a row without keys.
            let lse = if lse[index].is_nan() { f32::MIN } else { lse[index] };
            let share = sinks.as_ref().map_or(1.0, |sinks| 1.0 / (1.0 + (sinks[index % heads] - lse).exp()));
            out[(row * heads + index % heads) * dim..][..dim].iter().map(move |x| x * share)
        };
        (*tolerance, (0..lse.len()).flat_map(of_head).collect())
    }

    /// Partitions of the keys that a row sees.
    fn partitions(case: &Case, row: usize) -> u32 {
        let Values::Floats(_, _, stats) = &case.wants[1].1 else { return 1 };
        let of_row = stats.len() / Self::rows(case).len();
        let most = params::<P>(case).reduce().max_partitions as usize;
        let stats = &stats[row * of_row..][..of_row];
        let used = (0..of_row).step_by(2).filter(|at| !stats[*at].is_nan()).map(|at| at / 2 % most + 1);
        u32::try_from(used.max().unwrap_or(1)).unwrap()
    }

    /// Fails unless the sequences of `seed` get what attention to all keys at once gives, and their rows the same bits in any
    /// company, in partitions of their own number, and with their keys in any number of dispatches.
    pub(crate) fn check(&self, gpu: &Gpu, seed: u64) {
        let case = self.case(&Spec::random(seed));
        let all = self.whole(&case);
        let what = format!("{}, seed {seed}", described(&self.variant));
        let together = self.outputs(gpu, &case, &all);
        let (tolerance, want) = self.want(&self.case(&Spec::random(seed).in_one_partition()));
        assert_close(&format!("partitions, {what}"), tolerance, &together, &want);
        let mut cuts: Vec<Cut> = [1, 2, 3].map(|step| Cut { step, ..all }).into();
        cuts.retain(|cut| cut.step < all.max_partitions);
        let own = |(row, first_row)| {
            let max_partitions = Self::partitions(&case, row);
            let reduced = max_partitions > 1 || self.sinks.is_some();
            Cut { first_row, rows: 1, max_partitions, reduced, ..all }
        };
        cuts.extend((0..).zip(0..all.rows).map(own));
        cuts.extend((1..all.rows).map(|first_row| Cut { first_row, rows: all.rows - first_row, ..all }));
        let width = together.len() / all.rows as usize;
        for cut in cuts {
            let rows = &together[cut.first_row as usize * width..][..cut.rows as usize * width];
            assert_bits(&format!("{cut:?}, {what}"), &self.outputs(gpu, &case, &cut), rows);
        }
    }

    /// Fails unless the same sequences in blocks of another size have the same bits.
    pub(crate) fn check_blocks(&self, gpu: &Gpu, other: &Self, block: u32, seed: u64) {
        let of = |decoder: &Self| {
            let case = decoder.case(&Spec::random(seed).at_edges_of(block));
            decoder.outputs(gpu, &case, &decoder.whole(&case))
        };
        let what = format!("{} and {}, seed {seed}", described(&self.variant), described(&other.variant));
        assert_bits(&what, &of(other), &of(self));
    }
}
