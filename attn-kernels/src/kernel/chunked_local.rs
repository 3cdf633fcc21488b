//! Chunked local attention (Llama 4) as virtual batches: each chunk of a request becomes a request of its own, whose
//! plain causal attention equals the chunk's. The module has no kernel: it is for kernels without support for chunks.
//!
//! Library only: the engine's kernels mask by the chunk themselves.

use super::LaunchError;
use super::error::Launch;

const LAUNCH: Launch = Launch("chunked_local");

/// The rows of a request in one chunk, and the keys that they may attend to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VirtualBatch {
    /// Number of consecutive rows of the request, up to the row of the last key.
    pub rows: u32,
    /// Number of keys, from the chunk's first token on.
    pub keys: u32,
    /// Block of the request's table that the chunk starts with.
    pub first_block: u32,
}

/// Splits a request of `len` tokens at the multiples of `chunk`, in order. Its last `rows` tokens are queries.
///
/// # Errors
/// A chunk that is not whole blocks, or more rows than tokens.
pub fn virtual_batches(
    rows: u32,
    len: u32,
    chunk: u32,
    block_size: u32,
) -> Result<Vec<VirtualBatch>, LaunchError> {
    LAUNCH.not_zero("chunk", chunk)?;
    LAUNCH.not_zero("block size", block_size)?;
    LAUNCH.multiple("chunk", chunk, block_size)?;
    LAUNCH.at_most("rows", rows.into(), len.into())?;
    let mut batches = Vec::new();
    let mut position = len - rows;
    while position < len {
        let start = position - position % chunk;
        let end = (u64::from(start) + u64::from(chunk)).min(len.into());
        let end = u32::try_from(end).expect("at most len");
        batches.push(VirtualBatch {
            rows: end - position,
            keys: end - start,
            first_block: start / block_size,
        });
        position = end;
    }
    Ok(batches)
}

/// Returns the block tables of the batches, `[batches, chunk / block_size]`: entries of `table`, with its last entry
/// in place of those past its end.
///
/// # Panics
/// When `table` is empty and there are batches.
#[must_use]
pub fn virtual_tables(batches: &[VirtualBatch], table: &[u32], chunk: u32, block_size: u32) -> Vec<u32> {
    let columns = |batch: &VirtualBatch| batch.first_block..batch.first_block + chunk / block_size;
    batches.iter().flat_map(columns).map(|block| table[(block as usize).min(table.len() - 1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(rows: u32, len: u32, chunk: u32, block_size: u32) -> Vec<[u32; 3]> {
        let batches = virtual_batches(rows, len, chunk, block_size).unwrap();
        batches.iter().map(|batch| [batch.rows, batch.keys, batch.first_block]).collect()
    }

    #[test]
    fn chunks_of_a_request() {
        // Three requests of four, ten and five rows, of six, 17 and nine tokens, in chunks of four.
        assert_eq!(drawn(4, 6, 4, 2), [[2, 4, 0], [2, 2, 2]]);
        assert_eq!(drawn(10, 17, 4, 2), [[1, 4, 2], [4, 4, 4], [4, 4, 6], [1, 1, 8]]);
        assert_eq!(drawn(5, 9, 4, 2), [[4, 4, 2], [1, 1, 4]]);
        assert_eq!(drawn(1, 8, 4, 4), [[1, 4, 1]]);
        assert_eq!(drawn(0, 8, 4, 4), [[0; 3]; 0]);
    }

    #[test]
    fn tables_end_with_their_last_block() {
        let batches = virtual_batches(5, 9, 4, 2).unwrap();
        assert_eq!(virtual_tables(&batches, &[70, 71, 72, 73, 74], 4, 2), [72, 73, 74, 74]);
    }

    #[test]
    fn chunks_of_half_blocks_and_more_rows_than_tokens_are_refused() {
        let said = |rows, chunk| virtual_batches(rows, 10, chunk, 4).unwrap_err().to_string();
        assert_eq!(said(1, 6), "chunked_local: chunk is 6, not a multiple of 4");
        assert_eq!(said(1, 0), "chunked_local: chunk is 0");
        assert_eq!(said(11, 8), "chunked_local: rows is 11, the limit is 10");
    }
}
