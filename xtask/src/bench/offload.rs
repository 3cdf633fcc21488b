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

use std::fs;
use std::io;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use attn_kernels::gpu::{Checks, Gpu, GpuOptions};
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
    /// Device time a step in which nothing but a fetch ran, from a run with timestamps; null without.
    wait_ms: Option<f64>,
    /// Host to device with nothing beside it.
    fetch_gb_s: Option<f64>,
    /// Speed over that of the same with everything resident.
    of_resident: Option<f64>,
    /// Speed over that of dense streaming.
    of_streamed: Option<f64>,
    /// Share of transfer time by which steps are not longer than with everything resident.
    hidden: Option<f64>,
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
        let case = Case { policy: None, streams: 1, context: plan.context, pool: None };
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
        let batch = Case { policy: spec(context)?, streams: plan.batch, context, pool: None };
        self.shape("batch", &batch)?;
        let short = Case { policy: spec(plan.short)?, streams: 1, context: plan.short, pool: None };
        self.shape("short", &short)
    }

    /// One policy on the whole context: everything resident, then the pool of the plan over turnovers, then other pools.
    fn single(&mut self, case: &Case, turnovers: &[f64], pools: &[f64]) -> Result<()> {
        let steps = self.plan.steps;
        self.rig.open(case)?;
        let walks = self.rig.walks(case, turnovers)?;
        let mut resident = Vec::new();
        for (walk, turnover) in &walks {
            let steps = self.rig.steps(case, *walk, steps)?;
            self.push("single", case, Some(*turnover), &steps, None)?;
            resident.push(steps);
        }
        let tight = Case { pool: Some(self.plan.pool), ..case.clone() };
        self.rig.open(&tight)?;
        for ((walk, turnover), resident) in walks.iter().zip(&resident) {
            let steps = self.rig.steps(&tight, *walk, steps)?;
            self.push("single", &tight, Some(*turnover), &steps, Some(resident))?;
        }
        let usual = walks.len() - 1;
        let plan_pool = self.plan.pool;
        for pool in pools.iter().filter(|pool| **pool != plan_pool) {
            let other = Case { pool: Some(*pool), ..case.clone() };
            self.rig.open(&other)?;
            let steps = self.rig.steps(&other, walks[usual].0, steps)?;
            self.push("single", &other, Some(walks[usual].1), &steps, Some(&resident[usual]))?;
        }
        Ok(())
    }

    /// Another shape of work, resident and with the pool of the plan.
    fn shape(&mut self, workload: &'static str, case: &Case) -> Result<()> {
        self.rig.open(case)?;
        let (walk, turnover) = self.rig.walks(case, &[self.plan.turnover])?[0];
        let resident = self.rig.steps(case, walk, self.plan.steps)?;
        self.push(workload, case, Some(turnover), &resident, None)?;
        let tight = Case { pool: Some(self.plan.pool), ..case.clone() };
        self.rig.open(&tight)?;
        let steps = self.rig.steps(&tight, walk, self.plan.steps)?;
        self.push(workload, &tight, Some(turnover), &steps, Some(&resident))
    }

    fn push(
        &mut self,
        workload: &'static str,
        case: &Case,
        turnover: Option<f64>,
        steps: &Steps,
        resident: Option<&Steps>,
    ) -> Result<()> {
        if let Some(resident) = resident {
            let differs = resident.ids.iter().zip(&steps.ids).position(|(a, b)| a != b);
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
        let transfer_ms = steps.ns_a_byte.map(|ns| ns * steps.bytes / 1e6).filter(|ms| *ms > 0.0);
        let longer = resident.map(|resident| (steps.step_ms - resident.step_ms).max(0.0));
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
            wait_ms: steps.wait_ms,
            fetch_gb_s: steps.ns_a_byte.map(|ns| 1.0 / ns),
            of_resident: resident.map(|resident| resident.step_ms / steps.step_ms),
            of_streamed: streamed.map(|streamed| tok_s / streamed.tok_s),
            hidden: longer.zip(transfer_ms).map(|(longer, transfer)| (1.0 - longer / transfer).max(0.0)),
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
                "{:8} {:8} {:>7} {:>3} {:>6} {:>8} {:>9} {:>8} {:>9} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7}  policy",
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
                "hidden"
            );
        }
        println!(
            "{:8} {:8} {:7} {:3} {:>6} {:>8} {:9.1} {:8.3} {:9.3} {:8.1} {:8.1} {:>8} {:>7} {:>7} {:>7}  {}{}",
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
            percent(row.hidden),
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
