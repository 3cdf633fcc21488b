use proptest::prelude::*;

use super::*;

fn ms(milliseconds: f64) -> Duration {
    Duration::from_secs_f64(milliseconds / 1e3)
}

/// A model of a device: dense attention takes `dense` nanoseconds per key, and a selection `fixed` milliseconds and `each` per
/// key.
#[derive(Clone, Copy, Debug)]
struct Device {
    dense: f64,
    fixed: f64,
    each: f64,
}

impl Device {
    fn time(&self, (rows, context): (u32, u32)) -> StepTimes {
        let keys = f64::from(rows) * f64::from(context) / 1e6;
        let weights = 4.0;
        StepTimes {
            rows,
            context,
            dense: ms(weights + keys * self.dense),
            selecting: ms(weights + self.fixed + keys * self.each),
        }
    }

    /// Returns the times of all steps of a grid.
    fn times(&self, grid: &StepGrid) -> Vec<StepTimes> {
        let mut times = Vec::new();
        while let Some(step) = grid.next(&times) {
            times.push(self.time(step));
        }
        times
    }
}

const GRID: StepGrid = StepGrid { shortest: 1024, longest: 131_072, sequences: 64, pool_tokens: 600_000 };

fn said(device: Device) -> String {
    GRID.crossing(&device.times(&GRID)).to_string()
}

#[test]
fn crossings_are_sentences() {
    let large = Device { dense: 36.0, fixed: 0.3, each: 6.0 };
    insta::assert_snapshot!(said(large), @"dense below 13,056 tokens, below 1,792 from 8 sequences on, below 1,024 from 32 sequences on");
    insta::assert_snapshot!(said(Device { fixed: 0.01, ..large }), @"dense below 3,328 tokens, below 1,024 from 8 sequences on, below 1,024 from 32 sequences on");
    insta::assert_snapshot!(said(Device { fixed: 9.0, ..large }), @"dense at any length, below 38,912 from 8 sequences on, below 9,728 from 32 sequences on");
    insta::assert_snapshot!(said(Device { fixed: 2.0, ..large }), @"dense below 71,168 tokens, below 8,960 from 8 sequences on, below 2,304 from 32 sequences on");
    insta::assert_snapshot!(Crossing::never(), @"dense at any length");
}

#[test]
fn steps_are_timed_until_two_in_a_row_pay_or_the_pool_ends() {
    let times = |device: Device, grid: &StepGrid| {
        let times = device.times(grid).into_iter();
        times.map(|step| format!("{}x{}", step.rows, step.context)).collect::<Vec<_>>().join(" ")
    };
    let device = Device { dense: 36.0, fixed: 0.3, each: 6.0 };
    insta::assert_snapshot!(times(device, &GRID), @"1x1024 1x2048 1x4096 1x8192 1x16384 1x32768 8x1024 8x2048 8x4096 32x1024 32x2048");
    let small = StepGrid { sequences: 8, pool_tokens: 20_000, ..GRID };
    insta::assert_snapshot!(times(device, &small), @"1x1024 1x2048 1x4096 1x8192 1x16384 8x1024 8x2048");
    // A software driver: no step is timed after one that takes long.
    let software = Device { dense: 100_000.0, fixed: 30.0, each: 90_000.0 };
    insta::assert_snapshot!(times(software, &GRID), @"1x1024 1x2048 1x4096 8x1024 32x1024");
    // Nothing to time where the policy drops nothing.
    let idle = StepGrid { shortest: 9000, longest: 8192, ..GRID };
    assert_eq!(idle.next(&[]), None);
    assert_eq!(idle.crossing(&[]), Crossing::never());
    let between = StepGrid { shortest: 9000, longest: 12_000, ..GRID };
    assert_eq!(between.next(&[]), Some((1, 12_000)));
    assert_eq!(between.crossing(&[]), Crossing::default());
}

#[test]
fn sequences_select_where_as_many_as_pay_do() {
    let step = |rows, tokens| CrossingRow { rows, tokens };
    let crossing = Crossing { steps: vec![step(1, Some(9000)), step(8, Some(3000)), step(32, None)] };
    let least = |lengths: &[u32]| crossing.least(lengths.iter().copied());
    assert_eq!(
        [least(&[]), least(&[8999]), least(&[9000]), least(&[100, 9000])],
        [u32::MAX, u32::MAX, 9000, 9000]
    );
    assert_eq!([least(&[4000; 7]), least(&[4000; 8]), least(&[4000; 31])], [u32::MAX, 3000, 3000]);
    assert_eq!(least(&[20_000; 32]), u32::MAX);
    assert_eq!(Crossing::default().least([1].into_iter()), 0);
    assert_eq!(Crossing::never().least([1 << 20].into_iter()), u32::MAX);
}

/// Returns the gain at a length, interpolated between the timed ones.
fn gain(known: &[StepTimes], length: u32) -> f64 {
    let at = known.partition_point(|step| step.context <= length).clamp(1, known.len() - 1);
    let [from, to] = [known[at - 1], known[at]];
    let share = (f64::from(length) - f64::from(from.context)) / f64::from(to.context - from.context);
    from.gain() + share * (to.gain() - from.gain())
}

proptest! {
    /// Computes the crossing from the longest length down: it is the first length below which selection does not pay.
    #[test]
    fn no_length_from_the_crossing_on_loses(
        pairs in prop::collection::vec((1_u64..5000, 1_u64..5000), 2..5),
        beyond in 0_u32..3000,
    ) {
        let times: Vec<StepTimes> = (9..).zip(&pairs).map(|(power, (dense, selecting))| StepTimes {
            rows: 1,
            context: 1 << power,
            dense: Duration::from_micros(*dense),
            selecting: Duration::from_micros(*selecting),
        }).collect();
        let last = times.last().unwrap().context;
        let grid = StepGrid::new(500, (last + beyond).min(2 * last - 1), 1, 1 << 20);
        let pays = |length: &u32| gain(&times, *length) >= 0.0;
        let oracle = (512..=grid.longest).rev().take_while(pays).last();
        let found = grid.crossing(&times).steps[0].tokens;
        // Beyond the last timed one a gain that falls is not followed: longer contexts lose no more than it says.
        let pays_at_last = times.last().unwrap().pays();
        match (oracle, found) {
            (Some(oracle), Some(found)) => prop_assert!(found >= oracle && found < oracle + ROUND, "{found} for {oracle}"),
            (None, Some(_)) => prop_assert!(pays_at_last),
            (Some(_), None) => prop_assert!(false, "nothing found, {oracle:?}"),
            (None, None) => {}
        }
    }

    /// On devices whose gain grows evenly, skipped steps change nothing.
    #[test]
    fn steps_that_are_left_out_change_nothing(dense in 10.0..100.0, share in 0.01..0.9, fixed in 0.001..5.0) {
        let device = Device { dense, fixed, each: dense * share };
        let rows = GRID.rows().flat_map(|rows| GRID.contexts(rows).map(move |context| (rows, context)));
        let all: Vec<StepTimes> = rows.map(|step| device.time(step)).collect();
        prop_assert_eq!(GRID.crossing(&device.times(&GRID)), GRID.crossing(&all));
    }

    /// Every selecting row is in a batch of selecting rows for which selection was measured to pay.
    #[test]
    fn rows_that_select_are_enough(
        tokens in prop::collection::vec(prop::option::of(1_u32..100), 1..4),
        lengths in prop::collection::vec(1_u32..100, 0..40),
    ) {
        let steps: Vec<CrossingRow> = ROWS.into_iter().zip(tokens).map(|(rows, tokens)| CrossingRow { rows, tokens }).collect();
        let least = Crossing { steps: steps.clone() }.least(lengths.iter().copied());
        let count = |least: u32| lengths.iter().filter(|len| **len >= least).count();
        let of = |count: usize| steps.iter().rev().find(|step| step.rows as usize <= count);
        let pays = |least: u32| of(count(least)).is_some_and(|step| step.tokens.is_some_and(|tokens| tokens <= least));
        // The shortest length of any step at which the rows from it on are of that step.
        let oracle = steps.iter().filter_map(|step| step.tokens.filter(|tokens| {
            of(count(*tokens)).is_some_and(|of| of.rows == step.rows)
        })).min();
        prop_assert_eq!(least, oracle.unwrap_or(u32::MAX));
        prop_assert!(least == u32::MAX || pays(least));
    }
}
