//! Refused launches of latent attention, merges and codes, with the numbers that the refusal names. No device is asked.

use attn_kernels::kernel::attention::{Attention, Context, Reach};
use attn_kernels::kernel::mla_decode::LatentShape;
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape, LaunchError};
use insta::assert_snapshot;

const LATENTS: LatentShape =
    LatentShape { latent: 32, rope: 8, block_size: 16, dtype: KvDtype::F16, plain: 0 };

/// Returns the message of a refusal.
fn said(refused: Result<(), LaunchError>) -> String {
    refused.unwrap_err().to_string()
}

#[test]
fn shapes_of_latents() {
    let said = |change: fn(&mut LatentShape)| {
        let mut shape = LATENTS;
        change(&mut shape);
        said(shape.validate())
    };
    assert_eq!(LatentShape { latent: 512, rope: 64, block_size: 256, ..LATENTS }.validate(), Ok(()));
    assert_snapshot!(said(|s| s.latent = 0), @"cache of latents: latent is 0");
    assert_snapshot!(said(|s| s.latent = 20), @"cache of latents: latent is 20, not a multiple of 8");
    assert_snapshot!(said(|s| s.latent = 576), @"cache of latents: latent is 576, the limit is 512");
    assert_snapshot!(said(|s| s.rope = 4), @"cache of latents: rope part is 4, not a multiple of 8");
    assert_snapshot!(said(|s| s.rope = 72), @"cache of latents: rope part is 72, the limit is 64");
    let v4 = LatentShape { rope: 0, dtype: KvDtype::Fp8, plain: 8, ..LATENTS };
    assert_eq!((v4.validate(), v4.token_bytes()), (Ok(()), 24 + 16 + 8));
    assert_eq!(LatentShape { latent: 512, plain: 64, ..v4 }.token_bytes(), 584);
    let of_v4 = |change: fn(&mut LatentShape)| {
        let mut shape = v4;
        change(&mut shape);
        shape.validate().unwrap_err().to_string()
    };
    assert_snapshot!(of_v4(|s| s.plain = 32), @"cache of latents: part in bf16 is 32, the limit is 31");
    assert_snapshot!(of_v4(|s| s.plain = 4), @"cache of latents: part in bf16 is 4, not a multiple of 8");
    assert_snapshot!(of_v4(|s| s.rope = 8), @"cache of latents: rope part beside one in bf16 is 8, the limit is 0");
    assert_snapshot!(of_v4(|s| s.dtype = KvDtype::Int8), @"cache of latents: part in bf16 is 8, the limit is 0");
    assert_snapshot!(said(|s| s.block_size = 24), @"cache of latents: block size is 24, not a power of two");
    assert_snapshot!(said(|s| s.block_size = 2), @"cache of latents: block size is 2, not a multiple of 4");
    assert_snapshot!(said(|s| s.block_size = 512), @"cache of latents: block size is 512, the limit is 256");
}

#[test]
fn blocks_and_masks_of_attention() {
    let shape = KvShape {
        num_kv_heads: 2,
        head_dim: 16,
        block_size: 4,
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    let masked = |mask| Attention { mask, ..Attention::default() }.validate(&shape, 1);
    assert_eq!(Attention::blocks(8).validate(&shape, 8), Ok(()));
    assert_snapshot!(said(Attention::blocks(0).validate(&shape, 1)), @"attention: selection block is 0");
    assert_snapshot!(said(Attention::blocks(6).validate(&shape, 1)), @"attention: selection block is 6, not a multiple of 4");
    assert_snapshot!(said(Attention::blocks(8).validate(&shape, 16)), @"attention: selection block is 8, not a multiple of 16");
    let tokens = Attention { context: Context::Tokens, ..Attention::default() };
    assert_eq!(tokens.validate(&shape, 1), Ok(()));
    assert_snapshot!(said(tokens.validate(&shape, 8)), @"attention: selection block is 1, not a multiple of 8");
    assert_snapshot!(said(masked(Reach::Window(0))), @"attention: tokens of the window or chunk is 0");
    assert_snapshot!(said(masked(Reach::Chunk(0))), @"attention: tokens of the window or chunk is 0");
}
