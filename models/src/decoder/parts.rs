//! Small steps around the matmuls of a layer: norms and biases.

use attn_kernels::gpu::{Buf, Pass};

use super::Decoder;
use super::inputs::Plan;
use crate::kernel::bias::{self, BiasParams};
use crate::kernel::matmul::Epilogue;
use crate::kernel::norm_heads::{self, NormHeadsParams};
use crate::kernel::rms_norm::{self, RmsNormParams};
use crate::matrix::{Norm, Product};

impl Decoder {
    /// A product of all rows of the step that adds to `y`, rows of `stride` f32.
    pub(super) fn product<'a>(
        &self,
        plan: &Plan,
        x: &'a Buf<f32>,
        y: &'a Buf<f32>,
        stride: u32,
    ) -> Product<'a> {
        let (rows, precision, epilogue) = (plan.rows, self.precision, Epilogue::Add);
        Product { x, rows, precision, y, y_stride: stride, y_offset: 0, epilogue, norm: None }
    }

    /// What a projection of the normed residual stream reads: the stream itself and the norm, where the matmul norms
    /// on the way in (`inside`), else rows normed here.
    pub(super) fn normed<'a>(
        &'a self,
        pass: &mut Pass,
        weight: &'a Buf<f32>,
        rows: u32,
        inside: bool,
    ) -> (&'a Buf<f32>, Option<Norm<'a>>) {
        let (a, c) = (&self.activations, &self.config);
        let residual = self.hyper.as_ref().map_or(&a.hidden, |hyper| &hyper.collapsed);
        if inside {
            return (residual, Some(Norm { weight, eps: c.rms_norm_eps }));
        }
        let params = RmsNormParams { rows, width: c.hidden_size, eps: c.rms_norm_eps, first: 0 };
        let bindings = [residual.into(), (&self.inputs.gather).into(), weight.into(), (&a.normed).into()];
        pass.dispatch(&self.pipelines.norm, &params, &bindings, rms_norm::grid(rows));
        (&a.normed, None)
    }

    /// Writes `bias` to every row of `y`, or adds it with `keep`.
    pub(super) fn bias(&self, pass: &mut Pass, bias: &Buf<f32>, rows: u32, keep: bool, y: &Buf<f32>) {
        let cols = u32::try_from(bias.len()).expect("dimensions of a model fit in 32 bits");
        let params = BiasParams { rows, cols, stride: cols, first: 0 };
        let pipeline = if keep { &self.pipelines.bias_add } else { &self.pipelines.bias };
        pass.dispatch(pipeline, &params, &[bias.into(), y.into()], bias::grid(rows, cols));
    }

    /// RMS norm of runs of every row, in place.
    pub(super) fn norm_heads(
        &self,
        pass: &mut Pass,
        params: &NormHeadsParams,
        weight: &Buf<f32>,
        x: &Buf<f32>,
    ) {
        let grid = norm_heads::grid(params.rows, params.heads);
        pass.dispatch(&self.pipelines.norm_heads, params, &[weight.into(), x.into()], grid);
    }
}
