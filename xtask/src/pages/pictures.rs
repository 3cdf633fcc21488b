//! The pictures of the documentation: charts of results, and drawings.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::chart::{Axis, Bar, Frame, Scale, Series, bars, curves, points};
use super::results::{Library, Results, number};
use super::{PICTURES, drawings};

/// Returns all pictures by path.
///
/// # Errors
/// If a result is missing, or has not the rows and columns that a chart shows.
pub(super) fn all(library: &Library) -> Result<BTreeMap<String, String>> {
    let made = [
        ("decode-by-depth", decode_by_depth(library.get("llama-3-8b")?)?),
        ("sparse-decode", sparse_decode(library.get("sparse-decode")?)?),
        ("loss-by-speed", loss_by_speed(library.get("smollm2-loss")?, library.get("smollm2-speed")?)?),
        ("first-token", first_token(library.get("restart")?)?),
        ("ring-and-pages", drawings::ring_and_pages()),
        ("blocks-of-a-batch", drawings::blocks_of_a_batch()?),
    ];
    Ok(made.map(|(name, text)| (format!("{PICTURES}/{name}.svg"), text)).into())
}

/// Returns the numbers of two columns, of the rows that have both.
fn pairs(results: &Results, x: usize, y: usize) -> Vec<(f64, f64)> {
    (0..results.rows.len())
        .filter_map(|row| Some((results.number(row, x)?, results.number(row, y)?)))
        .collect()
}

/// Draws the decode speed of one stream by the length of its prompt, for Pagoda and llama.cpp.
fn decode_by_depth(results: &Results) -> Result<String> {
    let series = |name: &str, header: &str| -> Result<Series> {
        let column = results.column(header)?;
        let one = results.rows.iter().filter_map(|row| Some((row[0].strip_prefix("1 x ")?, &row[column])));
        let points = one.filter_map(|(depth, cell)| {
            // A cell may say at which other depth it was measured.
            let depth = cell.split_once(" at ").map_or(depth, |(_, depth)| depth);
            Some((number(depth)?, number(cell)?))
        });
        Ok(Series { name: name.into(), points: points.collect() })
    };
    let frame = Frame {
        title: "Decode of one stream, Llama 3 8B Q4_K, NVIDIA H200 over Vulkan",
        x: Axis {
            label: "tokens in the context",
            scale: Scale::Log,
            marks: &[512.0, 2048.0, 8192.0, 32_768.0, 131_072.0],
        },
        y: Axis { label: "tokens a second", scale: Scale::Linear, marks: &[0.0, 100.0, 200.0, 300.0, 400.0] },
    };
    Ok(curves(&frame, &[series("Pagoda", "decode")?, series("llama.cpp", "llama.cpp, decode")?]))
}

/// Draws the speed of decode at 120,000 tokens with 5 % of the blocks, by policy.
fn sparse_decode(results: &Results) -> Result<String> {
    let own = results
        .rows
        .iter()
        .position(|row| row[0].starts_with("1 x 120,000"))
        .context("no row of 1 x 120,000")?;
    let dense = results.number(own, results.column("dense")?).context("no speed of dense attention")?;
    let mut rows = vec![Bar { name: "dense".into(), value: dense, kind: 0 }];
    for (column, header) in results.columns.iter().enumerate().skip(3) {
        let name = header.replace('`', "");
        rows.extend([0, 1].iter().filter_map(|previous| {
            let value = results.number(own + previous, column)?;
            let name = if *previous == 0 { name.clone() } else { String::new() };
            Some(Bar { name, value, kind: previous + 1 })
        }));
    }
    let kinds = ["all blocks", "5 %, by its own queries", "by those of the last step"];
    Ok(bars("Decode of 1 x 120,000 tokens, Llama 3 8B Q4_K, NVIDIA H100", "tokens a second", &kinds, &rows))
}

/// Draws the loss of every policy over its speed, with f16 KV.
fn loss_by_speed(loss: &Results, speed: &Results) -> Result<String> {
    let loss_at = loss.column("7,680: f16")?;
    // The columns of the longer prompt are the second of their names.
    let [prefill, decode] = [speed.column("7,680: prefill")?, speed.column("7,680: prefill")? + 1];
    let mut series = [("policies of decode", decode), ("policies of prefill", prefill)]
        .map(|(name, column)| (Series { name: name.into(), points: Vec::new() }, column, Vec::new()));
    for (row, cells) in speed.rows.iter().enumerate() {
        let name = &cells[0];
        let prefills =
            ["xattn", "flashprefill", "skip-softmax"].iter().any(|of| name.starts_with(&format!("`{of}")));
        if name.contains("then") || name.starts_with("`streaming`") {
            continue;
        }
        let at = loss
            .rows
            .iter()
            .position(|other| other[0] == *name)
            .with_context(|| format!("no loss of {name}"))?;
        let (series, column, names) = &mut series[usize::from(prefills)];
        series.points.push((
            speed.number(row, *column).with_context(|| format!("no speed of {name}"))?,
            loss.number(at, loss_at).with_context(|| format!("no loss of {name}"))?,
        ));
        names.push(name.replace('`', ""));
    }
    let frame = Frame {
        title: "Loss by speed of each policy, SmolLM2-135M, 7,680 tokens, NVIDIA H200",
        x: Axis {
            label: "speed, dense attention is 1, of the phase in which the policy acts",
            scale: Scale::Linear,
            marks: &[0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2],
        },
        y: Axis {
            label: "loss of likelihood, per cent",
            scale: Scale::Linear,
            marks: &[-2.0, 0.0, 4.0, 8.0, 12.0, 16.0],
        },
    };
    let named = series.map(|(series, _, names)| (series, names));
    Ok(points(&frame, &named))
}

/// Draws the time to the first token by the length of the prompt, for prompts that are new, that the device holds,
/// and that the disk holds.
fn first_token(results: &Results) -> Result<String> {
    let prompt = results.column("prompt")?;
    let series = |(name, header): (&str, &str)| -> Result<Series> {
        Ok(Series { name: name.into(), points: pairs(results, prompt, results.column(header)?) })
    };
    let frame = Frame {
        title: "First token: new prompt, cached, and read from disk after kill -9",
        x: Axis {
            label: "tokens of the prompt (a tiny Llama, lavapipe on two processors)",
            scale: Scale::Log,
            marks: &[1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 32_768.0],
        },
        y: Axis {
            label: "milliseconds",
            scale: Scale::Log,
            marks: &[10.0, 100.0, 1000.0, 10_000.0, 100_000.0, 1_000_000.0],
        },
    };
    let named =
        [("cold", "cold"), ("warm, on the device", "warm"), ("restored from disk", "restored from disk")];
    Ok(curves(&frame, &named.map(series).into_iter().collect::<Result<Vec<_>>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_may_name_its_depth() {
        let text = r#"{"title":"T","date":"2026-11-23","commits":["a"],"adapter":"A","command":"c",
            "columns":["s","decode","llama.cpp, decode"],"rows":[["1 x 512","308","228"],["1 x 8,192","283","194 at 7,680"]]}"#;
        let results: Results = serde_json::from_str(text).unwrap();
        assert!(decode_by_depth(&results).unwrap().contains("llama.cpp"));
        assert!(decode_by_depth(&Results { columns: vec!["s".into(); 3], ..results }).is_err());
    }
}
