//! Plans of `bench e2e`: models, how they run, and batches of equal requests.

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use models::RandomSpec;
use pagoda_cli::bench::measure::Batch;
use serde::Deserialize;
use sparse_select::Registry;

use crate::cli::{BenchArgs, EngineArgs, SparseArg, memory};

/// Plans that `--plan` knows by name.
const NAMED: [(&str, &str); 14] = [
    ("beyond-gpu", include_str!("../../../e2e/beyond-gpu.ron")),
    ("cpu", include_str!("../../../e2e/cpu.ron")),
    ("gpu", include_str!("../../../e2e/gpu.ron")),
    ("host-weights", include_str!("../../../e2e/host-weights.ron")),
    ("million", include_str!("../../../e2e/million.ron")),
    ("order", include_str!("../../../e2e/order.ron")),
    ("order-cpu", include_str!("../../../e2e/order-cpu.ron")),
    ("pools", include_str!("../../../e2e/pools.ron")),
    ("pools-cpu", include_str!("../../../e2e/pools-cpu.ron")),
    ("real-sizes", include_str!("../../../e2e/real-sizes.ron")),
    ("several-devices", include_str!("../../../e2e/several-devices.ron")),
    ("shapes", include_str!("../../../e2e/shapes.ron")),
    ("sparse", include_str!("../../../e2e/sparse.ron")),
    ("sparse-no-coop", include_str!("../../../e2e/sparse-no-coop.ron")),
];

/// A plan file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EnginePlan {
    /// Configurations that each engine runs, one after another.
    pub(super) configurations: Vec<Configuration>,
    /// Share of the speed of rows with fewer streams, shorter prompts or larger models that each row must reach. The run
    /// fails if a row does not.
    #[serde(default)]
    in_order: Option<f64>,
}

/// A model, its mode, and its load.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Configuration {
    /// Random weights, unless the command line names a model.
    #[serde(default)]
    random: Option<String>,
    #[serde(default)]
    no_coop: bool,
    #[serde(default)]
    no_async_scheduling: bool,
    #[serde(default)]
    reproducible: bool,
    /// Sparse-attention policy, unless the command line names one.
    #[serde(default)]
    sparse: Option<String>,
    /// Share of the KV of a row's requests that the device has room for; the rest is in host memory.
    #[serde(default)]
    pool: Option<f64>,
    /// Whether to keep the host tier in device memory, to measure decisions and copies without the bus.
    #[serde(default)]
    control: bool,
    /// Bytes that weights may take on the device, as `--weights-on-gpu` has them, unless the command line says so.
    #[serde(default)]
    weights_on_gpu: Option<String>,
    pub(super) rows: Vec<Batch>,
}

/// Rows of one configuration.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) engine: EngineArgs,
    /// Share of a row's KV that the device has room for. If it is set, each row has its own engine.
    pub(super) pool: Option<f64>,
    pub(super) rows: Vec<Batch>,
}

impl Run {
    /// Name of the run, without the pool.
    pub(super) fn label(&self) -> String {
        self.engine.label()
    }

    /// Names the configuration that the run is compared with: the same on a device that holds everything. `None` for that
    /// configuration itself.
    pub(super) fn resident(&self) -> Option<String> {
        let resident = EngineArgs { weights_on_gpu: None, host_tier_on_device: false, ..self.engine.clone() };
        (self.pool.is_some() || self.engine.weights_on_gpu.is_some()).then(|| resident.label())
    }

    /// Names the same configuration with the host tier in device memory. `None` for that configuration itself, or without a
    /// pool.
    pub(super) fn control(&self) -> Option<String> {
        let control = EngineArgs { host_tier_on_device: true, ..self.engine.clone() };
        let is_host = self.pool.is_some() && !self.engine.host_tier_on_device;
        is_host.then(|| with_pool(&control.label(), self.pool))
    }

    /// Name of the same run without a policy, with which the run is also compared; `None` if there is none.
    pub(super) fn dense(&self) -> Option<String> {
        let dense = EngineArgs { sparse: None, ..self.engine.clone() };
        self.engine.sparse.as_ref().map(|_| with_pool(&dense.label(), self.pool))
    }
}

impl EnginePlan {
    /// The runs of the plan that `--plan` names or points to, or else of the default plan of the device, with the model,
    /// the flags and the rows of the command line, and policies of `registry`.
    ///
    /// # Errors
    /// If the file cannot be read or is not a plan, or no row is left.
    pub(super) fn read(args: &BenchArgs, registry: &Registry, software: bool) -> Result<Vec<Run>> {
        let (runs, labels) = Self::wanted(args, registry, software)?;
        ensure!(!runs.is_empty(), "--filter leaves no row of {}", labels.join(", "));
        Ok(runs)
    }

    /// The share of speed that the plan's rows must reach; `None` if the plan does not check the order of speeds.
    ///
    /// # Errors
    /// If the file cannot be read or is not a plan.
    pub(super) fn in_order(args: &BenchArgs) -> Result<Option<f64>> {
        Ok(args.plan.as_deref().map(Self::open).transpose()?.and_then(|plan| plan.in_order))
    }

    /// The runs that [`read`](Self::read) returns, which may be none, and the labels of all configurations.
    ///
    /// # Errors
    /// If the file cannot be read or is not a plan.
    pub(super) fn wanted(
        args: &BenchArgs,
        registry: &Registry,
        software: bool,
    ) -> Result<(Vec<Run>, Vec<String>)> {
        let default = Path::new(if software { "cpu" } else { "gpu" });
        let name = args.plan.as_deref().unwrap_or(default);
        let plan = Self::open(name)?;
        let idle = plan.configurations.iter().position(|configuration| configuration.rows.is_empty());
        ensure!(!plan.configurations.is_empty(), "plan {}: configurations is empty", name.display());
        ensure!(idle.is_none(), "plan {}: configuration {} has no rows", name.display(), idle.unwrap_or(0));
        let mut runs: Vec<Run> = Vec::new();
        let mut labels: Vec<String> = Vec::new();
        for configuration in &plan.configurations {
            let engine = configuration.engine(&args.engine, registry);
            let engine = engine.with_context(|| format!("plan {}", name.display()))?;
            let pool = configuration.pool;
            ensure!(
                pool.is_none_or(|share| share > 0.0 && share <= 1.0),
                "plan {}: a pool of {} of the KV, which is at most 1",
                name.display(),
                pool.unwrap_or_default()
            );
            let label = with_pool(&engine.label(), pool);
            let rows = configuration.rows.iter().copied();
            let rows = rows.filter(|row| is_wanted(args.filter.as_deref(), &format!("{label} {row}")));
            // Configurations that differ in their models alone are one where the command line names the model.
            let at = labels.iter().position(|other| *other == label).unwrap_or_else(|| {
                labels.push(label.clone());
                runs.push(Run { engine, pool, rows: Vec::new() });
                runs.len() - 1
            });
            for row in rows {
                if !runs[at].rows.contains(&row) {
                    runs[at].rows.push(row);
                }
            }
        }
        runs.retain(|run| !run.rows.is_empty());
        Ok((runs, labels))
    }

    fn open(plan: &Path) -> Result<Self> {
        let shown = plan.display();
        let parse = |text: &str| {
            let implicit = ron::extensions::Extensions::IMPLICIT_SOME;
            let options = ron::Options::default().with_default_extension(implicit);
            options.from_str(text).with_context(|| format!("plan {shown}"))
        };
        if let Some((_, text)) = NAMED.iter().find(|(name, _)| plan == Path::new(name)) {
            return parse(text);
        }
        let names = NAMED.map(|(name, _)| name).join(" ");
        let text = std::fs::read_to_string(plan)
            .with_context(|| format!("plan {shown}: neither a name ({names}) nor a file that can be read"))?;
        parse(&text)
    }
}

impl Configuration {
    fn engine(&self, args: &EngineArgs, registry: &Registry) -> Result<EngineArgs> {
        let mut engine = args.clone();
        if engine.random.is_none() && engine.model.is_none() {
            engine.random = self.random.as_deref().map(RandomSpec::parse).transpose()?;
        }
        if engine.sparse.is_none() {
            engine.sparse = self.sparse.as_deref().map(|text| SparseArg::read(registry, text)).transpose()?;
        }
        if engine.weights_on_gpu.is_none() {
            let bytes = self.weights_on_gpu.as_deref().map(memory).transpose();
            engine.weights_on_gpu = bytes.map_err(|rule| anyhow!("weights_on_gpu: {rule}"))?;
        }
        engine.no_coop |= self.no_coop;
        engine.no_async_scheduling |= self.no_async_scheduling;
        engine.host_tier_on_device |= self.control;
        engine.reproducible |= self.reproducible;
        Ok(engine)
    }
}

/// The label of a configuration whose device has room for a share of the KV.
pub(super) fn with_pool(label: &str, pool: Option<f64>) -> String {
    pool.map_or_else(|| label.to_owned(), |share| format!("{label} pool {} %", share * 100.0))
}

/// Whether every word of `filter` is in the label of a row or trace, ignoring case.
pub(super) fn is_wanted(filter: Option<&str>, label: &str) -> bool {
    let label = label.to_lowercase();
    filter.is_none_or(|filter| filter.to_lowercase().split_whitespace().all(|word| label.contains(word)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    /// Labels of the rows of `bench e2e ARGS`.
    fn rows(args: &str, software: bool) -> Result<Vec<String>> {
        let line = ["xtask", "bench", "e2e"].into_iter().chain(args.split_whitespace());
        let Command::Bench(mut args) = Cli::try_parse_with(&Registry::builtin(), line)?.command else {
            panic!("not bench")
        };
        // Words of a filter are joined by & here, as white space separates arguments.
        args.filter = args.filter.map(|filter| filter.replace('&', " "));
        let runs = EnginePlan::read(&args, &Registry::builtin(), software)?.into_iter();
        let row = |run: &Run, row: Batch| format!("{} {row}", with_pool(&run.label(), run.pool));
        Ok(runs.flat_map(|run| run.rows.clone().into_iter().map(move |batch| row(&run, batch))).collect())
    }

    #[test]
    fn the_plan_follows_from_the_device() {
        insta::assert_snapshot!(rows("--random tiny-llama:q4_k", true).unwrap().join("\n"), @"
        tiny-llama:q4_k 1x512+32
        tiny-llama:q4_k 1x128+16
        tiny-llama:q4_k 8x128+16
        ");
        insta::assert_snapshot!(rows("--random tiny-llama --no-coop", false).unwrap().join("\n"), @"
        tiny-llama:f32 no-coop 1x512+128
        tiny-llama:f32 no-coop 1x7680+128
        tiny-llama:f32 no-coop 8x512+128
        tiny-llama:f32 no-coop 32x512+128
        tiny-llama:f32 no-coop 64x512+128
        ");
    }

    #[test]
    fn real_sizes_are_rows_of_models() {
        let all = rows("--plan real-sizes", false).unwrap();
        assert_eq!(all, rows("--plan real-sizes", true).unwrap());
        let count = |word: &str| all.iter().filter(|row| row.contains(word)).count();
        assert_eq!(["1x", "no-coop", "reproducible", ":f16", "+"].map(count), [16, 4, 4, 5, 34]);
    }

    #[test]
    fn every_named_plan_has_rows() {
        for (name, _) in NAMED {
            assert!(!rows(&format!("--plan {name}"), false).unwrap().is_empty(), "{name}");
        }
    }

    #[test]
    fn controls_stand_before_what_is_compared_with_them() {
        insta::assert_snapshot!(rows("--plan pools-cpu --filter alike=90&quest", true).unwrap().join("\n"), @"
        smollm2-135m:q4_k,layers=2,alike=90 quest:page_budget=12,dense_layers=0 1x2000+32
        smollm2-135m:q4_k,layers=2,alike=90 control quest:page_budget=12,dense_layers=0 pool 50 % 1x2000+32
        smollm2-135m:q4_k,layers=2,alike=90 quest:page_budget=12,dense_layers=0 pool 50 % 1x2000+32
        ");
    }

    #[test]
    fn small_pools_are_beside_those_that_hold_everything() {
        insta::assert_snapshot!(rows("--plan beyond-gpu --filter 1x32700", false).unwrap().join("\n"), @"
        llama-3-8b:q4_k 1x32700+32
        llama-3-8b:q4_k pool 12.5 % 1x32700+32
        llama-3-8b:q4_k,alike=20 gsa-ucm:sparse_ratio=0.1,min_topk=1 1x32700+64
        llama-3-8b:q4_k,alike=20 gsa-ucm:sparse_ratio=0.1,min_topk=1 pool 12.5 % 1x32700+64
        llama-3-8b:q4_k,alike=20 quest:page_budget=204,dense_layers=0 1x32700+64
        llama-3-8b:q4_k,alike=20 quest:page_budget=204,dense_layers=0 pool 12.5 % 1x32700+64
        ");
    }

    #[test]
    fn weights_on_the_host_are_beside_those_on_the_device() {
        insta::assert_snapshot!(rows("--plan host-weights --filter 1x8192", false).unwrap().join("\n"), @"
        llama-3-8b:q8_0 1x8192+32
        llama-3-8b:q8_0 weights on gpu 4.3 GiB 1x8192+32
        llama-3-8b:q4_k 1x8192+32
        llama-3-8b:q4_k weights on gpu 2.4 GiB 1x8192+32
        ");
        // The command line has the last word.
        let given = rows("--plan host-weights --weights-on-gpu 6GiB --filter 1x8192", false).unwrap();
        insta::assert_snapshot!(given.join("\n"), @"
        llama-3-8b:q8_0 weights on gpu 6.0 GiB 1x8192+32
        llama-3-8b:q4_k weights on gpu 6.0 GiB 1x8192+32
        ");
    }

    #[test]
    fn filters_and_models_choose_among_rows() {
        insta::assert_snapshot!(rows("--plan real-sizes --filter Q4_K&8x512", false).unwrap().join("\n"), @"
        llama-3-8b:q4_k 8x512+128
        llama-3-8b:q4_k no-coop 8x512+128
        llama-3-8b:q4_k reproducible 8x512+128
        qwen3-30b-a3b:q4_k 8x512+128
        ");
        // Rows of other models are rows of the one that is named.
        insta::assert_snapshot!(rows("--plan real-sizes --random qwen3-8b --filter 64x", false).unwrap().join("\n"), @"
        qwen3-8b:bf16 64x512+128
        qwen3-8b:bf16 no-coop 64x512+128
        qwen3-8b:bf16 reproducible 64x512+128
        ");
        let refused = rows("--plan cpu --random tiny-llama --filter 7x", false).unwrap_err();
        insta::assert_snapshot!(refused, @"--filter leaves no row of tiny-llama:f32");
    }

    #[test]
    fn policies_are_those_of_the_registry() {
        let plan = tempfile::NamedTempFile::with_suffix(".ron").unwrap();
        let text = "(configurations: [(random: \"tiny-llama\", sparse: \"mine\", rows: [\"1x16+4\"])])";
        std::fs::write(plan.path(), text).unwrap();
        let line = ["xtask", "bench", "e2e", "--plan", plan.path().to_str().unwrap()];
        let Command::Bench(args) = Cli::try_parse_from(line).unwrap().command else { panic!("not bench") };
        let mut registry = Registry::builtin();
        assert!(EnginePlan::read(&args, &registry, false).is_err());
        let build = |_: &sparse_select::Params<'_>| sparse_select::build("streaming");
        let mine = sparse_select::Entry::new("mine", &[], build);
        registry.register(mine).unwrap();
        assert!(EnginePlan::read(&args, &registry, false).unwrap()[0].engine.sparse.is_some());
    }

    #[test]
    fn wrong_plans_are_refused_by_field() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.ron");
        let refused = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let refused = rows(&format!("--plan {}", path.display()), false).unwrap_err();
            format!("{refused:#}").replace(path.to_str().unwrap(), "plan.ron")
        };
        let told = [
            refused("(configurations: [(rows: [\"8x512\"])])"),
            refused("(configurations: [(rows: [\"0x512+1\"])])"),
            refused("(configurations: [(rows: [\"1x4294967295+1\"])])"),
            refused("(configurations: [])"),
            refused("(configurations: [(rows: [\"1x1+1\"]), (rows: [])])"),
            refused("(configurations: [(rows: [], coop: true)])"),
            refused("(configurations: [(rows: [\"1x1+1\"], pool: 1.5)])"),
            refused("(configurations: [(rows: [\"1x1+1\"], weights_on_gpu: \"half\")])"),
            refused("(configurations: [(rows: [\"1x1+1\"], sparse: \"quset\")])"),
            refused("(configurations: [(random: \"llama-9\", rows: [\"1x1+1\"])])"),
            format!("{:#}", rows("--plan huge", false).unwrap_err()),
        ];
        insta::assert_snapshot!(told.join("\n"), @r#"
        plan plan.ron: 1:28-1:34: "8x512" is not STREAMSxPROMPT+OUTPUT in numbers from 1 on, of which PROMPT and OUTPUT are together at most 4294967295
        plan plan.ron: 1:28-1:36: "0x512+1" is not STREAMSxPROMPT+OUTPUT in numbers from 1 on, of which PROMPT and OUTPUT are together at most 4294967295
        plan plan.ron: 1:28-1:43: "1x4294967295+1" is not STREAMSxPROMPT+OUTPUT in numbers from 1 on, of which PROMPT and OUTPUT are together at most 4294967295
        plan plan.ron: configurations is empty
        plan plan.ron: configuration 1 has no rows
        plan plan.ron: 1:30-1:34: Unexpected field named `coop` in `Configuration`, expected one of `random`, `no_coop`, `no_async_scheduling`, `reproducible`, `sparse`, `pool`, `control`, `weights_on_gpu`, or `rows` instead
        plan plan.ron: a pool of 1.5 of the KV, which is at most 1
        plan plan.ron: weights_on_gpu: give whole bytes from 1 to 2^64 - 1, or whole KiB, MiB or GiB (KB, MB, GB), such as 512MiB
        plan plan.ron: unknown policy "quset", valid names: full streaming vertical-slash gsa gsa-ucm esa kvstar kvcomp xattn xattn-bsa flashprefill skip-softmax quest dsa nsa
        plan plan.ron: unknown shape "llama-9"; shapes are deepseek-v3-small gpt-oss-20b llama-3-70b llama-3-8b llama-3.2-1b mistral-7b phi-3.5-mini qwen2.5-14b qwen2.5-3b qwen3-30b-a3b qwen3-8b smollm2-135m tiny-llama tiny-moe, and RON files by path
        plan huge: neither a name (beyond-gpu cpu gpu host-weights million order order-cpu pools pools-cpu real-sizes several-devices shapes sparse sparse-no-coop) nor a file that can be read: No such file or directory (os error 2)
        "#);
    }
}
