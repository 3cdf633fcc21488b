//! Weights of compressed attention and of hyper-connections.

use std::borrow::Cow;

use attn_kernels::gpu::Buf;

use super::Source;
use crate::decoder::compressed::{Compressed, CompressorWeights, EntryWeights, IndexWeights};
use crate::decoder::hyper::Hyper;
use crate::kernel::hyper_collapse;
use crate::matrices::Matrices;
use crate::matrix::Matrix;
use crate::{Compressor, CompressorPart, HyperPart, ModelError, Role, Tensor};

impl Source<'_> {
    /// The attention of a layer, where it goes to compressed entries.
    pub(super) fn compressed(&self, l: u32) -> Result<Option<Box<Compressed>>, ModelError> {
        let Some(c) = &self.config.compressed else { return Ok(None) };
        let [hidden, dim, heads] =
            [self.config.hidden_size, self.config.head_dim, self.config.num_heads].map(|n| n as usize);
        let [q_rank, groups, rank] = [c.q_rank, c.output_groups, c.output_rank].map(|n| n as usize);
        let one = |role, shape: [usize; 2]| Matrix::stacked(self.gpu, &[self.shaped(role, &shape)?]);
        let o_a = self.shaped(Role::OA(l), &[groups * rank, heads * dim / groups])?;
        let compressor = c.compressors[l as usize].as_ref();
        Ok(Some(Box::new(Compressed {
            q_a: one(Role::QA(l), [q_rank, hidden])?,
            q_a_norm: self.norm_of(Role::QANorm(l), q_rank)?,
            q_b: one(Role::QB(l), [heads * dim, q_rank])?,
            kv: one(Role::Kv(l), [dim, hidden])?,
            kv_norm: self.norm_of(Role::KvNorm(l), dim)?,
            o_a: Matrices::load(self.gpu, c.output_groups, |group| Ok(rows_of(&o_a, groups, group)))?,
            o_b: one(Role::OB(l), [hidden, groups * rank])?,
            entries: compressor.map(|compressor| self.entries(l, compressor, q_rank)).transpose()?,
        })))
    }

    fn entries(&self, l: u32, compressor: &Compressor, q_rank: usize) -> Result<EntryWeights, ModelError> {
        let indexer = self.config.indexer.as_ref().filter(|_| compressor.indexed);
        let main = |part| Role::Compressor(l, part);
        Ok(EntryWeights {
            compressor: self.compressor(main, compressor, self.config.head_dim)?,
            indexer: match indexer {
                None => None,
                Some(indexer) => {
                    let part = |part| Role::IndexCompressor(l, part);
                    let [q, gates] = self.index_queries(l, indexer, q_rank)?;
                    let compressor = self.compressor(part, compressor, indexer.head_dim)?;
                    Some(IndexWeights { compressor, q, gates })
                }
            },
        })
    }

    fn compressor(
        &self,
        role: impl Fn(CompressorPart) -> Role,
        compressor: &Compressor,
        dim: u32,
    ) -> Result<CompressorWeights, ModelError> {
        let [hidden, dim, ratio] = [self.config.hidden_size, dim, compressor.ratio].map(|n| n as usize);
        let width = compressor.windows() as usize * dim;
        let matrix = |part| self.shaped(role(part), &[width, hidden]);
        let vector = |part, shape: &[usize]| -> Result<Buf<f32>, ModelError> {
            let tensor = self.shaped(role(part), shape)?;
            Ok(self.gpu.upload(&tensor.name, &tensor.to_f32())?)
        };
        let states = [matrix(CompressorPart::Kv)?, matrix(CompressorPart::Gate)?];
        Ok(CompressorWeights {
            states: Matrix::stacked(self.gpu, &states)?,
            bias: vector(CompressorPart::Bias, &[ratio, width])?,
            norm: vector(CompressorPart::Norm, &[dim])?,
        })
    }

    /// The hyper-connection whose parts `role` names, where the model has them; `head`: the end of the streams.
    pub(super) fn hyper(
        &self,
        role: impl Fn(HyperPart) -> Role,
        head: bool,
    ) -> Result<Option<Hyper>, ModelError> {
        let Some(c) = &self.config.hyper else { return Ok(None) };
        let mixes = hyper_collapse::mixes(c.streams, head) as usize;
        let width = (c.streams * self.config.hidden_size) as usize;
        let mix = Matrix::stacked(self.gpu, &[self.shaped(role(HyperPart::Mix), &[mixes, width])?])?;
        let mut affine = self.shaped(role(HyperPart::Base), &[mixes])?.to_f32();
        let factors = if head { 1 } else { 3 };
        affine.extend(self.shaped(role(HyperPart::Scale), &[factors])?.to_f32());
        Ok(Some(Hyper { mix, affine: self.gpu.upload("hyper_affine", &affine)? }))
    }
}

/// The rows of group `group` of `groups`.
fn rows_of<'t>(tensor: &'t Tensor<'_>, groups: usize, group: u32) -> Tensor<'t> {
    let bytes = tensor.data.len() / groups;
    let data = Cow::Borrowed(&tensor.data[group as usize * bytes..][..bytes]);
    let shape = vec![tensor.shape[0] / groups, tensor.shape[1]];
    Tensor { name: tensor.name.clone(), dtype: tensor.dtype, shape, data }
}
