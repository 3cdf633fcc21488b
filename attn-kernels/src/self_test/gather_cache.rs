//! Cases of `gather_cache`.

use super::layer::Layer;
use super::options::AttentionInputs;
use super::{Case, count, shape};
use crate::Variant;
use crate::cpu::{self, Tolerance};
use crate::kernel::KvDtype;
use crate::kernel::gather_cache::{self, GatherCacheParams};

/// Products with a scale are rounded once, in f32.
pub(super) const GATHERED: Tolerance = Tolerance { abs: 1e-6, rel: 1e-6 };

pub(crate) fn cases(variant: &Variant) -> Vec<Case> {
    let shape = shape(variant, 2);
    let lens = [150, 1, 0, 70];
    let layer = Layer::new(shape, &lens, 4);
    let asked = AttentionInputs::of(variant, 2, &lens);
    // From the fourth key of the first sequence on; between two sequences a row is left alone.
    let mut spans = Vec::new();
    let mut row = 0;
    for (index, (len, table)) in lens.into_iter().zip(&layer.table_of).enumerate() {
        let first = if index == 0 { 3 } else { 0 };
        spans.push([first, len, row, *table]);
        row += len - first + 1;
    }
    let params = GatherCacheParams {
        num_kv_heads: 2,
        list_stride: asked.list_stride(),
        k_scale: if shape.dtype == KvDtype::Fp8 { 0.5 } else { 1.0 },
        v_scale: if shape.dtype == KvDtype::Fp8 { 4.0 } else { 1.0 },
        max_keys: 150,
    };
    let len = (row * 2 * shape.head_dim) as usize;
    let (mut k_out, mut v_out) = (vec![f32::NAN; len], vec![f32::NAN; len]);
    let out = (&mut k_out[..], &mut v_out[..]);
    cpu::gather_cache::gather_cache(&layer.kv(), &spans, &layer.tables, out, &asked.options());
    k_out.iter_mut().for_each(|x| *x *= params.k_scale);
    v_out.iter_mut().for_each(|x| *x *= params.v_scale);
    let [k, v] = layer.words();
    let grid = gather_cache::grid(&shape, &params, count(&spans));
    let case = Case::new("sequences side by side", variant, &params, grid)
        .binding(&spans)
        .binding(&k)
        .binding(&v)
        .binding(&layer.tables)
        .finite(GATHERED, &k_out)
        .finite(GATHERED, &v_out)
        .optional(asked.words().as_deref());
    vec![case]
}
