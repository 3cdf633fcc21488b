//! `paged_decode` and `paged_reduce` against their references, and what they promise to the bit.

use super::decode::{Decode, lanes_of};
use super::device::{assert_bits, gpu};
use super::layer::shape_of;
use attn_kernels::kernel::attention::Attention;
use attn_kernels::kernel::paged_decode::{Lanes, PARTITION};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use attn_kernels::profile::DeviceProfile;

use crate::usual;

/// In one partition and in several.
#[test]
fn one_call_attends_as_the_reference_does() {
    let Some(gpu) = gpu() else { return };
    for (dtype, lens) in
        [(KvDtype::F16, &[1, 17, 0, 300][..]), (KvDtype::F32, &[2100, 40]), (KvDtype::Int8, &[33])]
    {
        let shape =
            KvShape { num_kv_heads: 2, head_dim: 64, block_size: 16, dtype, layout: KvLayout::Native };
        Decode::new(shape, 6, lens, 0, 4).check_attend(gpu);
    }
}

/// The ends of what is served: heads of 16 to 512 elements, groups of 1 to 128 query heads, blocks of 4 to 128 tokens.
#[test]
fn heads_groups_and_blocks_at_their_limits() {
    let Some(gpu) = gpu() else { return };
    let limits = [
        (512, 1, 8, 4, KvDtype::Int8),
        (16, 1, 128, 128, KvDtype::F32),
        (24, 2, 100, 8, KvDtype::Fp8),
        (248, 3, 1, 128, KvDtype::F32),
        (16, 1, 31, 4, KvDtype::F16),
        (256, 1, 128, 4, KvDtype::F16),
        (512, 1, 3, 16, KvDtype::F16),
    ];
    for &(head_dim, num_kv_heads, group, block_size, dtype) in usual(3, &limits) {
        let shape = KvShape { num_kv_heads, head_dim, block_size, dtype, layout: KvLayout::Native };
        Decode::new(shape, num_kv_heads * group, &[300, 1, block_size + 1], 4, 31).check(gpu);
    }
}

#[test]
fn partitions_of_any_size_hold_the_same_keys() {
    let Some(gpu) = gpu() else { return };
    let shape = KvShape {
        num_kv_heads: 1,
        head_dim: 8,
        block_size: 16,
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    for partition in [128, 512, 2048, 1 << 31] {
        let decode = || Decode::new(shape, 3, &[2047, 70, 0, 2048, 5000], 0, 10).in_partitions(partition);
        decode().check(gpu);
        decode().listed(64, 0.5, 12).check(gpu);
    }
}

#[test]
fn lanes_follow_from_heads_types_and_keys() {
    let shape =
        |dtype| KvShape { num_kv_heads: 8, head_dim: 128, block_size: 16, dtype, layout: KvLayout::Native };
    let of = |dtype, heads, keys| Lanes::of(&DeviceProfile::H200, &shape(dtype), heads, keys);
    let subgroups = Lanes::Subgroup(32);
    assert_eq!([of(KvDtype::F16, 32, 1 << 30), of(KvDtype::F16, 64, 1)], [subgroups, Lanes::Matrices]);
    assert_eq!([of(KvDtype::Int8, 32, 1 << 30), of(KvDtype::Int8, 64, 1)], [subgroups, Lanes::Matrices]);
    let fp8 = [of(KvDtype::Fp8, 32, 131_071), of(KvDtype::Fp8, 32, 131_072)];
    assert_eq!(fp8, [Lanes::Workgroup, Lanes::Matrices]);
    assert_eq!([of(KvDtype::F32, 32, 1 << 30), of(KvDtype::F32, 64, 1)], [subgroups, Lanes::Workgroup]);
    // What matrices do not serve, where they do not run, and where subgroups vary.
    let small = KvShape { block_size: 8, ..shape(KvDtype::F16) };
    assert_eq!(Lanes::of(&DeviceProfile::H200, &small, 64, 1), Lanes::Workgroup);
    let exact = DeviceProfile::H200.rounded(false);
    assert_eq!(Lanes::of(&exact, &shape(KvDtype::F16), 64, 1), Lanes::Workgroup);
    assert_eq!(Lanes::of(&exact.subgroups(16, 32), &shape(KvDtype::F16), 32, 1), Lanes::Workgroup);
}

#[test]
fn a_row_does_not_depend_on_the_others() {
    let Some(gpu) = gpu() else { return };
    let shape = KvShape {
        num_kv_heads: 2,
        head_dim: 64,
        block_size: 16,
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    let decode = Decode::new(shape, 6, &[1, 300, 512, 513, 1500], 4, 11);
    let width = (decode.num_heads * shape.head_dim) as usize;
    for by in lanes_of(gpu, &shape).into_iter().map(|lanes| (gpu, lanes)) {
        let together = decode.on_gpu(by, &[4, 2, 0, 1, 3], 1500_u32.div_ceil(PARTITION)).out;
        for i in 0..decode.lens.len() {
            let alone = decode.on_gpu(by, &[i], decode.lens[i].div_ceil(PARTITION)).out;
            let row = (decode.lens.len() - 1 - i) * width..(decode.lens.len() - i) * width;
            let what = format!("row of length {}, {:?}", decode.lens[i], by.1);
            assert_bits(&what, &alone[row.clone()], &together[row]);
        }
    }
}

/// Rows too many for one dispatch, with lists and without: those of a second one are as they are in one of all.
#[test]
fn dispatches_may_begin_at_any_row() {
    let Some(gpu) = gpu() else { return };
    let shape = KvShape {
        num_kv_heads: 2,
        head_dim: 64,
        block_size: 16,
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    let lens = [1, 300, 512, 513, 1500];
    let plain = || Decode::new(shape, 6, &lens, 4, 19);
    let listed = || plain().listed(16, 0.4, 20);
    for lanes in lanes_of(gpu, &shape) {
        for decode in [&plain as &dyn Fn() -> Decode, &listed] {
            let run = |skipped| {
                let decode = decode().skipping(skipped);
                decode.on_gpu((gpu, lanes), &[0, 1, 2, 3, 4], 1500_u32.div_ceil(PARTITION)).out
            };
            let all = run(0);
            for skipped in 1..5 {
                // The last sequence has the first row.
                let rows = ..(lens.len() - skipped as usize) * 6 * 64;
                assert_bits(&format!("rows from {skipped} on, {lanes:?}"), &run(skipped)[rows], &all[rows]);
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_the_block_size() {
    let Some(gpu) = gpu() else { return };
    let mut sizes = [4, 256, 32];
    for &dtype in usual(1, &[KvDtype::F16, KvDtype::F32]) {
        sizes.rotate_left(1);
        let shape = |block_size| KvShape {
            num_kv_heads: 1,
            head_dim: 40,
            block_size,
            dtype,
            layout: KvLayout::Native,
        };
        for by in lanes_of(gpu, &shape(16)).into_iter().map(|lanes| (gpu, lanes)) {
            let of = |block_size| {
                let decode = Decode::new(shape(block_size), 4, &[70, 513, 1], 0, 13);
                decode.on_gpu(by, &[0, 1, 2], 513_u32.div_ceil(PARTITION)).out
            };
            let want = of(16);
            for &block_size in usual(1, &sizes) {
                let what = format!("block size {block_size}, {dtype:?}, {:?}", by.1);
                assert_bits(&what, &of(block_size), &want);
            }
        }
    }
}

/// Codes of eight bits, over partitions and the edges of blocks.
#[test]
fn codes_are_read_as_they_are_kept() {
    let Some(gpu) = gpu() else { return };
    let mut indices = [2, 3, 5];
    for dtype in [KvDtype::Fp8, KvDtype::Int8] {
        indices.rotate_left(1);
        for &index in usual(1, &indices) {
            let (shape, num_heads) = shape_of(index, dtype);
            Decode::new(shape, num_heads, &[1, 31, 32, 33, 0, 256, 257, 600], 8, 35).check(gpu);
        }
    }
}

/// One partition and its reduce pass, large sinks and none.
#[test]
fn sinks_take_their_share() {
    let Some(gpu) = gpu() else { return };
    let shape = KvShape {
        num_kv_heads: 2,
        head_dim: 64,
        block_size: 16,
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    let attention = Attention { sinks: true, ..Attention::default() };
    for seed in 0..3 {
        Decode::new(shape, 4, &[5, 0, 256, 1], 0, 32).asking(attention, seed).check(gpu);
    }
    Decode::new(shape, 4, &[700, 600], 0, 33).asking(attention, 1).listed(32, 0.5, 3).check(gpu);
}
