//! Policies that select in some steps alone: the steps in between keep what was selected, whoever else decodes.

use kvblock::BlockIdx;
use models::{Attended, SelectionPlace};

use super::invariance::assert_same;
use super::served::{Request, Served, serve};
use super::sparse::{long_prompt, run, sparse};
use super::tiny::tiny;
use crate::usual;

/// SPEC, its stride, and its tokens a block.
const STRIDES: [(&str, usize, u32); 5] = [
    ("esa:sparse_ratio=0.3,block_size=16", 5, 16),
    ("kvstar:sparse_ratio=0.2,block_size=16,init_window_sz=2", 8, 16),
    (
        "gsa-ucm:sparse_ratio=0.2,block_size=16,init_window_sz=0,min_topk=1,max_topk=100,seg_prefill_threshold=0",
        3,
        16,
    ),
    ("esa:sparse_ratio=0.3,block_size=16,layer_ratios=0.5:0.2:1,retrieval_stride=4", 4, 16),
    ("esa:sparse_ratio=0.3,block_size=8,query=previous", 5, 8),
];

/// Blocks that the first selecting layer and the last one attend in each step.
fn ends(served: &Served) -> Vec<[Vec<BlockIdx>; 2]> {
    let decodes = served.attended.iter().filter(|step| !step.selections.is_empty());
    let of_step = |step: &Attended| {
        [step.selections.first(), step.selections.last()].map(|of| of.unwrap().1.row_shared(0, 0).to_vec())
    };
    decodes.map(of_step).collect()
}

#[test]
fn steps_between_retrievals_keep_the_blocks_and_add_what_begins() {
    for (spec, stride, block) in STRIDES {
        let (host, device) =
            (run(&sparse(spec, SelectionPlace::Host)), run(&sparse(spec, SelectionPlace::Device)));
        assert_eq!(
            tiny().decoder(&sparse(spec, SelectionPlace::Device)).selects_on(),
            Some(SelectionPlace::Device),
            "{spec}"
        );
        assert_eq!(ends(&device), ends(&host), "{spec}");
        assert_same(spec, &device, &host);
        let layers =
            |served: &Served| served.attended.iter().map(|step| step.layers.clone()).collect::<Vec<_>>();
        assert_eq!(layers(&device), layers(&host), "{spec}");
        // 15 rows of 389 to 403 tokens; of query=previous the first has no query before it.
        let steps = ends(&device);
        let first = 389 + (15 - u32::try_from(steps.len()).unwrap());
        let mut differ = 0;
        for (step, pair) in (first + 1..).zip(steps.windows(2)) {
            let retrieves = ((step - first) as usize).is_multiple_of(stride);
            let begun = (step - 1).div_ceil(block)..step.div_ceil(block);
            for (before, after) in pair[0].iter().zip(&pair[1]) {
                let kept: Vec<BlockIdx> =
                    before.iter().copied().chain(begun.clone().map(BlockIdx::new)).collect();
                assert!(retrieves || *after == kept, "{spec}: {step} tokens: {before:?}, then {after:?}");
                differ += usize::from(retrieves && *after != kept);
            }
        }
        assert!(differ > 0, "{spec}: every retrieval found what there was");
        let each = format!("{spec},retrieval_stride=1").replace(&format!("retrieval_stride={stride},"), "");
        assert_ne!(run(&sparse(&each, SelectionPlace::Device)).bits(), device.bits(), "{spec}");
    }
}

/// Sequences that begin and end beside one another retrieve in steps of their own.
#[test]
fn company_changes_no_retrieval() {
    let ids = long_prompt();
    for &(spec, ..) in usual(2, &STRIDES) {
        for place in [SelectionPlace::Device, SelectionPlace::Host] {
            let options = sparse(spec, place);
            let requests = || {
                [(388, 400, 9), (300, 350, 4), (150, 170, 12), (300, 310, 9)]
                    .map(|(prefill, len, tokens)| Request { prefill, ..Request::new(&ids[..len], tokens) })
            };
            let together = serve(&mut tiny().decoder(&options), &requests(), 128);
            if place == SelectionPlace::Host {
                let device =
                    serve(&mut tiny().decoder(&sparse(spec, SelectionPlace::Device)), &requests(), 128);
                together.iter().zip(&device).for_each(|(host, device)| assert_same(spec, device, host));
                continue;
            }
            // Of more sequences than the decoder has seats for none would be; one after the other, seats are taken again.
            let mut decoder = tiny().decoder(&options);
            for (together, one) in together.iter().zip(requests()) {
                let alone = serve(&mut decoder, &[one], 128).remove(0);
                assert_same(spec, together, &alone);
            }
        }
    }
}

/// Steps of fewer sequences than a policy asks for attend to everything.
#[test]
fn few_sequences_stay_dense_where_a_policy_says_so() {
    let ids = long_prompt();
    let spec =
        "kvcomp:block_size=16,topk_tokens=96,sink=1,recent=2,length_threshold=96,concurrency_threshold=2";
    for place in [SelectionPlace::Device, SelectionPlace::Host] {
        let served = |spec: &str, tokens: &[usize]| {
            let requests: Vec<Request<'_>> =
                tokens.iter().map(|tokens| Request::new(&ids, *tokens)).collect();
            serve(&mut tiny().decoder(&sparse(spec, place)), &requests, 200)
        };
        let alone = served(spec, &[6]).remove(0);
        assert!(alone.attended.iter().all(|step| step.density() == 1.0), "{place:?}");
        // The other one's four steps, and then two more of one.
        let two = served(spec, &[7, 5]);
        let whole: Vec<bool> = two[0].attended.iter().map(|step| step.density() == 1.0).collect();
        assert_eq!(whole, [false, false, false, false, true, true], "{place:?}");
        let any = served(&spec.replace(",concurrency_threshold=2", ""), &[6]).remove(0);
        assert!(any.attended.iter().all(|step| step.density() < 1.0), "{place:?}");
    }
}
