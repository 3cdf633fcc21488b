//! Control tokens in untrusted text: a spelled-out `<|im_end|>` in a message would end it and forge the next one.

use std::borrow::Cow;
use std::collections::BTreeMap;

use tokenizers::Error;
use tokenizers::normalizers::{NormalizerWrapper, Replace, Sequence};

use super::Tokenizer;

/// Character that separates a spelled-out control token. Unicode reserves it for internal use; the tokenizer drops it after it
/// has searched for control tokens.
pub(super) const BREAK: char = '\u{FDD0}';

/// Texts of control tokens by their first character.
#[derive(Clone, Debug, Default)]
pub(super) struct Controls(BTreeMap<char, Vec<String>>);

impl Controls {
    /// Reads the control tokens of a tokenizer, which then searches for them before it normalises a text: normalisation must not
    /// create one from similar characters.
    pub(super) fn take_from(inner: &mut tokenizers::Tokenizer) -> Result<Self, Error> {
        let is_control = |token: &&tokenizers::AddedToken| token.special && !token.content.is_empty();
        let tokens: Vec<_> = inner.get_added_tokens_decoder().values().filter(is_control).cloned().collect();
        let mut controls = Self::default();
        for token in &tokens {
            controls.0.entry(first_char(&token.content)).or_default().push(token.content.clone());
        }
        inner.add_tokens(tokens.into_iter().map(|token| token.normalized(false)))?;
        Ok(controls)
    }

    fn begins(&self, text: &str) -> bool {
        self.0.get(&first_char(text)).is_some_and(|tokens| tokens.iter().any(|token| text.starts_with(token)))
    }
}

fn first_char(text: &str) -> char {
    text.chars().next().unwrap_or_default()
}

impl Tokenizer {
    /// Returns `text` changed so that [`encode`](Self::encode) treats control tokens spelled out in it as text, wherever it is
    /// inserted: for user input to a chat template. U+FDD0, which no text may contain, becomes U+FFFD.
    #[must_use]
    pub fn as_text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let places: Vec<(usize, char)> = text
            .char_indices()
            .filter(|(at, c)| {
                *c == BREAK || (self.controls.0.contains_key(c) && self.controls.begins(&text[*at..]))
            })
            .collect();
        if places.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len() + BREAK.len_utf8() * places.len());
        let mut copied = 0;
        for (at, c) in places {
            out.push_str(&text[copied..at]);
            match c {
                BREAK => out.push(char::REPLACEMENT_CHARACTER),
                _ => out.extend([c, BREAK]),
            }
            copied = at + c.len_utf8();
        }
        out.push_str(&text[copied..]);
        Cow::Owned(out)
    }

    /// Returns the tokenizer that encodes `text`: if it has breaks, one that drops them.
    pub(super) fn encoder(&self, text: &str) -> Result<&tokenizers::Tokenizer, Error> {
        if !text.contains(BREAK) {
            return Ok(&self.inner);
        }
        if let Some(joining) = self.joining.get() {
            return Ok(joining);
        }
        let mut joining = self.inner.clone();
        let mut steps: Vec<NormalizerWrapper> = vec![Replace::new(BREAK.to_string(), "")?.into()];
        steps.extend(self.inner.get_normalizer().cloned());
        joining.with_normalizer(Some(Sequence::new(steps)))?;
        Ok(self.joining.get_or_init(|| joining))
    }
}
