//! Contexts larger than the device: random layers over a cache of random keys and values, most of which lie in memory of
//! the host. Steps with a resident budget and fetches ahead are compared with everything resident, and with dense attention
//! that streams the context.

// Direct I/O and dropping pages from the cache are Linux here.
#[cfg(target_os = "linux")]
mod disk;
mod plan;
mod random;
mod rig;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use anyhow::{Result, ensure};
use attn_kernels::gpu::Gpu;
use models::{FetchCost, HostMemory};
use serde::Serialize;

use super::page;
use super::paired::Median;
use crate::cli::BenchArgs;
use crate::report;
use plan::Plan;
use rig::{Case, Rig, Steps};

/// One measured way to decode.
#[derive(Debug, Clone, Serialize)]
struct Row {
    adapter: String,
    driver: String,
    /// `single`, `batch` or `short`.
    workload: &'static str,
    /// Place of keys and values: `resident`, `host`, or `streamed` for dense attention through the ring.
    tier: &'static str,
    /// SPEC of the policy, `full` for dense attention.
    policy: String,
    streams: u32,
    /// Tokens of each stream.
    context: u32,
    /// The device pool as a share of all contexts; null where it holds them.
    pool: Option<f64>,
    /// Percent of the selected blocks that change from step to step, measured; null for dense attention.
    turnover: Option<f64>,
    /// Decoded tokens of all streams a second.
    tok_s: f64,
    /// One step: of bursts of a few steps, which take turns with those of the rows that this one is compared with.
    step_ms: Median,
    /// Bytes from the host, a step.
    bytes: f64,
    /// Selected pages that were on the device, that attention waited for, and that were fetched ahead, a step.
    pages: [f64; 3],
    /// Device time a step in which nothing but a fetch runs: what attention waits for, and what of fetches ahead is not hidden.
    /// Null without timestamps.
    wait_ms: Option<f64>,
    /// Share of the time of a fetch ahead that the product beside it hides, from timestamps of both alone and together.
    hidden_ahead: Option<f64>,
    /// Host to device with nothing beside it.
    fetch_gb_s: Option<f64>,
    /// Speed over that of the same with everything resident.
    of_resident: Option<f64>,
    /// Speed over that of dense streaming.
    of_streamed: Option<f64>,
    /// Milliseconds by which a step is longer than with everything resident when its host tier lies in device memory: the
    /// cost of decisions and copies without the bus.
    decisions_ms: Option<Median>,
    /// Milliseconds by which a step is longer than that one.
    longer_ms: Option<Median>,
    /// Share of transfer time, bytes over the rate of a fetch alone, by which a step is not longer than that one.
    hidden: Option<Median>,
    /// Share of transfer time that is hidden against everything resident, so that the decisions count as transfer.
    hidden_with_decisions: Option<Median>,
    /// Device time of each kernel in milliseconds a step, each with nothing beside it; empty without timestamps.
    kernel_ms: BTreeMap<&'static str, f64>,
}

/// Checks the text of a plan.
pub(super) fn check(plan: &str) -> Result<()> {
    Plan::parse(plan).map(drop)
}

/// Runs the suite.
pub(super) fn run(args: &BenchArgs) -> Result<()> {
    let gpu = Arc::new(Gpu::open(&args.engine.gpu())?);
    let plan = Plan::read(args.plan.as_deref(), gpu.is_cpu())?;
    ensure!(gpu.has_host_buffers(), "{} cannot read memory of the host in kernels", gpu.info().name);
    let mut bench = Bench { rows: Vec::new(), rig: Rig::new(&gpu, &plan), plan, args };
    bench.measure()?;
    let folder = args.out.clone().unwrap_or_else(std::env::temp_dir);
    #[cfg(target_os = "linux")]
    let disk = Some(disk::measure(&folder, &bench.plan)?);
    #[cfg(not(target_os = "linux"))]
    let disk: Option<()> = None;
    #[cfg(target_os = "linux")]
    disk.iter().try_for_each(|row| bench.print_disk(row))?;
    if let Some(folder) = &args.out {
        page::write(folder, "offload.json", &serde_json::json!({ "rows": bench.rows, "disk": disk }))?;
    }
    Ok(())
}

/// Runs that a row is compared with, step by step: the same with everything resident, and with the host tier in device
/// memory.
#[derive(Clone, Copy)]
struct Baselines<'a> {
    resident: &'a Steps,
    control: &'a Steps,
}

struct Bench<'a> {
    rows: Vec<Row>,
    rig: Rig,
    plan: Plan,
    args: &'a BenchArgs,
}

impl Bench<'_> {
    /// All rows: dense streaming, then every policy with its pools and turnovers, then other shapes of work.
    fn measure(&mut self) -> Result<()> {
        let plan = self.plan.clone();
        let memory = HostMemory::Mapped;
        let case = Case { policy: None, streams: 1, context: plan.context, pool: None, memory };
        let streamed = Case { pool: Some(plan.pool), ..case.clone() };
        self.rig.open(std::slice::from_ref(&streamed))?;
        let steps = self.rig.measure(0, plan.streamed_steps)?;
        self.push("single", (0, &streamed), None, &steps[0], None)?;
        for (index, policy) in plan.policies.iter().enumerate() {
            let policy = Some(plan.spec(policy, plan.context)?);
            let case = Case { policy, ..case.clone() };
            // The usual one comes last.
            let others = plan.turnovers.iter().copied().filter(|turnover| *turnover != plan.turnover);
            let turnovers: Vec<f64> = others.chain([plan.turnover]).collect();
            let pools = if index == 0 { &plan.pools[..] } else { &[] };
            self.shape("single", &case, &turnovers, pools)?;
        }
        let spec = |context| plan.spec(&plan.policies[0], context).map(Some);
        let context = plan.context / plan.batch;
        let batch = Case { policy: spec(context)?, streams: plan.batch, context, ..case.clone() };
        if plan.batch > 1 {
            self.shape("batch", &batch, &[plan.turnover], &[])?;
        }
        if plan.short == 0 {
            return Ok(());
        }
        let short = Case { policy: spec(plan.short)?, streams: 1, context: plan.short, ..case };
        self.shape("short", &short, &[plan.turnover], &[])
    }

    /// One shape of work: everything resident beside the pool of the plan over turnovers, then beside other pools.
    fn shape(&mut self, workload: &'static str, case: &Case, turnovers: &[f64], pools: &[f64]) -> Result<()> {
        self.rig.open(std::slice::from_ref(case))?;
        let walks = self.rig.walks(turnovers)?;
        self.tight(workload, case, self.plan.pool, &walks, true)?;
        let usual = walks.len() - 1;
        let plan_pool = self.plan.pool;
        for pool in pools.iter().filter(|pool| **pool != plan_pool) {
            self.tight(workload, case, *pool, &walks[usual..], false)?;
        }
        Ok(())
    }

    /// Walks with a pool that is too small, by turns with the same where everything is resident and where the host tier lies
    /// in device memory.
    fn tight(
        &mut self,
        workload: &'static str,
        case: &Case,
        pool: f64,
        walks: &[(u32, f64)],
        resident_too: bool,
    ) -> Result<()> {
        let tight = Case { pool: Some(pool), ..case.clone() };
        let control = Case { memory: HostMemory::Device, ..tight.clone() };
        self.rig.open(&[case.clone(), control, tight.clone()])?;
        for (walk, turnover) in walks {
            let measured = self.rig.measure(*walk, self.plan.steps)?;
            let [resident, control, steps] = &measured[..] else { unreachable!("three contenders") };
            if resident_too {
                self.push(workload, (0, case), Some(*turnover), resident, None)?;
            }
            self.push(workload, (2, &tight), Some(*turnover), steps, Some(Baselines { resident, control }))?;
        }
        Ok(())
    }

    fn push(
        &mut self,
        workload: &'static str,
        (contender, case): (usize, &Case),
        turnover: Option<f64>,
        steps: &Steps,
        baselines: Option<Baselines<'_>>,
    ) -> Result<()> {
        for other in baselines.into_iter().flat_map(|baselines| [baselines.resident, baselines.control]) {
            let differs = other.ids.iter().zip(&steps.ids).position(|(a, b)| a != b);
            ensure!(
                differs.is_none(),
                "{case:?}: step {differs:?} draws other tokens than with everything resident"
            );
        }
        let info = self.rig.gpu().info();
        let tier = match (case.pool, &case.policy) {
            (None, _) => "resident",
            (Some(_), Some(_)) => "host",
            (Some(_), None) => "streamed",
        };
        let streamed = self.rows.iter().find(|row| row.tier == "streamed" && row.workload == workload);
        let step_ms = Median::of(steps.bursts_ms.iter().copied());
        let tok_s = f64::from(case.streams) * 1e3 / step_ms.median;
        let transfer_ms = steps.cost.map(|cost| cost.ns_per_byte * steps.bytes / 1e6).filter(|ms| *ms > 0.0);
        // Pages are those of an average step here.
        let [misses, ahead] = [steps.pages[1], steps.pages[2]];
        let exposed = |cost: FetchCost| (misses + ahead * (1.0 - cost.hidden_ahead)) / (misses + ahead);
        let wait_ms = steps.cost.zip(transfer_ms).map(|(cost, ms)| ms * exposed(cost));
        let resident = baselines.map(|baselines| &baselines.resident.bursts_ms[..]);
        let control = baselines.map(|baselines| &baselines.control.bursts_ms[..]);
        let longer = |than: &[f64]| Median::of_differences(&steps.bursts_ms, than);
        let hidden = |than: &[f64]| {
            let transfer_ms = transfer_ms?;
            Some(longer(than).falling(|ms| (1.0 - ms / transfer_ms).clamp(0.0, 1.0)))
        };
        let row = Row {
            adapter: info.name.clone(),
            driver: info.driver_info.clone(),
            workload,
            tier,
            policy: case.policy.clone().unwrap_or_else(|| "full".into()),
            streams: case.streams,
            context: case.context,
            pool: self.rig.pool(contender),
            turnover,
            tok_s,
            step_ms,
            bytes: steps.bytes,
            pages: steps.pages,
            wait_ms,
            fetch_gb_s: steps.cost.map(|cost| 1.0 / cost.ns_per_byte),
            hidden_ahead: steps.cost.filter(|_| ahead > 0.0).map(|cost| cost.hidden_ahead),
            of_resident: baselines.map(|baselines| baselines.resident.step_ms() / step_ms.median),
            of_streamed: streamed.map(|streamed| tok_s / streamed.tok_s),
            decisions_ms: control.zip(resident).map(|(a, b)| Median::of_differences(a, b)),
            longer_ms: control.map(longer),
            hidden: control.and_then(hidden),
            hidden_with_decisions: resident.and_then(hidden),
            kernel_ms: steps.kernels.clone(),
        };
        self.print(&row)?;
        self.rows.push(row);
        Ok(())
    }

    #[expect(clippy::print_stdout, reason = "the command's result")]
    fn print(&self, row: &Row) -> Result<()> {
        if self.args.json {
            return Ok(report::json_line(&mut io::stdout().lock(), row)?);
        }
        let percent = |part: Option<f64>| part.map_or("-".to_owned(), |part| format!("{:.1}", 100.0 * part));
        let spread = |median: Option<Median>, times: f64, digits: usize| {
            let Some(Median { median, low, high }) = median else { return "-".to_owned() };
            let [low, median, high] = [low, median, high].map(|value| format!("{:.digits$}", times * value));
            format!("{median} [{low}, {high}]")
        };
        if self.rows.is_empty() {
            println!("[low, high] holds the median with 95 %; bursts of steps took turns");
            println!(
                "{:8} {:8} {:>7} {:>3} {:>6} {:>8} {:>9} {:>8} {:>9} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7} {:>22} {:>16} {:>16}  policy",
                "work",
                "tier",
                "context",
                "x",
                "pool %",
                "turn %",
                "tok/s",
                "ms",
                "MB/step",
                "misses",
                "ahead",
                "wait ms",
                "GB/s",
                "of res.",
                "dec. ms",
                "over control ms",
                "hidden %",
                "with decisions"
            );
        }
        println!(
            "{:8} {:8} {:7} {:3} {:>6} {:>8} {:9.1} {:8.3} {:9.3} {:8.1} {:8.1} {:>8} {:>7} {:>7} {:>7} {:>22} {:>16} {:>16}  {}{}",
            row.workload,
            row.tier,
            row.context,
            row.streams,
            percent(row.pool),
            percent(row.turnover.map(|turnover| turnover / 100.0)),
            row.tok_s,
            row.step_ms.median,
            row.bytes / 1e6,
            row.pages[1],
            row.pages[2],
            row.wait_ms.map_or("-".to_owned(), |wait| format!("{wait:.3}")),
            row.fetch_gb_s.map_or("-".to_owned(), |rate| format!("{rate:.1}")),
            percent(row.of_resident),
            row.decisions_ms.map_or("-".to_owned(), |ms| format!("{:.3}", ms.median)),
            spread(row.longer_ms, 1.0, 3),
            spread(row.hidden, 100.0, 0),
            spread(row.hidden_with_decisions, 100.0, 0),
            row.policy,
            row.of_streamed.map_or(String::new(), |times| format!(", {times:.1} x streamed")),
        );
        Ok(())
    }

    #[cfg(target_os = "linux")]
    #[expect(clippy::print_stdout, reason = "the command's result")]
    fn print_disk(&self, row: &disk::Row) -> Result<()> {
        if self.args.json {
            return Ok(report::json_line(&mut io::stdout().lock(), row)?);
        }
        let [tier, direct] = [row.tier_gb_s, row.direct_gb_s].map(|rate| rate.median);
        let Median { median, low, high } = row.of_direct;
        println!(
            "disk: {} blocks of {} bytes: tier {tier:.2} GB/s, direct sequential reads {direct:.2} GB/s ({median:.2} of it, 95 % [{low:.2}, {high:.2}])",
            row.blocks, row.block_bytes
        );
        Ok(())
    }
}
