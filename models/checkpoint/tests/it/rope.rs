//! Rotary inverse frequencies.

use checkpoint::{Checkpoint, DecoderConfig, Pairing, Rope, RopeScaling};
use serde_json::{Value, json};

use super::fixture;

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

/// The configuration of a Phi 3 with LongRoPE, with other fields.
fn phi3(change: &Value) -> Result<DecoderConfig, String> {
    let text = std::fs::read_to_string(fixture("tiny-phi3-long").join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    DecoderConfig::from_hf_json(&config.to_string(), None).map_err(|error| error.to_string())
}

const LONG: [f32; 6] = [1.0, 1.5, 2.5, 6.0, 11.0, 32.0];
const SHORT: [f32; 6] = [1.0, 1.0, 1.1, 1.2, 1.3, 1.4];

/// The factors are those of the context that is stated, and the short ones where all texts are short: those of
/// `1 / (theta^(2i / dims) * factor)`, and a factor on sine and cosine that follows from the stretch of the whole context.
#[test]
fn longrope_takes_the_factors_of_the_longest_text() {
    let stretch = (1.0 + 128_f64.ln() / 32_f64.ln()).sqrt();
    for (tokens, factors, context) in [(1, SHORT, 32), (32, SHORT, 32), (33, LONG, 4096), (4096, LONG, 4096)]
    {
        let config = phi3(&json!({})).unwrap().for_longest(tokens);
        let want = (0..6)
            .zip(factors)
            .map(|(i, factor)| 1.0 / (10_000_f64.powf(2.0 * f64::from(i) / 12.0) * f64::from(factor)));
        assert_close(&config.rope.inv_freq(), &want.collect::<Vec<_>>());
        assert_close(&[config.rope.attention_factor()], &[stretch]);
        assert_eq!(config.context_length, context, "{tokens} tokens");
    }
    let whole = phi3(&json!({ "max_position_embeddings": 32 })).unwrap();
    let of_short = RopeScaling::Long { factors: SHORT.to_vec(), short: None, attention_factor: 1.0 };
    assert_eq!(whole.rope.scaling, of_short);
    let gguf = Checkpoint::open(fixture("tiny-phi3-long").join("model.gguf")).unwrap().config().unwrap();
    let RopeScaling::Long { factors, short: None, .. } = gguf.for_longest(32).rope.scaling else {
        panic!("the file has both")
    };
    assert_eq!(factors, SHORT);
}

/// One set of factors serves every length, and other rotations know no length.
#[test]
fn without_short_factors_no_length_changes_a_rotation() {
    let alone = json!({ "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32,
        "partial_rotary_factor": 0.75, "long_factor": LONG });
    let config = phi3(&json!({ "rope_parameters": alone })).unwrap();
    assert_eq!(config.clone().for_longest(1), config);
    let llama = Checkpoint::open(fixture("tiny-llama")).unwrap().config().unwrap();
    assert_eq!(llama.clone().for_longest(1), llama);
    let odd = json!({ "rope_type": "longrope", "long_factor": [1.0], "short_factor": [1.0] });
    let error = phi3(&json!({ "partial_rotary_factor": null, "rope_parameters": odd })).unwrap_err();
    insta::assert_snapshot!(error, @"the number of rope factors is 1, it must be half of the rotary dims");
}
