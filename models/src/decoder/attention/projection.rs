//! Projections of queries, keys and values of heads, and the write of keys and values to the cache.

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pipeline};
use attn_kernels::kernel::KvShape;

use super::head_weights::{HeadWeights, QkNormWeights};
use crate::decoder::ops::{Ctx, HeadSlices};
use crate::kernel::matmul::Epilogue;
use crate::kernel::rope_append::{self, Before, RopeAppendBuffers, RopeAppendParams};
use crate::matrix::{Norm, Product};
use crate::{DecoderConfig, ModelError, QkNorm};

/// The kernel that rotates queries and keys, and writes keys and values to a cache of `shape`.
pub(super) fn append_kernel(
    gpu: &Gpu,
    config: &DecoderConfig,
    shape: &KvShape,
) -> Result<Arc<Pipeline>, ModelError> {
    let normed = matches!(config.qk_norm, QkNorm::Rms | QkNorm::Unweighted);
    let before = Before { biased: biases_late(config), normed };
    Ok(gpu.pipeline(&rope_append::variant(shape, config.rope.pairing, before))?)
}

/// Whether biases are added right before the rotation, which spares a pass over all rows. Norms of whole rows must
/// run between the two.
fn biases_late(config: &DecoderConfig) -> bool {
    config.qkv_bias && config.qk_norm != QkNorm::Whole
}

/// Records queries, keys and values of `x`, with the input norm if there is one, and norms of all heads together. Norms of single
/// heads are left to [`append`], and so are biases that no norm of rows follows.
pub(super) fn project(
    ctx: &mut Ctx<'_>,
    weights: &HeadWeights,
    x: &Buf<f32>,
    norm: Option<Norm<'_>>,
) -> Result<(), ModelError> {
    let (act, c) = (ctx.act, ctx.config);
    let stride = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
    let mut epilogue = Epilogue::Store;
    if let Some(bias) = weights.qkv_bias.as_ref().filter(|_| !biases_late(c)) {
        ctx.set_bias(bias, &act.qkv);
        epilogue = Epilogue::Add;
    }
    for (matrix, y_offset) in &weights.qkv {
        let to = ctx.product(x, &act.qkv, stride);
        ctx.matmul(matrix, &Product { y_offset: *y_offset, epilogue, norm, ..to })?;
    }
    if let Some(QkNormWeights::Whole([q, k])) = &weights.qk_norm {
        let [queries, keys] = [c.num_heads, c.num_kv_heads].map(|heads| heads * c.head_dim);
        let slices = |width, first| HeadSlices { stride, first, ..HeadSlices::of(1, width) };
        ctx.norm_head_slices(slices(queries, 0), c.rms_norm_eps, q, &act.qkv);
        ctx.norm_head_slices(slices(keys, queries), c.rms_norm_eps, k, &act.qkv);
    }
    Ok(())
}

/// Records norms of heads, the rotation of queries and keys, and the write of keys and values to the cache. The
/// rotated queries go to `q`.
pub(super) fn append(
    ctx: &mut Ctx<'_>,
    rope_append: &Arc<Pipeline>,
    weights: &HeadWeights,
    layer: usize,
    q: &Buf<f32>,
) {
    let (c, rows, attn_group) = (ctx.config, ctx.rows(), ctx.attn_groups.of_layers[layer]);
    let of_layer = &c.layers[layer];
    let norm = match &weights.qk_norm {
        Some(QkNormWeights::Heads(both)) => Some(both),
        Some(QkNormWeights::Whole(_)) | None => None,
    };
    let params = RopeAppendParams {
        rows,
        num_heads: c.num_heads,
        num_kv_heads: c.num_kv_heads,
        pairs: if of_layer.rotary { c.rope.rotary_dims / 2 } else { 0 },
        normed: norm.map_or(0, |_| c.num_heads + c.num_kv_heads),
        eps: c.rms_norm_eps,
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
            // Without a bias that comes late, the kernel reads none.
            bias: weights.qkv_bias.as_ref().unwrap_or(&ctx.act.qkv).bind(),
            norm: norm.unwrap_or(&ctx.act.qkv).bind(),
        };
        ctx.pass.dispatch(rope_append, &params, buffers);
    }
}
