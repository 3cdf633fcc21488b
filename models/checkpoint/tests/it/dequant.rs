//! Every storage type against the values that the Python package `gguf` gives.

use checkpoint::{Dtype, Safetensors, WeightSource, dequantize};
use safetensors::SafeTensors;

use super::fixture;

#[test]
fn equals_the_gguf_package_bit_for_bit() {
    let path = fixture("dequant/blocks.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let blocks = SafeTensors::deserialize(&bytes).unwrap();
    let values = Safetensors::open(&path).unwrap();
    for dtype in Dtype::in_files() {
        let blocks = blocks.tensor(&format!("{dtype}.blocks")).unwrap();
        let want = values.get(&format!("{dtype}.values")).unwrap().unwrap().to_f32();
        assert_eq!(dtype.bytes_for(want.len()), Some(blocks.data().len()), "{dtype}");
        let mut got = vec![f32::NAN; want.len()];
        dequantize(dtype, blocks.data(), &mut got);
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got.to_bits(), want.to_bits(), "{dtype} element {i}: {got} against {want}");
        }
    }
}

#[test]
fn sizes_are_whole_blocks() {
    assert_eq!(Dtype::Q4_K.bytes_for(512), Some(288));
    assert_eq!(Dtype::Q4_K.bytes_for(511), None);
    assert_eq!(Dtype::F32.bytes_for(usize::MAX), None);
}

#[test]
#[should_panic(expected = "64 elements of Q4_0 do not take 37 bytes")]
fn a_wrong_length_is_a_broken_invariant() {
    dequantize(Dtype::Q4_0, &[0; 37], &mut [0.0; 64]);
}
