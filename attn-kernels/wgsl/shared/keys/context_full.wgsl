// The keys of a row or tile in the order of attention: all of them, by position. See context_blocks for the choice.
alias Context = u32;

fn context_of(list: u32) -> Context {
    return list;
}

// Index of the first key at position `first` or later.
fn context_begin(context: Context, first: u32) -> u32 {
    return first;
}

// Number of keys at positions before `len`.
fn context_end(context: Context, len: u32) -> u32 {
    return len;
}

// Whether there are keys at positions before `len`, which is not 0.
fn context_any(context: Context, len: u32) -> bool {
    return true;
}

// Position of the key at `index`.
fn context_position(context: Context, index: u32) -> u32 {
    return index;
}
