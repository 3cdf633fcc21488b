//! Bytes of single tokens, which need not be whole characters.

use tokenizers::decoders::DecoderWrapper;

use super::Tokenizer;

impl Tokenizer {
    /// Returns the bytes that a token adds to a text; for control tokens, those of their names. `None` for unknown ids.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let token = self.inner.id_to_token(id)?;
        if self.inner.get_added_vocabulary().get_added_tokens_decoder().contains_key(&id) {
            return Some(token.into_bytes());
        }
        if self.inner.get_decoder().is_some_and(is_byte_level) {
            let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
            return Some(bytes.unwrap_or_else(|| token.into_bytes()));
        }
        let byte = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        match byte.filter(|hex| hex.len() == 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => Some(vec![byte]),
            None => Some(token.replace('\u{2581}', " ").into_bytes()),
        }
    }

    /// Whether a token controls the conversation, rather than being text.
    pub fn is_control(&self, id: u32) -> bool {
        self.inner
            .get_added_vocabulary()
            .get_added_tokens_decoder()
            .get(&id)
            .is_some_and(|token| token.special)
    }
}

fn is_byte_level(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteLevel(_) => true,
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().any(is_byte_level),
        _ => false,
    }
}

/// Returns the byte that byte-level BPE writes as `c`: printable Latin-1 characters represent themselves, and those from U+0100
/// on the others in order.
fn byte_of(c: char) -> Option<u8> {
    let stands_for_itself = |code: u32| matches!(code, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let code = u32::from(c);
    let byte = match code.checked_sub(0x100) {
        None => Some(code).filter(|code| stands_for_itself(*code)),
        Some(index) => (0..=0xff).filter(|byte| !stands_for_itself(*byte)).nth(index as usize),
    };
    byte.and_then(|byte| u8::try_from(byte).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_have_one_character_each() {
        let mut bytes: Vec<u8> = (0..0x144).filter_map(|c| byte_of(char::from_u32(c)?)).collect();
        assert!(byte_of('\u{144}').is_none() && byte_of('\u{ad}').is_none());
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!([byte_of('A'), byte_of('Ġ'), byte_of('Ċ')], [Some(b'A'), Some(b' '), Some(b'\n')]);
    }
}
