//! NSA: weights of the importance, what is visible, and selections.

use proptest::prelude::*;
use sparse_select::{
    Params, Policy, Selection, Spec, build,
    nsa::{ENTRY, Nsa, compressed_probabilities},
};

use crate::tensors::{Tensor, decode_case, row, select};

fn nsa(text: &str) -> Nsa {
    let spec: Spec = text.parse().unwrap();
    Nsa::from_params(&Params::new("nsa", ENTRY.keys, &spec.params).unwrap()).unwrap()
}

#[test]
fn published_weights_and_visibility() {
    let n = nsa("nsa");
    assert_eq!(n.overlap_weights(), [1, 2, 2, 2, 1]);
    assert_eq!(nsa("nsa:kernel_size=16").overlap_weights(), [1, 1, 1, 1]);
    // Compressed token j is visible from position 16 j + 31 on, that is with 16 j + 32 keys.
    assert_eq!([31, 32, 47, 48, 64].map(|len| n.visible_compressed(len)), [0, 1, 1, 2, 3]);
    // Block 0: 2, 20, 200, 1000; block 1: 1000, 20000. The fourth overlaps both.
    assert_eq!(n.importance(&[1.0, 10.0, 100.0, 1000.0, 1e4], 2), [1222.0, 21000.0]);
    assert!(compressed_probabilities(&[1.0], &[]).is_empty());
    // 512 tokens lie in up to 9 blocks of 64, of which 2 are local in any case: 7 more than topk.
    assert_eq!([64 * 22, 64 * 23, 64 * 100].map(|len| n.budget(None, len)), [22, 23, 23]);
    assert_eq!(nsa("nsa:window_size=0").budget(None, 6400), 16);
}

proptest! {
    /// The weight of a compressed block is the number of strides that it shares with the selected block.
    #[test]
    fn importance_counts_shared_strides(l in 1usize..5, b in 1usize..6, p in prop::collection::vec(0u8..50, 0..30), blocks in 0u32..6) {
        let n = nsa(&format!("nsa:kernel_size={},kernel_stride=2,block_size={}", 2 * l, 2 * b));
        let p: Vec<f32> = p.into_iter().map(f32::from).collect();
        let expected: Vec<f32> = (0..blocks as usize).map(|block| {
            let shared = |j: usize| (j..j + l).filter(|stride| stride / b == block).count() as f32;
            p.iter().enumerate().map(|(j, p)| shared(j) * p).sum()
        }).collect();
        prop_assert_eq!(n.importance(&p, blocks), expected);
    }

    #[test]
    fn a_budget_with_all_ends_forced(c in decode_case(60, 9), topk in 3u32..8, window in 0u32..20) {
        let spec = format!("nsa:kernel_size=4,kernel_stride=2,block_size=4,topk={topk},window_size={window}");
        let s = select(&spec, &c.q, &c.k).selection;
        let n = s.num_blocks();
        prop_assert_eq!(s.groups(), c.k.view().heads());
        for group in 0..s.groups() {
            let chosen = row(&s, group, 0);
            // However the window lies among blocks of 4, its tokens are attended, and topk blocks as without it.
            let reached = if window == 0 { 2 } else { 2.max((window - 1).div_ceil(4) + 1) };
            prop_assert_eq!(chosen.len() as u32, (topk + reached - 2).min(n));
            let len = c.k.view().len();
            let sliding = (len.saturating_sub(window as usize)..len).map(|token| token as u32 / 4);
            for forced in [0, n.saturating_sub(2), n - 1].into_iter().chain(sliding) {
                prop_assert!(chosen.contains(&forced), "{forced} of {chosen:?}");
            }
        }
    }
}

#[test]
fn the_block_that_answers_the_query_is_read() {
    // Key 1 on channel 0 in block 5 for KV head 0 and in block 8 for KV head 1.
    let (mut q, mut k) = (Tensor::zeros([4, 1, 2]), Tensor::zeros([2, 12 * 4, 2]));
    (0..4).for_each(|h| q.set(h, 0, 0, 8.0));
    (20..24).for_each(|t| k.set(0, t, 0, 1.0));
    (32..36).for_each(|t| k.set(1, t, 0, 1.0));
    let mut s = Selection::new();
    let policy = build("nsa:kernel_size=4,kernel_stride=2,block_size=4,topk=4,window_size=0").unwrap();
    policy.select_into(&sparse_select::Input::decode(q.view(), k.view()), &mut s).unwrap();
    insta::assert_snapshot!(s.strip(0, 0).marks(1, 2), @"S....#....RR");
    insta::assert_snapshot!(s.strip(1, 0).marks(1, 2), @"S.......#.RR");
}

#[test]
fn contradictions() {
    let message = |text: &str| build(text).unwrap_err().to_string();
    insta::assert_snapshot!(message("nsa:kernel_size=24"), @"nsa: kernel_size must be a multiple of kernel_stride; they are kernel_size = 24, kernel_stride = 16");
    insta::assert_snapshot!(message("nsa:block_size=24"), @"nsa: block_size must be a multiple of kernel_stride; they are block_size = 24, kernel_stride = 16");
    insta::assert_snapshot!(message("nsa:topk=2"), @"nsa: topk must hold init_blocks and local_blocks; they are topk = 2, init_blocks = 1, local_blocks = 2");
}
