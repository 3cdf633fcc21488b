//! The MLP of a layer.

use super::choices::ChoiceBuffer;
use super::moe::{Moe, MoeState};
use super::ops::Ctx;
use crate::kernel::matmul::Epilogue;
use crate::matrix::{Matrix, Product};
use crate::{Gate, ModelError};
use attn_kernels::gpu::Buf;

/// Weights of an MLP, without the norm before it.
#[derive(Clone, Debug)]
pub(super) enum Mlp {
    /// `down(silu(gate(x)) * up(x))`, or the same with another activation of the gate.
    Dense {
        gate_up: Matrix,
        down: Matrix,
        /// Norm of the MLP's output.
        post_norm: Option<Buf<f32>>,
    },
    /// A router and experts.
    Experts(Box<Moe>),
}

/// MLPs of all layers, and the state that experts share.
#[derive(Debug)]
pub(super) struct Mlps {
    pub(super) experts: Option<MoeState>,
}

impl Mlps {
    /// Returns the choice of the current layer's router, if it has one.
    pub(super) fn choice(&self, mlp: &Mlp) -> Option<ChoiceBuffer<'_>> {
        match mlp {
            Mlp::Dense { .. } => None,
            Mlp::Experts(_) => self.experts.as_ref().map(MoeState::choice),
        }
    }

    /// Records the second half of a layer: norm, MLP, and the addition to the residual. `beside` records work that may run
    /// concurrently.
    pub(super) fn record(
        &self,
        ctx: &mut Ctx<'_>,
        norm: Option<&Buf<f32>>,
        mlp: &Mlp,
        beside: impl FnOnce(&mut Ctx<'_>),
    ) -> Result<(), ModelError> {
        let (act, config) = (ctx.act, ctx.config);
        match (mlp, &self.experts) {
            (Mlp::Dense { gate_up, down, post_norm }, _) => {
                let inside = ctx.norms(gate_up);
                let (x, norm) = ctx.normed(norm, inside);
                beside(ctx);
                let inner = ctx.product(x, &act.inner, config.intermediate_size);
                let epilogue = match config.gate {
                    Gate::Silu => Epilogue::SiluMul,
                    Gate::GeluTanh => Epilogue::GeluMul,
                };
                ctx.matmul(gate_up, &Product { epilogue, norm, ..inner })?;
                ctx.add_block(down, &act.inner, post_norm.as_ref())
            }
            (Mlp::Experts(moe), Some(state)) => {
                beside(ctx);
                state.record(ctx, norm, moe)
            }
            (Mlp::Experts(_), None) => unreachable!("a decoder with experts has buffers for them"),
        }
    }
}
