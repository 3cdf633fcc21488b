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
#[derive(Clone)]
struct ScoreRows {
    scores: Vec<f32>,
    rows: Vec<[u32; 4]>,
    table: Vec<u32>,
    params: TopKParams,
}

impl ScoreRows {
    /// Makes rows of `(scores, k)` with many ties: scores are multiples of 1/64.
    fn new(spec: &Spec, usual: &[(u32, u32)], [most, most_k]: [u32; 2]) -> Self {
        let sizes = spec.list(usual, 6, |spec| (spec.number(0, 0..=most), spec.number(0, 0..=most_k)));
        let page_size = spec.one_of(PAGE, &[1, 4, PAGE, 64]);
        let (mut scores, mut rows, mut table) = (Vec::new(), Vec::new(), Vec::new());
        for (seed, (len, k)) in (0..).zip(sizes) {
            rows.push([count(&scores), len, k, count(&table)]);
            scores.extend(spec.floats(len as usize, seed).iter().map(|x| (x * 512.0).round() / 64.0));
            table.extend((0..len.div_ceil(page_size)).map(|page| (page * 7 + 3) % 4093));
        }
        let most = rows.iter().map(|[_, len, k, _]| *len.min(k)).max().unwrap_or(0);
        let (out_stride, copies) = (most + spec.number(2, 1..=5), spec.number(2, 1..=3));
        let params = TopKParams { rows: count(&rows), out_stride, copies, page_size };
        Self { scores, rows, table, params }
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

    fn long(&self) -> TopKLongParams {
        let most = |of: usize| self.rows.iter().map(|row| row[of]).max().unwrap_or(0);
        TopKLongParams::new(&self.params, most(1), most(2))
    }

    /// Returns the peaks of all rows, and `before` for rows without a group.
    fn peaks(&self, before: u32) -> Vec<u32> {
        let stride = self.long().max_groups as usize;
        let mut all = vec![before; self.rows.len() * stride];
        for (&[first, len, k, _], peaks) in self.rows.iter().zip(all.chunks_exact_mut(stride)) {
            if (1..len).contains(&k) {
                let scores = &self.scores[first as usize..(first + len) as usize];
                let row = cpu::top_k_peaks::top_k_peaks(scores, first);
                peaks[..row.len()].copy_from_slice(&row);
            }
        }
        all
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
    let case = |(what, rows): (_, ScoreRows)| {
        let want = rows.selected(output(variant));
        Case::new(what, variant, &rows.params)
            .binding(&rows.scores)
            .binding(&rows.rows)
            .binding(&rows.table)
            .words(&vec![BEFORE; want.len()], &want)
    };
    rows.and_hostile("rows round k").into_iter().map(case).collect()
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
    let case = |(what, rows): (_, ScoreRows)| {
        let params = rows.long().peaks();
        let want = rows.peaks(BEFORE);
        Case::new(what, variant, &params)
            .binding(&rows.scores)
            .binding(&rows.rows)
            .words(&vec![BEFORE; want.len()], &want)
    };
    long_rows(spec).and_hostile("rows of many groups").into_iter().map(case).collect()
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
    let case = |(what, rows): (_, ScoreRows)| {
        let params = rows.long();
        let [_, chosen, kept] = params.scratch_lens();
        let want = rows.selected(output(variant));
        Case::new(what, variant, &params)
            .binding(&rows.scores)
            .binding(&rows.rows)
            .binding(&rows.table)
            .binding(&rows.peaks(BEFORE))
            .binding(&vec![BEFORE; chosen])
            .binding(&vec![BEFORE; kept])
            .words(&vec![BEFORE; want.len()], &want)
    };
    long_rows(spec).and_hostile("rows of many groups").into_iter().map(case).collect()
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
