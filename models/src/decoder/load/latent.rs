//! Weights of latent attention, with the projection of keys taken apart by head.

use std::borrow::Cow;

use super::Source;
use crate::decoder::indexer::Indexer;
use crate::decoder::latent::Latent;
use crate::matrices::Matrices;
use crate::matrix::Matrix;
use crate::{Dtype, IndexerConfig, LatentConfig, ModelError, Role, Tensor};

impl Source<'_> {
    /// The attention of a layer, where it goes through latents.
    pub(super) fn latent(&self, l: u32) -> Result<Option<Box<Latent>>, ModelError> {
        let Some(c) = &self.config.latent else { return Ok(None) };
        let (hidden, heads) = (self.config.hidden_size as usize, self.config.num_heads as usize);
        let [q_rank, kv_rank] = [c.q_rank, c.kv_rank].map(|n| n as usize);
        let head_dim = (c.nope_dim + c.rope_dim) as usize;
        let kv_b = [heads * (c.nope_dim + c.value_dim) as usize, kv_rank];
        let kv_b = self.shaped(Role::KvB(l), &kv_b)?;
        if kv_b.dtype.block_elems() != 1 {
            return Err(ModelError::Unsupported {
                feature: "a key projection by head out of quantised blocks",
            });
        }
        let one = |role, shape: [usize; 2]| Matrix::stacked(self.gpu, &[self.shaped(role, &shape)?]);
        Ok(Some(Box::new(Latent {
            q_a: one(Role::QA(l), [q_rank, hidden])?,
            q_a_norm: self.norm_of(Role::QANorm(l), q_rank)?,
            q_b: one(Role::QB(l), [heads * head_dim, q_rank])?,
            kv_a: one(Role::KvA(l), [c.cached() as usize, hidden])?,
            kv_a_norm: self.norm_of(Role::KvANorm(l), kv_rank)?,
            keys: Matrices::load(self.gpu, self.config.num_heads, |head| Ok(keys_of(&kv_b, c, head)))?,
            values: Matrices::load(self.gpu, self.config.num_heads, |head| Ok(values_of(&kv_b, c, head)))?,
            indexer: match &self.config.indexer {
                Some(indexer) => Some(self.indexer(l, indexer, [hidden, q_rank])?),
                None => None,
            },
        })))
    }

    fn indexer(
        &self,
        l: u32,
        c: &IndexerConfig,
        [hidden, q_rank]: [usize; 2],
    ) -> Result<Indexer, ModelError> {
        let dim = c.head_dim as usize;
        let one = |role, shape: [usize; 2]| Matrix::stacked(self.gpu, &[self.shaped(role, &shape)?]);
        let norm = [Role::IndexKNorm(l), Role::IndexKNormBias(l)].map(|role| self.shaped(role, &[dim]));
        let [factors, added] = norm;
        let norm = [factors?.to_f32(), added?.to_f32()].concat();
        let [q, gates] = self.index_queries(l, c, q_rank)?;
        Ok(Indexer {
            q,
            k: one(Role::IndexK(l), [dim, hidden])?,
            k_norm: self.gpu.upload("index_k_norm", &norm)?,
            gates,
        })
    }

    /// From the latent of queries to an indexer's queries, and weights of its heads with all constant factors on scores.
    pub(super) fn index_queries(
        &self,
        l: u32,
        c: &IndexerConfig,
        q_rank: usize,
    ) -> Result<[Matrix; 2], ModelError> {
        let [heads, dim] = [c.num_heads, c.head_dim].map(|n| n as usize);
        let gates = self.shaped(Role::IndexGates(l), &[heads, self.config.hidden_size as usize])?;
        // The root of the number of heads, and the factor on scores, which passes through the ReLU.
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            reason = "rounds to the nearest f32"
        )]
        let factor = 1.0 / (heads as f64 * dim as f64).sqrt() as f32;
        let scaled: Vec<u8> = gates.to_f32().iter().flat_map(|w| (w * factor).to_le_bytes()).collect();
        let gates = Tensor { dtype: Dtype::F32, data: Cow::Owned(scaled), ..gates };
        let q = self.shaped(Role::IndexQ(l), &[heads * dim, q_rank])?;
        Ok([Matrix::stacked(self.gpu, &[q])?, Matrix::stacked(self.gpu, &[gates])?])
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
