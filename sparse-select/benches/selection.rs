//! Measures the selection time of every policy against O(B log K), for B blocks with K selected ones. The time
//! includes preparing keys and queries (digests, hashes, scores), which is linear in B.
//!
//! The table at the end gives the exponent e of time ~ (B log2 K)^e, fitted by least squares from 1,000 blocks on: about 1 where
//! the bound holds. What it is beyond that is the keys of 100,000 blocks, which leave the caches.

use std::cell::RefCell;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use sparse_select::{Heads, Input, Policy, Selection, build};

const BLOCKS: [u32; 4] = [100, 1_000, 10_000, 100_000];
/// Number of tokens of a block, and of channels of a head; there is one KV head with two query heads.
const SIZE: usize = 4;
const DIM: usize = 4;

/// Specs of policies, each with the number of queries of a prefill chunk; 0 is a decode step.
const POLICIES: [(&str, usize); 15] = [
    ("full:block_size=4", 0),
    ("streaming:block_size=4,sink=4,recent=60", 0),
    ("vertical-slash:block_size=4,sink=4,window=60", 0),
    ("gsa:block_size=4", 0),
    ("gsa:block_size=4,scoring=mean_k", 0),
    ("gsa-ucm:block_size=4,min_topk=1,max_topk=100000,seg_prefill_threshold=0", 0),
    ("esa:block_size=4", 0),
    ("kvstar:block_size=4", 0),
    ("kvcomp:block_size=4,hash_bits=32,topk_tokens=256,length_threshold=256", 0),
    ("xattn:block_size=4,stride=2", 16),
    ("xattn-bsa:block_size=4,stride=1", 128),
    ("quest:block_size=4,page_budget=64", 0),
    ("quest:block_size=4,mass=0.5", 0),
    ("dsa:block_size=4,index_topk=64", 0),
    ("nsa:kernel_size=4,kernel_stride=2,block_size=4,topk=16,window_size=0", 0),
];

/// Measurement of a policy at one number of blocks.
#[derive(Clone, Copy)]
struct Row {
    blocks: u32,
    /// Work according to the bound, `B log2 K`.
    work: f64,
    /// Seconds of one selection, the minimum over samples.
    seconds: f64,
}

/// Pseudo-random values from -1 to 1, the same in every run.
fn values(len: usize, seed: u32) -> Vec<f32> {
    let hash = |i: u32| (i ^ seed).wrapping_mul(2_654_435_769) >> 8;
    (0u32..).take(len).map(|i| (hash(i) % 2048) as f32 / 1024.0 - 1.0).collect()
}

fn time(c: &mut Criterion, spec: &str, chunk: usize, rows: &RefCell<Vec<Row>>) {
    let policy = build(spec).expect("a spec of this crate");
    let mut group = c.benchmark_group(spec);
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400));
    for blocks in BLOCKS {
        let len = blocks as usize * SIZE;
        let (k, q) = (values(len * DIM, 1), values(2 * chunk.max(1) * DIM, 2));
        let k = Heads::new("k", &k, [1, len, DIM]).expect("whole keys");
        let q = Heads::new("q", &q, [2, chunk.max(1), DIM]).expect("whole queries");
        let access: Vec<u32> = (0..blocks).map(|i| i.wrapping_mul(2_654_435_769) % 8).collect();
        let input = match chunk {
            0 => Input { access: &access, ..Input::decode(q, k) },
            _ => Input::prefill(q, k, blocks),
        };
        let mut selection = Selection::new();
        policy.select_into(&input, &mut selection).expect("shapes fit");
        let selected = selection.indices().len() / (selection.indptr().len() - 1);
        let work = f64::from(blocks) * (selected.max(2) as f64).log2();
        let mut row = Row { blocks, work, seconds: f64::INFINITY };
        group.throughput(Throughput::Elements(u64::from(blocks) * u64::from(selected.max(2).ilog2())));
        group.bench_function(BenchmarkId::from_parameter(blocks), |b| {
            b.iter_custom(|times| {
                let start = Instant::now();
                for _ in 0..times {
                    select(&*policy, &input, &mut selection);
                }
                let all = start.elapsed();
                row.seconds = row.seconds.min(all.as_secs_f64() / times as f64);
                all
            });
        });
        if row.seconds.is_finite() {
            rows.borrow_mut().push(row);
        }
    }
    group.finish();
}

fn select(policy: &dyn Policy, input: &Input<'_>, selection: &mut Selection) {
    policy.select_into(black_box(input), black_box(selection)).expect("shapes fit");
}

/// Slope of log time over log work, by least squares over `rows`.
fn exponent(rows: &[Row]) -> f64 {
    let points = rows.iter().map(|row| (row.work.ln(), row.seconds.ln()));
    let n = rows.len() as f64;
    let (x, y) = points.clone().fold((0.0, 0.0), |(x, y), (a, b)| (x + a / n, y + b / n));
    let (above, below) =
        points.fold((0.0, 0.0), |(s, t), (a, b)| (s + (a - x) * (b - y), t + (a - x) * (a - x)));
    above / below
}

#[expect(clippy::print_stdout, reason = "the result of the bench")]
fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut tables = Vec::new();
    for (spec, chunk) in POLICIES {
        let rows = RefCell::new(Vec::new());
        time(&mut criterion, spec, chunk, &rows);
        tables.push((spec, rows.into_inner()));
    }
    criterion.final_summary();
    println!("\nmicroseconds of a selection by blocks, and the exponent of time over B log2 K");
    for (spec, rows) in tables.iter().filter(|(_, rows)| rows.len() == BLOCKS.len()) {
        let times: Vec<String> =
            rows.iter().map(|row| format!("{}: {:.1}", row.blocks, row.seconds * 1e6)).collect();
        println!("{spec:72} {:60} {:.2}", times.join(", "), exponent(&rows[1..]));
    }
}
