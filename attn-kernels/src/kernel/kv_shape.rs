//! Layout, type and shape of a paged cache, and the slots of kernels that read one.

use kvblock::KvDtype;

use super::error::{Launch, LaunchError};
use crate::slot::OneOf;

/// Order of the elements of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum KvLayout {
    /// The engine's layout: K `[num_blocks, num_kv_heads, head_dim / x, block_size, x]` and V `[num_blocks,
    /// num_kv_heads, block_size, head_dim]`. The group size `x` is 8 for codes, and `16 / bytes` for wider types.
    #[default]
    Native,
    /// The layout of the PagedAttention paper and of early vLLM. V has its tokens last, `[num_blocks, num_kv_heads,
    /// head_dim, block_size]`; K is as in the engine's layout, with codes in groups of 8. In both K and V, int8 has
    /// its scales after the codes of a block and head. Supported by `cache_write`, `gather_cache`,
    /// `masked_attention`, `paged_decode` without matrices and `paged_prefill`.
    V0,
    /// The layout of FlashAttention's paged kernels and of vLLM's `reshape_and_cache_flash`, K and V `[num_blocks,
    /// block_size, num_kv_heads, head_dim]`, to exchange caches with other programs. Supported by `cache_write` and
    /// `gather_cache`, for all types but int8, whose scales have no place in it.
    Flash,
}

impl KvLayout {
    /// All layouts.
    pub const ALL: [Self; 3] = [Self::Native, Self::V0, Self::Flash];
}

/// Layout and element type of a paged cache.
pub(crate) type Stored = (KvLayout, KvDtype);

/// Import slot of the module that reads or writes a paged cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheSlot(pub(crate) OneOf<Stored>);

impl CacheSlot {
    /// Creates the slot `name`, with a module in `modules` for each layout and element type.
    #[must_use]
    pub const fn new(name: &'static str, modules: &'static [(Stored, &'static str)]) -> Self {
        Self(OneOf::new(name, modules))
    }
}

/// Module that reads keys and values.
pub(crate) const KV: CacheSlot = CacheSlot::new(
    "kv",
    &[
        ((KvLayout::Native, KvDtype::F16), "kv_f16"),
        ((KvLayout::Native, KvDtype::F32), "kv_f32"),
        ((KvLayout::Native, KvDtype::Fp8), "kv_fp8"),
        ((KvLayout::Native, KvDtype::Int8), "kv_int8"),
        ((KvLayout::V0, KvDtype::F16), "kv_published_f16"),
        ((KvLayout::V0, KvDtype::F32), "kv_published_f32"),
        ((KvLayout::V0, KvDtype::Fp8), "kv_published_fp8"),
        ((KvLayout::V0, KvDtype::Int8), "kv_published_int8"),
    ],
);

/// Module that reads only keys, with the factor of codes; fp8 at a scale of 1.
pub(crate) const KEYS: CacheSlot = CacheSlot::new(
    "k",
    &[
        ((KvLayout::Native, KvDtype::F16), "k_f16"),
        ((KvLayout::Native, KvDtype::F32), "k_f32"),
        ((KvLayout::Native, KvDtype::Fp8), "k_fp8"),
        ((KvLayout::Native, KvDtype::Int8), "k_int8"),
    ],
);

/// Module that reads values in place of keys; fp8 at a scale of 1.
pub(crate) const VALUES: CacheSlot = CacheSlot::new(
    "k",
    &[
        ((KvLayout::Native, KvDtype::F16), "v_f16"),
        ((KvLayout::Native, KvDtype::F32), "v_f32"),
        ((KvLayout::Native, KvDtype::Fp8), "v_fp8"),
        ((KvLayout::Native, KvDtype::Int8), "v_int8"),
    ],
);

/// Shape of a paged cache, which has one K and one V buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KvShape {
    /// Number of KV heads.
    pub num_kv_heads: u32,
    /// Number of elements per head, a multiple of 8.
    pub head_dim: u32,
    /// Number of tokens per block, a power of two.
    pub block_size: u32,
    /// Element type.
    pub dtype: KvDtype,
    /// Order of the elements.
    pub layout: KvLayout,
}

impl KvShape {
    /// Order and type of the elements.
    #[must_use]
    pub const fn stored(&self) -> (KvLayout, KvDtype) {
        (self.layout, self.dtype)
    }

    /// Number of neighbouring elements of a key in the K cache: 8 codes, or 16 bytes of a wider type.
    #[must_use]
    pub fn key_chunk(&self) -> usize {
        if self.dtype == KvDtype::F32 { 4 } else { 8 }
    }

    /// Size of one block in one of the two buffers, in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        let scales = if self.dtype == KvDtype::Int8 { size_of::<f32>() } else { 0 };
        let token = self.head_dim as usize * self.dtype.bytes() as usize + scales;
        self.num_kv_heads as usize * self.block_size as usize * token
    }

    /// Number of elements of one block in one of the two buffers.
    #[must_use]
    pub fn block_elements(&self) -> usize {
        self.num_kv_heads as usize * self.block_size as usize * self.head_dim as usize
    }

    /// Index in the K buffer, scales left out, of element `dim` of the key at `offset` in `block`.
    #[must_use]
    pub fn k_index(&self, block: usize, head: usize, offset: usize, dim: usize) -> usize {
        if self.layout == KvLayout::Flash {
            return self.flash_index(block, head, offset, dim);
        }
        let x = self.key_chunk();
        let chunk = self.block_head(block, head) * (self.head_dim as usize / x) + dim / x;
        (chunk * self.block_size as usize + offset) * x + dim % x
    }

    /// Index in the V buffer, scales left out, of element `dim` of the value at `offset` in `block`.
    #[must_use]
    pub fn v_index(&self, block: usize, head: usize, offset: usize, dim: usize) -> usize {
        match self.layout {
            KvLayout::Native => {
                let token = self.block_head(block, head) * self.block_size as usize + offset;
                token * self.head_dim as usize + dim
            }
            KvLayout::V0 => {
                let row = self.block_head(block, head) * self.head_dim as usize + dim;
                row * self.block_size as usize + offset
            }
            KvLayout::Flash => self.flash_index(block, head, offset, dim),
        }
    }

    fn flash_index(&self, block: usize, head: usize, offset: usize, dim: usize) -> usize {
        let token = block * self.block_size as usize + offset;
        (token * self.num_kv_heads as usize + head) * self.head_dim as usize + dim
    }

    fn block_head(&self, block: usize, head: usize) -> usize {
        block * self.num_kv_heads as usize + head
    }

    /// Checks the requirements of all attention kernels, for `num_heads` query heads.
    ///
    /// # Errors
    /// Head sizes that are not multiples of 8 up to 512, block sizes that are not powers of two from 4 to 256, and query
    /// heads that KV heads do not divide.
    pub fn validate(&self, num_heads: u32) -> Result<(), LaunchError> {
        let launch = Launch("paged cache");
        for (what, size) in [
            ("number of KV heads", self.num_kv_heads),
            ("number of query heads", num_heads),
            ("head size", self.head_dim),
        ] {
            launch.not_zero(what, size)?;
        }
        launch.multiple("head size", self.head_dim, 8)?;
        launch.at_most("head size", self.head_dim.into(), 512)?;
        launch.power_of_two("block size", self.block_size)?;
        launch.multiple("block size", self.block_size, 4)?;
        launch.at_most("block size", self.block_size.into(), 256)?;
        launch.multiple("number of query heads", num_heads, self.num_kv_heads)
    }

    /// Number of pages of a block of `select_block` tokens that is selected as a whole.
    ///
    /// # Panics
    /// When it is not whole pages, or of none.
    pub(crate) fn pages_of(&self, select_block: u32) -> u32 {
        let page = self.block_size;
        assert!(
            select_block >= page && select_block.is_multiple_of(page),
            "selection block {select_block} is not a multiple of page size {page}"
        );
        select_block / page
    }

    /// Asserts the properties that kernels rely on, whatever the query heads.
    ///
    /// # Panics
    /// When [`Self::validate`] refuses it.
    pub(crate) fn check(&self) {
        self.validate(self.num_kv_heads).unwrap_or_else(|error| panic!("{error}: unchecked"));
    }
}
