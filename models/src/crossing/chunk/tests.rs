use proptest::prelude::*;

use super::*;

/// A model of a device: a layer of a chunk takes some microseconds per row, attention some nanoseconds per row and key, and
/// scores of all blocks a share of that.
#[derive(Clone, Copy, Debug)]
struct Device {
    row: f64,
    key: f64,
    /// Microseconds of a selection of any length.
    fixed: f64,
    scores: f64,
    density: f64,
}

impl Device {
    fn times(&self, (rows, tokens): (u32, u32)) -> StepTimes {
        let micros = |micros: f64| Duration::from_secs_f64(micros / 1e6);
        let alone = f64::from(rows) * self.row;
        let context = f64::from(rows) * f64::from(tokens) * self.key / 1e3;
        let selecting = alone + self.fixed + context * (self.scores + self.density);
        let (alone, dense) = (micros(alone), micros(alone + context));
        let times = ChunkTimes { alone, dense, selecting: micros(selecting), density: Some(self.density) };
        StepTimes { rows, context: tokens, dense, selecting: times.assumed() }
    }

    fn all(&self, grid: &ChunkGrid) -> Vec<StepTimes> {
        let mut times = Vec::new();
        while let Some(chunk) = grid.next(&times) {
            times.push(self.times(chunk));
        }
        times
    }
}

fn grid() -> ChunkGrid {
    ChunkGrid::new(2048, 768, 120_000, 200_000)
}

const LARGE: Device = Device { row: 2.5, key: 0.05, fixed: 300.0, scores: 0.1, density: 1.0 };

#[test]
fn crossings_are_sentences() {
    let said = |device: Device| grid().crossing(&device.all(&grid())).to_string();
    insta::assert_snapshot!(said(LARGE), @"dense below 10,496 tokens, below 64,512 in chunks of fewer than 2,048");
    insta::assert_snapshot!(said(Device { fixed: 10.0, ..LARGE }), @"dense below 4,096 tokens, below 4,864 in chunks of fewer than 2,048");
    insta::assert_snapshot!(said(Device { fixed: 3000.0, ..LARGE }), @"dense below 79,872 tokens, at any length in chunks of fewer than 2,048");
    insta::assert_snapshot!(said(Device { scores: 0.6, ..LARGE }), @"dense at any length");
    insta::assert_snapshot!(ChunkCrossing::never(), @"dense at any length");
    insta::assert_snapshot!(ChunkGrid::new(64, 1024, 512, 4096).crossing(&[]), @"dense at any length");
}

#[test]
fn chunks_are_timed_until_two_in_a_row_pay() {
    let timed = |device: Device| {
        let times = device.all(&grid()).into_iter();
        times.map(|chunk| format!("{}@{}", chunk.rows, chunk.context)).collect::<Vec<_>>().join(" ")
    };
    insta::assert_snapshot!(timed(Device { fixed: 10.0, ..LARGE }), @"256@1024 256@2048 256@4096 256@8192 256@16384 2048@4096 2048@8192");
    insta::assert_snapshot!(timed(Device { scores: 0.6, ..LARGE }), @"256@1024 256@2048 256@4096 256@8192 256@16384 256@32768 256@65536 2048@4096 2048@8192 2048@16384 2048@32768 2048@65536");
}

#[test]
fn a_chunk_is_like_the_longest_timed_one_that_is_no_longer() {
    let crossing = ChunkCrossing { chunks: vec![(256, 30_000), (2048, 9000)] };
    let selects = |chunks: [(u32, u32); 3]| chunks.map(|(rows, tokens)| crossing.selects(rows, tokens));
    assert_eq!(selects([(2048, 8999), (2048, 9000), (4096, 9000)]), [false, true, true]);
    assert_eq!(selects([(2047, 29_999), (2047, 30_000), (255, 100_000)]), [false, true, false]);
    assert!(ChunkCrossing::default().selects(1, 1));
    assert!(!ChunkCrossing::never().selects(4096, u32::MAX));
}

proptest! {
    /// For any share of blocks that a policy kept of the measured contents, the time is that of a half.
    #[test]
    fn times_do_not_follow_from_contents(
        kept in 0.0..1.0,
        chunk in (1_u32..4096, 1_u32..200_000),
        scores in 0.0..0.9,
    ) {
        let device = Device { scores, density: kept, ..LARGE };
        let half = Device { density: ASSUMED, ..device };
        let apart = device.times(chunk).selecting.as_secs_f64() - half.times(chunk).selecting.as_secs_f64();
        prop_assert!(apart.abs() < 1e-7, "{apart}");
    }

    /// No chunk of a timed length above the crossing loses time, and all chunks a round number of tokens below it do.
    #[test]
    fn chunks_that_select_gain(
        fixed in 0.0..5000.0,
        scores in 0.0..1.2,
        density in 0.0..1.0,
        tokens in 4096_u32..120_000,
    ) {
        let device = Device { fixed, scores, density, ..LARGE };
        let crossing = grid().crossing(&device.all(&grid()));
        for rows in [256, 2048] {
            let StepTimes { dense, selecting, .. } = device.times((rows, tokens));
            let gain = 0.98 * dense.as_secs_f64() - selecting.as_secs_f64();
            if crossing.selects(rows, tokens) {
                prop_assert!(gain > -1e-6, "{crossing}: {rows} rows of {tokens} tokens lose {gain}");
            } else if !crossing.selects(rows, (tokens + 256).min(120_000)) {
                prop_assert!(gain < 1e-6, "{crossing}: {rows} rows of {tokens} tokens gain {gain}");
            }
        }
    }
}
