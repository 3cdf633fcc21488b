//! The decoder under measurement: its cache filled with noise, its steps fed with tokens of a walk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::KvDtype;
use attn_kernels::kernel::paged_decode::TILE;
use bytemuck::Zeroable;
use kvblock::{BlockId, BlockIdx};
use models::batch::{Phase, Sample, Slice, StepOutput};
use models::kernel::sample::Spec;
use models::{Decoder, DecoderOptions, FetchCost, HostMemory, Offload, Place, SparseOptions};

use super::plan::Plan;
use super::random::{Noise, Random};

/// What is measured.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Case {
    /// SPEC; dense attention without.
    pub(super) policy: Option<String>,
    pub(super) streams: u32,
    /// Tokens of each stream.
    pub(super) context: u32,
    /// The device pool as a share of all contexts; all of them without.
    pub(super) pool: Option<f64>,
    /// What blocks beyond the pool lie in.
    pub(super) memory: HostMemory,
}

/// Measured steps.
#[derive(Debug, Clone)]
pub(super) struct Steps {
    /// What each step drew.
    pub(super) ids: Vec<u32>,
    pub(super) step_ms: f64,
    /// Bytes from the host, a step.
    pub(super) bytes: f64,
    /// Hits, misses and pages fetched ahead, a step.
    pub(super) pages: [f64; 3],
    /// Of selected pages from the host.
    pub(super) cost: Option<FetchCost>,
    /// Device time of each kernel in milliseconds a step, measured with nothing beside it.
    pub(super) kernels: BTreeMap<&'static str, f64>,
}

/// Steps of a walk that show its turnover.
const LOOKS: u32 = 4;

/// The model, and the decoder of the case at hand.
pub(super) struct Rig {
    gpu: Arc<Gpu>,
    plan: Plan,
    model: Random,
    decoder: Option<Decoder>,
    /// Tables of the streams.
    tables: Vec<Vec<BlockId>>,
}

impl Rig {
    pub(super) fn new(gpu: &Arc<Gpu>, plan: &Plan) -> Result<Self> {
        let model = Random::new(plan);
        Ok(Self { gpu: Arc::clone(gpu), plan: plan.clone(), model, decoder: None, tables: Vec::new() })
    }

    /// The device pool of the open decoder as a share of all contexts.
    pub(super) fn pool(&self, case: &Case) -> Option<f64> {
        let device = self.decoder.as_ref().filter(|_| case.pool.is_some())?.kv().device_blocks();
        Some(f64::from(device * self.plan.block_size) / f64::from(case.context * case.streams))
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Builds the decoder of a case and fills its cache. Weights stay where they are.
    pub(super) fn open(&mut self, case: &Case) -> Result<()> {
        let of_stream = case.context.div_ceil(self.plan.block_size) + 1;
        let blocks = of_stream * case.streams + 1;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a u32")]
        let of_pool =
            |pool: f64| (f64::from(case.context * case.streams / self.plan.block_size) * pool) as u32;
        // Two slots of a ring, and a partition of selected pages for each stream.
        let least = (2 + case.streams) * TILE / self.plan.block_size;
        let sparse = case.policy.as_ref().map(|spec| -> Result<_> {
            Ok(SparseOptions {
                policy: sparse_select::build(spec)?.into(),
                place: Place::Device,
                trace: false,
                measure: false,
            })
        });
        let options = DecoderOptions {
            kv_dtype: KvDtype::F16,
            block_size: self.plan.block_size,
            recycle: false,
            num_blocks: case.pool.map_or(blocks, |pool| of_pool(pool).max(least)),
            max_rows: case.streams.max(16),
            max_seqs: case.streams,
            reproducible: false,
            prefix_capacity: scheduler::PREFIX_CHUNK_CAPACITY,
            sparse: sparse.transpose()?,
            offload: case.pool.map(|_| Offload { host_blocks: blocks, ring_slots: 2, memory: case.memory }),
        };
        let decoder = match self.decoder.take() {
            Some(decoder) => decoder.with_options(&options),
            None => Decoder::load(&self.gpu, &self.model.config, &self.model, &options),
        };
        let mut decoder = decoder.with_context(|| format!("{case:?}"))?;
        self.tables = (0..case.streams)
            .map(|stream| (0..of_stream).map(|block| BlockId::new(1 + stream * of_stream + block)).collect())
            .collect();
        self.fill(&mut decoder)?;
        self.decoder = Some(decoder);
        Ok(())
    }

    fn fill(&self, decoder: &mut Decoder) -> Result<()> {
        let mut noise = Noise::new();
        let block_words = usize::try_from(decoder.kv().plan().block_bytes() / 4)?;
        let page = decoder.kv().shape().block_bytes() / 4 / decoder.kv().shape().num_kv_heads as usize;
        let mut contents = vec![0; block_words];
        for (index, block) in self.tables.iter().flatten().enumerate() {
            noise.fill(&mut contents, page);
            decoder.write_block(*block, &contents);
            // Staged bytes are given back once they are copied.
            if index % 128 == 127 {
                decoder.read_blocks(&[*block])?;
            }
        }
        Ok(())
    }

    /// The walks whose turnovers under the case's policy come closest to those that are wanted, with what they have.
    pub(super) fn walks(&mut self, case: &Case, wanted: &[f64]) -> Result<Vec<(u32, f64)>> {
        let walks: Vec<(u32, f64)> =
            self.model.walks().map(|walk| Ok((walk, self.turnover(case, walk)?))).collect::<Result<_>>()?;
        let closest = |wanted: &f64| {
            let far = |walk: &(u32, f64)| (walk.1 - wanted).abs();
            walks.iter().copied().min_by(|a, b| far(a).total_cmp(&far(b))).expect("there are walks")
        };
        Ok(wanted.iter().map(closest).collect())
    }

    /// Percent of what a step selects that the step before did not, mean over layers and KV heads.
    fn turnover(&mut self, case: &Case, walk: u32) -> Result<f64> {
        self.decoder()?.trace_selections(true);
        let (mut fresh, mut all) = (0, 0);
        let mut before: Vec<BTreeSet<BlockIdx>> = Vec::new();
        for step in 0..LOOKS {
            let output = self.step(case, walk, step)?;
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
        self.decoder()?.trace_selections(false);
        #[expect(clippy::cast_precision_loss, reason = "counts of blocks")]
        Ok(100.0 * fresh as f64 / all.max(1) as f64)
    }

    /// Runs `count` steps of a walk behind those that warm up.
    pub(super) fn steps(&mut self, case: &Case, walk: u32, count: u32) -> Result<Steps> {
        let warm_up = self.plan.warm_up.min(count);
        self.gpu.time_dispatches(false);
        for step in 0..warm_up {
            self.step(case, walk, step)?;
        }
        let before = self.traffic()?;
        let start = Instant::now();
        let mut ids = Vec::new();
        for step in warm_up..warm_up + count {
            ids.extend(self.step(case, walk, step)?.sampled);
        }
        let step_ms = start.elapsed().as_secs_f64() * 1e3 / f64::from(count);
        let after = self.traffic()?;
        let part = |of: usize| (after[of] - before[of]) / f64::from(count);
        let mut steps = Steps {
            ids,
            step_ms,
            bytes: part(3),
            pages: [part(0), part(1), part(2)],
            cost: None,
            kernels: self.kernels(case, walk, warm_up)?,
        };
        if case.pool.is_some() && case.policy.is_some() {
            steps.cost = self.decoder()?.fetch_cost()?;
        }
        Ok(steps)
    }

    /// Milliseconds a step of each kernel, over the same steps once more; empty where the adapter has no timestamps.
    fn kernels(&mut self, case: &Case, walk: u32, warm_up: u32) -> Result<BTreeMap<&'static str, f64>> {
        for step in 0..warm_up {
            self.step(case, walk, step)?;
        }
        let mut kernels = BTreeMap::new();
        if self.gpu.time_dispatches(true) {
            for step in warm_up..2 * warm_up {
                for timing in self.step(case, walk, step)?.timings {
                    *kernels.entry(timing.kernel).or_default() += timing.ns / 1e6 / f64::from(warm_up);
                }
            }
        }
        self.gpu.time_dispatches(false);
        Ok(kernels)
    }

    /// Hits, misses, pages fetched ahead, and all bytes from the host so far.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn traffic(&mut self) -> Result<[f64; 4]> {
        let decoder = self.decoder()?;
        let pages = decoder.page_traffic()?.unwrap_or_default();
        let bytes = pages.bytes() + decoder.kv().fetched_bytes();
        Ok([pages.hits, pages.misses, pages.prefetched, bytes].map(|count| count as f64))
    }

    /// One token of every stream, the first one behind the context less the steps to come.
    fn step(&mut self, case: &Case, walk: u32, step: u32) -> Result<StepOutput> {
        let first = case.context - (self.plan.warm_up + self.plan.steps + 1) + step;
        let token = [self.model.token(walk, step)];
        let tables: Vec<[&[BlockId]; 1]> = self.tables.iter().map(|table| [&table[..]]).collect();
        let slice = |tables| Slice {
            tokens: &token,
            first,
            tables,
            phase: Phase::Decode,
            access: &[],
            targets: &[],
            logits: 0,
        };
        let slices: Vec<Slice<'_>> = tables.iter().map(|tables| slice(&tables[..])).collect();
        let samples: Vec<Sample> =
            (0..slices.len()).map(|slice| Sample { slice, spec: Spec::zeroed() }).collect();
        let decoder = self.decoder.as_mut().context("a decoder is open")?;
        Ok(decoder.step(&slices, &samples)?)
    }

    fn decoder(&mut self) -> Result<&mut Decoder> {
        self.decoder.as_mut().context("a decoder is open")
    }
}
