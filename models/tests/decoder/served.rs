//! Serves requests as a scheduler would: every step takes a chunk of each prompt that is left and one token of each
//! sequence that decodes.

use kvblock::BlockId;
use models::batch::{Phase, Sample, Slice};
use models::kernel::sample::Spec;
use models::{Attended, Decoder};

use crate::CAPACITY;

/// What a sequence is given and asked for.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    /// The prompt.
    pub(crate) ids: &'a [u32],
    /// Tokens of the prompt that go through as prefill; the others as decode rows, one a step.
    pub(crate) prefill: usize,
    /// Tokens to draw greedily.
    pub(crate) tokens: usize,
}

impl<'a> Request<'a> {
    pub(crate) fn new(ids: &'a [u32], tokens: usize) -> Self {
        Self { ids, prefill: ids.len(), tokens }
    }
}

/// What a sequence got.
#[derive(Clone, Debug, Default)]
pub(crate) struct Served {
    /// Logits of every row, `[prompt + tokens - 1, vocab]`.
    pub(crate) logits: Vec<f32>,
    /// Drawn tokens.
    pub(crate) drawn: Vec<u32>,
    /// What a sparse policy attended in each step; empty where none acts.
    pub(crate) attended: Vec<Attended>,
}

impl Served {
    /// The logits bit by bit: `==` on floats would let a zero pass for a negative one.
    pub(crate) fn bits(&self) -> Vec<u32> {
        self.logits.iter().map(|v| v.to_bits()).collect()
    }
}

const GREEDY: Spec = Spec {
    temperature: 0.0,
    top_p: 1.0,
    min_p: 0.0,
    top_k: 0,
    seed_low: 0,
    seed_high: 0,
    position: 0,
    pad0: 0,
};

/// Serves `requests` together, at most `chunk` tokens of each prompt a step.
pub(crate) fn serve(decoder: &mut Decoder, requests: &[Request<'_>], chunk: usize) -> Vec<Served> {
    let mut sequences: Vec<Sequence<'_>> =
        (0..).zip(requests).map(|(seat, request)| Sequence::new(decoder, seat, *request)).collect();
    while sequences.iter().any(|s| s.remains() > 0) {
        let mut slices = Vec::new();
        let mut samples = Vec::new();
        for sequence in sequences.iter().filter(|s| s.remains() > 0) {
            let slice = sequence.next(chunk);
            if sequence.draws(slice.tokens.len()) {
                samples.push(Sample { slice: slices.len(), spec: GREEDY });
            }
            slices.push(slice);
        }
        let rows: Vec<usize> = slices.iter().map(|slice| slice.tokens.len()).collect();
        let output = decoder.step(&slices, &samples).unwrap();
        let vocab = decoder.config().vocab_size as usize;
        assert_eq!(output.logits.len(), rows.iter().sum::<usize>() * vocab);
        let (mut logits, mut drawn) = (output.logits.as_slice(), output.sampled.iter());
        let mut attended = output.attended.into_iter();
        for (sequence, rows) in sequences.iter_mut().filter(|s| s.remains() > 0).zip(rows) {
            sequence.served.attended.extend(attended.next().flatten());
            let (own, others) = logits.split_at(rows * vocab);
            logits = others;
            let draws = sequence.draws(rows);
            sequence.take(own, rows, draws.then(|| *drawn.next().unwrap()));
        }
        assert_eq!(drawn.next(), None);
    }
    sequences.into_iter().map(|s| s.served).collect()
}

struct Sequence<'a> {
    request: Request<'a>,
    /// Prompt, then drawn tokens.
    tokens: Vec<u32>,
    /// Tokens whose KV is in the cache.
    computed: usize,
    table: Vec<BlockId>,
    served: Served,
}

impl<'a> Sequence<'a> {
    /// Blocks of neighbouring seats lie between each other, in an order that is not theirs in the sequence.
    fn new(decoder: &Decoder, seat: u32, request: Request<'a>) -> Self {
        let needed = CAPACITY / decoder.kv().shape().block_size;
        // Block 0 is the null block. An odd factor permutes a power of two.
        let usable = decoder.kv().num_blocks() - 1;
        assert!(usable.is_power_of_two() && usable >= needed * (seat + 1), "{usable} blocks in the pool");
        let block = |i| BlockId::new(1 + (i * 37 + 11) % usable);
        Self {
            request,
            tokens: request.ids.to_vec(),
            computed: 0,
            table: (seat * needed..(seat + 1) * needed).map(block).collect(),
            served: Served::default(),
        }
    }

    /// Rows yet to compute. The last token drawn is never fed.
    fn remains(&self) -> usize {
        self.request.ids.len() + self.request.tokens.saturating_sub(1) - self.computed
    }

    fn next(&self, chunk: usize) -> Slice<'_> {
        let prefills = self.request.prefill.saturating_sub(self.computed);
        let (rows, phase) = match prefills {
            0 => (1, Phase::Decode),
            _ => (prefills.min(chunk), Phase::Prefill),
        };
        Slice {
            tokens: &self.tokens[self.computed..self.computed + rows],
            first: u32::try_from(self.computed).unwrap(),
            table: &self.table,
            phase,
            access: &[],
            targets: &[],
            logits: rows,
        }
    }

    fn draws(&self, rows: usize) -> bool {
        self.request.tokens > 0 && self.computed + rows >= self.request.ids.len()
    }

    fn take(&mut self, logits: &[f32], rows: usize, drawn: Option<u32>) {
        self.computed += rows;
        self.served.logits.extend(logits);
        self.served.drawn.extend(drawn);
        self.tokens.extend(drawn);
    }
}
