//! What a step refuses.

use attn_kernels::kernel::KvDtype;
use kvblock::BlockId;
use models::ModelError;
use models::batch::{Phase, Slice};

use crate::options;
use crate::served::{Request, serve};
use crate::tiny::{family, tiny};

#[test]
fn a_cache_of_codes_names_what_it_does_not_serve() {
    let error = family("tiny-deepseek-v32").try_decoder(&options(KvDtype::Fp8)).unwrap_err();
    assert!(matches!(error, ModelError::KvDtype { dtype: KvDtype::Fp8, .. }), "{error}");
    assert_eq!(error.to_string(), "a KV cache of Fp8 does not serve latent attention: f16 and f32 do");
}

#[test]
fn a_token_outside_the_vocabulary_is_named_with_its_position() {
    let mut decoder = tiny().decoder(&options(KvDtype::F32));
    let table: Vec<BlockId> = (1..5).map(BlockId::new).collect();
    let mut refuse = |tokens: &[u32], first| {
        let slice = Slice {
            tokens,
            first,
            tables: &[&table],
            phase: Phase::Prefill,
            access: &[],
            targets: &[],
            logits: 0,
        };
        decoder.step(&[slice], &[]).unwrap_err()
    };
    let error = refuse(&[5, 127, 128, 6], 30);
    assert!(matches!(error, ModelError::Token { id: 128, position: 32, vocab: 128 }), "{error}");
    assert_eq!(error.to_string(), "token id 128 at position 32 is outside the vocabulary of 128");
    let error = refuse(&[u32::MAX], 0);
    assert!(matches!(error, ModelError::Token { id: u32::MAX, position: 0, vocab: 128 }), "{error}");

    // A refused step leaves the decoder as it was.
    let prompt = &tiny().prompts[1];
    assert_eq!(serve(&mut decoder, &[Request::new(&prompt.ids, 5)], 64)[0].drawn, prompt.greedy[..5]);
}
