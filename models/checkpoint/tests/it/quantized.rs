//! Quantised safetensors as they are published, against the numbers that their formulas give.

use checkpoint::{Dtype, Quantization, Safetensors, WeightSource};
use half::f16;
use insta::assert_snapshot;
use serde_json::json;

use super::fixture;

/// Every layout, and the type that its matrices are loaded in: F16 for fp8 in blocks of 32, or rows that are no multiple of 128.
const SCHEMES: [(&str, Dtype); 11] = [
    ("gptq", Dtype::Q4_0),
    ("gptq-zeros", Dtype::Q5_0),
    ("gptq-int8", Dtype::Q8_0),
    ("gptq-order", Dtype::F16),
    ("awq", Dtype::Q5_0),
    ("packed", Dtype::Q4_0),
    ("packed-zeros", Dtype::Q5_0),
    ("int8", Dtype::Q8_0),
    ("fp8-block", Dtype::F16),
    ("fp8-channel", Dtype::F16),
    ("fp8-tensor", Dtype::F16),
];

/// Whether a matrix of fp8 stays in codes: a scale serves 128 neighbours of each row.
fn is_whole(scheme: &str, width: usize) -> bool {
    matches!(scheme, "fp8-channel" | "fp8-tensor") && width.is_multiple_of(128)
}

#[test]
fn equals_the_formula_of_each_scheme_bit_for_bit() {
    for (scheme, dtype) in SCHEMES {
        let folder = fixture("quantized").join(scheme);
        let open = Safetensors::open(&folder).unwrap();
        let values = Safetensors::open(folder.join("values.safetensors")).unwrap();
        assert_eq!(values.names().len(), 2, "{scheme}");
        for name in values.names() {
            assert!(open.contains(name), "{scheme}: {name}");
            let got = open.get(name).unwrap().unwrap();
            let want = values.get(name).unwrap().unwrap();
            let in_codes = is_whole(scheme, got.shape[1]);
            let dtype = if in_codes { Dtype::F8_E4M3 } else { dtype };
            assert_eq!((got.dtype, &got.shape), (dtype, &want.shape), "{scheme}: {name}");
            for (i, (got, want)) in got.to_f32().iter().zip(want.to_f32()).enumerate() {
                // The fixture's numbers are rounded to f16, those of codes are not.
                let got = &if in_codes { f16::from_f32(*got).to_f32() } else { *got };
                // A zero has no sign in codes.
                let same = got.to_bits() == want.to_bits() || *got == 0.0 && want == 0.0;
                assert!(same, "{scheme}: element {i} of {name} is {got}, not {want}");
            }
        }
    }
}

/// Experts of DeepSeek V4 stay in four bits, or in eight where they are stored so, and all else in eight.
#[test]
fn deepseek_v4_stays_in_its_codes() {
    // The layer with an indexer.
    let folders = [("tiny-deepseek-v4-fp4", 1, Dtype::MXFP4), ("tiny-deepseek-v4-fp8", 0, Dtype::F8_E4M3)];
    for (folder, l, experts) in folders {
        let open = Safetensors::open(fixture(folder)).unwrap();
        let dtype = |name: &str| open.get(name).unwrap().unwrap().dtype;
        for expert in ["w1", "w3"] {
            assert_eq!(dtype(&format!("layers.{l}.ffn.experts.3.{expert}.weight")), experts, "{folder}");
        }
        for name in ["attn.wq_a", "attn.wo_a", "attn.wo_b", "attn.indexer.wq_b", "ffn.shared_experts.w1"] {
            assert_eq!(dtype(&format!("layers.{l}.{name}.weight")), Dtype::F8_E4M3, "{folder}: {name}");
        }
        for name in open.names() {
            let whole = open.whole(name).filter(|whole| open.contains(whole));
            let whole = whole.unwrap_or_else(|| name.to_owned());
            assert!(open.get(&whole).is_ok() || name.ends_with("tid2eid"), "{folder}: {name}");
        }
    }
}

/// A byte of fp4 holds neighbours, the even one in its low half, and a scale is a power of two for 32 of them.
#[test]
fn fp4_is_read_element_by_element() {
    let folder = fixture("tiny-deepseek-v4-fp4");
    let file = std::fs::read(folder.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&file).unwrap();
    let stem = "layers.2.ffn.experts.1.w2";
    let codes = file.tensor(&format!("{stem}.weight")).unwrap();
    let scales = file.tensor(&format!("{stem}.scale")).unwrap();
    let got = Safetensors::open(&folder).unwrap().get(&format!("{stem}.weight")).unwrap().unwrap().to_f32();
    assert_eq!(got.len(), 2 * codes.data().len());
    for (i, got) in got.into_iter().enumerate() {
        let code = (codes.data()[i / 2] >> (4 * (i % 2))) & 15;
        // Two bits of exponent, one of mantissa; without an exponent halves.
        let size = match (code & 7) >> 1 {
            0 => f32::from(code & 1) / 2.0,
            exponent => (1.0 + f32::from(code & 1) / 2.0) * f32::from(1_u8 << (exponent - 1)),
        };
        let sign = if code < 8 { 1.0 } else { -1.0 };
        let want = sign * size * 2.0_f32.powi(i32::from(scales.data()[i / 32]) - 127);
        assert_eq!(got, want, "element {i}");
    }
}

/// Every stored tensor is one of a model, or a part of one.
#[test]
fn parts_belong_to_matrices() {
    for (scheme, _) in SCHEMES {
        let open = Safetensors::open(fixture("quantized").join(scheme)).unwrap();
        for name in open.names() {
            let whole = open.whole(name).unwrap_or_else(|| name.to_owned());
            assert!(open.get(&whole).unwrap().is_some(), "{scheme}: {name} is a part of {whole}");
        }
    }
}

#[test]
fn schemes_that_nothing_reads_are_named() {
    let refused = |config| Quantization::read(&config).unwrap_err().to_string();
    assert_snapshot!(refused(json!({ "quant_method": "bitsandbytes" })), @r#"quantization_config.quant_method = "bitsandbytes""#);
    assert_snapshot!(refused(json!({ "quant_method": "gptq", "bits": 3 })), @"quantization_config.bits = 3");
    assert_snapshot!(refused(json!({ "quant_method": "awq", "bits": 4, "version": "gemv" })), @r#"quantization_config.version = "gemv""#);
    assert_snapshot!(refused(json!({ "quant_method": "fp8", "fmt": "e5m2" })), @r#"quantization_config.fmt = "e5m2""#);
    assert_snapshot!(refused(json!({ "quant_method": "fp8", "weight_block_size": [0, 1] })), @"quantization_config.weight_block_size = [0,1]");
    let groups = |weights| json!({ "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": weights });
    assert_snapshot!(refused(groups(json!({}))), @"quantization_config.config_groups = {}");
    let two = json!({ "a": { "weights": { "num_bits": 4, "type": "int" } }, "b": { "weights": { "num_bits": 2, "type": "int" } } });
    assert_snapshot!(refused(groups(two)), @"quantization_config.config_groups.weights.num_bits = 2");
}

/// A layout in the file that the configuration does not state, and parts that do not fit.
#[test]
fn parts_that_do_not_fit_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let name = "model.layers.1.self_attn.k_proj.weight";
    let read = |scheme: &str, quantization: serde_json::Value| {
        let from = fixture("quantized").join(scheme).join("model.safetensors");
        std::fs::copy(from, folder.path().join("model.safetensors")).unwrap();
        let config = json!({ "quantization_config": quantization }).to_string();
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        Safetensors::open(folder.path()).unwrap().get(name).unwrap_err().to_string()
    };
    let awq = json!({ "quant_method": "awq", "bits": 4 });
    assert_snapshot!(read("gptq", awq), @"the quantised tensor model.layers.1.self_attn.k_proj.weight cannot be read: scales [2, 32] are not of 256 outputs");
    let gptq = json!({ "quant_method": "gptq", "bits": 8 });
    assert_snapshot!(read("gptq", gptq), @"the quantised tensor model.layers.1.self_attn.k_proj.weight cannot be read: zero points are I32 [2, 4], not I32 [2, 8]");
    let packed = json!({ "quant_method": "gptq", "bits": 4 });
    assert_snapshot!(read("packed", packed), @"the quantised tensor model.layers.1.self_attn.k_proj.weight cannot be read: its layout is not the one that quantization_config states");
    let fp8 = json!({ "quant_method": "fp8", "weight_block_size": [7, 7] });
    assert_snapshot!(read("fp8-block", fp8), @"the quantised tensor model.layers.1.self_attn.k_proj.weight cannot be read: scales [1, 2] fit neither 32 rows nor blocks of 7 by 7 of [32, 64]");
}
