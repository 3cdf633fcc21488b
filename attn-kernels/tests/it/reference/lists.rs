//! `keep_lists`, `vote_blocks` and `list_counts` against their references, for random lists.

use super::by_hand::dispatch;
use super::device::{cases, gpu};
use attn_kernels::cpu;
use attn_kernels::gpu::Pass;
use attn_kernels::kernel::keep_lists::{self, KeepListsParams};
use attn_kernels::kernel::list_counts::{self, ListCountsParams};
use attn_kernels::kernel::vote_blocks::{self, VoteBlocksParams};
use attn_kernels::rows::KeptRow;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

/// Lists of random blocks below `blocks`, ascending, `stride` words each.
fn random_lists(lists: u32, blocks: u32, stride: u32, seed: u64) -> Vec<u32> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut words = vec![9; (lists * stride) as usize];
    for list in words.chunks_mut(stride as usize) {
        let share = rng.random_range(0.0..1.0);
        let kept: Vec<u32> = (0..blocks).filter(|_| rng.random_bool(share)).collect();
        list[0] = u32::try_from(kept.len()).unwrap();
        list[1..=kept.len()].copy_from_slice(&kept);
    }
    words
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn votes_are_counted(
        voters in 1..40_u32,
        blocks in prop_oneof![0..40_u32, 2000..2100_u32],
        own in 1..20_u32,
        share in 0.0..1.0_f32,
        copies in 1..4_u32,
        seed in any::<u64>(),
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 40 voters")]
        let votes = 1 + (share * voters as f32) as u32;
        let params = VoteBlocksParams {
            voters, in_stride: blocks + 1, votes, blocks, end: blocks + own, copies,
            out_stride: blocks + own + 2, first_list: 2,
        };
        let lists = random_lists(voters, blocks, params.in_stride, seed);
        let out_len = ((params.first_list + copies) * params.out_stride) as usize;
        let input = gpu.upload("lists", &lists).unwrap();
        let out = gpu.upload("out", &vec![77_777_u32; out_len]).unwrap();
        let mut pass = Pass::new("vote");
        let bindings = [(&input).into(), (&out).into()];
        dispatch(gpu, &mut pass, &vote_blocks::variant(), &params, &bindings);
        let read = pass.read(&out, 0..out_len);
        let got = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        let kept = cpu::vote_blocks::vote_blocks(&params, &lists);
        for (i, list) in got.chunks(params.out_stride as usize).enumerate() {
            if i < params.first_list as usize {
                prop_assert!(list.iter().all(|&word| word == 77_777));
            } else {
                prop_assert_eq!(&list[1..=list[0] as usize], &kept[..]);
            }
        }
    }

    /// Rows in any order, with slots of their own, of which some make their lists and some keep them.
    #[test]
    fn lists_are_kept(
        made in prop::collection::vec(any::<bool>(), 1..12), sets in 1..4_u32, copies in 1..4_u32, blocks in 1..300_u32,
        begun in 0..9_u32, seed in any::<u64>(),
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let mut rng = StdRng::seed_from_u64(seed);
        let count = u32::try_from(made.len()).unwrap();
        let mut slots: Vec<u32> = (0..count + 3).collect();
        slots.shuffle(&mut rng);
        let rows: Vec<KeptRow> = made.iter().zip(&slots).map(|(made, slot)| KeptRow {
            slot: if rng.random_bool(0.1) { KeptRow::NONE } else { *slot },
            then: blocks,
            blocks: blocks + if *made { 0 } else { begun },
            made: u32::from(*made),
        }).collect();
        let params = KeepListsParams {
            rows: count, sets, copies, list_stride: blocks + begun + 1, kept_stride: blocks + 1 + u32::try_from(seed % 5).unwrap(),
        };
        let kept = random_lists((count + 3) * sets, blocks, params.kept_stride, seed);
        let lists = random_lists(count * sets * copies, blocks, params.list_stride, !seed);
        let [on_kept, on_lists] = [&kept, &lists].map(|words| gpu.upload("words", words).unwrap());
        let on_rows = gpu.upload("rows", &rows).unwrap();
        let mut pass = Pass::new("keep");
        let bindings = [(&on_rows).into(), (&on_kept).into(), (&on_lists).into()];
        dispatch(gpu, &mut pass, &keep_lists::variant(), &params, &bindings);
        let reads = [pass.read(&on_kept, 0..kept.len()), pass.read(&on_lists, 0..lists.len())];
        let done = gpu.submit(pass).unwrap().wait().unwrap();
        let [got_kept, got_lists] = reads.map(|read| done.get(read));
        let (mut want_kept, mut want_lists) = (kept, lists);
        cpu::keep_lists::keep_lists(&params, &rows, &mut want_kept, &mut want_lists);
        prop_assert_eq!(got_kept, want_kept);
        prop_assert_eq!(got_lists, want_lists);
    }

    #[test]
    fn counts_add_up(lists in 1..200_u32, stride in 1..9_u32, cut in 0.0..1.0_f32, seed in any::<u64>()) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let words = random_lists(lists, stride - 1, stride, seed);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 200 lists")]
        let middle = (cut * lists as f32) as u32;
        let spans = [[0, middle], [middle, lists - middle], [0, lists]];
        let params = ListCountsParams { list_stride: stride, first: 1, spans: 3 };
        let [input, counts] = [&words[..], &[5; 4]].map(|data| gpu.upload("words", data).unwrap());
        let runs = gpu.upload("spans", &spans).unwrap();
        let mut pass = Pass::new("count");
        let bindings = [(&input).into(), (&runs).into(), (&counts).into()];
        dispatch(gpu, &mut pass, &list_counts::variant(), &params, &bindings);
        let read = pass.read(&counts, 0..4);
        let got = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        prop_assert_eq!(got[0], 5);
        prop_assert_eq!(&got[1..], &cpu::list_counts::list_counts(&words, stride, &spans)[..]);
    }
}
