// Difference to the largest score of a row below which keys may be left out (BLASST, arXiv 2512.12087): the logarithm of a
// threshold that falls with the length of the row's context. Rows of few keys leave nothing out. Stands in for skip_none.
fn skip_below(position: u32) -> f32 {
    let below = params.log_skip - log(f32(position + 1u));
    return select(LOWEST, below, below < 0.0);
}
