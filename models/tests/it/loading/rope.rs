//! Rotary inverse frequencies.

use models::{Pairing, Rope, RopeScaling};

fn rope(theta: f64, rotary_dims: u32, scaling: RopeScaling) -> Rope {
    Rope { theta, rotary_dims, pairing: Pairing::Halves, scaling }
}

#[track_caller]
fn assert_close(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= 1e-12 * want.abs(), "pair {i}: {got} against {want}");
    }
}

#[test]
fn plain_frequencies_are_a_geometric_series() {
    assert_close(&rope(10_000.0, 8, RopeScaling::None).inv_freq(), &[1.0, 0.1, 0.01, 0.001]);
    let linear = RopeScaling::Linear { factor: 4.0 };
    assert_close(&rope(10_000.0, 8, linear).inv_freq(), &[0.25, 0.025, 0.0025, 0.00025]);
    let factors = RopeScaling::Factors(vec![1.0, 2.0, 4.0, 8.0]);
    assert_close(&rope(10_000.0, 8, factors).inv_freq(), &[1.0, 0.05, 0.0025, 0.000125]);
}

/// The published procedure, branch by branch, on wavelengths.
fn llama3_by_wavelength(theta: f64, dims: u32, factor: f64, low: f64, high: f64, context: f64) -> Vec<f64> {
    (0..dims / 2)
        .map(|i| {
            let freq = 1.0 / theta.powf(2.0 * f64::from(i) / f64::from(dims));
            let wavelength = 2.0 * std::f64::consts::PI / freq;
            if wavelength < context / high {
                freq
            } else if wavelength > context / low {
                freq / factor
            } else {
                let smooth = (context / wavelength - low) / (high - low);
                (1.0 - smooth) * freq / factor + smooth * freq
            }
        })
        .collect()
}

#[test]
fn llama3_keeps_high_and_stretches_low_frequencies() {
    for (theta, dims, factor, low, high, context) in [
        (500_000.0, 128, 8.0, 1.0, 4.0, 8192.0),
        (500_000.0, 16, 8.0, 1.0, 4.0, 128.0),
        (1e4, 64, 32.0, 1.0, 4.0, 8192.0),
    ] {
        let scaling = RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_context: context,
        };
        let want = llama3_by_wavelength(theta, dims, factor, low, high, context);
        assert_close(&rope(theta, dims, scaling).inv_freq(), &want);
        // The example has pairs of all three kinds.
        let plain = rope(theta, dims, RopeScaling::None).inv_freq();
        let stretch = plain.iter().zip(&want).map(|(a, b)| a / b).collect::<Vec<_>>();
        assert!(stretch.contains(&1.0) && stretch.iter().any(|s| (s - factor).abs() < 1e-9));
        assert!(stretch.iter().any(|&s| s > 1.0 && s < factor - 1e-9), "{stretch:?}");
    }
}

#[test]
fn yarn_keeps_fast_pairs_and_stretches_slow_ones() {
    let yarn = |truncate| RopeScaling::Yarn {
        factor: 32.0,
        original_context: 4096.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 1.0,
        truncate,
    };
    let plain = rope(150_000.0, 64, RopeScaling::None).inv_freq();
    // The pair that makes 32 turns within 4096 tokens, and the pair that makes one.
    let pair = |turns: f64| 64.0 * (4096.0 / (turns * std::f64::consts::TAU)).log(150_000.0) / 2.0;
    assert!((8.0..9.0).contains(&pair(32.0)) && (17.0..18.0).contains(&pair(1.0)));
    for (truncate, low, high) in [(true, 8.0, 18.0), (false, pair(32.0), pair(1.0))] {
        let got = rope(150_000.0, 64, yarn(truncate)).inv_freq();
        for (i, (got, plain)) in got.iter().zip(&plain).enumerate() {
            let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            let want = plain / 32.0 * ramp + plain * (1.0 - ramp);
            assert!((got - want).abs() < 1e-9 * want, "pair {i}: {got} against {want}");
        }
    }
}
