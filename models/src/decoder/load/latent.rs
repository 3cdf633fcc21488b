//! Weights of latent attention, with the projection of keys taken apart by head.

use std::borrow::Cow;

use super::Source;
use crate::decoder::attention::{IndexQueries, Indexer, Latent};
use crate::matrices::Matrices;
use crate::matrix::Matrix;
use crate::{Dtype, IndexerConfig, LatentConfig, ModelError, Role, Tensor};

impl Source<'_> {
    /// The attention of a layer, where it goes through latents.
    pub(super) fn latent(&self, l: u32, c: &LatentConfig) -> Result<Latent, ModelError> {
        let kv_b = self.tensor(Role::KvB(l))?;
        if kv_b.dtype.block_elems() != 1 {
            return Err(ModelError::Unsupported {
                feature: "a key projection by head out of quantised blocks",
            });
        }
        Ok(Latent {
            q_a: self.matrix(Role::QA(l))?,
            q_a_norm: self.head_norm(Role::QANorm(l))?,
            q_b: self.matrix(Role::QB(l))?,
            kv_a: self.matrix(Role::KvA(l))?,
            kv_a_norm: self.head_norm(Role::KvANorm(l))?,
            keys: Matrices::load(self.gpu, self.config.num_heads, |head| Ok(keys_of(&kv_b, c, head)))?,
            values: Matrices::load(self.gpu, self.config.num_heads, |head| Ok(values_of(&kv_b, c, head)))?,
            indexer: match &self.config.indexer {
                Some(indexer) => Some(self.indexer(l, indexer)?),
                None => None,
            },
            o: self.matrix(Role::O(l))?,
        })
    }

    fn indexer(&self, l: u32, c: &IndexerConfig) -> Result<Indexer, ModelError> {
        let norm = [Role::IndexKNorm(l), Role::IndexKNormBias(l)].map(|role| self.tensor(role));
        let [factors, added] = norm;
        let norm = [factors?.to_f32(), added?.to_f32()].concat();
        Ok(Indexer {
            queries: self.index_queries(l, c)?,
            k: self.matrix(Role::IndexK(l))?,
            k_norm: self.gpu.upload("index_k_norm", &norm)?,
        })
    }

    /// Projection of the latent of queries to an indexer's queries, and weights of its heads with all constant factors on scores.
    pub(super) fn index_queries(&self, l: u32, c: &IndexerConfig) -> Result<IndexQueries, ModelError> {
        let gates = self.tensor(Role::IndexGates(l))?;
        // The root of the number of heads, and the factor on scores, which passes through the ReLU.
        #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
        let factor = 1.0 / (f64::from(c.num_heads) * f64::from(c.head_dim)).sqrt() as f32;
        let scaled: Vec<u8> = gates.to_f32().iter().flat_map(|w| (w * factor).to_le_bytes()).collect();
        let gates = Tensor { dtype: Dtype::F32, data: Cow::Owned(scaled), ..gates };
        Ok(IndexQueries { q: self.matrix(Role::IndexQ(l))?, gates: Matrix::stacked(self.gpu, &[gates])? })
    }
}

/// `[kv_rank + rope, nope + rope]` of a head: from a query to what meets a latent, and its rotated part as it is.
fn keys_of(kv_b: &Tensor<'_>, c: &LatentConfig, head: u32) -> Tensor<'static> {
    let [rank, nope, rope, value] = [c.kv_rank, c.nope_dim, c.rope_dim, c.value_dim].map(|n| n as usize);
    let bytes = kv_b.dtype.block_bytes();
    let width = nope + rope;
    let mut data = vec![0; (rank + rope) * width * bytes];
    let first = head as usize * (nope + value);
    for out in 0..rank {
        for i in 0..nope {
            let from = ((first + i) * rank + out) * bytes;
            let to = (out * width + i) * bytes;
            data[to..to + bytes].copy_from_slice(&kv_b.data[from..from + bytes]);
        }
    }
    for i in 0..rope {
        let to = ((rank + i) * width + nope + i) * bytes;
        data[to..to + bytes].copy_from_slice(one(kv_b.dtype));
    }
    let shape = vec![rank + rope, width];
    Tensor { name: Cow::Owned(kv_b.name.to_string()), dtype: kv_b.dtype, shape, data: Cow::Owned(data) }
}

/// `[value, kv_rank]` of a head.
fn values_of<'t>(kv_b: &'t Tensor<'_>, c: &LatentConfig, head: u32) -> Tensor<'t> {
    let [rank, nope, value] = [c.kv_rank, c.nope_dim, c.value_dim].map(|n| n as usize);
    let row = rank * kv_b.dtype.block_bytes();
    let first = head as usize * (nope + value) + nope;
    let data = Cow::Borrowed(&kv_b.data[first * row..(first + value) * row]);
    Tensor { name: kv_b.name.clone(), dtype: kv_b.dtype, shape: vec![value, rank], data }
}

/// The number 1.
fn one(dtype: Dtype) -> &'static [u8] {
    match dtype {
        Dtype::F16 => &[0x00, 0x3c],
        Dtype::BF16 => &[0x80, 0x3f],
        _ => &[0x00, 0x00, 0x80, 0x3f],
    }
}
