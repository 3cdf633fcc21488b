//! Matrices of every storage type, made of random bits.

use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::{Dtype, Tensor};

/// A random matrix `[cols, width]`: random codes, and scales with which the largest numbers are about 1.
#[must_use]
pub fn random(dtype: Dtype, cols: usize, width: usize, seed: u64) -> Tensor<'static> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut data = Vec::new();
    for _ in 0..cols * width / dtype.block_elems() {
        let mut block: Vec<u8> = (0..dtype.block_bytes()).map(|_| rng.random()).collect();
        let mut number = || rng.random_range(-1.0f32..1.0);
        let mut half_at = |block: &mut [u8], at: usize, largest: f32| {
            let bytes = f16::from_f32(number() / largest).to_le_bytes();
            block[at..at + 2].copy_from_slice(&bytes);
        };
        match dtype {
            Dtype::F32 => block.copy_from_slice(&number().to_le_bytes()),
            Dtype::F16 => half_at(&mut block, 0, 1.0),
            Dtype::BF16 => block.copy_from_slice(&bf16::from_f32(number()).to_le_bytes()),
            Dtype::Q4_0 => half_at(&mut block, 0, 8.0),
            Dtype::Q4_1 => {
                half_at(&mut block, 0, 16.0);
                half_at(&mut block, 2, 1.0);
            }
            Dtype::Q5_0 => half_at(&mut block, 0, 16.0),
            Dtype::Q5_1 => {
                half_at(&mut block, 0, 32.0);
                half_at(&mut block, 2, 1.0);
            }
            Dtype::Q2_K => {
                half_at(&mut block, 80, 3.0 * 15.0);
                half_at(&mut block, 82, 15.0);
            }
            Dtype::Q3_K => half_at(&mut block, 108, 4.0 * 32.0),
            Dtype::IQ4_NL => half_at(&mut block, 0, 127.0),
            Dtype::IQ4_XS => half_at(&mut block, 0, 127.0 * 32.0),
            Dtype::Q8_0 => half_at(&mut block, 0, 127.0),
            Dtype::Q4_K => {
                half_at(&mut block, 0, 15.0 * 63.0);
                half_at(&mut block, 2, 63.0);
            }
            Dtype::Q5_K => {
                half_at(&mut block, 0, 31.0 * 63.0);
                half_at(&mut block, 2, 63.0);
            }
            Dtype::Q6_K => half_at(&mut block, 208, 128.0 * 32.0),
            // Exponents that make 6, the largest code, at most 3/4.
            Dtype::MXFP4 => block[0] = 118 + block[0] % 7,
            Dtype::F8_E4M3 => {
                block[..4].copy_from_slice(&(number() / 448.0).to_le_bytes());
                no_nan(&mut block[4..]);
            }
            other => unreachable!("no kernel reads {other}"),
        }
        data.extend(block);
    }
    Tensor { name: "random".into(), dtype, shape: vec![cols, width], data: data.into() }
}

/// Replaces codes of e4m3 that are NaN by the codes next to them.
pub fn no_nan(codes: &mut [u8]) {
    codes.iter_mut().filter(|code| **code & 0x7f == 0x7f).for_each(|code| *code -= 1);
}
