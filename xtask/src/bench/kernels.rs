//! Kernels alone: the maximum speed of the device's reads and products, then kernels over a grid of shapes as a fraction of it,
//! the rest of the catalogue by the cases of the self-test, and last the names of those that nothing measured. Data and block
//! tables are random, times are the device's own, caches are filled with other data in between.

mod attention;
mod bound;
mod ceiling;
mod flashprefill;
mod grid;
mod host;
mod lists;
mod mla;
mod pages;
mod products;
mod prompt;
mod select;
mod shapes;
mod structured;
mod work;
mod xattn;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use attn_kernels::Level;
use pagoda::{Notes, verdicts};
use pagoda_cli::progress::Template;
use serde::Serialize;

use super::page;
use crate::cli::BenchArgs;
use crate::report;
pub(super) use ceiling::Ceiling;
use ceiling::Pace;
use grid::Item;
use work::{Bench, Timed};

/// One kernel at one shape.
#[derive(Debug, Clone, Serialize)]
struct Row {
    kernel: String,
    level: String,
    shape: String,
    /// Microseconds on the device, the median of several runs.
    us: Option<f64>,
    /// Number of bytes that must be moved; the next field is the number of operations, with two for a multiply-add.
    bytes: f64,
    operations: f64,
    gb_s: Option<f64>,
    tflop_s: Option<f64>,
    /// Share of the limiting ceiling that is reached: of reads or of operations.
    fraction: Option<f64>,
    bound: Option<&'static str>,
    /// Time of dense attention of the same shape divided by this time.
    times_dense: Option<f64>,
    /// Share of the visible blocks that a selection kept; the next field is the share of the attention's mass that
    /// these blocks have.
    density: Option<f64>,
    recall: Option<f64>,
    /// Reason why the kernel did not run; `None` if it ran.
    skipped: Option<String>,
}

/// Results of one run of the suite.
#[derive(Debug, Serialize)]
struct Report {
    adapter: String,
    driver: String,
    level: &'static str,
    ceiling: Ceiling,
    rows: Vec<Row>,
}

/// Number of runs whose median counts; the next constant is the number in quick mode.
const RUNS: usize = 7;
const RUNS_QUICK: usize = 3;

/// Runs the suite.
pub(super) fn run(args: &BenchArgs) -> Result<()> {
    let gpu = Arc::new(verdicts::open(&args.engine.gpu(), &Notes::to(|note| eprintln!("{note}")))?);
    let info = gpu.info();
    eprintln!("device: {} (level {}, driver {})", info.name, gpu.level(), info.driver_info);
    if !gpu.time_dispatches(true) {
        eprintln!("the adapter has no timestamps: times are those until results are there");
    }
    let items =
        asked(args, if args.shapes { grid::shapes(&gpu, args.quick) } else { grid::items(&gpu, args.quick) });
    // Kernels that no item runs follow by themselves; which ones, is known when the items have run.
    let rest = |dispatched: &BTreeSet<&str>| {
        if args.shapes { Vec::new() } else { asked(args, grid::rest(&gpu, args.quick, dispatched)) }
    };
    if items.is_empty() {
        let filter = args.filter.as_deref().unwrap_or_default();
        ensure!(
            !rest(&BTreeSet::new()).is_empty(),
            "--filter {filter:?}: no kernel and shape has that in its name"
        );
    }
    // The first kernel of a process finds clocks low and memory cold.
    Ceiling::measure(&gpu)?;
    let ceiling = Ceiling::measure(&gpu)?;
    show_ceiling(args, &ceiling)?;
    let flush = ceiling::flush(&gpu)?;
    let runs = if args.quick { RUNS_QUICK } else { RUNS };
    let pace = Pace::new(&gpu)?;
    let bench = Bench { gpu: &gpu, flush: &flush, pace: &pace, runs, dispatched: RefCell::default() };
    let bar = Template::ROWS.bar(Some(items.len()));
    // The first item runs twice; its first run pays for what nobody else does.
    if let Some(first) = items.first() {
        (first.run)(&bench).ok();
    }
    let mut rows = Vec::new();
    for (what, reason) in grid::left_out(&gpu) {
        rows.push(skipped(what, &anyhow!(reason)));
        bar.suspend(|| show(args, &rows[rows.len() - 1]))?;
    }
    let mut measure = |items: &[Item]| -> Result<()> {
        for item in items {
            bar.set_message(item.name.clone());
            let measured = measured(&bench, &ceiling, item);
            bar.inc(1);
            bar.suspend(|| measured.iter().try_for_each(|row| show(args, row)))?;
            rows.extend(measured);
        }
        Ok(())
    };
    measure(&items)?;
    let dispatched = bench.dispatched.borrow().clone();
    let rest = rest(&dispatched);
    bar.inc_length(rest.len() as u64);
    measure(&rest)?;
    bar.finish_and_clear();
    if args.shapes {
        show_worst(args, &rows);
    } else if args.filter.is_none() {
        rows.push(unmeasured(&bench.dispatched.take()));
        show(args, &rows[rows.len() - 1])?;
    }
    let Some(folder) = &args.out else { return Ok(()) };
    let report = Report {
        adapter: info.name.clone(),
        driver: info.driver_info.clone(),
        level: gpu.level().name(),
        ceiling,
        rows,
    };
    page::write(folder, "kernels.json", &report)
}

/// Runs an item. One that does not fit the adapter is told with the reason, so that the others go on.
fn measured(bench: &Bench, ceiling: &Ceiling, item: &Item) -> Vec<Row> {
    let timed = (item.run)(bench);
    bench.gpu.forget_bind_groups();
    match timed {
        Ok(timed) => timed.into_iter().map(|timed| row(ceiling, timed)).collect(),
        Err(error) => vec![skipped(&item.name, &error)],
    }
}

/// Returns the items that the filter asks for.
fn asked(args: &BenchArgs, mut items: Vec<Item>) -> Vec<Item> {
    if let Some(filter) = args.filter.as_ref().map(|filter| filter.to_lowercase()) {
        items.retain(|item| item.name.to_lowercase().contains(&filter));
    }
    items
}

/// Number of rows that are furthest from their limits.
const WORST: usize = 10;

/// Names the rows that are furthest from their limits.
#[expect(clippy::print_stdout, reason = "the command's result")]
fn show_worst(args: &BenchArgs, rows: &[Row]) {
    if args.json {
        return;
    }
    let mut rows: Vec<&Row> = rows.iter().filter(|row| row.fraction.is_some()).collect();
    rows.sort_by(|a, b| a.fraction.partial_cmp(&b.fraction).expect("fractions are numbers"));
    println!("furthest from their limits:");
    rows.iter().take(WORST).for_each(|row| println!("{}", line(row)));
}

/// A row that names the kernels of the catalogues that are not among `dispatched`.
fn unmeasured(dispatched: &BTreeSet<&str>) -> Row {
    let names: Vec<&str> =
        grid::catalogue().map(|kernel| kernel.name).filter(|name| !dispatched.contains(name)).collect();
    skipped("other kernels", &anyhow!("no shape measures {}", names.join(", ")))
}

fn skipped(name: &str, error: &anyhow::Error) -> Row {
    Row {
        kernel: name.into(),
        level: String::new(),
        shape: String::new(),
        us: None,
        bytes: 0.0,
        operations: 0.0,
        gb_s: None,
        tflop_s: None,
        fraction: None,
        bound: None,
        times_dense: None,
        density: None,
        recall: None,
        skipped: Some(format!("{error:#}")),
    }
}

fn row(ceiling: &Ceiling, timed: Timed) -> Row {
    let Timed { cost, seconds, dense, density, recall } = timed;
    let memory = cost.bytes / ceiling.bytes_s;
    let rate = if cost.level == Level::Coop.name() { ceiling.operations_s() } else { ceiling.f32_s };
    let operations = cost.operations / rate;
    let limit = memory.max(operations);
    Row {
        kernel: cost.kernel,
        level: cost.level.into(),
        shape: cost.shape,
        us: Some(seconds * 1e6),
        bytes: cost.bytes,
        operations: cost.operations,
        gb_s: Some(cost.bytes / seconds * 1e-9),
        tflop_s: Some(cost.operations / seconds * 1e-12),
        // What moves and computes nothing has no ceiling.
        fraction: (limit > 0.0).then(|| limit / seconds),
        bound: (limit > 0.0).then_some(if memory >= operations { "memory" } else { "operations" }),
        times_dense: dense.map(|dense| dense / seconds),
        density,
        recall,
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
    let bound = row.fraction.zip(row.bound).map_or(String::new(), |(fraction, bound)| {
        format!("{gb_s:8.1} GB/s {tflop_s:8.3} TFLOP/s {fraction:5.2} of {bound}")
    });
    let extra = [
        row.times_dense.map(|times| format!(", {times:.2} x as fast as dense")),
        row.density.map(|density| format!(", density {density:.4}")),
        row.recall.map(|recall| format!(", recall {recall:.4}")),
    ];
    let extra: String = extra.into_iter().flatten().collect();
    format!("{:26} {:9} {us:11.1} us {bound:53} {}{extra}", row.kernel, row.level, row.shape)
}

#[cfg(test)]
mod tests {
    use super::work::Work;
    use super::*;

    fn bench() -> Report {
        let ceiling = Ceiling { bytes_s: 4e12, f32_s: 5e13, matrix_s: Some(6e14) };
        let timed = |kernel, level: Level, bytes, operations, seconds| {
            let cost = Work::new(kernel, level.name(), "1 x 1024".into()).costs(bytes, operations).cost;
            Timed { cost, seconds, dense: None, density: None, recall: None }
        };
        let sparse = timed("prefill, xattn", Level::Coop, 4e8, 3e11, 4e-3);
        let rows = vec![
            row(&ceiling, timed("decode", Level::Subgroup, 4e9, 8e9, 2e-3)),
            row(&ceiling, timed("prefill", Level::Coop, 4e8, 3e12, 1e-2)),
            row(&ceiling, timed("copy_blocks", Level::Baseline, 4e9, 0.0, 1e-3)),
            row(&ceiling, Timed { dense: Some(1e-2), density: Some(0.05), recall: Some(0.955), ..sparse }),
            row(&ceiling, timed("record, submit", Level::Baseline, 0.0, 0.0, 3e-4)),
        ];
        Report { adapter: "a".into(), driver: "1".into(), level: "coop", ceiling, rows }
    }

    #[test]
    fn fractions_are_of_what_binds() {
        let lines: Vec<String> = bench().rows.iter().map(line).collect();
        insta::assert_snapshot!(lines.join("\n"), @r"
        decode                     subgroup       2000.0 us   2000.0 GB/s    4.000 TFLOP/s  0.50 of memory        1 x 1024
        prefill                    coop          10000.0 us     40.0 GB/s  300.000 TFLOP/s  0.50 of operations    1 x 1024
        copy_blocks                baseline       1000.0 us   4000.0 GB/s    0.000 TFLOP/s  1.00 of memory        1 x 1024
        prefill, xattn             coop           4000.0 us    100.0 GB/s   75.000 TFLOP/s  0.12 of operations    1 x 1024, 2.50 x as fast as dense, density 0.0500, recall 0.9550
        record, submit             baseline        300.0 us                                                       1 x 1024
        ");
    }
}
