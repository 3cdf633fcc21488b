//! Quest against its definition, with the scores computed from the keys.

use proptest::prelude::*;

use crate::tensors::{Case, Tensor, decode_case, row, select};

/// The page score of one KV head: maximum over its query heads of the sum over channels of the larger product.
fn score(c: &Case, kv: usize, page: std::ops::Range<usize>) -> f32 {
    let dim = c.k.view().dim();
    let of_head = |h: usize| -> f32 {
        (0..dim)
            .map(|d| page.clone().map(|t| c.q.at(h, 0, d) * c.k.at(kv, t, d)).fold(f32::MIN, f32::max))
            .sum()
    };
    (kv * c.group..(kv + 1) * c.group).map(of_head).fold(f32::MIN, f32::max)
}

fn naive(c: &Case, kv: usize, page_size: usize, budget: usize) -> Vec<u32> {
    let n = c.k.view().len().div_ceil(page_size);
    let scores: Vec<f32> = (0..n - 1).map(|p| score(c, kv, p * page_size..(p + 1) * page_size)).collect();
    let mut order: Vec<usize> = (0..n - 1).collect();
    order.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).unwrap()); // stable: equal scores stay by index
    order.truncate(budget.min(n) - 1);
    order.push(n - 1);
    order.sort_unstable();
    order.into_iter().map(|p| p as u32).collect()
}

proptest! {
    #[test]
    fn pages_are_the_best_by_the_published_bound(
        c in decode_case(40, 3), page in 1usize..6, budget in 1usize..8,
    ) {
        let found = select(&format!("quest:page_budget={budget},block_size={page}"), &c.q, &c.k);
        for kv in 0..c.k.view().heads() {
            prop_assert_eq!(row(&found.selection, kv, 0), naive(&c, kv, page, budget));
        }
    }

    #[test]
    fn a_chunk_is_its_queries_one_by_one(seed in any::<u64>(), q_len in 1usize..5, more in 0usize..20) {
        let (q, k) = (Tensor::seeded(seed, [2, q_len, 3], 9), Tensor::seeded(!seed, [1, q_len + more, 3], 9));
        let chunk = select("quest:page_budget=3,block_size=2", &q, &k).selection;
        for t in 0..q_len {
            let (one, seen) = (q.view().window(t, 1), k.view().window(0, more + t + 1));
            let spec = "quest:page_budget=3,block_size=2".parse().unwrap();
            let alone = sparse_select::select(&sparse_select::Registry::builtin(), &spec, one, seen).unwrap();
            prop_assert_eq!(chunk.row(0, if q_len == 1 { 0 } else { t }), alone.selection.row(0, 0));
        }
    }
}

/// Keys whose page p has one key that points along the query with weight `peaks[p]`.
fn peaked(peaks: &[i16]) -> (Tensor, Tensor) {
    let (mut q, mut k) = (Tensor::zeros([1, 1, 2]), Tensor::zeros([1, peaks.len() * 4, 2]));
    q.set(0, 0, 0, 1.0);
    for (page, &peak) in peaks.iter().enumerate() {
        k.set(0, page * 4 + 1, 0, f32::from(peak));
    }
    (q, k)
}

#[test]
fn the_current_page_is_attended_and_counts() {
    let (q, k) = peaked(&[0, 5, 1, 0, 5, 9, 0, -7]);
    let draw = |spec: &str| select(spec, &q, &k).selection.strip(0, 0).marks(0, 1).to_string();
    insta::assert_snapshot!(draw("quest:page_budget=3,block_size=4"), @".#...#.R");
    insta::assert_snapshot!(draw("quest:page_budget=1,block_size=4"), @".......R");
    insta::assert_snapshot!(draw("quest:page_budget=99,block_size=4"), @"#######R");
    insta::assert_snapshot!(draw("quest:token_budget=17,block_size=4"), @".#..##.R");
    insta::assert_snapshot!(draw("quest:token_budget=4,block_size=4"), @".#...#.R");
    insta::assert_snapshot!(draw("quest:variant=offload,topk=3,block_size=4"), @".#..##..");
    insta::assert_snapshot!(draw("quest:variant=offload,topk=3,sink_blocks=1,recent_blocks=1,block_size=4"), @"#....#.R");
    insta::assert_snapshot!(draw("quest:variant=offload,topk=1,threshold_blocks=8,block_size=4"), @"#######R");
}

#[test]
fn first_layers_are_dense() {
    let (q, k) = peaked(&[0, 5, 1, 0]);
    let policy = sparse_select::build("quest:page_budget=2,block_size=4").unwrap();
    let mut s = sparse_select::Selection::new();
    let mut at_layer = |layer| {
        let input =
            sparse_select::Input { layer: Some(layer), ..sparse_select::Input::decode(q.view(), k.view()) };
        policy.select_into(&input, &mut s).unwrap();
        s.to_string()
    };
    assert_eq!([0, 1, 2].map(&mut at_layer), ["####", "####", ".#.#"]);
}
