use proptest::prelude::*;

use super::*;

const US: Duration = Duration::from_micros(1);

/// Returns the times of a contest, given the microseconds of its kernels at a size.
fn take(contest: Contest, us: impl Fn(u32) -> [u32; 2]) -> ContestTimes {
    let time = |product: TimedProduct| {
        let [earlier, later] = us(product.size);
        Ok::<_, ()>(Some(US * if product.later { later } else { earlier }))
    };
    ContestTimes::take(contest, time).unwrap()
}

fn decided(contest: Contest, us: impl Fn(u32) -> [u32; 2]) -> String {
    let taken = take(contest, us);
    let last = taken.times.last().map_or(0, |times| times.size);
    let decided = Crossings::of(std::slice::from_ref(&taken));
    match decided {
        Ok(_) => format!("{:?}, timed up to {last}", taken.crossing()),
        Err(absurd) => absurd.to_string(),
    }
}

#[test]
fn decisions_of_made_up_times() {
    // Lanes take as long as they have rows, tiles as long whatever they have.
    let lanes = |tile: u32| move |rows: u32| [10 * rows, tile];
    let at = |sizes: &'static [u32]| move |size| [100, if sizes.contains(&size) { 50 } else { 100 }];
    let cases = [
        ("tiles of 85 us", decided(Contest::FewRows, lanes(85))),
        ("tiles of 15 us", decided(Contest::FewRows, lanes(15))),
        ("tiles of 500 us", decided(Contest::FewRows, lanes(500))),
        ("tiles of 635 us", decided(Contest::FewRows, lanes(635))),
        ("tiles of 700 us", decided(Contest::FewRows, lanes(700))),
        ("equal times", decided(Contest::CodedRows, |_| [100, 100])),
        ("4 percent", decided(Contest::CodedRows, |_| [100, 96])),
        ("5 percent", decided(Contest::CodedRows, |_| [100, 95])),
        ("once at 4 rows", decided(Contest::CodedRows, at(&[4]))),
        ("at 4 rows, from 8 on", decided(Contest::CodedRows, at(&[4, 8, 12]))),
        ("only at 64 rows", decided(Contest::CodedRows, at(&[64]))),
        ("slow", decided(Contest::CodedRows, |rows| [40_000 * rows, 70_000])),
        ("tiles from 64 on", decided(Contest::PlainTiles, at(&[64, 96]))),
        ("tiles at once", decided(Contest::PlainTiles, |_| [100, 50])),
        ("tiles never", decided(Contest::PlainTiles, |_| [50, 100])),
        ("no time at 6 rows", decided(Contest::FewRows, |rows| [100, if rows == 6 { 0 } else { 100 }])),
        ("seconds", decided(Contest::FewRows, |_| [10_000_001, 10_000_000])),
        ("far apart", decided(Contest::FewRows, |_| [1, 1001])),
    ];
    let lines = cases.map(|(name, decided)| format!("{name}: {decided}"));
    insta::assert_snapshot!(lines.join("\n"), @"
    tiles of 85 us: Some(8), timed up to 16
    tiles of 15 us: Some(1), timed up to 3
    tiles of 500 us: None, timed up to 64
    tiles of 635 us: None, timed up to 64
    tiles of 700 us: Some(64), timed up to 64
    equal times: None, timed up to 64
    4 percent: None, timed up to 64
    5 percent: Some(1), timed up to 3
    once at 4 rows: None, timed up to 64
    at 4 rows, from 8 on: Some(6), timed up to 12
    only at 64 rows: None, timed up to 64
    slow: None, timed up to 2
    tiles from 64 on: Some(64), timed up to 96
    tiles at once: Some(16), timed up to 32
    tiles never: Some(512), timed up to 512
    no time at 6 rows: f32 by lanes : tiles took 100µs : 0ns at size 6: times are above 0, at most 10s and a factor of 1000 apart
    seconds: f32 by lanes : tiles took 10.000001s : 10s at size 2: times are above 0, at most 10s and a factor of 1000 apart
    far apart: f32 by lanes : tiles took 1µs : 1.001ms at size 2: times are above 0, at most 10s and a factor of 1000 apart
    ");
}

#[test]
fn crossings_replace_what_they_decide() {
    let of = |few_rows| take(Contest::FewRows, move |rows| [rows, few_rows]);
    let tiles = |contest, from| take(contest, move |tiles| [100, if tiles < from { 200 } else { 50 }]);
    let [plain, coded] = [tiles(Contest::PlainTiles, 64), tiles(Contest::CodedTiles, 96)];
    let both = Crossings::of(&[of(20), plain.clone(), coded]).unwrap();
    let one = Crossings::of(&[plain]).unwrap();
    assert_eq!(both.apply(Tuning::H200), Tuning::H200.rows(4, 8, 16).plain_tiles(96));
    assert_eq!(one.apply(Tuning::H200), Tuning::H200);
    let all = Crossings { coded_rows: Some(4), few_coded_rows: Some(8), ..both };
    insta::assert_snapshot!([both, one, all].map(|crossings| crossings.to_string()).join("\n"), @"
    lanes of f32 up to 16, large tiles from 96 on, measured
    of an H200: the times of this device decide nothing
    codes up to 4 rows, lanes of codes up to 8, lanes of f32 up to 16, large tiles from 96 on, measured
    ");
    insta::assert_snapshot!(of(3), @"f32 by lanes : tiles, us: 2 rows 2.0 : 3.0, 3 rows 3.0 : 3.0, 4 rows 4.0 : 3.0, 6 rows 6.0 : 3.0");
}

#[test]
fn no_time_left_leaves_what_is_not_decided() {
    let mut left = 30;
    let time = |product: TimedProduct| {
        left -= 1;
        Ok::<_, ()>((left > 0).then_some(if product.later { 5 * US } else { US }))
    };
    let taken = ContestTimes::take(Contest::FewRows, time).unwrap();
    assert_eq!((taken.times.len(), taken.crossing()), (7, None));
    assert_eq!(ContestTimes::take(Contest::FewRows, |_| Err("lost")), Err("lost"));
}

proptest! {
    /// For any times, decisions stay within the sizes that are timed.
    #[test]
    fn crossings_stay_inside(times in prop::collection::vec([1..100_000_u32, 1..100_000], 11)) {
        for contest in Contest::ALL {
            let sizes = contest.sizes();
            let at = |size| times[sizes.iter().position(|of| *of == size).unwrap()];
            if let Some(crossing) = take(contest, at).crossing() {
                let least = if contest.counts_rows() { 1 } else { sizes[0] };
                prop_assert!((least..=sizes[sizes.len() - 1]).contains(&crossing), "{contest}: {crossing}");
            }
        }
    }

    /// If the later kernel gets faster, the crossing does not move up.
    #[test]
    fn crossings_are_monotone(
        times in prop::collection::vec([1..1000_u32, 1..1000], 11),
        percent in 1..100_u32,
    ) {
        for contest in Contest::ALL {
            let at = |size| times[contest.sizes().iter().position(|of| *of == size).unwrap()];
            let faster = |size| { let [earlier, later] = at(size); [earlier * 100, later * percent] };
            let slower = |size| at(size).map(|time| time * 100);
            if let [Some(faster), Some(slower)] = [take(contest, faster).crossing(), take(contest, slower).crossing()] {
                prop_assert!(faster <= slower, "{contest}: {faster} > {slower}");
            }
        }
    }

    /// Noise below the margin decides nothing between equal kernels, and moves no crossing that is clear by more than one size.
    #[test]
    fn noise_moves_no_crossing(
        noise in prop::collection::vec([980..1020_u32, 980..1020], 11),
        crossing in 0..9_usize,
    ) {
        for contest in Contest::ALL {
            let index = |size| contest.sizes().iter().position(|of| *of == size).unwrap();
            prop_assert_eq!(take(contest, |size| noise[index(size)]).crossing(), None);
            let clear = |size| {
                let ([earlier, later], before) = (noise[index(size)], index(size) < crossing);
                [earlier * if before { 9 } else { 10 }, later * if before { 10 } else { 9 }]
            };
            let exact = |size| if index(size) < crossing { [9, 10] } else { [10, 9] };
            prop_assert_eq!(take(contest, clear).crossing(), take(contest, exact).crossing());
        }
    }
}
