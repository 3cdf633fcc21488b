//! Masks: the caller's code decides step by step which tokens may come next.

use std::fmt;

/// Restricts the tokens of one sequence, for example to those that continue a JSON document. It is called on the
/// engine's thread before every draw, while the device computes the logits.
pub trait TokenMask: fmt::Debug + Send {
    /// Sets the bit of every token that may come next: bit `t % 32` of word `t / 32` for token `t`. There are
    /// `ceil(vocab / 32)` words, all 0 at first. If no bit is set, the sequence ends with
    /// [`FinishReason::NothingAllowed`](crate::FinishReason::NothingAllowed).
    fn allow(&mut self, allowed: &mut [u32]);

    /// Takes the token that was drawn.
    fn accept(&mut self, token: u32);

    /// Whether the output is complete, so that the sequence ends without an end-of-sequence token.
    fn is_complete(&self) -> bool {
        false
    }

    /// A copy of the state, for another sequence with the same output so far.
    fn fork(&self) -> Box<dyn TokenMask>;
}

impl Clone for Box<dyn TokenMask> {
    fn clone(&self) -> Self {
        self.fork()
    }
}

/// Sets the bits of the tokens that may come next in `allowed`, whose bits are all 0 at first. Returns false if no
/// tokens but `suppressed` ones may come next.
pub(crate) fn fill(mask: &mut dyn TokenMask, allowed: &mut [u32], suppressed: &[u32]) -> bool {
    mask.allow(allowed);
    let bit = |token: &u32| (*token as usize / 32, 1_u32 << (token % 32));
    let held = suppressed.iter().map(bit);
    let others = |(word, bits): (usize, &u32)| {
        held.clone().filter(|(at, _)| *at == word).fold(*bits, |bits, (_, bit)| bits & !bit)
    };
    allowed.iter().enumerate().filter(|(_, bits)| **bits != 0).any(|entry| others(entry) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allows the tokens of a list.
    #[derive(Debug, Clone)]
    struct Only(Vec<u32>);

    impl TokenMask for Only {
        fn allow(&mut self, allowed: &mut [u32]) {
            self.0.iter().for_each(|token| allowed[*token as usize / 32] |= 1 << (token % 32));
        }

        fn accept(&mut self, token: u32) {
            self.0.retain(|other| *other != token);
        }

        fn is_complete(&self) -> bool {
            self.0.is_empty()
        }

        fn fork(&self) -> Box<dyn TokenMask> {
            Box::new(self.clone())
        }
    }

    #[test]
    fn suppressed_tokens_do_not_count() {
        let mut mask = Only(vec![3, 40]);
        let mut fill = |suppressed: &[u32]| {
            let mut allowed = [0; 2];
            (super::fill(&mut mask, &mut allowed, suppressed), allowed)
        };
        for suppressed in [&[][..], &[3], &[4, 41]] {
            assert_eq!(fill(suppressed), (true, [1 << 3, 1 << 8]));
        }
        assert!(!fill(&[40, 3]).0);
        mask.accept(3);
        let mut allowed = |suppressed: &[u32]| super::fill(&mut mask, &mut [0; 2], suppressed);
        assert!(allowed(&[3]) && !allowed(&[40]));
        mask.accept(40);
        assert!(!super::fill(&mut mask, &mut [0; 2], &[]));
    }
}
