//! DRY: a penalty for tokens that would continue a repetition.

use derive_setters::Setters;

use std::collections::{BTreeMap, BTreeSet};

/// Maximum length of a match: the penalty of longer ones does not grow.
const MAX_MATCH: usize = 50;

/// Penalty for tokens that would continue a repetition, as published by the author of DRY.
///
/// Where the last tokens of a sequence have occurred before, the token that followed them there is one that repeats. With a match
/// of `n` tokens, the longest of all such places, its logit loses `multiplier * base^(n - allowed_length)` if `n` is at least
/// `allowed_length`. No match reaches across a breaker, and none is penalised itself.
#[derive(Clone, Debug, PartialEq, Setters)]
#[non_exhaustive]
pub struct Dry {
    /// Penalty of a match of `allowed_length`; 0 is off.
    pub multiplier: f32,
    /// Factor on the penalty for each token of a match beyond `allowed_length`.
    pub base: f32,
    /// Number of tokens of the shortest match that is penalised.
    pub allowed_length: u32,
    /// Tokens that end matches: line breaks, quotation marks and the like. A vocabulary has thousands of them.
    #[setters(skip)]
    pub breakers: BTreeSet<u32>,
    /// Number of tokens at the end of prompt and output in which matches are searched.
    pub last_tokens: u32,
}

impl Dry {
    /// No penalty. All other parameters have the published values, but there are no breakers: the base is 1.75, and
    /// matches have at least two tokens.
    pub const OFF: Self = Self {
        multiplier: 0.0,
        base: 1.75,
        allowed_length: 2,
        breakers: BTreeSet::new(),
        last_tokens: u32::MAX,
    };

    /// Text whose tokens are breakers in the author's proposal.
    pub const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

    /// Sets the tokens at which matches end.
    #[must_use]
    pub fn breakers(self, tokens: impl IntoIterator<Item = u32>) -> Self {
        Self { breakers: tokens.into_iter().collect(), ..self }
    }

    /// Whether the penalty is off.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.multiplier == 0.0 || self.last_tokens == 0
    }

    /// Returns the penalties of tokens after `tokens`, ascending by token. O(tokens), plus up to 50 steps of O(log breakers) for
    /// each occurrence of the last token.
    #[must_use]
    pub fn penalties(&self, tokens: &[u32]) -> BTreeMap<u32, f32> {
        let tokens = &tokens[tokens.len().saturating_sub(self.last_tokens as usize)..];
        let breaks = |token: &u32| self.breakers.contains(token);
        let Some((last, before)) = tokens.split_last().filter(|(last, _)| !self.is_off() && !breaks(last))
        else {
            return BTreeMap::new();
        };
        let mut longest: BTreeMap<u32, usize> = BTreeMap::new();
        for (at, _) in before.iter().enumerate().filter(|(_, token)| *token == last) {
            let next = tokens[at + 1];
            if breaks(&next) {
                continue;
            }
            // Tokens before the two places, going backwards.
            let pairs = before[..at].iter().rev().zip(before.iter().rev());
            let same = pairs.take(MAX_MATCH - 1).take_while(|(there, here)| there == here && !breaks(here));
            let matched = 1 + same.count();
            let longest = longest.entry(next).or_default();
            *longest = matched.max(*longest);
        }
        let allowed = self.allowed_length as usize;
        let penalised = longest.into_iter().filter(|(_, matched)| *matched >= allowed);
        penalised.map(|(token, matched)| (token, self.penalty(matched - allowed))).collect()
    }

    /// Returns the penalty of a match that is `longer` tokens longer than the shortest, capped so that logits stay finite.
    fn penalty(&self, longer: usize) -> f32 {
        let exponent = i32::try_from(longer).expect("matches are short");
        (self.multiplier * self.base.powi(exponent)).min(1e30)
    }
}

impl Default for Dry {
    fn default() -> Self {
        Self::OFF
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition: compares every position and every length.
    fn naive(dry: &Dry, tokens: &[u32]) -> BTreeMap<u32, f32> {
        let mut penalties = BTreeMap::new();
        for token in 0..8_u32 {
            let mut longest = 0;
            for end in 0..tokens.len() {
                if tokens[end] != token || dry.breakers.contains(&token) {
                    continue;
                }
                for length in 1..=end.min(50) {
                    let (there, here) = (&tokens[end - length..end], &tokens[tokens.len() - length..]);
                    if there == here && here.iter().all(|token| !dry.breakers.contains(token)) {
                        longest = longest.max(length);
                    }
                }
            }
            let allowed = dry.allowed_length as usize;
            if longest > 0 && longest >= allowed {
                let power = i32::try_from(longest - allowed).unwrap();
                penalties.insert(token, dry.multiplier * dry.base.powi(power));
            }
        }
        penalties
    }

    proptest! {
        #[test]
        fn equals_the_definition(
            tokens in prop::collection::vec(0_u32..4, 0..60),
            breakers in prop::collection::btree_set(0_u32..6, 0..3),
            allowed_length in 0_u32..5,
            last_tokens in 0_usize..80,
        ) {
            let dry = Dry { multiplier: 0.8, base: 1.75, allowed_length, breakers, last_tokens: u32::MAX };
            prop_assert_eq!(dry.penalties(&tokens), naive(&dry, &tokens));
            let last = &tokens[tokens.len().saturating_sub(last_tokens)..];
            let near = dry.clone().last_tokens(u32::try_from(last_tokens).unwrap());
            prop_assert_eq!(near.penalties(&tokens), naive(&dry, last));
        }
    }

    #[test]
    fn a_repetition_grows_more_expensive() {
        let dry = Dry { multiplier: 1.0, base: 2.0, ..Dry::OFF };
        assert_eq!(dry.penalties(&[1, 2, 3, 2]), BTreeMap::new());
        assert_eq!(dry.penalties(&[1, 2, 3, 1, 2]), BTreeMap::from([(3, 1.0)]));
        assert_eq!(dry.penalties(&[1, 2, 3, 4, 1, 2, 3]), BTreeMap::from([(4, 2.0)]));
        assert_eq!(dry.penalties(&[1; 60]), BTreeMap::from([(1, 2.0_f32.powi(48))]));
        let breaking = Dry { breakers: BTreeSet::from([2]), ..dry.clone() };
        assert!(breaking.penalties(&[1, 2, 3, 4, 1, 2, 3]).is_empty(), "one token is left of the match");
        assert!(Dry::OFF.penalties(&[1; 60]).is_empty());
        let steep = Dry { base: 1e6, ..dry };
        assert_eq!(steep.penalties(&[1; 60])[&1], 1e30);
    }
}
