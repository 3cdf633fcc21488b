//! Declaration of a kernel: one block next to its parameters and bindings, from which the catalogue, the list of variants,
//! the cases of the self-test and the row of the documentation follow.

use crate::kernel::{KvDtype, KvLayout, KvShape};
use crate::{Level, Variant};

/// Variants of a kernel, each with the part of its name that states its features.
pub type Listed = Vec<(String, Variant)>;

/// The variant of a kernel that has one in a list.
#[must_use]
pub fn one(variant: Variant) -> Listed {
    vec![(String::new(), variant)]
}

/// Sizes of the model whose variants are listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Elements of a head.
    pub head_dim: u32,
    /// Query heads.
    pub num_heads: u32,
    /// KV heads.
    pub num_kv_heads: u32,
    /// Tokens of a block of the cache.
    pub block_size: u32,
}

impl Sizes {
    /// Sizes of Llama 3 8B, with heads of `head_dim` elements.
    #[must_use]
    pub const fn of_heads(head_dim: u32) -> Self {
        Self { head_dim, num_heads: 32, num_kv_heads: 8, block_size: 16 }
    }

    /// Tokens of a selected block: `tokens`, or a block of the cache if that has more.
    #[must_use]
    pub fn select(&self, tokens: u32) -> u32 {
        tokens.max(self.block_size)
    }

    /// The cache of a type.
    #[must_use]
    pub const fn cache(&self, dtype: KvDtype) -> KvShape {
        let Self { head_dim, num_kv_heads, block_size, .. } = *self;
        KvShape { num_kv_heads, head_dim, block_size, dtype, layout: KvLayout::Native }
    }

    /// The cache in f16.
    #[must_use]
    pub const fn f16(&self) -> KvShape {
        self.cache(KvDtype::F16)
    }

    /// The variant for the cache of each of these types, by their names.
    #[must_use]
    pub fn each(&self, types: &[KvDtype], variant: impl Fn(&KvShape) -> Variant) -> Listed {
        types.iter().map(|dtype| (dtype.name().to_owned(), variant(&self.cache(*dtype)))).collect()
    }

    /// The variant for a cache of every type in each of these layouts, by the names of variants.
    pub(crate) fn each_layout(&self, layouts: &[KvLayout], variant: impl Fn(&KvShape) -> Variant) -> Listed {
        let of = |layout: KvLayout| {
            let (prefix, types) = match layout {
                KvLayout::Native => ("", &TYPES[..]),
                KvLayout::V0 => ("v0-", &TYPES[..]),
                KvLayout::Flash => ("flash-", &[KvDtype::F16, KvDtype::F32, KvDtype::Fp8][..]),
            };
            let all = self.each(types, |shape| variant(&KvShape { layout, ..*shape }));
            all.into_iter().map(move |(dtype, variant)| (format!("{prefix}{dtype}"), variant))
        };
        layouts.iter().flat_map(|layout| of(*layout)).collect()
    }
}

/// The variants of both levels of kernels that add up over a workgroup.
#[must_use]
pub fn levels(variants: impl Fn(Level) -> Listed) -> Listed {
    let subgroup =
        variants(Level::Subgroup).into_iter().map(|(part, variant)| (format!("{part}-subgroup"), variant));
    variants(Level::Baseline).into_iter().chain(subgroup).collect()
}

/// Floats, and types of codes.
pub const TYPES: [KvDtype; 4] = [KvDtype::F16, KvDtype::F32, KvDtype::Fp8, KvDtype::Int8];

/// Types of codes.
pub const CODES: [KvDtype; 2] = [KvDtype::Fp8, KvDtype::Int8];

/// Types of floats.
pub const FLOATS: [KvDtype; 2] = [KvDtype::F16, KvDtype::F32];

/// Declaration of a kernel for catalogues, tests and documentation.
#[derive(Clone, Copy, Debug)]
pub struct Declaration {
    /// Lists variants at sizes of a model, one for each choice of modules.
    pub listed: fn(&Sizes) -> Listed,
    /// The variants there are, in Markdown.
    pub variants: &'static str,
    /// Bytes of storage buffers that a dispatch moves, in Markdown.
    pub bytes: &'static str,
    /// Maker of the cases of the self-test.
    pub cases: Cases,
}

/// Maker of the cases of a kernel's self-test; without the feature `self-test` it makes none.
#[derive(Clone, Copy, Debug)]
pub struct Cases(#[cfg(feature = "self-test")] Option<crate::self_test::Cases>);

impl Cases {
    /// The maker of a crate that is built without them.
    #[cfg(not(feature = "self-test"))]
    pub const NONE: Self = Self();
    /// The maker of a crate that is built without them.
    #[cfg(feature = "self-test")]
    pub const NONE: Self = Self(None);

    /// Makes cases by `cases`.
    #[cfg(feature = "self-test")]
    #[must_use]
    pub const fn by(cases: crate::self_test::Cases) -> Self {
        Self(Some(cases))
    }

    /// The cases of a variant of the kernel that `spec` chooses.
    #[cfg(feature = "self-test")]
    #[must_use]
    pub fn of(self, variant: &Variant, spec: &crate::self_test::Spec) -> Vec<crate::self_test::Case> {
        self.0.map_or_else(Vec::new, |cases| cases(variant, spec))
    }
}

/// Declares a kernel, in the module of the stem of its `.wgsl` file. The crate has a feature
/// `self-test`, with which it has cases.
///
/// - the text: `wgsl/NAME.wgsl` of the crate, which imports the modules of this crate, and of those after `modules`
/// - the [parameters](crate::params) and [bindings](crate::bindings), and the [part of a step](crate::KernelRole)
/// - `listed`: the [variants](Listed) that reports, tests and self-tests go through, at [sizes](Sizes) of a model
/// - `variants` and `bytes`: cells of the documentation, what variants there are and the bytes that a dispatch moves
/// - `cases`: the function that makes the cases of a variant, with the feature `self-test`
#[macro_export]
macro_rules! kernel {
    (
        $(#[$meta:meta])*
        $name:literal($params:ty, $buffers:ty): $role:ident,
        $(modules: [$($modules:path),*],)?
        listed: $listed:expr,
        variants: $variants:literal,
        bytes: $bytes:literal,
        cases: $cases:path $(,)?
    ) => {
        $(#[$meta])*
        pub static KERNEL: $crate::Kernel = $crate::Kernel {
            name: $name,
            role: $crate::KernelRole::$role,
            wgsl: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/wgsl/", $name, ".wgsl")),
            modules: &[$crate::MODULES $($(, $modules)*)?],
            params: <$params as $crate::Params>::LAYOUT,
            bindings: <$buffers>::BINDINGS,
            declared: Some($crate::declare::Declaration {
                listed: $listed,
                variants: $variants,
                bytes: $bytes,
                cases: {
                    #[cfg(feature = "self-test")]
                    const CASES: $crate::declare::Cases = $crate::declare::Cases::by($cases);
                    #[cfg(not(feature = "self-test"))]
                    const CASES: $crate::declare::Cases = $crate::declare::Cases::NONE;
                    CASES
                },
            }),
        };
    };
}
