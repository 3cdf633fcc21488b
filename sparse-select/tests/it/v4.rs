//! DeepSeek-V4: windows, combined indices, and the compressor.

use proptest::prelude::*;
use sparse_select::{
    dsa::fp8::ScaleFormat,
    v4::{
        IndexRow, PrefillWorkspace, c4a_count, compressed_len,
        compressor::{Ratio, State, add_ape, pool, quantise_blocks, rms_norm, rotate},
        prefill_chunks, swa_decode_row,
    },
};

#[test]
fn decode_windows_become_slots() {
    let table = [9, 4, 7];
    let row = swa_decode_row(Some(2), 4, &table, 64);
    assert_eq!(row, IndexRow { indices: vec![576, 577, 578, -1], len: 3 });
    // Positions 62..=65 cross from block 9 to block 4.
    assert_eq!(swa_decode_row(Some(65), 4, &table, 64).indices, [638, 639, 256, 257]);
    assert_eq!(swa_decode_row(None, 3, &table, 64), IndexRow { indices: vec![-1; 3], len: 0 });
    let full = swa_decode_row(Some(190), 128, &table, 64);
    assert_eq!((full.len, full.indices[0], full.indices[127]), (128, 9 * 64 + 63, 7 * 64 + 62));
}

#[test]
fn compressed_counts() {
    assert_eq!([2, 3, 7, 2046, 2047, 5000].map(|pos| c4a_count(pos, 512)), [0, 1, 2, 511, 512, 512]);
    assert_eq!([126, 127, 255, 100_000].map(|pos| compressed_len(pos, 128)), [0, 1, 2, 781]);
    assert_eq!(prefill_chunks(9).collect::<Vec<_>>(), [0..4, 4..8, 8..9]);
}

#[test]
fn prefill_rows_join_compressed_and_raw() {
    let w = PrefillWorkspace::new(1001, 4, 128, 2048);
    assert_eq!((w.compressed, w.stride()), (251, 251 + 128 + 2048));
    // Of 300 cached tokens the last 127 are gathered, of 5 all.
    assert_eq!([w.gathered(300, 10), w.gathered(5, 10)], [173..310, 0..15]);
    let row = w.row(1, 300, &w.gathered(300, 10), &[7, 70]);
    assert_eq!((row.len, row.indices.len()), (130, 256));
    assert_eq!(row.indices[..4], [2427 + 7, 2427 + 70, 2427 + 251, 2427 + 252]);
    assert_eq!(row.indices[129..131], [2427 + 251 + 127, -1]);
    let first = w.row(0, 0, &w.gathered(0, 10), &[]);
    assert_eq!((first.len, first.indices.len(), first.indices[0]), (1, 128, 251));
}

#[test]
fn entries_are_written_when_complete() {
    assert_eq!([Ratio::C4, Ratio::C128].map(|r| (r.window(), r.state_block_size())), [(8, 4), (128, 8)]);
    // 16 entries of four tokens in a block of 64.
    let slots = [0, 3, 4, 63, 64, 67].map(|pos| Ratio::C4.slot(pos, &[5, 2], 64));
    assert_eq!(slots, [-1, 80, -1, 95, -1, 32]);
    let slots = [126, 127, 255, 383].map(|pos| Ratio::C128.slot(pos, &[5, 2], 256));
    assert_eq!(slots, [-1, 10, 11, 4]);
}

#[test]
fn equal_scores_give_the_mean_of_the_right_halves() {
    // Token p keeps p in its first half and 100 + p in its second.
    let kv: Vec<f32> = (0..12).flat_map(|p| [p as f32, 100.0 + p as f32]).collect();
    let score = [0.0; 24];
    let state = State { kv: &kv, score: &score, dim: 1 };
    assert_eq!(pool(Ratio::C4, &state, 2), None);
    assert_eq!(pool(Ratio::C4, &state, 3), Some(vec![101.5]));
    // First halves of 0..4, second halves of 4..8.
    assert_eq!(pool(Ratio::C4, &state, 7), Some(vec![(6.0 + 422.0) / 8.0]));
    assert_eq!(pool(Ratio::C4, &state, 11), Some(vec![(22.0 + 438.0) / 8.0]));
    let long: Vec<f32> = (0..256).map(|p| p as f32).collect();
    let state = State { kv: &long, score: &[0.0; 256], dim: 1 };
    assert_eq!(pool(Ratio::C128, &state, 255), Some(vec![191.5]));
}

proptest! {
    #[test]
    fn a_high_score_wins_its_channel(winner in 0usize..8, channel in 0usize..3, seed in 0u32..1000) {
        let kv: Vec<f32> = (0..8 * 6).map(|i| ((i * 37 + seed) % 101) as f32).collect();
        let at = winner * 6 + if winner < 4 { 0 } else { 3 } + channel;
        let mut score = vec![0.0; 8 * 6];
        score[at] = 200.0;
        let entry = pool(Ratio::C4, &State { kv: &kv, score: &score, dim: 3 }, 7).unwrap();
        prop_assert_eq!(entry[channel], kv[at]);
    }

    #[test]
    fn rotation_keeps_lengths_and_the_other_channels(pos in 0usize..10_000, x in prop::collection::vec(-8i8..8, 80)) {
        let before: Vec<f32> = x.into_iter().map(f32::from).collect();
        let mut after = before.clone();
        rotate(&mut after, Ratio::C4, pos, 160_000.0);
        prop_assert_eq!(&after[..16], &before[..16]);
        for (a, b) in after[16..].chunks(2).zip(before[16..].chunks(2)) {
            prop_assert!((a[0].hypot(a[1]) - b[0].hypot(b[1])).abs() < 1e-4);
        }
        // Every token of an entry stands for the same position.
        let mut same = before.clone();
        rotate(&mut same, Ratio::C4, pos / 4 * 4, 160_000.0);
        prop_assert_eq!(after, same);
    }
}

#[test]
fn steps_after_pooling() {
    let mut x = [3.0, 4.0];
    rms_norm(&mut x, &[1.0, 2.0], 0.0);
    let rms = 12.5f32.sqrt();
    assert!((x[0] - 3.0 / rms).abs() < 1e-6 && (x[1] - 8.0 / rms).abs() < 1e-6);
    let mut score = [1.0, 2.0];
    add_ape(&mut score, &[0.0, 0.0, 10.0, 20.0, 0.0, 0.0, 0.0, 0.0], 5, Ratio::C4);
    assert_eq!(score, [11.0, 22.0]);
    // Position 4 of a first pair turns by 4 radians.
    let mut x = [0.0; 64];
    x[0] = 1.0;
    rotate(&mut x, Ratio::C4, 7, 1e4);
    assert!((x[0] - 4f32.cos()).abs() < 1e-6 && (x[1] - 4f32.sin()).abs() < 1e-6);
    let mut x = [448.0; 128];
    x[64..].fill(900.0);
    let (codes, scales) = quantise_blocks(&x, 64, ScaleFormat::Ue8m0);
    assert_eq!((codes.len(), scales), (128, vec![1.0, 4.0]));
}
