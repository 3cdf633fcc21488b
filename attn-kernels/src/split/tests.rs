use proptest::prelude::*;

use super::*;
use crate::kernel::KvDtype;

const H200: DeviceProfile = DeviceProfile::H200;

fn shape(dtype: KvDtype) -> KvShape {
    KvShape { num_kv_heads: 8, head_dim: 128, block_size: 16, dtype, layout: crate::kernel::KvLayout::Native }
}

/// Partitions are long, yet leave enough work for a large GPU.
#[test]
fn partitions_leave_enough_workgroups() {
    let of = |shape: &KvShape, num_heads, lanes, rows: u64, keys: u32| {
        partition_of(&Tuning::H200, shape, num_heads, lanes, rows * u64::from(keys), keys)
    };
    for lanes in [Lanes::Workgroup, Lanes::Subgroup(32)] {
        for dtype in [KvDtype::F16, KvDtype::Int8] {
            let (shape, least) = (shape(dtype), paged_decode::tile(&shape(dtype), lanes, 0));
            let of_32 = |rows, keys| of(&shape, 32, lanes, rows, keys);
            assert_eq!([of_32(0, 0), of_32(1, 1), of_32(1, 4096)], [least; 3], "{lanes:?}, {dtype:?}");
            assert_eq!([of_32(1, 32_768), of_32(1, 65_536), of_32(1, 131_072)], [512, 1024, 2048]);
            assert_eq!([of_32(64, 1024), of_32(16, 32_768), of_32(64, 131_072)], [1024, 2048, 2048]);
            // Two groups of four heads for each KV head are twice the workgroups.
            assert_eq!(of(&shape, 64, lanes, 1, 32_768), 1024);
            // More workgroups of one head each run at once.
            assert_eq!(of(&shape, 8, lanes, 1, 131_072), 1024);
            // Four partitions all the same, but none of 256 keys.
            assert_eq!(of_32(16, 3328), if least == 128 { 896 } else { 1024 });
        }
    }
    // With matrices eight heads are one group.
    let by_matrices = |rows, keys| of(&shape(KvDtype::F16), 64, Lanes::Matrices, rows, keys);
    let one = [by_matrices(0, 0), by_matrices(1, 4096), by_matrices(1, 32_768), by_matrices(1, 131_072)];
    assert_eq!(one, [16, 64, 256, 1024]);
    assert_eq!([512, 1024, 1025, 2048, 2049].map(|keys| by_matrices(1, keys)), [16, 16, 32, 32, 64]);
    assert_eq!([by_matrices(64, 1024), by_matrices(16, 32_768)], [512, 2048]);
    // Two KV heads, as in Qwen2.5 3B.
    let two = KvShape { num_kv_heads: 2, ..shape(KvDtype::F16) };
    assert_eq!([1, 8, 32, 64].map(|rows| of(&two, 16, Lanes::Matrices, rows, 288)), [16, 16, 32, 64]);
    assert_eq!([partitions(256, 0, 513), partitions(256, 255, 257), partitions(256, 256, 256)], [3, 2, 0]);
}

/// DeepSeek V3 has 128 heads over latents of 512: at 256 keys a partition a row of 1,000,000 tokens would leave a GiB.
#[test]
fn partitions_of_long_contexts_stay_within_their_budget() {
    let sizes = |profile: &DeviceProfile, cache, num_heads, longest| {
        let planner = SplitPlanner::new(profile, cache, num_heads, longest);
        let rows = [DecodeRow { len: longest, ..DecodeRow::default() }; 16];
        [None, Some(planner.fixed())].map(|fixed| {
            let plan = planner.all(&rows, fixed);
            let most = plan.max_partitions.max(planner.max_listed(&rows, fixed));
            let bytes = planner.outputs(1 << 20, most) as u64 * u64::from(cache.width()) * 4;
            let budget = fixed.map_or(0, |_| profile.binding_bytes / 2).max(planner.budget());
            assert!(bytes <= budget, "{bytes} bytes of {budget}");
            plan.partition_size
        })
    };
    let latents = |longest| sizes(&H200, SplitCache::Latents(512), 128, longest);
    assert_eq!([8_192, 16_384].map(latents), [[256, 256], [512, 256]]);
    assert_eq!([65_537, 1_000_000].map(latents), [[2_048, 512], [4_096, 4_096]]);
    let heads = |longest| sizes(&H200, SplitCache::Heads(shape(KvDtype::F16)), 32, longest);
    assert_eq!([261_000, 1_000_000].map(heads), [[2_048, 256], [2_048, 256]]);
    // Within a binding of WebGPU's default size.
    let small = |longest| sizes(&DeviceProfile::WEBGPU, SplitCache::Latents(512), 128, longest);
    assert_eq!([65_537, 1_000_000].map(small), [[4_096, 4_096], [4_096, 4_096]]);
}

#[test]
fn parts_fill_a_gpu_and_cover_all_keys() {
    let parts = |workgroups, keys| {
        let KeySplit { count, keys: each } = KeySplit::of(&Tuning::H200, workgroups, keys);
        assert!(
            count == 1 || ((count - 1) * each < keys && keys <= count * each),
            "{keys}: {count} of {each}"
        );
        count
    };
    // A tile of 32 heads; sixteen of them.
    assert_eq!([500, 2_048, 8_000, 32_000, 120_001].map(|keys| parts(32, keys)), [1, 2, 7, 8, 8]);
    assert_eq!([500, 2_048, 120_000].map(|keys| parts(5 * 32, keys)), [1, 1, 1]);
    // Without tiles there is nothing to cut.
    assert_eq!(parts(0, 0), 1);
}

#[test]
fn rows_count_the_partitions_that_their_keys_lie_in() {
    let row = |(len, first_key)| DecodeRow { len, first_key, ..DecodeRow::default() };
    let rows = [(300, 0), (1025, 255), (0, 0)].map(row);
    assert_eq!(SplitPlan::of(Lanes::Workgroup, 256, &rows).max_partitions, 5);
    assert_eq!(SplitPlan::of(Lanes::Workgroup, 2048, &rows).max_partitions, 1);
}

#[test]
fn dispatches_of_many_rows_share_their_bytes() {
    let planner = SplitPlanner::new(&H200, SplitCache::Latents(512), 128, 8_192);
    assert_eq!(planner.rows_together(1), 256);
    assert_eq!([16, 32, 64, 128, 1_000].map(|most| planner.rows_together(most)), [16, 16, 16, 8, 1]);
    assert_eq!([planner.outputs(4, 32), planner.outputs(1 << 20, 32)], [4 * 128 * 32, 16 * 128 * 32]);
}

proptest! {
    #[test]
    fn no_row_has_more_partitions_than_the_plan_says(
        (kv_heads, group, dtype) in (1u32..9, 1u32..13, prop::sample::select(vec![KvDtype::F16, KvDtype::Fp8])),
        lens in prop::sample::select(vec![3_000u32, 300_000])
            .prop_flat_map(|most| prop::collection::vec((0..most, 0..most), 1..80)),
        longest in 300_000u32..2_000_000,
        fixed in prop::option::of(Just(512)),
    ) {
        let shape = KvShape { num_kv_heads: kv_heads, ..shape(dtype) };
        let planner = SplitPlanner::new(&H200, SplitCache::Heads(shape), kv_heads * group, longest);
        let row = |(a, b): &(u32, u32)| DecodeRow {
            len: *a.max(b),
            first_key: *a.min(b),
            ..DecodeRow::default()
        };
        let rows: Vec<_> = lens.iter().map(row).collect();
        let plan = planner.all(&rows, fixed);
        for row in &rows {
            let has = partitions(plan.partition_size, row.first_key, row.len);
            prop_assert!(has <= plan.max_partitions, "{has} of {} keys", plan.partition_size);
        }
        for tokens in [1, 300, 1_000, 2_000, 100_000] {
            let listed = planner.listed(&rows, tokens, fixed);
            prop_assert!(listed.max_partitions <= planner.max_listed(&rows, fixed));
        }
    }
}
