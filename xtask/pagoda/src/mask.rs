//! Masks: the caller's code decides step by step which tokens may come next.

use std::fmt;

/// Restricts the tokens of one sequence, for example to those that continue a JSON document. It is called on the
/// engine's thread before every draw.
pub trait TokenMask: fmt::Debug + Send {
    /// Sets the bit of every token that may come next: bit `t % 32` of word `t / 32` for token `t`. There are
    /// `ceil(vocab / 32)` words, all 0 at first. If no bit is set, the sequence ends with
    /// [`FinishReason::NothingAllowed`](crate::FinishReason::NothingAllowed).
    fn allow(&mut self, allowed: &mut [u32]);

    /// Takes the token that was drawn.
    fn accept(&mut self, token: u32);

    /// Whether the output is complete, so that the sequence ends without a token for that.
    fn is_complete(&self) -> bool {
        false
    }

    /// The state of a sequence with the same output so far.
    fn fork(&self) -> Box<dyn TokenMask>;
}

impl Clone for Box<dyn TokenMask> {
    fn clone(&self) -> Self {
        self.fork()
    }
}

/// A mask and its bits for the next draw.
#[derive(Debug)]
pub(crate) struct Masked {
    mask: Box<dyn TokenMask>,
    allowed: Vec<u32>,
}

impl Masked {
    pub(crate) fn new(mask: Box<dyn TokenMask>, vocab: u32) -> Self {
        Self { mask, allowed: vec![0; vocab.div_ceil(32) as usize] }
    }

    /// Finds out which tokens may come next; false if only the `suppressed` ones may.
    pub(crate) fn refresh(&mut self, suppressed: &[u32]) -> bool {
        self.allowed.fill(0);
        self.mask.allow(&mut self.allowed);
        let bit = |token: &u32| (*token as usize / 32, 1_u32 << (token % 32));
        let held = suppressed.iter().map(bit);
        let others = |(word, bits): (usize, &u32)| {
            held.clone().filter(|(at, _)| *at == word).fold(*bits, |bits, (_, bit)| bits & !bit)
        };
        self.allowed.iter().enumerate().filter(|(_, bits)| **bits != 0).any(|entry| others(entry) != 0)
    }

    /// The bits for the next draw.
    pub(crate) fn allowed(&self) -> &[u32] {
        &self.allowed
    }

    /// Takes the token that was drawn; true if the output is complete with it.
    pub(crate) fn accept(&mut self, token: u32) -> bool {
        self.mask.accept(token);
        self.mask.is_complete()
    }
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
        let mut masked = Masked::new(Box::new(Only(vec![3, 40])), 50);
        assert_eq!(masked.allowed().len(), 2);
        assert!(masked.refresh(&[]) && masked.refresh(&[3]) && masked.refresh(&[4, 41]));
        assert_eq!(masked.allowed(), [1 << 3, 1 << 8]);
        assert!(!masked.refresh(&[40, 3]));
        assert!(!masked.accept(3) && masked.refresh(&[3]) && !masked.refresh(&[40]));
        assert!(masked.accept(40) && !masked.refresh(&[]));
    }
}
