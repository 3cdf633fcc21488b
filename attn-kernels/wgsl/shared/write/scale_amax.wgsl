// A scale for each row, its largest magnitude at the largest code.
const BY_ROW: bool = true;

fn scale_of(amax: f32) -> f32 {
    return max(amax / MAX_CODE, 1e-6);
}
