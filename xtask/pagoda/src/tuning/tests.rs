use std::sync::Mutex;

use attn_kernels::gpu::Checks;

use super::*;

fn of(measured: Result<Crossings, String>) -> Measurement {
    Measurement { kept: KeptTuning::of(measured), times: Vec::new(), seconds: 0.0 }
}

fn crossings() -> Crossings {
    let mut crossings = Crossings::default();
    (crossings.few_rows, crossings.coded_rows) = (Some(12), Some(6));
    crossings
}

/// Needs an adapter, which stands for a GPU; `ATTN_GPU=skip` skips it.
#[test]
fn an_adapter_is_measured_once() {
    if std::env::var_os("ATTN_GPU").is_some_and(|value| value == "skip") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = Arc::clone(&told);
    let notes = Notes::to(move |note| telling.lock().unwrap().push(note.to_string()));
    let told = || std::mem::take(&mut *told.lock().unwrap());
    let options = GpuOptions::new(Checks::Off).software(false);
    let tuned = |options: &GpuOptions, mut known: Verdicts, measured: Option<Result<Crossings, String>>| {
        let gpu = Gpu::open(options).unwrap();
        let measure = |_: &GpuOptions, _: Option<&Verdict>| of(measured.expect("nothing is to be measured"));
        super::tuned(gpu, options, &mut known, &notes, measure).profile().tuning
    };
    let kept = || Verdicts::at(folder.path());

    assert_eq!(tuned(&options, Verdicts::default(), None), Tuning::H200);
    assert_eq!(tuned(&options.clone().software(true), kept(), None), Tuning::H200);
    let own = Tuning::H200.plain_tiles(1);
    assert_eq!(tuned(&options.clone().tuning(own), kept(), None), own);
    assert_eq!(told(), [""; 0]);

    let measured = Tuning::H200.rows(6, 8, 12);
    assert_eq!(tuned(&options, kept(), Some(Ok(crossings()))), measured);
    assert!(told()[0].ends_with("codes up to 6 rows, lanes of f32 up to 12, measured"));
    assert_eq!(tuned(&options, kept(), None), measured);

    // Other kernels have other times.
    let info = Gpu::open(&options).unwrap().info().clone();
    let mut known = kept();
    known.put_tuning(&info, KeptTuning { kernels: "0".into(), ..KeptTuning::of(Ok(crossings())) });
    assert_eq!(known.tuning(&info), None);
    assert_eq!(tuned(&options, known, Some(Err("the device was lost".into()))), Tuning::H200);
    assert!(told()[0].ends_with("of an H200, not measured: the device was lost"));
    assert_eq!(tuned(&options, kept(), None), Tuning::H200);
    assert_eq!(told(), [""; 0]);
}

/// A missing adapter stands for one that fails.
#[test]
fn a_measurement_that_fails_is_no_error() {
    let options = GpuOptions::new(Checks::Off).device(Some("no such adapter".into()));
    let failed = measure(&options, None).kept;
    assert_eq!(failed.crossings, Crossings::default());
    assert!(failed.to_string().starts_with("of an H200, not measured: no "), "{failed}");
}
