//! Decode steps of a policy attend densely below the lengths at which selecting pays, by the times of an injected clock.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagoda::{
    Demand, Engine, EngineOptions, Error, KvDtype, Note, Notes, Phase, Registry, Sparse, Stopwatch,
};

use super::{model, request, run};

/// Notes of an engine and steps that were timed.
#[derive(Clone, Default)]
struct Told {
    notes: Arc<Mutex<Vec<String>>>,
    timed: Arc<Mutex<Vec<String>>>,
}

impl Told {
    /// Options of an engine with a policy, whose selecting steps take `fixed` microseconds more than dense ones, and 0.4 in place
    /// of 1 for each token.
    fn options(&self, spec: &str, fixed: u32) -> EngineOptions {
        let sparse = Sparse::new(&Registry::builtin(), &spec.parse().unwrap()).unwrap();
        let Self { notes, timed } = self.clone();
        let receive = move |note: &Note| {
            if let Note::Crossing { .. } = note {
                notes.lock().unwrap().push(note.to_string());
            }
        };
        let times = move |step: pagoda::TimedStep| {
            let mut tokens = f64::from(step.rows * step.context);
            let mut chunk = "";
            if step.phase == Phase::Prefill {
                // Of a chunk each row attends to all tokens.
                (tokens, chunk) = (tokens / 64.0, "chunk ");
            }
            let micros =
                if step.selecting { 1000.0 + f64::from(fixed) + 0.4 * tokens } else { 1000.0 + tokens };
            timed.lock().unwrap().push(format!("{chunk}{}x{}", step.rows, step.context));
            Duration::from_secs_f64(micros / 1e6)
        };
        EngineOptions::new()
            .kv_dtype(KvDtype::F32)
            .chunk(256)
            .demand(Demand::new(8, 16_384).longest(1024))
            .sparse(sparse)
            .notes(Notes::to(receive))
            .stopwatch(Stopwatch::of(times))
    }

    fn engine(&self, spec: &str, fixed: u32) -> Engine {
        Engine::open(model(), self.options(spec, fixed)).unwrap()
    }

    /// The steps that were timed, each once.
    fn timed(&self) -> String {
        let mut timed = self.timed.lock().unwrap().clone();
        timed.dedup();
        timed.join(" ")
    }

    fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap().clone()
    }
}

const QUEST: &str = "quest:page_budget=4,dense_layers=0";

/// Density of requests of so many prompt and output tokens, and what usage says.
fn served(engine: &mut Engine, lengths: &[(usize, u32)]) -> Vec<(f64, String, Vec<u32>)> {
    let requests: Vec<_> =
        (0..).zip(lengths).map(|(seed, (prompt, output))| request(seed, *prompt, *output)).collect();
    let ends = run(engine, &requests).into_iter();
    ends.map(|end| (end.usage.sparse.density, end.usage.sparse.to_string(), end.output)).collect()
}

#[test]
fn rows_below_the_crossing_are_dense_and_others_select() {
    let told = Told::default();
    let mut engine = told.engine(QUEST, 300);
    insta::assert_snapshot!(told.timed(), @"1x256 1x512 1x1024 8x256 8x512");
    insta::assert_snapshot!(told.notes().join("\n"), @"sparse: decode with quest:page_budget=4,dense_layers=0 is dense below 768 tokens, below 256 from 8 sequences on, where selecting takes longer on this device; min_tokens=0 selects all the same");
    let short = served(&mut engine, &[(100, 30)]);
    assert_eq!(short[0].0, 1.0);
    insta::assert_snapshot!(short[0].1, @"quest:page_budget=4,dense_layers=0: density 1.000, dense below 768 tokens");
    // The second half of its steps comes after the crossing.
    let long = served(&mut engine, &[(748, 40)]);
    assert!(long[0].0 < 0.6, "density {}", long[0].0);
    // Eight are enough at a third of it, as long as all of them decode.
    let many = served(&mut engine, &[(300, 60); 8]);
    assert!(many.iter().all(|(density, ..)| *density < 0.5), "{many:?}");
    let few = served(&mut engine, &[(300, 10); 7]);
    assert!(few.iter().all(|(density, ..)| *density == 1.0), "{few:?}");
    assert_eq!(told.notes().len(), 1, "said once");

    let mut dense = told.options(QUEST, 300);
    dense.sparse = None;
    let mut dense = Engine::open(model(), dense).unwrap();
    assert_eq!(served(&mut dense, &[(100, 30)])[0].2, short[0].2);
}

/// Acts in both phases.
const WINDOW: &str = "streaming:sink=1,recent=2,block_size=16";

#[test]
fn chunks_below_their_crossing_are_dense_and_others_select() {
    let told = Told::default();
    let mut engine = told.engine(WINDOW, 1000);
    insta::assert_snapshot!(told.timed(), @"chunk 32x32 chunk 32x256 chunk 32x512 chunk 32x1024 chunk 256x256 chunk 256x512 chunk 256x1024 1x256 1x512 1x1024 8x256 8x512");
    insta::assert_snapshot!(told.notes().join("\n"), @"sparse: decode with streaming:sink=1,recent=2,block_size=16 is dense at any length, below 256 from 8 sequences on, and prefill is dense below 512 tokens, at any length in chunks of fewer than 256, where selecting takes longer on this device; min_tokens=0 selects all the same");
    let prompts = served(&mut engine, &[(400, 1), (900, 1)]);
    insta::assert_snapshot!(prompts[0].1, @"streaming:sink=1,recent=2,block_size=16: density 1.000, dense at any length, prefill dense below 512 tokens");
    assert!(prompts[0].0 == 1.0 && prompts[1].0 < 1.0, "{prompts:?}");
    assert_eq!(told.notes().len(), 1, "said once");
    // In its own phase.
    let told = Told::default();
    told.engine("xattn:block_size=16,stride=4", 60_000);
    insta::assert_snapshot!(told.notes().join("\n"), @"sparse: prefill with xattn:block_size=16,stride=4 is dense at any length up to 1024 tokens, where selecting takes longer on this device; min_tokens=0 selects all the same");
    told.engine(&format!("{WINDOW},min_tokens=0+{QUEST},block_size=16"), 300);
    insta::assert_snapshot!(told.notes()[1], @"sparse: decode with streaming:sink=1,recent=2,block_size=16,min_tokens=0+quest:page_budget=4,dense_layers=0,block_size=16 is dense below 768 tokens, below 256 from 8 sequences on, where selecting takes longer on this device; min_tokens=0 selects all the same");
}

/// Nothing is timed on a software driver, as tests have.
#[test]
fn chunks_of_less_than_a_query_block_are_dense_on_software_drivers() {
    let spec = "xattn:block_size=16,stride=4,threshold=0.3";
    let told = Told::default();
    let opened = |spec: &str, chunk: u32| {
        let options = told.options(spec, 0).stopwatch(Stopwatch::default()).chunk(chunk);
        Engine::open(model(), options).unwrap()
    };
    let density = |spec: &str, chunk| served(&mut opened(spec, chunk), &[(400, 1)])[0].0;
    let densities = [density(spec, 15), density(spec, 16), density(&format!("{spec},min_tokens=0"), 15)];
    assert!(densities[0] == 1.0 && densities[1] < 0.9 && densities[2] < 0.9, "{densities:?}");
    assert_eq!(told.timed(), "");
    insta::assert_snapshot!(told.notes()[0], @"sparse: prefill with xattn:block_size=16,stride=4,threshold=0.3 is dense in chunks of fewer than 16, where selecting takes longer on this device; min_tokens=0 selects all the same");
    assert_eq!(told.notes().len(), 2, "not said of what was asked for");
}

#[test]
fn a_policy_that_never_pays_is_dense() {
    let told = Told::default();
    let mut engine = told.engine(QUEST, 60_000);
    insta::assert_snapshot!(told.notes().join("\n"), @"sparse: decode with quest:page_budget=4,dense_layers=0 is dense at any length up to 1024 tokens, where selecting takes longer on this device; min_tokens=0 selects all the same");
    let long = served(&mut engine, &[(748, 40)]);
    assert_eq!(long[0].0, 1.0);
    insta::assert_snapshot!(long[0].1, @"quest:page_budget=4,dense_layers=0: density 1.000, dense at any length");
}

/// Contexts that fit budgets are dense because nothing is dropped, whatever takes longer.
#[test]
fn a_budget_larger_than_the_context_is_not_told_as_a_matter_of_time() {
    for spec in [
        "quest:page_budget=64,dense_layers=0,block_size=16",
        "gsa-ucm:seg_prefill_threshold=0,block_size=16",
        "gsa:scoring=mean_k,min_blocks=64,block_size=16",
        "esa:init_window_sz=30,local_window_sz=34,block_size=16",
        "streaming:block_size=16,min_tokens=0+quest:page_budget=64,dense_layers=0,block_size=16",
    ] {
        let told = Told::default();
        told.engine(spec, 60_000);
        assert_eq!(told.notes(), [""; 0], "{spec}");
        // One block fewer, and time is what decides.
        let fewer =
            spec.replace("=64", "=63").replace("=34", "=33").replace("threshold=0", "threshold=0,min_topk=7");
        let told = Told::default();
        told.engine(&fewer, 60_000);
        assert_eq!(told.notes().len(), 1, "{fewer}");
        assert!(told.notes()[0].contains("is dense at any length up to 1024 tokens"), "{:?}", told.notes());
    }
}

#[test]
fn lengths_that_are_given_are_not_timed() {
    let told = Told::default();
    let mut engine = told.engine(&format!("{QUEST},min_tokens=0"), 60_000);
    let short = served(&mut engine, &[(100, 30)]);
    assert!(short[0].0 < 1.0);
    insta::assert_snapshot!(short[0].1.split(", ").skip(1).collect::<Vec<_>>().join(", "), @"");
    let mut engine = told.engine(&format!("{QUEST},min_tokens=120"), 60_000);
    let around = served(&mut engine, &[(90, 20), (130, 20)]);
    assert!(around[0].0 == 1.0 && around[1].0 < 1.0, "{around:?}");
    told.engine(&format!("{WINDOW},min_tokens=0"), 60_000);
    told.engine(&format!("{WINDOW},min_tokens=0+{QUEST},block_size=16,min_tokens=64"), 60_000);
    // Nothing decides on bits but what was asked for.
    Engine::open(model(), told.options(QUEST, 0).reproducible(true)).unwrap();
    assert_eq!((told.timed(), told.notes()), (String::new(), Vec::new()));
}

#[test]
fn times_and_reproducible_results_exclude_each_other() {
    let options = Told::default().options(&format!("{QUEST},min_tokens=measured"), 0).reproducible(true);
    let refused = Engine::open(model(), options).unwrap_err();
    assert!(matches!(refused, Error::TimedReproducible { .. }));
    insta::assert_snapshot!(refused, @"sparse quest:page_budget=4,dense_layers=0,min_tokens=measured: min_tokens=measured lets times decide which steps select, and reproducible results depend on none");
}
