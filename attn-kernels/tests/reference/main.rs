//! Every kernel on the adapter that is there, with bounds checks on, against its CPU reference.

mod apply_sinks;
mod block_select;
mod cache_write;
mod chunked_local;
mod chunked_prefix;
mod copy_blocks;
mod decode;
mod device;
mod gather_cache;
mod indexer;
mod latent_write;
mod layer;
mod lists;
mod lse_merge;
mod masked_attention;
mod mass_bound;
mod mla_decode;
mod nsa;
mod options;
mod paged_decode;
mod paged_prefill;
mod quantise;
mod retrieval;
mod top_k;
mod v4_compress;
mod xattn;
