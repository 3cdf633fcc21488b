//! The certified mass never exceeds the true one, and `mass=` reaches what it was asked for.

use proptest::prelude::*;
use sparse_select::{
    Selection,
    attention::default_scale,
    certificate::{certify, selection_mass},
    digest::{DigestFormat, MinMax},
    measure::{Mask, density, overlap, recall},
};

use crate::tensors::{Case, decode_case, row, select};

/// Smallest kept share of `Σ e^(q·k / sqrt(dim))` over query heads, straight from the definition.
fn true_mass(c: &Case, s: &Selection, block: usize) -> f64 {
    let (q, k) = (c.q.view(), c.k.view());
    let of_head = |h: usize| {
        let logit = |t: usize| {
            let dot: f64 =
                (0..k.dim()).map(|d| f64::from(c.q.at(h, 0, d)) * f64::from(c.k.at(h / c.group, t, d))).sum();
            dot / (k.dim() as f64).sqrt()
        };
        let top = (0..k.len()).map(logit).fold(f64::NEG_INFINITY, f64::max);
        let weight = |t: usize| (logit(t) - top).exp();
        let kept = s.row_shared(h / c.group, 0);
        let is_kept = |t: &usize| kept.iter().any(|b| b.get() as usize == t / block);
        (0..k.len()).filter(is_kept).map(weight).sum::<f64>() / (0..k.len()).map(weight).sum::<f64>()
    };
    (0..q.heads()).map(of_head).fold(1.0, f64::min)
}

/// Whether the certificates of a KV head's queries all hold without the last added block: of those chosen, except the
/// current one, that with the smallest bound (the higher index among equals).
fn holds_without_weakest(c: &Case, kv: usize, blocks: &[u32], size: u32, mass: f64) -> bool {
    let digest = MinMax::of(&c.k.view(), kvblock::BlockSize::new(size).unwrap(), DigestFormat::F32);
    let (q, scale) = (c.q.view(), default_scale(c.q.view().dim()));
    let heads = kv * c.group..(kv + 1) * c.group;
    let bound = |b: u32| {
        let of_head = |h| scale * digest.bound(q.row(h, 0), b, kv) + (digest.tokens(b) as f64).ln();
        heads.clone().map(of_head).fold(f64::MIN, f64::max)
    };
    let earlier = &blocks[..blocks.len() - 1];
    let weakest = *earlier.iter().rev().min_by(|&&a, &&b| bound(a).total_cmp(&bound(b))).unwrap();
    let is_kept: Vec<bool> = (0..digest.num_blocks()).map(|b| b != weakest && blocks.contains(&b)).collect();
    heads.clone().all(|h| certify(q.row(h, 0), &c.k.view(), kv, &digest, &is_kept).mass() >= mass)
}

proptest! {
    #[test]
    fn any_selection_keeps_at_least_its_certified_mass(
        c in decode_case(40, 200), block in 1u32..7, picks in any::<u64>(), half: bool, stretch in 1.0f32..1e5,
    ) {
        // Keys that f16 does not have, and some that are beyond it.
        let c = Case { k: if half { c.k.scaled(stretch) } else { c.k }, ..c };
        let n = (c.k.view().len() as u32).div_ceil(block);
        let mut s = Selection::new();
        s.begin(n, 1, 1);
        s.push_row((0..n).filter(|b| picks >> b & 1 == 1));
        let size = kvblock::BlockSize::new(block).unwrap();
        let format = if half { DigestFormat::F16 { page: size } } else { DigestFormat::F32 };
        let certified = selection_mass(&s, &c.q.view(), &c.k.view(), size, format).unwrap();
        prop_assert!(certified <= true_mass(&c, &s, block as usize) + 1e-12);
        if s.row(0, 0).len() == n as usize {
            prop_assert_eq!(certified, 1.0);
        }
    }

    #[test]
    fn mass_is_reached_by_no_more_blocks_than_needed(
        c in decode_case(60, 300), block in 1usize..5, percent in 50u32..=100,
    ) {
        let mass = f64::from(percent) / 100.0;
        let found = select(&format!("quest:mass={mass},block_size={block}"), &c.q, &c.k);
        prop_assert!(true_mass(&c, &found.selection, block) >= mass - 1e-12);
        prop_assert!(found.bound.unwrap() >= mass);
        prop_assert!(found.recall >= mass - 1e-12);
        let n = c.k.view().len().div_ceil(block) as u32;
        for kv in 0..c.k.view().heads() {
            let blocks = row(&found.selection, kv, 0);
            prop_assert_eq!(*blocks.last().unwrap(), n - 1);
            if percent == 100 {
                prop_assert_eq!(blocks.len(), n as usize);
            }
            if blocks.len() > 1 {
                // Beyond what the rule asks for rounding.
                let beyond = 1.0 - (1.0 - mass) * 0.99 + 1e-5;
                prop_assert!(!holds_without_weakest(&c, kv, &blocks, block as u32, beyond));
            }
        }
    }

    #[test]
    fn recall_is_the_mean_of_the_definition(c in decode_case(30, 100), block in 1u32..5, picks in any::<u32>()) {
        let n = (c.k.view().len() as u32).div_ceil(block);
        let mut s = Selection::new();
        s.begin(n, 1, 1);
        s.push_row((0..n).filter(|b| picks >> b & 1 == 1));
        let size = kvblock::BlockSize::new(block).unwrap();
        let mean = recall(&s, &c.q.view(), &c.k.view(), size, Mask::Causal).unwrap();
        let least = true_mass(&c, &s, block as usize);
        prop_assert!(mean >= least - 1e-12);
        if c.q.view().heads() == 1 {
            prop_assert!((mean - least).abs() < 1e-12);
        }
    }
}

fn selection(blocks: u32, rows: &[&[u32]]) -> Selection {
    let mut s = Selection::new();
    s.begin(blocks, rows.len(), 1);
    rows.iter().for_each(|row| s.push_row(row.iter().copied()));
    s
}

#[test]
fn density_and_overlap_count_blocks() {
    let (a, b) = (selection(4, &[&[0, 1], &[2]]), selection(4, &[&[1, 2, 3]]));
    assert_eq!((density(&a), density(&b)), (3.0 / 8.0, 0.75));
    // 1 of 4 in the first row, 1 of 3 in the second.
    assert_eq!(overlap(&a, &b).unwrap(), (0.25 + 1.0 / 3.0) / 2.0);
    assert_eq!(overlap(&b, &a).unwrap(), overlap(&a, &b).unwrap());
    assert_eq!(overlap(&selection(4, &[&[]]), &selection(4, &[&[]])).unwrap(), 1.0);
    assert!(overlap(&a, &selection(5, &[&[0]])).is_err());
    let refused = overlap(&a, &selection(4, &[&[0], &[0], &[0]])).unwrap_err();
    let text =
        "selections of shape [2, 1, 4] and [3, 1, 4] ([groups, query blocks, blocks]) cannot be compared";
    assert_eq!(refused.to_string(), text);
}
