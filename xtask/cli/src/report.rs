//! Output of commands: text as it is generated, or one JSON object per line, on stdout, and timing lines on
//! stderr.
//!
//! The JSON field names are part of the command line's interface: scripts read them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use pagoda::usage::{KvUse, SparseUse, TierUse};
use pagoda::{FinishReason, LogProbs};
use serde::Serialize;

/// One sample of one prompt: a line of `generate --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Generated {
    /// Index of the prompt, in the order given.
    pub index: u32,
    /// Index of the sample of the prompt.
    pub sample: u32,
    /// Token ids of the input, including the chat template.
    pub prompt_ids: Vec<u32>,
    /// Generated token ids, including a final end-of-sequence token.
    pub output_ids: Vec<u32>,
    /// Log-probabilities of the output, one entry a token; only with `--logprobs`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub log_probs: Vec<TokenLogProbs>,
    /// Generated text; empty for a model without a tokenizer.
    pub text: String,
    /// Why generation ended.
    pub finish_reason: FinishReason,
    /// Length of `prompt_ids`.
    pub prompt_tokens: u32,
    /// Number of leading prompt tokens whose KV came from the prefix cache.
    pub cached_tokens: u32,
    /// Number of times that the request lost its KV blocks and was resumed.
    pub preemptions: u32,
    /// Speed as this request saw it.
    pub timing: Timing,
    /// Largest number of KV blocks in use at one time, by KV cache group.
    pub kv: BTreeMap<String, KvUse>,
    /// Traffic of the KV tiers.
    pub tiers: TierUse,
    /// Density and bound of sparse attention.
    pub sparse: SparseUse,
}

/// The model's own log-probabilities at one position of an output, before penalties and filters.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenLogProbs {
    /// The drawn token.
    pub id: u32,
    /// Natural logarithm of its probability.
    pub log_prob: f32,
    /// The most likely tokens at the position, the most likely first.
    pub top_ids: Vec<u32>,
    /// Natural logarithms of the probabilities of `top_ids`.
    pub top_logprobs: Vec<f32>,
}

impl From<&LogProbs> for TokenLogProbs {
    fn from(at: &LogProbs) -> Self {
        Self {
            id: at.token.token,
            log_prob: at.token.log_prob,
            top_ids: at.top.iter().map(|top| top.token).collect(),
            top_logprobs: at.top.iter().map(|top| top.log_prob).collect(),
        }
    }
}

/// One sequence of `score --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scored {
    /// Number of tokens computed.
    pub tokens: u32,
    /// Mean negative log likelihood in nats per token, over tokens 1..n; null for a single token.
    pub mean_nll: Option<f64>,
    /// Likeliest next tokens after the last position, best first.
    pub top_ids: Vec<u32>,
    /// Natural logarithms of their probabilities.
    pub top_logprobs: Vec<f32>,
    /// KV blocks in use at the end, by KV cache group.
    pub kv: BTreeMap<String, KvUse>,
    /// Traffic of the KV tiers.
    pub tiers: TierUse,
    /// Density and bound of sparse attention.
    pub sparse: SparseUse,
}

/// Result of `select --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Selected {
    /// `[groups][query_blocks]` lists of ascending block indices; groups = KV heads, or 1 if all heads share
    /// a list; query_blocks = 1 if one list serves all queries.
    pub selected: Vec<Vec<Vec<u32>>>,
    /// Selected share of the blocks that a query may attend to, 0 to 1.
    pub density: f64,
    /// Share of the dense attention mass that falls on selected blocks, 0 to 1.
    pub recall: f64,
    /// Share of the dense attention mass that the selected blocks are certified to hold; null for prefill chunks.
    pub bound: Option<f64>,
}

/// Speed as one request saw it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Timing {
    /// Time from submission to the first generated token, in milliseconds; null if no token was generated.
    pub ttft_ms: Option<f64>,
    /// Computed prompt tokens per second, without cached ones; null without a generated token.
    pub prefill_tok_s: Option<f64>,
    /// Generated tokens after the first, per second; null below two tokens.
    pub decode_tok_s: Option<f64>,
}

/// Writes `value` as one line of JSON and flushes it, so that a reader sees each result as soon as it is
/// ready.
///
/// # Errors
///
/// The writer's.
pub fn json_line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// The timing line of a finished sample, for stderr.
pub fn timing_line(done: &Generated) -> String {
    let Generated { index, sample, prompt_tokens, cached_tokens, output_ids, timing, kv, .. } = done;
    let speed = |rate: Option<f64>| rate.map_or(String::new(), |rate| format!(" at {rate:.1} tok/s"));
    let first = timing.ttft_ms.map_or("none".to_owned(), |ms| format!("after {ms:.0} ms"));
    let blocks: u32 = kv.values().map(|group| group.blocks).sum();
    format!(
        "[{index}.{sample}] {prompt_tokens} prompt tokens ({cached_tokens} cached){}, first token {first}, \
         {} generated{}, {blocks} KV blocks",
        speed(timing.prefill_tok_s),
        output_ids.len(),
        speed(timing.decode_tok_s),
    ) + &if done.tiers == TierUse::default() { String::new() } else { format!("\n      {}", done.tiers) }
}

/// Prints generated text. A single sample is streamed piece by piece; of several, each is printed whole under
/// its `[prompt.sample]` label, in order, as soon as all before it are done.
#[derive(Debug)]
pub struct TextStream<W> {
    out: W,
    /// Samples not completely printed yet, by (prompt, sample).
    open: BTreeMap<(u32, u32), Sample>,
    streams: bool,
}

#[derive(Debug, Default)]
struct Sample {
    text: String,
    finished: bool,
}

impl<W: Write> TextStream<W> {
    /// Prints the text of `prompts` x `samples` samples to `out`.
    pub fn new(out: W, prompts: u32, samples: u32) -> Self {
        let all = (0..prompts).flat_map(|index| (0..samples).map(move |sample| (index, sample)));
        let open: BTreeMap<_, _> = all.map(|key| (key, Sample::default())).collect();
        Self { streams: open.len() == 1, open, out }
    }

    /// Takes the next piece of a sample's text.
    ///
    /// # Errors
    ///
    /// The writer's.
    ///
    /// # Panics
    ///
    /// When the sample is unknown or finished.
    pub fn push(&mut self, index: u32, sample: u32, text: &str) -> io::Result<()> {
        if self.streams {
            self.out.write_all(text.as_bytes())?;
            return self.out.flush();
        }
        self.sample(index, sample).text.push_str(text);
        Ok(())
    }

    /// Takes the end of a sample.
    ///
    /// # Errors
    ///
    /// The writer's.
    ///
    /// # Panics
    ///
    /// When the sample is unknown or finished.
    pub fn finish(&mut self, index: u32, sample: u32) -> io::Result<()> {
        self.sample(index, sample).finished = true;
        while let Some(first) = self.open.first_entry().filter(|first| first.get().finished) {
            let (index, sample) = *first.key();
            let text = first.remove().text;
            if !self.streams {
                write!(self.out, "[{index}.{sample}] {text}")?;
            }
            self.out.write_all(b"\n")?;
        }
        self.out.flush()
    }

    fn sample(&mut self, index: u32, sample: u32) -> &mut Sample {
        let open = self.open.get_mut(&(index, sample)).filter(|open| !open.finished);
        open.unwrap_or_else(|| panic!("prompt {index}, sample {sample} is unknown or finished"))
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use pagoda::usage::{PageUse, ReadAhead, TierTraffic};

    use super::*;

    fn generated() -> Generated {
        let host = TierTraffic {
            hits: 3,
            misses: 1,
            errors: 0,
            wait_ms: 0.5,
            bytes_read: 4096,
            bytes_written: 8192,
        };
        Generated {
            index: 0,
            sample: 1,
            prompt_ids: vec![1, 2, 3],
            output_ids: vec![4, 5],
            log_probs: Vec::new(),
            text: "so \"it\" is\n".to_string(),
            finish_reason: FinishReason::Length,
            prompt_tokens: 3,
            cached_tokens: 0,
            preemptions: 0,
            timing: Timing { ttft_ms: Some(12.5), prefill_tok_s: Some(240.0), decode_tok_s: Some(20.0) },
            kv: BTreeMap::from([("full".to_string(), KvUse { blocks: 1, bytes: 4096 })]),
            tiers: TierUse { host: Some(host), overlap: Some(0.75), ..TierUse::default() },
            sparse: SparseUse {
                policy: "full".to_string(),
                density: 1.0,
                bound: None,
                dense_below: None,
                prefill_dense_below: None,
            },
        }
    }

    fn line(value: &impl Serialize) -> String {
        let mut out = Vec::new();
        json_line(&mut out, value).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn generate_prints_one_object_a_line() {
        assert_snapshot!(line(&generated()), @r#"{"index":0,"sample":1,"prompt_ids":[1,2,3],"output_ids":[4,5],"text":"so \"it\" is\n","finish_reason":"length","prompt_tokens":3,"cached_tokens":0,"preemptions":0,"timing":{"ttft_ms":12.5,"prefill_tok_s":240.0,"decode_tok_s":20.0},"kv":{"full":{"blocks":1,"bytes":4096}},"tiers":{"host":{"hits":3,"misses":1,"errors":0,"wait_ms":0.5,"bytes_read":4096,"bytes_written":8192},"overlap":0.75},"sparse":{"policy":"full","density":1.0,"bound":null,"dense_below":null,"prefill_dense_below":null}}"#);
        assert_eq!(line(&generated()).matches('\n').count(), 1);
    }

    #[test]
    fn score_and_select_print_one_object_a_line() {
        let Generated { kv, sparse, .. } = generated();
        let scored = Scored {
            tokens: 1,
            mean_nll: None,
            top_ids: vec![9],
            top_logprobs: vec![-0.5],
            kv,
            tiers: TierUse::default(),
            sparse,
        };
        assert_snapshot!(line(&scored), @r#"{"tokens":1,"mean_nll":null,"top_ids":[9],"top_logprobs":[-0.5],"kv":{"full":{"blocks":1,"bytes":4096}},"tiers":{"overlap":null},"sparse":{"policy":"full","density":1.0,"bound":null,"dense_below":null,"prefill_dense_below":null}}"#);
        let selected =
            Selected { selected: vec![vec![vec![0, 2]]], density: 0.5, recall: 0.875, bound: None };
        assert_snapshot!(line(&selected), @r#"{"selected":[[[0,2]]],"density":0.5,"recall":0.875,"bound":null}"#);
    }

    #[test]
    fn timing_goes_on_one_line_and_tiers_on_another() {
        let dense = Generated { tiers: TierUse::default(), ..generated() };
        assert_snapshot!(timing_line(&dense), @"[0.1] 3 prompt tokens (0 cached) at 240.0 tok/s, first token after 12 ms, 2 generated at 20.0 tok/s, 1 KV blocks");
        let pages = PageUse { hits: 90, misses: 4, prefetched: 6, wait_ms: Some(1.25), ahead: None };
        let tiers = TierUse { device: Some(pages), ..generated().tiers };
        assert_snapshot!(tiers, @"tiers: device 90 hits, 4 misses, 6 fetched ahead, waited 1.2 ms; host 3 hits, 1 misses, waited 0.5 ms, 4.0 KiB read, 8.0 KiB written; 75 % of transfer time hidden");
        let ahead = Some(ReadAhead { predicted: 20, used: 5, late: 1 });
        let from_disk =
            TierUse { device: Some(PageUse { wait_ms: None, ahead, ..pages }), ..TierUse::default() };
        assert_snapshot!(from_disk, @"tiers: device 90 hits, 4 misses, 6 fetched ahead, 20 blocks predicted, 5 of them used, 1 late");
        assert_eq!(
            timing_line(&Generated { tiers, ..generated() }),
            format!("{}\n      {tiers}", timing_line(&dense))
        );
        let one_token = Timing { decode_tok_s: None, ..generated().timing };
        let done = Generated { output_ids: vec![4], timing: one_token, ..dense };
        assert_snapshot!(timing_line(&done), @"[0.1] 3 prompt tokens (0 cached) at 240.0 tok/s, first token after 12 ms, 1 generated, 1 KV blocks");
    }

    #[test]
    fn a_lone_sample_streams() {
        let mut stream = TextStream::new(Vec::new(), 1, 1);
        stream.push(0, 0, "one ").unwrap();
        assert_eq!(stream.out, b"one ");
        stream.push(0, 0, "two").unwrap();
        stream.finish(0, 0).unwrap();
        assert_eq!(stream.out, b"one two\n");
    }

    #[test]
    fn several_samples_are_printed_in_order() {
        let mut stream = TextStream::new(Vec::new(), 2, 2);
        for (index, sample) in [(1, 0), (0, 1), (0, 0)] {
            stream.push(index, sample, &format!("text {index}")).unwrap();
            stream.push(index, sample, &format!(" of {sample}")).unwrap();
            stream.finish(index, sample).unwrap();
        }
        assert_snapshot!(String::from_utf8_lossy(&stream.out), @"
        [0.0] text 0 of 0
        [0.1] text 0 of 1
        [1.0] text 1 of 0
        ");
        stream.finish(1, 1).unwrap();
        assert!(stream.out.ends_with(b"\n[1.1] \n"));
    }

    #[test]
    #[should_panic(expected = "prompt 0, sample 3 is unknown or finished")]
    fn an_unknown_sample_is_a_broken_invariant() {
        drop(TextStream::new(Vec::new(), 1, 1).finish(0, 3));
    }
}
