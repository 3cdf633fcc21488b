//! `skip-softmax` against its definition, key by key.

use proptest::prelude::*;
use sparse_select::{Input, Selection, build};

use crate::tensors::{Tensor, row};

proptest! {
    #[test]
    fn blocks_far_below_the_largest_score_so_far_are_left_out(
        seed in any::<u64>(), k_len in 1usize..60, part in 0.0..1.0f64, kv_heads in 1usize..3, group in 1usize..3,
        scale in 1u32..40,
    ) {
        let size = 4;
        let q_len = ((k_len as f64 * part) as usize).max(1);
        let k = Tensor::seeded(seed, [kv_heads, k_len, 3], 400);
        let q = Tensor::seeded(!seed, [kv_heads * group, q_len, 3], 400);
        let spec = format!("skip-softmax:scale={scale},block_size={size}");
        let mut found = Selection::new();
        build(&spec).unwrap().select_into(&Input::prefill(q.view(), k.view(), 0), &mut found).unwrap();
        prop_assert_eq!((found.groups(), found.query_blocks()), (kv_heads, q_len));
        for (kv, t) in (0..kv_heads).flat_map(|kv| (0..q_len).map(move |t| (kv, t))) {
            let keys = k_len - q_len + t + 1;
            let score = |head: usize, key: usize| {
                let dot: f64 = (0..3).map(|d| f64::from(q.at(head, t, d)) * f64::from(k.at(kv, key, d))).sum();
                dot / 3f64.sqrt()
            };
            let threshold = f64::from(scale) / keys as f64;
            let kept = row(&found, kv, t);
            for first in (0..keys).step_by(size) {
                let counts = |factor: f64| (kv * group..(kv + 1) * group).any(|head| {
                    let top = (0..first).map(|key| score(head, key)).fold(f64::NEG_INFINITY, f64::max);
                    let is_far = |key| (score(head, key) - top).exp() < threshold * factor;
                    threshold >= 1.0 || !(first..keys.min(first + size)).all(is_far)
                });
                // What lies on the threshold may go either way.
                let has = kept.contains(&((first / size) as u32));
                prop_assert!(has || !counts(1.0 + 1e-5), "{spec}: keys {first}.. of {keys} are not in {kept:?}");
                prop_assert!(!has || counts(1.0 - 1e-5), "{spec}: keys {first}.. of {keys} are in {kept:?}");
            }
        }
    }
}

#[test]
fn decode_and_short_contexts_keep_all() {
    let policy = build("skip-softmax:scale=50").unwrap();
    assert!(policy.keeps_all_in_decode());
    assert_eq!((policy.skips(), build("skip-softmax:min_tokens=8").unwrap().skips()), (Some(50), Some(1000)));
    assert!(policy.keeps_all(None, 50) && !policy.keeps_all(None, 51));
}
