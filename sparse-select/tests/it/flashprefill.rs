//! `flashprefill` against the definition of the paper, term by term.

use proptest::prelude::*;
use sparse_select::{Input, Selection, build};

use crate::tensors::{Tensor, row, select};

/// Energies `[blocks]` of the blocks before query block `own`: the sum over its rows of `exp(q · mean / sqrt(dim))`.
fn energies(q: &Tensor, k: &Tensor, head: usize, own: usize, size: usize) -> Vec<f64> {
    let (q_len, k_len, dim) = (q.view().len(), k.view().len(), q.view().dim());
    let kv = head / (q.view().heads() / k.view().heads());
    let first = k_len - q_len;
    let rows = (own * size).max(first)..((own + 1) * size).min(k_len);
    let mean = |block: usize, d: usize| {
        (block * size..(block + 1) * size).map(|t| f64::from(k.at(kv, t, d))).sum::<f64>() / size as f64
    };
    let score = |t: usize, block: usize| {
        let dot: f64 = (0..dim).map(|d| f64::from(q.at(head, t - first, d)) * mean(block, d)).sum();
        (dot / (dim as f64).sqrt()).exp()
    };
    (0..own).map(|block| rows.clone().map(|t| score(t, block)).sum()).collect()
}

proptest! {
    #[test]
    fn blocks_with_a_share_of_the_largest_energy_are_kept(
        seed in any::<u64>(), k_len in 1usize..70, part in 0.0..1.0f64, kv_heads in 1usize..3, group in 1usize..4,
        alpha in 0.02..1.0f64, sink in 0u32..3, recent in 0u32..4,
    ) {
        let size = 4;
        let q_len = ((k_len as f64 * part) as usize).max(1);
        let k = Tensor::seeded(seed, [kv_heads, k_len, 3], 200);
        let q = Tensor::seeded(!seed, [kv_heads * group, q_len, 3], 200);
        let spec = format!(
            "flashprefill:alpha={alpha},sink_blocks={sink},recent_blocks={recent},block_size={size}"
        );
        let mut found = Selection::new();
        build(&spec).unwrap().select_into(&Input::prefill(q.view(), k.view(), 0), &mut found).unwrap();
        let first = (k_len - q_len) / size;
        prop_assert_eq!((found.groups(), found.query_blocks()), (kv_heads, k_len.div_ceil(size) - first));
        for own in first..k_len.div_ceil(size) {
            let of_heads: Vec<Vec<f64>> =
                (0..kv_heads * group).map(|head| energies(&q, &k, head, own, size)).collect();
            for kv in 0..kv_heads {
                let kept = row(&found, kv, own - first);
                for block in 0..=own {
                    let forced = block == own || block < sink as usize || own - block < recent as usize;
                    // Sums in another order: what lies on the threshold may go either way.
                    let is_above = |factor: f64| of_heads[kv * group..][..group].iter().any(|energies| {
                        let largest = energies.iter().copied().fold(0.0, f64::max);
                        energies.get(block).is_some_and(|e| *e >= largest * alpha * factor)
                    });
                    let has = kept.contains(&(block as u32));
                    prop_assert!(has || !(forced || is_above(1.0 + 1e-5)), "{spec}: {block} of {own} is not in {kept:?}");
                    prop_assert!(!has || forced || is_above(1.0 - 1e-5), "{spec}: {block} of {own} is in {kept:?}");
                }
            }
        }
    }

    #[test]
    fn a_higher_share_keeps_no_more(
        seed in any::<u64>(), k_len in 16usize..90, shares in [0.01..1.0f64, 0.01..1.0],
    ) {
        let (low, high) = (shares[0].min(shares[1]), shares[0].max(shares[1]));
        let (q, k) = (Tensor::seeded(seed, [2, k_len / 2, 3], 200), Tensor::seeded(!seed, [1, k_len, 3], 200));
        let [more, fewer] = [low, high].map(|alpha| {
            select(&format!("flashprefill:block_size=8,recent_blocks=1,alpha={alpha}"), &q, &k).selection
        });
        for block in 0..more.query_blocks() {
            let kept = more.row(0, block);
            prop_assert!(fewer.row(0, block).iter().all(|b| kept.contains(b)), "{low}: {more}, {high}: {fewer}");
        }
    }
}

/// Two query heads of one KV head that look for different blocks: the KV head keeps both, each head its own.
#[test]
fn a_kv_head_keeps_what_any_of_its_heads_keeps() {
    let mut k = Tensor::zeros([1, 40, 2]);
    let mut q = Tensor::zeros([2, 4, 2]);
    for t in 0..4 {
        k.set(0, 8 + t, 0, 4.0);
        k.set(0, 20 + t, 1, 4.0);
        q.set(0, t, 0, 2.0);
        q.set(1, t, 1, 2.0);
    }
    let policy = build("flashprefill:block_size=4,sink_blocks=1,recent_blocks=2").unwrap();
    let input = Input::prefill(q.view(), k.view(), 0);
    let mut found = Selection::new();
    policy.select_into(&input, &mut found).unwrap();
    insta::assert_snapshot!(found, @"#.#..#..##");
    // Sink, two recent blocks and its own of the two: four of ten for either head.
    assert_eq!(policy.head_density(&input), Ok(Some(0.4)));
}

#[test]
fn decode_and_short_histories_are_dense() {
    let (q, k) = (Tensor::seeded(1, [1, 1, 4], 64), Tensor::seeded(2, [1, 100, 4], 64));
    let policy = build("flashprefill:block_size=4,alpha=1").unwrap();
    let mut found = Selection::new();
    policy.select_into(&Input::decode(q.view(), k.view()), &mut found).unwrap();
    assert_eq!(found.row(0, 0).len(), 25);
    assert!(policy.keeps_all_in_decode());
    // Two sinks and four recent blocks are all there is.
    assert!(policy.keeps_all(None, 23) && !policy.keeps_all(None, 25));
    assert!(build("flashprefill:min_tokens=8000").unwrap().energies().is_some());
}
