//! Long cached prefixes in bounded pieces: attention over the prefixes of a batch runs chunk by chunk, and
//! partial results are merged by their log-sum-exp, so that the gathered keys and values never exceed a fixed
//! buffer (SGLang's chunked prefix cache).

use kvblock::{BlockTable, TokenIdx};
use thiserror::Error;

/// Default capacity of the gather buffer, in tokens.
pub const PREFIX_CHUNK_CAPACITY: u32 = 131_072;

/// Token range that is cut from every prefix of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrefixChunk {
    /// First position in each sequence.
    pub start: u32,
    /// `[batch]`: tokens of each sequence; 0 where the prefix has already ended.
    pub lens: Vec<u32>,
    /// `[batch + 1]`: cumulative sums of `lens`, starting with 0.
    pub cu_lens: Vec<u32>,
}

/// Why prefixes cannot be split into chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{batch} sequences share a prefix buffer of {capacity} tokens, not even one token each")]
pub struct PrefixChunkError {
    /// Sequences of the batch.
    pub batch: usize,
    /// Tokens of the buffer.
    pub capacity: u32,
}

/// Splits the prefixes of a batch into chunks of at most `capacity / batch` tokens per sequence. Without
/// prefixes there are no chunks. O(chunks · batch).
///
/// # Errors
/// [`PrefixChunkError`] when a sequence's share is 0.
pub fn prefix_chunks(prefix_lens: &[u32], capacity: u32) -> Result<Vec<PrefixChunk>, PrefixChunkError> {
    let longest = prefix_lens.iter().copied().max().unwrap_or(0);
    if longest == 0 {
        return Ok(Vec::new());
    }
    let batch = prefix_lens.len();
    let share =
        u32::try_from(batch).ok().and_then(|batch| capacity.checked_div(batch)).filter(|&share| share > 0);
    let share = share.ok_or(PrefixChunkError { batch, capacity })?;
    let chunk = |index: u32| {
        let start = index * share;
        let lens: Vec<u32> = prefix_lens.iter().map(|&len| len.saturating_sub(start).min(share)).collect();
        let mut cu_lens = vec![0];
        cu_lens.extend(lens.iter().scan(0, |sum, &len| {
            *sum += len;
            Some(*sum)
        }));
        PrefixChunk { start, lens, cu_lens }
    };
    Ok((0..longest.div_ceil(share)).map(chunk).collect())
}

impl PrefixChunk {
    /// Appends the slots of the chunk's tokens, sequence by sequence: `[cu_lens[batch]]`, in the signed type
    /// that gather kernels use.
    ///
    /// # Panics
    /// When a table is too short, or a slot is beyond `i32::MAX`.
    pub fn slots_into(&self, tables: &[&BlockTable], out: &mut Vec<i32>) {
        for (table, &len) in tables.iter().zip(&self.lens) {
            let slot = |position| table.slot(TokenIdx::new(position)).get();
            let slots = (self.start..self.start + len).map(slot);
            out.extend(slots.map(|slot| i32::try_from(slot).expect("gather kernels index slots by i32")));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn example() {
        let chunks = prefix_chunks(&[5, 0, 9], 12).unwrap();
        let lens: Vec<(u32, &[u32], &[u32])> =
            chunks.iter().map(|c| (c.start, &*c.lens, &*c.cu_lens)).collect();
        let expected: [(u32, &[u32], &[u32]); 3] =
            [(0, &[4, 0, 4], &[0, 4, 4, 8]), (4, &[1, 0, 4], &[0, 1, 1, 5]), (8, &[0, 0, 1], &[0, 0, 0, 1])];
        assert_eq!(lens, expected);
    }

    #[test]
    fn edges() {
        assert_eq!(prefix_chunks(&[0, 0], 1), Ok(Vec::new()));
        assert_eq!(prefix_chunks(&[], 0), Ok(Vec::new()));
        assert_eq!(prefix_chunks(&[1, 1], 1), Err(PrefixChunkError { batch: 2, capacity: 1 }));
        let one = prefix_chunks(&[131_073], PREFIX_CHUNK_CAPACITY).unwrap();
        assert_eq!(one.iter().map(|chunk| chunk.lens[0]).collect::<Vec<_>>(), [131_072, 1]);
    }

    proptest! {
        #[test]
        fn chunks_cover_every_token_once(
            lens in prop::collection::vec(0_u32..50, 1..6),
            capacity in 6_u32..40,
        ) {
            let mut seen = vec![Vec::new(); lens.len()];
            for chunk in prefix_chunks(&lens, capacity).unwrap() {
                prop_assert!(chunk.lens.iter().sum::<u32>() <= capacity);
                prop_assert_eq!(chunk.cu_lens.last().copied(), Some(chunk.lens.iter().sum()));
                for (tokens, len) in seen.iter_mut().zip(&chunk.lens) {
                    tokens.extend(chunk.start..chunk.start + len);
                }
            }
            for (tokens, len) in seen.into_iter().zip(lens) {
                prop_assert!(tokens.into_iter().eq(0..len));
            }
        }
    }
}
