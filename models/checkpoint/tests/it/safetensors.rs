//! Hugging Face directories.

use std::{collections::HashMap, path::Path};

use checkpoint::{Dtype, Role, Safetensors, WeightSource};
use insta::assert_snapshot;
use proptest::prelude::*;
use safetensors::{Dtype as StDtype, serialize, tensor::TensorView};

use super::{alloc, cases, fixture};

fn file(tensors: &[(&str, StDtype, &[usize], &[u8])]) -> Vec<u8> {
    let views = tensors
        .iter()
        .map(|&(name, dtype, shape, data)| (name, TensorView::new(dtype, shape.to_vec(), data).unwrap()));
    serialize(views, None).unwrap()
}

fn open_error(dir: &Path) -> String {
    let message = Safetensors::open(dir).unwrap_err().to_string();
    message.replace(&dir.display().to_string(), "DIR")
}

#[test]
fn reads_a_single_file_by_role() {
    let weights = Safetensors::open(fixture("tiny-llama")).unwrap();
    let embed = weights.tensor(Role::Embed).unwrap();
    assert_eq!((embed.dtype, &embed.shape[..]), (Dtype::F32, &[128, 64][..]));
    for layer in 0..3 {
        assert_eq!(weights.tensor(Role::K(layer)).unwrap().shape, [32, 64]);
        assert_eq!(weights.tensor(Role::Down(layer)).unwrap().shape, [64, 128]);
    }
    assert!(!weights.has(Role::LmHead));
    assert!(!weights.has(Role::RopeFactors));
    assert!(embed.to_f32().iter().all(|x| x.is_finite()));
}

#[test]
fn plain_types_are_read_and_others_refused_by_name() {
    let bytes = file(&[
        ("bf16", StDtype::BF16, &[2], &[0x80, 0x3f, 0x00, 0xc0]),
        ("f16", StDtype::F16, &[1], &[0x00, 0x3c]),
        ("i64", StDtype::I64, &[1], &[0; 8]),
    ]);
    let weights = Safetensors::from_bytes(bytes).unwrap();
    assert_eq!(weights.get("bf16").unwrap().unwrap().to_f32(), [1.0, -2.0]);
    assert_eq!(weights.get("f16").unwrap().unwrap().to_f32(), [1.0]);
    assert_snapshot!(weights.get("i64").unwrap_err(), @"tensor i64 is stored as I64, which is not implemented (implemented: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, TQ1_0, TQ2_0, Q8_K)");
    assert_snapshot!(weights.tensor(Role::FinalNorm).unwrap_err(), @"<memory> has no tensor model.norm.weight");
    assert_snapshot!(weights.tensor(Role::RopeFactors).unwrap_err(), @"<memory> has no tensor of role RopeFactors in safetensors");
}

#[test]
fn pairs_of_mxfp4_blocks_and_scales_are_one_tensor() {
    // Codes 0 to 15 twice in the order of gpt-oss (low nibble first), times 2^(128 - 127).
    let codes = [0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe];
    let bytes = file(&[
        ("w_blocks", StDtype::U8, &[1, 1, 16], &[codes, codes].concat()),
        ("w_scales", StDtype::U8, &[1, 1], &[128]),
        ("odd_blocks", StDtype::U8, &[1, 15], &[0; 15]),
        ("odd_scales", StDtype::U8, &[1], &[0]),
    ]);
    let weights = Safetensors::from_bytes(bytes).unwrap();
    let tensor = weights.get("w").unwrap().unwrap();
    assert!(weights.contains("w"));
    assert_eq!((tensor.dtype, &tensor.shape[..]), (Dtype::MXFP4, &[1, 32][..]));
    let half = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];
    assert_eq!(tensor.to_f32(), [half, half].concat());
    assert_snapshot!(weights.get("odd").unwrap_err(), @"MXFP4 tensor odd: blocks [1, 15] and scales [1] do not fit, want [.., n, 16] and [.., n]");
}

/// As older and newer files call it; eyes, and what leads from them to the text, are no part of it.
#[test]
fn a_text_model_among_others_has_its_own_names() {
    let number: &[u8] = &[0; 4];
    let tensors = [
        "language_model.model.norm.weight",
        "language_model.lm_head.weight",
        "model.language_model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
        "vision_tower.norm.weight",
        "model.vision_tower.norm.weight",
        "multi_modal_projector.norm.weight",
        "model.multi_modal_projector.norm.weight",
    ];
    let tensors = tensors.map(|name| (name, StDtype::F32, &[1_usize][..], number));
    let open = Safetensors::from_bytes(file(&tensors)).unwrap();
    let text = ["lm_head", "model.embed_tokens", "model.layers.0.input_layernorm", "model.norm"];
    assert_eq!(open.names(), text.map(|name| format!("{name}.weight")));
    assert!(open.has(Role::FinalNorm) && open.has(Role::LmHead) && open.has(Role::Embed));
}

#[test]
fn shards_are_found_through_the_index() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    assert_snapshot!(open_error(dir.path()), @"DIR holds neither model.safetensors nor model.safetensors.index.json");
    let index = |map: &[(&str, &str)]| {
        let map: HashMap<_, _> = map.iter().copied().collect();
        serde_json::to_vec(&serde_json::json!({ "metadata": {}, "weight_map": map })).unwrap()
    };
    write("a.safetensors", &file(&[("x", StDtype::F32, &[1], &1.5_f32.to_le_bytes())]));
    write("b.safetensors", &file(&[("y", StDtype::F32, &[1], &2.5_f32.to_le_bytes())]));
    write("model.safetensors.index.json", &index(&[("x", "a.safetensors"), ("y", "b.safetensors")]));
    let weights = Safetensors::open(dir.path()).unwrap();
    assert_eq!(weights.names(), ["x", "y"]);
    assert_eq!(weights.get("y").unwrap().unwrap().to_f32(), [2.5]);

    write("model.safetensors.index.json", &index(&[("x", "b.safetensors")]));
    assert_snapshot!(open_error(dir.path()), @"the shard index places tensor x in DIR/b.safetensors, which lacks it");
    write("model.safetensors.index.json", &index(&[("x", "../a.safetensors")]));
    assert_snapshot!(open_error(dir.path()), @r#"DIR/model.safetensors.index.json places tensor x in "../a.safetensors", which is not a plain file name"#);
    write("model.safetensors.index.json", b"{}");
    assert_snapshot!(open_error(dir.path()), @"DIR/model.safetensors.index.json is not a readable shard index: missing field `weight_map` at line 1 column 2");
    write("model.safetensors.index.json", &index(&[("x", "b.safetensors")]));
    write("b.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\x7f{}");
    assert_snapshot!(open_error(dir.path()), @"DIR/b.safetensors is not a readable safetensors file: header too large");
}

fn exercise(bytes: Vec<u8>) {
    let (weights, largest) = alloc::largest(|| Safetensors::from_bytes(bytes));
    assert!(largest < 1 << 16, "a file of less than 1 KiB made the reader ask for {largest} bytes");
    let Ok(weights) = weights else { return };
    for name in weights.names() {
        for name in [name, name.trim_end_matches("_blocks")] {
            if let Ok(Some(tensor)) = weights.get(name) {
                assert_eq!(tensor.dtype.bytes_for(tensor.elems()), Some(tensor.data.len()));
                tensor.to_f32();
            }
        }
    }
}

fn small() -> Vec<u8> {
    file(&[
        ("f", StDtype::F32, &[2, 2], &[1; 16]),
        ("w_blocks", StDtype::U8, &[2, 1, 16], &[3; 32]),
        ("w_scales", StDtype::U8, &[2, 1], &[127; 2]),
    ])
}

#[test]
fn no_truncation_is_taken_for_a_file() {
    let bytes = small();
    for len in 0..bytes.len() {
        assert!(Safetensors::from_bytes(bytes[..len].to_vec()).is_err(), "{len} bytes");
    }
    exercise(bytes);
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn mutated_bytes_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)
    ) {
        let mut bytes = small();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        exercise(bytes);
    }

    #[test]
    fn mutated_shapes_never_panic(digits in "[0-9]{1,20}", at in 0_usize..3) {
        let text = String::from_utf8(small()[8..].iter().copied().take_while(|&b| b < 128 && b != 1).collect()).unwrap();
        let shape = ["[2,2]", "[2,1,16]", "[2,1]"][at];
        let header = text.replacen(shape, &format!("[{digits},0]"), 1);
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend([1; 50]);
        exercise(bytes);
    }
}
