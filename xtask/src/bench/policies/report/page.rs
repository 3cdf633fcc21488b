//! The page of a report: one file that loads nothing, in the light or dark scheme of its reader, for wide and narrow screens.

use std::fmt::Write;

use models::grouped;
use pagoda::measured::MeasuredPolicy;
use pagoda::usage::readable;

use super::super::page::escaped;
use super::frontier::{Curves, Dot, mark};
use super::row::{Compared, Row, compared, front};
use super::table::{HEADS, kv_name, sparse, values, whole};
use super::{Facts, KvDtype, recommendations};
use crate::bench::chart::{Axis, COLORS};

const STYLE: &str = include_str!("style.css");

/// Limit of the sentence at the top, in per cent.
const LEAD: &str = "0.5%";

/// The page about `rows`, whose first KV type is what all others are compared with.
pub(super) fn page(facts: &Facts, rows: &[Row], kv_dtypes: &[KvDtype]) -> String {
    let own = kv_dtypes.first().copied().unwrap_or(KvDtype::F16);
    let (model, device) = (escaped(&facts.model), escaped(&facts.device));
    let colors = COLORS
        .iter()
        .enumerate()
        .map(|(at, color)| format!(".s{at}{{color:#{:02x}{:02x}{:02x}}}", color.0, color.1, color.2));
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>Sparse attention: {model}</title>\n<style>\n{STYLE}{}</style>\
         </head><body>\n<h1>Sparse attention: what it loses, what it gains</h1>\n<p class=\"soft sub\">{model}, {device}, <span>{}</span></p>\n",
        colors.collect::<String>(),
        facts.date,
    );
    html += &advice(&sparse(rows, own), facts.answer);
    html += &curves(rows, kv_dtypes, own);
    html += &kv_types(rows, kv_dtypes, own);
    html += &tables(rows, kv_dtypes, own);
    html + &circumstances(facts, own) + "</body></html>\n"
}

/// A sentence, and a card for each limit.
fn advice(measured: &[MeasuredPolicy], answer: u32) -> String {
    let all = recommendations(measured);
    let lead = all.iter().find(|(limit, _)| limit.to_string() == LEAD).and_then(|(_, taken)| *taken);
    let mut html = match lead {
        Some(row) => format!(
            "<p class=\"lead\">For at most {LEAD} loss take <code>{}</code>: <b>{:.1} times dense</b> at {} tokens.</p>\n",
            escaped(&row.spec),
            row.speedup,
            grouped(row.tokens)
        ),
        None => format!(
            "<p class=\"lead\">For at most {LEAD} loss stay with dense attention: no measured policy that keeps it is faster.</p>\n"
        ),
    };
    html += "<div class=\"cards\">\n";
    for (limit, taken) in all {
        let _ = write!(html, "<div class=\"card\"><div class=\"limit\">at most {limit} loss</div>");
        let _ = match taken {
            Some(row) => write!(
                html,
                "<div class=\"times\">{:.2} ×</div><code>{}</code><div class=\"fine\">{} at {} tokens</div>",
                row.speedup,
                escaped(&row.spec),
                row.say_loss(),
                grouped(row.tokens)
            ),
            None => write!(
                html,
                "<div class=\"times\">dense</div><div class=\"fine\">nothing that was measured is faster within this limit</div>"
            ),
        };
        html += "</div>\n";
    }
    let _ = writeln!(
        html,
        "</div>\n<p class=\"soft under\">Times dense attention, for a request of that many prompt tokens and an answer of {answer}. A policy \
         is within a limit if its loss and one standard error of it are. <code>--sparse auto:loss={LEAD}</code> takes it by itself.</p>"
    );
    html
}

/// Names of policies without keys, in the order of the rows: each has a colour.
fn families(rows: &[Row]) -> Vec<String> {
    let mut families = Vec::new();
    for row in rows {
        let family = family(&row.policy);
        if !families.contains(&family) {
            families.push(family);
        }
    }
    families
}

fn family(policy: &str) -> String {
    let names: Vec<&str> = policy.split('+').map(|part| part.split(':').next().unwrap_or(part)).collect();
    names.join("+")
}

/// Lengths of the rows, ascending.
fn lengths(rows: &[Row]) -> Vec<u32> {
    let mut lengths: Vec<u32> = rows.iter().map(|row| row.tokens).collect();
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

/// Rows of a length and KV type beside dense attention with the first KV type.
fn at<'a>(rows: &'a [Row], tokens: u32, kv_dtype: KvDtype, own: KvDtype) -> Vec<Compared<'a>> {
    let mut rows = compared(rows, kv_dtype, own);
    rows.retain(|row| row.row.tokens == tokens);
    rows
}

/// Loss against speed and against density, at each length.
fn curves(rows: &[Row], kv_dtypes: &[KvDtype], own: KvDtype) -> String {
    let families = families(rows);
    let mut html = String::from("<h2>Loss against speed</h2>\n<div class=\"legend\">");
    for (at, family) in families.iter().enumerate() {
        let color = at % COLORS.len();
        let mark = mark(0, 7.0, 7.0);
        let _ = write!(
            html,
            "<span><svg class=\"s{color}\" viewBox=\"0 0 14 14\">{mark}</svg>{}</span>",
            escaped(family)
        );
    }
    html += "</div>\n<div class=\"legend\">";
    for (form, kv_dtype) in kv_dtypes.iter().enumerate() {
        let (mark, name) = (mark(form, 7.0, 7.0), kv_name(*kv_dtype));
        let _ = write!(html, "<span><svg viewBox=\"0 0 14 14\">{mark}</svg>KV {name}</span>");
    }
    html += "</div>\n<div class=\"curves\">\n";
    for tokens in lengths(rows) {
        let mut speed = Vec::new();
        let mut density = Vec::new();
        for (form, kv_dtype) in kv_dtypes.iter().enumerate() {
            let here = at(rows, tokens, *kv_dtype, own);
            for ((index, row), best) in here.iter().enumerate().zip(front(&here)) {
                let best = best && form == 0;
                let dot = |x| Dot {
                    x,
                    loss: row.loss * 100.0,
                    loss_error: row.loss_error * 100.0,
                    family: families.iter().position(|name| *name == family(&row.row.policy)).unwrap_or(0)
                        % COLORS.len(),
                    form,
                    label: best.then_some(index),
                    title: format!("{}, KV {}", row.measured(), kv_name(*kv_dtype)),
                    is_best: best,
                };
                speed.push(dot(row.request));
                density.extend(row.row.density().map(|share| Dot { is_best: false, ..dot(share * 100.0) }));
            }
        }
        let shown = grouped(tokens);
        for (title, x, x_title, unit, dots) in [
            (
                format!("Speed, {shown} tokens"),
                Axis::close("speed"),
                "speed of a request, times dense",
                "",
                speed,
            ),
            (
                format!("Blocks read, {shown} tokens"),
                Axis::linear("density"),
                "density in the phase where a policy acts",
                " %",
                density,
            ),
        ] {
            let svg = Curves { title: &title, x, x_title, unit, dots }.svg();
            let _ = writeln!(html, "<figure><figcaption>{title}</figcaption>{svg}</figure>");
        }
    }
    html + "</div>\n<p class=\"soft\">Down and to the right is better in the left ones, down and to the left in the others. The dashed \
            line joins what nothing beats in both loss and speed; its numbers are those of the tables. A bar is one standard error.</p>\n"
}

/// Memory, loss and speed of KV types with dense attention, at the longest length.
fn kv_types(rows: &[Row], kv_dtypes: &[KvDtype], own: KvDtype) -> String {
    let Some(tokens) = lengths(rows).last().copied().filter(|_| kv_dtypes.len() > 1) else {
        return String::new();
    };
    let heads = ["KV", "memory", "a token", "loss", "prefill tok/s", "decode tok/s"];
    let dense = |kv_dtype: &KvDtype| {
        let row = at(rows, tokens, *kv_dtype, own).into_iter().find(Compared::is_dense)?;
        let of = row.row;
        let cells = [
            readable(of.kv_bytes),
            format!("{} B", whole(of.kv_bytes_a_token())),
            if row.is_reference() { "reference".into() } else { row.measured().say_loss() },
            whole(of.prefill_tok_s),
            whole(of.decode_tok_s),
        ];
        Some((kv_name(*kv_dtype), false, cells.to_vec()))
    };
    let title = format!("Memory of the KV cache: dense attention, {} tokens", grouped(tokens));
    table(&title, &heads, kv_dtypes.iter().filter_map(dense))
}

/// All rows of each length.
fn tables(rows: &[Row], kv_dtypes: &[KvDtype], own: KvDtype) -> String {
    let heads: Vec<&str> = ["policy"].into_iter().chain(HEADS).collect();
    let of_length = |tokens: u32| {
        let lines = kv_dtypes.iter().enumerate().flat_map(|(form, kv_dtype)| {
            let here = at(rows, tokens, *kv_dtype, own);
            let best = front(&here);
            let line = |(index, (row, best)): (usize, (&Compared<'_>, bool))| {
                let name = format!("<i>{index}</i><code>{}</code>", escaped(&row.row.policy));
                (name, best && form == 0, values(row).to_vec())
            };
            here.iter().zip(best).enumerate().map(line).collect::<Vec<_>>()
        });
        table(&format!("All policies, {} tokens", grouped(tokens)), &heads, lines)
    };
    lengths(rows).into_iter().map(of_length).collect()
}

/// A table whose cells know their heads, which narrow screens write beside them.
fn table(title: &str, heads: &[&str], lines: impl Iterator<Item = (String, bool, Vec<String>)>) -> String {
    let mut html = format!("<h2>{title}</h2>\n<table><thead><tr>");
    heads.iter().for_each(|head| {
        let _ = write!(html, "<th>{head}</th>");
    });
    html += "</tr></thead><tbody>\n";
    for (name, best, cells) in lines {
        let _ = write!(html, "<tr{}><td>{name}</td>", if best { " class=\"front\"" } else { "" });
        for (head, cell) in heads[1..].iter().zip(cells) {
            let _ = write!(html, "<td data-head=\"{head}\">{cell}</td>");
        }
        html += "</tr>\n";
    }
    html + "</tbody></table>\n"
}

/// The section about the measurements: their terms, model, device and command.
fn circumstances(facts: &Facts, own: KvDtype) -> String {
    let Facts { model, fingerprint, device, driver, text, scored, answer, tasks, date, command } = facts;
    let tasks = if tasks.is_empty() { "none".to_owned() } else { tasks.join(", ") };
    let list = [
        ("model", format!("{model}, fingerprint {fingerprint}")),
        ("device", device.clone()),
        ("driver", driver.clone()),
        ("text", text.clone()),
        ("tasks", tasks),
        ("date", date.clone()),
        ("program", format!("Pagoda {}", env!("CARGO_PKG_VERSION"))),
    ];
    let mut html = format!(
        "<h2>How it was measured</h2>\n<p><b>Loss</b>: mean negative log likelihood of {scored} tokens behind the prompt, as decode \
         steps, against dense attention with KV {own}, and its standard error over these tokens. <b>Request</b>, <b>prefill</b> and \
         <b>decode</b>: speeds as multiples of dense attention, of the prompt and an answer of {answer} tokens, one at a time, the \
         faster one of two. <b>Density</b>: attended share of the KV blocks. <b>Tasks</b>: share of the expected answers that were found; \
         <b>to finish</b>: tokens of an answer that the model ended, mean. <b>KV memory</b>: blocks of prompt and scored tokens.</p>\n\
         <dl>",
        own = kv_name(own),
    );
    for (name, value) in list {
        let _ = write!(html, "<dt>{name}</dt><dd>{}</dd>", escaped(&value));
    }
    let _ = writeln!(html, "<dt>command</dt><dd><code>{}</code></dd></dl>", escaped(command));
    html
}

#[cfg(test)]
mod tests {
    use super::super::row::{DENSE, example};
    use super::*;

    fn facts() -> Facts {
        Facts {
            model: "a & b".into(),
            fingerprint: "00ff".into(),
            device: "a card".into(),
            driver: "1.0".into(),
            text: "Opticks".into(),
            scored: 512,
            answer: 256,
            tasks: vec!["vt"],
            date: "2026-11-26".into(),
            command: "cargo xtask bench policies --report".into(),
        }
    }

    fn rows() -> Vec<Row> {
        let of = |kv_dtype, request_s| {
            [
                example(DENSE, kv_dtype, 8192, 0.0, request_s),
                example("quest:page_budget=52", kv_dtype, 8192, 0.004, request_s / 2.0),
                example("flashprefill+quest:page_budget=7", kv_dtype, 8192, 0.1, request_s / 4.0),
            ]
        };
        [of(KvDtype::F16, 4.0), of(KvDtype::Int8, 3.0)].concat()
    }

    #[test]
    fn the_page_is_whole_and_loads_nothing() {
        let page = page(&facts(), &rows(), &[KvDtype::F16, KvDtype::Int8]);
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
        assert!(
            page.contains("a &amp; b")
                && page.contains("name=\"viewport\"")
                && page.contains("prefers-color-scheme:dark")
        );
        for part in ["svg", "table", "figure", "div", "p", "code", "tr", "td"] {
            let opened =
                page.matches(&format!("<{part}>")).count() + page.matches(&format!("<{part} ")).count();
            assert_eq!(opened, page.matches(&format!("</{part}>")).count(), "{part}");
        }
        for loads in ["<script", "<link", "<img", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(loads), "{loads}");
        }
    }

    #[test]
    fn the_recommendation_stands_at_the_top() {
        let page = page(&facts(), &rows(), &[KvDtype::F16, KvDtype::Int8]);
        assert!(page.contains("For at most 0.5% loss take <code>quest:page_budget=52</code>: <b>2.0 times dense</b> at 8,192 tokens."));
        let card = page.lines().find(|line| line.contains("at most 0.1% loss")).unwrap();
        assert!(card.contains("dense</div>"), "{card}");
        // int8 is compared with dense attention on f16, and so with what the reader has without either.
        let int8 =
            page.lines().find(|line| line.contains(">int8</td>") && line.contains("<i>0</i>")).unwrap();
        assert!(int8.contains("1.33 ×"), "{int8}");
    }

    #[test]
    fn families_are_policies_without_keys() {
        assert_eq!(families(&rows()), ["full", "quest", "flashprefill+quest"]);
    }
}
