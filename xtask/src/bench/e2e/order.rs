//! The order of speeds: more streams, longer prompts of one chunk and smaller models must not be slower.

use anyhow::{Result, ensure};

/// Speeds of one row.
#[derive(Debug, Clone)]
pub(super) struct Speeds<'a> {
    pub(super) configuration: &'a str,
    /// Number of bytes of the model's tensors.
    pub(super) weight_bytes: u64,
    pub(super) streams: u32,
    pub(super) prompt: u32,
    /// Prefill speed of all streams together, in tokens per second.
    pub(super) prefill: f64,
    pub(super) decode: f64,
}

/// Checks that no speed is below `share` of that of a row that must not be faster:
///
/// - decode with more streams of the same prompts;
/// - prefill of one longer prompt, up to `chunk` tokens: beyond that attention grows;
/// - prefill and decode of a smaller model in the same batch.
///
/// # Errors
/// Names every pair of rows that is out of order, with both speeds.
pub(super) fn hold(rows: &[Speeds<'_>], share: f64, chunk: u32) -> Result<()> {
    let pairs = rows.iter().flat_map(|less| rows.iter().map(move |more| (less, more)));
    let breaches: Vec<_> = pairs.flat_map(|(less, more)| breaches(less, more, share, chunk)).collect();
    ensure!(breaches.is_empty(), "{} speeds are out of order:\n{}", breaches.len(), breaches.join("\n"));
    Ok(())
}

/// Lists the speeds of `more` that are below `share` of the speeds of `less`, where `more` must not be slower.
fn breaches(less: &Speeds<'_>, more: &Speeds<'_>, share: f64, chunk: u32) -> Vec<String> {
    let same_model = less.configuration == more.configuration;
    let same_batch = (less.streams, less.prompt) == (more.streams, more.prompt);
    let streams = same_model && less.prompt == more.prompt && less.streams < more.streams;
    let prompts = same_model && (less.streams, more.streams) == (1, 1) && less.prompt < more.prompt;
    let models = same_batch && less.weight_bytes > more.weight_bytes;
    let held = [
        ("decode", streams || models, less.decode, more.decode),
        ("prefill", prompts && more.prompt <= chunk || models, less.prefill, more.prefill),
    ];
    let name = |row: &Speeds<'_>| format!("{} {}x{}", row.configuration, row.streams, row.prompt);
    held.into_iter()
        .filter(|(_, applies, least, speed)| *applies && *speed < share * least)
        .map(|(phase, _, least, speed)| {
            format!("{phase}: {} has {speed:.0} tok/s, {} has {least:.0}", name(more), name(less))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(configuration: &str, weight_bytes: u64, batch: [u32; 2], prefill: f64, decode: f64) -> Speeds<'_> {
        let [streams, prompt] = batch;
        Speeds { configuration, weight_bytes, streams, prompt, prefill, decode }
    }

    #[test]
    fn rows_in_order_pass() {
        let rows = [
            row("8b", 80, [1, 128], 5000.0, 300.0),
            row("8b", 80, [1, 2048], 9000.0, 280.0),
            // Attention of what is longer than a chunk may take its time, and so may prompts of many streams.
            row("8b", 80, [1, 32_768], 4000.0, 200.0),
            row("8b", 80, [8, 128], 4000.0, 1500.0),
            row("3b", 30, [1, 128], 4800.0, 310.0),
        ];
        hold(&rows, 0.95, 2048).unwrap();
    }

    #[test]
    fn each_breach_is_told_with_both_speeds() {
        let rows = [
            row("8b", 80, [1, 128], 5000.0, 300.0),
            row("8b", 80, [1, 512], 4000.0, 300.0),
            row("8b", 80, [8, 128], 5000.0, 200.0),
            row("3b", 30, [1, 128], 2000.0, 100.0),
        ];
        insta::assert_snapshot!(hold(&rows, 0.95, 2048).unwrap_err(), @"
        4 speeds are out of order:
        prefill: 8b 1x512 has 4000 tok/s, 8b 1x128 has 5000
        decode: 8b 8x128 has 200 tok/s, 8b 1x128 has 300
        decode: 3b 1x128 has 100 tok/s, 8b 1x128 has 300
        prefill: 3b 1x128 has 2000 tok/s, 8b 1x128 has 5000
        ");
    }
}
