//! Random weights in memory, to measure models of any size without a file.

mod slab;
mod spec;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use xxhash_rust::xxh3::xxh3_64;

use self::slab::Slab;
pub use self::spec::{RandomError, RandomSpec};
use super::{Dtype, HyperPart, IntegerTensor, Naming, Role, Tensor, WeightError, WeightSource};
use crate::{CompressorPart, DecoderConfig};

/// Weights that are a pure function of a [`RandomSpec`].
///
/// Matrices have mean 0 and standard deviation `1 / sqrt(hidden_size)`, so that products keep the size of what they multiply;
/// norms change nothing. Tensors are made when they are requested, out of at most 32 MiB of random numbers a type: the host
/// never holds the model, and 4.5 GB take about as long as copying them.
///
/// A matrix is of the requested type where the decoder and its width allow it, as llama.cpp does: routers, what mixes
/// residual streams and vectors are `F32`; matrices outside of experts are `Q8_0` where experts are `MXFP4`; rows that are no
/// whole blocks of 256 are `Q4_1` (for `Q4_K`) or `Q8_0`, and none of 32 `F16`.
#[derive(Debug)]
pub struct RandomWeights {
    spec: RandomSpec,
    tensors: BTreeMap<String, Role>,
    /// Random blocks of each type, in the order of `Dtype::ALL`.
    slabs: [OnceLock<Slab>; Dtype::ALL.len()],
}

impl RandomWeights {
    /// The weights of `spec`, which are generated on demand.
    #[must_use]
    pub fn new(spec: RandomSpec) -> Self {
        let tensors = spec.config.tensors().into_iter().map(|role| (name(role), role)).collect();
        Self { spec, tensors, slabs: Default::default() }
    }

    /// The model's configuration.
    #[must_use]
    pub fn config(&self) -> &DecoderConfig {
        &self.spec.config
    }

    /// The spec that describes the model.
    #[must_use]
    pub fn spec(&self) -> &RandomSpec {
        &self.spec
    }

    /// Number of bytes of all tensors. O(tensors).
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let of_tensor = |role: &Role| {
            let shape = self.spec.config.shape(*role);
            let bytes = self.dtype(*role, &shape).bytes_for(shape.iter().product());
            bytes.expect("tensors are of whole blocks") as u64
        };
        self.tensors.values().map(of_tensor).sum()
    }

    fn make(&self, name: String, role: Role) -> Tensor<'_> {
        let outline = self.outlined(name, role);
        let elems = outline.elems();
        let mut data = match constant(role) {
            Some(value) => Cow::Owned(value.to_le_bytes().repeat(elems)),
            None => self.slab(outline.dtype).cut(elems, xxh3_64(outline.name.as_bytes()) ^ self.spec.seed),
        };
        if role == Role::Embed && self.spec.alike > 0 {
            self.make_alike(outline.dtype, data.to_mut());
        }
        Tensor { data, ..outline }
    }

    /// Copies the first blocks of an embedding's first row to all other rows.
    fn make_alike(&self, dtype: Dtype, embedding: &mut [u8]) {
        let blocks = self.spec.config.hidden_size as usize / dtype.block_elems();
        let row = blocks * dtype.block_bytes();
        let same = blocks * self.spec.alike.min(100) as usize / 100 * dtype.block_bytes();
        let (first, others) = embedding.split_at_mut(row);
        others.chunks_exact_mut(row).for_each(|other| other[..same].copy_from_slice(&first[..same]));
    }

    /// A tensor without data.
    fn outlined(&self, name: String, role: Role) -> Tensor<'static> {
        let shape = self.spec.config.shape(role);
        Tensor { name: name.into(), dtype: self.dtype(role, &shape), shape, data: Cow::Borrowed(&[]) }
    }

    fn dtype(&self, role: Role, shape: &[usize]) -> Dtype {
        let wanted = match role {
            Role::KvB(_) if self.spec.dtype.block_elems() > 1 => Dtype::F16,
            _ if shape.len() < 2 || is_exact(role) => return Dtype::F32,
            Role::ExpertGate(..) | Role::ExpertUp(..) | Role::ExpertDown(..) => self.spec.dtype,
            _ if self.spec.config.moe.is_some() && self.spec.dtype == Dtype::MXFP4 => Dtype::Q8_0,
            _ => self.spec.dtype,
        };
        let fits = |dtype: &Dtype| shape[shape.len() - 1].is_multiple_of(dtype.block_elems());
        let smaller = if wanted == Dtype::Q4_K { Dtype::Q4_1 } else { Dtype::Q8_0 };
        [wanted, smaller].into_iter().find(fits).unwrap_or(Dtype::F16)
    }

    fn slab(&self, dtype: Dtype) -> &Slab {
        self.slabs[dtype as usize].get_or_init(|| {
            let shapes = self.tensors.values().map(|role| (*role, self.spec.config.shape(*role)));
            let of_dtype = shapes.filter(|(role, shape)| self.dtype(*role, shape) == dtype);
            let longest = of_dtype.map(|(_, shape)| shape.iter().product()).max().unwrap_or(0);
            #[expect(clippy::cast_precision_loss, reason = "a magnitude")]
            let deviation = 1.0 / (self.spec.config.hidden_size as f32).sqrt();
            Slab::new(dtype, longest, deviation, self.spec.seed)
        })
    }
}

/// Whether checkpoints keep a matrix in full precision, whatever the type of the others.
fn is_exact(role: Role) -> bool {
    matches!(
        role,
        Role::Router(_)
            | Role::Compressor(_, CompressorPart::Bias)
            | Role::IndexCompressor(_, CompressorPart::Bias)
            | Role::AttnHyper(..)
            | Role::MlpHyper(..)
            | Role::HeadHyper(_)
            | Role::ExpertsGateBias(_)
            | Role::ExpertsUpBias(_)
            | Role::ExpertsDownBias(_)
    )
}

/// Returns the value of all elements of a tensor that is not random; `None` for random tensors.
fn constant(role: Role) -> Option<f32> {
    match role {
        Role::FinalNorm
        | Role::AttnNorm(_)
        | Role::MlpNorm(_)
        | Role::PostAttnNorm(_)
        | Role::PreMlpNorm(_)
        | Role::PostMlpNorm(_)
        | Role::QNorm(_)
        | Role::KNorm(_)
        | Role::QANorm(_)
        | Role::KvANorm(_)
        | Role::KvNorm(_)
        | Role::IndexKNorm(_)
        | Role::Compressor(_, CompressorPart::Norm)
        | Role::IndexCompressor(_, CompressorPart::Norm)
        | Role::AttnHyper(_, HyperPart::Scale)
        | Role::MlpHyper(_, HyperPart::Scale)
        | Role::HeadHyper(HyperPart::Scale) => Some(1.0),
        Role::IndexKNormBias(_) => Some(0.0),
        _ => None,
    }
}

/// Returns a unique name, since no format has names for all roles of all families.
fn name(role: Role) -> String {
    format!("{role:?}")
}

impl WeightSource for RandomWeights {
    fn path(&self) -> &Path {
        Path::new(&self.spec.shape)
    }

    fn naming(&self) -> Naming {
        Naming::Hf
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    fn get(&self, name: &str) -> Result<Option<Tensor<'_>>, WeightError> {
        Ok(self.tensors.get(name).map(|role| self.make(name.to_owned(), *role)))
    }

    fn tensor(&self, role: Role) -> Result<Tensor<'_>, WeightError> {
        self.get(&name(role))?.ok_or_else(|| self.missing(role))
    }

    fn outline(&self, role: Role) -> Result<Tensor<'_>, WeightError> {
        let name = name(role);
        let known = self.tensors.get(&name).map(|role| self.outlined(name, *role));
        known.ok_or_else(|| self.missing(role))
    }

    /// Returns a table in which every token uses neighbouring experts.
    fn get_integers(&self, name: &str) -> Result<Option<IntegerTensor>, WeightError> {
        let (Some(role @ Role::RouterTable(_)), Some(moe)) = (self.tensors.get(name), &self.spec.config.moe)
        else {
            return Ok(None);
        };
        let experts = u64::from(moe.num_experts);
        let of_token = |token: u32| {
            let first = xxh3_64(&token.to_le_bytes()) ^ xxh3_64(name.as_bytes()) ^ self.spec.seed;
            (0..u64::from(moe.top_k)).map(move |i| ((first % experts + i) % experts).cast_signed())
        };
        let values = (0..self.spec.config.vocab_size).flat_map(of_token).collect();
        Ok(Some(IntegerTensor { name: name.to_owned(), shape: self.spec.config.shape(*role), values }))
    }

    fn integers(&self, role: Role) -> Result<IntegerTensor, WeightError> {
        self.get_integers(&name(role))?.ok_or_else(|| self.missing(role))
    }

    fn has(&self, role: Role) -> bool {
        self.tensors.contains_key(&name(role))
    }

    fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }
}
