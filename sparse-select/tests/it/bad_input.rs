//! Parameters and tensors that make no sense: refused with names and numbers, or defined. Never a panic, never a query without
//! a block.

use insta::assert_snapshot;
use proptest::prelude::*;
use sparse_select::{Heads, Input, Policy, Registry, SelectError, Selection, Spec, build};

use crate::tensors::Tensor;

fn refused(spec: &str) -> String {
    build(spec).map(|built| panic!("{spec} built {built:?}")).unwrap_err().to_string()
}

#[test]
fn ratios_and_thresholds_out_of_range_are_refused() {
    for (policy, key) in [
        ("gsa", "sparse_ratio"),
        ("gsa-ucm", "sparse_ratio"),
        ("esa", "sparse_ratio"),
        ("kvstar", "sparse_ratio"),
        ("kvcomp", "layer_ratios"),
        ("gsa", "layer_ratios"),
        ("xattn", "threshold"),
        ("xattn-bsa", "threshold"),
        ("flashprefill", "alpha"),
        ("quest", "mass"),
    ] {
        for value in ["0", "-0.1", "1.01", "NaN", "inf", "-inf", "half"] {
            let message = refused(&format!("{policy}:{key}={value}"));
            assert!(
                message.contains(policy) && message.contains(key) && message.contains(value),
                "{message}"
            );
        }
    }
    assert_snapshot!(refused("xattn:threshold=1.5"), @r#"xattn: threshold = "1.5" is not a number above 0 and at most 1, or a list of them"#);
    assert_snapshot!(refused("kvcomp:layer_ratios=1:0.5:0"), @r#"kvcomp: layer_ratios = "1:0.5:0" is not a list of shares above 0, at most 1, separated by :"#);
}

#[test]
fn budgets_of_nothing_are_refused_or_defined() {
    for spec in [
        "quest:page_budget=0",
        "quest:variant=offload,topk=0",
        "kvcomp:topk_tokens=0",
        "nsa:topk=0",
        "dsa:index_topk=0",
        "gsa-ucm:max_topk=0",
        "vertical-slash:mode=minference,last_q=0",
    ] {
        assert!(refused(spec).contains("= \"0\" is not a count of at least 1"), "{spec}: {}", refused(spec));
    }
    // Quest's evaluation never goes below 3 pages; ratios and windows keep what they must.
    assert_snapshot!(refused("quest:token_budget=0"), @r#"quest: token_budget = "0" is not a count of at least 1, or none"#);
    for (spec, kept) in [
        ("quest:token_budget=1,block_size=4", 3),
        ("gsa:sparse_ratio=0.001,min_blocks=0,block_size=4", 3),
        ("esa:sparse_ratio=0.001,min_blocks=0,block_size=4", 3),
        ("streaming:sink=0,recent=1,block_size=4", 1),
        (
            "nsa:topk=1,init_blocks=0,local_blocks=1,window_size=1,block_size=4,kernel_size=4,kernel_stride=4",
            1,
        ),
    ] {
        let (q, k) = (Tensor::seeded(1, [2, 1, 4], 64), Tensor::seeded(2, [1, 64, 4], 64));
        assert_eq!(chosen(spec, &q, &k).unwrap().row(0, 0).len(), kept, "{spec}");
    }
}

#[test]
fn sizes_that_do_not_divide_are_refused_with_both_numbers() {
    assert_snapshot!(refused("xattn:block_size=100,stride=8"), @"xattn: block_size must be a multiple of stride; they are block_size = 100, stride = 8");
    assert_snapshot!(refused("xattn-bsa:block_size=100,stride=8"), @"xattn-bsa: block_size must be a multiple of stride; they are block_size = 100, stride = 8");
    assert_snapshot!(refused("kvcomp:topk_tokens=1000"), @"kvcomp: topk_tokens must be a multiple of block_size; they are topk_tokens = 1000, block_size = 128");
    assert_snapshot!(refused("nsa:kernel_size=30"), @"nsa: kernel_size must be a multiple of kernel_stride; they are kernel_size = 30, kernel_stride = 16");
    assert_snapshot!(refused("nsa:block_size=40"), @"nsa: block_size must be a multiple of kernel_stride; they are block_size = 40, kernel_stride = 16");
    assert_snapshot!(refused("nsa:topk=2"), @"nsa: topk must hold init_blocks and local_blocks; they are topk = 2, init_blocks = 1, local_blocks = 2");
    for entry in Registry::builtin().entries() {
        assert!(refused(&format!("{}:block_size=0", entry.name)).contains("block_size = \"0\""));
    }
}

/// SPECs with windows, budgets and sinks that are larger than any sequence.
const HUGE: [&str; 13] = [
    "streaming:sink=4294967295,recent=4294967295,block_size=4",
    "vertical-slash:sink=4294967295,window=4294967295,threshold=0,block_size=4",
    "vertical-slash:mode=minference,vertical_size=4294967295,slash_size=4294967295,block_size=4",
    "gsa:init_window_sz=4294967295,local_window_sz=4294967295,min_blocks=4294967295,block_size=4",
    "gsa:scoring=mean_k,init_window_sz=4294967295,local_window_sz=4294967295,block_size=4",
    "gsa-ucm:min_topk=4294967295,max_topk=4294967295,seg_prefill_threshold=0,block_size=4",
    "esa:init_window_sz=4294967295,local_window_sz=4294967295,min_blocks=0,block_size=4",
    "quest:page_budget=4294967295,dense_layers=4294967295,block_size=4",
    "quest:variant=offload,topk=4294967295,threshold_blocks=0,sink_blocks=4294967295,recent_blocks=4294967295,block_size=4",
    "nsa:topk=4294967295,init_blocks=2147483647,local_blocks=2147483647,window_size=4294967295,block_size=4,kernel_size=4,kernel_stride=4",
    "dsa:index_topk=4294967295,block_size=4",
    "flashprefill:sink_blocks=4294967295,recent_blocks=4294967295,block_size=4",
    "kvcomp:topk_tokens=4294967292,length_threshold=4294967292,sink=1073741820,recent=1,block_size=4",
];

#[test]
fn windows_larger_than_the_sequence_take_all_of_it() {
    let (q, k) = (Tensor::seeded(1, [2, 1, 4], 64), Tensor::seeded(2, [1, 30, 4], 64));
    for spec in HUGE {
        let s = chosen(spec, &q, &k).unwrap_or_else(|e| panic!("{spec}: {e}"));
        assert_eq!(s.row(0, 0).len(), 8, "{spec}: {s}");
        assert_eq!(build(spec).unwrap().budget(None, 30), 8, "{spec}");
    }
    assert_snapshot!(refused("kvcomp:recent=4294967295"), @"kvcomp: topk_tokens must exceed sink and recent blocks together; they are topk_tokens = 2048, sink = 1, recent = 4294967295, block_size = 128");
}

/// A decode step.
fn chosen(spec: &str, q: &Tensor, k: &Tensor) -> Result<Selection, SelectError> {
    let mut selection = Selection::new();
    build(spec).unwrap().select_into(&Input::decode(q.view(), k.view()), &mut selection)?;
    Ok(selection)
}

fn every_policy() -> Vec<Box<dyn Policy>> {
    let registry = Registry::builtin();
    let small = |name: &str| match name {
        "kvcomp" => ",topk_tokens=32,length_threshold=32,hash_bits=32".into(),
        "nsa" => ",kernel_size=4,kernel_stride=2,topk=4,window_size=5".into(),
        "xattn" | "xattn-bsa" => ",stride=1".into(),
        "gsa-ucm" => ",min_topk=1,max_topk=4,seg_prefill_threshold=0".into(),
        "dsa" => ",index_topk=5".into(),
        "quest" => ",page_budget=3".into(),
        _ => String::new(),
    };
    let build = |name: &str| {
        let spec: Spec = format!("{name}:block_size=4{}", small(name)).parse().unwrap();
        registry.build(&spec).unwrap()
    };
    let names = registry.entries().iter().map(|entry| entry.name);
    let more = ["quest:mass=0.9,block_size=4", "gsa:scoring=mean_k,block_size=4"];
    names.map(build).chain(more.map(|spec| sparse_select::build(spec).unwrap())).collect()
}

#[test]
fn a_sequence_without_blocks_has_a_selection_without_blocks() {
    let nothing = Tensor::zeros([1, 0, 4]);
    for policy in every_policy() {
        let mut s = Selection::new();
        let input = Input { q: Some(nothing.view()), k: Some(nothing.view()), ..Input::positions(0) };
        if policy.select_into(&input, &mut s).is_ok() {
            assert_eq!((s.num_blocks(), s.indices().len()), (0, 0), "{policy:?}");
        }
        assert_eq!(policy.budget(None, 0), 0, "{policy:?}");
        // More queries than keys is no position that a query could be at.
        let one = Tensor::zeros([1, 1, 4]);
        let input = Input { q: Some(one.view()), k: Some(nothing.view()), ..Input::positions(0) };
        let got = policy.select_into(&input, &mut s);
        let refused = SelectError::QueryBeyondHistory { q_len: 1, kv_len: 0 };
        assert!(
            got.is_ok() && s.indices().is_empty()
                || matches!(&got, Err(e) if *e == refused || matches!(e, SelectError::DecodeUnsupported { .. })),
            "{policy:?}: {got:?}"
        );
    }
}

#[test]
fn shapes_without_data_are_refused() {
    let refused = |shape| Heads::new("q", &[], shape).unwrap_err().to_string();
    assert_snapshot!(refused([1, 1 << 42, 0]), @"q has the shape [1, 4398046511104, 0]: its vectors need a channel");
    assert_snapshot!(refused([1 << 60, 0, 8]), @"q has 1152921504606846976 heads, the limit is 65536");
    assert_snapshot!(refused([4, 1 << 62, 8]), @"q holds 0 elements, its shape [4, 4611686018427387904, 8] needs 18446744073709551615");
    assert!(Heads::new("k", &[], [2, 0, usize::MAX]).is_ok());
}

proptest! {
    /// NaN and infinities, in keys, in queries or in both, and one token or many.
    #[test]
    fn no_number_leaves_a_query_without_a_block(
        seed: u64,
        len in 1usize..70,
        poison in prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN]),
        in_keys: bool,
        in_queries: bool,
        share in 1usize..6,
    ) {
        let (mut q, mut k) = (Tensor::seeded(seed, [4, 1, 4], 99), Tensor::seeded(!seed, [2, len, 4], 99));
        if in_keys {
            (0..len).step_by(share).for_each(|token| k.set(token % 2, token, token % 4, poison));
        }
        if in_queries {
            q.set(share % 4, 0, share % 3, poison);
        }
        for policy in every_policy() {
            let mut s = Selection::new();
            match policy.select_into(&Input::decode(q.view(), k.view()), &mut s) {
                Err(SelectError::DecodeUnsupported { policy }) => prop_assert_eq!(policy, "xattn-bsa"),
                other => {
                    prop_assert_eq!(other, Ok(()), "{:?}", policy);
                    for group in 0..s.groups() {
                        prop_assert!(!s.row(group, 0).is_empty(), "{policy:?}: {s}");
                    }
                }
            }
        }
    }

    /// Chunks of a prompt get a block whatever a number is.
    #[test]
    fn no_number_leaves_a_chunk_without_a_block(
        seed: u64, len in 4usize..70, poison in prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
    ) {
        let (mut q, mut k) = (Tensor::seeded(seed, [4, len / 2, 4], 99), Tensor::seeded(!seed, [2, len, 4], 99));
        (0..len).step_by(3).for_each(|token| k.set(0, token, 0, poison));
        q.set(1, 0, 1, poison);
        for policy in every_policy() {
            let mut s = Selection::new();
            let input = Input::prefill(q.view(), k.view(), u32::try_from(len / 8).unwrap());
            prop_assert_eq!(policy.select_into(&input, &mut s), Ok(()), "{:?}", policy);
            for (group, block) in (0..s.groups()).flat_map(|g| (0..s.query_blocks()).map(move |b| (g, b))) {
                // Position-only policies choose among the history, which may be empty: the chunk attends to itself.
                let history = policy.support().query;
                prop_assert!(!history || !s.row(group, block).is_empty(), "{policy:?}: {s}");
            }
        }
    }
}
