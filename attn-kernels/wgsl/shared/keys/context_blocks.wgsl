// The keys of a row or tile in the order of attention: those of the blocks of SELECT_BLOCK tokens in a list.
//   selected  lists of params.list_stride u32: count, then that many ascending logical blocks
// SELECT_BLOCK is a multiple of BLOCK_SIZE and of what a kernel loads at once. Stands in for context_full.
#import SELECT_BLOCK = 64
#import lists = lists_first

// First entry of the list.
alias Context = u32;

@group(0) @binding(SELECTED) var<storage, read> selected: array<u32>;

fn context_of(list: u32) -> Context {
    return lists_at() + list * params.list_stride;
}

// Index of the first key at position `first` or later.
fn context_begin(context: Context, first: u32) -> u32 {
    let count = selected[context];
    var n = 0u;
    while (n < count && (selected[context + 1u + n] + 1u) * SELECT_BLOCK <= first) {
        n++;
    }
    if (n == count) {
        return n * SELECT_BLOCK;
    }
    let start = selected[context + 1u + n] * SELECT_BLOCK;
    return n * SELECT_BLOCK + max(first, start) - start;
}

// Number of keys at positions before `len`.
fn context_end(context: Context, len: u32) -> u32 {
    var n = selected[context];
    while (n > 0u && selected[context + n] * SELECT_BLOCK >= len) {
        n--;
    }
    if (n == 0u) {
        return 0u;
    }
    return (n - 1u) * SELECT_BLOCK + min(SELECT_BLOCK, len - selected[context + n] * SELECT_BLOCK);
}

// Whether there are keys at positions before `len`, which is not 0.
fn context_any(context: Context, len: u32) -> bool {
    return context_end(context, len) > 0u;
}

// Position of the key at `index`.
fn context_position(context: Context, index: u32) -> u32 {
    return selected[context + 1u + index / SELECT_BLOCK] * SELECT_BLOCK + index % SELECT_BLOCK;
}
