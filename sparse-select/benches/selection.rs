//! Selection time against O(B log K): elements are `B log2 K`, so throughput must not fall as B grows.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sparse_select::{Input, Selection, build, topk::top_k};

const BLOCKS: [u32; 4] = [1 << 10, 1 << 12, 1 << 14, 1 << 16];

/// Multiplicative hash: a value that looks random and is the same in every run.
fn scramble(i: u32) -> u32 {
    i.wrapping_mul(2_654_435_769) >> 8
}

fn work(blocks: u32, selected: u32) -> Throughput {
    Throughput::Elements(u64::from(blocks) * u64::from(selected.ilog2()))
}

fn gsa(c: &mut Criterion) {
    let mut group = c.benchmark_group("gsa");
    let policy = build("gsa").expect("gsa is a builtin policy");
    for n in BLOCKS {
        let access: Vec<u32> = (0..n).map(|i| scramble(i) % 8).collect();
        let input = Input { access: &access, ..Input::positions(n as usize * 16) };
        let mut selection = Selection::new();
        group.throughput(work(n, n * 3 / 10));
        group.bench_function(BenchmarkId::from_parameter(n), |b| {
            b.iter(|| policy.select_into(black_box(&input), &mut selection));
        });
    }
    group.finish();
}

fn top_2048(c: &mut Criterion) {
    let mut group = c.benchmark_group("top_k");
    for n in BLOCKS {
        let scores: Vec<f32> = (0..n).map(|i| scramble(i) as f32).collect();
        let k = 2048.min(n / 2);
        group.throughput(work(n, k));
        group.bench_function(BenchmarkId::from_parameter(n), |b| {
            b.iter(|| top_k(black_box(&scores), k as usize));
        });
    }
    group.finish();
}

criterion_group!(benches, gsa, top_2048);
criterion_main!(benches);
