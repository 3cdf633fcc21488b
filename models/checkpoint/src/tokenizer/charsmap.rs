//! SentencePiece's character map: replacements, compiled to a table.
//!
//! The table is its length in bytes, then a double array of units of 32 bits, then texts that end in a zero byte. A unit has
//! the byte that leads to it, the offset of its children, and whether the first of these, at the offset itself, is a place in
//! the texts.
//!
//! The `tokenizers` crate applies it too, to graphemes and with the shortest entry of each, so that "\r\n" becomes one blank and
//! a wide letter loses its accent. That is what transformers does with `tokenizer.json`; models were trained on SentencePiece's
//! longest entries, which GGUF files get from here.

use tokenizers::NormalizerWrapper;
use tokenizers::tokenizer::{OffsetReferential, OffsetType};

use super::control::BREAK;
use super::{Tokenizer, TokenizerError};

/// A character map in which no entry leads outside of the map.
#[derive(Clone, Debug)]
pub(super) struct Charsmap {
    units: Vec<usize>,
    texts: String,
}

impl Charsmap {
    /// Reads a map, and checks that no text leads outside of its units and that every result is a position in the
    /// texts. O(bytes * 256).
    ///
    /// # Errors
    /// [`TokenizerError::Charsmap`].
    pub(super) fn new(map: &[u8]) -> Result<Self, TokenizerError> {
        let error = |reason| Err(TokenizerError::Charsmap { reason });
        let Some((len, rest)) = map.split_first_chunk() else { return error("it has no length") };
        let len = u32::from_le_bytes(*len) as usize;
        if len == 0 || !len.is_multiple_of(4) || len > rest.len() {
            return error("its length is not that of units in it");
        }
        let (units, texts) = rest.split_at(len);
        let Ok(texts) = std::str::from_utf8(texts) else { return error("its texts are not UTF-8") };
        let (units, _) = units.as_chunks();
        let units = units.iter().map(|unit| u32::from_le_bytes(*unit) as usize).collect();
        let map = Self { units, texts: texts.to_owned() };
        match map.check() {
            Ok(()) => Ok(map),
            Err(reason) => error(reason),
        }
    }

    /// Visits every unit that bytes can lead to, from the root.
    fn check(&self) -> Result<(), &'static str> {
        let mut seen = vec![false; self.units.len()];
        let mut open = vec![offset(self.units[0])];
        while let Some(parent) = open.pop() {
            for byte in 1..=255 {
                let at = parent ^ byte;
                let Some(&unit) = self.units.get(at) else { return Err("a byte leads out of its units") };
                if label(unit) != byte || std::mem::replace(&mut seen[at], true) {
                    continue;
                }
                let children = at ^ offset(unit);
                if has_text(unit) {
                    let Some(&leaf) = self.units.get(children) else {
                        return Err("a result is out of its units");
                    };
                    if !self.texts.is_char_boundary(place(leaf)) {
                        return Err("a result is at no character of its texts");
                    }
                }
                open.push(children);
            }
        }
        Ok(())
    }

    /// Returns `text` with the longest matching entry at each position replaced. O(bytes * longest entry).
    fn apply(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            // An entry may end inside a character only in a map that is no map of characters.
            let entry = self.longest(rest.as_bytes()).filter(|(len, _)| rest.is_char_boundary(*len));
            let (len, end) = entry.unwrap_or((c.len_utf8(), &rest[..c.len_utf8()]));
            out.push_str(end);
            rest = &rest[len..];
        }
        out
    }

    /// Returns the longest entry that `text` begins with: its length in bytes, and its replacement.
    fn longest(&self, text: &[u8]) -> Option<(usize, &str)> {
        let mut found = None;
        let mut at = offset(self.units[0]);
        for (index, byte) in text.iter().map(|byte| usize::from(*byte)).enumerate() {
            at ^= byte;
            let unit = *self.units.get(at)?;
            if byte == 0 || label(unit) != byte {
                break;
            }
            at ^= offset(unit);
            if has_text(unit) {
                let end = self.texts.get(place(*self.units.get(at)?)..)?;
                found = Some((index + 1, end.split('\0').next().unwrap_or(end)));
            }
        }
        found
    }
}

fn offset(unit: usize) -> usize {
    (unit >> 10) << ((unit & (1 << 9)) >> 6)
}

/// Returns the byte that leads to a unit. For a unit that holds a result, the number is larger than any byte.
fn label(unit: usize) -> usize {
    unit & (1 << 31 | 0xFF)
}

fn has_text(unit: usize) -> bool {
    unit >> 8 & 1 == 1
}

/// Returns the position in the texts of the result that a unit holds.
fn place(leaf: usize) -> usize {
    leaf & 0x7FFF_FFFF
}

impl Tokenizer {
    /// Encodes `text`, with `map` applied to everything but added tokens.
    pub(super) fn encode_mapped(&self, text: &str, map: &Charsmap) -> Result<Vec<u32>, tokenizers::Error> {
        let cut = self.inner.get_added_vocabulary().extract_and_normalize(None::<&NormalizerWrapper>, text);
        let mut ids = Vec::new();
        for (piece, _, tokens) in cut.get_splits(OffsetReferential::Original, OffsetType::None) {
            if let Some(tokens) = tokens {
                ids.extend(tokens.iter().map(|token| token.id));
                continue;
            }
            // Narrow letters may spell what the wide ones did not.
            let mapped = map.apply(&piece.replace(BREAK, ""));
            let mapped = self.as_text(&mapped);
            ids.extend(self.encoder(&mapped)?.encode_fast(&*mapped, false)?.get_ids());
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "a" becomes "X" and "ab" nothing; the root's children are at 256 and those of "a" at 512.
    fn map() -> Vec<u8> {
        let mut units = [0_u32; 768];
        units[0] = 256 << 10;
        let (a, ab) = (256 ^ usize::from(b'a'), 512 ^ usize::from(b'b'));
        units[a] = u32::from(b'a') | 1 << 8 | (512 ^ 353) << 10;
        units[512] = 1 << 31;
        units[ab] = u32::from(b'b') | 1 << 8 | (700 ^ 610) << 10;
        units[700] = 1 << 31 | 2;
        let bytes = units.iter().flat_map(|unit| unit.to_le_bytes());
        (768 * 4_u32).to_le_bytes().into_iter().chain(bytes).chain(*b"X\0\0").collect()
    }

    #[test]
    fn the_longest_entry_counts() {
        let map = Charsmap::new(&map()).unwrap();
        assert_eq!(map.apply("aabbca\0é"), "Xbc".to_owned() + "X\0é");
    }

    #[test]
    fn a_map_is_refused_where_a_text_would_lead_out_of_it() {
        let mut whole = map();
        assert!(Charsmap::new(&whole).is_ok());
        // Children of "a" begin at the end of the units.
        let a = 4 + 4 * 353;
        whole[a..a + 4].copy_from_slice(&(u32::from(b'a') | (768 ^ 353) << 10).to_le_bytes());
        let error = Charsmap::new(&whole).unwrap_err().to_string();
        assert_eq!(error, "the precompiled map of characters is damaged: a byte leads out of its units");
        let mut whole = map();
        whole[4 + 4 * 700] = 4;
        let error = Charsmap::new(&whole).unwrap_err().to_string();
        assert_eq!(
            error,
            "the precompiled map of characters is damaged: a result is at no character of its texts"
        );
    }
}
