//! Reference of `keep_lists`.

use crate::kernel::keep_lists::KeepListsParams;
use crate::rows::KeptRow;

/// Stores the lists `[rows, sets, copies]` that rows made in this step in the slots of these rows. Other rows get the
/// lists of their slots, extended by the blocks that have begun since.
pub fn keep_lists(params: &KeepListsParams, rows: &[KeptRow], kept: &mut [u32], lists: &mut [u32]) {
    let [copies, list_stride, kept_stride] =
        [params.copies, params.list_stride, params.kept_stride].map(|n| n as usize);
    let of_rows = lists.chunks_exact_mut(params.sets as usize * copies * list_stride);
    for (row, of_row) in rows.iter().zip(of_rows).filter(|(row, _)| row.slot != KeptRow::NONE) {
        for (set, of_set) in of_row.chunks_exact_mut(copies * list_stride).enumerate() {
            let slot = (row.slot * params.sets) as usize + set;
            let kept = &mut kept[slot * kept_stride..(slot + 1) * kept_stride];
            if row.made == 1 {
                let list = blocks(of_set, kept_stride.min(list_stride) - 1);
                put(kept, &list);
            } else {
                let mut list = blocks(kept, kept_stride.min(list_stride) - 1);
                list.extend(row.then..row.blocks);
                list.truncate(list_stride - 1);
                of_set.chunks_exact_mut(list_stride).for_each(|copy| put(copy, &list));
            }
        }
    }
}

/// Returns the first `most` blocks of a list, or all blocks of a shorter list.
fn blocks(list: &[u32], most: usize) -> Vec<u32> {
    let count = (list[0] as usize).min(most);
    list[1..=count].to_vec()
}

fn put(list: &mut [u32], blocks: &[u32]) {
    list[0] = u32::try_from(blocks.len()).expect("a list is short");
    list[1..=blocks.len()].copy_from_slice(blocks);
}
