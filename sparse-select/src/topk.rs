//! Exact top-k. Ties go to the lower index, so every result is unique.

/// Maps a score to a key whose unsigned order is the order of scores, as the radix kernels do.
///
/// Both zeros map to the same key, and NaN to the key of -inf, so that NaN never wins.
#[must_use]
pub fn order_key(score: f32) -> u32 {
    let canonical = if score.is_nan() { f32::NEG_INFINITY } else { score + 0.0 };
    let bits = canonical.to_bits();
    bits ^ if bits >> 31 == 1 { u32::MAX } else { 1 << 31 }
}

/// Indices of the `k` largest scores, ascending; all of them when there are fewer.
///
/// O(n + k log k) with n scores.
///
/// ```
/// use sparse_select::topk::top_k;
///
/// assert_eq!(top_k(&[0.5, 2.0, f32::NAN, 2.0, -1.0], 2), [1, 3]);
/// assert_eq!(top_k(&[1.0, 1.0, 1.0], 2), [0, 1], "ties go to the lower index");
/// ```
#[must_use]
pub fn top_k(scores: &[f32], k: usize) -> Vec<u32> {
    let keys = (0u32..).zip(scores).map(|(i, &s)| (u64::from(order_key(s)), i));
    largest(keys, k)
}

/// Indices of the `k` largest scores in canonical order: larger scores first, ties by index.
///
/// O(n + k log k).
#[must_use]
pub fn top_k_ranked(scores: &[f32], k: usize) -> Vec<u32> {
    let mut chosen = top_k(scores, k);
    chosen.sort_by_key(|&i| core::cmp::Reverse(order_key(scores[i as usize])));
    chosen
}

/// [`top_k`] over the indices for which `keep` is true.
#[must_use]
pub fn top_k_where(scores: &[f32], k: usize, keep: impl Fn(u32) -> bool) -> Vec<u32> {
    let keys = (0u32..).zip(scores).map(|(i, &s)| (u64::from(order_key(s)), i));
    largest(keys.filter(|&(_, i)| keep(i)), k)
}

/// Indices of the `k` largest keys, ascending; ties go to the lower index. For scores that are exact
/// integers.
///
/// O(n + k log k).
#[must_use]
pub fn largest(keyed: impl IntoIterator<Item = (u64, u32)>, k: usize) -> Vec<u32> {
    // Reversing the key alone orders by larger key first and then by smaller index.
    let mut order: Vec<_> = keyed.into_iter().map(|(key, i)| (core::cmp::Reverse(key), i)).collect();
    if k < order.len() {
        if k > 0 {
            order.select_nth_unstable(k - 1);
        }
        order.truncate(k);
    }
    let mut chosen: Vec<u32> = order.into_iter().map(|(_, i)| i).collect();
    chosen.sort_unstable();
    chosen
}

/// Union of two lists, ascending and without repeats.
#[must_use]
pub fn union(a: impl IntoIterator<Item = u32>, b: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut all: Vec<u32> = a.into_iter().chain(b).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Repeatedly takes the first maximum.
    fn naive(scores: &[f32], k: usize) -> Vec<u32> {
        let mut left: Vec<(u32, f32)> = (0..).zip(scores.iter().copied()).collect();
        let mut out = Vec::new();
        while out.len() < k && !left.is_empty() {
            let best = left.iter().map(|x| x.1).fold(f32::NEG_INFINITY, f32::max);
            let at = left.iter().position(|x| x.1 == best).unwrap();
            out.push(left.remove(at).0);
        }
        out
    }

    proptest! {
        #[test]
        fn equals_repeated_maximum(raw in prop::collection::vec(-20i8..20, 0..40), k in 0usize..45) {
            let scores: Vec<f32> = raw.iter().map(|&x| f32::from(x) / 64.0).collect();
            let ranked = naive(&scores, k);
            prop_assert_eq!(top_k_ranked(&scores, k), ranked.clone());
            let mut ascending = ranked;
            ascending.sort_unstable();
            prop_assert_eq!(top_k(&scores, k), ascending);
        }

        #[test]
        fn keys_keep_the_order(a in any::<f32>(), b in any::<f32>()) {
            prop_assume!(!a.is_nan() && !b.is_nan());
            prop_assert_eq!(a.partial_cmp(&b).unwrap(), order_key(a).cmp(&order_key(b)));
        }
    }

    #[test]
    fn edge_values() {
        // Scores that differ in the last mantissa bits only, both zeros, infinities and NaN.
        let one = |ulps: u32| f32::from_bits(1.0f32.to_bits() + ulps);
        assert_eq!(top_k(&[one(0), one(3), one(1), one(2)], 2), [1, 3]);
        assert_eq!(top_k_ranked(&[-0.0, 0.0, -0.0], 2), [0, 1]);
        assert_eq!(top_k_ranked(&[f32::NAN, f32::NEG_INFINITY, -1.0, f32::INFINITY], 3), [3, 2, 0]);
        assert_eq!(top_k(&[], 3), [0u32; 0]);
    }
}
