// Radix search for the k-th largest order key, from the top in digits of 11, 11 and 10 bits.
const DIGITS: u32 = 3u;
const BINS: u32 = 2048u;

// What is known of the k-th largest key: its digits so far, and how many of the keys with those are among the k.
struct Cut { key: u32, left: u32 }

fn digit_shift(digit: u32) -> u32 {
    return select(select(0u, 10u, digit == 1u), 21u, digit == 0u);
}

fn digit_of(key: u32, digit: u32) -> u32 {
    return (key >> digit_shift(digit)) & select(BINS - 1u, 1023u, digit == 2u);
}

// Whether a key has the digits before `digit` of the cut.
fn is_candidate(key: u32, cut: Cut, digit: u32) -> bool {
    return digit == 0u || (key ^ cut.key) >> digit_shift(digit - 1u) == 0u;
}
