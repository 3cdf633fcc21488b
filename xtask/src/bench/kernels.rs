//! Every kernel alone: what the device reads and multiplies at most, then each kernel over a grid of shapes as a fraction
//! of that. Data and block tables are random, times are the device's own, caches are filled with other data in between.

mod attention;
mod ceiling;
mod others;
mod work;

use std::fs;
use std::io;

use anyhow::{Context, Result};
use attn_kernels::Level;
use attn_kernels::gpu::{Checks, Gpu, GpuOptions};
use attn_kernels::kernel::KvDtype;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::svg::{Axis, Series, chart, number};
use crate::cli::BenchArgs;
use crate::{report, verdicts};
use attention::Heads;
use ceiling::Ceiling;
use work::Work;

/// One kernel at one shape.
#[derive(Debug, Clone, Serialize)]
struct Row {
    kernel: String,
    level: String,
    shape: String,
    /// Microseconds on the device, the median of several runs.
    us: Option<f64>,
    /// Bytes that must be moved, and multiply-adds counted as two that must be done.
    bytes: f64,
    operations: f64,
    gb_s: Option<f64>,
    tflop_s: Option<f64>,
    /// Share of what the ceiling allows, by whichever of the two binds.
    fraction: Option<f64>,
    bound: Option<&'static str>,
    /// Why it did not run.
    skipped: Option<String>,
}

/// What one run of the suite says.
#[derive(Debug, Serialize)]
struct Bench {
    adapter: String,
    driver: String,
    level: &'static str,
    ceiling: Ceiling,
    rows: Vec<Row>,
}

/// Makes a work when its turn comes: all of them at once would not fit in memory.
type Make<'a> = Box<dyn Fn(&Gpu) -> Result<Work> + 'a>;

/// Runs the suite.
pub(super) fn run(args: &BenchArgs) -> Result<()> {
    let device = GpuOptions { device: args.engine.device.clone(), ..GpuOptions::new(Checks::Off) };
    let gpu = verdicts::open(&device)?;
    let info = gpu.info();
    eprintln!("device: {} (level {}, driver {})", info.name, gpu.level(), info.driver_info);
    if !gpu.time_dispatches(true) {
        eprintln!("the adapter has no timestamps: times are those until results are there");
    }
    // The first kernel of a process finds clocks low and memory cold.
    Ceiling::measure(&gpu)?;
    let ceiling = Ceiling::measure(&gpu)?;
    show_ceiling(args, &ceiling)?;
    let makes = grid(&gpu);
    let flush = ceiling::flush(&gpu)?;
    let bar = ProgressBar::new(makes.len() as u64)
        .with_style(ProgressStyle::with_template("[{bar:30}] {pos} of {len}: {msg}")?.progress_chars("=> "));
    let mut rows = Vec::new();
    for (index, (name, make)) in makes.iter().enumerate() {
        bar.set_message(name.clone());
        let row = measure(&gpu, &ceiling, name, make, &flush);
        gpu.forget_bind_groups();
        bar.inc(1);
        // The first configuration is there twice; its first run pays for what nobody else does.
        if index == 0 {
            continue;
        }
        bar.suspend(|| show(args, &row))?;
        rows.push(row);
    }
    bar.finish_and_clear();
    let Some(folder) = &args.out else { return Ok(()) };
    fs::create_dir_all(folder).with_context(|| format!("{}: cannot be created", folder.display()))?;
    let bench = Bench {
        adapter: info.name.clone(),
        driver: info.driver_info.clone(),
        level: gpu.level().name(),
        ceiling,
        rows,
    };
    let files = [("kernels.json", serde_json::to_string_pretty(&bench)?), ("kernels.svg", roofline(&bench))];
    for (name, text) in files {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    Ok(())
}

/// Kernels and shapes, by name; the first is there twice.
fn grid(gpu: &Gpu) -> Vec<(String, Make<'static>)> {
    let software = gpu.is_cpu();
    let large = |dtype| Heads::new(32, 8, 128, dtype);
    let small = Heads::new(9, 3, 64, KvDtype::F16);
    let contexts: &[u32] = if software { &[1024, 4096] } else { &[1024, 4096, 8192, 32_768, 131_072] };
    let batches: &[u32] = if software { &[1, 4] } else { &[1, 4, 16, 64] };
    let lens: &[u32] = if software { &[512] } else { &[2048, 8192, 32_768, 131_072] };
    let levels: &[Level] =
        if gpu.level() == Level::Baseline { &[Level::Baseline] } else { &[Level::Subgroup, Level::Baseline] };
    let mut all: Vec<(String, Make<'static>)> = Vec::new();
    let mut add = |name: String, make: Make<'static>| all.push((name, make));
    let first = [batches[0], contexts[0]];
    let level = levels[0];
    let f16 = large(KvDtype::F16);
    add("decode".into(), Box::new(move |gpu| attention::decode(gpu, &f16, first, level, None)));
    let models = if software { vec![small] } else { vec![f16, large(KvDtype::F32), small] };
    for heads in models {
        for &context in contexts {
            for &batch in batches {
                for &level in levels {
                    let name = format!("decode {batch} x {context}, {}, level {level}", heads.name());
                    let at = [batch, context];
                    add(name, Box::new(move |gpu| attention::decode(gpu, &heads, at, level, None)));
                }
                let name = format!("decode of 10 % of {batch} x {context}, {}", heads.name());
                let at = [batch, context];
                add(name, Box::new(move |gpu| attention::decode(gpu, &heads, at, level, Some(0.1))));
            }
        }
        for &len in lens {
            for density in [None, Some(0.25)] {
                let name = format!("prefill {len}, {}, density {density:?}", heads.name());
                add(name, Box::new(move |gpu| attention::prefill(gpu, &heads, len, density)));
            }
        }
    }
    let heads = if software { small } else { f16 };
    let rows = if software { 512 } else { 8192 };
    add("cache_write".into(), Box::new(move |gpu| others::cache_write(gpu, &heads, rows)));
    add("copy_blocks".into(), Box::new(move |gpu| others::copy_blocks(gpu, &heads, rows / 4)));
    add("lse_merge".into(), Box::new(move |gpu| others::lse_merge(gpu, &heads, rows)));
    for &context in contexts {
        add(
            format!("block_digest {context}"),
            Box::new(move |gpu| others::block_digest(gpu, &heads, context)),
        );
        let at = [4, context];
        add(format!("block_score 4 x {context}"), Box::new(move |gpu| others::block_score(gpu, &heads, at)));
        let (rows, k) = if software { (4, 256) } else { (64, 2048) };
        add(
            format!("top_k of {context}"),
            Box::new(move |gpu| others::top_k(gpu, rows, context, k.min(context / 2))),
        );
        add(format!("index_logits {context}"), Box::new(move |gpu| others::index_logits(gpu, context)));
    }
    all
}

fn measure(
    gpu: &Gpu,
    ceiling: &Ceiling,
    name: &str,
    make: &Make<'_>,
    flush: &dyn Fn(&mut attn_kernels::gpu::Pass),
) -> Row {
    let done = make(gpu).and_then(|work| Ok((work.time(gpu, flush)?, work)));
    match done {
        Ok((seconds, work)) => row(ceiling, &work, seconds),
        // What does not fit the adapter is told with its reason; the others go on.
        Err(error) => Row {
            kernel: name.into(),
            level: gpu.level().name().into(),
            shape: String::new(),
            us: None,
            bytes: 0.0,
            operations: 0.0,
            gb_s: None,
            tflop_s: None,
            fraction: None,
            bound: None,
            skipped: Some(format!("{error:#}")),
        },
    }
}

fn row(ceiling: &Ceiling, work: &Work, seconds: f64) -> Row {
    let memory = work.bytes / ceiling.bytes_s;
    let rate = if work.level == Level::Coop.name() { ceiling.operations_s() } else { ceiling.f32_s };
    let operations = work.operations / rate;
    Row {
        kernel: work.kernel.clone(),
        level: work.level.into(),
        shape: work.shape.clone(),
        us: Some(seconds * 1e6),
        bytes: work.bytes,
        operations: work.operations,
        gb_s: Some(work.bytes / seconds * 1e-9),
        tflop_s: Some(work.operations / seconds * 1e-12),
        fraction: Some(memory.max(operations) / seconds),
        bound: Some(if memory >= operations { "memory" } else { "operations" }),
        skipped: None,
    }
}

#[expect(clippy::print_stdout, reason = "the command's result")]
fn show_ceiling(args: &BenchArgs, ceiling: &Ceiling) -> Result<()> {
    if args.json {
        return Ok(report::json_line(&mut io::stdout().lock(), ceiling)?);
    }
    let matrix =
        ceiling.matrix_s.map_or(String::new(), |rate| format!(", matrices {:.1} TFLOP/s", rate * 1e-12));
    println!(
        "ceiling: reads {:.1} GB/s, f32 {:.2} TFLOP/s{matrix}",
        ceiling.bytes_s * 1e-9,
        ceiling.f32_s * 1e-12
    );
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the command's result")]
fn show(args: &BenchArgs, row: &Row) -> Result<()> {
    if args.json {
        return Ok(report::json_line(&mut io::stdout().lock(), row)?);
    }
    println!("{}", line(row));
    Ok(())
}

fn line(row: &Row) -> String {
    let (Some(us), Some(gb_s), Some(tflop_s)) = (row.us, row.gb_s, row.tflop_s) else {
        return format!("{}: skipped: {}", row.kernel, row.skipped.as_deref().unwrap_or_default());
    };
    let (fraction, bound) = (row.fraction.unwrap_or(0.0), row.bound.unwrap_or_default());
    format!(
        "{:18} {:9} {us:11.1} us {gb_s:8.1} GB/s {tflop_s:8.3} TFLOP/s {fraction:5.2} of {bound:10} {}",
        row.kernel, row.level, row.shape
    )
}

/// Operations a second against operations a byte, under the two ceilings.
fn roofline(bench: &Bench) -> String {
    let ceiling = &bench.ceiling;
    let mut series: Vec<Series> = Vec::new();
    for row in &bench.rows {
        // Kernels that only move data have no place between the two ceilings.
        let (Some(us), true) = (row.us, row.operations > 0.0) else { continue };
        let name = format!("{}, {}", row.kernel, row.level);
        let point = (row.operations / row.bytes, row.operations / us * 1e6);
        match series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => series.push(Series { name, points: vec![point], joined: false }),
        }
    }
    let intensities: Vec<f64> = series.iter().flat_map(|s| &s.points).map(|p| p.0).collect();
    let roof = |name: &str, rate: f64| {
        let knee = rate / ceiling.bytes_s;
        let low = intensities.iter().copied().fold(knee / 10.0, f64::min);
        let high = intensities.iter().copied().fold(knee * 10.0, f64::max);
        let points = vec![(low, low * ceiling.bytes_s), (knee, rate), (high, rate)];
        Series { name: format!("{name}: {}FLOP/s", number(rate)), points, joined: true }
    };
    let mut roofs = vec![roof("f32", ceiling.f32_s)];
    roofs.extend(ceiling.matrix_s.map(|rate| roof("matrices", rate)));
    roofs.extend(series);
    let title = format!(
        "{}, driver {}, level {}: reads {}B/s",
        bench.adapter,
        bench.driver,
        bench.level,
        number(ceiling.bytes_s)
    );
    chart(&title, &Axis::log("operations a byte"), &Axis::log("operations a second"), &roofs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench() -> Bench {
        let ceiling = Ceiling { bytes_s: 4e12, f32_s: 5e13, matrix_s: Some(6e14) };
        let work = |kernel, level: Level, bytes, operations| {
            Work::new(kernel, level.name(), "1 x 1024".into()).costs(bytes, operations)
        };
        let rows = vec![
            row(&ceiling, &work("decode", Level::Subgroup, 4e9, 8e9), 2e-3),
            row(&ceiling, &work("prefill", Level::Coop, 4e8, 3e12), 1e-2),
            row(&ceiling, &work("copy_blocks", Level::Baseline, 4e9, 0.0), 1e-3),
        ];
        Bench { adapter: "a".into(), driver: "1".into(), level: "coop", ceiling, rows }
    }

    #[test]
    fn fractions_are_of_what_binds() {
        let lines: Vec<String> = bench().rows.iter().map(line).collect();
        insta::assert_snapshot!(lines.join("\n"), @r"
        decode             subgroup       2000.0 us   2000.0 GB/s    4.000 TFLOP/s  0.50 of memory     1 x 1024
        prefill            coop          10000.0 us     40.0 GB/s  300.000 TFLOP/s  0.50 of operations 1 x 1024
        copy_blocks        baseline       1000.0 us   4000.0 GB/s    0.000 TFLOP/s  1.00 of memory     1 x 1024
        ");
    }

    #[test]
    fn the_roofline_has_both_roofs_and_the_kernels_that_compute() {
        let svg = roofline(&bench());
        for name in ["f32: 50TFLOP/s", "matrices: 600TFLOP/s", "decode, subgroup", "prefill, coop"] {
            assert!(svg.contains(name), "{name}");
        }
        assert!(!svg.contains("copy_blocks"));
    }
}
