//! Prompts that start only when the pool has room for all of them.

use crate::{engine, options, request, run};

/// Seven blocks of 16 tokens, for two prompts of 90 tokens in chunks of 32: six blocks each.
#[test]
fn a_prompt_waits_for_blocks_for_all_of_it() {
    let serve = |reserve: bool| {
        let mut options = options().chunk(32).reserve_full_input(reserve);
        options.kv_blocks = Some(8);
        let mut engine = engine(&options);
        let requests = [1, 2].map(|seed| request(seed, 90, 4));
        let outputs: Vec<_> = run(&mut engine, &requests).into_iter().map(|ended| ended.output).collect();
        (outputs, engine.scheduler().num_preemptions())
    };
    let (outputs, preemptions) = serve(true);
    assert_eq!(preemptions, 0);
    let (early, preemptions) = serve(false);
    assert!(preemptions > 0, "the second prompt starts with room for one chunk");
    assert_eq!(outputs, early);
}
