//! What follows attention in a layer.

use attn_kernels::gpu::Pass;

use super::Decoder;
use super::inputs::Plan;
use super::moe::Moe;
use crate::ModelError;
use crate::kernel::matmul::Epilogue;
use crate::matrix::{Matrix, Product};

/// Weights behind `mlp_norm`.
#[derive(Clone, Debug)]
pub(super) enum Mlp {
    /// `down(silu(gate(x)) * up(x))`
    Dense { gate_up: Matrix, down: Matrix },
    /// A router and experts.
    Experts(Box<Moe>),
}

impl Decoder {
    /// Records the second half of layer `index`: the residual stream plus the MLP of its norm. What the next layer wished for
    /// is fetched beside it.
    pub(super) fn mlp(&self, pass: &mut Pass, index: usize, plan: &Plan) -> Result<(), ModelError> {
        let (layer, a) = (&self.layers[index], &self.activations);
        let (gate_up, down) = match &layer.mlp {
            Mlp::Dense { gate_up, down } => (gate_up, down),
            Mlp::Experts(moe) => {
                self.look_ahead(pass, index);
                return self.experts(pass, layer, moe, plan);
            }
        };
        let inside = gate_up.norms(&self.kernels, plan.rows, self.precision);
        let (x, norm) = self.normed(pass, &layer.mlp_norm, plan.rows, inside);
        self.look_ahead(pass, index);
        let inner = self.product(plan, x, &a.inner, self.config.intermediate_size);
        gate_up.multiply(&self.kernels, pass, &Product { epilogue: Epilogue::SiluMul, norm, ..inner })?;
        let out = self.product(plan, &a.inner, &a.hidden, self.config.hidden_size);
        down.multiply(&self.kernels, pass, &out)
    }
}
