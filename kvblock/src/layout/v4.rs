//! Grouping for compressed attention with sliding-window latents (DeepSeek V4), where a group has pages of
//! several sizes.
//!
//! The full-attention latents are the MLA group; its distinct page sizes form a *tuple*, one page of each
//! size. Every other group is padded to the same page sizes and to the same number of tuples, so that again
//! one block id costs the same in each group.

use super::{CacheLayout, CacheTensor, layers_by, merge_specs};
use crate::config::KvCacheGroup;
use crate::error::LayoutError;
use crate::spec::KvCacheSpec;

/// Layers of one group by tuple: a tuple has one layer for each page size that the group uses.
type Tuples = Vec<Vec<usize>>;

pub(crate) fn plan(specs: &[KvCacheSpec]) -> Result<CacheLayout, LayoutError> {
    let mla: Vec<usize> = (0..specs.len()).filter(|&layer| specs[layer].kind.is_full()).collect();
    let mut page_sizes: Vec<u64> = mla.iter().map(|&layer| specs[layer].page_bytes()).collect();
    page_sizes.sort_unstable();
    page_sizes.dedup();
    let buckets = bucket(&mla, specs, &page_sizes)?;
    let num_mla_tuples = buckets.iter().map(Vec::len).max().unwrap_or(0);

    let mut window_groups: Vec<Tuples> = Vec::new();
    for (_, layers) in layers_by(specs, |spec| (spec.kind, spec.block_size)) {
        if !specs[layers[0]].kind.is_full() {
            window_groups.push(zip_tuples(&bucket(&layers, specs, &page_sizes)?)?);
        }
    }
    let counts: Vec<usize> = window_groups.iter().map(Vec::len).collect();
    let tuples = tuples_per_group(&counts, num_mla_tuples)?;

    let mut builder = Builder { specs, page_sizes, layout: CacheLayout::default(), tuples };
    builder.add_tensors();
    let columns = (0..num_mla_tuples).map(|row| buckets.iter().filter_map(|b| b.get(row).copied()).collect());
    builder.add_group(columns.collect())?;
    for all in window_groups {
        let num_groups = all.len().div_ceil(tuples);
        for first in 0..num_groups {
            builder.add_group(all.iter().skip(first).step_by(num_groups).cloned().collect())?;
        }
    }
    Ok(builder.layout)
}

/// Number of tuples per group: the number between `lower_bound` and the largest of `tuple_counts` that wastes the
/// fewest places when each count is rounded up to a multiple of it. Ties go to the larger number. The result is
/// `lower_bound` if it exceeds the largest count. O(`max · tuple_counts.len()`).
///
/// # Errors
/// [`LayoutError::NoTuples`] when there is no count, or a count or the bound is 0.
pub fn tuples_per_group(tuple_counts: &[usize], lower_bound: usize) -> Result<usize, LayoutError> {
    if lower_bound == 0 || tuple_counts.is_empty() || tuple_counts.contains(&0) {
        return Err(LayoutError::NoTuples);
    }
    let largest = tuple_counts.iter().copied().max().unwrap_or(0);
    let waste =
        |d: &usize| tuple_counts.iter().map(|count| count.next_multiple_of(*d) - count).sum::<usize>();
    // `min_by_key` keeps the first of equals, so the search goes down.
    Ok((lower_bound..=largest).rev().min_by_key(waste).unwrap_or(lower_bound))
}

/// Sorts layers into the smallest page size that holds their page: `[page sizes][layers]`.
fn bucket(
    layers: &[usize],
    specs: &[KvCacheSpec],
    page_sizes: &[u64],
) -> Result<Vec<Vec<usize>>, LayoutError> {
    let mut buckets = vec![Vec::new(); page_sizes.len()];
    for &layer in layers {
        let page_bytes = specs[layer].page_bytes();
        let place = page_sizes.partition_point(|&size| size < page_bytes);
        let largest = page_sizes.last().copied().unwrap_or(0);
        buckets.get_mut(place).ok_or(LayoutError::PageSizes { layer, page_bytes, largest })?.push(layer);
    }
    Ok(buckets)
}

/// Makes tuples of one layer from each bucket in use.
fn zip_tuples(buckets: &[Vec<usize>]) -> Result<Tuples, LayoutError> {
    let used: Vec<&Vec<usize>> = buckets.iter().filter(|bucket| !bucket.is_empty()).collect();
    let len = used.first().map_or(0, |bucket| bucket.len());
    if let Some(other) = used.iter().find(|bucket| bucket.len() != len) {
        return Err(LayoutError::UnevenPages { layer: other[0], found: other.len(), expected: len });
    }
    Ok((0..len).map(|row| used.iter().map(|bucket| bucket[row]).collect()).collect())
}

struct Builder<'a> {
    specs: &'a [KvCacheSpec],
    page_sizes: Vec<u64>,
    layout: CacheLayout,
    tuples: usize,
}

impl Builder<'_> {
    /// Adds buffers `[tuples][page sizes]`, without layers yet.
    fn add_tensors(&mut self) {
        for _ in 0..self.tuples {
            let tensor = |&page_bytes: &u64| CacheTensor { page_bytes, layers: Vec::new() };
            self.layout.tensors.extend(self.page_sizes.iter().map(tensor));
        }
    }

    /// Adds a group and gives each of its layers the buffer of its tuple and page size.
    fn add_group(&mut self, tuples: Tuples) -> Result<(), LayoutError> {
        let mut padded = Vec::new();
        for (row, layer) in
            tuples.iter().enumerate().flat_map(|(row, tuple)| tuple.iter().map(move |&l| (row, l)))
        {
            let spec = self.specs[layer];
            let column = self.page_sizes.partition_point(|&size| size < spec.page_bytes());
            self.layout.tensors[row * self.page_sizes.len() + column].layers.push(layer);
            padded.push(spec.padded_page_bytes(self.page_sizes[column]));
        }
        let layers = tuples.into_iter().flatten().collect();
        self.layout.groups.push(KvCacheGroup::new(merge_specs(&padded)?, layers));
        Ok(())
    }
}
