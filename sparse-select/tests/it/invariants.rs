//! Invariants of every policy: rows are ascending and in range, forced blocks are there, budgets are what they say, and a
//! higher threshold never drops a block.

use proptest::prelude::*;
use sparse_select::{Input, Selection, build};

use crate::tensors::{Tensor, decode_case, select};

/// SPEC, and the first and last blocks that it always keeps.
const POLICIES: [(&str, u32, u32); 15] = [
    ("full:block_size=4", 1, 1),
    ("streaming:sink=2,recent=3,block_size=4", 2, 3),
    ("vertical-slash:block_size=4", 1, 2),
    ("gsa:block_size=4", 1, 2),
    ("gsa:block_size=4,scoring=mean_k,init_window_sz=2,local_window_sz=1,sparse_ratio=0.2", 2, 1),
    ("gsa-ucm:block_size=4,min_topk=1,max_topk=4,seg_prefill_threshold=0", 1, 2),
    ("esa:block_size=4", 1, 2),
    ("kvstar:block_size=4,local_window_sz=3", 1, 3),
    ("kvcomp:block_size=4,topk_tokens=32,length_threshold=32,hash_bits=32", 1, 2),
    ("xattn:block_size=4,stride=4", 1, 1),
    ("flashprefill:block_size=4", 2, 4),
    ("skip-softmax:block_size=4,scale=2", 1, 1),
    ("quest:block_size=4,page_budget=5", 0, 1),
    ("quest:block_size=4,mass=0.7", 0, 1),
    ("nsa:kernel_size=4,kernel_stride=2,block_size=4,topk=4,window_size=9", 1, 3),
];

proptest! {
    #[test]
    fn every_policy_keeps_what_it_must(c in decode_case(90, 99)) {
        for (spec, first, last) in POLICIES {
            let policy = build(spec).unwrap();
            let input = Input::decode(c.q.view(), c.k.view());
            let mut selection = Selection::new();
            policy.select_into(&input, &mut selection).unwrap();
            let n = input.num_blocks(policy.block_size());
            prop_assert_eq!(selection.num_blocks(), n, "{}", spec);
            for group in 0..selection.groups() {
                let row: Vec<u32> = selection.row(group, 0).iter().map(|b| b.get()).collect();
                prop_assert!(row.windows(2).all(|pair| pair[0] < pair[1]), "{spec}: {row:?}");
                prop_assert!(row.iter().all(|&block| block < n), "{spec}: {row:?} of {n}");
                let forced = (0..first.min(n)).chain(n.saturating_sub(last)..n);
                for block in forced {
                    prop_assert!(row.contains(&block), "{spec}: {row:?} of {n} lacks {block}");
                }
                if policy.ranking().is_some() && !policy.keeps_all(None, c.k.view().len()) {
                    let budget = policy.budget(None, c.k.view().len());
                    let exact = policy.mass().is_none();
                    prop_assert!(row.len() <= budget as usize, "{spec}: {row:?} of {n}");
                    prop_assert!(!exact || row.len() == budget as usize, "{spec}: {row:?} of {n}");
                }
            }
        }
    }

    /// Whoever is told that nothing is dropped below some length finds it so, and one more block is where something is.
    #[test]
    fn everything_is_kept_as_long_as_budgets_have_room(
        budget in 1u32..40, ratio in 0.05..=1.0f64, windows in [0u32..9, 1u32..9], given in 0usize..200,
    ) {
        let [init, local] = windows;
        let windows = format!("init_window_sz={init},local_window_sz={local},min_blocks={budget},sparse_ratio={ratio}");
        let layers = "layer_ratios=0.9:0.5,min_tokens";
        for spec in [
            format!("gsa:block_size=4,{windows}"),
            format!("gsa:block_size=4,{windows},{layers}={given}"),
            format!("esa:block_size=4,{windows}"),
            format!(
                "gsa-ucm:block_size=4,min_topk=1,max_topk={budget},init_window_sz=0,sparse_ratio={ratio},seg_prefill_threshold={given}"
            ),
            format!(
                "kvcomp:block_size=4,topk_tokens={0},length_threshold={1},sink=0,recent=1",
                4 * budget + 16,
                4 * budget as usize + 16 + given
            ),
            format!("quest:block_size=4,page_budget={budget}"),
            format!("nsa:kernel_size=4,kernel_stride=4,block_size=4,topk={},window_size=0", budget + 3),
        ] {
            let policy = build(&spec).unwrap();
            let blocks = |len: usize| len.div_ceil(4) as u32;
            let layers = [None, Some(0), Some(1), Some(2)];
            let keeps = |len: usize| layers.iter().all(|layer| policy.budget(*layer, len) == blocks(len));
            let below = policy.whole_below();
            prop_assert!((1..below.min(2000)).all(keeps), "{spec}: drops some below {below}");
            let first = (1..2000).find(|len| !keeps(*len)).unwrap_or(usize::MAX);
            // Of a block that is not full, a share may be rounded up.
            prop_assert!(first == usize::MAX || below + 4 >= first, "{spec}: {below}, not {first}");
            prop_assert!(first < usize::MAX || below >= 2000, "{spec}: nothing is dropped from {below} on");
            prop_assert!(policy.support().dense_below_tokens <= below, "{spec}");
        }
    }

    #[test]
    fn a_higher_threshold_drops_nothing(
        seed in any::<u64>(), k_len in 16usize..90, kv_heads in 1usize..3, group in 1usize..3, shares in [0.05..1.0f64, 0.05..1.0],
    ) {
        let (low, high) = (shares[0].min(shares[1]), shares[0].max(shares[1]));
        let k = Tensor::seeded(seed, [kv_heads, k_len, 3], 200);
        let chunk = Tensor::seeded(!seed, [kv_heads * group, k_len / 2, 3], 200);
        let long = Tensor::seeded(!seed, [kv_heads * group, 260, 3], 200);
        let step = Tensor::seeded(!seed, [kv_heads * group, 1, 3], 200);
        for (spec, q) in [
            ("xattn:block_size=8,stride=2,threshold=", &chunk),
            ("xattn-bsa:block_size=8,stride=2,threshold=", &long),
            ("xattn-bsa:block_size=8,stride=2,vote=all,threshold=", &long),
            ("quest:block_size=8,dense_layers=0,mass=", &step),
        ] {
            let [fewer, more] = [low, high].map(|share| select(&format!("{spec}{share}"), q, &k).selection);
            for group in 0..fewer.groups() {
                for block in 0..fewer.query_blocks() {
                    let kept = more.row(group, block);
                    let all = fewer.row(group, block).iter().all(|b| kept.contains(b));
                    prop_assert!(all, "{spec}{low} keeps {fewer}, {high} keeps {more}");
                }
            }
        }
    }
}
