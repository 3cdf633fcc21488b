//! No key is only parsed: each value of each key of each policy changes what is selected, or a number that an engine goes by, or
//! is refused.

use std::collections::BTreeSet;

use proptest::prelude::*;
use sparse_select::{Input, Policy, Registry, Selection, Stage, build, layered, select};

use crate::tensors::Tensor;

/// A key, and values of it.
type Values = (&'static str, &'static [&'static str]);

/// Keys of the policies that retrieve by mean keys, which differ in their defaults.
const RETRIEVED: &[Values] = &[
    ("init_window_sz", &["0", "1", "2"]),
    ("local_window_sz", &["0", "2", "3"]),
    ("min_blocks", &["0", "30", "300"]),
    ("sparse_ratio", &["0.2", "0.3", "0.5"]),
    ("retrieval_stride", &["1", "2", "5", "8"]),
    ("block_size", &["2", "4"]),
    ("query", &["current", "previous"]),
];

/// Keys of a policy beside which each of its keys acts: `policy[:key=value,..]`, then for each key values of which no two may be
/// alike.
const KEYS: &[(&str, &[Values])] = &[
    ("full", &[("block_size", &["4", "8"])]),
    (
        "streaming:block_size=4",
        &[
            ("sink", &["0", "1", "2"]),
            ("recent", &["1", "2", "4"]),
            ("block_size", &["2", "4", "8"]),
            ("dense_layers", &["0", "1", "3"]),
            ("min_tokens", &["auto", "measured", "0", "90"]),
        ],
    ),
    (
        "vertical-slash:block_size=4",
        &[
            ("mode", &["blocks", "minference"]),
            ("sink", &["0", "1", "2"]),
            ("window", &["1", "2", "3"]),
            ("threshold", &["0", "4", "9"]),
        ],
    ),
    (
        "vertical-slash:mode=minference,block_size=1,vertical_size=30,slash_size=50,last_q=4,force_vertical=1,force_slash=1",
        &[
            ("vertical_size", &["30", "40", "50"]),
            ("slash_size", &["50", "60", "70"]),
            ("last_q", &["1", "3", "12"]),
            ("force_vertical", &["0", "9", "20"]),
            ("force_slash", &["0", "20", "40"]),
            ("block_size", &["1", "2"]),
        ],
    ),
    (
        "vertical-slash:mode=minference,block_size=1,last_q=4,force_vertical=1,force_slash=1",
        &[("adaptive_budget", &["none", "0.3", "0.8"])],
    ),
    (
        "gsa:block_size=4",
        &[
            ("sparse_ratio", &["0.3", "0.5", "0.7"]),
            ("local_window_sz", &["0", "2", "9"]),
            ("init_window_sz", &["0", "1", "2"]),
            ("min_blocks", &["0", "9", "12"]),
            ("prefetch_workers", &["1", "4"]),
            ("max_pending_prefetch", &["1", "64"]),
            ("prefetch_ahead", &["0", "2"]),
            ("prefetch_cache_size", &["1", "1000"]),
            ("head_dim", &["none", "4", "5"]),
            ("num_heads", &["none", "4", "5"]),
            ("block_size", &["2", "4"]),
            ("scoring", &["history", "mean_k"]),
            ("layer_ratios", &["", "0.5", "1:0.5"]),
        ],
    ),
    ("gsa:scoring=mean_k,block_size=4", &[("query", &["current", "previous"])]),
    (
        "gsa-ucm:block_size=16,seg_prefill_threshold=0,init_window_sz=0,min_topk=1,max_topk=2,sparse_ratio=0.5",
        &[
            ("sparse_ratio", &["0.5", "0.6"]),
            ("max_topk", &["1", "2"]),
            ("init_window_sz", &["0", "1"]),
            ("num_prefetch_blocks", &["0", "1", "2"]),
            ("retrieval_stride", &["1", "2", "3", "5"]),
            ("seg_prefill_threshold", &["0", "300", "3000"]),
            ("block_size", &["16", "32"]),
            ("dense_layers", &["0", "1"]),
            ("layer_ratios", &["", "1:0.6"]),
            ("query", &["current", "previous"]),
        ],
    ),
    (
        "gsa-ucm:block_size=16,seg_prefill_threshold=0,init_window_sz=0,min_topk=1,max_topk=2,sparse_ratio=0.1",
        &[("min_topk", &["1", "2"])],
    ),
    ("esa:block_size=4", RETRIEVED),
    ("kvstar:block_size=4", RETRIEVED),
    (
        "kvcomp:block_size=4,hash_bits=32,topk_tokens=32,sink=1,recent=2,length_threshold=32,must_select=0",
        &[
            ("hash_bits", &["13", "32", "64"]),
            ("parts", &["", "2:2", "1:3"]),
            ("seed", &["0", "1", "2"]),
            ("topk_tokens", &["20", "24", "32"]),
            ("sink", &["0", "1", "2"]),
            ("recent", &["1", "2", "3"]),
            ("length_threshold", &["32", "90"]),
            ("concurrency_threshold", &["auto", "2", "4"]),
            ("representative", &["max", "mean", "min"]),
            ("layer_ratios", &["", "0.5", "1:0.5"]),
            ("must_select", &["", "0", "5:-7"]),
            ("rollback_layers", &["", "0", "0:2"]),
            ("skip_layers", &["", "1", "1:2"]),
            ("block_size", &["2", "4"]),
            ("query", &["current", "previous"]),
        ],
    ),
    (
        "kvcomp:block_size=4,hash_bits=32,topk_tokens=32,sink=1,recent=2,length_threshold=32,must_select=0,representative=mean",
        &[("chunk_size", &["1", "2", "128"])],
    ),
    (
        "xattn:block_size=8,stride=2,threshold=0.5",
        &[
            ("threshold", &["0.3", "0.5", "0.5:0.6:0.7:0.8"]),
            ("stride", &["1", "2", "4"]),
            ("block_size", &["4", "8"]),
            ("chunk_size", &["8", "16384", "auto"]),
            ("norm", &["0.25", "1", "4"]),
            ("causal", &["true", "false"]),
            ("dense_layers", &["0", "1"]),
        ],
    ),
    (
        "xattn:block_size=16,stride=8,threshold=0.5",
        &[("select_mode", &["inverse", "slash", "double", "triple", "random"])],
    ),
    ("xattn:block_size=16,stride=8,threshold=0.5,select_mode=random", &[("seed", &["0", "1", "2"])]),
    (
        "xattn-bsa:block_size=8,stride=2,threshold=0.3",
        &[
            ("threshold", &["0.2", "0.5", "0.5:0.6:0.7:0.8"]),
            ("stride", &["1", "2", "4"]),
            ("chunk_size", &["8", "16384"]),
            ("block_size", &["4", "8"]),
            ("vote", &["any", "majority", "all"]),
        ],
    ),
    (
        "flashprefill:block_size=4,sink_blocks=0,recent_blocks=1,alpha=0.7",
        &[
            ("alpha", &["0.5", "0.7", "0.9"]),
            ("sink_blocks", &["0", "1", "3"]),
            ("recent_blocks", &["1", "2", "4"]),
            ("block_size", &["4", "8"]),
            ("correction", &["false", "true"]),
        ],
    ),
    ("skip-softmax:block_size=4,scale=20", &[("scale", &["5", "20", "60"]), ("block_size", &["2", "4"])]),
    ("quest:block_size=4,dense_layers=0", &[("page_budget", &["2", "6", "9"])]),
    (
        "quest:block_size=4,dense_layers=0",
        &[
            ("token_budget", &["none", "12", "16"]),
            ("dense_layers", &["0", "1", "2"]),
            ("mass", &["none", "0.3", "0.9"]),
            ("variant", &["quest", "offload"]),
            ("block_size", &["2", "4"]),
            ("query", &["current", "previous"]),
        ],
    ),
    (
        "quest:variant=offload,block_size=4,dense_layers=0",
        &[
            ("topk", &["4", "8"]),
            ("threshold_blocks", &["4", "30", "300"]),
            ("sink_blocks", &["0", "1", "2"]),
            ("recent_blocks", &["0", "2", "3"]),
        ],
    ),
    (
        "dsa:index_topk=12",
        &[
            ("index_topk", &["8", "12", "16"]),
            ("index_n_heads", &["none", "4", "5"]),
            ("index_head_dim", &["none", "4", "5"]),
            ("scale_fmt", &["f32", "ue8m0"]),
            ("block_size", &["1", "4"]),
        ],
    ),
    (
        "nsa:kernel_size=4,kernel_stride=2,block_size=4,topk=5,window_size=0",
        &[
            ("kernel_size", &["2", "4", "8"]),
            ("kernel_stride", &["1", "2", "4"]),
            ("block_size", &["4", "8"]),
            ("topk", &["4", "5", "6"]),
            ("init_blocks", &["0", "1", "2"]),
            ("local_blocks", &["1", "2", "3"]),
            ("window_size", &["0", "9", "13"]),
        ],
    ),
];

/// Keys that are read in one mode alone, which is the refused policy's other one.
const OF_OTHER_MODES: [(&str, &[&str]); 9] = [
    (
        "vertical-slash",
        &[
            "vertical_size=40",
            "slash_size=60",
            "last_q=3",
            "force_vertical=9",
            "force_slash=9",
            "adaptive_budget=0.5",
        ],
    ),
    ("vertical-slash:mode=minference", &["sink=2", "window=3", "threshold=9"]),
    ("vertical-slash:mode=minference,adaptive_budget=0.5", &["vertical_size=40", "slash_size=60"]),
    ("kvcomp", &["chunk_size=2"]),
    ("xattn", &["seed=1"]),
    ("quest", &["topk=4", "threshold_blocks=3", "sink_blocks=1", "recent_blocks=1"]),
    ("quest:variant=offload", &["page_budget=2", "token_budget=12"]),
    ("quest:mass=0.5", &["page_budget=2", "token_budget=12", "topk=4"]),
    ("full", &["dense_layers=1", "min_tokens=90"]),
];

/// Selections that a policy makes of tensors, and the numbers that an engine takes from it.
fn acts(spec: &str, seed: u64) -> String {
    let policy = match build(spec) {
        Ok(policy) => policy,
        Err(error) => return error.to_string(),
    };
    let mut acts = numbers(&*policy);
    for case in 0..3 {
        let of = |shape, at| Tensor::seeded(seed ^ case ^ at, shape, 99);
        let (q, k) = (of([4, 12, 4], 1 << 40), of([2, 400 + 7 * case as usize, 4], 1 << 41));
        let one = select(&Registry::builtin(), &spec.parse().unwrap(), q.view().window(0, 1), k.view());
        acts += &format!("{:?}", one.map(|one| one.selected()));
        let access: Vec<u32> = (0..120).map(|block| block * (7 + case as u32) % 5).collect();
        let (decode, prefill) = (Stage::Decode, |kv_len: u32| Stage::Prefill { chunk_idx: kv_len / 4 });
        for (layer, kv_len, stage) in [
            (0, 15, decode),
            (0, 40, decode),
            (0, 400, decode),
            (1, 100, decode),
            (2, 100, decode),
            (0, 100, prefill(100)),
            (1, 100, prefill(100)),
        ] {
            let decode = Input::decode(q.view(), k.view().window(0, kv_len));
            let mut selection = Selection::new();
            let input = Input { stage, layer: Some(layer), access: &access, ..decode };
            let done = policy.select_into(&input, &mut selection);
            acts += &done.map_or_else(|e| e.to_string(), |()| selection.to_string());
        }
    }
    acts
}

/// Numbers by which an engine lays out steps with a policy, and its kernels.
fn numbers(policy: &dyn Policy) -> String {
    let mut numbers = format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        (policy.block_size(), policy.support(), policy.deployment()),
        (policy.min_tokens(), policy.min_requests(), policy.retrieval_stride(), policy.select_by()),
        policy.ranking(),
        policy.antidiagonals(),
        policy.energies(),
        policy.skips(),
        policy.mass(),
        policy.certifies(),
        policy.keeps_all_in_decode(),
        [0, 1, 2, 3].map(|layer| policy.reuses(layer)),
        [0, 1, 2, 3].map(|layer| [30, 80, 400].map(|len| policy.keeps_all(Some(layer), len))),
    );
    if policy.ranking().is_some() {
        let budgets = [0, 1, 2, 3].map(|layer| [30, 80, 400].map(|len| policy.budget(Some(layer), len)));
        numbers += &format!("{budgets:?}");
    }
    numbers
}

fn with(spec: &str, key: &str, value: &str) -> String {
    let mut spec: sparse_select::Spec = spec.parse().unwrap();
    spec.params.retain(|(name, _)| name != key);
    spec.params.push((key.to_owned(), value.to_owned()));
    spec.to_string()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2))]
    #[test]
    fn every_value_of_every_key_acts(seed in any::<u64>()) {
        let mut idle = Vec::new();
        for (spec, keys) in KEYS {
            for (key, values) in *keys {
                let specs: Vec<String> = values.iter().map(|value| with(spec, key, value)).collect();
                let other: BTreeSet<String> = specs.iter().map(|spec| acts(spec, seed)).collect();
                let built = specs.iter().all(|spec| build(spec).is_ok());
                idle.extend((other.len() < values.len() || !built).then(|| specs.join("\n    ")));
            }
        }
        prop_assert!(idle.is_empty(), "refused, or some act alike:\n    {}", idle.join("\n\n    "));
    }
}

#[test]
fn keys_of_another_mode_are_refused() {
    for (spec, keys) in OF_OTHER_MODES {
        for (key, value) in keys.iter().map(|key| key.split_once('=').unwrap()) {
            let error = build(&with(spec, key, value)).map(|policy| format!("{policy:?}"));
            let name = spec.split(':').next().unwrap();
            let expected = format!("{name}: {key} = {value:?} has no effect beside the other keys");
            assert_eq!(error.unwrap_err().to_string(), expected, "{spec}");
        }
    }
}

/// The lists above are of every key of every policy.
#[test]
fn no_key_is_left_out() {
    let mut common = BTreeSet::new();
    for entry in Registry::builtin().entries() {
        let of_entry = KEYS.iter().filter(|(spec, _)| spec.split(':').next() == Some(entry.name));
        let listed: BTreeSet<&str> =
            of_entry.flat_map(|(_, keys)| keys.iter().map(|(key, _)| *key)).collect();
        for key in entry.keys {
            assert!(listed.contains(key.name), "{}: {}", entry.name, key.name);
        }
        let own = |key: &&str| entry.keys.iter().any(|of| of.name == *key);
        common.extend(listed.into_iter().filter(|key| !own(key)));
    }
    assert_eq!(common, layered::KEYS.iter().map(|key| key.name).collect());
}
