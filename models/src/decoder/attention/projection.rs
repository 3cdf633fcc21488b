//! Projections of queries, keys and values of heads, and the write of keys and values to the cache.

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Pipeline};

use super::head_weights::HeadWeights;
use crate::decoder::ops::{Ctx, HeadSlices};
use crate::kernel::matmul::Epilogue;
use crate::kernel::rope_append::{self, RopeAppendBuffers, RopeAppendParams};
use crate::matrix::{Norm, Product};
use crate::{ModelError, QkNorm};

/// Records queries, keys and values of `x`, with the input norm if there is one, biases and head norms.
pub(super) fn project(
    ctx: &mut Ctx<'_>,
    weights: &HeadWeights,
    x: &Buf<f32>,
    norm: Option<Norm<'_>>,
) -> Result<(), ModelError> {
    let (act, c) = (ctx.act, ctx.config);
    let stride = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
    let mut epilogue = Epilogue::Store;
    if let Some(bias) = &weights.qkv_bias {
        ctx.set_bias(bias, &act.qkv);
        epilogue = Epilogue::Add;
    }
    for (matrix, y_offset) in &weights.qkv {
        let to = ctx.product(x, &act.qkv, stride);
        ctx.matmul(matrix, &Product { y_offset: *y_offset, epilogue, norm, ..to })?;
    }
    if let Some([q, k]) = &weights.qk_norm {
        let whole = c.qk_norm == QkNorm::Whole;
        let slices = |heads, first| match whole {
            true => HeadSlices { heads: 1, width: heads * c.head_dim, stride, first },
            false => HeadSlices { heads, width: c.head_dim, stride, first },
        };
        ctx.norm_head_slices(slices(c.num_heads, 0), c.rms_norm_eps, q, &act.qkv);
        ctx.norm_head_slices(slices(c.num_kv_heads, c.num_heads * c.head_dim), c.rms_norm_eps, k, &act.qkv);
    }
    Ok(())
}

/// Records the rotation of queries, into `q`, and of keys, and the write of keys and values to the cache.
pub(super) fn append(ctx: &mut Ctx<'_>, rope_append: &Arc<Pipeline>, layer: usize, q: &Buf<f32>) {
    let (c, rows, attn_group) = (ctx.config, ctx.rows(), ctx.attn_groups.of_layers[layer]);
    let of_layer = &c.layers[layer];
    let params = RopeAppendParams {
        rows,
        num_heads: c.num_heads,
        num_kv_heads: c.num_kv_heads,
        pairs: if of_layer.rotary { c.rope.rotary_dims / 2 } else { 0 },
    };
    let cos_sin = ctx.batch.cos_sin_of(of_layer.rotary, of_layer.reach);
    // Every dispatch rotates all queries, and writes the keys and values of rows that have a slot in its destination.
    for destination in ctx.keys.destinations(ctx.kv, ctx.batch, ctx.offload_plan, attn_group, layer) {
        let [k, v] = destination.buffers[..] else { unreachable!("heads have keys and values") };
        let buffers = RopeAppendBuffers {
            qkv: ctx.act.qkv.bind(),
            slots: destination.slots,
            k_cache: k.bind(),
            v_cache: v.bind(),
            cs: cos_sin.bind(),
            q: q.bind(),
        };
        let grid = rope_append::grid(&params, ctx.kv.shape());
        ctx.pass.dispatch(rope_append, &params, buffers, grid);
    }
}
