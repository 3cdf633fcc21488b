//! Summary of all cells: a table, and the JSON that the page draws.

use std::fmt;

use anyhow::Result;
use serde_json::{Value, json};

use super::cell::{Cell, Phase};
use super::{lengths, scores};

/// One policy over all its cells.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Summary {
    policy: String,
    nll: Option<f64>,
    /// Loss relative to dense attention.
    loss: Option<f64>,
    prefill_density: Option<f64>,
    decode_density: Option<f64>,
    /// Share of the blocks that query heads select individually, before the heads of a group are combined.
    head_density: Option<f64>,
    recall: Option<f64>,
    bound: Option<f64>,
    /// Number of facts found, and number requested.
    pass_keys: (f64, usize),
    needles: (f64, usize),
    /// Milliseconds of the text's decode steps.
    ms: Option<f64>,
    attention_us: Option<f64>,
    selection_us: Option<f64>,
}

/// One row per policy, in their order.
pub(super) fn summaries(rows: &[Cell], policies: &[String]) -> Vec<Summary> {
    let dense = summary(rows, "full").nll;
    policies
        .iter()
        .map(|policy| {
            let summary = summary(rows, policy);
            let loss = summary.nll.zip(dense).map(|(nll, dense)| nll / dense - 1.0);
            Summary { loss, ..summary }
        })
        .collect()
}

fn summary(rows: &[Cell], policy: &str) -> Summary {
    let of = |kind: fn(&str) -> bool| {
        rows.iter().filter(move |cell| cell.policy == policy && kind(&cell.kind)).collect::<Vec<_>>()
    };
    let texts = of(|kind| kind == "text");
    let score = |cells: &[&Cell]| (cells.iter().filter_map(|cell| cell.found).sum(), cells.len());
    let mean = |value: fn(&Cell) -> f64| {
        (!texts.is_empty()).then(|| texts.iter().map(|cell| value(cell)).sum::<f64>() / texts.len() as f64)
    };
    let measured = of(|kind| kind == "recall");
    // Most policies act in one phase; for those that act in both, decode is shown.
    let either = |value: fn(&Phase) -> Option<f64>| {
        let of_cell = |cell: &&Cell| value(&cell.decode).or_else(|| value(&cell.prefill));
        let values: Vec<f64> = measured.iter().filter_map(of_cell).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let likelihoods: Vec<f64> = texts.iter().filter_map(|cell| cell.mean_nll).collect();
    Summary {
        policy: policy.into(),
        nll: (!likelihoods.is_empty()).then(|| likelihoods.iter().sum::<f64>() / likelihoods.len() as f64),
        loss: None,
        prefill_density: mean(|cell| cell.prefill.density),
        decode_density: mean(|cell| cell.decode.density),
        head_density: either(|phase| phase.head_density),
        recall: either(|phase| phase.recall),
        bound: texts.iter().chain(&measured).filter_map(|cell| cell.decode.bound).reduce(f64::min),
        pass_keys: score(&of(|kind| kind == "pass-key")),
        needles: score(&of(|kind| !matches!(kind, "text" | "recall" | "pass-key"))),
        ms: mean(|cell| cell.decode.ms),
        attention_us: mean(|cell| cell.decode.attention_us),
        selection_us: mean(|cell| cell.decode.selection_us),
    }
}

/// Densities of decode by layer, for policies whose layers differ by more than being dense or not.
pub(super) fn layers(rows: &[Cell]) -> Vec<(&str, &[f64])> {
    let differ = |layers: &[f64]| {
        let mut sparse = layers.iter().filter(|density| **density < 1.0);
        sparse.next().is_some_and(|first| sparse.any(|density| (density - first).abs() > 1e-3))
    };
    let texts = rows.iter().filter(|cell| cell.kind == "text" && differ(&cell.decode.layers));
    texts.map(|cell| (&*cell.policy, &*cell.decode.layers)).collect()
}

impl Summary {
    /// The values of a row.
    fn values(&self) -> [String; 12] {
        let percent: fn(f64) -> String = |share| format!("{:.1} %", share * 100.0);
        let some = |value: Option<f64>, shown: fn(f64) -> String| value.map_or("-".into(), shown);
        let score = |(found, asked): (f64, usize)| match asked {
            0 => "-".into(),
            _ => format!("{found:.1}/{asked}"),
        };
        [
            some(self.nll, |nll| format!("{nll:.5}")),
            some(self.loss, |loss| format!("{:+.2} %", loss * 100.0)),
            some(self.prefill_density, percent),
            some(self.decode_density, percent),
            some(self.head_density, percent),
            some(self.recall, |recall| format!("{recall:.3}")),
            some(self.bound, |bound| format!("{bound:.3}")),
            score(self.pass_keys),
            score(self.needles),
            some(self.ms, |ms| format!("{ms:.2}")),
            some(self.attention_us, |us| format!("{us:.0}")),
            some(self.selection_us, |us| format!("{us:.0}")),
        ]
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [nll, loss, prefill, decode, heads, recall, bound, keys, needles, ms, attention, selection] =
            self.values();
        write!(
            f,
            "{:44} {nll:>9} {loss:>8} {prefill:>8} {decode:>8} {heads:>8} {recall:>7} {bound:>7} {keys:>9} {needles:>7} {ms:>9} {attention:>10} {selection:>10}",
            self.policy
        )
    }
}

/// Heads of the values of a row.
const HEADS: [&str; 12] = [
    "NLL, nats a token",
    "against dense",
    "density, prefill",
    "density, decode",
    "density, a head",
    "recall",
    "certified mass",
    "pass keys",
    "needles",
    "ms a decode token",
    "attention, us",
    "selection, us",
];

/// The JSON of the suite, with the tables of its page: `{ heads, rows }`, whose rows are `{ policy, values }`.
///
/// # Errors
/// Never: cells are values of JSON.
pub(super) fn results(setup: &str, rows: &[Cell], policies: &[String]) -> Result<Value> {
    let line = |policy: &str, values: Vec<String>| json!({ "policy": policy, "values": values });
    let summary = |row: &Summary| {
        let mut line = line(&row.policy, row.values().to_vec());
        line["loss"] = row.loss.into();
        line["prefill_density"] = row.prefill_density.into();
        line["decode_density"] = row.decode_density.into();
        line
    };
    let summaries: Vec<Value> = summaries(rows, policies).iter().map(summary).collect();
    let layer = |(policy, density): (&str, &[f64])| json!({ "policy": policy, "density": density });
    let layers: Vec<Value> = layers(rows).into_iter().map(layer).collect();
    let of_ruler = scores::scores(rows, policies);
    let ruler: Vec<Value> = of_ruler.iter().map(|row| line(&row.policy, row.cells())).collect();
    let by_length = lengths::by_length(rows);
    let lengths: Vec<Value> = by_length.iter().map(|row| line(&row.policy, row.cells())).collect();
    Ok(json!({
        "setup": setup,
        "summaries": { "heads": HEADS, "rows": summaries },
        "layers": layers,
        "ruler": { "heads": scores::heads(), "rows": ruler },
        "lengths": { "heads": lengths::HEADS, "rows": lengths },
        "cells": serde_json::to_value(rows)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::cell::example;
    use super::*;

    fn rows() -> Vec<Cell> {
        let full = Cell { mean_nll: Some(2.0), ..example("full", "text gpl-3") };
        let text = example("quest:page_budget=4", "text gpl-3");
        let key = |found, depth| Cell {
            found: Some(found),
            depth: Some(depth),
            ..example("quest:page_budget=4", "pass-key")
        };
        vec![full, text, key(1.0, 0.1), key(0.0, 0.9)]
    }

    #[test]
    fn a_policy_is_compared_with_dense_attention() {
        let policies = ["full".to_string(), "quest:page_budget=4".to_string()];
        let [full, quest] = &summaries(&rows(), &policies)[..] else { panic!("two policies") };
        assert_eq!((full.loss, quest.loss), (Some(0.0), Some(0.25)));
        assert_eq!(quest.pass_keys, (1.0, 2));
        insta::assert_snapshot!(quest, @"quest:page_budget=4                            2.50000 +25.00 %  100.0 %   25.0 %        -       -       -     1.0/2       -      3.00          0          0");
    }

    #[test]
    fn layers_are_told_where_they_differ() {
        let cell = |policy: &str, layers: &[f64]| {
            let text = example(policy, "text gpl-3");
            Cell { decode: Phase { layers: layers.into(), ..Phase::default() }, ..text }
        };
        // With a budget, density is the same in every layer; with a certified mass, it differs.
        let rows =
            [cell("quest:page_budget=4", &[1.0, 0.25, 0.25]), cell("quest:mass=0.9", &[1.0, 0.5, 0.75])];
        assert_eq!(layers(&rows), [("quest:mass=0.9", &[1.0, 0.5, 0.75][..])]);
    }

    #[test]
    fn the_json_has_tables_and_cells() {
        let results = results("a setup", &rows(), &["full".into(), "quest:page_budget=4".into()]).unwrap();
        let quest = &results["summaries"]["rows"][1];
        assert_eq!((&quest["policy"], &quest["loss"]), (&json!("quest:page_budget=4"), &json!(0.25)));
        assert_eq!(quest["values"].as_array().unwrap().len(), HEADS.len());
        assert_eq!((&results["setup"], results["cells"].as_array().unwrap().len()), (&json!("a setup"), 4));
    }
}
