//! Refused launches of attention and cache operations, with the numbers that the refusal names. No device is asked.

use attn_kernels::kernel::attention::check_lists;
use attn_kernels::kernel::cache_write::{self, CacheWriteParams};
use attn_kernels::kernel::paged_decode::{self, PagedDecodeParams};
use attn_kernels::kernel::paged_prefill::{self, PagedPrefillParams, Tile};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape, LaunchError, copy_blocks};
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

fn said_of(checked: Result<(), LaunchError>) -> String {
    checked.unwrap_err().to_string()
}

#[test]
fn tiles_of_prefill() {
    let params = PagedPrefillParams {
        num_heads: 4,
        num_kv_heads: 2,
        q_stride: 64,
        scale: 1.0,
        ..PagedPrefillParams::default()
    };
    let check =
        |tile| paged_prefill::check(&SHAPE, &params, (&[tile], 64), (&[0, 1, 8], 8), [640, 512, 32, 20]);
    let tile = Tile::new(0..8, 24, 0);
    assert_eq!(check(tile), Ok(()));
    let said = |tile| check(tile).unwrap_err().to_string();
    assert_snapshot!(said(Tile::new(0..0, 24, 0)), @"paged_prefill: rows of a tile is 0");
    assert_snapshot!(said(Tile::new(0..65, 24, 0)), @"paged_prefill: rows of entry 0 is 65, the limit is 64");
    assert_snapshot!(said(Tile::new(3..11, 24, 0)), @"paged_prefill: end in q of entry 0 is 704, the limit is 640");
    assert_snapshot!(said(Tile::new(1..9, 24, 0)), @"paged_prefill: end in the output of entry 0 is 576, the limit is 512");
    let in_keys = PagedPrefillParams { num_keys: 12, ..params };
    let listed = PagedPrefillParams { list_stride: 5, ..params };
    let short = |params, tile, lse_len| {
        said_of(paged_prefill::check(&SHAPE, params, (&[tile], 64), (&[0, 1, 8], 8), [640, 512, lse_len, 20]))
    };
    assert_snapshot!(short(&params, tile, 31), @"paged_prefill: end in lse of entry 0 is 32, the limit is 31");
    assert_snapshot!(short(&in_keys, tile, 32), @"paged_prefill: keys of the dispatch is 12, not a multiple of 8");
    assert_eq!(
        paged_prefill::check(&SHAPE, &listed, (&[tile.listed(1)], 64), (&[0, 1, 8], 8), [640, 512, 32, 20]),
        Ok(())
    );
    assert_snapshot!(short(&listed, tile.listed(2), 32), @"paged_prefill: end in the lists of entry 0 is 30, the limit is 20");
    assert_snapshot!(said(Tile::new(0..8, 41, 0)), @"paged_prefill: end in the tables of entry 0 is 4, the limit is 3");
    assert_snapshot!(said(Tile::new(0..8, 25, 0)), @"paged_prefill: block of the table + 1 of entry 0 is 9, the limit is 8");
}

#[test]
fn lists_of_blocks() {
    let said = |lists: &[u32]| check_lists(lists, 4, &[100, 40], 32).unwrap_err().to_string();
    assert_eq!(check_lists(&[3, 0, 2, 3, 1, 1, 9, 9], 4, &[100, 40], 32), Ok(()));
    assert_snapshot!(said(&[1, 0, 0, 0]), @"selected blocks: entries of lists is 8, the limit is 4");
    assert_snapshot!(said(&[4, 0, 1, 2, 0, 0, 0, 0]), @"selected blocks: blocks listed + 1 of entry 0 is 5, the limit is 4");
    assert_snapshot!(said(&[2, 2, 1, 0, 0, 0, 0, 0]), @"selected blocks: block before + 1 of entry 0 is 3, the limit is 1");
    assert_snapshot!(said(&[1, 0, 0, 0, 1, 2, 0, 0]), @"selected blocks: listed block + 1 of entry 1 is 3, the limit is 2");
}

#[test]
fn slots_and_copies() {
    let params = CacheWriteParams {
        rows: 2,
        num_kv_heads: 2,
        row_stride: 64,
        k_start: 0,
        v_start: 32,
        k_scale: 1.0,
        v_scale: 1.0,
    };
    let write =
        |slots: &[i32], len| cache_write::check(&SHAPE, &params, slots, 8, len).map_err(|e| e.to_string());
    assert_eq!(write(&[-1, 127], 128), Ok(()));
    assert_snapshot!(write(&[0, 128], 128).unwrap_err(), @"cache_write: slot + 1 of entry 1 is 129, the limit is 128");
    assert_snapshot!(write(&[0, 1], 127).unwrap_err(), @"cache_write: end in the source of entry 1 is 128, the limit is 127");
    assert_snapshot!(write(&[0], 128).unwrap_err(), @"cache_write: rows is 2, the limit is 1");

    let copy = |pairs: &[[u32; 2]]| copy_blocks::check(pairs, 4).map_err(|e| e.to_string());
    assert_eq!(copy(&[[0, 1], [0, 2]]), Ok(()));
    assert_snapshot!(copy(&[[0, 4]]).unwrap_err(), @"copy_blocks: destination block + 1 of entry 0 is 5, the limit is 4");
    assert_snapshot!(copy(&[[0, 1], [2, 1]]).unwrap_err(), @"copy_blocks: copies into the destination of entry 0 is 2, the limit is 1");
    assert_snapshot!(copy(&[[0, 1], [1, 2]]).unwrap_err(), @"copy_blocks: copies into the source of entry 1 is 1, the limit is 0");
}
