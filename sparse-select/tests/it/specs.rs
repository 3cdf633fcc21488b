//! Spec texts: names, keys and values, and what the errors list.

use insta::assert_snapshot;
use sparse_select::{Heads, PrefetchSettings, Registry, build, select};

fn message(spec: &str) -> String {
    build(spec).map(|p| panic!("{spec} built {p:?}")).unwrap_err().to_string()
}

#[test]
fn every_policy_builds_from_its_name_and_each_of_its_defaults() {
    for entry in Registry::builtin().entries() {
        assert_eq!(build(entry.name).unwrap().name(), entry.name);
        for key in entry.keys {
            build(&format!("{}:{}={}", entry.name, key.name, key.default)).unwrap();
        }
    }
}

#[test]
fn errors_list_what_is_valid() {
    assert_snapshot!(message("streaming:sinks=1"), @r#"policy streaming has no key "sinks", valid keys: sink recent block_size dense_layers min_tokens query"#);
    assert_snapshot!(message("gsa:sparse_ratio=0"), @r#"gsa: sparse_ratio = "0" is not a number above 0 and at most 1"#);
    assert_snapshot!(message("streaming:sink=-1"), @r#"streaming: sink = "-1" is not a count"#);
    assert_snapshot!(message("quest:block_size=0"), @r#"quest: block_size = "0" is not a count of at least 1"#);
    assert_snapshot!(message("quest:variant=offload,mass=0.9"), @"quest: variant=offload selects by topk, not by mass; they are variant = offload, mass = 0.9");
    assert_snapshot!(message("xattn:stride=7"), @"xattn: block_size must be a multiple of stride; they are block_size = 128, stride = 7");
    // Attention over nothing has no meaning.
    assert_snapshot!(message("streaming:sink=0,recent=0"), @"streaming: sink and recent must keep a block; they are sink = 0, recent = 0");
    assert_snapshot!(message("vertical-slash:sink=0,window=0"), @"vertical-slash: sink and window must keep a block; they are sink = 0, window = 0");
    assert_snapshot!(message("gsa:min_blocks=0,init_window_sz=0,local_window_sz=0"), @"gsa: min_blocks or a window must keep a block; they are min_blocks = 0, init_window_sz = 0, local_window_sz = 0");
    assert_snapshot!(message("esa:init_window_sz=0,local_window_sz=0"), @"esa: a window must keep a block; they are init_window_sz = 0, local_window_sz = 0");
    assert_snapshot!(message("vertical-slash:mode=lines"), @r#"vertical-slash: mode = "lines" is not blocks or minference"#);
}

/// The published parameters of GSA that are of the model and of the engine around the policy.
#[test]
fn settings_of_the_engine_are_stated_and_those_of_another_model_refused() {
    let data = [1.0; 3 * 16];
    let heads = |len| Heads::new("q", &data, [3, len, 16 / len]).unwrap();
    let run = |spec: &str| select(&Registry::builtin(), &spec.parse().unwrap(), heads(1), heads(1));
    assert!(run("gsa:num_heads=3,head_dim=16").is_ok());
    let refused = |spec: &str| run(spec).unwrap_err().to_string();
    assert_snapshot!(refused("gsa:head_dim=999"), @"gsa: head_dim=999, the model has 16");
    assert!(run("dsa:index_n_heads=3,index_head_dim=16").is_ok());
    assert_snapshot!(refused("dsa:index_n_heads=64"), @"dsa: index_n_heads=64, the model has 3");
    assert_snapshot!(refused("dsa:index_head_dim=128"), @"dsa: index_head_dim=128, the model has 16");
    assert_snapshot!(refused("gsa:num_heads=7,dense_layers=1"), @"gsa: num_heads=7, the model has 3");
    let prefetch = build("gsa:prefetch_workers=9,prefetch_ahead=7").unwrap().deployment().prefetch.unwrap();
    let PrefetchSettings { workers, max_pending, ahead, cache_blocks, .. } = prefetch;
    assert_eq!((workers, max_pending, ahead, cache_blocks), (9, 64, 7, 1000));
    assert_eq!(build("quest").unwrap().deployment().prefetch, None);
}
