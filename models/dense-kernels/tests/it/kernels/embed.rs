//! `embed` against its reference.

use super::device::{assert_close, dispatch, gpu};
use super::tensors;
use attn_kernels::cpu::Tolerance;
use attn_kernels::gpu::Pass;
use dense_kernels::Dtype;
use dense_kernels::cpu;
use dense_kernels::kernel::embed::{self, EmbedParams};
use dense_kernels::pack::{Format, Packed};

/// Every product of a scale and a code is exact in f32 but Q6_K's, which both sides round once: equal to the bit.
#[test]
fn rows_of_every_storage_type() {
    let Some(gpu) = gpu() else { return };
    let vocab = 37;
    let tokens = [0, 36, 5, 5, 12, 35, 1];
    for (seed, dtype) in (0..).zip(Dtype::ALL) {
        // Plain types need not fill their last block.
        let (width, row) = if dtype.block_elems() == 1 { (504, 504) } else { (512, 512) };
        let matrix = tensors::random(dtype, vocab, width, seed);
        // A shard: tokens 5 to 35.
        let params = EmbedParams { rows: 7, first: 5, cols: 31, width: row, scale: 1.0 };
        let mut packed = Packed::new(dtype, width, 31);
        packed.fill(&matrix, 5..36, 0);
        let buffers = (
            gpu.upload("tokens", &tokens).unwrap(),
            gpu.upload("wq", &packed.quants).unwrap(),
            gpu.upload("ws", &packed.scales).unwrap(),
            gpu.upload("out", &vec![f32::NAN; tokens.len() * width]).unwrap(),
        );
        let bindings = [(&buffers.0).into(), (&buffers.1).into(), (&buffers.2).into(), (&buffers.3).into()];
        let mut pass = Pass::new("embed");
        let variant = embed::variant(Format::from(dtype));
        dispatch(gpu, &mut pass, &variant, &params, &bindings, embed::grid(&params));
        let read = pass.read(&buffers.3, 0..buffers.3.len());
        let got = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        let mut want = vec![f32::NAN; got.len()];
        cpu::embed::embed(&params, &tokens, &matrix, &mut want);
        assert_close(dtype.name(), Tolerance::EXACT, &got, &want);
    }
}
