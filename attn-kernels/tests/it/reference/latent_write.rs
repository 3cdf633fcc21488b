//! `latent_write` against its reference, of latents of any size.

use attn_kernels::kernel::KvDtype;
use attn_kernels::kernel::latent_write;
use attn_kernels::kernel::mla_decode::LatentShape;
use attn_kernels::self_test::{Spec, cases as cases_of};
use proptest::prelude::*;

use super::device::{cases, gpu};

proptest! {
    #![proptest_config(cases(8))]
    #[test]
    fn writes_what_the_reference_writes(
        (latent, rope) in (1u32..=64, 0u32..=8),
        dtype in prop::sample::select(vec![KvDtype::F16, KvDtype::F32, KvDtype::Fp8, KvDtype::Int8]),
        plain in 0u32..=9,
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let plain = if dtype == KvDtype::Fp8 && plain < latent { plain } else { 0 };
        let rope = if plain > 0 { 0 } else { rope };
        let shape = LatentShape { latent: 8 * latent, rope: 8 * rope, block_size: 16, dtype, plain: 8 * plain };
        for case in cases_of(&latent_write::variant(&shape), &Spec::random(seed)) {
            case.run(gpu).unwrap_or_else(|fault| panic!("{shape:?}: {fault}"));
        }
    }
}
