//! The factory by name and role, and the hooks of both roles.

use sparse_select::{
    Input, Registry, SelectError, Spec,
    method::{
        LayerRequest, MethodRole, PrefetchOutcome, PrefetchWait, SparseMethod, StepRequest,
        create_sparse_method,
    },
};

use crate::tensors::Tensor;

fn method(spec: &str, role: MethodRole) -> SparseMethod {
    create_sparse_method(&Registry::builtin(), &spec.parse::<Spec>().unwrap(), role).unwrap()
}

#[test]
fn a_scheduler_counts_accesses_until_a_request_ends() {
    let mut m =
        method("GSA:block_size=4,init_window_sz=0,local_window_sz=0,min_blocks=1", MethodRole::Scheduler);
    let step = StepRequest { request: 7, num_computed_tokens: 39, num_scheduled_tokens: 1 };
    let draw = |m: &SparseMethod| m.build_sparse_meta(&[step]).unwrap()[0].1.to_string();
    insta::assert_snapshot!(draw(&m), @".......###");
    let mut early = sparse_select::Selection::new();
    early.begin(10, 1, 1);
    early.push_row([1, 2]);
    for _ in 0..2 {
        m.step_completed(7, &early).unwrap();
    }
    insta::assert_snapshot!(draw(&m), @".##......#");
    m.request_finished(7).unwrap();
    insta::assert_snapshot!(draw(&m), @".......###");
}

struct Arrives(PrefetchOutcome);

impl PrefetchWait for Arrives {
    fn wait(&mut self, request: u64) -> PrefetchOutcome {
        if request == 2 { self.0 } else { PrefetchOutcome::Ready }
    }
}

#[test]
fn a_worker_selects_between_begin_and_finished() {
    // Quest is dense in its first two layers.
    let mut m = method("quest:page_budget=2,block_size=4", MethodRole::Worker);
    m.register_kv_caches(&["layers.0", "layers.1", "layers.2"]).unwrap();
    let (q, k) = (Tensor::seeded(1, [2, 1, 4], 9), Tensor::seeded(2, [1, 24, 4], 9));
    let of = |request| LayerRequest { request, input: Input::decode(q.view(), k.view()), prefetching: true };
    let batch = [of(1), of(2)];
    for (layer, blocks) in [("layers.1", 6), ("layers.2", 2)] {
        m.attention_begin(layer, &batch).unwrap();
        let chosen: Vec<usize> = m.selections().iter().map(|s| s.row(0, 0).len()).collect();
        assert_eq!(chosen, [blocks; 2]);
        m.attention_finished(layer).unwrap();
        assert!(m.selections().is_empty());
    }
    m.set_prefetch(Box::new(Arrives(PrefetchOutcome::TimedOut))).unwrap();
    let late = m.attention_begin("layers.2", &batch).unwrap_err();
    assert_eq!(late.to_string(), "prefetch of request 2 timed out");
    assert!(m.selections().is_empty());
    m.attention_begin("layers.2", &batch[..1]).unwrap();
    let unknown = m.attention_finished("layers.3").unwrap_err();
    assert_eq!(unknown.to_string(), "layer layers.3 is not among the 3 registered KV caches");
}

#[test]
fn hooks_belong_to_one_role() {
    let mut m = method("full", MethodRole::Scheduler);
    assert_eq!(
        m.attention_begin("x", &[]).unwrap_err().to_string(),
        "attention_begin is a call for the worker role"
    );
    let m = method("full", MethodRole::Worker);
    let expected = SelectError::WrongRole { call: "build_sparse_meta", expected: "scheduler" };
    assert_eq!(m.build_sparse_meta(&[]).unwrap_err(), expected);
}

#[cfg(feature = "presets")]
#[test]
fn the_example_presets_build() {
    for text in [include_str!("../../presets/gsa.ron"), include_str!("../../presets/kvcomp.ron")] {
        let specs = sparse_select::presets::parse_presets(text).unwrap();
        assert_eq!(specs.len(), 1, "the command line takes files with one policy");
        Registry::builtin().build(&specs[0]).unwrap();
    }
}

#[cfg(feature = "presets")]
#[test]
fn presets_take_the_published_keys() {
    use sparse_select::presets::parse_presets;
    let published = r#"(ucm_sparse_config: {
        "GSA": {
            "sparse_ratio": 0.25, "local_window_sz": 2, "init_window_sz": 1, "min_blocks": 4,
            "prefetch_workers": 4, "max_pending_prefetch": 64, "prefetch_ahead": 2, "prefetch_cache_size": 1000,
            "head_dim": 128, "num_heads": 32, "block_size": 16,
        },
        "KVComp": { "must_select": [0, -2, -1], "representative": "mean" },
    })"#;
    let specs = parse_presets(published).unwrap();
    assert_eq!(specs[1].to_string(), "KVComp:must_select=0:-2:-1,representative=mean");
    assert!(specs[0].to_string().ends_with("prefetch_workers=4,sparse_ratio=0.25"));
    assert_eq!(specs[0].params.len(), 11);
    for spec in &specs {
        Registry::builtin().build(spec).unwrap();
    }
    let message = |text: &str| parse_presets(text).unwrap_err().to_string();
    insta::assert_snapshot!(message(r#"(ucm_sparse_config: {"ESA": {"min_blocks": {"a": 1}}})"#), @r#"ESA: key "min_blocks" of a preset must be a number, text, bool, or a list of them"#);
    insta::assert_snapshot!(message("(sparse: {})"), @"preset is not valid RON");
}
