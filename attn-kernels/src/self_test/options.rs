//! Options of attention kernels that the dense causal case does not have.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

pub use super::block_lists::Lists;

use super::{Spec, filled};
use crate::cpu::attention::Options;
use crate::gpu::{Buf, Gpu, GpuError};
use crate::kernel::attention::{self, Attention, Context, Logit, Pages, Reach};
use crate::kernel::paged_reduce;
use crate::{Variant, slot};

/// The values of the tensors of an [`Attention`].
#[derive(Clone, Debug, Default)]
pub struct AttentionInputs {
    /// Options of the attention.
    pub attention: Attention,
    /// Lists of selected blocks, if not all blocks are attended.
    pub lists: Option<Lists>,
    /// Bound of scores.
    pub softcap: f32,
    /// ALiBi slopes `[num_heads]`.
    pub slopes: Vec<f32>,
    /// Attention sinks `[num_heads]`.
    pub sinks: Vec<f32>,
}

/// Returns block tables in the form that a variant of an attention kernel reads.
pub(crate) fn tables(variant: &Variant, tables: &[u32], num_kv_heads: u32) -> Vec<u32> {
    match variant.get(attention::UNITS).or_else(|| variant.get(attention::ENTRIES)) {
        Some(Pages::OfHeads) => tables
            .iter()
            .flat_map(|block| (0..num_kv_heads).map(move |head| block * num_kv_heads + head))
            .collect(),
        _ => tables.to_vec(),
    }
}

impl AttentionInputs {
    /// Makes values for a variant of an attention kernel. If the variant attends listed blocks, each of the lengths
    /// `lens` has a list for each KV head.
    pub(crate) fn of(
        variant: &Variant,
        [num_heads, num_kv_heads]: [u32; 2],
        lens: &[u32],
        spec: &Spec,
    ) -> Self {
        let spec = spec.aside();
        let most = spec.one_of(150, &[150, 150, 700]);
        let mask = match variant.get(attention::MASK) {
            Some(Reach::Window(_)) => Reach::Window(spec.number(21, 1..=most)),
            Some(Reach::Chunk(_)) => Reach::Chunk(spec.number(24, 1..=most)),
            Some(Reach::Full) | None => Reach::Full,
        };
        let logit = match variant.get(attention::LOGIT) {
            Some((logit, _)) => logit,
            // `paged_reduce` knows no scores, but where its lists lie.
            None if variant.get(attention::LISTS) == Some(true) => Logit::Alibi,
            None => Logit::Plain,
        };
        let sinks = variant.get(paged_reduce::SINKS) == Some(true);
        let skip = variant.get(attention::SKIP) == Some(true);
        let attention = Attention { mask, logit, sinks, skip, ..Attention::default() };
        let mut asked = Self::new(attention, num_heads, spec.seed(2));
        asked.softcap = spec.one_of(3.0, &[1.0, 3.0, 30.0]);
        if variant.get(attention::CONTEXT) == Some(true) {
            let each = lens.iter().flat_map(|len| std::iter::repeat_n(*len, num_kv_heads as usize));
            asked.list(spec.lists(each, filled(variant, slot::SELECT_BLOCK), (0.6, 9)));
        }
        asked
    }

    /// Makes values for `num_heads` heads.
    #[must_use]
    pub fn new(attention: Attention, num_heads: u32, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut random = |range: std::ops::Range<f32>| -> Vec<f32> {
            (0..num_heads).map(|_| rng.random_range(range.clone())).collect()
        };
        let (slopes, mut sinks) = (random(0.0..0.2), random(-2.0..6.0));
        // Large enough to leave nothing of the keys; minus infinity is no sink.
        sinks[0] = [f32::NEG_INFINITY, 300.0, 0.0][(seed % 3) as usize];
        Self { attention, lists: None, softcap: 3.0, slopes, sinks }
    }

    /// Attends to listed blocks, or to tokens if the blocks are of one token.
    pub fn list(&mut self, lists: Lists) {
        self.attention.context =
            if lists.block == 1 { Context::Tokens } else { Context::Blocks(lists.block) };
        self.lists = Some(lists);
    }

    /// Number of entries between successive lists, 0 without lists.
    #[must_use]
    pub fn list_stride(&self) -> u32 {
        self.lists.as_ref().map_or(0, |lists| lists.stride)
    }

    /// Number of tokens that rows of these lengths attend, averaged over KV heads.
    pub(crate) fn tokens(&self, lens: &[u32], num_kv_heads: u32) -> f64 {
        let heads = num_kv_heads as usize;
        let each = lens.iter().flat_map(|len| std::iter::repeat_n(*len, heads));
        match &self.lists {
            Some(lists) => lists.tokens(each) / f64::from(num_kv_heads),
            None => lens.iter().copied().map(f64::from).sum(),
        }
    }

    /// Returns the values in the form that references read.
    #[must_use]
    pub fn options(&self) -> Options<'_> {
        let logit = self.attention.logit;
        Options {
            selected: self.lists.as_ref().map(Lists::selected),
            mask: self.attention.mask,
            softcap: (logit == Logit::Softcap).then_some(self.softcap),
            slopes: (logit == Logit::Alibi).then_some(&self.slopes),
            skip: None,
        }
    }

    /// Returns the sinks, if the attention has them.
    #[must_use]
    pub fn sinks(&self) -> Option<&[f32]> {
        self.attention.sinks.then_some(&self.sinks)
    }

    /// Uploads the lists, the slopes, or slopes followed by lists, to the device.
    ///
    /// # Errors
    /// As [`Gpu::upload`].
    pub fn upload(&self, gpu: &Gpu) -> Result<Option<Buf<u32>>, GpuError> {
        self.words().map(|words| gpu.upload("options", &words)).transpose()
    }

    /// Returns the words of lists, of slopes, or of slopes followed by lists; `None` if there is neither.
    #[must_use]
    pub fn words(&self) -> Option<Vec<u32>> {
        let alibi = self.attention.logit == Logit::Alibi;
        let slopes = alibi.then(|| self.slopes.iter().map(|slope| slope.to_bits()).collect());
        match (slopes, self.lists.as_ref().map(|lists| lists.lists.clone())) {
            (Some(slopes), Some(lists)) => Some([slopes, lists].concat()),
            (slopes, lists) => slopes.or(lists),
        }
    }
}
