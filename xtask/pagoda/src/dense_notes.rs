//! Notes about phases and lengths that stay dense with a policy, whatever the tensors.

use models::SparseOptions;
use models::batch::Phase;
use sparse_select::Policy;

use crate::Note;

/// Returns a note for each phase in which a policy keeps every block, regardless of the tensors.
pub(crate) fn of(options: &SparseOptions, longest: u64) -> Vec<Note> {
    let keeps_all = |policy: &dyn Policy| {
        let (policy, dense_below_tokens) = (policy.name(), policy.whole_below());
        let whole = usize::try_from(longest).is_ok_and(|longest| longest < dense_below_tokens);
        whole.then_some(Note::KeepsAll { policy, dense_below_tokens, longest })
    };
    let whole: Vec<Note> = match options.policy.phases() {
        // Who asks for `full` in a phase knows.
        Some(of) => of.iter().filter(|of| of.name() != "full").filter_map(|of| keeps_all(&**of)).collect(),
        None => keeps_all(&*options.policy).into_iter().collect(),
    };
    if !whole.is_empty() {
        return whole;
    }
    let phases = [(Phase::Prefill, "prefill"), (Phase::Decode, "decode")];
    let dense = phases.iter().filter(|(phase, _)| !options.acts_on(*phase));
    dense.map(|(_, phase)| Note::DensePhase { policy: options.policy.name(), phase }).collect()
}

#[cfg(test)]
mod tests {
    use models::SelectionPlace;
    use sparse_select::Registry;

    use super::*;

    #[test]
    fn phases_and_lengths_that_stay_dense_are_told() {
        let registry = Registry::builtin();
        let of = |spec: &str, longest| {
            let policy = registry.build(&spec.parse().unwrap()).unwrap().into();
            let options = SparseOptions::new(policy, SelectionPlace::Device);
            super::of(&options, longest).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let others = registry.entries().iter().filter(|entry| entry.name != "full");
        let notes: Vec<String> = others.flat_map(|entry| of(entry.name, 100_000)).collect();
        insta::assert_snapshot!(notes.join("\n"), @"
        sparse: gsa-ucm selects nothing in prefill, which stays dense
        sparse: esa selects nothing in prefill, which stays dense
        sparse: kvstar selects nothing in prefill, which stays dense
        sparse: kvcomp selects nothing in prefill, which stays dense
        sparse: xattn selects nothing in decode, which stays dense
        sparse: xattn-bsa selects nothing in decode, which stays dense
        sparse: flashprefill selects nothing in decode, which stays dense
        sparse: skip-softmax selects nothing in decode, which stays dense
        sparse: quest selects nothing in prefill, which stays dense
        sparse: dsa selects nothing in prefill, which stays dense
        sparse: nsa selects nothing in prefill, which stays dense
        ");
        // Of what a budget has room for, nothing is dropped.
        let notes = [
            ("gsa-ucm:seg_prefill_threshold=0", 4000),
            ("gsa-ucm:min_topk=128,max_topk=128", 16_000),
            ("gsa:init_window_sz=8,local_window_sz=8", 256),
            ("esa:local_window_sz=31", 512),
            ("quest:page_budget=64", 1024),
            ("streaming+quest:page_budget=64", 1024),
            ("streaming:recent=63+gsa:sparse_ratio=1", 1024),
        ];
        let notes: Vec<String> = notes.into_iter().flat_map(|(spec, longest)| of(spec, longest)).collect();
        insta::assert_snapshot!(notes.join("\n"), @"
        sparse: gsa-ucm keeps everything below 4224 tokens, and none here has more than 4000
        sparse: gsa-ucm keeps everything below 16512 tokens, and none here has more than 16000
        sparse: gsa keeps everything below 257 tokens, and none here has more than 256
        sparse: esa keeps everything below 513 tokens, and none here has more than 512
        sparse: quest keeps everything below 1025 tokens, and none here has more than 1024
        sparse: quest keeps everything below 1025 tokens, and none here has more than 1024
        sparse: streaming keeps everything below 1025 tokens, and none here has more than 1024
        sparse: gsa keeps everything at any length
        ");
        insta::assert_snapshot!(of("gsa-ucm", 4000)[0], @"sparse: gsa-ucm keeps everything below 8401 tokens, and none here has more than 4000");
    }
}
