//! Numbers quantised to each type, against the Python package `gguf` and against what the codes can hold.

use checkpoint::{Checkpoint, Dtype, Role, Safetensors, WeightError, WeightSource, dequantize, quantize};
use proptest::prelude::*;
use safetensors::SafeTensors;

use super::{cases, fixture};

fn back(dtype: Dtype, blocks: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; blocks.len() / dtype.block_bytes() * dtype.block_elems()];
    dequantize(dtype, blocks, &mut values);
    values
}

#[test]
fn equals_the_gguf_package_bit_for_bit() {
    let path = fixture("quantize/blocks.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let blocks = SafeTensors::deserialize(&bytes).unwrap();
    let values = Safetensors::open(&path).unwrap().get("values").unwrap().unwrap().to_f32();
    for dtype in [Dtype::Q8_0, Dtype::Q5_1, Dtype::Q5_0, Dtype::Q4_1, Dtype::Q4_0] {
        let want = blocks.tensor(&format!("{dtype}.blocks")).unwrap();
        let got = quantize(dtype, &values);
        let pairs = got.chunks(dtype.block_bytes()).zip(want.data().chunks(dtype.block_bytes()));
        for (i, (got, want)) in pairs.enumerate() {
            assert_eq!(got, want, "{dtype} block {i}");
        }
    }
}

/// Mean squared error over mean square, of numbers as weights have them.
fn error(dtype: Dtype) -> f64 {
    let uniform = |i: u32| f64::from(i.wrapping_mul(2_654_435_761).rotate_left(13) >> 8) / f64::from(1 << 24);
    #[expect(clippy::cast_possible_truncation, reason = "weights are f32")]
    let normal = |i: u32| {
        let (u, v) = (uniform(2 * i + 1).max(1e-9), uniform(2 * i + 2));
        (0.02 * (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
    };
    let values: Vec<f32> = (0..8192).map(normal).collect();
    let read = back(dtype, &quantize(dtype, &values));
    let off: f64 = read.iter().zip(&values).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    off / values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>()
}

/// A search for scales is worth its time: K types lose less than types of as many bits without one.
#[test]
fn more_bits_and_a_search_lose_less() {
    let [q8_0, q6_k, q5_1, q5_0, q5_k, q4_1, q4_0, q4_k] = Dtype::TARGETS.map(error);
    assert!(q8_0 < q6_k && q6_k < q5_k && q5_k < q5_0 && q5_1 < q5_0 && q5_0 < q4_k, "order of bits");
    assert!(q4_k < q4_0 && q4_1 < q4_0, "{q4_k} {q4_1} {q4_0}");
}

proptest! {
    #![proptest_config(cases(64))]

    /// Every number comes back within a step of its run, whatever the sizes of its neighbours.
    #[test]
    fn every_number_comes_back_within_a_step(
        values in prop::collection::vec(-1.0_f32..1.0, 256),
        size in -12_i32..12,
    ) {
        let values: Vec<f32> = values.iter().map(|value| value * 2.0_f32.powi(size)).collect();
        for (dtype, steps) in Dtype::TARGETS.into_iter().zip([127.0, 31.0, 15.0, 15.0, 15.0, 7.0, 7.0, 7.0]) {
            let read = back(dtype, &quantize(dtype, &values));
            let run = if dtype == Dtype::Q6_K { 16 } else { 32 };
            for (values, read) in values.chunks(run).zip(read.chunks(run)) {
                let most = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
                // f16 scales below its normal numbers are coarse.
                let allowed = 1.3 * most / steps + 3e-6 * steps;
                for (value, read) in values.iter().zip(read) {
                    prop_assert!((value - read).abs() <= allowed, "{dtype}: {value} became {read} of {most}");
                }
            }
        }
    }

    /// Codes times a power of two are held exactly.
    #[test]
    fn codes_come_back_as_they_are(codes in prop::collection::vec(-8_i8..8, 256), size in -8_i32..8) {
        let values: Vec<f32> = codes
            .chunks(32)
            .flat_map(|run| std::iter::once(&-8).chain(&run[1..]))
            .map(|code| f32::from(*code) * 2.0_f32.powi(size))
            .collect();
        prop_assert_eq!(back(Dtype::Q4_0, &quantize(Dtype::Q4_0, &values)), values);
    }
}

#[test]
fn what_is_not_finite_does_not_come_back_as_a_number() {
    for dtype in Dtype::TARGETS {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![0.5; 256];
            values[77] = wrong;
            assert!(back(dtype, &quantize(dtype, &values))[77].is_nan(), "{dtype} of {wrong}");
        }
        assert!(back(dtype, &quantize(dtype, &[0.0; 256])).iter().all(|value| *value == 0.0), "{dtype}");
    }
}

/// Matrices alone, the output head in six bits at least, and substitutes where rows are no whole blocks.
#[test]
fn types_are_chosen_as_llama_cpp_chooses_them() {
    let mut chosen = Vec::new();
    for (name, to) in
        [("tiny-llama", Dtype::Q4_K), ("tiny-qwen3-moe", Dtype::Q4_0), ("tiny-qwen3-moe", Dtype::Q8_0)]
    {
        let checkpoint = Checkpoint::open(fixture(name)).unwrap();
        let config = checkpoint.config().unwrap();
        let checkpoint = checkpoint.quantize(&config, to).unwrap();
        let roles = config.tensors().into_iter().filter(|role| {
            // One layer and one expert tell of all.
            let text = format!("{role:?}");
            let first = !text.contains('(') || text.contains("(0)") || text.contains("(0, 0)");
            first && checkpoint.weights().has(*role)
        });
        let of = |role: Role| {
            let tensor = checkpoint.weights().tensor(role).unwrap();
            let bytes = tensor.dtype.bytes_for(tensor.elems());
            assert_eq!(bytes, Some(tensor.data.len()), "{role:?}");
            format!("{role:?} {}", tensor.dtype)
        };
        chosen.push(format!("{name} to {to}: {}", roles.map(of).collect::<Vec<_>>().join(", ")));
    }
    insta::assert_snapshot!(chosen.join("\n"), @"
    tiny-llama to Q4_K: Embed Q8_0, FinalNorm F32, AttnNorm(0) F32, MlpNorm(0) F32, Q(0) Q5_0, K(0) Q5_0, V(0) Q5_0, O(0) Q5_0, Gate(0) Q5_0, Up(0) Q5_0, Down(0) Q5_0
    tiny-qwen3-moe to Q4_0: Embed Q4_0, FinalNorm F32, LmHead Q8_0, AttnNorm(0) F32, MlpNorm(0) F32, Q(0) Q4_0, K(0) Q4_0, V(0) Q4_0, QNorm(0) F32, KNorm(0) F32, O(0) Q4_0, Router(0) F32, ExpertGate(0, 0) Q4_0, ExpertUp(0, 0) Q4_0, ExpertDown(0, 0) F32
    tiny-qwen3-moe to Q8_0: Embed Q8_0, FinalNorm F32, LmHead Q8_0, AttnNorm(0) F32, MlpNorm(0) F32, Q(0) Q8_0, K(0) Q8_0, V(0) Q8_0, QNorm(0) F32, KNorm(0) F32, O(0) Q8_0, Router(0) F32, ExpertGate(0, 0) Q8_0, ExpertUp(0, 0) Q8_0, ExpertDown(0, 0) F32
    ");
}

#[test]
fn types_without_a_way_to_them_are_refused() {
    let checkpoint = Checkpoint::open(fixture("tiny-llama")).unwrap();
    let config = checkpoint.config().unwrap();
    let error = checkpoint.quantize(&config, Dtype::IQ4_XS).unwrap_err();
    assert!(matches!(error, WeightError::Target { dtype: Dtype::IQ4_XS }));
    insta::assert_snapshot!(error, @"weights are not quantised to IQ4_XS at load, but to q8_0, q6_k, q5_1, q5_0, q5_k, q4_1, q4_0, q4_k");
}
