//! Cases of `gather_cache`.

use super::layer::Layer;
use super::options::AttentionInputs;
use super::spec::Size;
use super::{Case, Spec, count, shape, token_bytes};
use crate::Variant;
use crate::cpu::{self, Tolerance};
use crate::kernel::gather_cache::GatherCacheParams;
use crate::kernel::{KvDtype, KvShape};

/// Tolerance of products with a scale, which are rounded once, in f32.
pub(super) const GATHERED: Tolerance = Tolerance { abs: 1e-6, rel: 1e-6 };

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let heads = spec.kv_heads(2, 1..=4);
    let shape = shape(variant, heads);
    if let Some(size) = spec.size() {
        return vec![timed(variant, &shape, size)];
    }
    let lens = spec.lens(&[150, 1, 0, 70], shape.block_size, 0..=200);
    let layer = Layer::new(shape, &lens, spec.seed(4));
    let asked = AttentionInputs::of(variant, [heads; 2], &lens, spec);
    // From the fourth key of the first sequence on; between two sequences a row is left alone.
    let mut spans = Vec::new();
    let mut row = 0;
    for (index, (len, table)) in lens.iter().zip(&layer.table_of).enumerate() {
        let first = spec.number(if index == 0 { 3 } else { 0 }, 0..=*len);
        spans.push([first, *len, row, *table]);
        row += len - first + 1;
    }
    let scale = |usual| if shape.dtype == KvDtype::Fp8 { spec.one_of(usual, &[0.25, 1.0, 4.0]) } else { 1.0 };
    let params = GatherCacheParams {
        num_kv_heads: heads,
        list_stride: asked.list_stride(),
        k_scale: scale(0.5),
        v_scale: scale(4.0),
        max_keys: lens.iter().copied().max().unwrap_or(0).max(1),
        spans: count(&spans),
    };
    let len = (row * heads * shape.head_dim) as usize;
    let (mut k_out, mut v_out) = (vec![f32::NAN; len], vec![f32::NAN; len]);
    let out = (&mut k_out[..], &mut v_out[..]);
    cpu::gather_cache::gather_cache(&layer.kv(), &spans, &layer.tables, out, &asked.options());
    k_out.iter_mut().for_each(|x| *x *= params.k_scale);
    v_out.iter_mut().for_each(|x| *x *= params.v_scale);
    let [k, v] = layer.words();
    let case = Case::new("sequences side by side", variant, &params)
        .binding(&spans)
        .binding(&k)
        .binding(&v)
        .binding(&layer.tables)
        .finite(GATHERED, &k_out)
        .finite(GATHERED, &v_out)
        .optional(asked.words().as_deref());
    vec![case]
}

/// Makes the timed case: all keys of one sequence, in spans of as many keys as a dispatch has workgroups for.
fn timed(variant: &Variant, shape: &KvShape, size: &Size) -> Case {
    let (context, width) = (size.context, shape.num_kv_heads * shape.head_dim);
    let max_keys = context.min(8192);
    let span = |first: u32| [first, context.min(first + max_keys), first, 0];
    let spans: Vec<[u32; 4]> = (0..context).step_by(max_keys as usize).map(span).collect();
    let params = GatherCacheParams {
        num_kv_heads: shape.num_kv_heads,
        list_stride: 0,
        k_scale: 1.0,
        v_scale: 1.0,
        max_keys,
        spans: count(&spans),
    };
    let layer = Layer::empty(*shape, &[context], 1);
    Case::new("one sequence", variant, &params)
        .costs(f64::from(context) * (token_bytes(shape) + 8.0 * f64::from(width)), 0.0)
        .binding(&spans)
        .blocks_of(shape, layer.num_blocks())
        .blocks_of(shape, layer.num_blocks())
        .binding(&layer.tables)
        .floats_of(context * width)
        .floats_of(context * width)
}
