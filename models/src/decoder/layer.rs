//! One transformer layer.

use std::ops::Range;

use attn_kernels::gpu::{Bind, Buf, Pass};
use attn_kernels::kernel::paged_decode::{self, PagedDecodeParams};
use attn_kernels::kernel::paged_prefill::{self, PagedPrefillParams};
use attn_kernels::kernel::paged_prefill_coop;
use attn_kernels::kernel::paged_reduce::{self, PagedReduceParams};

use super::inputs::Plan;
use super::{Decoder, decode_portion};
use crate::ModelError;
use crate::kernel::matmul::Epilogue;
use crate::kernel::rms_norm::{self, RmsNormParams};
use crate::kernel::rope_append::{self, RopeAppendParams};
use crate::matrix::{Matrix, Product};

/// Weights of one layer.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) attn_norm: Buf<f32>,
    /// Queries, keys and values: one matrix, or several where their types differ, each with its first column.
    pub(super) qkv: Vec<(Matrix, u32)>,
    pub(super) o: Matrix,
    pub(super) mlp_norm: Buf<f32>,
    pub(super) gate_up: Matrix,
    pub(super) down: Matrix,
}

impl Decoder {
    /// Records layer `index` over all rows of the step.
    pub(super) fn layer(&self, pass: &mut Pass, index: usize, plan: &Plan) -> Result<(), ModelError> {
        let layer = &self.layers[index];
        let a = &self.activations;
        let (rows, hidden) = (plan.rows, self.config.hidden_size);
        let stride = self.qkv_stride();

        let coop_from = if self.coop { plan.decode_until } else { rows };
        let exact = coop_from == rows;
        let inside = exact && layer.qkv.iter().all(|(matrix, _)| matrix.norms(&self.kernels, rows));
        let (x, norm) = self.normed(pass, &layer.attn_norm, rows, inside);
        for (matrix, y_offset) in &layer.qkv {
            let product = Product {
                x,
                rows,
                coop_from,
                y: &a.qkv,
                y_stride: stride,
                y_offset: *y_offset,
                epilogue: Epilogue::Store,
                norm,
            };
            matrix.multiply(&self.kernels, pass, &product)?;
        }
        self.rope_append(pass, index, rows);
        self.attend_decode(pass, index, plan);
        self.attend_prefill(pass, index, plan);

        let add = |x, y| {
            let epilogue = Epilogue::Add;
            Product { x, rows, coop_from, y, y_stride: hidden, y_offset: 0, epilogue, norm: None }
        };
        layer.o.multiply(&self.kernels, pass, &add(&a.attended, &a.hidden))?;
        let inside = exact && layer.gate_up.norms(&self.kernels, rows);
        let (x, norm) = self.normed(pass, &layer.mlp_norm, rows, inside);
        let inner = Product {
            x,
            rows,
            coop_from,
            y: &a.inner,
            y_stride: self.config.intermediate_size,
            y_offset: 0,
            epilogue: Epilogue::SiluMul,
            norm,
        };
        layer.gate_up.multiply(&self.kernels, pass, &inner)?;
        layer.down.multiply(&self.kernels, pass, &add(&a.inner, &a.hidden))
    }

    /// f32 of one row of queries, keys and values.
    pub(super) fn qkv_stride(&self) -> u32 {
        (self.config.num_heads + 2 * self.config.num_kv_heads) * self.config.head_dim
    }

    /// What a projection of the normed residual stream reads: the stream itself and the norm, where the matmul norms
    /// on the way in (few rows), else rows normed here.
    fn normed<'a>(
        &'a self,
        pass: &mut Pass,
        weight: &'a Buf<f32>,
        rows: u32,
        inside: bool,
    ) -> (&'a Buf<f32>, Option<(&'a Buf<f32>, f32)>) {
        let (a, c) = (&self.activations, &self.config);
        if inside {
            return (&a.hidden, Some((weight, c.rms_norm_eps)));
        }
        let params = RmsNormParams { rows, width: c.hidden_size, eps: c.rms_norm_eps, first: 0 };
        let bindings = [(&a.hidden).into(), (&self.inputs.gather).into(), weight.into(), (&a.normed).into()];
        pass.dispatch(&self.pipelines.norm, &params, &bindings, rms_norm::grid(rows));
        (&a.normed, None)
    }

    fn rope_append(&self, pass: &mut Pass, index: usize, rows: u32) {
        let c = &self.config;
        let params = RopeAppendParams {
            rows,
            num_heads: c.num_heads,
            num_kv_heads: c.num_kv_heads,
            pairs: c.rope.rotary_dims / 2,
        };
        let (k, v) = self.kv.layer(index);
        let bindings = [
            (&self.activations.qkv).into(),
            (&self.inputs.slots).into(),
            k.into(),
            v.into(),
            (&self.inputs.cs).into(),
            (&self.activations.q).into(),
        ];
        let grid = rope_append::grid(self.kv.shape(), c.num_heads, rows);
        pass.dispatch(&self.pipelines.rope_append, &params, &bindings, grid);
    }

    fn attend_decode(&self, pass: &mut Pass, index: usize, plan: &Plan) {
        let portion = decode_portion(&self.config, plan);
        for start in (0..plan.decode_rows.len()).step_by(portion) {
            let rows = portion.min(plan.decode_rows.len() - start);
            self.attend_portion(pass, index, plan.max_partitions, start..start + rows);
        }
    }

    /// Rows `range` of the list of decode rows.
    fn attend_portion(&self, pass: &mut Pass, index: usize, max_partitions: u32, range: Range<usize>) {
        let (a, c) = (&self.activations, &self.config);
        let rows = u32::try_from(range.len()).expect("at most max_rows");
        let list = Bind::at(self.inputs.decode_rows.raw(), range.start as u64 * 16);
        let params = PagedDecodeParams {
            num_heads: c.num_heads,
            num_kv_heads: c.num_kv_heads,
            q_stride: c.num_heads * c.head_dim,
            max_partitions,
            scale: scale(c.head_dim),
            reduced: u32::from(max_partitions > 1),
            list_stride: 0,
            first_list: 0,
        };
        let (k, v) = self.kv.layer(index);
        let out = if max_partitions == 1 { &a.attended } else { &a.partial };
        let tables = (&self.inputs.tables).into();
        let bindings =
            [(&a.q).into(), k.into(), v.into(), tables, list.clone(), out.into(), (&a.stats).into()];
        let grid = paged_decode::grid(self.kv.shape(), c.num_heads, rows, max_partitions);
        pass.dispatch(&self.pipelines.decode, &params, &bindings, grid);
        if max_partitions > 1 {
            let params = PagedReduceParams {
                num_heads: c.num_heads,
                num_kv_heads: c.num_kv_heads,
                max_partitions,
                list_stride: 0,
                first_list: 0,
                pad0: 0,
                pad1: 0,
                pad2: 0,
            };
            let bindings = [(&a.partial).into(), (&a.stats).into(), list, (&a.attended).into()];
            pass.dispatch(&self.pipelines.reduce, &params, &bindings, paged_reduce::grid(c.num_heads, rows));
        }
    }

    fn attend_prefill(&self, pass: &mut Pass, index: usize, plan: &Plan) {
        let tiles = u32::try_from(plan.tiles.len()).expect("at most max_rows");
        let (a, c) = (&self.activations, &self.config);
        let Some(last) = plan.tiles.iter().map(|tile| tile.position + tile.rows - 1).max() else { return };
        let (k, v) = self.kv.layer(index);
        let bindings = [
            (&a.q).into(),
            k.into(),
            v.into(),
            (&self.inputs.tables).into(),
            (&self.inputs.tiles).into(),
            (&a.attended).into(),
            (&a.lse).into(),
        ];
        let grid = match self.coop {
            true => paged_prefill_coop::grid(c.num_heads, tiles),
            false => paged_prefill::grid(self.kv.shape(), c.num_heads, self.key_loads, tiles),
        };
        for (first_key, num_keys) in paged_prefill::segments(last, self.gpu.is_cpu()) {
            let params = PagedPrefillParams {
                num_heads: c.num_heads,
                num_kv_heads: c.num_kv_heads,
                q_stride: c.num_heads * c.head_dim,
                first_key,
                scale: scale(c.head_dim),
                neg_inf: f32::NEG_INFINITY,
                num_keys,
                list_stride: 0,
            };
            pass.dispatch(&self.pipelines.prefill, &params, &bindings, grid);
        }
    }
}

/// Factor on scores.
fn scale(head_dim: u32) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "head sizes are small")]
    let dim = head_dim as f32;
    1.0 / dim.sqrt()
}
