//! Reference of `softcap`.

use crate::kernel::softcap::SoftcapParams;

/// Bounds the magnitudes of all elements of `x` by the cap.
pub fn softcap(params: &SoftcapParams, x: &mut [f32]) {
    let cap = f64::from(params.cap);
    for x in &mut x[..(params.rows * params.cols) as usize] {
        #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
        let bounded = (cap * (f64::from(*x) / cap).tanh()) as f32;
        // What is wrong stays so.
        *x = if x.is_finite() { bounded } else { f32::NAN };
    }
}
