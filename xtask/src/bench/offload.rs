//! Contexts larger than the device: random layers over a cache of random keys and values, most of which lie in memory of
//! the host. Steps with a resident budget and fetches ahead are compared with everything resident, and with dense attention
//! that streams the context.

mod charts;
// Direct I/O and dropping pages from the cache are Linux here.
#[cfg(target_os = "linux")]
mod disk;
mod plan;
mod random;
mod rig;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use attn_kernels::gpu::{Checks, Gpu, GpuOptions};
use models::{FetchCost, HostMemory};
use serde::Serialize;

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
    /// Where keys and values are: `resident`, `host`, or `streamed` for dense attention through the ring.
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
    /// One step, mean.
    step_ms: f64,
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
    decisions_ms: Option<f64>,
    /// Share of transfer time, bytes over the rate of a fetch alone, by which a step is not longer than that one.
    hidden: Option<f64>,
    /// The same against everything resident, so that the decisions count as transfer.
    hidden_with_decisions: Option<f64>,
    /// Device time of each kernel in milliseconds a step, each with nothing beside it; empty without timestamps.
    kernel_ms: BTreeMap<&'static str, f64>,
}

/// Runs the suite.
pub(super) fn run(args: &BenchArgs) -> Result<()> {
    let device = GpuOptions { device: args.engine.device.clone(), ..GpuOptions::new(Checks::Off) };
    let gpu = Arc::new(Gpu::open(&device)?);
    let plan = Plan::read(args.plan.as_deref(), gpu.is_cpu())?;
    ensure!(gpu.has_host_buffers(), "{} cannot read memory of the host in kernels", gpu.info().name);
    let mut bench = Bench { rows: Vec::new(), rig: Rig::new(&gpu, &plan)?, plan, args };
    bench.measure()?;
    let folder = args.out.clone().unwrap_or_else(std::env::temp_dir);
    #[cfg(target_os = "linux")]
    let disk = Some(disk::measure(&folder, &bench.plan)?);
    #[cfg(not(target_os = "linux"))]
    let disk: Option<()> = None;
    #[cfg(target_os = "linux")]
    disk.iter().try_for_each(|row| bench.print_disk(row))?;
    if let Some(folder) = &args.out {
        let json = serde_json::to_string_pretty(&serde_json::json!({ "rows": bench.rows, "disk": disk }))?;
        let charts = charts::draw(&bench.rows);
        let files = charts.into_iter().chain([("offload.json", json)]);
        for (name, text) in files {
            let path = folder.join(name);
            fs::write(&path, text).with_context(|| format!("{}: cannot be written", path.display()))?;
        }
    }
    Ok(())
}

/// What a row is compared with: the same steps with everything resident, and with the host tier in device memory.
#[derive(Clone, Copy)]
struct Beside<'a> {
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
        self.rig.open(&streamed)?;
        let steps = self.rig.steps(&streamed, 0, plan.streamed_steps)?;
        self.push("single", &streamed, None, &steps, None)?;
        for (index, policy) in plan.policies.iter().enumerate() {
            let policy = Some(plan.spec(policy, plan.context)?);
            let case = Case { policy, ..case.clone() };
            // The usual one comes last.
            let others = plan.turnovers.iter().copied().filter(|turnover| *turnover != plan.turnover);
            let turnovers: Vec<f64> = others.chain([plan.turnover]).collect();
            let pools = if index == 0 { plan.pools.clone() } else { Vec::new() };
            self.single(&case, &turnovers, &pools)?;
        }
        let spec = |context| plan.spec(&plan.policies[0], context).map(Some);
        let context = plan.context / plan.batch;
        let batch = Case { policy: spec(context)?, streams: plan.batch, context, ..case.clone() };
        if plan.batch > 1 {
            self.shape("batch", &batch)?;
        }
        if plan.short == 0 {
            return Ok(());
        }
        let short = Case { policy: spec(plan.short)?, streams: 1, context: plan.short, ..case };
        self.shape("short", &short)
    }

    /// One policy on the whole context: everything resident, then the pool of the plan over turnovers, then other pools.
    fn single(&mut self, case: &Case, turnovers: &[f64], pools: &[f64]) -> Result<()> {
        self.rig.open(case)?;
        let walks = self.rig.walks(case, turnovers)?;
        let resident = self.rows_of("single", case, &walks, None)?;
        self.tight("single", case, self.plan.pool, &walks, &resident)?;
        let usual = walks.len() - 1;
        let plan_pool = self.plan.pool;
        for pool in pools.iter().filter(|pool| **pool != plan_pool) {
            self.tight("single", case, *pool, &walks[usual..], &resident[usual..])?;
        }
        Ok(())
    }

    /// Another shape of work, resident and with the pool of the plan.
    fn shape(&mut self, workload: &'static str, case: &Case) -> Result<()> {
        self.rig.open(case)?;
        let walks = self.rig.walks(case, &[self.plan.turnover])?;
        let resident = self.rows_of(workload, case, &walks, None)?;
        self.tight(workload, case, self.plan.pool, &walks, &resident)
    }

    /// Walks with a pool that is too small, beside the same with a host tier in device memory.
    fn tight(
        &mut self,
        workload: &'static str,
        case: &Case,
        pool: f64,
        walks: &[(u32, f64)],
        resident: &[Steps],
    ) -> Result<()> {
        let tight = Case { pool: Some(pool), ..case.clone() };
        let control = Case { memory: HostMemory::Device, ..tight.clone() };
        self.rig.open(&control)?;
        let mut controls = Vec::new();
        for (walk, _) in walks {
            controls.push(self.rig.steps(&control, *walk, self.plan.steps)?);
        }
        self.rig.open(&tight)?;
        let beside: Vec<Beside<'_>> =
            resident.iter().zip(&controls).map(|(resident, control)| Beside { resident, control }).collect();
        self.rows_of(workload, &tight, walks, Some(&beside)).map(drop)
    }

    /// Measures and prints the walks of the open case.
    fn rows_of(
        &mut self,
        workload: &'static str,
        case: &Case,
        walks: &[(u32, f64)],
        beside: Option<&[Beside<'_>]>,
    ) -> Result<Vec<Steps>> {
        let mut measured = Vec::new();
        for (index, (walk, turnover)) in walks.iter().enumerate() {
            let steps = self.rig.steps(case, *walk, self.plan.steps)?;
            self.push(workload, case, Some(*turnover), &steps, beside.map(|beside| beside[index]))?;
            measured.push(steps);
        }
        Ok(measured)
    }

    fn push(
        &mut self,
        workload: &'static str,
        case: &Case,
        turnover: Option<f64>,
        steps: &Steps,
        beside: Option<Beside<'_>>,
    ) -> Result<()> {
        for other in beside.into_iter().flat_map(|beside| [beside.resident, beside.control]) {
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
        let tok_s = f64::from(case.streams) * 1e3 / steps.step_ms;
        let transfer_ms = steps.cost.map(|cost| cost.ns_a_byte * steps.bytes / 1e6).filter(|ms| *ms > 0.0);
        // Pages are those of an average step here.
        let [misses, ahead] = [steps.pages[1], steps.pages[2]];
        let exposed = |cost: FetchCost| (misses + ahead * (1.0 - cost.hidden_ahead)) / (misses + ahead);
        let wait_ms = steps.cost.zip(transfer_ms).map(|(cost, ms)| ms * exposed(cost));
        let hidden = |other: &Steps| {
            let transfer_ms = transfer_ms?;
            Some((1.0 - (steps.step_ms - other.step_ms).max(0.0) / transfer_ms).max(0.0))
        };
        let resident = beside.map(|beside| beside.resident);
        let control = beside.map(|beside| beside.control);
        let row = Row {
            adapter: info.name.clone(),
            driver: info.driver_info.clone(),
            workload,
            tier,
            policy: case.policy.clone().unwrap_or_else(|| "full".into()),
            streams: case.streams,
            context: case.context,
            pool: self.rig.pool(case),
            turnover,
            tok_s,
            step_ms: steps.step_ms,
            bytes: steps.bytes,
            pages: steps.pages,
            wait_ms,
            fetch_gb_s: steps.cost.map(|cost| 1.0 / cost.ns_a_byte),
            hidden_ahead: steps.cost.filter(|_| ahead > 0.0).map(|cost| cost.hidden_ahead),
            of_resident: resident.map(|resident| resident.step_ms / steps.step_ms),
            of_streamed: streamed.map(|streamed| tok_s / streamed.tok_s),
            decisions_ms: beside.map(|beside| beside.control.step_ms - beside.resident.step_ms),
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
        if self.rows.is_empty() {
            println!(
                "{:8} {:8} {:>7} {:>3} {:>6} {:>8} {:>9} {:>8} {:>9} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7}  policy",
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
                "hidden",
                "with d."
            );
        }
        println!(
            "{:8} {:8} {:7} {:3} {:>6} {:>8} {:9.1} {:8.3} {:9.3} {:8.1} {:8.1} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7}  {}{}",
            row.workload,
            row.tier,
            row.context,
            row.streams,
            percent(row.pool),
            percent(row.turnover.map(|turnover| turnover / 100.0)),
            row.tok_s,
            row.step_ms,
            row.bytes / 1e6,
            row.pages[1],
            row.pages[2],
            row.wait_ms.map_or("-".to_owned(), |wait| format!("{wait:.3}")),
            row.fetch_gb_s.map_or("-".to_owned(), |rate| format!("{rate:.1}")),
            percent(row.of_resident),
            row.decisions_ms.map_or("-".to_owned(), |ms| format!("{ms:.3}")),
            percent(row.hidden),
            percent(row.hidden_with_decisions),
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
        println!(
            "disk: {} blocks of {} bytes: tier {:.2} GB/s, direct sequential reads {:.2} GB/s ({:.2} of it)",
            row.blocks,
            row.block_bytes,
            row.tier_gb_s,
            row.direct_gb_s,
            row.tier_gb_s / row.direct_gb_s
        );
        Ok(())
    }
}
