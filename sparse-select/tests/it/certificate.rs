//! The certified mass never exceeds the true one, and `mass=` reaches what it was asked for.

use proptest::prelude::*;
use sparse_select::{
    Selection,
    certificate::selection_mass,
    measure::{Mask, recall},
};

use crate::tensors::{Case, decode_case, row, select};

/// Smallest kept share of `Σ e^(q·k / sqrt(dim))` over query heads, straight from the definition.
fn true_mass(c: &Case, s: &Selection, block: usize) -> f64 {
    let (q, k) = (c.q.view(), c.k.view());
    let of_head = |h: usize| {
        let weight = |t: usize| {
            let dot: f64 =
                (0..k.dim()).map(|d| f64::from(c.q.at(h, 0, d)) * f64::from(c.k.at(h / c.group, t, d))).sum();
            (dot / (k.dim() as f64).sqrt()).exp()
        };
        let kept = s.row_shared(h / c.group, 0);
        let is_kept = |t: &usize| kept.iter().any(|b| b.get() as usize == t / block);
        (0..k.len()).filter(is_kept).map(weight).sum::<f64>() / (0..k.len()).map(weight).sum::<f64>()
    };
    (0..q.heads()).map(of_head).fold(1.0, f64::min)
}

proptest! {
    #[test]
    fn any_selection_keeps_at_least_its_certified_mass(
        c in decode_case(40, 200), block in 1u32..7, picks in any::<u64>(),
    ) {
        let n = (c.k.view().len() as u32).div_ceil(block);
        let mut s = Selection::new();
        s.begin(n, 1, 1);
        s.push_row((0..n).filter(|b| picks >> b & 1 == 1));
        let size = kvblock::BlockSize::new(block).unwrap();
        let certified = selection_mass(&s, &c.q.view(), &c.k.view(), size).unwrap();
        prop_assert!(certified <= true_mass(&c, &s, block as usize) + 1e-12);
        if s.row(0, 0).len() == n as usize {
            prop_assert_eq!(certified, 1.0);
        }
    }

    #[test]
    fn mass_is_reached_and_the_last_block_was_needed(
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
