//! Refusals of loading and of steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use attn_kernels::kernel::KvDtype;
use insta::assert_snapshot;
use kvblock::BlockId;
use models::batch::{Phase, Slice};
use models::{DecoderConfig, ModelError, SelectionPlace, SparseOptions};
use safetensors::tensor::{Dtype, TensorView};
use sparse_select::{BlockSize, Input, Policy, SelectError, Selection, Support};

use super::options;
use super::served::{Request, serve};
use super::tiny::{family, tiny};

const NO_CHANGE: fn(&mut DecoderConfig) = |_| ();

fn f32s(shape: &[usize], data: &'static [u8]) -> TensorView<'static> {
    let bytes = 4 * shape.iter().product::<usize>();
    TensorView::new(Dtype::F32, shape.to_vec(), &data[..bytes]).unwrap()
}

static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

#[test]
fn tensors_that_are_missing_extra_or_other_than_the_configuration_says_are_named() {
    let tiny = tiny();
    let missing = tiny.edited(|tensors| drop(tensors.remove("model.layers.1.mlp.up_proj.weight")), NO_CHANGE);
    assert_snapshot!(missing.unwrap_err(), @"<memory> has no tensor model.layers.1.mlp.up_proj.weight");
    let extra = |tensors: &mut BTreeMap<String, TensorView<'_>>| {
        for layer in [0, 2] {
            tensors.insert(format!("model.layers.{layer}.self_attn.q_norm.weight"), f32s(&[16], &ZEROS));
        }
    };
    assert_snapshot!(tiny.edited(extra, NO_CHANGE).unwrap_err(), @"<memory> has tensor model.layers.0.self_attn.q_norm.weight, which the model does not use, and 1 more");
    let rows = |tensors: &mut BTreeMap<String, TensorView<'_>>| {
        tensors.insert("model.embed_tokens.weight".into(), f32s(&[120, 64], &ZEROS));
    };
    assert_snapshot!(tiny.edited(rows, NO_CHANGE).unwrap_err(), @"tensor model.embed_tokens.weight has shape [120, 64], the configuration asks for [128, 64]");
    assert_snapshot!(tiny.edited(|_| (), |config| config.vocab_size = 130).unwrap_err(), @"tensor model.embed_tokens.weight has shape [128, 64], the configuration asks for [130, 64]");
    let integers = |tensors: &mut BTreeMap<String, TensorView<'_>>| {
        let view = TensorView::new(Dtype::I32, vec![64], &ZEROS[..256]).unwrap();
        tensors.insert("model.norm.weight".into(), view);
    };
    assert_snapshot!(tiny.edited(integers, NO_CHANGE).unwrap_err(), @"tensor model.norm.weight is stored as I32, which is not implemented (implemented: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, TQ1_0, TQ2_0, Q8_K)");
    let experts = |tensors: &mut BTreeMap<String, TensorView<'_>>| {
        drop(tensors.remove("model.layers.0.mlp.experts.7.down_proj.weight"));
    };
    assert_snapshot!(family("tiny-qwen3-moe").edited(experts, NO_CHANGE).unwrap_err(), @"<memory> has no tensor model.layers.0.mlp.experts.7.down_proj.weight");
    let ninth = |tensors: &mut BTreeMap<String, TensorView<'_>>| {
        tensors.insert("model.layers.0.mlp.experts.8.up_proj.weight".into(), f32s(&[48, 64], &ZEROS));
    };
    assert_snapshot!(family("tiny-qwen3-moe").edited(ninth, NO_CHANGE).unwrap_err(), @"<memory> has tensor model.layers.0.mlp.experts.8.up_proj.weight, which the model does not use");
}

/// A decoder of a gate and an up of two types has the numbers of both.
#[test]
fn gates_and_ups_of_two_types_load() {
    let tiny = tiny();
    let name = "model.layers.0.mlp.up_proj.weight";
    let file = std::fs::read(super::tiny::fixture("tiny-llama/model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let up = tensors.tensor(name).unwrap();
    assert_eq!(up.dtype(), Dtype::F32);
    let upper: &'static [u8] =
        up.data().chunks_exact(4).flat_map(|bytes| [bytes[2], bytes[3]]).collect::<Vec<u8>>().leak();
    let whole =
        upper.chunks_exact(2).flat_map(|upper| [0, 0, upper[0], upper[1]]).collect::<Vec<u8>>().leak();
    let logits = |dtype, data: &'static [u8]| {
        let view = TensorView::new(dtype, up.shape().to_vec(), data).unwrap();
        let mut decoder = tiny.edited(|tensors| drop(tensors.insert(name.into(), view)), NO_CHANGE).unwrap();
        serve(&mut decoder, &[Request::new(&tiny.prompts[0].ids, 4)], 64)[0].bits()
    };
    assert_eq!(logits(Dtype::BF16, upper), logits(Dtype::F32, whole));
}

#[test]
fn tensors_of_deepseek_v4_are_named() {
    let refused = |edit: &dyn Fn(&mut BTreeMap<String, TensorView<'_>>)| {
        family("tiny-deepseek-v4").edited(edit, NO_CHANGE).unwrap_err().to_string()
    };
    for (name, layer) in
        [("self_attn.compressor.position_bias", 1), ("attn_hc.scale", 0), ("mlp.gate.tid2eid", 0)]
    {
        let name = format!("model.layers.{layer}.{name}");
        let missing = refused(&|tensors| drop(tensors.remove(&name)));
        assert_eq!(missing, format!("<memory> has no tensor {name}"));
    }
    assert_snapshot!(refused(&|tensors| drop(tensors.remove("model.hc_head.hc_fn"))), @"<memory> has no tensor model.hc_head.hc_fn");
    let with = |name: &str, dtype, shape: &[usize], data: &'static [u8]| {
        let view = TensorView::new(dtype, shape.to_vec(), data).unwrap();
        let name = format!("model.layers.{name}");
        refused(&move |tensors: &mut BTreeMap<String, TensorView<'_>>| {
            drop(tensors.insert(name.clone(), view.clone()))
        })
    };
    static ONES: [u8; 1024] = [0xff; 1024];
    assert_snapshot!(with("0.mlp.gate.tid2eid", Dtype::I32, &[128, 2], &ONES), @"tensor model.layers.0.mlp.gate.tid2eid sends token 0 to expert -1, there are 8");
    assert_snapshot!(with("0.mlp.gate.tid2eid", Dtype::I64, &[64, 2], &ONES), @"tensor model.layers.0.mlp.gate.tid2eid has shape [64, 2], the configuration asks for [128, 2]");
    assert_snapshot!(with("0.mlp.gate.tid2eid", Dtype::F32, &[128, 2], &ONES), @"tensor model.layers.0.mlp.gate.tid2eid is stored as F32, not as integers of 32 or 64 bits");
    assert_snapshot!(with("2.self_attn.compressor.indexer.kv_norm.weight", Dtype::F32, &[16], &ZEROS[..64]), @"tensor model.layers.2.self_attn.compressor.indexer.kv_norm.weight has shape [16], the configuration asks for [32]");
    assert_snapshot!(with("0.self_attn.compressor.kv_norm.weight", Dtype::F32, &[32], &ZEROS[..128]), @"<memory> has tensor model.layers.0.self_attn.compressor.kv_norm.weight, which the model does not use");
    let draft = |tensors: &mut BTreeMap<String, TensorView<'_>>| {
        tensors.insert("mtp.0.enorm.weight".into(), f32s(&[64], &ZEROS));
    };
    assert!(family("tiny-deepseek-v4").edited(draft, NO_CHANGE).is_ok());
}

#[test]
fn tensors_that_repeat_something_are_not_extra() {
    let frequencies = |tensors: &mut BTreeMap<String, TensorView<'_>>| {
        let name = "model.layers.0.self_attn.rotary_emb.inv_freq";
        tensors.insert(name.into(), f32s(&[8], &ZEROS));
    };
    assert!(tiny().edited(frequencies, NO_CHANGE).is_ok());
    let draft = |tensors: &mut BTreeMap<String, TensorView<'_>>| {
        tensors.insert("model.layers.3.enorm.weight".into(), f32s(&[64], &ZEROS));
    };
    assert!(family("tiny-deepseek-v32").edited(draft, NO_CHANGE).is_ok());
    // An output head beside a tied embedding: a copy, or another one.
    assert!(tiny().config.tie_embeddings);
    let copy = |tensors: &mut BTreeMap<String, TensorView<'_>>| {
        let embedding = tensors["model.embed_tokens.weight"].clone();
        tensors.insert("lm_head.weight".into(), embedding);
    };
    assert!(tiny().edited(copy, NO_CHANGE).is_ok());
    let other = |tensors: &mut BTreeMap<String, TensorView<'_>>| {
        tensors.insert("lm_head.weight".into(), f32s(&[128, 64], &ZEROS));
    };
    assert_snapshot!(tiny().edited(other, NO_CHANGE).unwrap_err(), @"tensor lm_head.weight differs from the embedding, to which tie_word_embeddings ties it");
}

#[test]
fn tokens_outside_the_vocabulary_and_blocks_outside_the_pool_are_named() {
    let mut decoder = tiny().decoder(&options(KvDtype::F32));
    let blocks = decoder.kv().num_blocks();
    let mut refuse = |tokens: &[u32], first, last| {
        let table = [1, 2, 3, last].map(BlockId::new);
        let tables: [&[BlockId]; 1] = [&table];
        let slice = Slice::new(tokens, first, &tables, Phase::Prefill);
        decoder.step(&[slice], &[]).unwrap_err()
    };
    let error = refuse(&[5, 127, 128, 6], 30, 4);
    assert!(matches!(error, ModelError::Token { id: 128, position: 32, vocab: 128 }), "{error}");
    assert_eq!(error.to_string(), "token id 128 at position 32 is outside the vocabulary of 128");
    let error = refuse(&[u32::MAX], 0, 4);
    assert!(matches!(error, ModelError::Token { id: u32::MAX, position: 0, vocab: 128 }), "{error}");
    let error = refuse(&[5], 0, blocks);
    assert_eq!(error.to_string(), format!("block {blocks} is outside of the pool of {blocks}"));

    // Nor do whole blocks reach the kernel of copies, the index of a policy or a buffer's end.
    let [known, unknown] = [1, blocks].map(BlockId::new);
    let contents = decoder.read_blocks(&[known]).unwrap().remove(0);
    let refused = [
        decoder.copy_blocks(&[(known, unknown)]),
        decoder.copy_blocks(&[(unknown, known)]),
        decoder.read_blocks(&[known, unknown]).map(drop),
        decoder.begin_read(&[unknown]).map(drop),
        decoder.write_block(unknown, &contents),
    ];
    for refused in refused {
        assert!(matches!(refused, Err(ModelError::Block { block, .. }) if block == blocks), "{refused:?}");
    }

    // What was refused leaves the decoder as it was.
    let prompt = &tiny().prompts[1];
    assert_eq!(serve(&mut decoder, &[Request::new(&prompt.ids, 5)], 64)[0].drawn, prompt.greedy[..5]);
}

/// Selects one block more than the sequence has.
#[derive(Debug)]
struct Beyond;

impl Policy for Beyond {
    fn name(&self) -> &'static str {
        "beyond"
    }

    fn support(&self) -> Support {
        Support::POSITIONS_ONLY
    }

    fn block_size(&self) -> BlockSize {
        BlockSize::new(16).unwrap()
    }

    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        out.keep_all(input.num_blocks(self.block_size()) + 1);
        Ok(())
    }
}

#[test]
fn policies_that_select_beyond_the_sequence_are_named() {
    let sparse = SparseOptions::new(Arc::new(Beyond), SelectionPlace::Host);
    let mut decoder = tiny().decoder(&options(KvDtype::F32).sparse(Some(sparse)));
    let table = [1, 2, 3].map(BlockId::new);
    let tables: [&[BlockId]; 1] = [&table];
    let tokens: Vec<u32> = (0..40).collect();
    decoder.step(&[Slice::new(&tokens[..16], 0, &tables, Phase::Prefill)], &[]).unwrap();
    let error = decoder.step(&[Slice::new(&tokens[16..], 16, &tables, Phase::Prefill)], &[]).unwrap_err();
    assert_snapshot!(error, @"beyond selected among 2 blocks, the sequence has 1");
}
