//! The DSA indexer: logits against their formula, chunks, transforms, and the pages of the key cache.

use proptest::prelude::*;
use sparse_select::{
    dsa::{
        chunk::{Group, Memory, group_requests, max_rows, row_chunks, should_chunk, topk_chunked},
        fp8::{ScaleFormat, decode, quantise},
        logits::{IndexKeys, IndexQueries, PagedIndexKeys},
        transform::{Ties, TopkRows, Transform, token_to_batch, topk_transform, topk_transform_by},
    },
    policy::block_tokens,
};

use crate::tensors::{Tensor, decode_case, row, select};

proptest! {
    #[test]
    fn selects_the_best_logits(c in decode_case(40, 9), topk in 1u32..12, size in 1u32..5) {
        // One key head, as index keys have; every value is dequantised before it is multiplied.
        let (k, len) = (c.k.view(), c.k.view().len());
        let k = Tensor::seeded(7, [1, len, k.dim()], 9);
        let heads = c.q.view().heads();
        let value = |x: &[f32]| {
            let (codes, scale) = quantise(x, ScaleFormat::Ue8m0);
            codes.into_iter().map(|code| f64::from(decode(code)) * f64::from(scale)).collect::<Vec<_>>()
        };
        let logit = |n: usize| -> f64 {
            let key = value(k.view().row(0, n));
            (0..heads).map(|h| {
                let query = value(c.q.view().row(h, 0));
                query.iter().zip(&key).map(|(a, b)| a * b).sum::<f64>().max(0.0)
            }).sum()
        };
        // Power-of-two scales and small integers: sums are exact in f64, and in f32 up to the common factor.
        let logits: Vec<f64> = (0..len).map(logit).collect();
        let selection = select(&format!("dsa:index_topk={topk},scale_fmt=ue8m0,block_size={size}"), &c.q, &k).selection;
        let chosen = row(&selection, 0, 0);
        let size = kvblock::BlockSize::new(size).unwrap();
        let best_of = |b: u32| block_tokens(b, size, len).map(|t| logits[t]).fold(0.0, f64::max);
        let mut sorted = logits.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let limit = sorted[(topk as usize).min(len) - 1];
        let tolerance = 1e-5 * (1.0 + limit);
        for b in 0..(len as u32).div_ceil(size.get()) {
            if best_of(b) > limit + tolerance {
                prop_assert!(chosen.contains(&b), "block {} of {:?}", b, chosen);
            }
            if best_of(b) < limit - tolerance {
                prop_assert!(!chosen.contains(&b), "block {} of {:?}", b, chosen);
            }
        }
    }

    #[test]
    fn chunks_do_not_change_the_result(seed in any::<u64>(), q_len in 1usize..12, len in 1usize..30, k in 1usize..9, step in 1usize..6) {
        let (q, keys) = (Tensor::seeded(seed, [2, q_len, 4], 9), Tensor::seeded(!seed, [1, len, 4], 9));
        let queries = IndexQueries::quantise(&q.view(), None, ScaleFormat::F32).unwrap();
        let keys = IndexKeys::quantise(&keys.view(), 0, ScaleFormat::F32);
        let ks: Vec<u32> = (0..q_len).map(|m| (m % len) as u32 / 2).collect();
        let ke: Vec<u32> = (0..q_len).map(|m| (len - m % len) as u32).map(|e| e.max(1)).collect();
        let table: Vec<u32> = (0..3 * len as u32).map(|i| i * 7 % 64).collect();
        let batch = token_to_batch(&[q_len as u32 / 2, 0, (q_len as u32).div_ceil(2)]);
        let offset: Vec<u32> = (0..q_len as u32).map(|m| 100 * m).collect();
        let paged = Transform::Paged { page_table: &table, pages_per_row: len, page_size: 2, batch: &batch[..q_len - 1] };
        for transform in [Transform::Positions, paged, Transform::Ragged { offset: &offset }] {
            let whole = topk_chunked(&queries, &keys, (&ks, &ke), k, &transform, core::iter::once(0..q_len));
            let cuts = (0..q_len).step_by(step).map(|s| s..(s + step).min(q_len));
            prop_assert_eq!(topk_chunked(&queries, &keys, (&ks, &ke), k, &transform, cuts), whole.clone());
            prop_assert_eq!(whole.len(), q_len * k);
        }
    }
}

#[test]
fn chunking_starts_at_eight_million_logits() {
    let starved = Memory { free: 1, total: 1 };
    assert!(!should_chunk(1000, 7_999, starved));
    assert!(should_chunk(1000, 8_000, starved));
    // 32 MB of logits: against half of the free memory, then against 0.3 of all of it.
    let memory = |free, total| Memory { free, total };
    assert!(!should_chunk(1000, 8_000, memory(64_000_000, 1 << 40)));
    assert!(should_chunk(1000, 8_000, memory(63_999_999, 1 << 40)));
    assert!(!should_chunk(1000, 8_000, memory(1 << 40, 106_666_667)));
    assert!(should_chunk(1000, 8_000, memory(1 << 40, 106_666_666)));
    assert_eq!(max_rows(1000, 8_000, memory(63_999_999, 0)), 999);
    assert_eq!([0, 1 << 40].map(|free| max_rows(1000, 8_000, memory(free, 0))), [1, 1000]);
    let rows: Vec<_> = row_chunks(1000, 8_000, memory(32_000_000, 1 << 40)).collect();
    assert_eq!(rows, [0..500, 500..1000]);
    assert_eq!(row_chunks(0, 8_000, starved).count(), 0);
}

#[test]
fn requests_are_grouped_while_both_limits_hold() {
    let group = |requests, rows| Group { requests, rows };
    let whole = |requests| group(requests, None);
    assert_eq!(group_requests(&[(2, 10), (2, 10), (2, 10)], 20, 1 << 20), [whole(0..2), whole(2..3)]);
    // 4 queries over 20 keys take 320 bytes.
    assert_eq!(group_requests(&[(2, 10), (2, 10)], 100, 320), [whole(0..2)]);
    assert_eq!(group_requests(&[(2, 10), (2, 10)], 100, 319), [whole(0..1), whole(1..2)]);
    let cut = group_requests(&[(1, 10), (5, 10), (1, 10)], 100, 80);
    let part = |rows| group(1..2, Some(rows));
    assert_eq!(cut, [whole(0..1), part(0..2), part(2..4), part(4..5), whole(2..3)]);
}

#[test]
fn transforms_of_a_row() {
    let logits = [9.0, 1.0, 5.0, 5.0, 3.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let rows = TopkRows { logits: &logits, width: 6, starts: &[1, 0], lens: &[4, 2] };
    let top = |k, transform: &Transform<'_>| topk_transform(&rows, k, transform);
    // Relative to the row's start; the short row is emitted without a look at its scores.
    assert_eq!(top(3, &Transform::Positions), [1, 2, 3, 0, 1, -1]);
    assert_eq!(top(1, &Transform::Positions), [1, 0]);
    assert_eq!(topk_transform_by(&rows, 1, &Transform::Positions, Ties::LargeIndex), [2, 1]);
    assert_eq!(top(3, &Transform::Ragged { offset: &[10, 20] }), [11, 12, 13, 20, 21, -1]);
    let table = [40, 41, 42, 43, 70, 71, 72, 73];
    let paged =
        |page_size, batch| Transform::Paged { page_table: &table, pages_per_row: 4, page_size, batch };
    assert_eq!(top(3, &paged(1, &[0, 1])), [41, 42, 43, 70, 71, -1]);
    assert_eq!(top(3, &paged(2, &[1, 0])), [141, 142, 143, 80, 81, -1]);
    // A row beyond the batch is padding.
    assert_eq!(top(3, &paged(1, &[1])), [71, 72, 73, -1, -1, -1]);
    assert_eq!(token_to_batch(&[2, 0, 3]), [0, 0, 2, 2, 2]);
    assert_eq!(token_to_batch(&[1, 1, 1]), [0, 1, 2]);
}

#[test]
fn a_page_holds_its_codes_before_its_scales() {
    let k = Tensor::seeded(3, [1, 70, 128], 50);
    let keys = IndexKeys::quantise(&k.view(), 0, ScaleFormat::F32);
    let mut pages = PagedIndexKeys::new(2, PagedIndexKeys::PAGE_TOKENS, 128);
    assert_eq!(pages.bytes().len(), 2 * 64 * 132);
    (0..70).for_each(|t| pages.store(t, keys.get(t).0, keys.get(t).1));
    let slots: Vec<u32> = (0..70).collect();
    assert_eq!(pages.gather(&slots), keys);
    // Token 65 is the second of page 1.
    let (codes, scale) = keys.get(65);
    assert_eq!(pages.bytes()[64 * 132 + 128..][..128], *codes);
    assert_eq!(pages.bytes()[64 * 132 + 64 * 128 + 4..][..4], scale.to_le_bytes());
}
