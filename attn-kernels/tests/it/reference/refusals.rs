//! Refused launches of attention and cache operations, with the numbers that the refusal names. No device is asked.

use attn_kernels::kernel::paged_decode::{self, PagedDecodeParams};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape, LaunchError};
use insta::assert_snapshot;

const SHAPE: KvShape =
    KvShape { num_kv_heads: 2, head_dim: 16, block_size: 16, dtype: KvDtype::F16, layout: KvLayout::Native };

fn decode(change: fn(&mut PagedDecodeParams), row: [u32; 4], tables: &[u32]) -> Result<(), LaunchError> {
    let mut params = PagedDecodeParams {
        num_heads: 4,
        num_kv_heads: 2,
        q_stride: 64,
        max_partitions: 2,
        partition_size: 256,
        scale: 1.0,
        reduced: 1,
        ..PagedDecodeParams::default()
    };
    change(&mut params);
    let rows = [[0, 1, 1, 0], row];
    paged_decode::check(&SHAPE, &params, &rows, (tables, 8), [128, 256, 16])
}

#[test]
fn shapes_that_no_kernel_takes() {
    let said = |change: fn(&mut KvShape), num_heads| {
        let mut shape = SHAPE;
        change(&mut shape);
        shape.validate(num_heads).unwrap_err().to_string()
    };
    assert_eq!(SHAPE.validate(4), Ok(()));
    assert_snapshot!(said(|s| s.head_dim = 20, 4), @"paged cache: head size is 20, not a multiple of 8");
    assert_snapshot!(said(|s| s.head_dim = 576, 4), @"paged cache: head size is 576, the limit is 512");
    assert_snapshot!(said(|s| s.block_size = 24, 4), @"paged cache: block size is 24, not a power of two");
    assert_snapshot!(said(|s| s.block_size = 2, 4), @"paged cache: block size is 2, not a multiple of 4");
    assert_snapshot!(said(|s| s.block_size = 512, 4), @"paged cache: block size is 512, the limit is 256");
    assert_snapshot!(said(|s| s.num_kv_heads = 0, 4), @"paged cache: number of KV heads is 0");
    assert_snapshot!(said(|_| {}, 5), @"paged cache: number of query heads is 5, not a multiple of 2");
}

#[test]
fn rows_of_decode() {
    let tables = [0, 1, 2, 7, 8];
    assert_eq!(decode(|_| {}, [1, 64, 0, 20], &tables), Ok(()));
    let said = |change, row| decode(change, row, &tables).unwrap_err().to_string();
    assert_snapshot!(said(|_| {}, [2, 1, 0, 0]), @"paged_decode: end in q of entry 1 is 192, the limit is 128");
    assert_snapshot!(said(|_| {}, [1, 9, 0, 10]), @"paged_decode: first key of entry 1 is 10, the limit is 9");
    assert_snapshot!(said(|_| {}, [1, 90, 0, 0]), @"paged_decode: end in the tables of entry 1 is 6, the limit is 5");
    assert_snapshot!(said(|_| {}, [1, 80, 0, 0]), @"paged_decode: block of the table + 1 of entry 1 is 9, the limit is 8");
    assert_snapshot!(said(|_| {}, [1, 513, 0, 0]), @"paged_decode: partitions of entry 1 is 3, the limit is 2");
    assert_snapshot!(said(|p| p.max_partitions = 3, [1, 1, 0, 0]), @"paged_decode: entries of stats is 24, the limit is 16");
    assert_snapshot!(said(|p| p.reduced = 0, [1, 1, 0, 0]), @"paged_decode: partitions without a reduce pass is 2, the limit is 1");
    assert_snapshot!(said(|p| p.partition_size = 0, [1, 1, 0, 0]), @"paged_decode: keys of a partition is 0");
    // Blocks before the first key may be anything: a window has given them back.
    assert_eq!(decode(|_| {}, [1, 64, 0, 20], &[99, 1, 2, 7]), Ok(()));
}
