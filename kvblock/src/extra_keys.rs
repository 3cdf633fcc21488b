//! Inputs of a block's hash in addition to its tokens.

/// An image, audio clip or similar whose embeddings replace placeholder tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MultimodalItem {
    /// Content identity, for example a hash of the pixels.
    pub identifier: String,
    /// First placeholder token.
    pub start: u32,
    /// Placeholder tokens.
    pub len: u32,
}

/// Embeddings given in place of prompt tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PromptEmbeds {
    /// Bytes of one token's embedding.
    pub bytes_per_token: usize,
    /// `[num_prompt_tokens, bytes_per_token]`, from position 0.
    pub bytes: Vec<u8>,
}

/// Keys that separate equal token blocks with different KV content (or different owners).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExtraKeys {
    /// LoRA adapter name; part of every block.
    pub adapter: Option<String>,
    /// Part of each block that an item overlaps.
    pub multimodal: Vec<MultimodalItem>,
    /// Cache salt: sequences share blocks only under equal salts. Part of the first block, and through the
    /// chain of all later ones.
    pub salt: Option<String>,
    /// Part of each block that has embeddings.
    pub prompt_embeds: Option<PromptEmbeds>,
}

impl ExtraKeys {
    /// Appends the keys of the block of tokens `[start, start + len)`: adapter, items as `(identifier, item start - block
    /// start)`, salt, embeddings. Appends nothing when none applies. Each field is tagged and counted, so different keys
    /// never have the same encoding.
    pub fn encode_block(&self, start: usize, len: usize, out: &mut Vec<u8>) {
        let end = start + len;
        if let Some(adapter) = &self.adapter {
            encode_field(b'a', adapter.as_bytes(), out);
        }
        for item in &self.multimodal {
            let (first, past) = (item.start as usize, item.start as usize + item.len as usize);
            if first < end && past > start {
                encode_field(b'm', item.identifier.as_bytes(), out);
                let offset = i64::from(item.start) - i64::try_from(start).expect("a position fits in i64");
                out.extend_from_slice(&offset.to_le_bytes());
            }
        }
        if let (Some(salt), 0) = (&self.salt, start) {
            encode_field(b's', salt.as_bytes(), out);
        }
        if let Some(embeds) = &self.prompt_embeds {
            let bound = |token: usize| (token * embeds.bytes_per_token).min(embeds.bytes.len());
            let bytes = &embeds.bytes[bound(start)..bound(end)];
            if !bytes.is_empty() {
                encode_field(b'e', bytes, out);
            }
        }
    }
}

fn encode_field(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}
