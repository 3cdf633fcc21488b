//! One transformer layer.

use std::ops::Range;

use attn_kernels::gpu::{Bind, Buf, Pass};
use attn_kernels::kernel::paged_decode::{self, PagedDecodeParams};
use attn_kernels::kernel::paged_prefill::{self, PagedPrefillParams};
use attn_kernels::kernel::paged_prefill_coop;
use attn_kernels::kernel::paged_reduce::{self, PagedReduceParams};

use super::inputs::Plan;
use super::mlp::Mlp;
use super::{Decoder, decode_portion};
use crate::ModelError;
use crate::kernel::matmul::Epilogue;
use crate::kernel::norm_heads::NormHeadsParams;
use crate::kernel::rope_append::{self, RopeAppendParams};
use crate::matrix::{Matrix, Product};

/// Weights of one layer.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) attn_norm: Buf<f32>,
    /// Queries, keys and values: one matrix, or several where their types differ, each with its first column.
    pub(super) qkv: Vec<(Matrix, u32)>,
    /// Of queries, keys and values together.
    pub(super) qkv_bias: Option<Buf<f32>>,
    /// Norms of query and of key heads.
    pub(super) qk_norm: Option<[Buf<f32>; 2]>,
    pub(super) o: Matrix,
    pub(super) o_bias: Option<Buf<f32>>,
    pub(super) mlp_norm: Buf<f32>,
    pub(super) mlp: Mlp,
}

impl Decoder {
    /// Records layer `index` over all rows of the step.
    pub(super) fn layer(&self, pass: &mut Pass, index: usize, plan: &Plan) -> Result<(), ModelError> {
        let layer = &self.layers[index];
        let a = &self.activations;
        let hidden = self.config.hidden_size;
        self.qkv(pass, layer, plan)?;
        self.rope_append(pass, index, plan.rows);
        self.attend_decode(pass, index, plan);
        self.attend_prefill(pass, index, plan);

        if let Some(bias) = &layer.o_bias {
            self.bias(pass, bias, plan.rows, true, &a.hidden);
        }
        layer.o.multiply(&self.kernels, pass, &self.product(plan, &a.attended, &a.hidden, hidden))?;
        self.mlp(pass, layer, plan)
    }

    /// Queries, keys and values of the normed residual stream, with biases and head norms.
    fn qkv(&self, pass: &mut Pass, layer: &Layer, plan: &Plan) -> Result<(), ModelError> {
        let (a, c) = (&self.activations, &self.config);
        let (rows, stride) = (plan.rows, self.qkv_stride());
        let inside =
            self.exact(plan) && layer.qkv.iter().all(|(matrix, _)| matrix.norms(&self.kernels, rows));
        let (x, norm) = self.normed(pass, &layer.attn_norm, rows, inside);
        let mut epilogue = Epilogue::Store;
        if let Some(bias) = &layer.qkv_bias {
            self.bias(pass, bias, rows, false, &a.qkv);
            epilogue = Epilogue::Add;
        }
        for (matrix, y_offset) in &layer.qkv {
            let to = self.product(plan, x, &a.qkv, stride);
            let product = Product { y_offset: *y_offset, epilogue, norm, ..to };
            matrix.multiply(&self.kernels, pass, &product)?;
        }
        if let Some([q, k]) = &layer.qk_norm {
            let params = |heads, first| NormHeadsParams {
                rows,
                heads,
                width: c.head_dim,
                stride,
                first,
                eps: c.rms_norm_eps,
                pad0: 0,
                pad1: 0,
            };
            self.norm_heads(pass, &params(c.num_heads, 0), q, &a.qkv);
            self.norm_heads(pass, &params(c.num_kv_heads, c.num_heads * c.head_dim), k, &a.qkv);
        }
        Ok(())
    }

    /// f32 of one row of queries, keys and values.
    pub(super) fn qkv_stride(&self) -> u32 {
        (self.config.num_heads + 2 * self.config.num_kv_heads) * self.config.head_dim
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
