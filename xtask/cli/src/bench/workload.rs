//! Workloads: when requests arrive, and how long they are. A RON file, which contains the seed, always gives
//! the same trace.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

/// Maximum number of requests of a workload.
const MAX_REQUESTS: u32 = 1 << 24;

/// A workload file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Name of the report and its files.
    pub name: String,
    /// Seed of arrivals, lengths and tokens.
    pub seed: u64,
    /// Total number of requests.
    pub requests: u32,
    /// Arrivals of the requests.
    pub arrivals: Arrivals,
    /// Kinds of requests, drawn by weight.
    pub classes: Vec<Class>,
    /// If given, every prompt begins with one of a few common prefixes.
    #[serde(default)]
    pub shared_prefix: Option<SharedPrefix>,
    /// Size of the KV pool, unless the command line sets it.
    #[serde(default)]
    pub kv_blocks: Option<u32>,
    /// If given, each request begins a conversation that goes on.
    #[serde(default)]
    pub turns: Option<Turns>,
}

/// When requests arrive.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Arrivals {
    /// Arrivals that are independent of each other (a Poisson process), at this mean rate.
    Poisson {
        /// Requests a second.
        per_second: f64,
    },
    /// Arrivals of `size` requests at a time, the first ones at the start.
    Bursts {
        /// Number of requests of a burst.
        size: u32,
        /// Seconds from one burst to the next.
        every_s: f64,
    },
}

/// Requests of similar lengths: uniform between inclusive bounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Share of the requests, relative to the other weights.
    pub weight: u32,
    /// Number of prompt tokens, not counting a shared prefix.
    pub prompt: (u32, u32),
    /// Tokens to generate.
    pub output: (u32, u32),
}

/// Prefixes that requests have in common.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedPrefix {
    /// Number of different prefixes.
    pub prefixes: u32,
    /// Number of tokens per prefix.
    pub tokens: u32,
}

/// Further turns of a conversation, as of an agent: each prompt is the previous one, its answer, and something new.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turns {
    /// Number of turns after the first one: uniform between inclusive bounds.
    pub more: (u32, u32),
    /// Number of new prompt tokens of a turn, between inclusive bounds.
    pub prompt: (u32, u32),
    /// Seconds from the end of an answer to the next turn.
    pub think_s: f64,
}

/// One request of a trace, or the first one of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    /// Seconds after the start.
    pub at_s: f64,
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Number of tokens to generate.
    pub output: u32,
    /// Later turns of the conversation.
    pub turns: Vec<Turn>,
}

/// A later turn of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Tokens that follow the answer before.
    pub prompt: Vec<u32>,
    /// Number of tokens to generate.
    pub output: u32,
}

/// Returns the workloads that run if no file is given, for GPUs or for software drivers. Conversations are for `bench serve`.
///
/// # Errors
/// None: a test reads them all.
pub fn builtin(software: bool) -> Result<Vec<Workload>> {
    macro_rules! files {
        ($folder:literal) => {
            [
                include_str!(concat!("../../workloads/", $folder, "/poisson.ron")),
                include_str!(concat!("../../workloads/", $folder, "/bursts.ron")),
                include_str!(concat!("../../workloads/", $folder, "/long-and-short.ron")),
                include_str!(concat!("../../workloads/", $folder, "/shared-prefixes.ron")),
                include_str!(concat!("../../workloads/", $folder, "/agents.ron")),
            ]
        };
    }
    let texts = if software { files!("cpu") } else { files!("gpu") };
    texts.iter().map(|text| parse(text)).collect()
}

/// Reads a workload file.
///
/// # Errors
/// If it cannot be read, and what [`parse`] refuses.
pub fn read(path: &Path) -> Result<Workload> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("{shown}: cannot be read"))?;
    parse(&text).with_context(|| format!("workload {shown}"))
}

/// The workload in a text.
///
/// # Errors
/// A text that is none, and values out of range.
pub fn parse(text: &str) -> Result<Workload> {
    let options = ron::Options::default().with_default_extension(ron::extensions::Extensions::IMPLICIT_SOME);
    let workload: Workload = options.from_str(text)?;
    workload.validate()?;
    Ok(workload)
}

impl Workload {
    fn validate(&self) -> Result<()> {
        let named = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let name = &self.name;
        ensure!(
            !name.is_empty() && name.chars().all(named),
            "name {name:?} is not made of letters, digits and -"
        );
        ensure!(
            (1..=MAX_REQUESTS).contains(&self.requests),
            "requests is {}, the limits are 1 and {MAX_REQUESTS}",
            self.requests
        );
        ensure!(
            self.kv_blocks.is_none_or(|blocks| blocks >= 2),
            "kv_blocks is {:?}, the least is 2",
            self.kv_blocks
        );
        match self.arrivals {
            Arrivals::Poisson { per_second } => {
                ensure!(
                    per_second.is_finite() && per_second > 0.0,
                    "per_second is {per_second}, not positive"
                );
            }
            Arrivals::Bursts { size, every_s } => {
                ensure!(size > 0, "size of bursts is 0, the least is 1");
                ensure!(every_s.is_finite() && every_s >= 0.0, "every_s is {every_s}, not a time");
            }
        }
        let weights: u64 = self.classes.iter().map(|class| u64::from(class.weight)).sum();
        let limit = u64::from(u32::MAX);
        ensure!(
            (1..=limit).contains(&weights),
            "weights of the classes are {weights} in all, the limits are 1 and {limit}"
        );
        for (index, class) in self.classes.iter().enumerate() {
            for (what, (least, most)) in [("prompt", class.prompt), ("output", class.output)] {
                ensure!(
                    least > 0 && least <= most,
                    "class {index}: {what} ({least}, {most}) is no range from 1 on"
                );
            }
        }
        if let Some(shared) = self.shared_prefix {
            ensure!(shared.prefixes > 0, "prefixes of shared_prefix is 0, the least is 1");
        }
        if let Some(Turns { more, prompt, think_s }) = self.turns {
            ensure!(more.0 <= more.1, "turns: more ({}, {}) is no range", more.0, more.1);
            let (least, most) = prompt;
            ensure!(least > 0 && least <= most, "turns: prompt ({least}, {most}) is no range from 1 on");
            ensure!(think_s.is_finite() && think_s >= 0.0, "think_s is {think_s}, not a time");
        }
        let (longest, limit) = (self.longest(), u64::from(u32::MAX));
        ensure!(longest <= limit, "the longest request has {longest} tokens, the limit is {limit}");
        Ok(())
    }

    /// Number of tokens of the longest request that the workload can draw, those to generate included.
    pub fn longest(&self) -> u64 {
        let of_class = |class: &Class| {
            let turn = |turns: Turns| u64::from(turns.prompt.1).saturating_add(class.output.1.into());
            let later = self.turns.map_or(0, |turns| u64::from(turns.more.1).saturating_mul(turn(turns)));
            (u64::from(class.prompt.1) + u64::from(class.output.1)).saturating_add(later)
        };
        let drawn = self.classes.iter().filter(|class| class.weight > 0).map(of_class);
        u64::from(self.shared_prefix.map_or(0, |shared| shared.tokens))
            .saturating_add(drawn.max().unwrap_or(0))
    }

    /// Returns the workload with arrivals as a Poisson process of this rate.
    pub fn at_rate(&self, per_second: f64) -> Self {
        Self { arrivals: Arrivals::Poisson { per_second }, ..self.clone() }
    }

    /// Conversations that arrive a second on average; `None` if they all come at once.
    pub fn rate(&self) -> Option<f64> {
        match self.arrivals {
            Arrivals::Poisson { per_second } => Some(per_second),
            Arrivals::Bursts { size, every_s } => (every_s > 0.0).then(|| f64::from(size) / every_s),
        }
    }

    /// The trace with tokens of a vocabulary, in order of arrival. Each `salt` gives another trace of the
    /// same kind.
    pub fn trace(&self, vocab: u32, salt: u64) -> Vec<Arrival> {
        let mut random = StdRng::seed_from_u64(self.seed ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let ids = |random: &mut StdRng, len: u32| (0..len).map(|_| random.random_range(0..vocab)).collect();
        let shared = self.shared_prefix.unwrap_or(SharedPrefix { prefixes: 1, tokens: 0 });
        let prefixes: Vec<Vec<u32>> = (0..shared.prefixes).map(|_| ids(&mut random, shared.tokens)).collect();
        let mut at_s = 0.0;
        let arrival = |index: u32| {
            at_s = match self.arrivals {
                Arrivals::Bursts { size, every_s } => f64::from(index / size) * every_s,
                // Times between arrivals are exponentially distributed; the draw is below 1, so the logarithm
                // is finite.
                Arrivals::Poisson { per_second } => at_s - (1.0 - random.random::<f64>()).ln() / per_second,
            };
            let class = self.draw_class(&mut random);
            let mut prompt = prefixes[random.random_range(0..prefixes.len())].clone();
            let own = random.random_range(class.prompt.0..=class.prompt.1);
            prompt.extend::<Vec<u32>>(ids(&mut random, own));
            let output = random.random_range(class.output.0..=class.output.1);
            let turns = self.turns.map_or_else(Vec::new, |turns| {
                let more = random.random_range(turns.more.0..=turns.more.1);
                let mut turn = |_| {
                    let own = random.random_range(turns.prompt.0..=turns.prompt.1);
                    let prompt = ids(&mut random, own);
                    Turn { prompt, output: random.random_range(class.output.0..=class.output.1) }
                };
                (0..more).map(&mut turn).collect()
            });
            Arrival { at_s, prompt, output, turns }
        };
        (0..self.requests).map(arrival).collect()
    }

    fn draw_class(&self, random: &mut StdRng) -> Class {
        let total: u32 = self.classes.iter().map(|class| class.weight).sum();
        let mut left = random.random_range(0..total);
        let hit = |class: &&Class| {
            let here = left < class.weight;
            left = left.saturating_sub(class.weight);
            here
        };
        *self.classes.iter().find(hit).expect("the draw is below the sum of weights")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn workload(change: impl FnOnce(&mut Workload)) -> Workload {
        let mut workload = builtin(true).unwrap().remove(0);
        change(&mut workload);
        workload
    }

    #[test]
    fn builtin_workloads_are_valid() {
        for software in [false, true] {
            let names: Vec<String> = builtin(software).unwrap().into_iter().map(|w| w.name).collect();
            assert_eq!(names, ["poisson", "bursts", "long-and-short", "shared-prefixes", "agents"]);
        }
    }

    #[test]
    fn a_seed_gives_one_trace() {
        for workload in builtin(false).unwrap() {
            let trace = workload.trace(1000, 0);
            assert_eq!(trace, workload.trace(1000, 0));
            assert_ne!(trace, workload.trace(1000, 1));
            assert_eq!(trace.len(), workload.requests as usize);
            assert!(trace.is_sorted_by(|a, b| a.at_s <= b.at_s));
        }
    }

    #[test]
    fn poisson_arrivals_have_their_rate() {
        let workload = workload(|w| {
            w.requests = 10_000;
            w.arrivals = Arrivals::Poisson { per_second: 8.0 };
        });
        let last = workload.trace(10, 0).last().unwrap().at_s;
        // The standard deviation of a sum of n exponential times is 1/sqrt(n) of its mean; the bound is five
        // of them.
        assert!((last / 1250.0 - 1.0).abs() < 0.05, "10,000 arrivals took {last} s");
    }

    proptest! {
        /// The test of Kolmogorov and Smirnov: the largest distance between the distribution of n times and the exponential
        /// one. Beyond 3/sqrt(n), where chance leads in 3 of 10^8 cases, the times are others.
        #[test]
        fn times_between_arrivals_are_exponential(seed: u64, per_second in 0.01f64..1000.0) {
            let workload = workload(|w| {
                w.seed = seed;
                w.requests = 2000;
                w.arrivals = Arrivals::Poisson { per_second };
            });
            let at: Vec<f64> = workload.trace(10, 0).iter().map(|arrival| arrival.at_s).collect();
            let mut gaps: Vec<f64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
            gaps.sort_by(f64::total_cmp);
            let n = f64::from(u32::try_from(gaps.len()).unwrap());
            let distance = |(rank, gap): (u32, &f64)| {
                let expected = 1.0 - (-gap * per_second).exp();
                (f64::from(rank) / n - expected).abs().max((f64::from(rank + 1) / n - expected).abs())
            };
            let largest = (0..).zip(&gaps).map(distance).fold(0.0, f64::max);
            prop_assert!(largest < 3.0 / n.sqrt(), "a distance of {largest}");
        }
    }

    #[test]
    fn conversations_go_on_within_their_bounds() {
        let workload = workload(|w| {
            w.requests = 50;
            w.classes = vec![Class { weight: 1, prompt: (5, 9), output: (2, 3) }];
            w.turns = Some(Turns { more: (1, 3), prompt: (4, 6), think_s: 0.0 });
        });
        assert_eq!(workload.longest(), 9 + 3 + 3 * (6 + 3));
        let trace = workload.trace(100, 0);
        let turns: std::collections::BTreeSet<usize> = trace.iter().map(|a| a.turns.len()).collect();
        assert_eq!(turns.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
        assert!(
            trace
                .iter()
                .flat_map(|a| &a.turns)
                .all(|turn| { (4..=6).contains(&turn.prompt.len()) && (2..=3).contains(&turn.output) })
        );
    }

    #[test]
    fn classes_and_prefixes_are_drawn_as_asked() {
        let workload = workload(|w| {
            w.requests = 400;
            w.arrivals = Arrivals::Bursts { size: 100, every_s: 2.0 };
            w.classes = vec![
                Class { weight: 3, prompt: (1, 4), output: (5, 5) },
                Class { weight: 0, prompt: (9, 9), output: (9, 9) },
                Class { weight: 1, prompt: (50, 60), output: (1, 2) },
            ];
            w.shared_prefix = Some(SharedPrefix { prefixes: 3, tokens: 16 });
        });
        let trace = workload.trace(1 << 20, 0);
        let starts: std::collections::BTreeSet<&[u32]> = trace.iter().map(|a| &a.prompt[..16]).collect();
        assert_eq!(starts.len(), 3);
        let long = trace.iter().filter(|a| a.prompt.len() > 60).count();
        assert!((60..140).contains(&long), "{long} of 400 are of the class of weight 1 in 4");
        assert!(trace.iter().all(|a| if a.prompt.len() > 60 { a.output <= 2 } else { a.output == 5 }));
        assert_eq!(trace.iter().filter(|a| a.at_s == 4.0).count(), 100);
    }

    #[test]
    fn wrong_files_are_refused_by_field() {
        let text = include_str!("../../workloads/cpu/bursts.ron");
        let refused = |from: &str, to: &str| {
            let changed = text.replace(from, to);
            assert_ne!(changed, text);
            format!("{:#}", parse(&changed).unwrap_err())
        };
        insta::assert_snapshot!(refused("requests: 8", "requests: 0"), @"requests is 0, the limits are 1 and 16777216");
        insta::assert_snapshot!(refused("size: 4", "size: 0"), @"size of bursts is 0, the least is 1");
        insta::assert_snapshot!(refused("every_s: 2.0", "every_s: -1.0"), @"every_s is -1, not a time");
        insta::assert_snapshot!(refused("prompt: (16, 64)", "prompt: (16, 8)"), @"class 0: prompt (16, 8) is no range from 1 on");
        insta::assert_snapshot!(refused("weight: 1", "weight: 0"), @"weights of the classes are 0 in all, the limits are 1 and 4294967295");
        insta::assert_snapshot!(refused("weight: 1", "weight: 4294967295, prompt: (1, 1), output: (1, 1)), (weight: 1"), @"weights of the classes are 4294967296 in all, the limits are 1 and 4294967295");
        let turns = "requests: 8, turns: (more: (2, 1), prompt: (1, 1), think_s: 0)";
        insta::assert_snapshot!(refused("requests: 8", turns), @"turns: more (2, 1) is no range");
        insta::assert_snapshot!(refused("requests: 8", &turns.replace("(2, 1)", "(2, 4294967295)")), @"the longest request has 38654705727 tokens, the limit is 4294967295");
        insta::assert_snapshot!(refused("prompt: (16, 64)", "prompt: (16, 4294967295)"), @"the longest request has 4294967303 tokens, the limit is 4294967295");
        assert!(refused("seed", "sed").contains("sed"));
    }
}
