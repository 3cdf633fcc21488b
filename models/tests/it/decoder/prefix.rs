//! Long prefixes in chunks: the same logits as in one piece.

use attn_kernels::kernel::KvDtype;

use super::options;
use super::served::{Request, Served, serve};
use super::tiny::tiny;

/// The four prompts, of up to 200 tokens, together, in pieces of 24 tokens: all but the first have a prefix.
fn served(prefix_capacity: u32) -> Vec<Served> {
    let options = options(KvDtype::F32).prefix_capacity(prefix_capacity);
    let requests: Vec<Request<'_>> =
        tiny().prompts.iter().map(|prompt| Request::new(&prompt.ids, 6)).collect();
    serve(&mut tiny().decoder(&options), &requests, 24)
}

/// Whether prefills of the tiny Llama are attended in tiles: on GPUs its rows go through the decode kernel.
fn has_tiles() -> bool {
    let tiles = tiny().decoder(&options(KvDtype::F32)).gpu().is_cpu();
    if !tiles {
        eprintln!("no tiles on this adapter: no prefix is cut");
    }
    tiles
}

#[test]
fn chunks_of_a_prefix_give_the_logits_of_the_whole() {
    let whole = served(131_072);
    // A block of each sequence, three, and more than there is.
    for capacity in [64, 192, 4 * 256] {
        for (n, (chunked, whole)) in served(capacity).iter().zip(&whole).enumerate() {
            assert_eq!(chunked.drawn, whole.drawn, "prompt {n}, capacity {capacity}");
            let worst =
                chunked.logits.iter().zip(&whole.logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-4, "prompt {n}, capacity {capacity}: a logit is off by {worst:e}");
        }
    }
    if !has_tiles() {
        return;
    }
    let bits = |served: &[Served]| served.iter().map(Served::bits).collect::<Vec<_>>();
    assert_ne!(bits(&served(64)), bits(&whole), "nothing was cut");
    assert_eq!(bits(&served(4 * 256)), bits(&whole), "no prefix is that long");
}

#[test]
fn a_capacity_below_a_block_a_sequence_is_refused() {
    if !has_tiles() {
        return;
    }
    let options = options(KvDtype::F32).prefix_capacity(15);
    let mut decoder = tiny().decoder(&options);
    let request = Request::new(&tiny().prompts[0].ids, 1);
    let panic =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| serve(&mut decoder, &[request], 24)));
    let said = *panic.unwrap_err().downcast::<String>().unwrap();
    assert!(said.contains("limit: 15"), "{said}");
}
