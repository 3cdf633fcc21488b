//! Policies that retrieve blocks by a representative of each: ESA, GSA by mean keys, UCM's GSA, hash retrieval.

use proptest::prelude::*;
use sparse_select::{
    Input, Retrieved, Selection, build,
    policy::{kvcomp::Projection, num_blocks},
};

use crate::tensors::{Case, Tensor, decode_case, row, select};

/// `Σ_kv mean(q of group) · mean(k of block)`; exact for groups and blocks of 1, 2 or 4.
fn mean_scores(c: &Case, block: usize) -> Vec<f32> {
    let (kv_heads, len, dim) = (c.k.view().heads(), c.k.view().len(), c.k.view().dim());
    let score = |b: usize| {
        let tokens = b * block..len.min((b + 1) * block);
        let mut sum = 0.0;
        for kv in 0..kv_heads {
            for d in 0..dim {
                let q: f32 = (kv * c.group..(kv + 1) * c.group).map(|h| c.q.at(h, 0, d)).sum();
                let k: f32 = tokens.clone().map(|t| c.k.at(kv, t, d)).sum();
                sum += (q / c.group as f32) * (k / tokens.len() as f32);
            }
        }
        sum
    };
    (0..len.div_ceil(block)).map(score).collect()
}

/// The `k` best of `candidates`, equal scores in order, beside the forced ones.
fn best(scores: &[f32], forced: impl Fn(usize) -> bool, k: usize) -> Vec<u32> {
    let mut order: Vec<usize> = (0..scores.len()).filter(|&b| !forced(b)).collect();
    order.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).unwrap());
    order.truncate(k);
    order.extend((0..scores.len()).filter(|&b| forced(b)));
    order.sort_unstable();
    order.into_iter().map(|b| b as u32).collect()
}

/// Whole blocks of 4 and groups of 1 or 2, so that all means are exact.
fn exact_case() -> impl Strategy<Value = Case> {
    (decode_case(1, 5), 0usize..24, any::<u64>()).prop_map(|(c, blocks, seed)| {
        let group = if c.group == 3 { 2 } else { c.group };
        let (kv, dim) = (c.k.view().heads(), c.k.view().dim());
        let k = Tensor::seeded(seed, [kv, 4 * (blocks + 1), dim], 5);
        Case { q: Tensor::seeded(!seed, [kv * group, 1, dim], 5), k, group }
    })
}

proptest! {
    #[test]
    fn esa_takes_the_best_between_its_windows(c in exact_case(), init in 0usize..3, local in 0usize..3) {
        // Without windows nothing may be kept: refused.
        let local = if init == 0 { local.max(1) } else { local };
        let spec = format!("esa:init_window_sz={init},local_window_sz={local},sparse_ratio=0.5,block_size=4");
        let scores = mean_scores(&c, 4);
        let n = scores.len();
        let expected = if n < 4 { (0..n as u32).collect() } else {
            best(&scores, |b| b < init || b + local >= n, (n - init - local) / 2)
        };
        prop_assert_eq!(row(&select(&spec, &c.q, &c.k).selection, 0, 0), expected);
    }

    #[test]
    fn gsa_by_mean_keys_keeps_its_windows_and_budget(c in exact_case()) {
        let scores = mean_scores(&c, 4);
        let n = scores.len();
        let k = 4.max((n as f64 * 0.3).floor() as usize).min(n);
        let forced = |b: usize| b < 1 || b + 2 >= n;
        let expected = best(&scores, forced, k.saturating_sub((0..n).filter(|&b| forced(b)).count()));
        prop_assert_eq!(row(&select("gsa:scoring=mean_k,block_size=4", &c.q, &c.k).selection, 0, 0), expected);
    }

    #[test]
    fn gsa_ucm_scales_its_bounds_to_the_block(c in exact_case()) {
        // At block size 4 they are 32 blocks: more than there are.
        let spec = "gsa-ucm:min_topk=1,max_topk=1,sparse_ratio=0.1,seg_prefill_threshold=0,block_size=4";
        let all: Vec<u32> = (0..c.k.view().len() as u32 / 4).collect();
        prop_assert_eq!(row(&select(spec, &c.q, &c.k).selection, 0, 0), all);
    }

    /// A request that decodes token by token selects what one sees who looks at all its queries at once: every stride-th
    /// retrieves, and those in between keep the blocks and add what has begun.
    #[test]
    fn every_stride_th_query_retrieves(
        seed in any::<u64>(), first in 70usize..90, stride in 1usize..7, steps in 1usize..16, ucm: bool,
    ) {
        let spec = match ucm {
            true => format!("gsa-ucm:block_size=8,init_window_sz=0,min_topk=1,max_topk=1,sparse_ratio=0.2,\
                seg_prefill_threshold=0,retrieval_stride={stride}"),
            false => format!("esa:block_size=4,sparse_ratio=0.2,retrieval_stride={stride}"),
        };
        let policy = build(&spec).unwrap();
        let alone = build(&spec.replace(&format!("stride={stride}"), "stride=1")).unwrap();
        let size = policy.block_size();
        let k = Tensor::seeded(seed, [2, first + steps - 1, 3], 99);
        let q = Tensor::seeded(!seed, [4, steps, 3], 99);
        let mut last: Option<(usize, Selection)> = None;
        let mut rows = Vec::new();
        for t in 0..steps {
            let input = Input::decode(q.view().window(t, 1), k.view().window(0, first + t));
            let retrieved = last.as_ref().map(|(kv_len, selection)| Retrieved { kv_len: *kv_len, selection });
            let mut selection = Selection::new();
            policy.select_into(&Input { retrieved, ..input }, &mut selection).unwrap();
            let expected = match &last {
                Some((then, kept)) if t % stride > 0 => {
                    let mut blocks = row(kept, 0, 0);
                    blocks.extend(num_blocks(*then, size)..num_blocks(first + t, size));
                    blocks
                }
                _ => {
                    let mut own = Selection::new();
                    alone.select_into(&input, &mut own).unwrap();
                    let blocks = row(&own, 0, 0);
                    last = Some((first + t, own));
                    blocks
                }
            };
            prop_assert_eq!(row(&selection, 0, 0), expected.clone(), "step {}", t);
            rows.push(expected);
        }
        let mut together = Selection::new();
        policy.select_into(&Input::decode(q.view(), k.view()), &mut together).unwrap();
        prop_assert_eq!((0..steps).map(|t| row(&together, 0, t)).collect::<Vec<_>>(), rows);
        // Of a prompt every query retrieves, however it is cut.
        let (mut prompt, mut each) = (Selection::new(), Selection::new());
        policy.select_into(&Input::prefill(q.view(), k.view(), 0), &mut prompt).unwrap();
        alone.select_into(&Input::prefill(q.view(), k.view(), 0), &mut each).unwrap();
        prop_assert_eq!(prompt, each);
    }

    #[test]
    fn kvcomp_takes_the_blocks_of_the_nearest_tokens(c in decode_case(60, 9), seed in any::<u64>(), budget in 3usize..8) {
        let spec = format!(
            "kvcomp:hash_bits=13,seed={seed},topk_tokens={},sink=1,recent=1,length_threshold={},block_size=4,must_select=",
            budget * 4, budget * 4
        );
        let (len, dim, kv_heads) = (c.k.view().len(), c.k.view().dim(), c.k.view().heads());
        let n = len.div_ceil(4);
        let w = Projection::seeded(dim, &[], 13, seed);
        let bit = |hash: &[u8], i: usize| hash[i / 8] >> (i % 8) & 1;
        let distance = |t: usize| -> u32 {
            if t < 4 || t + 4 >= len { return 0 }
            (0..kv_heads).map(|kv| {
                let mean: Vec<f32> = (0..dim).map(|d| {
                    (kv * c.group..(kv + 1) * c.group).map(|h| c.q.at(h, 0, d)).sum::<f32>() / c.group as f32
                }).collect();
                let (a, b) = (w.hash(&mean), w.hash(c.k.view().row(kv, t)));
                (0..13).filter(|&i| bit(&a, i) != bit(&b, i)).count() as u32
            }).min().unwrap()
        };
        let of_block = |b: usize| -((b * 4..len.min(b * 4 + 4)).map(distance).min().unwrap() as f32);
        let scores: Vec<f32> = (0..n).map(of_block).collect();
        let expected = if n <= budget { (0..n as u32).collect() } else { best(&scores, |_| false, budget) };
        prop_assert_eq!(row(&select(&spec, &c.q, &c.k).selection, 0, 0), expected);
    }
}

/// One KV head whose block b has mean key `weights[b]` on channel 0; the query looks at channel 0.
fn weighted(weights: &[i16], block: usize) -> (Tensor, Tensor) {
    let (mut q, mut k) = (Tensor::zeros([2, 1, 2]), Tensor::zeros([1, weights.len() * block, 2]));
    (0..2).for_each(|h| q.set(h, 0, 0, 1.0));
    for (b, &w) in weights.iter().enumerate() {
        (b * block..(b + 1) * block).for_each(|t| k.set(0, t, 0, f32::from(w)));
    }
    (q, k)
}

#[test]
fn gsa_ucm_draws() {
    let (q, k) = weighted(&[0, 9, 1, 9, 3, 8, 9, 0, 2, 0], 128);
    let spec = "gsa-ucm:min_topk=4,max_topk=5,seg_prefill_threshold=1000";
    let draw = |tokens: usize| {
        let mut s = Selection::new();
        let input = Input::decode(q.view(), k.view().window(0, tokens));
        build(spec).unwrap().select_into(&input, &mut s).unwrap();
        s.to_string()
    };
    insta::assert_snapshot!(draw(1280), @"##......##");
    // The last block is partial: it has no representative, and both ends are those of the full ones.
    insta::assert_snapshot!(draw(1279), @"##.....###");
    insta::assert_snapshot!(draw(1000), @"########");
    let prefill = Input::prefill(q.view(), k.view(), 10);
    let mut s = Selection::new();
    build(spec).unwrap().select_into(&prefill, &mut s).unwrap();
    insta::assert_snapshot!(s, @"##########");
}

#[test]
fn kvcomp_layers_lengths_and_contradictions() {
    use sparse_select::policy::kvcomp::{ENTRY, KvComp, LayerPlan};
    let kvcomp = |text: &str| {
        let spec: sparse_select::Spec = format!("kvcomp:{text}").parse().unwrap();
        KvComp::from_params(&sparse_select::Params::new("kvcomp", ENTRY.keys, &spec.params)?)
    };
    let p = kvcomp("layer_ratios=1:1:0.25:0.25:1,rollback_layers=3,skip_layers=5").unwrap();
    let plans = [0, 2, 3, 4, 5, 6].map(|layer| p.layer_plan(layer));
    use LayerPlan::{Dense, Reuse, Select};
    assert_eq!(plans, [Dense, Select, Dense, Dense, Reuse, Select]);
    assert_eq!([Some(2), Some(9), None].map(|l| p.budget_blocks(l, 4096)), [8, 16, 16]);
    let message = |text| kvcomp(text).unwrap_err().to_string();
    insta::assert_snapshot!(message("topk_tokens=1000"), @"kvcomp: topk_tokens must be a multiple of block_size; they are topk_tokens = 1000, block_size = 128");
    insta::assert_snapshot!(message("topk_tokens=640"), @"kvcomp: topk_tokens must exceed sink and recent blocks together; they are topk_tokens = 640, sink = 1, recent = 4, block_size = 128");
    insta::assert_snapshot!(message("length_threshold=2047"), @"kvcomp: length_threshold must not be below topk_tokens; they are length_threshold = 2047, topk_tokens = 2048");
}

#[test]
fn kvcomp_hashes_mla_parts_apart() {
    let whole = Projection::seeded(6, &[4, 2], 3, 1);
    let hash = whole.hash(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(hash.len(), 2);
    assert_eq!(whole.hash(&[1.0, 2.0, 3.0, 4.0, -5.0, 0.5])[0], hash[0]);
    // Identity weights: bits are the signs of the channels, 0 counts as not positive.
    let identity = Projection::trained(&[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0], 3);
    assert_eq!(identity.hash(&[0.5, -1.0, 0.0]), [0b001]);
    assert_eq!(identity.hash(&[-0.5, 1.0, 2.0]), [0b110]);
}

/// Seven blocks: those that `must_select` and the two ends force, 3 and 6 whose tokens hash like the query, and the
/// first of the others, which are all equally far.
#[test]
fn kvcomp_draws() {
    let (q, k) = weighted(&[-1, -1, -1, 1, -1, -1, 1, -1, -1, -1], 4);
    let draw = |more: &str| {
        let spec =
            format!("kvcomp:length_threshold=28,topk_tokens=28,block_size=4,recent=2,hash_bits=32{more}");
        select(&spec, &q, &k).selection.strip(0, 0).marks(1, 2).to_string()
    };
    insta::assert_snapshot!(draw(""), @"S###..#.RR");
    insta::assert_snapshot!(draw(",must_select=5"), @"S#.#.##.RR");
}
