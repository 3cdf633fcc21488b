//! Reference of `list_counts`.

/// Returns, for each span `[first list, number of lists]`, the sum of the counts of its lists, which start every
/// `list_stride` words.
#[must_use]
pub fn list_counts(lists: &[u32], list_stride: u32, spans: &[[u32; 2]]) -> Vec<u32> {
    let count = |list: u32| lists[(list * list_stride) as usize];
    spans.iter().map(|[first, lists]| (*first..first + lists).map(count).sum()).collect()
}
