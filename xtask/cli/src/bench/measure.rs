//! Serves batches and takes their times.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Result, anyhow};
use models::PageTraffic;
use pagoda::{Engine, Event, Request};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

/// Number of steps whose kernels are timed.
const TIMED_STEPS: u32 = 9;

/// Equal requests that arrive at once: `8x512+128` are 8 prompts of 512 tokens, each continued by 128.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Batch {
    /// Number of requests.
    pub streams: u32,
    /// Number of tokens of a prompt.
    pub prompt: u32,
    /// Number of tokens of an answer.
    pub output: u32,
}

impl Batch {
    /// Number of tokens of one sequence at its end, prompt and output together.
    #[must_use]
    pub fn longest(self) -> u32 {
        self.prompt + self.output
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}+{}", self.streams, self.prompt, self.output)
    }
}

impl FromStr for Batch {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let batch = || {
            let (streams, tokens) = text.split_once('x')?;
            let (prompt, output) = tokens.split_once('+')?;
            let number = |text: &str| text.parse().ok().filter(|n| *n > 0);
            let batch = Self { streams: number(streams)?, prompt: number(prompt)?, output: number(output)? };
            batch.prompt.checked_add(batch.output).map(|_| batch)
        };
        batch().ok_or_else(|| anyhow!("{text:?} is not STREAMSxPROMPT+OUTPUT in numbers from 1 on, of which PROMPT and OUTPUT are together at most {}", u32::MAX))
    }
}

impl TryFrom<String> for Batch {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

/// Times of a batch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// Seconds until the last stream's first token.
    pub prefill_s: f64,
    /// Seconds from the last stream's first token until the first stream ends, while all streams run.
    pub decode_s: f64,
    /// Number of tokens of all streams in the time `decode_s`.
    pub tokens: usize,
    /// Number of steps in that time.
    pub steps: usize,
    /// Number of decode steps that were encoded while the previous one ran.
    pub ahead: u64,
    /// Pages of selected blocks in decode steps, if the context is on the host.
    pub pages: Option<PageTraffic>,
    /// Number of bytes of whole blocks that decode steps copied from the host.
    pub copied_bytes: u64,
    /// Share of the blocks that the first stream to end attended to, if a policy selects some.
    pub density: Option<f64>,
}

/// Device time of a kernel.
#[derive(Debug, Clone, Serialize)]
pub struct KernelTime {
    /// Name of the kernel.
    pub kernel: String,
    /// Number of dispatches, mean over steps.
    pub dispatches: f64,
    /// Microseconds, mean over steps.
    pub us: f64,
}

/// Device times by kernel, the longest first.
#[derive(Debug, Clone, Default, Serialize)]
pub struct KernelTimes {
    /// Times of kernels in the whole prefill of all streams.
    pub prefill: Vec<KernelTime>,
    /// Times of kernels in a decode step.
    pub decode: Vec<KernelTime>,
}

/// An engine that serves batches of prompts. No prompt repeats an earlier one.
#[derive(Debug)]
pub struct Bench {
    /// The engine.
    pub engine: Engine,
    /// Maximum number of prompt tokens per step.
    pub chunk: u32,
    /// Seed of the prompts of the last batch; each batch counts it up.
    pub seed: u64,
    /// Tokens that all prompts begin with, except for the first token; without them, prompts are random.
    pub text: Option<Vec<u32>>,
}

impl Bench {
    /// Runs a short batch that compiles the kernels of `batch`.
    ///
    /// # Errors
    /// Errors of the engine.
    pub fn warm_up(&mut self, batch: Batch) -> Result<()> {
        // Kernels do not depend on the length of longer prompts, but on the number of rows: all streams decode together.
        let prompt = batch.prompt.min(4 * self.chunk);
        let output = batch.output.min(self.prefills(Batch { prompt, ..batch }) + 3);
        self.measure(Batch { prompt, output, ..batch })?;
        Ok(())
    }

    /// Runs a batch.
    ///
    /// # Errors
    /// Errors of the engine.
    pub fn measure(&mut self, batch: Batch) -> Result<Times> {
        let prefill_s = self.prefill(batch)?;
        let ahead = self.engine.decoder().steps_ahead();
        let before = self.engine.decoder().page_traffic()?;
        let copied = self.engine.decoder().host_traffic().fetched_bytes;
        let mut times = Times { prefill_s, ..Times::default() };
        let selects = self.engine.decoder().selects_on().is_some();
        let start = Instant::now();
        let mut ended = None;
        while self.engine.has_work() && ended.is_none() {
            let events = self.engine.step()?;
            times.decode_s = start.elapsed().as_secs_f64();
            times.tokens += events.iter().filter(|event| matches!(event, Event::Token(..))).count();
            times.steps += 1;
            ended = events.into_iter().find_map(|event| match event {
                Event::Finished(finished) => Some(finished.usage.sparse.density),
                _ => None,
            });
        }
        times.density = ended.filter(|_| selects);
        times.ahead = self.engine.decoder().steps_ahead() - ahead;
        times.copied_bytes = self.engine.decoder().host_traffic().fetched_bytes - copied;
        times.pages = self.engine.decoder().page_traffic()?.zip(before).map(|(now, before)| PageTraffic {
            hits: now.hits - before.hits,
            misses: now.misses - before.misses,
            prefetched: now.prefetched - before.prefetched,
            ..now
        });
        self.drain()?;
        Ok(times)
    }

    /// Runs a batch with timestamps, which slow it down. Returns no times if the adapter has no timestamps.
    ///
    /// # Errors
    /// Errors of the engine.
    pub fn time_kernels(&mut self, batch: Batch) -> Result<KernelTimes> {
        if !self.engine.time_kernels(true) {
            return Ok(KernelTimes::default());
        }
        self.engine.take_kernel_times();
        self.prefill(Batch { output: batch.output.min(self.prefills(batch) + TIMED_STEPS), ..batch })?;
        let prefill = self.kernels(1);
        let mut steps = 0;
        while self.engine.has_work() && steps < TIMED_STEPS {
            self.engine.step()?;
            steps += 1;
        }
        let decode = self.kernels(steps);
        self.engine.time_kernels(false);
        self.drain()?;
        Ok(KernelTimes { prefill, decode })
    }

    /// Number of steps that prefill a batch: the first stream decodes until the last one's prompt is done.
    fn prefills(&self, batch: Batch) -> u32 {
        (batch.streams * batch.prompt).div_ceil(self.chunk)
    }

    /// Device times since the last call, divided by a number of steps.
    fn kernels(&mut self, steps: u32) -> Vec<KernelTime> {
        let steps = f64::from(steps.max(1));
        let times = self.engine.take_kernel_times().into_iter();
        let a_step = |(kernel, (dispatches, ns)): (&str, (u64, f64))| KernelTime {
            kernel: kernel.to_owned(),
            dispatches: count(dispatches) / steps,
            us: ns / 1e3 / steps,
        };
        let mut times: Vec<KernelTime> = times.map(a_step).collect();
        times.sort_by(|a, b| b.us.total_cmp(&a.us));
        times
    }

    /// Submits a batch and runs it until every stream has its first token. Returns the seconds.
    fn prefill(&mut self, batch: Batch) -> Result<f64> {
        let requests = self.requests(batch);
        let (start, streams) = (Instant::now(), requests.len());
        for request in requests {
            self.engine.submit(request)?;
        }
        let mut begun = HashSet::new();
        while begun.len() < streams && self.engine.has_work() {
            for event in self.engine.step()? {
                if let Event::Token(token) = event {
                    begun.insert(token.seq);
                }
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// The requests of a batch. Prompts are random ids, so that prefix hits and patterns in a text do not distort the
    /// measurement, or a text after a random id, so that prompts share no prefix.
    fn requests(&mut self, batch: Batch) -> Vec<Request> {
        self.seed += 1;
        let vocab = self.engine.decoder().config().vocab_size;
        let mut random = StdRng::seed_from_u64(self.seed);
        let mut ids = || {
            let mut next = || random.random_range(0..vocab);
            match &self.text {
                Some(text) => {
                    let rest = text.iter().skip(1).take(batch.prompt as usize - 1).copied();
                    std::iter::once(next()).chain(rest).collect()
                }
                None => (0..batch.prompt).map(|_| next()).collect(),
            }
        };
        let request = |_| Request::new(ids()).max_tokens(batch.output).ignore_eos().without_text();
        (0..batch.streams).map(request).collect()
    }

    fn drain(&mut self) -> Result<()> {
        while self.engine.has_work() {
            self.engine.step()?;
        }
        Ok(())
    }
}

/// Converts a count, for sums and ratios.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub fn count(n: u64) -> f64 {
    n as f64
}
