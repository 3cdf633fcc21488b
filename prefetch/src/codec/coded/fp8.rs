//! f16 elements as fp8 e4m3.

use kvblock::e4m3;

use super::{element, set_element};

pub(super) fn encode(shard: &[u8], out: &mut [u8], scale: f32) {
    assert_eq!(shard.len(), out.len() * 2, "fp8 takes half the bytes of f16");
    for (at, byte) in out.iter_mut().enumerate() {
        *byte = e4m3::encode(element(shard, at) / scale);
    }
}

pub(super) fn decode(encoded: &[u8], out: &mut [u8], scale: f32) {
    assert_eq!(out.len(), encoded.len() * 2, "fp8 takes half the bytes of f16");
    for (at, &byte) in encoded.iter().enumerate() {
        set_element(out, at, e4m3::decode(byte) * scale);
    }
}
