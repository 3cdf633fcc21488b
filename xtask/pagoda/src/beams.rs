//! Beam search as defined by vLLM: decides which hypotheses survive. Pure: the engine supplies candidates and
//! moves blocks.

use std::cmp::Ordering;

/// A hypothesis.
#[derive(Debug, Clone, PartialEq)]
pub struct Beam {
    /// Generated tokens, including an end of sequence.
    pub tokens: Vec<u32>,
    /// Sum of the natural log probabilities of its tokens.
    pub log_prob: f64,
    /// Whether it ended with an end of sequence.
    pub ended: bool,
}

/// A beam search over one prompt.
///
/// At each step, every live hypothesis proposes its `2 * width` most likely tokens. Those that end a sequence
/// give finished hypotheses; of the others, the `width` most likely survive. In the end, the best of the
/// finished and live hypotheses win, by log probability divided by length: that of prompt and output, without
/// the end of sequence (length penalty 1.0).
#[derive(Debug, Clone)]
pub struct BeamSearch {
    width: usize,
    prompt_len: usize,
    eos_ids: Vec<u32>,
    live: Vec<Beam>,
    done: Vec<Beam>,
}

/// Continuation of a hypothesis: the index of its parent among the live ones, and its token.
pub type Child = (usize, u32);

impl BeamSearch {
    /// A search that begins with the prompt alone. Without `eos_ids`, no hypothesis ends before the length
    /// limit.
    #[must_use]
    pub fn new(width: usize, prompt_len: usize, eos_ids: &[u32]) -> Self {
        let root = Beam { tokens: Vec::new(), log_prob: 0.0, ended: false };
        Self { width, prompt_len, eos_ids: eos_ids.to_vec(), live: vec![root], done: Vec::new() }
    }

    /// Tokens that each hypothesis proposes.
    #[must_use]
    pub fn num_candidates(&self) -> usize {
        2 * self.width
    }

    /// The live hypotheses, most likely first.
    #[must_use]
    pub fn live(&self) -> &[Beam] {
        &self.live
    }

    /// Takes the candidates of every live hypothesis, `[live][candidates]` of token and log probability, most
    /// likely first. Returns the origin of each hypothesis that survives; ties go to the earlier parent and
    /// candidate.
    pub fn advance(&mut self, candidates: &[Vec<(u32, f32)>]) -> Vec<Child> {
        assert_eq!(candidates.len(), self.live.len(), "lists of candidates, living hypotheses");
        let mut next: Vec<(Child, Beam)> = Vec::new();
        for (parent, (beam, candidates)) in self.live.iter().zip(candidates).enumerate() {
            for &(token, log_prob) in candidates {
                let mut tokens = beam.tokens.clone();
                tokens.push(token);
                let ended = self.eos_ids.contains(&token);
                let child = Beam { tokens, log_prob: beam.log_prob + f64::from(log_prob), ended };
                if ended { self.done.push(child) } else { next.push(((parent, token), child)) }
            }
        }
        // The sort is stable, and all have one length, so the sum alone decides.
        next.sort_by(|(_, a), (_, b)| b.log_prob.total_cmp(&a.log_prob));
        next.truncate(self.width);
        let (children, live) = next.into_iter().unzip();
        self.live = live;
        children
    }

    /// The best hypotheses, at most `width`.
    #[must_use]
    pub fn finish(self) -> Vec<Beam> {
        let better = |a: &Beam, b: &Beam| -> Ordering { self.score(b).total_cmp(&self.score(a)) };
        let mut all: Vec<Beam> = self.done.iter().chain(&self.live).cloned().collect();
        all.sort_by(better);
        all.truncate(self.width);
        all
    }

    #[expect(clippy::cast_precision_loss, reason = "lengths are far below 2^52")]
    fn score(&self, beam: &Beam) -> f64 {
        let len = self.prompt_len + beam.tokens.len() - usize::from(beam.ended);
        beam.log_prob / len.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A language of four tokens, of which 3 ends a sequence: the probabilities of the next token depend on
    /// the last two.
    fn next(tokens: &[u32]) -> Vec<(u32, f32)> {
        let state = tokens.iter().rev().take(2).fold(17_u32, |s, t| s.wrapping_mul(31).wrapping_add(*t + 1));
        let weights: Vec<f32> =
            (0..4_u32).map(|t| 1.0 + (state.wrapping_mul(2_654_435_761) >> (8 * t) & 15) as f32).collect();
        let sum: f32 = weights.iter().sum();
        let mut all: Vec<(u32, f32)> = (0..4).zip(weights.iter().map(|w| (w / sum).ln())).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all
    }

    fn search(width: usize, steps: usize, eos: &[u32]) -> Vec<Beam> {
        let mut search = BeamSearch::new(width, 1, eos);
        for _ in 0..steps {
            let count = search.num_candidates();
            let offers = |beam: &Beam| next(&beam.tokens).into_iter().take(count).collect();
            let candidates: Vec<_> = search.live().iter().map(offers).collect();
            search.advance(&candidates);
        }
        search.finish()
    }

    /// Every sequence of the language, ended or of full length.
    fn all(steps: usize) -> Vec<Beam> {
        let mut open = vec![Beam { tokens: Vec::new(), log_prob: 0.0, ended: false }];
        let mut done = Vec::new();
        for _ in 0..steps {
            let mut longer = Vec::new();
            for beam in open {
                for (token, log_prob) in next(&beam.tokens) {
                    let mut tokens = beam.tokens.clone();
                    tokens.push(token);
                    let child =
                        Beam { tokens, log_prob: beam.log_prob + f64::from(log_prob), ended: token == 3 };
                    if child.ended { done.push(child) } else { longer.push(child) }
                }
            }
            open = longer;
        }
        done.into_iter().chain(open).collect()
    }

    #[test]
    fn a_wide_search_finds_the_best_of_all_sequences() {
        let steps = 5;
        let score = |beam: &Beam| {
            let len = 1 + beam.tokens.iter().filter(|token| **token != 3).count();
            beam.log_prob / f64::from(u32::try_from(len).unwrap())
        };
        let mut expected = all(steps);
        expected.sort_by(|a, b| score(b).total_cmp(&score(a)));
        let found = search(300, steps, &[3]);
        assert_eq!(found[..20], expected[..20]);
        assert!(found[..20].iter().any(|beam| beam.ended) && found[..20].iter().any(|beam| !beam.ended));
    }

    #[test]
    fn one_beam_is_greedy_where_nothing_ends() {
        let mut greedy = Vec::new();
        while greedy.len() < 8 {
            greedy.push(next(&greedy)[0].0);
        }
        let [beam] = &search(1, 8, &[])[..] else { panic!("one beam") };
        assert_eq!((&beam.tokens, beam.ended), (&greedy, false));
    }

    #[test]
    fn ends_make_room_and_are_scored_without_themselves() {
        let mut search = BeamSearch::new(2, 2, &[9]);
        assert_eq!(search.advance(&[vec![(5, -0.5), (9, -1.0), (6, -2.0), (7, -3.0)]]), [(0, 5), (0, 6)]);
        let children = search.advance(&[vec![(9, -0.1), (1, -3.0)], vec![(2, -0.2), (3, -0.3)]]);
        assert_eq!(children, [(1, 2), (1, 3)], "both children of the second, the first has ended likelier");
        let best = search.finish();
        // [5, 9]: -0.6 over 3; [9]: -1.0 over 2.
        assert_eq!(best.iter().map(|beam| &beam.tokens[..]).collect::<Vec<_>>(), [&[5, 9][..], &[9]]);
    }
}
