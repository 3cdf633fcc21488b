//! XAttention step by step against its formulas, and the two policies built on it.

use proptest::prelude::*;
use sparse_select::{
    Input, SelectError, Selection, build,
    xattn::{
        estimate::{Estimator, QueryGrid},
        find_blocks::{BlockSums, FindBlocks, Mode, find_blocks_chunked},
        prefill_chunk_size,
        score::{BlockSum, Reshape, Scores, softmax_block_sum, softmax_scale, strided_scores},
    },
};

use crate::tensors::{Tensor, row, select};

#[test]
fn the_density_of_heads_needs_queries_within_the_history() {
    let (q, k) = (Tensor::zeros([1, 3, 2]), Tensor::zeros([1, 2, 2]));
    let input = Input::prefill(q.view(), k.view(), 0);
    let refused = SelectError::QueryBeyondHistory { q_len: 3, kv_len: 2 };
    assert_eq!(build("xattn").unwrap().head_density(&input), Err(refused));
    // Not causal: the queries come after the history, however long it is.
    assert_eq!(build("xattn:causal=false").unwrap().head_density(&input), Ok(Some(1.0)));
}

/// Token `t` of a head, or zero beyond the end.
fn at(x: &Tensor, head: usize, t: usize, d: usize) -> f32 {
    if t < x.view().len() { x.at(head, t, d) } else { 0.0 }
}

/// `Σ_t q[i*S + S-1-t] · k'[j*S + t]` with the key sums of double and triple.
fn naive_score(q: &Tensor, k: &Tensor, s: usize, mode: Reshape, i: usize, j: usize) -> f32 {
    let mut sum = 0.0;
    for t in 0..s {
        let query = i * s + if mode == Reshape::Slash { t } else { s - 1 - t };
        for d in 0..q.view().dim() {
            let mut key = at(k, 0, j * s + t, d);
            if matches!(mode, Reshape::Double | Reshape::Triple) {
                key += at(k, 0, j * s + (t + 1) % s, d);
            }
            if mode == Reshape::Triple {
                key += at(k, 0, j * s + (t + s - 1) % s, d);
            }
            sum += at(q, 0, query, d) * key;
        }
    }
    sum
}

proptest! {
    #[test]
    fn scores_follow_the_formula(
        seed in any::<u64>(), q_len in 1usize..20, k_len in 1usize..20, s in 1usize..5, mode in 0usize..4,
    ) {
        let mode = [Reshape::Inverse, Reshape::Slash, Reshape::Double, Reshape::Triple][mode];
        let (q, k) = (Tensor::seeded(seed, [1, q_len, 3], 50), Tensor::seeded(!seed, [1, k_len, 3], 50));
        let rows = q_len.div_ceil(s);
        let found = strided_scores((&q.view(), 0, 0), &k.view(), s, mode, 0..rows);
        prop_assert_eq!((found.rows, found.cols), (rows, k_len.div_ceil(s)));
        for i in 0..rows {
            for j in 0..found.cols {
                prop_assert_eq!(found.values[i * found.cols + j], naive_score(&q, &k, s, mode, i, j));
            }
        }
    }

    #[test]
    fn block_sums_add_up_probabilities(
        raw in prop::collection::vec(-64i16..64, 1..60), cols in 1usize..8, block in 1usize..4,
        start in 0usize..6, causal: bool, padding in 0usize..3,
    ) {
        let rows = raw.len().div_ceil(cols);
        let values: Vec<f32> =
            raw.iter().map(|&x| f32::from(x)).chain(std::iter::repeat(0.0)).take(rows * cols).collect();
        let scores = Scores { rows, cols, values };
        let real = 0..rows.saturating_sub(padding);
        let by = BlockSum { block, chunk_start: start, real_rows: &real, scale: 0.05, causal };
        let sums = softmax_block_sum(&scores, &by);
        let key_blocks = cols.div_ceil(block);
        let probability = |r: usize, c: usize| {
            let weight = |c: usize| if causal && start + r < c { 0.0 }
                else { (f64::from(scores.values[r * cols + c]) * 0.05).exp2() };
            weight(c) / (0..cols).map(weight).sum::<f64>()
        };
        for qb in 0..rows.div_ceil(block) {
            for kb in 0..key_blocks {
                let mut sum = 0.0;
                for r in (qb * block..(qb + 1) * block).filter(|r| real.contains(r)) {
                    for c in kb * block..((kb + 1) * block).min(cols) {
                        sum += probability(r, c);
                    }
                }
                prop_assert!((f64::from(sums[qb * key_blocks + kb]) - sum).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn found_blocks_are_the_smallest_prefix_that_reaches_the_mass(
        raw in prop::collection::vec(0u8..20, 1..12), current in 0usize..12, causal: bool, percent in 1u32..=100,
    ) {
        let sums: Vec<f32> = raw.iter().map(|&x| f32::from(x) / 64.0).collect();
        let n = sums.len();
        let by = FindBlocks {
            current_index: current, thresholds: &[f64::from(percent) / 100.0], num_to_choose: None,
            decoding: false, mode: Mode::Prefill, causal,
        };
        let input = BlockSums { values: &sums, heads: 1, query_blocks: 1, key_blocks: n };
        let found = find_blocks_chunked(&input, &by).unwrap();
        // Definition: walk forced blocks, then the others by sum; stop once the mass before one suffices.
        let forced: Vec<usize> = (0..n).filter(|&b| causal && (b == 0 || b == current)).collect();
        let mut others: Vec<usize> = (0..n).filter(|b| !(forced.contains(b) || causal && *b > current)).collect();
        others.sort_by(|&a, &b| sums[b].partial_cmp(&sums[a]).unwrap());
        let required = f64::from(percent) / 100.0 * sums.iter().map(|&s| f64::from(s)).sum::<f64>();
        let mut kept = forced.clone();
        for block in others {
            let before: f64 = kept.iter().map(|&b| f64::from(sums[b])).sum();
            if before < required { kept.push(block) } else { break }
        }
        kept.push(0);
        for b in 0..n {
            prop_assert_eq!(found.get(0, 0, b), kept.contains(&b), "block {}", b);
        }
    }

    #[test]
    fn chunks_of_queries_do_not_change_the_estimate(
        seed in any::<u64>(), q_len in 1usize..40, more in 0usize..20, chunk in 1usize..50,
    ) {
        let (q, k) = (Tensor::seeded(seed, [2, q_len, 2], 64), Tensor::seeded(!seed, [1, q_len + more, 2], 64));
        let spec = |chunk: usize| format!("xattn:block_size=8,stride=2,threshold=0.7:0.9,chunk_size={chunk}");
        if q_len > 1 {
            let whole = select(&spec(10_000), &q, &k);
            prop_assert_eq!(&select(&spec(chunk), &q, &k), &whole);
            for block in 0..whole.selection.query_blocks() {
                let row = row(&whole.selection, 0, block);
                prop_assert_eq!(row[0], 0);
                prop_assert_eq!(*row.last().unwrap() + 1, whole.selection.visible(block));
            }
        }
    }

    #[test]
    fn a_prompt_cut_at_blocks_selects_the_same(seed in any::<u64>(), len in 10usize..50, cut in 1usize..5) {
        let (q, k) = (Tensor::seeded(seed, [2, len, 2], 64), Tensor::seeded(!seed, [2, len, 2], 64));
        let policy = build("xattn:block_size=8,stride=4").unwrap();
        let run = |first: usize, end: usize| {
            let mut s = Selection::new();
            let input = Input::prefill(q.view().window(first, end - first), k.view().window(0, end), 0);
            policy.select_into(&input, &mut s).unwrap();
            s
        };
        let (whole, cut) = (run(0, len), (cut * 8).min(len - 1) / 8 * 8);
        let parts = [run(0, cut.max(1)), run(cut, len)];
        if cut > 0 {
            for head in 0..2 {
                for block in 0..len.div_ceil(8) {
                    let (part, at) = if block < cut / 8 { (0, block) } else { (1, block - cut / 8) };
                    prop_assert_eq!(parts[part].row(head, at), whole.row(head, block));
                }
            }
        }
    }
}

fn find(sums: &[f32], thresholds: &[f64], causal_at: Option<usize>) -> String {
    let by = FindBlocks {
        current_index: causal_at.unwrap_or(0),
        thresholds,
        num_to_choose: None,
        decoding: false,
        mode: Mode::Prefill,
        causal: causal_at.is_some(),
    };
    let key_blocks = sums.len() / thresholds.len();
    let input = BlockSums { values: sums, heads: thresholds.len(), query_blocks: 1, key_blocks };
    let mask = find_blocks_chunked(&input, &by).unwrap();
    let draw = |head| mask.row(head, 0).iter().map(|&kept| if kept { '#' } else { '.' }).collect::<String>();
    (0..thresholds.len()).map(draw).collect::<Vec<_>>().join(" ")
}

#[test]
fn edges_of_find_blocks() {
    // 4 + 3 is exactly 0.7 of 10: mass before the third block is no longer below the requirement.
    assert_eq!(find(&[1.0, 4.0, 3.0, 2.0], &[0.7], None), "###.");
    assert_eq!(find(&[1.0, 4.0, 3.0, 2.0], &[0.75], None), "####");
    // Block 0 is kept without being counted; equal sums go to the lower index.
    assert_eq!(find(&[0.0, 2.0, 2.0, 2.0], &[0.3], None), "##..");
    // A row without mass.
    assert_eq!(find(&[0.0; 4], &[0.9], None), "#...");
    assert_eq!(find(&[0.0; 4], &[0.9], Some(2)), "#.#.");
    // Causal: forced blocks count first, later ones never come in, even if the sums say so.
    assert_eq!(find(&[4.0, 1.0, 5.0, 90.0], &[0.09], Some(2)), "#.#.");
    assert_eq!(find(&[4.0, 1.0, 5.0, 90.0], &[0.9], Some(2)), "###.");
    // One threshold a head.
    assert_eq!(find(&[1.0, 4.0, 3.0, 2.0, 1.0, 4.0, 3.0, 2.0], &[0.4, 0.9], None), "##.. ####");
}

#[test]
fn arguments_of_find_blocks_are_checked() {
    let input = BlockSums { values: &[1.0; 6], heads: 3, query_blocks: 1, key_blocks: 2 };
    let by = FindBlocks {
        current_index: 0,
        thresholds: &[0.5],
        num_to_choose: None,
        decoding: false,
        mode: Mode::Prefill,
        causal: false,
    };
    let error = |by| find_blocks_chunked(&input, &by).unwrap_err();
    assert_eq!(error(FindBlocks { num_to_choose: Some(4), ..by }), SelectError::NumToChoose { count: 4 });
    let two = FindBlocks { thresholds: &[0.5, 0.5], ..by };
    assert_eq!(error(two), SelectError::ThresholdCount { got: 2, heads: 3 });
    let decode = find_blocks_chunked(&input, &FindBlocks { decoding: true, ..by }).unwrap();
    assert!((0..3).all(|head| decode.row(head, 0) == [true, true]));
    let both = find_blocks_chunked(&input, &FindBlocks { decoding: true, mode: Mode::Both, ..by }).unwrap();
    assert_eq!(both.row(0, 0), [true, false]);
}

/// Keys of block b point along channel b with weight 64 where the query block wants them.
fn directed(wants: &[&[usize]], blocks: usize, block: usize) -> (Tensor, Tensor) {
    let (mut q, mut k) =
        (Tensor::zeros([1, wants.len() * block, blocks]), Tensor::zeros([1, blocks * block, blocks]));
    for b in 0..blocks {
        (b * block..(b + 1) * block).for_each(|t| k.set(0, t, b, 8.0));
    }
    for (qb, wants) in wants.iter().enumerate() {
        for &b in *wants {
            (qb * block..(qb + 1) * block).for_each(|t| q.set(0, t, b, 8.0));
        }
    }
    (q, k)
}

#[test]
fn causal_prefill_draws_a_staircase() {
    let (q, k) = directed(&[&[0], &[0], &[1], &[1], &[5], &[2, 3]], 6, 8);
    insta::assert_snapshot!(select("xattn:block_size=8,stride=4", &q, &k).selection, @"
    [0, 0] #-----
    [0, 1] ##----
    [0, 2] ###---
    [0, 3] ##.#--
    [0, 4] #####-
    [0, 5] #.##.#
    ");
}

/// Whether votes out of voters elect a block.
type Elected = fn(usize, usize) -> bool;

/// The published steps in their plainest form. Returns the history blocks that `elected(votes, voters)` and those that
/// are forced.
fn naive_bsa(q: &Tensor, k: &Tensor, (s, bs): (usize, usize), threshold: f64, elected: Elected) -> Vec<u32> {
    let (heads, kv_heads, n) = (q.view().heads(), k.view().heads(), k.view().len().div_ceil(bs));
    let (rows, cols, per) = (q.view().len().div_ceil(s), k.view().len().div_ceil(s), bs / s);
    let query_blocks = rows.div_ceil(per);
    let estimator = Estimator {
        thresholds: vec![threshold],
        stride: s as u32,
        block_size: kvblock::BlockSize::new(bs as u32).unwrap(),
        norm: 1.0,
        reshape: Reshape::Inverse,
    };
    let grid = QueryGrid::new(&q.view(), &k.view(), estimator.block_size, false);
    let mut votes = vec![0; n];
    for kv in 0..kv_heads {
        for qb in 0..query_blocks {
            let mut any = vec![false; n];
            for head in kv * heads / kv_heads..(kv + 1) * heads / kv_heads {
                let scores = strided_scores((&q.view(), head, 0), &k.view(), s, Reshape::Inverse, 0..rows);
                let mut sums = vec![0.0f64; n];
                for r in qb * per..((qb + 1) * per).min(rows) {
                    let scale = softmax_scale(q.view().dim(), s, 1.0);
                    let weight = |c: usize| (f64::from(scores.values[r * cols + c]) * scale).exp2();
                    let total: f64 = (0..cols).map(weight).sum();
                    (0..cols).for_each(|c| sums[c / per] += weight(c) / total);
                }
                let exact = estimator.block_sums(&q.view(), head, &k.view(), &grid, qb..qb + 1);
                for (a, b) in exact.iter().zip(&sums) {
                    assert!((f64::from(*a) - b).abs() < 1e-5);
                }
                // The f32 sums decide, so that rounding cannot split the two sides.
                let mut order: Vec<usize> = (0..n).collect();
                order.sort_by(|&a, &b| exact[b].partial_cmp(&exact[a]).unwrap());
                let required = threshold * exact.iter().map(|&x| f64::from(x)).sum::<f64>();
                let mut before = 0.0;
                for b in order {
                    any[b] |= before < required || b == 0;
                    before += f64::from(exact[b]);
                }
                any[0] = true;
            }
            (0..n).for_each(|b| votes[b] += usize::from(any[b]));
        }
    }
    (0..n)
        .filter(|&b| b == 0 || b + 1 == n || elected(votes[b], kv_heads * query_blocks))
        .map(|b| b as u32)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.min(1024) / 4))]
    #[test]
    fn bsa_follows_the_published_steps(
        seed in any::<u64>(), q_len in 2usize..280, k_len in 1usize..60, kv_heads in 1usize..3, group in 1usize..3,
        percent in 30u32..99,
    ) {
        let q = Tensor::seeded(seed, [kv_heads * group, q_len, 2], 200);
        let k = Tensor::seeded(!seed, [kv_heads, k_len, 2], 200);
        let threshold = f64::from(percent) / 100.0;
        let ways: [(&str, Elected); 3] = [
            ("all", |votes, voters| votes == voters),
            ("majority", |votes, voters| 2 * votes > voters),
            ("any", |votes, _| votes > 0),
        ];
        let mut fewer = Vec::new();
        for (vote, elected) in ways {
            let spec = format!("xattn-bsa:stride=2,block_size=8,threshold={threshold},vote={vote}");
            let found = row(&select(&spec, &q, &k).selection, 0, 0);
            prop_assert_eq!(&found, &naive_bsa(&q, &k, (2, 8), threshold, elected), "{}", vote);
            prop_assert!(fewer.iter().all(|block| found.contains(block)), "{} drops {:?}", vote, fewer);
            fewer = found;
        }
    }
}

#[test]
fn bsa_votes_and_forces_both_ends() {
    // Of 32 query blocks, 17 vote for block 2 (the last one finds its mass there and stops) and 15 for block 4.
    let wants: Vec<&[usize]> = (0..32)
        .map(|i| {
            if i < 15 {
                &[4][..]
            } else if i < 31 {
                &[2][..]
            } else {
                &[2, 4]
            }
        })
        .collect();
    let (q, k) = directed(&wants, 7, 8);
    let draw =
        |q: &Tensor| select("xattn-bsa:stride=2,block_size=8,threshold=0.4", q, &k).selection.to_string();
    insta::assert_snapshot!(draw(&q), @"#.#...#");
    // 16 and 16: half is no majority.
    let wants: Vec<&[usize]> = (0..32).map(|i| if i < 16 { &[4][..] } else { &[2][..] }).collect();
    insta::assert_snapshot!(draw(&directed(&wants, 7, 8).0), @"#.....#");
    // 31 query blocks are no whole tile of the published kernel, and 16 of them a majority all the same.
    let short = directed(&wants[..31], 7, 8).0;
    insta::assert_snapshot!(draw(&short), @"#...#.#");
    // Three queries are a stride and the half of one, both of the only query block; one query is no antidiagonal.
    let few = directed(&[&[4]], 7, 8).0;
    let of = |len| {
        let input = Input::prefill(few.view().window(0, len), k.view(), 7);
        let mut s = Selection::new();
        build("xattn-bsa:stride=2,block_size=8,threshold=0.4").unwrap().select_into(&input, &mut s).unwrap();
        s.to_string()
    };
    insta::assert_snapshot!(of(3), @"#...#.#");
    insta::assert_snapshot!(of(1), @"#######");
}

#[test]
fn heads_keep_fewer_blocks_than_they_agree_on() {
    // Head 0 wants block 1, head 1 block 3, and both keep block 0: 2 of 5 blocks a head, 3 of 5 together.
    let (_, k) = directed(&[&[0]], 5, 8);
    let mut two = Tensor::zeros([2, 256, 5]);
    (0..256).for_each(|t| two.set(0, t, 1, 8.0));
    (0..256).for_each(|t| two.set(1, t, 3, 8.0));
    let input = Input::prefill(two.view(), k.view(), 5);
    let policy = build("xattn-bsa:stride=2,block_size=8,threshold=0.4,vote=any").unwrap();
    assert_eq!(policy.head_density(&input).unwrap(), Some(0.4));
    let chosen = select("xattn-bsa:stride=2,block_size=8,threshold=0.4,vote=any", &two, &k).selection;
    insta::assert_snapshot!(chosen, @"##.##");
    // A chunk too short to be scored has nothing to tell.
    let short = Input::prefill(two.view().window(0, 1), k.view(), 5);
    assert_eq!(policy.head_density(&short).unwrap(), None);
    assert_eq!(build("quest").unwrap().head_density(&input).unwrap(), None);
}

#[test]
fn bsa_refuses_decode() {
    let (q, k) = (Tensor::zeros([1, 1, 2]), Tensor::zeros([1, 9, 2]));
    let policy = build("xattn-bsa").unwrap();
    let error = policy.select_into(&Input::decode(q.view(), k.view()), &mut Selection::new()).unwrap_err();
    assert_eq!(error, SelectError::DecodeUnsupported { policy: "xattn-bsa" });
    assert!(!policy.support().decode);
}

#[test]
fn prefill_chunks_follow_the_published_rule() {
    let sizes = [1, 2048, 2049, 16_384, 16_385, 65_536, 131_072, 1 << 20].map(prefill_chunk_size);
    assert_eq!(sizes, [2048, 2048, 4096, 16_384, 8192, 4096, 2048, 2048]);
}
