//! `index_write`, `index_write_fp8` and `index_query_fp8` against their references.

use attn_kernels::gpu::{Bound, Pass};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use dense_kernels::cpu;
use dense_kernels::kernel::index_query_fp8::{self, IndexQueryFp8Params};
use dense_kernels::kernel::index_write::{self, IndexWriteParams};
use dense_kernels::kernel::index_write_fp8::{self, IndexWriteFp8Params, root};
use half::f16;
use proptest::prelude::*;
use sparse_select::dsa::logits::PagedIndexKeys;

use super::device::{cases, dispatch, gpu};
use super::tensors::floats;

/// Vectors of 8 to 256 elements of any size, some of them with a channel far above the others.
fn vectors(count: u32, size: f32, seed: u64) -> Vec<f32> {
    let mut x: Vec<f32> = floats(count as usize, seed).iter().map(|x| x * size).collect();
    x.iter_mut().step_by(101).for_each(|x| *x *= 1e3);
    x
}

proptest! {
    #![proptest_config(cases(16))]
    #[test]
    fn writes_index_keys(rows in 1u32..40, chunks in 1u32..5, blocks in prop::sample::select(vec![4u32, 16, 64]), gap in 0u32..5, half: bool, seed: u64) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let dtype = if half { KvDtype::F16 } else { KvDtype::F32 };
        let shape = KvShape { num_kv_heads: 1, head_dim: chunks * 8, block_size: blocks, dtype, layout: KvLayout::Native };
        let params = IndexWriteParams { rows, row_stride: shape.head_dim + gap, first: gap };
        // Numbers that f16 holds.
        let x: Vec<f32> = floats((rows * params.row_stride) as usize, seed).iter().map(|x| (x * 64.0).round()).collect();
        // Every third row is skipped, the others go backwards.
        let count = i32::try_from(rows).unwrap();
        let slots: Vec<i32> = (0..count).map(|row| if row % 3 == 2 { -1 } else { count - 1 - row }).collect();
        let pool = rows.div_ceil(blocks) as usize * shape.block_bytes() / 4;
        let keys = gpu.upload("keys", &vec![0u32; pool]).unwrap();
        let inputs = (gpu.upload("x", &x).unwrap(), gpu.upload("slots", &slots).unwrap());
        let mut pass = Pass::new("index_write");
        let bindings: [Bound; 3] = [(&inputs.0).into(), (&inputs.1).into(), (&keys).into()];
        dispatch(gpu, &mut pass, &index_write::variant(&shape), &params, &bindings, index_write::grid(&params, &shape));
        let read = pass.read(&keys, 0..pool);
        let words = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        let got: Vec<f32> = match dtype {
            KvDtype::F16 => bytemuck::cast_slice::<u32, f16>(&words).iter().map(|x| x.to_f32()).collect(),
            KvDtype::F32 => bytemuck::cast_slice(&words).to_vec(),
            codes => panic!("no test keeps keys in {codes:?}"),
        };
        let mut want = vec![0.0; got.len()];
        cpu::index_write::index_write(&shape, &params, &x, &slots, &mut want);
        prop_assert_eq!(got, want);
    }

    #[test]
    fn writes_index_keys_in_fp8(
        rows in 1u32..40,
        log_dim in 3u32..9,
        page in prop::sample::select(vec![4u32, 16, 64]),
        gap in 0u32..5,
        size in prop::sample::select(vec![0.0f32, 1e-7, 1.0, 1e6]),
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let head_dim = 1 << log_dim;
        let params = IndexWriteFp8Params { rows, row_stride: head_dim + gap, first: gap, root: root(head_dim) };
        let x = vectors(rows * params.row_stride, size, seed);
        // Every third row is skipped, the others go backwards.
        let count = i32::try_from(rows).unwrap();
        let slots: Vec<i32> = (0..count).map(|row| if row % 3 == 2 { -1 } else { count - 1 - row }).collect();
        let mut want = PagedIndexKeys::new(rows.div_ceil(page) as usize, page as usize, head_dim as usize);
        let before: Vec<u32> = bytemuck::pod_collect_to_vec(want.bytes());
        let keys = gpu.upload("keys", &before).unwrap();
        let inputs = (gpu.upload("x", &x).unwrap(), gpu.upload("slots", &slots).unwrap());
        let mut pass = Pass::new("index_write_fp8");
        let bindings: [Bound; 3] = [(&inputs.0).into(), (&inputs.1).into(), (&keys).into()];
        let variant = index_write_fp8::variant(head_dim, page);
        dispatch(gpu, &mut pass, &variant, &params, &bindings, index_write_fp8::grid(&params));
        let read = pass.read(&keys, 0..before.len());
        let got = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        cpu::index_write_fp8::index_write_fp8(head_dim as usize, &params, &x, &slots, &mut want);
        prop_assert_eq!(bytemuck::cast_slice::<u32, u8>(&got), want.bytes());
    }

    #[test]
    fn rounds_index_queries_to_fp8(
        vectors_of in 1u32..60,
        log_dim in 3u32..9,
        size in prop::sample::select(vec![0.0f32, 1e-7, 1.0, 1e6]),
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let head_dim = 1 << log_dim;
        let params = IndexQueryFp8Params { vectors: vectors_of, root: root(head_dim) };
        let (mut q, mut gates) =
            (vectors(vectors_of * head_dim, size, seed), floats(vectors_of as usize, seed ^ 1));
        let buffers = (gpu.upload("q", &q).unwrap(), gpu.upload("gates", &gates).unwrap());
        let mut pass = Pass::new("index_query_fp8");
        let bindings: [Bound; 2] = [(&buffers.0).into(), (&buffers.1).into()];
        let variant = index_query_fp8::variant(head_dim);
        dispatch(gpu, &mut pass, &variant, &params, &bindings, index_query_fp8::grid(&params));
        let read = (pass.read(&buffers.0, 0..q.len()), pass.read(&buffers.1, 0..gates.len()));
        let done = gpu.submit(pass).unwrap().wait().unwrap();
        let got = (done.get(read.0), done.get(read.1));
        cpu::index_query_fp8::index_query_fp8(head_dim as usize, &mut q, &mut gates);
        prop_assert_eq!(got, (q, gates));
    }
}
