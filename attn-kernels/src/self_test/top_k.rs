//! Cases of `top_k` and of the kernels that divide long rows among workgroups.

use super::spec::{SPREAD, Size};
use super::{Case, Spec, count, filled, hostile};
use crate::Variant;
use crate::cpu;
use crate::kernel::KvDtype;
use crate::kernel::top_k::{self, Output, TopKParams, Transform};
use crate::kernel::top_k_long::TopKLongParams;
use crate::kernel::top_k_transform::TopKTransformParams;

const PAGE: u32 = 16;

/// Contents of outputs before the dispatch: no valid position or count.
const BEFORE: u32 = 77_777;

/// Rows of scores; each row has a k and a page table.
#[derive(Clone, Debug)]
pub struct ScoreRows {
    scores: Vec<f32>,
    rows: Vec<[u32; 4]>,
    table: Vec<u32>,
    params: TopKParams,
}

impl ScoreRows {
    /// Arranges rows `(scores, k)` with gaps of infinities and NaN that no row may read. Pages are of `page_size` scores, and
    /// lists have `copies` copies.
    #[must_use]
    pub fn of(rows: &[(Vec<f32>, u32)], page_size: u32, copies: u32) -> Self {
        let (mut all, mut table, mut list) = (vec![f32::INFINITY; 3], Vec::new(), Vec::new());
        for (index, (scores, k)) in (0..).zip(rows) {
            list.push([count(&all), count(scores), *k, count(&table)]);
            all.extend(scores);
            all.extend([f32::NAN, f32::INFINITY]);
            table.extend((0..count(scores).div_ceil(page_size)).map(|page| (page * 7 + index * 1000) % 4093));
        }
        let most = list.iter().map(|[_, len, k, _]| *len.min(k)).max().unwrap_or(0);
        let params = TopKParams { rows: count(&list), out_stride: most + 2, copies, page_size };
        Self { scores: all, rows: list, table, params }
    }

    /// Makes rows of `(number of scores, k)` with many ties: scores are multiples of 1/64.
    fn new(spec: &Spec, usual: &[(u32, u32)], [most, most_k]: [u32; 2]) -> Self {
        let sizes = spec.list(usual, 6, |spec| (spec.number(0, 0..=most), spec.number(0, 0..=most_k)));
        let page_size = spec.one_of(PAGE, &[1, 4, PAGE, 64]);
        let scores = |(seed, (len, k)): (u64, (u32, u32))| {
            let scores = spec.floats(len as usize, seed);
            (scores.iter().map(|x| (x * 512.0).round() / 64.0).collect(), k)
        };
        let rows: Vec<(Vec<f32>, u32)> = (0..).zip(sizes).map(scores).collect();
        let mut made = Self::of(&rows, page_size, 1);
        made.params.out_stride += spec.number(0, 0..=3);
        made.params.copies = spec.number(2, 1..=3);
        made
    }

    /// Returns these rows under a name, and copies of them with hostile scores.
    fn and_hostile(&self, what: &'static str) -> Vec<(&'static str, Self)> {
        let hostile = hostile::SCORES.into_iter().map(|(what, score)| {
            let scores = (0..).map(score).take(self.scores.len()).collect();
            (what, Self { scores, ..self.clone() })
        });
        std::iter::once((what, self.clone())).chain(hostile).collect()
    }

    fn selected(&self, output: Output) -> Vec<u32> {
        let copies = if output == Output::List { self.params.copies } else { 1 };
        let mut out = vec![BEFORE; (self.params.rows * copies * self.params.out_stride) as usize];
        cpu::top_k::top_k(&self.params, output, &self.scores, &self.rows, &self.table, &mut out);
        out
    }

    fn params_of_long(&self) -> TopKLongParams {
        let most = |of: usize| self.rows.iter().map(|row| row[of]).max().unwrap_or(0);
        TopKLongParams::new(&self.params, most(1), most(2).min(most(1)))
    }

    /// Returns the peaks of all rows, and [`BEFORE`] for rows without a group.
    fn all_peaks(&self) -> Vec<u32> {
        let stride = self.params_of_long().max_groups as usize;
        let mut all = vec![BEFORE; self.rows.len() * stride];
        for (&[first, len, k, _], peaks) in self.rows.iter().zip(all.chunks_exact_mut(stride)) {
            if (1..len).contains(&k) {
                let scores = &self.scores[first as usize..(first + len) as usize];
                let row = cpu::top_k_peaks::top_k_peaks(scores, first);
                peaks[..row.len()].copy_from_slice(&row);
            }
        }
        all
    }

    /// The case of a variant of `top_k`.
    #[must_use]
    pub fn short(&self, what: &'static str, variant: &Variant) -> Case {
        let want = self.selected(output(variant));
        Case::new(what, variant, &self.params)
            .binding(&self.scores)
            .binding(&self.rows)
            .binding(&self.table)
            .words(&vec![BEFORE; want.len()], &want)
    }

    /// The case of `top_k_peaks`.
    #[must_use]
    pub fn peaks(&self, what: &'static str, variant: &Variant) -> Case {
        let want = self.all_peaks();
        Case::new(what, variant, &self.params_of_long().peaks())
            .binding(&self.scores)
            .binding(&self.rows)
            .words(&vec![BEFORE; want.len()], &want)
    }

    /// The case of a variant of `top_k_long`, in scratch that holds anything.
    #[must_use]
    pub fn long(&self, what: &'static str, variant: &Variant) -> Case {
        let params = self.params_of_long();
        let [_, chosen, kept] = params.scratch_lens();
        let want = self.selected(output(variant));
        Case::new(what, variant, &params)
            .binding(&self.scores)
            .binding(&self.rows)
            .binding(&self.table)
            .binding(&self.all_peaks())
            .binding(&vec![BEFORE; chosen])
            .binding(&vec![BEFORE; kept])
            .words(&vec![BEFORE; want.len()], &want)
    }
}

/// Makes rows with fewer groups of scores than a row selects, with more, and with a single group.
fn long_rows(spec: &Spec) -> ScoreRows {
    let usual = [(5000, 700), (8192, 1), (4097, 4096), (9, 3), (30, 30), (20_000, 600)];
    ScoreRows::new(spec, &usual, [20_000, 4096])
}

fn output(variant: &Variant) -> Output {
    match filled(variant, top_k::LISTS) {
        true => Output::List,
        false => Output::Positions(filled(variant, top_k::TRANSFORM)),
    }
}

/// Makes the timed case: parameters, and rows of random scores with one length and one k. The page table is not read.
/// The lists of all rows go to equal numbers of KV heads.
fn timed(size: &Size, output: Output) -> (TopKParams, Vec<[u32; 4]>) {
    let &Size { rows, context, k, batch, cache, .. } = size;
    let (out_stride, copies) = match output {
        Output::List => (1 + k, batch * cache.num_kv_heads / rows),
        Output::Positions(_) => (k, 1),
    };
    let list = (0..rows).map(|row| [row * context, context, k, 0]).collect();
    (TopKParams { rows, out_stride, copies, page_size: 1 }, list)
}

fn scores_bytes(size: &Size) -> f64 {
    4.0 * f64::from(size.rows) * f64::from(size.context)
}

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(size) = spec.size() {
        let (params, rows) = timed(size, output(variant));
        let case = Case::new("rows of one length", variant, &params).costs(scores_bytes(size), 0.0);
        let case = case.floats_of(size.rows * size.context).binding(&rows).binding(&[0_u32]);
        return vec![case.floats_of(params.rows * params.copies * params.out_stride)];
    }
    let rows =
        ScoreRows::new(spec, &[(0, 3), (1, 1), (300, 0), (255, 64), (1500, 1024), (100, 200)], [2500, 2600]);
    rows.and_hostile("rows round k").into_iter().map(|(what, rows)| rows.short(what, variant)).collect()
}

pub(crate) fn peak_cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(size) = spec.size() {
        let (params, rows) = timed(size, Output::List);
        let long = TopKLongParams::new(&params, size.context, size.k);
        let (params, [peaks, ..]) = (long.peaks(), long.scratch_lens());
        let case = Case::new("rows of one length", variant, &params)
            .costs(scores_bytes(size) + 4.0 * peaks as f64, 0.0);
        return vec![case.floats_of(size.rows * size.context).binding(&rows).random(KvDtype::Int8, peaks)];
    }
    let rows = long_rows(spec).and_hostile("rows of many groups").into_iter();
    rows.map(|(what, rows)| rows.peaks(what, variant)).collect()
}

pub(crate) fn long_cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(size) = spec.size() {
        let (params, rows) = timed(size, output(variant));
        let out = params.rows * params.copies * params.out_stride;
        let params = TopKLongParams::new(&params, size.context, size.k);
        let [peaks, chosen, kept] = params.scratch_lens();
        // The scores of the groups that are chosen.
        let read = peaks + chosen + kept;
        let case = Case::new("rows of one length", variant, &params)
            .costs(4.0 * read as f64 + 4.0 * f64::from(out), 0.0);
        let case = case.floats_of(size.rows * size.context).binding(&rows).binding(&[0_u32]);
        let scratch = |case, len| Case::random(case, KvDtype::Int8, len);
        return vec![[peaks, chosen, kept].into_iter().fold(case, scratch).words_of(out)];
    }
    let rows = long_rows(spec).and_hostile("rows of many groups").into_iter();
    rows.map(|(what, rows)| rows.long(what, variant)).collect()
}

pub(crate) fn transform_cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(&Size { rows, context, k, .. }) = spec.size() {
        // A table of slots takes positions to positions, so that every run finds some.
        let table: Vec<u32> = (0..context).rev().collect();
        let positions: Vec<u32> = (0..rows * k).map(|i| i * SPREAD % context).collect();
        let params = TopKTransformParams { rows, out_stride: k, page_size: 1 };
        let case = Case::new("positions", variant, &params).costs(12.0 * f64::from(rows * k), 0.0);
        let case = case.binding(&vec![[0, context, k, 0]; rows as usize]);
        return vec![case.binding(&table).binding(&positions)];
    }
    let rows = ScoreRows::new(spec, &[(1000, 70), (30, 70), (100, 70)], [1000, 100]);
    let before = rows.selected(Output::Positions(Transform::None));
    let TopKParams { rows: count, out_stride, page_size, .. } = rows.params;
    let params = TopKTransformParams { rows: count, out_stride, page_size };
    let mut after = before.clone();
    let transform = filled(variant, top_k::TRANSFORM);
    cpu::top_k_transform::top_k_transform(&params, transform, &rows.rows, &rows.table, &mut after);
    let case = Case::new("positions and -1", variant, &params)
        .binding(&rows.rows)
        .binding(&rows.table)
        .words(&before, &after);
    vec![case]
}
