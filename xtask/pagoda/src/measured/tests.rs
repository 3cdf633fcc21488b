use proptest::prelude::*;

use super::*;

fn limit(text: &str) -> LossLimit {
    text.parse().unwrap()
}

fn row(spec: &str, tokens: u32, loss: f64, speedup: f64) -> MeasuredPolicy {
    MeasuredPolicy { spec: spec.into(), tokens, loss, loss_error: 0.0, speedup }
}

#[test]
fn limits_are_percentages() {
    assert_eq!(limit("0.5%").share(), 0.005);
    for text in ["0.1%", "0.5%", "1%", "2.25%", "0%"] {
        assert_eq!(limit(text).to_string(), text);
    }
    let refused = |text: &str| text.parse::<LossLimit>().unwrap_err().to_string();
    insta::assert_snapshot!(refused("abc"), @r#"loss is "abc"; give a percentage of dense attention's likelihood, from 0% up, such as 0.5%"#);
    for text in ["0.5", "-1%", "", "%", "nan%", "inf%", "0.5%%", "half%"] {
        assert!(refused(text).contains(&format!("loss is {text:?}")), "{text}");
    }
}

#[test]
fn a_measurement_is_a_sentence() {
    let row = MeasuredPolicy { loss_error: 0.0005, ..row("quest:page_budget=205", 32_768, 0.0041, 1.71) };
    insta::assert_snapshot!(row, @"quest:page_budget=205: 1.7 times dense at 32,768 tokens, +0.41 ± 0.05 % loss");
}

#[test]
fn what_keeps_the_limit_at_one_length_may_break_it_at_another() {
    let rows = [
        row("gsa:sparse_ratio=0.1", 8192, 0.02, 1.1),
        row("gsa:sparse_ratio=0.1", 32_768, 0.001, 3.0),
        row("quest:page_budget=205", 32_768, 0.004, 1.7),
        row("streaming:recent=64", 8192, 0.0, 9.0),
        row("slow", 32_768, 0.0, 0.9),
    ];
    let taken = |text| fastest_within(&rows, limit(text)).map(|row| (&*row.spec, row.tokens));
    assert_eq!(taken("0.5%"), Some(("quest:page_budget=205", 32_768)));
    assert_eq!(taken("2%"), Some(("gsa:sparse_ratio=0.1", 32_768)));
    assert_eq!(taken("0.3%"), None);
    assert_eq!(fastest_within(&[], limit("1%")), None);
}

/// The error counts: a loss that may as well be above the limit is not within it.
#[test]
fn an_uncertain_loss_is_not_within_a_limit() {
    let rows = [MeasuredPolicy { loss_error: 0.002, ..row("quest", 4096, 0.004, 2.0) }];
    assert_eq!(fastest_within(&rows, limit("0.5%")), None);
    assert_eq!(fastest_within(&rows, limit("0.6%")), Some(&rows[0]));
}

fn any_rows() -> impl Strategy<Value = Vec<MeasuredPolicy>> {
    // Few values, so that lengths, losses and speeds often agree.
    let one = (0..6u32, 0..3u32, -2..8i32, 0..3u32, 0..8u32);
    let row = |(spec, length, loss, error, speed)| MeasuredPolicy {
        spec: format!("p{spec}"),
        tokens: 4096u32 << length,
        loss: f64::from(loss) / 1000.0,
        loss_error: f64::from(error) / 1000.0,
        speedup: 0.5 + f64::from(speed) / 4.0,
    };
    proptest::collection::vec(one.prop_map(row), 0..24)
}

proptest! {
    /// Compares the choice with every row that could replace it.
    #[test]
    fn the_choice_is_the_fastest_within_the_limit(rows in any_rows(), per_mille in 0..10u32) {
        let limit = LossLimit::new(f64::from(per_mille) / 1000.0).unwrap();
        let longest = rows.iter().map(|row| row.tokens).max().unwrap_or(0);
        let mut allowed: Vec<&MeasuredPolicy> = Vec::new();
        for candidate in rows.iter().filter(|row| row.tokens == longest && row.speedup > 1.0) {
            let mut within = true;
            for other in &rows {
                within &= other.spec != candidate.spec || other.loss + other.loss_error <= limit.share();
            }
            if within {
                allowed.push(candidate);
            }
        }
        match fastest_within(&rows, limit) {
            None => prop_assert!(allowed.is_empty()),
            Some(taken) => {
                prop_assert!(taken.loss_at_most() <= limit.share());
                prop_assert!(allowed.iter().all(|other| other.speedup <= taken.speedup));
                let ties = || allowed.iter().filter(|other| other.speedup == taken.speedup);
                prop_assert!(ties().all(|other| taken.loss_at_most() <= other.loss_at_most()));
            }
        }
    }

    /// Whatever the order of the rows.
    #[test]
    fn the_choice_does_not_depend_on_the_order((rows, turned) in any_rows().prop_flat_map(|rows| {
        let shuffled = Just(rows.clone()).prop_shuffle();
        (Just(rows), shuffled)
    })) {
        let limit = LossLimit::new(0.004).unwrap();
        let of = |rows: &[MeasuredPolicy]| {
            fastest_within(rows, limit).map(|row| (row.spec.clone(), row.speedup, row.loss_at_most()))
        };
        prop_assert_eq!(of(&rows), of(&turned));
    }

    #[test]
    fn a_higher_limit_never_slows_down(rows in any_rows(), per_mille in 0..10u32) {
        let speed = |limit: u32| {
            let limit = LossLimit::new(f64::from(limit) / 1000.0).unwrap();
            fastest_within(&rows, limit).map_or(1.0, |row| row.speedup)
        };
        prop_assert!(speed(per_mille) <= speed(per_mille + 1));
    }
}

#[test]
fn measurements_are_kept_by_all_that_moves_them() {
    let folder = tempfile::tempdir().unwrap();
    let info = wgpu::AdapterInfo::new(wgpu::DeviceType::Cpu, wgpu::Backend::Vulkan);
    let options = EngineOptions::default();
    let of = |fingerprint, options: &EngineOptions| key(fingerprint, &info, options);
    let measurement = Measurement {
        date: "2026-11-26".into(),
        text: "opticks".into(),
        policies: vec![row("quest", 4096, 0.004, 2.0)],
    };
    let mut kept = Measurements::at(folder.path());
    assert!(kept.damage().is_none());
    kept.put(of(1, &options), measurement.clone());
    kept.save().unwrap();
    let read = Measurements::at(folder.path());
    assert_eq!((read.get(&of(1, &options)), read.damage()), (Some(&measurement), None));
    let int8 = options.clone().kv_dtype(attn_kernels::kernel::KvDtype::Int8);
    let blocks = options.clone().block_size(32);
    for other in [of(2, &options), of(1, &int8), of(1, &blocks), of(1, &options.clone().coop(false))] {
        assert_eq!(read.get(&other), None, "{other}");
    }
}

#[test]
fn what_is_no_measurement_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let damage = |text: &str| {
        fs::write(folder.path().join(FILE), text).unwrap();
        let read = Measurements::at(folder.path());
        assert_eq!(read.get("a"), None);
        read.damage().map(|damage| damage.split_once("policies.json: ").unwrap().1.to_owned())
    };
    insta::assert_snapshot!(damage("7").unwrap(), @"invalid type: integer `7`, expected a map at line 1 column 1");
    insta::assert_snapshot!(damage("{\"a\": {\"date\": \"d\"").unwrap(), @"EOF while parsing an object at line 1 column 18");
    let entry = |speedup: &str| {
        format!(
            r#"{{"a": {{"date": "d", "text": "t", "policies": [{{"spec": "quest", "tokens": 1, "loss": 0.1, "loss_error": 0.1, "speedup": {speedup}}}]}}}}"#
        )
    };
    insta::assert_snapshot!(damage(&entry("-2.0")).unwrap(), @"1 of 1 entries hold numbers that nothing measures");
    assert!(damage(r#"{"a": {"date": "d", "text": "t", "policies": []}}"#).is_some());
    assert_eq!(damage("{}"), None);
}
