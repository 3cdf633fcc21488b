//! Inputs of a block's hash in addition to its tokens.

use sha2::{Digest as _, Sha256};

/// An image, audio clip or similar whose embeddings replace placeholder tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MultimodalItem {
    /// Identifier of the content, for example a hash of the pixels.
    pub identifier: String,
    /// First placeholder token.
    pub start: u32,
    /// Number of placeholder tokens.
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

/// Key of a block, for components that hash tokens themselves (vLLM's `extra_keys`).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ExtraKey {
    /// Name of the LoRA adapter.
    Adapter(String),
    /// An item that the block overlaps.
    Item {
        /// Identifier of the item's content.
        identifier: String,
        /// First placeholder token, counted from the start of the block.
        offset: i64,
    },
    /// Cache salt, which only the first block of a sequence has as a key.
    Salt(String),
    /// SHA-256 of the embeddings that the block has in place of tokens.
    Embeds([u8; 32]),
}

/// Keys that separate equal token blocks with different KV content (or different owners).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExtraKeys {
    /// LoRA adapter name; part of every block.
    pub adapter: Option<String>,
    /// Multimodal items; each is part of the key of the blocks that it overlaps.
    pub multimodal: Vec<MultimodalItem>,
    /// Cache salt: sequences share blocks only if their salts are equal. The salt is a key of the first block, and
    /// affects all later blocks through the chain of hashes.
    pub salt: Option<String>,
    /// Embeddings given in place of tokens; part of the key of each block that has some.
    pub prompt_embeds: Option<PromptEmbeds>,
}

impl ExtraKeys {
    /// Appends the keys of the block of tokens `[start, start + len)`: adapter, items as `(identifier, item start - block
    /// start)`, salt, embeddings. Appends nothing when none applies. Each field is tagged and counted, so different keys
    /// never have the same encoding.
    pub fn encode_block(&self, start: usize, len: usize, out: &mut Vec<u8>) {
        if let Some(adapter) = &self.adapter {
            encode_field(b'a', adapter.as_bytes(), out);
        }
        for (item, offset) in self.items_of(start, len) {
            encode_field(b'm', item.identifier.as_bytes(), out);
            out.extend_from_slice(&offset.to_le_bytes());
        }
        if let Some(salt) = self.salt_of(start) {
            encode_field(b's', salt.as_bytes(), out);
        }
        if let Some(embeds) = self.embeds_of(start, len) {
            encode_field(b'e', embeds, out);
        }
    }

    /// The keys of the block of tokens `[start, start + len)`, in the order of [`encode_block`](Self::encode_block).
    pub fn of_block(&self, start: usize, len: usize) -> impl Iterator<Item = ExtraKey> {
        let item = |(item, offset): (&MultimodalItem, i64)| {
            let identifier = item.identifier.clone();
            ExtraKey::Item { identifier, offset }
        };
        let embeds = self.embeds_of(start, len).map(|bytes| Sha256::digest(bytes).into());
        let adapter = self.adapter.clone().map(ExtraKey::Adapter).into_iter();
        let salt = self.salt_of(start).map(|salt| ExtraKey::Salt(salt.to_owned()));
        adapter.chain(self.items_of(start, len).map(item)).chain(salt).chain(embeds.map(ExtraKey::Embeds))
    }

    /// Items that a block overlaps, each with its position relative to the start of the block.
    fn items_of(&self, start: usize, len: usize) -> impl Iterator<Item = (&MultimodalItem, i64)> {
        let overlaps = move |item: &&MultimodalItem| {
            let (first, past) = (item.start as usize, item.start as usize + item.len as usize);
            first < start + len && past > start
        };
        let block = i64::try_from(start).expect("a position fits in i64");
        self.multimodal.iter().filter(overlaps).map(move |item| (item, i64::from(item.start) - block))
    }

    fn salt_of(&self, start: usize) -> Option<&str> {
        self.salt.as_deref().filter(|_| start == 0)
    }

    fn embeds_of(&self, start: usize, len: usize) -> Option<&[u8]> {
        let embeds = self.prompt_embeds.as_ref()?;
        let bound = |token: usize| (token * embeds.bytes_per_token).min(embeds.bytes.len());
        Some(&embeds.bytes[bound(start)..bound(start + len)]).filter(|bytes| !bytes.is_empty())
    }
}

fn encode_field(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}
