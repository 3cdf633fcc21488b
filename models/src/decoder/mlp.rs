//! What follows attention in a layer.

use attn_kernels::gpu::Pass;

use super::Decoder;
use super::inputs::Plan;
use super::layer::Layer;
use super::moe::Moe;
use crate::ModelError;
use crate::kernel::matmul::Epilogue;
use crate::matrix::{Matrix, Product};

/// Weights behind `mlp_norm`.
#[derive(Debug)]
pub(super) enum Mlp {
    /// `down(silu(gate(x)) * up(x))`
    Dense { gate_up: Matrix, down: Matrix },
    /// A router and experts.
    Experts(Box<Moe>),
}

impl Decoder {
    /// Records the second half of a layer: the residual stream plus the MLP of its norm. What layer `next` wished for is
    /// fetched beside it.
    pub(super) fn mlp(
        &self,
        pass: &mut Pass,
        layer: &Layer,
        plan: &Plan,
        next: usize,
    ) -> Result<(), ModelError> {
        let a = &self.activations;
        let (gate_up, down) = match &layer.mlp {
            Mlp::Dense { gate_up, down } => (gate_up, down),
            Mlp::Experts(moe) => return self.experts(pass, layer, moe, plan),
        };
        let inside = self.exact(plan) && gate_up.norms(&self.kernels, plan.rows);
        let (x, norm) = self.normed(pass, &layer.mlp_norm, plan.rows, inside);
        let inner = self.product(plan, x, &a.inner, self.config.intermediate_size);
        gate_up.multiply(&self.kernels, pass, &Product { epilogue: Epilogue::SiluMul, norm, ..inner })?;
        // The largest product of a layer: nothing orders it against a fetch into buffers that the pass has not used yet.
        self.fetch_wishes(pass, next);
        let out = self.product(plan, &a.inner, &a.hidden, self.config.hidden_size);
        down.multiply(&self.kernels, pass, &out)
    }
}
