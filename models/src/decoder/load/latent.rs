//! Weights of latent attention, with the key projection divided by head.

use std::borrow::Cow;

use super::WeightLoader;
use crate::decoder::attention::{IndexQueries, IndexerWeights, LatentQueries, LatentWeights};
use crate::matrix::Matrix;
use crate::{Dtype, IndexerConfig, LatentConfig, ModelError, Role, Tensor};

impl WeightLoader<'_> {
    /// Loads the attention of a layer that uses latents.
    pub(super) fn latent(&self, l: u32, c: &LatentConfig) -> Result<LatentWeights, ModelError> {
        let (keys, values) = self.heads_of_latents(l, c)?;
        Ok(LatentWeights {
            queries: match c.q_rank {
                Some(rank) => LatentQueries::OfLatent {
                    rank,
                    a: self.matrix(Role::QA(l))?,
                    norm: self.head_norm(Role::QANorm(l))?,
                    b: self.matrix(Role::QB(l))?,
                },
                None => LatentQueries::Direct(self.matrix(Role::Q(l))?),
            },
            kv_a: self.matrix(Role::KvA(l))?,
            kv_a_norm: self.head_norm(Role::KvANorm(l))?,
            keys,
            values,
            indexer: match &self.config.indexer {
                Some(indexer) => Some(self.indexer(l, indexer)?),
                None => None,
            },
            o: self.matrix(Role::O(l))?,
        })
    }

    /// Loads the projections of a latent to keys and to values, by head. Queries are multiplied by the key projection, so
    /// that latents need not be. Elements are reordered, so quantised types are widened to f16.
    fn heads_of_latents(&self, l: u32, c: &LatentConfig) -> Result<(Matrix, Matrix), ModelError> {
        let heads = self.config.num_heads;
        let plain = |role| {
            let tensor = self.tensor(role)?;
            Ok::<_, ModelError>(match tensor.dtype.block_elems() {
                1 => tensor,
                _ => tensor.widened(Dtype::F16),
            })
        };
        if !self.weights.has(Role::KB(l)) {
            let kv_b = plain(Role::KvB(l))?;
            return Ok((
                Matrix::several(&self.allocator, heads, |head| Ok(keys_of(&kv_b, c, head)))?,
                Matrix::several(&self.allocator, heads, |head| Ok(values_of(&kv_b, c, head)))?,
            ));
        }
        let (k_b, v_b) = (plain(Role::KB(l))?, plain(Role::VB(l))?);
        Ok((
            Matrix::several(&self.allocator, heads, |head| Ok(keys_apart(&k_b, c, head)))?,
            Matrix::several(&self.allocator, heads, |head| Ok(values_apart(&v_b, head)))?,
        ))
    }

    fn indexer(&self, l: u32, c: &IndexerConfig) -> Result<IndexerWeights, ModelError> {
        let norm = [Role::IndexKNorm(l), Role::IndexKNormBias(l)].map(|role| self.tensor(role));
        let [factors, added] = norm;
        let norm = [factors?.to_f32(), added?.to_f32()].concat();
        Ok(IndexerWeights {
            queries: self.index_queries(l, c)?,
            k: self.matrix(Role::IndexK(l))?,
            k_norm: self.allocator.vector("index_k_norm", &norm)?,
        })
    }

    /// Loads the projection of query latents to an indexer's queries, and the weights of its heads times all constant factors.
    pub(super) fn index_queries(&self, l: u32, c: &IndexerConfig) -> Result<IndexQueries, ModelError> {
        let gates = self.tensor(Role::IndexGates(l))?;
        // The root of the number of heads, and the factor on scores, which passes through the ReLU.
        #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
        let factor = 1.0 / (f64::from(c.num_heads) * f64::from(c.head_dim)).sqrt() as f32;
        let scaled: Vec<u8> = gates.to_f32().iter().flat_map(|w| (w * factor).to_le_bytes()).collect();
        let gates = Tensor { dtype: Dtype::F32, data: Cow::Owned(scaled), ..gates };
        Ok(IndexQueries {
            q: self.matrix(Role::IndexQ(l))?,
            gates: Matrix::stacked(&self.allocator, &[gates])?,
        })
    }
}

/// Returns the key projection of a head as a matrix for queries, `[kv_rank + rope, nope + rope]`. It maps a query to
/// the vector that is multiplied with a latent, and copies the rotated part of the query.
fn keys_of(kv_b: &Tensor<'_>, c: &LatentConfig, head: u32) -> Tensor<'static> {
    let [rank, nope, value] = [c.kv_rank, c.nope_dim, c.value_dim].map(|n| n as usize);
    let first = head as usize * (nope + value);
    absorbed(kv_b, c, |out, i| (first + i) * rank + out)
}

/// Returns the matrix of [`keys_of`] from keys that are stored by head and transposed.
fn keys_apart(k_b: &Tensor<'_>, c: &LatentConfig, head: u32) -> Tensor<'static> {
    let [rank, nope] = [c.kv_rank, c.nope_dim].map(|n| n as usize);
    absorbed(k_b, c, |out, i| (head as usize * rank + out) * nope + i)
}

/// Returns the matrix of [`keys_of`]; `element(out, i)` is the index, in `stored`, of the weight that maps element `i` of a query
/// to element `out` of a latent.
fn absorbed(
    stored: &Tensor<'_>,
    c: &LatentConfig,
    element: impl Fn(usize, usize) -> usize,
) -> Tensor<'static> {
    let [rank, nope, rope] = [c.kv_rank, c.nope_dim, c.rope_dim].map(|n| n as usize);
    let bytes = stored.dtype.block_bytes();
    let width = nope + rope;
    let mut data = vec![0; (rank + rope) * width * bytes];
    for out in 0..rank {
        for i in 0..nope {
            let (from, to) = (element(out, i) * bytes, (out * width + i) * bytes);
            data[to..to + bytes].copy_from_slice(&stored.data[from..from + bytes]);
        }
    }
    for i in 0..rope {
        let to = ((rank + i) * width + nope + i) * bytes;
        data[to..to + bytes].copy_from_slice(one(stored.dtype));
    }
    let shape = vec![rank + rope, width];
    Tensor { name: Cow::Owned(stored.name.to_string()), dtype: stored.dtype, shape, data: Cow::Owned(data) }
}

/// Returns the value projection of a head, `[value, kv_rank]`, from values that are stored by head.
fn values_apart<'t>(v_b: &'t Tensor<'_>, head: u32) -> Tensor<'t> {
    let bytes = v_b.data.len() / v_b.shape[0];
    let data = Cow::Borrowed(&v_b.data[head as usize * bytes..][..bytes]);
    Tensor { name: v_b.name.clone(), dtype: v_b.dtype, shape: v_b.shape[1..].to_vec(), data }
}

/// Returns the value projection of a head, `[value, kv_rank]`.
fn values_of<'t>(kv_b: &'t Tensor<'_>, c: &LatentConfig, head: u32) -> Tensor<'t> {
    let [rank, nope, value] = [c.kv_rank, c.nope_dim, c.value_dim].map(|n| n as usize);
    let row = rank * kv_b.dtype.block_bytes();
    let first = head as usize * (nope + value) + nope;
    let data = Cow::Borrowed(&kv_b.data[first * row..(first + value) * row]);
    Tensor { name: kv_b.name.clone(), dtype: kv_b.dtype, shape: vec![value, rank], data }
}

/// Returns the bytes of the number 1.
fn one(dtype: Dtype) -> &'static [u8] {
    match dtype {
        Dtype::F16 => &[0x00, 0x3c],
        Dtype::BF16 => &[0x80, 0x3f],
        _ => &[0x00, 0x00, 0x80, 0x3f],
    }
}
