//! Crossings of products measured on the adapter that is there, as on a GPU: which they are is the machine's business.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use attn_kernels::gpu::{Checks, Gpu, GpuOptions};
use attn_kernels::profile::Tuning;
use models::tuning::{Contest, ContestTimes, Crossings, Rig, Shapes, TimedProduct};

/// Both tests run the same kernels, which a software driver compiles for seconds.
static RIG: LazyLock<Mutex<Rig>> = LazyLock::new(|| {
    // Matrices run without bounds checks alone.
    let gpu = Gpu::open(&GpuOptions::new(Checks::Off).software(false)).expect("GPU tests need an adapter");
    Mutex::new(Rig::new(&Arc::new(gpu), Shapes::TINY).unwrap())
});

/// Results of both kernels of a contest, at the first `sizes` of its sizes.
fn results(rig: &mut Rig, contest: Contest, sizes: usize) -> Vec<[Vec<f32>; 2]> {
    let mut products: Vec<TimedProduct> = Vec::new();
    let record = |product| {
        products.push(product);
        Ok::<_, ()>(Some(Duration::from_millis(1)))
    };
    ContestTimes::take(contest, record).unwrap();
    // Those of a size come one after the other, in two rounds.
    let mut of = |product: &TimedProduct| rig.results(*product).unwrap();
    products.chunks_exact(4).take(sizes).map(|round| [of(&round[0]), of(&round[1])]).collect()
}

/// So that times may decide between them, whoever asks for the same bits.
#[test]
fn kernels_between_which_times_decide_give_the_same_bits() {
    let mut rig = RIG.lock().unwrap();
    for contest in [Contest::FewCodedRows, Contest::FewRows, Contest::PlainTiles, Contest::CodedTiles] {
        for [earlier, later] in results(&mut rig, contest, 4) {
            assert!(earlier.iter().any(|y| *y != 0.0), "{contest}");
            assert_eq!(earlier, later, "{contest}");
        }
    }
}

#[test]
fn a_device_is_measured() {
    let measured = RIG.lock().unwrap().measure().unwrap();
    let timed: HashMap<Contest, usize> = measured.iter().map(|of| (of.contest, of.times.len())).collect();
    for contest in [Contest::FewCodedRows, Contest::FewRows] {
        assert!(timed[&contest] >= 1, "{timed:?}");
    }
    let times = measured.iter().flat_map(|of| &of.times);
    assert!(times.clone().all(|times| !times.earlier.is_zero() && !times.later.is_zero()), "{measured:?}");
    let tuning = Crossings::of(&measured).unwrap().apply(Tuning::H200);
    let rows = [tuning.coded_rows, tuning.few_coded_rows, tuning.few_rows];
    assert!(rows.iter().all(|rows| (1..=64).contains(rows)), "{tuning:?}");
}
