//! Codecs against exhaustive and naive oracles, and through a tier.

use std::sync::Arc;

use half::f16;
use insta::assert_snapshot;
use kvblock::e4m3;
use prefetch::codec::{Codec, CodedTier, RowLayout};
use prefetch::policy::PolicyKind;
use prefetch::tier::{BlockLayout, HostTier, Tier};
use proptest::prelude::*;

use super::hash;

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
}

fn round_trip(codec: Codec, shard: &[u8]) -> Vec<u8> {
    let layout = BlockLayout::new(1, u32::try_from(shard.len()).unwrap()).unwrap();
    let mut encoded = vec![0; codec.encoded_layout(layout).unwrap().shard_bytes()];
    codec.encode(shard, &mut encoded);
    let mut decoded = vec![0; shard.len()];
    codec.decode(&encoded, &mut decoded);
    decoded
}

proptest! {
    #[test]
    fn as_stored_returns_every_bit(shard in prop::collection::vec(any::<u8>(), 1..200)) {
        prop_assert_eq!(round_trip(Codec::AsStored, &shard), shard);
    }

    /// Values that came from fp8 go through it unchanged, so a block may climb and fall any number of times.
    #[test]
    fn fp8_is_exact_on_its_own_values(raw in prop::collection::vec(0u16..0x7c00, 1..64), scale in 1u8..4) {
        let codec = Codec::Fp8 { scale: f32::from(scale) / 2.0 };
        let shard: Vec<u8> = raw.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let once = round_trip(codec, &shard);
        if scale.is_power_of_two() {
            prop_assert_eq!(&round_trip(codec, &once), &once);
        }
        let limit = e4m3::MAX * f32::from(scale) / 2.0;
        for (before, after) in floats(&shard).into_iter().zip(floats(&once)) {
            // Half a step of 3 mantissa bits, or of the subnormal grid; and f16 rounding for odd scales.
            let bound = before / 16.0 + f32::from(scale) / 2.0 / 1024.0 + before / 1024.0;
            prop_assert!(before > limit || (before - after).abs() <= bound, "{} {}", before, after);
        }
    }

    /// Each value comes back within half a step of its own row; rows do not influence one another.
    #[test]
    fn int8_errs_by_half_a_step_of_the_row(
        values in prop::collection::vec(-1000i32..1000, 4 * 3 * 16),
        exponents in prop::collection::vec(-8i32..6, 12),
        rows in prop::sample::select(&[
            RowLayout::Contiguous { head_dim: 16 },
            RowLayout::PagedKey { head_dim: 16, block_size: 4 },
            RowLayout::PagedKeyValue { head_dim: 16, block_size: 2, num_kv_heads: 3 },
        ]),
    ) {
        // 3 heads, 4 tokens, head_dim 16; or as many rows in K and V of 3 heads and 2 tokens.
        let position = |row: usize, d: usize| match rows {
            RowLayout::PagedKey { .. } => row / 4 * 64 + d / 8 * 32 + row % 4 * 8 + d % 8,
            RowLayout::PagedKeyValue { .. } if row < 6 => row / 2 * 32 + d / 8 * 16 + row % 2 * 8 + d % 8,
            _ => row * 16 + d,
        };
        let mut shard = vec![0.0; values.len()];
        for row in 0..12 {
            for d in 0..16 {
                shard[position(row, d)] = values[row * 16 + d] as f32 / 1000.0 * 2f32.powi(exponents[row]);
            }
        }
        let shard = floats(&bytes(&shard));
        let after = floats(&round_trip(Codec::Int8 { rows }, &bytes(&shard)));
        for row in 0..12 {
            let row: Vec<_> = (0..16).map(|d| position(row, d)).collect();
            let absmax = row.iter().map(|&at| shard[at].abs()).fold(0.0, f32::max);
            let step = (absmax / 127.0).max(1e-6);
            for at in row {
                let bound = step * 0.5001 + absmax / 1024.0;
                prop_assert!((shard[at] - after[at]).abs() <= bound, "{} {} {}", shard[at], after[at], step);
            }
        }
    }
}

#[test]
fn a_coded_tier_holds_half_the_bytes_and_gives_f16_back() {
    let layout = BlockLayout::new(2, 64).unwrap();
    let values: Vec<f32> = (0u8..64).map(|i| f32::from(i) - 32.0).collect();
    for (codec, encoded_bytes) in [
        (Codec::AsStored, 64),
        (Codec::Fp8 { scale: 1.0 }, 32),
        (Codec::Int8 { rows: RowLayout::Contiguous { head_dim: 16 } }, 40),
    ] {
        let encoded = codec.encoded_layout(layout).unwrap();
        assert_eq!((encoded.shards(), encoded.shard_bytes()), (2, encoded_bytes));
        let inner = Arc::new(HostTier::new(encoded, 4, PolicyKind::Lru, None));
        let tier = CodedTier::new(codec, layout, inner).unwrap();
        tier.write(hash(1), &bytes(&values)).unwrap();
        let mut block = vec![0; 128];
        tier.read_block(hash(1), &mut block).unwrap();
        let mut shard = vec![0; 64];
        tier.read(hash(1), 1, &mut shard).unwrap();
        assert_eq!(shard, block[64..]);
        let worst = floats(&block).iter().zip(&values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= if codec == Codec::AsStored { 0.0 } else { 1.0 }, "{codec:?} {worst}");
    }
}

#[test]
fn misfits_are_named() {
    let odd = BlockLayout::new(1, 24).unwrap();
    let error = |codec: Codec| codec.encoded_layout(odd).unwrap_err().to_string();
    assert_snapshot!(error(Codec::Int8 { rows: RowLayout::Contiguous { head_dim: 8 } }), @"shard of 24 bytes is not a whole number of units of 16 bytes");
    assert_snapshot!(error(Codec::Int8 { rows: RowLayout::PagedKey { head_dim: 12, block_size: 1 } }), @"head dimension 12 is not a positive multiple of 8");
    assert_snapshot!(error(Codec::Fp8 { scale: 0.0 }), @"scale 0 is not positive and finite");
}
