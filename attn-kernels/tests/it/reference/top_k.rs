//! `top_k`, and `top_k_peaks` with `top_k_long`, against their references: exact, so equal to the last index.

use super::by_hand::dispatch;
use super::device::{cases, gpu};
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::kernel::top_k::{self, Output, TopKBuffers, TopKParams, Transform};
use attn_kernels::kernel::top_k_long::{self, TopKLongParams};
use attn_kernels::kernel::top_k_peaks;
use attn_kernels::kernel::top_k_transform::{self, TopKTransformParams};
use attn_kernels::launch::{TopK, TopKLimits};
use attn_kernels::{Level, Variant, cpu};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::usual;

/// Maximum number of scores of a row of `top_k::software`.
const SOFTWARE_SCORES: u32 = 1 << 18;

const OUTPUTS: [Output; 4] = [
    Output::List,
    Output::Positions(Transform::None),
    Output::Positions(Transform::Paged),
    Output::Positions(Transform::Ragged),
];

/// Rows of scores with their k, somewhere in one buffer with gaps of NaN and +inf that no row may touch.
struct Rows {
    scores: Vec<f32>,
    rows: Vec<[u32; 4]>,
    table: Vec<u32>,
    params: TopKParams,
}

impl Rows {
    /// Rows `(scores, k)`; pages of `page_size` positions.
    fn new(rows: &[(Vec<f32>, u32)], page_size: u32, copies: u32) -> Self {
        let (mut all, mut table, mut list) = (vec![f32::INFINITY; 3], vec![], vec![]);
        for (index, (scores, k)) in (0..).zip(rows) {
            let base = u32::try_from(table.len()).unwrap();
            let (first, len) = (u32::try_from(all.len()).unwrap(), u32::try_from(scores.len()).unwrap());
            list.push([first, len, *k, base]);
            all.extend(scores);
            all.extend([f32::NAN, f32::INFINITY]);
            table.extend((0..len.div_ceil(page_size)).map(|page| (page * 7 + index * 1000) % 4093));
        }
        let most = list.iter().map(|row| row[1].min(row[2])).max().unwrap_or(0);
        let params =
            TopKParams { rows: u32::try_from(list.len()).unwrap(), out_stride: most + 2, copies, page_size };
        Self { scores: all, rows: list, table, params }
    }

    fn out_len(&self, output: Output) -> usize {
        let copies = if output == Output::List { self.params.copies } else { 1 };
        (self.params.rows * copies * self.params.out_stride) as usize
    }

    fn on_gpu(&self, gpu: &Gpu, output: Output, variant: &Variant) -> Vec<u32> {
        let len = self.out_len(output);
        let [rows, table] = [
            gpu.upload("rows", self.rows.as_flattened()).unwrap(),
            gpu.upload("table", &self.table).unwrap(),
        ];
        let scores = gpu.upload("scores", &self.scores).unwrap();
        let out = gpu.upload("out", &vec![77_777_u32; len]).unwrap();
        let mut pass = Pass::new("top_k");
        let bindings = [(&scores).into(), (&rows).into(), (&table).into(), (&out).into()];
        dispatch(gpu, &mut pass, variant, &self.params, &bindings);
        let read = pass.read(&out, 0..len);
        gpu.submit(pass).unwrap().wait().unwrap().get(read)
    }

    /// By `top_k_peaks` and `top_k_long`, in scratch that holds anything.
    fn long_on_gpu(&self, gpu: &Gpu, output: Output, level: Level) -> Vec<u32> {
        let len = self.out_len(output);
        let most = |of: usize| self.rows.iter().map(|row| row[of]).max().unwrap();
        let params = TopKLongParams::new(&self.params, most(1), most(2).min(most(1)));
        let rows = gpu.upload("rows", self.rows.as_flattened()).unwrap();
        let table = gpu.upload("table", &self.table).unwrap();
        let scores = gpu.upload("scores", &self.scores).unwrap();
        let scratch = |len: usize| gpu.upload("scratch", &vec![77_777_u32; len]).unwrap();
        let [peaks, chosen, kept] = params.scratch_lens().map(scratch);
        let out = scratch(len);
        let mut pass = Pass::new("top_k");
        let bindings: [_; 3] = [(&scores).into(), (&rows).into(), (&peaks).into()];
        let of_peaks = params.peaks();
        dispatch(gpu, &mut pass, &top_k_peaks::variant(), &of_peaks, &bindings);
        let bindings: [_; 7] = [
            (&scores).into(),
            (&rows).into(),
            (&table).into(),
            (&peaks).into(),
            (&chosen).into(),
            (&kept).into(),
            (&out).into(),
        ];
        let variant = top_k_long::variant(output, level);
        dispatch(gpu, &mut pass, &variant, &params, &bindings);
        let (read, peaks) = (pass.read(&out, 0..len), pass.read(&peaks, 0..peaks.len()));
        let outcome = gpu.submit(pass).unwrap().wait().unwrap();
        self.check_peaks(&outcome.get(peaks), params.max_groups as usize);
        outcome.get(read)
    }

    fn check_peaks(&self, peaks: &[u32], stride: usize) {
        for (index, &[first, len, k, _]) in self.rows.iter().enumerate() {
            if k > 0 && k < len {
                let scores = &self.scores[first as usize..(first + len) as usize];
                let want = cpu::top_k_peaks::top_k_peaks(scores, first);
                assert_eq!(peaks[index * stride..][..want.len()], want, "peaks of row {index}");
            }
        }
    }

    fn check(&self, gpu: &Gpu) {
        self.check_as(gpu, &OUTPUTS);
    }

    fn check_as(&self, gpu: &Gpu, outputs: &[Output]) {
        for &output in outputs {
            let mut want = vec![77_777_u32; self.out_len(output)];
            cpu::top_k::top_k(&self.params, output, &self.scores, &self.rows, &self.table, &mut want);
            let most = self.rows.iter().map(|row| row[1]).max().unwrap();
            let software = Some(top_k::software(output));
            let software = software.filter(|variant| gpu.profile().runs(variant) && most <= SOFTWARE_SCORES);
            let mut ways: Vec<_> = software
                .map(|variant| ("software".into(), self.on_gpu(gpu, output, &variant)))
                .into_iter()
                .collect();
            for level in
                [Level::Baseline, Level::Subgroup].into_iter().filter(|l| *l <= gpu.profile().top_k_level())
            {
                let short = self.on_gpu(gpu, output, &top_k::variant(output, level));
                ways.push((format!("short, {level}"), short));
                ways.push((format!("long, {level}"), self.long_on_gpu(gpu, output, level)));
            }
            for (way, got) in ways {
                let Some(i) = got.iter().zip(&want).position(|(g, w)| g != w) else { continue };
                let (row, at) = (i / self.params.out_stride as usize, i % self.params.out_stride as usize);
                panic!("{way}, {output:?}: entry {at} of list {row} is {}, not {}", got[i], want[i]);
            }
        }
    }
}

fn random(len: usize, seed: u64) -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-4.0f32..4.0).powi(3)).collect()
}

#[test]
fn rows_round_tiles_and_k() {
    let Some(gpu) = gpu() else { return };
    let lens = [0, 1, 2, 255, 256, 257, 1023, 1024, 1025, 5000];
    let rows: Vec<_> =
        lens.iter().flat_map(|&len| [0, 1, 2, 256, 1024].map(|k| (random(len, 3), k))).collect();
    Rows::new(&rows, 16, 3).check(gpu);
}

#[test]
fn scores_that_differ_in_few_bits() {
    let Some(gpu) = gpu() else { return };
    let bits =
        |at: u32, n: u32| (0..n).map(|i| f32::from_bits(at + i.wrapping_mul(2_654_435_761) % 1024)).collect();
    let special = vec![
        f32::NAN,
        f32::NEG_INFINITY,
        -0.0,
        0.0,
        f32::INFINITY,
        -1.0,
        f32::MIN_POSITIVE / 2.0,
        -f32::NAN,
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        0.0,
    ];
    let rows: Vec<(Vec<f32>, u32)> = vec![
        // The lowest ten bits alone, ties among them; of both signs.
        (bits(0x3f80_0000, 3000), 700),
        (bits(0xbf80_0000, 3000), 700),
        // All equal: the first ones.
        (vec![1.5; 2000], 1999),
        (vec![f32::NEG_INFINITY; 300], 7),
        (special.clone(), 1),
        (special.clone(), 5),
        (special.clone(), 8),
        (special, 11),
    ];
    Rows::new(&rows, 1, 1).check(gpu);
}

/// Blocks that are always selected have scores that no other reaches: as many as are kept, fewer, more, or all.
#[test]
fn scores_of_which_some_are_forced() {
    let Some(gpu) = gpu() else { return };
    let forced = |len: usize, infinite: usize, largest: usize| {
        let mut scores = random(len, 5);
        let every = len / (infinite + largest).max(1);
        for i in 0..infinite + largest {
            scores[i * every] = if i < infinite { f32::INFINITY } else { f32::MAX };
        }
        scores
    };
    let rows: Vec<_> = [(3000, 1, 0), (3000, 0, 5), (3000, 1, 40), (20_000, 1, 300), (900, 450, 450)]
        .into_iter()
        .flat_map(|(len, infinite, largest)| {
            [1, 5, 41, 301, 700].map(|k| (forced(len, infinite, largest), k))
        })
        .collect();
    Rows::new(&rows, 16, 1).check(gpu);
}

#[test]
fn many_of_very_many() {
    let Some(gpu) = gpu() else { return };
    // The forms of the result differ after the choice, which takes a software driver seconds.
    let outputs = usual(1, &OUTPUTS);
    let most = top_k::MAX_SCORES as usize;
    let rows = [(random(most, 1), 4096), (random(40_000, 2), 2048), (random(3, 3), 2048)];
    Rows::new(&rows, 64, 1).check_as(gpu, outputs);
    let most = SOFTWARE_SCORES as usize;
    let rows = [(random(most, 4), 4096), (random(most, 5), SOFTWARE_SCORES - 1)];
    Rows::new(&rows, 64, 1).check_as(gpu, outputs);
}

/// Neighbours that are alike: the chosen groups hold nothing but what is selected, or hardly any of it.
#[test]
fn scores_that_hang_together() {
    let Some(gpu) = gpu() else { return };
    let wave = |len: u32, period: f32| (0..len).map(|i| (i as f32 / period).sin()).collect::<Vec<f32>>();
    let peak = |at: usize| (0..20_000).map(|i| if i / 16 == at { 1.0 } else { 0.0 }).collect::<Vec<f32>>();
    let rows = [(wave(20_000, 500.0), 2048), (wave(20_000, 2.6), 300), (peak(77), 16), (peak(1249), 17)];
    Rows::new(&rows, 16, 1).check(gpu);
}

#[test]
fn fused_transforms_are_the_separate_ones() {
    let Some(gpu) = gpu() else { return };
    let rows = Rows::new(&[(random(1000, 1), 70), (random(30, 2), 70), (random(100, 3), 70)], 8, 1);
    let stride = rows.params.out_stride;
    for transform in [Transform::None, Transform::Paged, Transform::Ragged] {
        let output = Output::Positions(Transform::None);
        let positions = rows.on_gpu(gpu, output, &top_k::best(gpu.profile(), output));
        let params = TopKTransformParams { rows: rows.params.rows, out_stride: stride, page_size: 8 };
        let mut want = positions.clone();
        cpu::top_k_transform::top_k_transform(&params, transform, &rows.rows, &rows.table, &mut want);
        let buffers = [rows.rows.as_flattened(), &rows.table, &positions];
        let [list, table, out] = buffers.map(|data| gpu.upload("transform", data).unwrap());
        let mut pass = Pass::new("transform");
        let bindings = [(&list).into(), (&table).into(), (&out).into()];
        dispatch(gpu, &mut pass, &top_k_transform::variant(transform), &params, &bindings);
        let read = pass.read(&out, 0..out.len());
        let got: Vec<u32> = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        assert_eq!(got, want, "{transform:?}");
        assert_eq!(
            got,
            rows.on_gpu(
                gpu,
                Output::Positions(transform),
                &top_k::best(gpu.profile(), Output::Positions(transform))
            ),
            "{transform:?}, fused"
        );
    }
}

#[test]
fn the_longest_row_decides_which_kernels_choose() {
    let Some(gpu) = gpu() else { return };
    let mut top_k = TopK::new(gpu, Output::List).unwrap();
    for (longest, dispatches) in [(300, 1), (top_k_peaks::LONG as usize - 1, 1), (20_000, 2), (17_000, 2)] {
        let rows = Rows::new(&[(random(longest, 1), 70), (random(30, 2), 70), (random(200, 3), 70)], 1, 1);
        let limits = TopKLimits { max_scores: u32::try_from(longest).unwrap(), max_k: 70 };
        top_k.reserve(gpu, rows.params.rows, limits).unwrap();
        let buffers = [rows.rows.as_flattened(), &rows.table];
        let [list, table] = buffers.map(|data| gpu.upload("rows", data).unwrap());
        let scores = gpu.upload("scores", &rows.scores).unwrap();
        let mut want = vec![77_777_u32; rows.out_len(Output::List)];
        let out = gpu.upload("out", &want).unwrap();
        let mut pass = Pass::new("top_k");
        let (list, table) = (list.bind().cast(), table.bind().cast());
        let buffers = TopKBuffers { scores: scores.bind(), rows: list, table, out: out.bind() };
        top_k.record(&mut pass, &rows.params, limits, buffers);
        assert_eq!(pass.dispatches(), dispatches, "{longest} scores");
        let read = pass.read(&out, 0..out.len());
        let got: Vec<u32> = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        cpu::top_k::top_k(&rows.params, Output::List, &rows.scores, &rows.rows, &rows.table, &mut want);
        assert_eq!(got, want, "{longest} scores");
    }
}

proptest! {
    #![proptest_config(cases(6))]
    #[test]
    fn selects_as_the_reference_does(
        rows in prop::collection::vec(
            (prop::collection::vec((-40i16..40).prop_map(|x| f32::from(x) / 16.0), 0..2500), 0u32..2600),
            1..6,
        ),
        log_page in 0u32..8,
        copies in 1u32..4,
    ) {
        if let Some(gpu) = gpu() {
            Rows::new(&rows, 1 << log_page, copies).check(gpu);
        }
    }
}
