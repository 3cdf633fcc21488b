//! A model of random layers, and keys and values to fill a cache with.
//!
//! Queries follow from embeddings alone, or nearly: a layer adds little to the residual stream, and nothing rotates. So
//! where the embeddings of a run of tokens turn by a small angle from one to the next, queries do, and a part of what
//! they select changes: how large a part is measured.

use std::borrow::Cow;
use std::path::Path;

use half::f16;
use models::{DecoderConfig, Dtype, Family, Naming, Role, Sizes, Tensor, WeightError, WeightSource};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::plan::Plan;

/// Angles between embeddings of neighbouring tokens: none, then each by a quarter larger than the one before.
const WALKS: u32 = 34;

/// Radians of the smallest angle.
const SMALLEST: f64 = 0.0008;

/// Number of places in the noise at which a tensor may begin; all tensors are parts of the same noise.
const OFFSETS: usize = 1 << 16;

/// The model.
pub(super) struct Random {
    pub(super) config: DecoderConfig,
    /// Tokens of a walk.
    walk: u32,
    /// f16 of mean 0, of which every matrix is a part.
    noise: Vec<u8>,
    /// `[walks, tokens, hidden]` f16.
    embeddings: Vec<u8>,
}

impl Random {
    pub(super) fn new(plan: &Plan) -> Self {
        let walk = plan.walk();
        let config = config(plan, WALKS * walk);
        let widest = config.intermediate_size.max(config.num_heads * config.head_dim) as usize;
        let mut random = StdRng::seed_from_u64(1);
        // A product keeps the size of what it multiplies.
        let size = (3.0 / f64::from(config.hidden_size)).sqrt();
        let noise = (0..widest * config.hidden_size as usize + OFFSETS).map(|_| size * uniform(&mut random));
        Self { noise: halves(noise), embeddings: embeddings(walk, config.hidden_size as usize), config, walk }
    }

    /// Walks by rising angle.
    pub(super) fn walks(&self) -> std::ops::Range<u32> {
        0..WALKS
    }

    /// Token `step` of a walk.
    pub(super) fn token(&self, walk: u32, step: u32) -> u32 {
        assert!(step < self.walk, "step {step} of a walk of {}", self.walk);
        walk * self.walk + step
    }

    fn shape(&self, role: Role) -> Vec<usize> {
        let c = &self.config;
        let (heads, kv) = (c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim);
        let (hidden, inner) = (c.hidden_size, c.intermediate_size);
        let shape: &[u32] = match role {
            Role::Embed | Role::LmHead => &[c.vocab_size, hidden],
            Role::Q(_) => &[heads, hidden],
            Role::K(_) | Role::V(_) => &[kv, hidden],
            Role::O(_) => &[hidden, heads],
            Role::Gate(_) | Role::Up(_) => &[inner, hidden],
            Role::Down(_) => &[hidden, inner],
            _ => &[hidden],
        };
        shape.iter().map(|n| *n as usize).collect()
    }
}

impl WeightSource for Random {
    fn path(&self) -> &Path {
        Path::new("random layers")
    }

    fn naming(&self) -> Naming {
        Naming::Hf
    }

    fn names(&self) -> Vec<&str> {
        Vec::new()
    }

    fn get(&self, _: &str) -> Result<Option<Tensor<'_>>, WeightError> {
        Ok(None)
    }

    fn tensor(&self, role: Role) -> Result<Tensor<'_>, WeightError> {
        let shape = self.shape(role);
        let name: Cow<'_, str> = Cow::Owned(format!("{role:?}"));
        let bytes = 2 * shape.iter().product::<usize>();
        let (dtype, data) = match role {
            Role::Embed | Role::LmHead => (Dtype::F16, Cow::Borrowed(&self.embeddings[..])),
            _ if shape.len() == 2 => {
                let salt = name.bytes().fold(7_usize, |salt, byte| (salt * 31 + byte as usize) % OFFSETS);
                let start = 2 * salt.min(self.noise.len() / 2 - bytes / 2);
                (Dtype::F16, Cow::Borrowed(&self.noise[start..start + bytes]))
            }
            // The MLP sees little, so that it adds little.
            _ => {
                let factor: f32 = if matches!(role, Role::MlpNorm(_)) { 0.1 } else { 1.0 };
                let all = std::iter::repeat_n(factor.to_le_bytes(), shape[0]);
                (Dtype::F32, Cow::Owned(all.flatten().collect()))
            }
        };
        Ok(Tensor { name, dtype, shape, data })
    }
}

/// Keys and values by the page.
pub(super) struct Noise {
    words: Vec<u32>,
    random: StdRng,
}

impl Noise {
    /// Noise of a fixed seed, the same for every cache.
    pub(super) fn new() -> Self {
        let mut random = StdRng::seed_from_u64(2);
        let halves: Vec<f16> = (0..1 << 22).map(|_| f16::from_f64(normal(&mut random))).collect();
        let words = halves.as_chunks::<2>().0.iter();
        let words = words.map(|[low, high]| u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16);
        Self { words: words.collect(), random }
    }

    /// Fills `contents` in pages of `page` words, which begin anywhere in the noise.
    pub(super) fn fill(&mut self, contents: &mut [u32], page: usize) {
        for page in contents.chunks_mut(page) {
            let start = self.random.random_range(0..self.words.len() - page.len());
            page.copy_from_slice(&self.words[start..start + page.len()]);
        }
    }
}

fn embeddings(walk: u32, hidden: usize) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(3);
    let mut values = Vec::with_capacity((WALKS * walk) as usize * hidden);
    for index in 0..WALKS {
        let angle = if index == 0 { 0.0 } else { SMALLEST * 1.25_f64.powi(index.cast_signed() - 1) };
        let mut row: Vec<f64> = (0..hidden).map(|_| normal(&mut random)).collect();
        for _ in 0..walk {
            values.extend_from_slice(&row);
            let (sin, cos) = angle.min(1.5).sin_cos();
            row.iter_mut().for_each(|value| *value = cos * *value + sin * normal(&mut random));
        }
    }
    halves(values.into_iter())
}

fn config(plan: &Plan, vocab_size: u32) -> DecoderConfig {
    let sizes = Sizes {
        vocab_size,
        hidden_size: plan.hidden,
        intermediate_size: plan.inner,
        num_layers: plan.layers,
        num_heads: plan.heads,
        num_kv_heads: plan.kv_heads,
        head_dim: plan.head_dim,
        context_length: plan.context,
    };
    let mut config = DecoderConfig::plain(Family::Llama, sizes);
    config.rms_norm_eps = 1e-5;
    config.tie_embeddings = true;
    config.layers.iter_mut().for_each(|layer| layer.rotary = false);
    config
}

fn halves(values: impl Iterator<Item = f64>) -> Vec<u8> {
    values.flat_map(|value| f16::from_f64(value).to_le_bytes()).collect()
}

fn uniform(random: &mut StdRng) -> f64 {
    random.random_range(-1.0..1.0)
}

/// The sum of four uniform numbers, of variance 1.
fn normal(random: &mut StdRng) -> f64 {
    (0..4).map(|_| uniform(random)).sum::<f64>() * 0.75_f64.sqrt()
}
