//! Summary of all cells: a table, and an HTML page with charts and heat maps.

use std::fmt::{self, Write};

use super::super::chart::{Axis, Join, Labels, Series, chart, heat_map};
use super::cell::{Cell, Phase};
use super::{lengths, scores};

/// One policy over all its cells.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Summary {
    policy: String,
    nll: Option<f64>,
    /// Relative to dense attention.
    loss: Option<f64>,
    prefill_density: Option<f64>,
    decode_density: Option<f64>,
    /// Share that query heads select individually, before the heads of a group are combined.
    head_density: Option<f64>,
    recall: Option<f64>,
    bound: Option<f64>,
    /// Number of facts found and asked for.
    pass_keys: (f64, usize),
    needles: (f64, usize),
    /// For the text's decode steps.
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

const STYLE: &str = ":root{color-scheme:light dark}body{font-family:sans-serif;margin:2em;max-width:1100px}table{border-collapse:collapse}\
td,th{border:1px solid #888;padding:2px 8px;text-align:right}td{white-space:nowrap}\
svg{vertical-align:top;margin:0 1em 1em 0}td:first-child,th:first-child{text-align:left}";

const HEADS: [&str; 13] = [
    "policy",
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

/// The page. Its charts are inline SVG, and it loads nothing.
pub(super) fn page(setup: &str, rows: &[Cell], policies: &[String]) -> String {
    let summaries = summaries(rows, policies);
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Sparse policies</title>\
         <style>{STYLE}</style></head><body>\n<h1>Sparse policies</h1>\n<p>{}</p>\n",
        escaped(setup)
    );
    html.push_str(
        "<p>Times are of decode steps of the text; selection and attention are device times by timestamps, \
                   what a policy selects on the host is in the milliseconds alone.</p>\n",
    );
    let line = |row: &Summary| [row.policy.clone()].into_iter().chain(row.values()).collect();
    html.push_str(&table(HEADS, summaries.iter().map(line)));
    for (policy, layers) in layers(rows) {
        let layers: Vec<String> = layers.iter().map(|density| format!("{density:.2}")).collect();
        let _ =
            writeln!(html, "<p>{}: density of decode by layer: {}</p>", escaped(policy), layers.join(" "));
    }
    html.push_str(&scores::table(&scores::scores(rows, policies)));
    html.push_str(&lengths::table(&lengths::by_length(rows)));
    html.push_str(&loss_chart(&summaries));
    html.push_str(&time_chart(rows, policies));
    for policy in policies {
        html.push_str(&pass_keys(rows, policy));
    }
    for cell in rows.iter().filter(|cell| !cell.selected.is_empty()) {
        let title =
            format!("{}: share of steps and KV heads that select a block, {}", cell.policy, cell.task);
        let shares = cell.shares();
        let columns = shares.iter().map(Vec::len).max().unwrap_or(0);
        // A column is one block, or several in long texts.
        let first = |column: usize| (column * cell.tokens as usize / columns).to_string();
        let x = Labels { name: "about token", each: (0..columns).map(first).collect() };
        let y = Labels::counted("layer", shares.len());
        html.push_str(&heat_map(&title, &x, &y, &shares));
    }
    html.push_str("</body></html>\n");
    html
}

/// A table of text.
pub(super) fn table<'h>(
    heads: impl IntoIterator<Item = &'h str>,
    lines: impl Iterator<Item = Vec<String>>,
) -> String {
    let mut html = String::from("<table><tr>");
    for head in heads {
        let _ = write!(html, "<th>{head}</th>");
    }
    html.push_str("</tr>\n");
    for line in lines {
        html.push_str("<tr>");
        for cell in line {
            let _ = write!(html, "<td>{}</td>", escaped(&cell));
        }
        html.push_str("</tr>\n");
    }
    html + "</table>\n"
}

/// Text escaped for HTML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn loss_chart(summaries: &[Summary]) -> String {
    let point = |row: &Summary| {
        let density = row.decode_density.filter(|density| *density < 1.0).or(row.prefill_density)?;
        row.loss.map(|loss| Series {
            name: row.policy.clone(),
            points: vec![(density, loss * 100.0).into()],
            join: Join::Apart,
        })
    };
    let series: Vec<Series> = summaries.iter().filter_map(point).collect();
    let x = Axis::linear("density: attended share of the blocks, decode (prefill where decode is dense)");
    chart("Loss against density", &x, &Axis::linear("NLL against dense, %"), series)
}

/// Decode time against context length: the mean over needles and texts of equal length.
fn time_chart(rows: &[Cell], policies: &[String]) -> String {
    let of = |policy: &String| {
        let mut points: Vec<(u32, Vec<f64>)> = Vec::new();
        // Cells that measure recall run on the host, so their times do not count.
        let timed = |cell: &&Cell| cell.policy == *policy && cell.kind != "recall" && cell.decode.tokens > 0;
        for cell in rows.iter().filter(timed) {
            match points.iter_mut().find(|(tokens, _)| tokens.abs_diff(cell.tokens) < 32) {
                Some((_, times)) => times.push(cell.decode.ms),
                None => points.push((cell.tokens, vec![cell.decode.ms])),
            }
        }
        points.sort_by_key(|(tokens, _)| *tokens);
        let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
        let points = points.iter().map(|(tokens, times)| (f64::from(*tokens), mean(times)).into()).collect();
        Series { name: policy.clone(), points, join: Join::Line }
    };
    chart(
        "Time against context",
        &Axis::log("tokens of context"),
        &Axis::linear("ms a decode token"),
        policies.iter().map(of).collect(),
    )
}

/// Pass keys found, one row per depth and one column per length.
fn pass_keys(rows: &[Cell], policy: &str) -> String {
    let cells: Vec<&Cell> =
        rows.iter().filter(|cell| cell.policy == policy && cell.kind == "pass-key").collect();
    if cells.is_empty() {
        return String::new();
    }
    let mut lengths: Vec<u32> = cells.iter().map(|cell| cell.tokens).collect();
    let mut depths: Vec<f64> = cells.iter().filter_map(|cell| cell.depth).collect();
    lengths.sort_unstable();
    lengths.dedup();
    depths.sort_by(f64::total_cmp);
    depths.dedup();
    let share = |depth: f64, length: u32| {
        let here = cells.iter().filter(|cell| cell.depth == Some(depth) && cell.tokens == length);
        let found: Vec<f64> = here.filter_map(|cell| cell.found).collect();
        found.iter().sum::<f64>() / found.len() as f64
    };
    let values: Vec<Vec<f64>> =
        depths.iter().map(|depth| lengths.iter().map(|length| share(*depth, *length)).collect()).collect();
    let x = Labels { name: "tokens", each: lengths.iter().map(ToString::to_string).collect() };
    let y = Labels { name: "depth", each: depths.iter().map(ToString::to_string).collect() };
    heat_map(&format!("{policy}: share of pass keys found"), &x, &y, &values)
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
    fn the_page_is_whole_and_loads_nothing() {
        let page = page("a & b", &rows(), &["full".into(), "quest:page_budget=4".into()]);
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
        assert!(page.contains("a &amp; b") && page.contains("pass keys found"));
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        for loads in ["<script", "<link", "<img", "src=", "href="] {
            assert!(!page.contains(loads), "{loads}");
        }
    }
}
