//! The decoder on the adapter that is there: against the logits and tokens of transformers, and against itself in other chunks,
//! blocks and company.

mod choices;
mod corrected;
mod golden;
mod indexed;
mod invariance;
mod many_heads;
mod modes;
mod offload;
mod on_disk;
mod pipeline;
mod prefix;
mod previous;
mod profiles;
mod progress;
mod quantize;
mod random;
mod refusal;
mod resident;
mod retrieved;
mod sampling;
mod served;
mod short_chunks;
mod skipped;
mod sparse;
mod steady;
pub(crate) mod tiny;
mod weights_on_host;
mod windows;
mod wrong;

use attn_kernels::kernel::KvDtype;
use models::DecoderOptions;

/// Maximum number of tokens of one sequence in these tests.
const CAPACITY: u32 = 1024;

/// Options that the tests vary from.
fn options(kv_dtype: KvDtype) -> DecoderOptions {
    DecoderOptions::new(16 * CAPACITY / 16 + 1, 512).kv_dtype(kv_dtype).max_seqs(4)
}

/// `options` with other blocks, in a pool of as many tokens: enough for four sequences in four groups.
fn blocks_of(block_size: u32, options: &DecoderOptions) -> DecoderOptions {
    options.clone().block_size(block_size).num_blocks(16 * CAPACITY / block_size + 1)
}
