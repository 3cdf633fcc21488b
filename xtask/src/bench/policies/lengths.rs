//! Density and recall by length, of plans that measure recall at several: the curve of a policy whose density follows the text.

use std::fmt::{self, Write as _};

use models::grouped;

use super::cell::{Cell, Phase};
use super::page::escaped;

/// A policy at one length.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AtLength {
    policy: String,
    tokens: u32,
    /// Share of the blocks that query heads keep on their own.
    head_density: Option<f64>,
    /// Share that is left for all heads of a KV head, after their vote if there is one.
    density: f64,
    recall: Option<f64>,
}

impl AtLength {
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

/// One row a policy and length of its recall, in the order of the cells; none if all have one length.
pub(super) fn by_length(rows: &[Cell]) -> Vec<AtLength> {
    let of_cell = |cell: &Cell| {
        // Decode, if a policy acts there.
        let acts = |phase: &&Phase| phase.recall.is_some();
        let phase = [&cell.decode, &cell.prefill].into_iter().find(acts)?;
        Some(AtLength {
            policy: cell.policy.clone(),
            tokens: cell.tokens,
            head_density: phase.head_density,
            density: phase.density,
            recall: phase.recall,
        })
    };
    let all: Vec<AtLength> = rows.iter().filter(|cell| cell.kind == "recall").filter_map(of_cell).collect();
    let several = all.iter().any(|row| row.tokens != all[0].tokens);
    if several { all } else { Vec::new() }
}

/// The table of a page; nothing if there are no rows.
pub(super) fn table(rows: &[AtLength]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut html = String::from(
        "<h2>Density and recall by length</h2>\n<table><tr><th>policy</th><th>tokens</th><th>density, a head</th>\
         <th>density, attended</th><th>recall</th></tr>\n",
    );
    for row in rows {
        let _ = write!(html, "<tr><td>{}</td><td>{}</td>", escaped(&row.policy), grouped(row.tokens));
        row.values().iter().for_each(|value| {
            let _ = write!(html, "<td>{value}</td>");
        });
        html.push_str("</tr>\n");
    }
    html + "</table>\n"
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
                recall: Some(0.96),
                head_density: Some(density / 2.0),
                ..Phase::default()
            },
            ..example("xattn:threshold=0.9", "recall opticks")
        };
        let text = example("xattn:threshold=0.9", "text opticks");
        let rows = by_length(&[text.clone(), cell(4096, 0.5), cell(8192, 0.25)]);
        insta::assert_snapshot!(rows.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"), @"
        xattn:threshold=0.9                                4096 tokens:  25.0 % a head,  50.0 % attended, recall 0.960
        xattn:threshold=0.9                                8192 tokens:  12.5 % a head,  25.0 % attended, recall 0.960
        ");
        assert!(table(&rows).contains("<td>8,192</td><td>12.5 %</td><td>25.0 %</td><td>0.960</td>"));
        assert_eq!(by_length(&[text, cell(4096, 0.5), cell(4096, 0.5)]), []);
        assert_eq!(table(&[]), "");
    }
}
