//! Selection by the queries of the step before: the queries that it should be, in company and alone.

use models::{Attended, SelectionPlace};

use super::invariance::assert_same;
use super::served::{Request, serve};
use super::sparse::{long_prompt, rows, run, sparse};
use super::tiny::tiny;
use crate::usual;

const PREVIOUS: [&str; 5] = [
    "quest:page_budget=6,dense_layers=0,block_size=16,query=previous",
    "gsa:scoring=mean_k,layer_ratios=0.3:0.5:0.2,block_size=16,query=previous",
    "gsa-ucm:sparse_ratio=0.2,block_size=16,init_window_sz=0,min_topk=1,seg_prefill_threshold=0,retrieval_stride=1,query=previous",
    "kvcomp:block_size=16,topk_tokens=96,sink=1,recent=2,length_threshold=96,query=previous,skip_layers=2",
    "nsa:kernel_size=8,kernel_stride=4,block_size=16,topk=6,window_size=0,query=previous",
];

/// The first layer's queries follow from tokens alone, so that those of a step are the same whatever is selected: they select in
/// the next step what they select in their own otherwise, until a block begins.
#[test]
fn queries_of_the_step_before_select_what_they_would_have_selected() {
    for spec in PREVIOUS {
        let (host, device) =
            (run(&sparse(spec, SelectionPlace::Host)), run(&sparse(spec, SelectionPlace::Device)));
        assert_eq!(rows(&device), rows(&host), "{spec}");
        assert_same(spec, &device, &host);
        assert!(device.attended.iter().all(|step| step.density() < 1.0 && step.mass.is_none()), "{spec}");
        let own = run(&sparse(&spec.replace(",query=previous", ""), SelectionPlace::Device));
        let first = |step: &Attended| {
            let heads = tiny().config.num_kv_heads as usize;
            let selection = &step.selections[0].1;
            (0..heads).map(|head| selection.row_shared(head, 0).to_vec()).collect::<Vec<_>>()
        };
        // Rows of 389 to 399 tokens have 25 blocks of which the last is not full, and all are of the prompt.
        for step in 1..11 {
            assert_eq!(first(&device.attended[step]), first(&own.attended[step - 1]), "{spec}, step {step}");
        }
        assert!((1..11).any(|step| first(&own.attended[step]) != first(&own.attended[step - 1])), "{spec}");
    }
}

/// Chunks of another prompt, sequences that come and go, and how many decode together change nothing: each row finds the query of
/// its own token before, where that is kept in place and where it is copied.
#[test]
fn queries_of_the_step_before_are_found_in_company() {
    let ids = long_prompt();
    for &spec in usual(3, &PREVIOUS) {
        let options = sparse(spec, SelectionPlace::Device);
        let requests = || {
            [(388, 400, 4), (300, 350, 6), (150, 170, 2)]
                .map(|(prefill, len, tokens)| Request { prefill, ..Request::new(&ids[..len], tokens) })
        };
        let alone = requests().map(|one| serve(&mut tiny().decoder(&options), &[one], 128).remove(0));
        let together = serve(&mut tiny().decoder(&options), &requests(), 128);
        for (together, alone) in together.iter().zip(&alone) {
            assert_same(spec, together, alone);
        }
    }
}
