//! The decoder under measurement: its cache filled with noise, its steps fed with tokens of a walk.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::paged_decode::PARTITION;
use kvblock::{BlockId, BlockIdx};
use models::batch::{Phase, Sample, Slice, StepOutput};
use models::{Decoder, DecoderOptions, FetchCost, HostMemory, Offload, SelectionPlace, SparseOptions};

use super::plan::{LOOKS, Plan};
use super::random::{Noise, Random};
use crate::bench::paired::Median;

/// Configuration that is measured.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Case {
    /// SPEC; dense attention without.
    pub(super) policy: Option<String>,
    pub(super) streams: u32,
    /// Tokens of each stream.
    pub(super) context: u32,
    /// The device pool as a share of all contexts; all of them without.
    pub(super) pool: Option<f64>,
    /// Memory that holds the blocks beyond the pool.
    pub(super) memory: HostMemory,
}

/// Measured steps of one decoder, which took turns with others.
#[derive(Debug, Clone)]
pub(super) struct Steps {
    /// Tokens that the steps drew.
    pub(super) ids: Vec<u32>,
    /// Milliseconds of a step in each burst; those of one index ran one after the other.
    pub(super) bursts_ms: Vec<f64>,
    /// Bytes from the host, a step.
    pub(super) bytes: f64,
    /// Hits, misses and pages fetched ahead, a step.
    pub(super) pages: [f64; 3],
    /// Cost of fetching selected pages from the host.
    pub(super) cost: Option<FetchCost>,
    /// Device time of each kernel in milliseconds a step, measured with nothing beside it.
    pub(super) kernels: BTreeMap<&'static str, f64>,
}

impl Steps {
    /// One step, median of the bursts.
    pub(super) fn step_ms(&self) -> f64 {
        Median::of(self.bursts_ms.iter().copied()).median
    }
}

/// Steps of one decoder before it is the next one's turn: enough for waits that not every step has, and few, so that what
/// slows the machine down slows all of them.
const BURST: u32 = 4;

/// The model, and decoders that work on cases side by side.
pub(super) struct Rig {
    gpu: Arc<Gpu>,
    plan: Plan,
    model: Random,
    contenders: Vec<Contender>,
}

/// A decoder whose cache is full.
struct Contender {
    case: Case,
    decoder: Decoder,
    /// Tables of the streams.
    tables: Vec<Vec<BlockId>>,
}

impl Rig {
    pub(super) fn new(gpu: &Arc<Gpu>, plan: &Plan) -> Self {
        Self { gpu: Arc::clone(gpu), plan: plan.clone(), model: Random::new(plan), contenders: Vec::new() }
    }

    /// The device pool of a contender as a share of all contexts.
    pub(super) fn pool(&self, contender: usize) -> Option<f64> {
        let Contender { case, decoder, .. } = &self.contenders[contender];
        let tokens = decoder.kv().device_blocks() * self.plan.block_size;
        case.pool.map(|_| f64::from(tokens) / f64::from(case.context * case.streams))
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Opens a decoder for each case and fills its cache; one that is open already stays. All share the weights.
    pub(super) fn open(&mut self, cases: &[Case]) -> Result<()> {
        let contenders = std::mem::take(&mut self.contenders);
        let (kept, mut free): (Vec<Contender>, _) =
            contenders.into_iter().partition(|contender| cases.contains(&contender.case));
        free.truncate(cases.len() - kept.len());
        let mut kept: VecDeque<Contender> = kept.into();
        for case in cases {
            if let Some(contender) = kept.pop_front_if(|contender| contender.case == *case) {
                self.contenders.push(contender);
                continue;
            }
            let options = self.options(case)?;
            let other = self.contenders.first().or(kept.front());
            let decoder = match (free.pop(), other) {
                (Some(contender), _) => contender.decoder.with_options(&options),
                (None, Some(contender)) => contender.decoder.beside(&options),
                (None, None) => Decoder::load(&self.gpu, &self.model.config, &self.model, &options),
            };
            let mut decoder = decoder.with_context(|| format!("{case:?}"))?;
            let tables = self.tables(case);
            fill(&mut decoder, &tables)?;
            self.contenders.push(Contender { case: case.clone(), decoder, tables });
        }
        Ok(())
    }

    /// Blocks of one stream.
    fn of_stream(&self, case: &Case) -> u32 {
        case.context.div_ceil(self.plan.block_size) + 1
    }

    fn tables(&self, case: &Case) -> Vec<Vec<BlockId>> {
        let of_stream = self.of_stream(case);
        let table =
            |stream| (0..of_stream).map(|block| BlockId::new(1 + stream * of_stream + block)).collect();
        (0..case.streams).map(table).collect()
    }

    fn options(&self, case: &Case) -> Result<DecoderOptions> {
        let blocks = self.of_stream(case) * case.streams + 1;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a u32")]
        let of_pool =
            |pool: f64| (f64::from(case.context * case.streams / self.plan.block_size) * pool) as u32;
        // Two slots of a ring, and a partition of selected pages for each stream.
        let least = (2 + case.streams) * PARTITION / self.plan.block_size;
        let sparse = case.policy.as_ref().map(|spec| -> Result<_> {
            Ok(SparseOptions::new(sparse_select::build(spec)?.into(), SelectionPlace::Device))
        });
        let device_blocks = case.pool.map_or(blocks, |pool| of_pool(pool).max(least));
        let offload = case.pool.map(|_| Offload::new(blocks, 2, case.memory));
        Ok(DecoderOptions::new(device_blocks, case.streams.max(16))
            .block_size(self.plan.block_size)
            .recycle(false)
            .max_seqs(case.streams)
            .sparse(sparse.transpose()?)
            .offload(offload))
    }

    /// The walks whose turnovers under the policy of the first contender come closest to those that are wanted, with what they
    /// have.
    pub(super) fn walks(&mut self, wanted: &[f64]) -> Result<Vec<(u32, f64)>> {
        let walks: Vec<(u32, f64)> =
            self.model.walks().map(|walk| Ok((walk, self.turnover(walk)?))).collect::<Result<_>>()?;
        let closest = |wanted: &f64| {
            let far = |walk: &(u32, f64)| (walk.1 - wanted).abs();
            walks.iter().copied().min_by(|a, b| far(a).total_cmp(&far(b))).expect("there are walks")
        };
        Ok(wanted.iter().map(closest).collect())
    }

    /// Percent of what a step selects that the step before did not, mean over layers and KV heads.
    fn turnover(&mut self, walk: u32) -> Result<f64> {
        let Self { plan, model, contenders, .. } = self;
        let contender = &mut contenders[0];
        contender.decoder.trace_selections(true);
        let (mut fresh, mut all) = (0, 0);
        let mut before: Vec<BTreeSet<BlockIdx>> = Vec::new();
        for step in 0..LOOKS {
            let output = contender.step(plan, model.token(walk, step), step)?;
            let lists = |attended: &models::Attended| -> Vec<BTreeSet<BlockIdx>> {
                let of_layer = attended.selections.iter().flat_map(|(_, selection)| {
                    (0..selection.groups())
                        .map(|head| selection.row_shared(head, 0).iter().copied().collect())
                });
                of_layer.collect()
            };
            let now: Vec<BTreeSet<BlockIdx>> = output.attended.iter().flatten().flat_map(lists).collect();
            for (now, before) in now.iter().zip(&before) {
                fresh += now.difference(before).count();
                all += now.len();
            }
            before = now;
        }
        contender.decoder.trace_selections(false);
        #[expect(clippy::cast_precision_loss, reason = "counts of blocks")]
        Ok(100.0 * fresh as f64 / all.max(1) as f64)
    }

    /// Runs `count` steps of a walk on every contender behind those that warm up, in bursts by turns: so what slows the machine
    /// down for longer than a burst is in all of them alike.
    pub(super) fn measure(&mut self, walk: u32, count: u32) -> Result<Vec<Steps>> {
        let Self { gpu, plan, model, contenders } = self;
        gpu.time_dispatches(false);
        for contender in &mut *contenders {
            for step in 0..plan.warm_up {
                contender.step(plan, model.token(walk, step), step)?;
            }
        }
        let before: Vec<[f64; 4]> = contenders.iter().map(Contender::traffic).collect::<Result<_>>()?;
        let mut measured: Vec<(Vec<u32>, Vec<f64>)> = vec![(Vec::new(), Vec::new()); contenders.len()];
        let end = plan.warm_up + count;
        for (turn, first) in (plan.warm_up..end).step_by(BURST as usize).enumerate() {
            let past = end.min(first + BURST);
            for place in 0..contenders.len() {
                // Nobody always follows the same one.
                let at = (turn + place) % contenders.len();
                let (ids, bursts_ms) = &mut measured[at];
                let start = Instant::now();
                for step in first..past {
                    ids.extend(contenders[at].step(plan, model.token(walk, step), step)?.sampled);
                }
                bursts_ms.push(start.elapsed().as_secs_f64() * 1e3 / f64::from(past - first));
            }
        }
        let mut all = Vec::new();
        for ((contender, before), (ids, bursts_ms)) in contenders.iter_mut().zip(before).zip(measured) {
            let after = contender.traffic()?;
            let part = |of: usize| (after[of] - before[of]) / f64::from(count);
            let kernels = contender.kernels(gpu, plan, |step| model.token(walk, step))?;
            let fetches = contender.case.pool.is_some() && contender.case.policy.is_some();
            let cost = if fetches { contender.decoder.fetch_cost()? } else { None };
            let pages = [part(0), part(1), part(2)];
            all.push(Steps { ids, bursts_ms, bytes: part(3), pages, cost, kernels });
        }
        Ok(all)
    }
}

impl Contender {
    /// Milliseconds a step of each kernel, over the first steps of a walk behind those that warm up; empty where the adapter
    /// has no timestamps.
    fn kernels(
        &mut self,
        gpu: &Gpu,
        plan: &Plan,
        token: impl Fn(u32) -> u32,
    ) -> Result<BTreeMap<&'static str, f64>> {
        for step in 0..plan.warm_up {
            self.step(plan, token(step), step)?;
        }
        let mut kernels = BTreeMap::new();
        if gpu.time_dispatches(true) {
            for step in plan.warm_up..2 * plan.warm_up {
                for timing in self.step(plan, token(step), step)?.timings {
                    *kernels.entry(timing.kernel).or_default() += timing.ns / 1e6 / f64::from(plan.warm_up);
                }
            }
        }
        gpu.time_dispatches(false);
        Ok(kernels)
    }

    /// Hits, misses, pages fetched ahead, and all bytes from the host so far.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn traffic(&self) -> Result<[f64; 4]> {
        let pages = self.decoder.page_traffic()?.unwrap_or_default();
        let bytes = pages.bytes() + self.decoder.host_traffic().fetched_bytes;
        Ok([pages.hits, pages.misses, pages.prefetched, bytes].map(|count| count as f64))
    }

    /// One token of every stream, the first one behind the context less the steps to come.
    fn step(&mut self, plan: &Plan, token: u32, step: u32) -> Result<StepOutput> {
        let (first, token) = (self.case.context - plan.walk() + step, [token]);
        let tables: Vec<[&[BlockId]; 1]> = self.tables.iter().map(|table| [&table[..]]).collect();
        let slice = |tables| Slice::new(&token, first, tables, Phase::Decode);
        let slices: Vec<Slice<'_>> = tables.iter().map(|tables| slice(&tables[..])).collect();
        let samples: Vec<Sample<'_>> = (0..slices.len()).map(Sample::greedy).collect();
        Ok(self.decoder.step(&slices, &samples)?)
    }
}

/// Fills the blocks of tables with noise, the same for every decoder.
fn fill(decoder: &mut Decoder, tables: &[Vec<BlockId>]) -> Result<()> {
    let mut noise = Noise::new();
    let block_words = usize::try_from(decoder.kv().plan().block_bytes() / 4)?;
    let page = decoder.kv().shape().block_bytes() / 4 / decoder.kv().shape().num_kv_heads as usize;
    let mut contents = vec![0; block_words];
    for (index, block) in tables.iter().flatten().enumerate() {
        noise.fill(&mut contents, page);
        decoder.write_block(*block, &contents)?;
        // Staged bytes are given back once they are copied.
        if index % 128 == 127 {
            decoder.read_blocks(&[*block])?;
        }
    }
    Ok(())
}
