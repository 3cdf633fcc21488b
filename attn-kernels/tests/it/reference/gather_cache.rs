//! `gather_cache` against its reference.

use super::device::{assert_close, cases, dispatch, gpu};
use super::layer::{Layer, coded_shapes};
use super::options::{AttentionInputs, Lists};
use attn_kernels::cpu::{self, Tolerance};
use attn_kernels::gpu::{Bound, Pass};
use attn_kernels::kernel::attention::Attention;
use attn_kernels::kernel::gather_cache::{self, GatherCacheParams};
use proptest::prelude::*;

/// Products of a code and a scale are rounded once, in f32.
const GATHERED: Tolerance = Tolerance { abs: 1e-6, rel: 1e-6 };

proptest! {
    #![proptest_config(cases(10))]
    #[test]
    fn gathers_what_the_reference_gathers(
        (shape, _) in coded_shapes(),
        lens in prop::collection::vec(0u32..200, 1..4),
        skip in 0u32..40,
        lists in prop::option::of((0u32..3, 0.0..1.0)),
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let layer = Layer::new(shape, &lens, seed);
        let mut asked = AttentionInputs::new(Attention::default(), 1, seed);
        if let Some((times, chance)) = lists {
            let heads = shape.num_kv_heads as usize;
            let lens = lens.iter().flat_map(|len| std::iter::repeat_n(*len, heads));
            asked.list(Lists::random(lens, shape.block_size << times, chance, seed));
        }
        let (mut spans, mut rows) = (Vec::new(), 1);
        for (len, table) in lens.iter().zip(&layer.table_of) {
            let first = skip.min(*len);
            spans.push([first, *len, rows, *table]);
            rows += len - first;
        }
        let params = GatherCacheParams {
            num_kv_heads: shape.num_kv_heads,
            list_stride: asked.list_stride(),
            k_scale: 1.0,
            v_scale: 1.0,
            max_keys: *lens.iter().max().unwrap(),
        };
        gather_cache::check(&shape, &params, &spans, (&layer.tables, layer.num_blocks()), rows as usize).unwrap();
        // Rows of no key are left as they are.
        let mut want = [vec![7.0; (rows * shape.num_kv_heads * shape.head_dim) as usize], Vec::new()];
        want[1] = want[0].clone();
        let [k, v] = layer.upload(gpu).unwrap();
        let buffers = (gpu.upload("spans", &spans).unwrap(), gpu.upload("tables", &layer.tables).unwrap());
        let out = [gpu.upload("k_out", &want[0]).unwrap(), gpu.upload("v_out", &want[1]).unwrap()];
        let extra = asked.upload(gpu).unwrap();
        let mut bindings: Vec<Bound> = vec![
            (&buffers.0).into(), (&k).into(), (&v).into(), (&buffers.1).into(), (&out[0]).into(), (&out[1]).into(),
        ];
        bindings.extend(extra.as_ref().map(Into::into));
        let mut pass = Pass::new("gather");
        let grid = gather_cache::grid(&shape, &params, u32::try_from(spans.len()).unwrap());
        let variant = gather_cache::variant(&shape, asked.attention.context);
        if grid[0] > 0 {
            dispatch(gpu, &mut pass, &variant, &params, &bindings, grid);
        }
        let reads = [pass.read(&out[0], 0..out[0].len()), pass.read(&out[1], 0..out[1].len())];
        let outcome = gpu.submit(pass).unwrap().wait().unwrap();
        let [k_out, v_out] = &mut want;
        let to = (&mut k_out[..], &mut v_out[..]);
        cpu::gather_cache::gather_cache(&layer.kv(), &spans, &layer.tables, to, &asked.options());
        for (read, want) in reads.into_iter().zip(&want) {
            assert_close(&format!("{shape:?}, {spans:?}"), GATHERED, &outcome.get(read), want);
        }
    }
}

#[test]
fn spans_outside_their_buffers_are_refused() {
    let shape = super::layer::shape_of(2, attn_kernels::kernel::KvDtype::F16).0;
    let params = |max_keys| GatherCacheParams {
        num_kv_heads: 2,
        list_stride: 0,
        k_scale: 1.0,
        v_scale: 1.0,
        max_keys,
    };
    let said = |span, max_keys| {
        let tables = (&[0, 7, 8, 1][..], 8);
        gather_cache::check(&shape, &params(max_keys), &[[0; 4], span], tables, 64).unwrap_err().to_string()
    };
    assert_eq!(said([5, 4, 0, 0], 9), "gather_cache: first key of entry 1 is 5, the limit is 4");
    assert_eq!(said([0, 40, 30, 0], 40), "gather_cache: end in the output of entry 1 is 70, the limit is 64");
    assert_eq!(said([0, 40, 0, 2], 40), "gather_cache: end in the tables of entry 1 is 5, the limit is 4");
    assert_eq!(
        said([0, 40, 0, 0], 40),
        "gather_cache: block of the table + 1 of entry 1 is 9, the limit is 8"
    );
    assert_eq!(said([0; 4], 1 << 19), "gather_cache: workgroups of a span is 131072, the limit is 65535");
}
