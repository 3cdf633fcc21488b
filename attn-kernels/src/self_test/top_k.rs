//! Cases of `top_k` and of the kernels that share long rows out.

use super::layer::floats;
use super::{Case, count, module};
use crate::Variant;
use crate::cpu;
use crate::kernel::top_k::{self, Output, TopKParams, Transform};
use crate::kernel::top_k_count::{self, TopKCountParams};
use crate::kernel::top_k_gather::{self, TopKGatherParams};
use crate::kernel::top_k_transform::{self, TopKTransformParams};

const PAGE: u32 = 16;

/// What outputs hold before: no position, no count.
const BEFORE: u32 = 77_777;

/// Rows of scores with their k and their pages.
struct Rows {
    scores: Vec<f32>,
    rows: Vec<[u32; 4]>,
    table: Vec<u32>,
    params: TopKParams,
}

impl Rows {
    /// Rows of `(scores, k)` with many ties: scores are multiples of 1/64.
    fn new(sizes: &[(u32, u32)]) -> Self {
        let (mut scores, mut rows, mut table) = (Vec::new(), Vec::new(), Vec::new());
        for (seed, &(len, k)) in (0..).zip(sizes) {
            rows.push([count(&scores), len, k, count(&table)]);
            scores.extend(floats(len as usize, seed).iter().map(|x| (x * 512.0).round() / 64.0));
            table.extend((0..len.div_ceil(PAGE)).map(|page| (page * 7 + 3) % 4093));
        }
        let most = rows.iter().map(|[_, len, k, _]| *len.min(k)).max().unwrap_or(0);
        let params = TopKParams { rows: count(&rows), out_stride: most + 2, copies: 2, page_size: PAGE };
        Self { scores, rows, table, params }
    }

    fn selected(&self, output: Output) -> Vec<u32> {
        let copies = if output == Output::List { self.params.copies } else { 1 };
        let mut out = vec![BEFORE; (self.params.rows * copies * self.params.out_stride) as usize];
        cpu::top_k::top_k(&self.params, output, &self.scores, &self.rows, &self.table, &mut out);
        out
    }

    /// Counts, cuts and tallies that `top_k_count` leaves; every row has as many chunks as the others.
    fn counted(&self) -> (Vec<u32>, Vec<[u32; 2]>, Vec<[u32; 2]>) {
        let (mut counts, mut cuts, mut tallies) = (Vec::new(), Vec::new(), Vec::new());
        for &[first, len, k, _] in &self.rows {
            let scores = &self.scores[first as usize..(first + len) as usize];
            let counted = cpu::top_k_count::top_k_count(scores, k as usize, CHUNK as usize);
            counts.extend(counted.counts.concat());
            cuts.extend(counted.cuts);
            tallies.extend(counted.tallies);
        }
        (counts, cuts, tallies)
    }
}

/// Chunks of the rows that are shared out.
const CHUNKS: u32 = 2;
const CHUNK: u32 = *top_k_count::CHUNKS.start();

fn long_rows() -> Rows {
    Rows::new(&[(5000, 700), (8192, 1), (4097, 4096)])
}

fn transform(variant: &Variant) -> Transform {
    match module(variant, "transform") {
        Some("transform_paged") => Transform::Paged,
        Some("transform_ragged") => Transform::Ragged,
        _ => Transform::None,
    }
}

fn output(variant: &Variant) -> Output {
    match module(variant, "out") {
        Some("out_list") => Output::List,
        _ => Output::Positions(transform(variant)),
    }
}

pub(super) fn cases(variant: &Variant) -> Vec<Case> {
    let rows = Rows::new(&[(0, 3), (1, 1), (300, 0), (255, 64), (1500, 1024), (100, 200)]);
    let want = rows.selected(output(variant));
    let case = Case::new("rows round k", variant, &rows.params, top_k::grid(rows.params.rows))
        .binding(&rows.scores)
        .binding(&rows.rows)
        .binding(&rows.table)
        .words(&vec![BEFORE; want.len()], &want);
    vec![case]
}

pub(super) fn count_cases(variant: &Variant) -> Vec<Case> {
    let rows = long_rows();
    let (counts, cuts, tallies) = rows.counted();
    let count = rows.params.rows;
    let params = |digit| TopKCountParams { rows: count, max_chunks: CHUNKS, digit, chunk: CHUNK };
    let grid = top_k_count::grid(CHUNKS, count);
    let mut case = Case::new("rows of two chunks", variant, &params(0), grid)
        .binding(&rows.scores)
        .binding(&rows.rows)
        .words(&vec![0; counts.len()], &counts)
        .words(&vec![[0; 2]; cuts.len()], &cuts)
        .words(&vec![[0; 2]; tallies.len()], &tallies);
    case.dispatches =
        top_k_count::STEPS.map(|digit| (bytemuck::bytes_of(&params(digit)).into(), grid)).collect();
    vec![case]
}

pub(super) fn gather_cases(variant: &Variant) -> Vec<Case> {
    let rows = long_rows();
    let (counts, cuts, tallies) = rows.counted();
    let want = rows.selected(output(variant));
    let params = TopKGatherParams::new(&rows.params, CHUNKS, CHUNK);
    let case =
        Case::new("rows of two chunks", variant, &params, top_k_gather::grid(CHUNKS, rows.params.rows))
            .binding(&rows.scores)
            .binding(&rows.rows)
            .binding(&rows.table)
            .binding(&cuts)
            .binding(&tallies)
            .binding(&counts)
            .words(&vec![BEFORE; want.len()], &want);
    vec![case]
}

pub(super) fn transform_cases(variant: &Variant) -> Vec<Case> {
    let rows = Rows::new(&[(1000, 70), (30, 70), (100, 70)]);
    let before = rows.selected(Output::Positions(Transform::None));
    let TopKParams { rows: count, out_stride, page_size, .. } = rows.params;
    let params = TopKTransformParams { rows: count, out_stride, page_size, pad0: 0 };
    let mut after = before.clone();
    let transform = transform(variant);
    cpu::top_k_transform::top_k_transform(&params, transform, &rows.rows, &rows.table, &mut after);
    let case = Case::new("positions and -1", variant, &params, top_k_transform::grid(count, out_stride))
        .binding(&rows.rows)
        .binding(&rows.table)
        .words(&before, &after);
    vec![case]
}
