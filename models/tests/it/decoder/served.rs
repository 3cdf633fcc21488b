//! Serves requests as a scheduler would: every step takes a chunk of each prompt that is left and one token of each
//! sequence that decodes.
//!
//! The engine's driver, `pagoda::Sequence`, is above this crate and serves one sequence at a time. These tests are about steps of
//! several: which rows stand beside which, whether tokens come as prefill or decode, what each row has for logits and choices.

use kvblock::{BlockId, GroupId, KvCache, KvCacheConfig, LengthLimits, SeqContent, SeqId, SlotRequest};
use models::batch::{Phase, Slice, StepOutput};
use models::sampling::{Allowed, LogProbs, Sample, Sampler, Sampling};
use models::{Attended, Decoder, DecoderConfig, KvPlan, ModelError, Pipeline};

use super::CAPACITY;

/// Prompt of a sequence, and what is asked of it.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    /// The prompt.
    pub(crate) ids: &'a [u32],
    /// Tokens of the prompt that go through as prefill; the others as decode rows, one a step.
    pub(crate) prefill: usize,
    /// Tokens to draw.
    pub(crate) tokens: usize,
    /// How; greedily where nothing is said.
    pub(crate) sampling: Option<&'a Sampling>,
    /// Tokens that may be drawn, as bits.
    pub(crate) allowed: Option<&'a [u32]>,
    /// Whether the mask is filled while the device computes.
    pub(crate) late: bool,
    /// Log-probabilities of the prompt's tokens, and of this many of the likeliest.
    pub(crate) echo: Option<u32>,
    /// Whether logits are asked for.
    pub(crate) logits: bool,
}

impl<'a> Request<'a> {
    pub(crate) fn new(ids: &'a [u32], tokens: usize) -> Self {
        Self {
            ids,
            prefill: ids.len(),
            tokens,
            sampling: None,
            allowed: None,
            late: false,
            echo: None,
            logits: true,
        }
    }
}

/// Results of a sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Served {
    /// Logits of every row, `[prompt + tokens - 1, vocab]`, where they were asked for.
    pub(crate) logits: Vec<f32>,
    /// Drawn tokens.
    pub(crate) drawn: Vec<u32>,
    /// Log-probabilities of drawn tokens, where they were asked for.
    pub(crate) log_probs: Vec<LogProbs>,
    /// Log-probabilities of the prompt's tokens from the second on, where they were asked for.
    pub(crate) echoed: Vec<LogProbs>,
    /// Blocks that a sparse policy attended in each step; empty where none acts.
    pub(crate) attended: Vec<Attended>,
    /// Choices of routers and indexers for each row, by layer; empty where nobody asked.
    pub(crate) choices: Vec<Vec<(usize, Vec<u32>)>>,
}

impl Served {
    /// The logits bit by bit: `==` on floats would let a zero pass for a negative one.
    pub(crate) fn bits(&self) -> Vec<u32> {
        self.logits.iter().map(|v| v.to_bits()).collect()
    }
}

/// A decoder, or several with the layers of one model.
pub(crate) trait Steps {
    fn config(&self) -> &DecoderConfig;

    fn plan(&self) -> &KvPlan;

    fn num_blocks(&self) -> u32;

    fn run(
        &mut self,
        slices: &[Slice<'_>],
        samples: &[Sample<'_>],
        fill: &mut dyn FnMut(usize, &mut [u32]),
    ) -> Result<StepOutput, ModelError>;
}

impl Steps for Decoder {
    fn config(&self) -> &DecoderConfig {
        self.config()
    }

    fn plan(&self) -> &KvPlan {
        self.kv().plan()
    }

    fn num_blocks(&self) -> u32 {
        self.kv().num_blocks()
    }

    fn run(
        &mut self,
        slices: &[Slice<'_>],
        samples: &[Sample<'_>],
        fill: &mut dyn FnMut(usize, &mut [u32]),
    ) -> Result<StepOutput, ModelError> {
        self.step_filling(slices, samples, fill)
    }
}

impl Steps for Pipeline {
    fn config(&self) -> &DecoderConfig {
        self.config()
    }

    fn plan(&self) -> &KvPlan {
        self.plan()
    }

    fn num_blocks(&self) -> u32 {
        self.num_blocks()
    }

    fn run(
        &mut self,
        slices: &[Slice<'_>],
        samples: &[Sample<'_>],
        fill: &mut dyn FnMut(usize, &mut [u32]),
    ) -> Result<StepOutput, ModelError> {
        self.step_filling(slices, samples, fill)
    }
}

/// Serves `requests` together, at most `chunk` tokens of each prompt a step.
pub(crate) fn serve<S: Steps>(decoder: &mut S, requests: &[Request<'_>], chunk: usize) -> Vec<Served> {
    serve_behind(decoder, requests, chunk, 0)
}

/// Serves `requests` from blocks behind the first `taken` tokens of the pool, which another sequence holds.
pub(crate) fn serve_behind<S: Steps>(
    decoder: &mut S,
    requests: &[Request<'_>],
    chunk: usize,
    taken: u32,
) -> Vec<Served> {
    let mut cache = cache(decoder);
    if taken > 0 {
        let tokens = vec![0; taken as usize];
        let content = SeqContent::new(&tokens, &[]);
        cache
            .allocate_slots(SlotRequest::new(SeqId::new(u64::MAX), content, 0, taken))
            .expect("room for them");
    }
    let mut sequences: Vec<Sequence<'_>> =
        (0..).zip(requests).map(|(seat, request)| Sequence::new(seat, *request)).collect();
    while sequences.iter().any(|s| s.remains() > 0) {
        for sequence in sequences.iter_mut().filter(|s| s.remains() > 0) {
            sequence.allocate(&mut cache, chunk);
        }
        let left = sequences.iter().filter(|s| s.remains() > 0);
        let tables: Vec<Vec<&[BlockId]>> = left.clone().map(|s| s.tables(&cache)).collect();
        let mut slices = Vec::new();
        let (mut samples, mut masks) = (Vec::new(), Vec::new());
        for (sequence, tables) in left.zip(&tables) {
            let slice = sequence.next(chunk, tables);
            if sequence.draws(slice.tokens.len()) {
                let position = slice.first + u32::try_from(slice.tokens.len()).unwrap();
                let Request { allowed, late, .. } = sequence.request;
                let given = |words| if late { Allowed::Late } else { Allowed::Words(words) };
                masks.push(allowed.filter(|_| late));
                samples.push(sequence.sampler.sample(slices.len(), position, allowed.map(given)));
            }
            slices.push(slice);
        }
        let rows: Vec<_> = slices.iter().map(|slice| (slice.tokens.len(), slice.logits)).collect();
        let mut fill = |sample: usize, words: &mut [u32]| {
            assert!(words.iter().all(|word| *word == 0));
            words.copy_from_slice(masks[sample].take().expect("a late mask is filled once"));
        };
        let output = decoder.run(&slices, &samples, &mut fill).unwrap();
        assert!(masks.iter().all(Option::is_none));
        assert!(output.lost.is_empty(), "{:?}", output.lost);
        let vocab = decoder.config().vocab_size as usize;
        assert_eq!(output.logits.len(), rows.iter().map(|(_, logits)| logits).sum::<usize>() * vocab);
        let (mut logits, mut drawn) = (output.logits.as_slice(), output.sampled.iter());
        let mut log_probs = output.log_probs.into_iter();
        let mut echoed = output.target_log_probs.into_iter();
        let mut attended = output.attended.into_iter();
        let of_row = |row: usize| output.choices.iter().map(|c| (c.layer, c.rows[row].clone())).collect();
        let mut first = 0;
        for (sequence, (rows, of_rows)) in sequences.iter_mut().filter(|s| s.remains() > 0).zip(rows) {
            sequence.served.attended.extend(attended.next().flatten());
            sequence.served.choices.extend((first..first + rows).map(of_row));
            first += rows;
            let (own, others) = logits.split_at(of_rows * vocab);
            logits = others;
            let draws = sequence.draws(rows);
            if sequence.request.echo.is_some() {
                sequence.served.echoed.extend(echoed.by_ref().take(sequence.targets(rows).len()));
            }
            if draws {
                sequence.served.log_probs.extend(log_probs.next().flatten());
            }
            sequence.take(own, rows, draws.then(|| *drawn.next().unwrap()));
        }
        assert_eq!((drawn.next(), log_probs.next(), echoed.next()), (None, None, None));
    }
    sequences.into_iter().map(|s| s.served).collect()
}

/// Block tables of all groups over the decoder's pool. Neighbouring seats take blocks in turn, so those of a sequence
/// do not lie together.
fn cache<S: Steps>(decoder: &S) -> KvCache {
    let blocks = decoder.num_blocks();
    let limits = LengthLimits::new(CAPACITY.max(blocks * 16));
    let config = KvCacheConfig::new(blocks, decoder.plan().layout.groups.clone(), limits);
    KvCache::new(&config.caching(false)).unwrap()
}

struct Sequence<'a> {
    seq: SeqId,
    request: Request<'a>,
    sampler: Sampler,
    /// Prompt, then drawn tokens.
    tokens: Vec<u32>,
    /// Tokens whose KV is in the cache.
    computed: usize,
    served: Served,
}

impl<'a> Sequence<'a> {
    fn new(seat: u64, request: Request<'a>) -> Self {
        let tokens = request.ids.to_vec();
        let sampler = Sampler::new(request.sampling.cloned().unwrap_or_default(), request.ids);
        Self { seq: SeqId::new(seat), request, sampler, tokens, computed: 0, served: Served::default() }
    }

    /// Rows yet to compute. The last token drawn is never fed.
    fn remains(&self) -> usize {
        self.request.ids.len() + self.request.tokens.saturating_sub(1) - self.computed
    }

    /// Rows of the next step.
    fn rows(&self, chunk: usize) -> usize {
        self.request.prefill.saturating_sub(self.computed).clamp(1, chunk)
    }

    fn allocate(&self, cache: &mut KvCache, chunk: usize) {
        let content = SeqContent::new(&self.tokens, &[]);
        let [computed, rows] = [self.computed, self.rows(chunk)].map(|n| u32::try_from(n).unwrap());
        cache
            .allocate_slots(SlotRequest::new(self.seq, content, computed, rows))
            .expect("a pool for all requests");
    }

    fn tables<'c>(&self, cache: &'c KvCache) -> Vec<&'c [BlockId]> {
        let table = |group| cache.table(self.seq, GroupId::new(group)).unwrap().blocks();
        (0..u32::try_from(cache.num_groups()).unwrap()).map(table).collect()
    }

    fn next<'s>(&'s self, chunk: usize, tables: &'s [&'s [BlockId]]) -> Slice<'s> {
        let rows = self.rows(chunk);
        Slice {
            targets: if self.request.echo.is_some() { self.targets(rows) } else { &[] },
            log_probs: self.request.echo,
            logits: if self.request.logits { rows } else { 0 },
            ..Slice::new(
                &self.tokens[self.computed..self.computed + rows],
                u32::try_from(self.computed).unwrap(),
                tables,
                if self.computed < self.request.prefill { Phase::Prefill } else { Phase::Decode },
            )
        }
    }

    /// The tokens of the prompt that follow the next `rows` rows.
    fn targets(&self, rows: usize) -> &[u32] {
        let prompt = self.request.ids.len();
        &self.tokens[(self.computed + 1).min(prompt)..(self.computed + 1 + rows).min(prompt)]
    }

    fn draws(&self, rows: usize) -> bool {
        self.request.tokens > 0 && self.computed + rows >= self.request.ids.len()
    }

    fn take(&mut self, logits: &[f32], rows: usize, drawn: Option<u32>) {
        self.computed += rows;
        self.served.logits.extend(logits);
        self.served.drawn.extend(drawn);
        drawn.into_iter().for_each(|token| self.sampler.push(token));
        self.tokens.extend(drawn);
    }
}
