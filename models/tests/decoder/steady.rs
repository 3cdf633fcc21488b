//! Steps of shapes that were there before make no buffer, bind group or pipeline.

use attn_kernels::kernel::KvDtype;
use models::{DecoderOptions, Place, SparseOptions};

use crate::options;
use crate::served::{Request, serve};
use crate::tiny::{Tiny, family, tiny};

fn quest() -> DecoderOptions {
    let policy = sparse_select::build("quest:page_budget=4").unwrap().into();
    let sparse = Some(SparseOptions { policy, place: Place::Device, measure: false, trace: false });
    DecoderOptions { sparse, ..options(KvDtype::F16) }
}

/// Two prompts in chunks, then decode steps of both.
fn made_again(tiny: &Tiny, options: &DecoderOptions) -> u64 {
    let requests = [3, 1].map(|prompt| Request::new(&tiny.prompts[prompt].ids, 20));
    // The count is the device's, and other tests run beside this one.
    let mut decoder = tiny.decoder_alone(options);
    // Buffers that grow in the first run take the bind groups of all with them.
    for _ in 0..2 {
        serve(&mut decoder, &requests, 64);
    }
    let made = decoder.gpu().objects_made();
    assert!(made > 0, "nothing is counted");
    serve(&mut decoder, &requests, 64);
    decoder.gpu().objects_made() - made
}

#[test]
fn requests_of_known_shapes_make_no_gpu_object() {
    assert_eq!(made_again(tiny(), &options(KvDtype::F16)), 0, "dense");
    assert_eq!(made_again(tiny(), &quest()), 0, "with a sparse policy");
    for name in ["tiny-gpt-oss", "tiny-deepseek-v32"] {
        assert_eq!(made_again(family(name), &options(KvDtype::F32)), 0, "{name}");
    }
}
