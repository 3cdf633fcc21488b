//! Weights of compressed attention and of hyper-connections.

use std::borrow::Cow;

use super::WeightLoader;
use crate::decoder::attention::{CompressedWeights, CompressorWeights, EntryWeights, IndexWeights};
use crate::decoder::hyper::{Hyper, HyperWeights};
use crate::matrix::Matrix;
use crate::{CompressedConfig, Compressor, CompressorPart, HyperPart, ModelError, Role, Tensor};

impl WeightLoader<'_> {
    /// Loads the attention of a layer that uses compressed entries.
    pub(super) fn compressed(&self, l: u32, c: &CompressedConfig) -> Result<CompressedWeights, ModelError> {
        let o_a = self.tensor(Role::OA(l))?;
        let groups = c.output_groups as usize;
        let compressor = c.compressors[l as usize].as_ref();
        Ok(CompressedWeights {
            q_a: self.matrix(Role::QA(l))?,
            q_a_norm: self.head_norm(Role::QANorm(l))?,
            q_b: self.matrix(Role::QB(l))?,
            kv: self.matrix(Role::Kv(l))?,
            kv_norm: self.head_norm(Role::KvNorm(l))?,
            o_a: Matrix::several(&self.allocator, c.output_groups, |group| Ok(rows_of(&o_a, groups, group)))?,
            o_b: self.matrix(Role::OB(l))?,
            sinks: self.sinks(l)?,
            entries: compressor.map(|compressor| self.entries(l, compressor)).transpose()?,
        })
    }

    fn entries(&self, l: u32, compressor: &Compressor) -> Result<EntryWeights, ModelError> {
        let indexer = self.config.indexer.as_ref().filter(|_| compressor.indexed);
        let main = |part| Role::Compressor(l, part);
        Ok(EntryWeights {
            compressor: self.compressor(main)?,
            indexer: match indexer {
                None => None,
                Some(indexer) => {
                    let part = |part| Role::IndexCompressor(l, part);
                    let queries = self.index_queries(l, indexer)?;
                    Some(IndexWeights { compressor: self.compressor(part)?, queries })
                }
            },
        })
    }

    fn compressor(&self, role: impl Fn(CompressorPart) -> Role) -> Result<CompressorWeights, ModelError> {
        let states = [self.tensor(role(CompressorPart::Kv))?, self.tensor(role(CompressorPart::Gate))?];
        Ok(CompressorWeights {
            states: Matrix::stacked(&self.allocator, &states)?,
            bias: self.vector(role(CompressorPart::Bias))?,
            norm: self.vector(role(CompressorPart::Norm))?,
        })
    }

    /// Loads the hyper-connections of all layers, if the model has them.
    pub(super) fn hyper(&self) -> Result<Option<HyperWeights>, ModelError> {
        let Some(config) = self.config.hyper else { return Ok(None) };
        let of_layer = |l| {
            let attention = self.hyper_part(|part| Role::AttnHyper(l, part))?;
            Ok([attention, self.hyper_part(|part| Role::MlpHyper(l, part))?])
        };
        let (layers, end) = (self.each(of_layer)?, self.hyper_part(Role::HeadHyper)?);
        Ok(Some(HyperWeights { config, layers, end }))
    }

    /// Loads one hyper-connection; `role` returns the tensor role of each of its parts.
    fn hyper_part(&self, role: impl Fn(HyperPart) -> Role) -> Result<Hyper, ModelError> {
        let mix = self.matrix(role(HyperPart::Mix))?;
        let mut affine = self.tensor(role(HyperPart::Base))?.to_f32();
        affine.extend(self.tensor(role(HyperPart::Scale))?.to_f32());
        Ok(Hyper { mix, affine: self.allocator.vector("hyper_affine", &affine)? })
    }
}

/// Returns the rows of group `group` of `groups`.
fn rows_of<'t>(tensor: &'t Tensor<'_>, groups: usize, group: u32) -> Tensor<'t> {
    let bytes = tensor.data.len() / groups;
    let data = Cow::Borrowed(&tensor.data[group as usize * bytes..][..bytes]);
    let shape = vec![tensor.shape[0] / groups, tensor.shape[1]];
    Tensor { name: tensor.name.clone(), dtype: tensor.dtype, shape, data }
}
