//! Density and recall by length, of plans with several: the curve of a policy whose density follows the text.

use std::fmt;

use models::grouped;

use super::cell::{Cell, Phase};

/// Heads of the cells of a row.
pub(super) const HEADS: [&str; 4] = ["tokens", "density, a head", "density, attended", "recall"];

/// A policy at one length.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AtLength {
    pub(super) policy: String,
    tokens: u32,
    /// Share of the blocks that query heads keep on their own.
    head_density: Option<f64>,
    /// Share of the blocks that the query heads of a KV head keep together, after their vote if there is one.
    density: f64,
    recall: Option<f64>,
}

impl AtLength {
    /// The row's cells in a table.
    pub(super) fn cells(&self) -> Vec<String> {
        [grouped(self.tokens)].into_iter().chain(self.values()).collect()
    }

    fn values(&self) -> [String; 3] {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let recall = self.recall.map_or("-".into(), |recall| format!("{recall:.3}"));
        [self.head_density.map_or("-".into(), percent), percent(self.density), recall]
    }
}

impl fmt::Display for AtLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [head, attended, recall] = self.values();
        let Self { policy, tokens, .. } = self;
        write!(f, "{policy:48} {tokens:>6} tokens: {head:>7} a head, {attended:>7} attended, recall {recall}")
    }
}

/// One row for each policy and length of the texts, in the order of the cells, with the recall if it was measured; none if
/// all have one length.
pub(super) fn by_length(rows: &[Cell]) -> Vec<AtLength> {
    let acts = |phase: &&Phase| !phase.layers.is_empty();
    // Decode, if a policy acts there.
    let phase = |cell: &'_ Cell| [&cell.decode, &cell.prefill].into_iter().find(acts).cloned();
    let mut all: Vec<AtLength> = Vec::new();
    for cell in rows.iter().filter(|cell| matches!(&*cell.kind, "text" | "recall")) {
        let Some(Phase { density, head_density, recall, .. }) = phase(cell) else { continue };
        let (policy, tokens) = (cell.policy.clone(), cell.tokens);
        match all.iter_mut().find(|row| row.policy == policy && row.tokens == tokens) {
            Some(row) => {
                row.head_density = row.head_density.or(head_density);
                row.recall = row.recall.or(recall);
            }
            None => all.push(AtLength { policy, tokens, head_density, density, recall }),
        }
    }
    let several = all.iter().any(|row| row.tokens != all[0].tokens);
    if several { all } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::super::cell::example;
    use super::*;

    #[test]
    fn lengths_are_rows_of_their_own() {
        let cell = |tokens, density| Cell {
            tokens,
            decode: Phase { density: 1.0, ..Phase::default() },
            prefill: Phase {
                density,
                layers: vec![density],
                recall: Some(0.96),
                head_density: Some(density / 2.0),
                ..Phase::default()
            },
            ..example("xattn:threshold=0.9", "recall opticks")
        };
        let text = |tokens| {
            let Cell { decode, prefill, .. } = cell(tokens, 0.5);
            let prefill = Phase { recall: None, head_density: None, ..prefill };
            Cell { tokens, decode, prefill, ..example("xattn:threshold=0.9", "text opticks") }
        };
        let dense = Cell { tokens: 16_384, ..example("full", "text opticks") };
        let rows = by_length(&[text(4096), text(512), cell(4096, 0.5), cell(8192, 0.25), dense]);
        insta::assert_snapshot!(rows.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"), @"
        xattn:threshold=0.9                                4096 tokens:  25.0 % a head,  50.0 % attended, recall 0.960
        xattn:threshold=0.9                                 512 tokens:       - a head,  50.0 % attended, recall -
        xattn:threshold=0.9                                8192 tokens:  12.5 % a head,  25.0 % attended, recall 0.960
        ");
        assert_eq!(rows[2].cells(), ["8,192", "12.5 %", "25.0 %", "0.960"]);
        assert_eq!(by_length(&[text(4096), cell(4096, 0.5)]), []);
    }
}
