//! Seeded tensors whose values are small integers / 64, so that sums are exact and ties are real.

use proptest::prelude::*;
use sparse_select::Heads;

#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    data: Vec<f32>,
    shape: [usize; 3],
}

impl Tensor {
    /// Integers in `-range..=range` / 64 from a linear congruential generator.
    pub(crate) fn seeded(seed: u64, shape: [usize; 3], range: i64) -> Self {
        let mut state = seed.wrapping_mul(2).wrapping_add(1);
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) as i64).rem_euclid(2 * range + 1) - range
        };
        let data = (0..shape.iter().product()).map(|_| next() as f32 / 64.0).collect();
        Self { data, shape }
    }

    /// All values times `factor`.
    pub(crate) fn scaled(self, factor: f32) -> Self {
        Self { data: self.data.iter().map(|x| x * factor).collect(), ..self }
    }

    pub(crate) fn zeros(shape: [usize; 3]) -> Self {
        Self { data: vec![0.0; shape.iter().product()], shape }
    }

    pub(crate) fn view(&self) -> Heads<'_> {
        Heads::new("test tensor", &self.data, self.shape).unwrap()
    }

    pub(crate) fn at(&self, head: usize, token: usize, channel: usize) -> f32 {
        self.data[(head * self.shape[1] + token) * self.shape[2] + channel]
    }

    pub(crate) fn set(&mut self, head: usize, token: usize, channel: usize, value: f32) {
        self.data[(head * self.shape[1] + token) * self.shape[2] + channel] = value;
    }
}

/// Queries and keys of one case.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) q: Tensor,
    pub(crate) k: Tensor,
    pub(crate) group: usize,
}

/// One decode query over 1..=`kv_max` keys; 1..=3 KV heads in groups of 1..=3; `range` sets the spread of values.
pub(crate) fn decode_case(kv_max: usize, range: i64) -> impl Strategy<Value = Case> {
    (any::<u64>(), 1..=kv_max, 1usize..=3, 1usize..=3, 1usize..=5).prop_map(
        move |(seed, kv, kv_heads, group, dim)| Case {
            q: Tensor::seeded(seed, [kv_heads * group, 1, dim], range),
            k: Tensor::seeded(seed ^ 0x5bd1, [kv_heads, kv, dim], range),
            group,
        },
    )
}

/// Runs a spec on tensors.
pub(crate) fn select(spec: &str, q: &Tensor, k: &Tensor) -> sparse_select::MeasuredSelection {
    let registry = sparse_select::Registry::builtin();
    sparse_select::select(&registry, &spec.parse().unwrap(), q.view(), k.view()).unwrap()
}

/// A row of a selection as plain numbers.
pub(crate) fn row(s: &sparse_select::Selection, group: usize, query_block: usize) -> Vec<u32> {
    s.row(group, query_block).iter().map(|b| b.get()).collect()
}
