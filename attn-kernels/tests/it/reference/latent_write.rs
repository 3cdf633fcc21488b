//! `latent_write` against its reference.

use super::device::{assert_close, cases, dispatch, gpu};
use super::layer::queries;
use attn_kernels::cpu::{self, Tolerance};
use attn_kernels::gpu::Pass;
use attn_kernels::kernel::KvDtype;
use attn_kernels::kernel::latent_write::{self, LatentWriteParams};
use attn_kernels::kernel::mla_decode::LatentShape;
use attn_kernels::self_test::FloatLayout;
use attn_kernels::self_test::latents::latent_words;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

proptest! {
    #![proptest_config(cases(8))]
    #[test]
    fn writes_what_the_reference_writes(
        (latent, rope) in (1u32..=64, 0u32..=8),
        rows in 1u32..40,
        gaps in prop::array::uniform3(0u32..9),
        dtype in prop::sample::select(vec![KvDtype::F16, KvDtype::F32, KvDtype::Fp8, KvDtype::Int8]),
        plain in 0u32..=9,
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let plain = if dtype == KvDtype::Fp8 && plain < latent { plain } else { 0 };
        let rope = if plain > 0 { 0 } else { rope };
        // WGSL leaves the direction of rounding to f16 open: one unit in the last place. f32 is only moved.
        let tolerance = match dtype {
            KvDtype::F16 => Tolerance { abs: f64::exp2(-24.0), rel: f64::exp2(-10.0) },
            KvDtype::F32 => Tolerance::EXACT,
            // The neighbour of a code, where the quotient is a tie: rows reach to 4.
            KvDtype::Fp8 => Tolerance { abs: f64::exp2(-15.0), rel: f64::exp2(-3.0) },
            KvDtype::Int8 => Tolerance { abs: 4.0 / 126.0, rel: 0.0 },
        };
        let shape = LatentShape { latent: 8 * latent, rope: 8 * rope, block_size: 16, dtype, plain: 8 * plain };
        let [before, between, after] = gaps;
        let rope_start = before + shape.latent + between;
        let row_stride = rope_start + shape.rope + after;
        let params = LatentWriteParams { rows, row_stride, latent_start: before, rope_start };
        let kv = queries(rows as usize, row_stride as usize, row_stride as usize, seed);
        let mut rng = StdRng::seed_from_u64(seed);
        let mut slots: Vec<i32> = (0..48).collect();
        slots.shuffle(&mut rng);
        slots.truncate(rows as usize);
        slots.iter_mut().filter(|_| rng.random_bool(0.2)).for_each(|slot| *slot = -1);

        latent_write::check(&shape, &params, &slots, 3, kv.len()).unwrap();
        let mut want = vec![f32::NAN; 48 * shape.width() as usize];
        let latents = gpu.upload("latents", &latent_words(&shape, &want)).unwrap();
        let (source, slot_buf) = (gpu.upload("kv", &kv).unwrap(), gpu.upload("slots", &slots).unwrap());
        let mut pass = Pass::new("latent_write");
        let bindings = [(&source).into(), (&slot_buf).into(), (&latents).into()];
        let grid = latent_write::grid(&shape, rows);
        dispatch(gpu, &mut pass, &latent_write::variant(&shape), &params, &bindings, grid);
        let read = pass.read(&latents, 0..latents.len());
        let got = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        cpu::latent_write::latent_write(&shape, &params, &kv, &slots, &mut want);
        let got = FloatLayout::latents(&shape).values(&got);
        assert_close(&format!("{shape:?} {params:?}"), tolerance, &got, &want);
    }
}
