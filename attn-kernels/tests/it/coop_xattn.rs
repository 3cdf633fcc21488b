//! `strided_qk_coop` against `strided_qk` on the same adapter, both as trusted modules: cooperative loads cannot be
//! bounds-checked. Slots of the cache that hold no token are NaN.

use crate::adapter::gpu;
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::kernel::find_blocks::Vote;
use attn_kernels::kernel::strided_qk::Scorer;
use attn_kernels::kernel::xattn::Estimate;
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape, stride_queries, strided_qk, strided_qk_coop};
use attn_kernels::self_test::layer::{Layer, queries};

/// Parts of all query blocks from `first` on.
fn parts(gpu: &Gpu, (shape, e): (&KvShape, &Estimate), first: u32, scorer: &Scorer) -> Vec<f32> {
    let layer = Layer::new(*shape, &[20, e.kv_len], 5);
    let width = (e.num_heads * shape.head_dim) as usize;
    let q = queries((e.q_first + e.q_len) as usize, width, e.q_stride as usize, 6);
    let [k, _] = layer.upload(gpu).unwrap();
    let q = gpu.upload("q", &q).unwrap();
    let tables = gpu.upload("tables", &layer.tables).unwrap();
    let blocks = first..e.query_blocks();
    let [len, _] = e.scratch_lens(blocks.end - blocks.start);
    let parts = gpu.upload("parts", &vec![f32::NAN; len]).unwrap();
    let rows = e.stride_rows(blocks.end - blocks.start);
    let strides = gpu.buffer::<u32>("strides", rows * scorer.row_words as usize).unwrap();
    let [queries, scores] = [&scorer.queries, &scorer.scores]
        .map(|variant| gpu.pipeline(variant).unwrap_or_else(|e| panic!("{e}")));
    let mut pass = Pass::new("strided_qk");
    let params = e.stride_queries(&blocks);
    let grid = stride_queries::grid(&params, shape.head_dim, e.stride);
    pass.dispatch_bytes(&queries, bytemuck::bytes_of(&params), &[(&q).into(), (&strides).into()], grid);
    let params = Estimate { table: layer.table_of[1], ..*e }.strided_qk(shape, &blocks);
    let bindings = [(&strides).into(), (&k).into(), (&tables).into(), (&parts).into()];
    let grid = (scorer.grid)(&params, e.stride);
    pass.dispatch_bytes(&scores, bytemuck::bytes_of(&params), &bindings, grid);
    let read = pass.read(&parts, 0..len);
    gpu.submit(pass).unwrap().wait().unwrap().get(read)
}

#[test]
fn agrees_with_strided_qk() {
    let Some(gpu) = gpu() else { return };
    // Head size, KV heads, query heads a KV head, page; stride, block; queries, keys, causal; first query block.
    for (head_dim, num_kv_heads, group, page, stride, block, q_len, kv_len, causal, first) in [
        (128, 2, 2, 16, 8, 128, 1000, 1000, true, 0),
        (64, 1, 3, 64, 8, 256, 701, 3003, true, 1),
        (80, 1, 1, 8, 4, 256, 515, 2100, false, 0),
        (16, 3, 1, 256, 16, 256, 5, 300, true, 0),
        (32, 1, 2, 32, 8, 512, 1500, 6000, true, 1),
        (256, 1, 1, 16, 8, 128, 300, 5000, true, 0),
    ] {
        let shape = KvShape {
            num_kv_heads,
            head_dim,
            block_size: page,
            dtype: KvDtype::F16,
            layout: KvLayout::Native,
        };
        let num_heads = num_kv_heads * group;
        let e = Estimate {
            num_heads,
            q_stride: num_heads * head_dim + 8,
            q_first: 3,
            q_len,
            kv_len,
            table: 0,
            causal,
            stride,
            block,
            norm: 1.0,
            vote: Vote::Any,
        };
        let of = |variant, grid| Scorer::of(variant, grid, &shape, stride);
        let lanes = of(strided_qk::variant(&shape, stride, block), strided_qk::grid);
        let matrices = of(strided_qk_coop::variant(&shape, stride, block), strided_qk_coop::grid);
        let [want, got] = [lanes, matrices].map(|scorer| parts(&gpu, (&shape, &e), first, &scorer));
        let mut seen = 0;
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            // Skipped by both where all of the larger tile is masked, or masked without a number.
            if want.is_nan() || *want < -1e30 {
                assert!(got.is_nan() || *got < -1e30, "{shape:?}, {e:?}: part {i} is {got}, masked");
                continue;
            }
            seen += 1;
            // Queries are rounded to f16: an error of 2^-11 of a score of some units.
            assert!((got - want).abs() <= 5e-3, "{shape:?}, {e:?}: part {i} is {got}, not {want}");
        }
        assert!(seen > 0, "{shape:?}, {e:?}");
    }
}
