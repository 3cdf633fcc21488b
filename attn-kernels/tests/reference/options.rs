//! What attention kernels take beside the dense causal case.

use attn_kernels::cpu::attention::{Options, Selected};
use attn_kernels::gpu::{Buf, Gpu};
use attn_kernels::kernel::attention::{Attention, Context, Logit, Mask};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Lists of `[count, blocks ascending..]`; what follows a list is out of range of everything.
pub(crate) struct Lists {
    pub(crate) block: u32,
    pub(crate) stride: u32,
    pub(crate) lists: Vec<u32>,
}

impl Lists {
    /// A list for each length in tokens: of blocks that start before it, each kept with `chance`.
    pub(crate) fn random(lens: impl Iterator<Item = u32>, block: u32, chance: f64, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let lists: Vec<Vec<u32>> =
            lens.map(|len| (0..len.div_ceil(block)).filter(|_| rng.random_bool(chance)).collect()).collect();
        let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
        let stride = u32::try_from(longest + 1).unwrap();
        let padded = |list: Vec<u32>| {
            let mut entries = vec![u32::try_from(list.len()).unwrap()];
            entries.extend(list);
            entries.resize(longest + 1, u32::MAX);
            entries
        };
        Self { block, stride, lists: lists.into_iter().flat_map(padded).collect() }
    }

    pub(crate) fn selected(&self) -> Selected<'_> {
        Selected { lists: &self.lists, stride: self.stride as usize, block: self.block as usize }
    }
}

/// The values behind an [`Attention`].
#[derive(Default)]
pub(crate) struct Asked {
    pub(crate) attention: Attention,
    pub(crate) lists: Option<Lists>,
    pub(crate) softcap: f32,
    pub(crate) slopes: Vec<f32>,
    pub(crate) sinks: Vec<f32>,
}

impl Asked {
    /// Values for `num_heads` heads.
    pub(crate) fn new(attention: Attention, num_heads: u32, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut random = |range: std::ops::Range<f32>| -> Vec<f32> {
            (0..num_heads).map(|_| rng.random_range(range.clone())).collect()
        };
        let (slopes, mut sinks) = (random(0.0..0.2), random(-2.0..6.0));
        // Large enough to leave nothing of the keys; minus infinity is no sink.
        sinks[0] = [f32::NEG_INFINITY, 300.0, 0.0][(seed % 3) as usize];
        Self { attention, lists: None, softcap: 3.0, slopes, sinks }
    }

    pub(crate) fn list(&mut self, lists: Lists) {
        self.attention.context = Context::Blocks(lists.block);
        self.lists = Some(lists);
    }

    pub(crate) fn list_stride(&self) -> u32 {
        self.lists.as_ref().map_or(0, |lists| lists.stride)
    }

    pub(crate) fn options(&self) -> Options<'_> {
        let logit = self.attention.logit;
        Options {
            selected: self.lists.as_ref().map(Lists::selected),
            mask: self.attention.mask,
            softcap: (logit == Logit::Softcap).then_some(self.softcap),
            slopes: (logit == Logit::Alibi).then_some(&self.slopes),
        }
    }

    pub(crate) fn sinks(&self) -> Option<&[f32]> {
        self.attention.sinks.then_some(&self.sinks)
    }

    /// Lists or slopes on the device.
    pub(crate) fn upload(&self, gpu: &Gpu) -> Option<Buf<u32>> {
        let slopes = || self.slopes.iter().map(|slope| slope.to_bits()).collect();
        let words: Vec<u32> = match (&self.lists, self.attention.logit) {
            (Some(lists), _) => lists.lists.clone(),
            (None, Logit::Alibi) => slopes(),
            (None, _) => return None,
        };
        Some(gpu.upload("options", &words).unwrap())
    }
}

/// Any mask and logit, with and without sinks.
pub(crate) fn attentions() -> impl Strategy<Value = Attention> {
    let tokens = prop_oneof![1u32..20, 100u32..600];
    let mask = (0..3, tokens).prop_map(|(kind, tokens)| match kind {
        0 => Mask::Causal,
        1 => Mask::Window(tokens),
        _ => Mask::Chunk(tokens),
    });
    let logit = prop::sample::select(vec![Logit::Plain, Logit::Softcap, Logit::Alibi]);
    (mask, logit, any::<bool>()).prop_map(|(mask, logit, sinks)| Attention {
        mask,
        logit,
        sinks,
        ..Attention::default()
    })
}
