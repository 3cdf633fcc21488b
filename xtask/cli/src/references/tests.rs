use super::*;

fn right() -> Compared {
    Compared {
        model: "tiny-gpt-oss".into(),
        logits_f32: 1.3e-6,
        tokens: 800,
        preemptions: 5,
        cached_tokens: 640,
        median_f16: 4.2e-4,
        worst_f16: 1.1e-3,
        rows: 282,
        changed_rows: 3,
        ms: 1234.0,
        ..Compared::default()
    }
}

#[test]
fn rows_are_lines() {
    let far = Compared { logits_f32: 0.1, ..right() };
    let rounded = Compared { median_f16: 0.011, ..right() };
    let row = Compared { worst_f16: 0.2, ..right() };
    let other = Compared { wrong_tokens: 1, ..right() };
    let broken = Compared { fault: Some("no tensor lm_head.weight".into()), ..right() };
    let rows = [right(), far, rounded, row, other, broken].map(|row| row.to_string());
    insta::assert_snapshot!(rows.join("\n"), @r"
    tiny-gpt-oss                       right     1234 ms: logits 1.3e-6, tokens 800 of 800 (5 preemptions, 640 cached); f16 4.2e-4, at most 1.1e-3 before the 3 of 282 rows that chose others
    tiny-gpt-oss                       WRONG     1234 ms: logits 1.0e-1, tokens 800 of 800 (5 preemptions, 640 cached); f16 4.2e-4, at most 1.1e-3 before the 3 of 282 rows that chose others
    tiny-gpt-oss                       WRONG     1234 ms: logits 1.3e-6, tokens 800 of 800 (5 preemptions, 640 cached); f16 1.1e-2, at most 1.1e-3 before the 3 of 282 rows that chose others
    tiny-gpt-oss                       WRONG     1234 ms: logits 1.3e-6, tokens 800 of 800 (5 preemptions, 640 cached); f16 4.2e-4, at most 2.0e-1 before the 3 of 282 rows that chose others
    tiny-gpt-oss                       WRONG     1234 ms: logits 1.3e-6, tokens 799 of 800 (5 preemptions, 640 cached); f16 4.2e-4, at most 1.1e-3 before the 3 of 282 rows that chose others
    tiny-gpt-oss                       WRONG     1234 ms: no tensor lm_head.weight
    ");
}

#[test]
fn the_bars_are_those_of_the_reference() {
    assert!(Compared { logits_f32: F32_BAR, median_f16: F16_BAR, worst_f16: F16_BAR, ..right() }.is_right());
    assert!(!Compared { logits_f32: f64::INFINITY, ..right() }.is_right());
    assert_eq!(relative_l2(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
    assert!((relative_l2(&[3.0, 5.0], &[3.0, 4.0]) - 0.2).abs() < 1e-12);
    assert_eq!(relative_l2(&[f32::NAN, 4.0], &[3.0, 4.0]), f64::INFINITY);
}

#[test]
fn a_folder_without_references_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = run(folder.path(), "0").unwrap_err().to_string();
    assert!(error.ends_with("no folder in it has a golden.safetensors"), "{error}");
}
