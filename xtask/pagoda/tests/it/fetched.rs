//! The default model, as it is fetched.

use models::{Checkpoint, Dtype, Pairing, Role};
use pagoda::fetch::{ModelCache, SMOLLM2_135M_INSTRUCT};

#[test]
fn the_file_loads_with_every_tensor() {
    // Fetched by whoever needs it first; a machine without it and without a network cannot run this test.
    let path = ModelCache::user().unwrap().fetch(&SMOLLM2_135M_INSTRUCT, |_| {}).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let config = checkpoint.config().unwrap();
    assert_eq!((config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim), (30, 9, 3, 64));
    assert!(config.rope.pairing == Pairing::Interleaved && config.tie_embeddings);
    assert_eq!((config.bos_id, &config.eos_ids[..]), (Some(1), &[2, 0][..]));

    let weights = checkpoint.weights();
    assert_eq!(weights.names().len(), 272);
    let embed = weights.tensor(Role::Embed).unwrap();
    assert_eq!((embed.dtype, &embed.shape[..]), (Dtype::Q8_0, &[49152, 576][..]));
    for layer in 0..config.num_layers {
        for (role, dtype, shape) in [
            (Role::AttnNorm(layer), Dtype::F32, vec![576]),
            (Role::Q(layer), Dtype::Q4_1, vec![576, 576]),
            (Role::K(layer), Dtype::Q4_1, vec![192, 576]),
            (Role::V(layer), Dtype::Q4_1, vec![192, 576]),
            (Role::O(layer), Dtype::Q4_1, vec![576, 576]),
            (Role::MlpNorm(layer), Dtype::F32, vec![576]),
            (Role::Gate(layer), Dtype::Q4_1, vec![1536, 576]),
            (Role::Up(layer), Dtype::Q4_1, vec![1536, 576]),
            (Role::Down(layer), Dtype::Q4_1, vec![576, 1536]),
        ] {
            let tensor = weights.tensor(role).unwrap();
            assert_eq!((tensor.dtype, tensor.shape), (dtype, shape), "{role:?}");
        }
    }
    // A trained norm is near its start, 1; nonsense bytes would not be.
    let norm = weights.tensor(Role::FinalNorm).unwrap().to_f32();
    assert!(norm.iter().all(|x| x.is_finite() && x.abs() < 100.0), "{norm:?}");
    assert!(checkpoint.tokenizer().unwrap().is_some() && checkpoint.chat_template().unwrap().is_some());
}
