//! Experts of few rows: two dispatches of codes of 8 bits for all pairs of a row and an expert.

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass};

use super::{Kernels, Key, Matrix, Precision, Product};
use crate::kernel::expert_down::{ExpertDownBuffers, ExpertDownParams};
use crate::kernel::expert_gate_up::{self, COLUMNS, ExpertGateUpBuffers, ExpertGateUpParams};
use crate::{ModelError, MoeConfig};

/// Experts of a layer.
#[derive(Clone, Copy)]
pub(crate) struct ExpertMatrices<'a> {
    pub(crate) gate_up: &'a Matrix,
    pub(crate) down: &'a Matrix,
}

/// Pairs of a row and an expert that are multiplied one by one.
pub(crate) struct FewPairs<'a> {
    /// Rows of activations; the weighted sum of the outputs of their experts is added to `y`.
    pub(crate) rows: Product<'a>,
    /// Experts of each row, `[rows, top]`.
    pub(crate) experts: Bind<u32>,
    /// Factors on the outputs of experts, `[rows, top]`.
    pub(crate) factors: Bind<f32>,
    /// Biases of gates and ups, and of downs; buffers of arbitrary floats if the experts have none.
    pub(crate) biases: [Bind<f32>; 2],
    /// Slope of a gate's sigmoid, and limit of gates and ups, if the activation has them.
    pub(crate) alpha: f32,
    pub(crate) limit: f32,
}

/// Kernels and buffers of few pairs.
#[derive(Debug)]
pub(crate) struct FewExperts {
    experts: expert_gate_up::Experts,
    inner: u32,
    max_rows: u32,
    /// Codes of the inputs of down projections, `[rows * top, inner]`.
    codes: Buf<[u32; 4]>,
    /// Scale and scaled sum of each block of `codes`.
    scales: Buf<[f32; 2]>,
}

impl FewExperts {
    /// Returns the maximum number of rows whose pairs are multiplied one by one: these rows have at most as many pairs as
    /// there are experts.
    pub(crate) fn max_rows(moe: &MoeConfig, precision: Precision) -> u32 {
        // The number of rows must not change a result there.
        let serves = precision.codes() && !precision.invariant;
        let serves = serves && !moe.weighted_input && moe.inner_size.is_multiple_of(COLUMNS);
        if serves { (moe.num_experts / moe.top_k).max(1) } else { 0 }
    }

    /// Creates buffers for steps of up to `rows` rows.
    pub(crate) fn new(
        gpu: &Gpu,
        moe: &MoeConfig,
        rows: u32,
        precision: Precision,
    ) -> Result<Self, ModelError> {
        let max_rows = Self::max_rows(moe, precision).min(rows);
        let blocks = (max_rows * moe.top_k * moe.inner_size / COLUMNS).max(1) as usize;
        Ok(Self {
            experts: moe.into(),
            inner: moe.inner_size,
            max_rows,
            codes: gpu.buffer("expert_codes", blocks * 2)?,
            scales: gpu.buffer("expert_code_scales", blocks)?,
        })
    }

    /// Whether the kernels of few pairs multiply the pairs of `rows` rows.
    pub(crate) fn serves(&self, kernels: &Kernels, of: ExpertMatrices<'_>, rows: u32) -> bool {
        let [gate_up, down] = self.keys(of);
        let slow = of.gate_up.format.unpacks_slowly() || of.down.format.unpacks_slowly();
        let weights = u64::from(of.gate_up.width) * u64::from(2 * self.inner * of.gate_up.count());
        // Matrices that are small one by one are many: f32 gains where all of them are, as in models for tests.
        let small = weights < kernels.profile().tuning.small_weights;
        !small
            && rows * if slow { 2 } else { 1 } <= self.max_rows
            && of.gate_up.format.has_codes()
            && of.down.format.has_codes()
            && kernels.holds_codes(rows, of.gate_up.blocks)
            && kernels.trusts(gate_up)
            && kernels.trusts(down)
    }

    fn keys(&self, of: ExpertMatrices<'_>) -> [Key; 2] {
        let Self { experts, .. } = *self;
        [
            Key::ExpertGateUp { format: of.gate_up.format, experts },
            Key::ExpertDown { format: of.down.format, experts },
        ]
    }

    /// Records the kernels that add the outputs of experts to each row, if [`serves`](Self::serves) is true.
    pub(crate) fn record(
        &self,
        kernels: &mut Kernels,
        pass: &mut Pass,
        of: ExpertMatrices<'_>,
        pairs: FewPairs<'_>,
    ) -> Result<(), ModelError> {
        let ExpertMatrices { gate_up, down } = of;
        let FewPairs { rows: product, experts, factors, biases, alpha, limit } = pairs;
        let [gate_up_bias, down_bias] = biases;
        let [gate_up_key, down_key] = self.keys(of);
        kernels.quantize(pass, &product, gate_up.blocks, gate_up.width)?;
        let pipeline = kernels.pipeline_of(gate_up_key, &gate_up.shards[0].quants)?;
        kernels.beside(pass, gate_up.bytes());
        for shard in &gate_up.shards {
            let params = ExpertGateUpParams {
                pairs: product.rows * self.experts.top,
                inner: self.inner,
                blocks: gate_up.blocks,
                matrices: shard.matrices,
                first_matrix: shard.first_matrix,
                alpha,
                limit,
            };
            let buffers = ExpertGateUpBuffers {
                x: kernels.scratch.codes.bind(),
                scales: kernels.scratch.scales.bind(),
                wq: kernels.plane(&shard.quants),
                ws: kernels.plane(&shard.scales),
                experts: experts.clone(),
                biases: gate_up_bias.clone(),
                codes_out: self.codes.bind().cast(),
                scales_out: self.scales.bind(),
            };
            pass.dispatch(&pipeline, &params, buffers);
        }
        let pipeline = kernels.pipeline_of(down_key, &down.shards[0].quants)?;
        kernels.beside(pass, down.bytes());
        for shard in &down.shards {
            let params = ExpertDownParams {
                rows: product.rows,
                width: product.y_stride,
                blocks: down.blocks,
                matrices: shard.matrices,
                first_matrix: shard.first_matrix,
            };
            let buffers = ExpertDownBuffers {
                x: self.codes.bind(),
                scales: self.scales.bind(),
                wq: kernels.plane(&shard.quants),
                ws: kernels.plane(&shard.scales),
                experts: experts.clone(),
                factors: factors.clone(),
                biases: down_bias.clone(),
                y: product.y.bind(),
            };
            pass.dispatch(&pipeline, &params, buffers);
        }
        Ok(())
    }
}
