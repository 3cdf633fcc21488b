//! Cost of planning and completing a step over many running sequences.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvblock::{AttentionKind, BlockSize, KvCacheConfig, KvCacheSpec, KvDtype, LengthLimits};
use scheduler::{Request, Scheduler, SchedulerConfig};

/// Output tokens of a sequence before it is replaced: long, so that nearly every step only decodes.
const MAX_TOKENS: u32 = 4_096;

/// A scheduler of `seqs` decoding sequences, 64 tokens each.
fn decoding(seqs: u32) -> Scheduler {
    let block = BlockSize::new(16).expect("not 0");
    let spec = KvCacheSpec::new(AttentionKind::FULL, block, 8, 128, KvDtype::F16);
    let limits = LengthLimits::new(8_192);
    let cache = KvCacheConfig::uniform(seqs * 300, spec, 1, limits);
    let mut scheduler = Scheduler::new(SchedulerConfig::new(64 * seqs, seqs), cache).expect("valid limits");
    for seq in 0..seqs {
        let request = Request::new((0..64).map(|token| token + seq).collect(), MAX_TOKENS);
        scheduler.add(request).expect("the pool holds all");
    }
    let plan = scheduler.step();
    assert_eq!(plan.sample_rows.len(), seqs as usize, "all prompts in one step");
    scheduler.complete(&plan, &vec![1; seqs as usize]);
    scheduler
}

fn decode_steps(c: &mut Criterion) {
    for (name, complete) in [("step", false), ("step+complete", true)] {
        let mut group = c.benchmark_group(name);
        for seqs in [100, 1_000, 10_000] {
            group.throughput(Throughput::Elements(u64::from(seqs)));
            group.bench_function(BenchmarkId::from_parameter(seqs), |b| {
                b.iter_custom(|iterations| run(seqs, iterations, complete));
            });
        }
        group.finish();
    }
}

/// Time of `iterations` steps, of planning alone or with completion.
fn run(seqs: u32, iterations: u64, complete: bool) -> std::time::Duration {
    let mut spent = std::time::Duration::ZERO;
    let mut scheduler = decoding(seqs);
    let sampled = vec![1; seqs as usize];
    for step in 1..=iterations {
        if step % u64::from(MAX_TOKENS - 1) == 0 {
            scheduler = decoding(seqs);
        }
        let start = std::time::Instant::now();
        let plan = black_box(scheduler.step());
        let planned = start.elapsed();
        assert_eq!(plan.slices.len(), seqs as usize);
        scheduler.complete(&plan, &sampled);
        spent += if complete { start.elapsed() } else { planned };
    }
    spent
}

criterion_group!(benches, decode_steps);
criterion_main!(benches);
