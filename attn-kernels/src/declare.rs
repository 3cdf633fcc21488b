//! Declaration of a kernel next to its parameters and bindings. The catalogue, the list of variants, the cases of the
//! self-test and the row of the documentation are made from it.

pub use crate::sizes::Sizes;
pub use crate::variant::{Declaration, DeclaredCases, Listed};

use crate::kernel::{KvDtype, KvLayout, KvShape};
use crate::profile::Registers;
use crate::{Level, Variant};

/// Lists the only variant of a kernel.
#[must_use]
pub fn one(variant: Variant) -> Listed {
    vec![(String::new(), variant)]
}

impl Sizes {
    /// Makes one variant for each of the cache types, named after the type.
    #[must_use]
    pub fn each(&self, types: &[KvDtype], variant: impl Fn(&KvShape) -> Variant) -> Listed {
        types.iter().map(|dtype| (dtype.name().to_owned(), variant(&self.cache(*dtype)))).collect()
    }

    /// Makes one variant for each layout and each type that caches of the layout have, named after both.
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

impl Registers {
    /// Lists the variants of both register classes, with their names.
    #[must_use]
    pub fn listed(variants: impl Fn(Self) -> Listed) -> Listed {
        let of = |(prefix, registers)| {
            variants(registers).into_iter().map(move |(part, variant)| {
                let name = format!("{prefix}{part}");
                (name.trim_end_matches('-').to_owned(), variant)
            })
        };
        Self::DIVISIONS.into_iter().flat_map(of).collect()
    }
}

/// Makes the variants of both levels of kernels that reduce over a workgroup.
#[must_use]
pub fn levels(variants: impl Fn(Level) -> Listed) -> Listed {
    let subgroup =
        variants(Level::Subgroup).into_iter().map(|(part, variant)| (format!("{part}-subgroup"), variant));
    variants(Level::Baseline).into_iter().chain(subgroup).collect()
}

/// All element types of caches for which kernels list variants.
pub const TYPES: [KvDtype; 4] = [KvDtype::F16, KvDtype::F32, KvDtype::Fp8, KvDtype::Int8];

/// Element types that store codes.
pub const CODES: [KvDtype; 2] = [KvDtype::Fp8, KvDtype::Int8];

/// Element types that store floats.
pub const FLOATS: [KvDtype; 2] = [KvDtype::F16, KvDtype::F32];

/// Makes the [`Grid`](crate::Grid) of a kernel from a function of its typed parameters and its variant.
#[macro_export]
macro_rules! grid {
    ($params:ty, $grid:expr) => {
        |params, variant| {
            const GRID: fn(&$params, &$crate::Variant) -> [u32; 3] = $grid;
            // Parameters as bytes may be padded, as they are when they are bound.
            GRID(&bytemuck::pod_read_unaligned(&params[..size_of::<$params>()]), variant)
        }
    };
}

/// Declares a kernel, in the module named after its `.wgsl` file. If the crate has the feature `self-test`, the
/// kernel has cases.
///
/// - the text: `wgsl/NAME.wgsl` of the crate, which imports the modules of this crate, and of those after `modules`
/// - the [parameters](crate::params) and [bindings](crate::bindings), and the [part of a step](crate::KernelRole)
/// - `grid`: a `fn(&Params, &Variant) -> [u32; 3]` that returns the number of workgroups of a dispatch
/// - `listed`: the [variants](Listed) that reports, tests and self-tests go through, at [sizes](Sizes) of a model
/// - `variants` and `bytes`: cells of the documentation, what variants there are and the bytes that a dispatch moves
/// - `cases`: the function that makes the cases of a variant, with the feature `self-test`
#[macro_export]
macro_rules! kernel {
    (
        $(#[$meta:meta])*
        $name:literal($params:ty, $buffers:ty): $role:ident,
        grid: $grid:expr,
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
            grid: $crate::grid!($params, $grid),
            declared: Some($crate::declare::Declaration {
                listed: $listed,
                variants: $variants,
                bytes: $bytes,
                cases: {
                    #[cfg(feature = "self-test")]
                    const CASES: $crate::declare::DeclaredCases = $crate::declare::DeclaredCases::by($cases);
                    #[cfg(not(feature = "self-test"))]
                    const CASES: $crate::declare::DeclaredCases = $crate::declare::DeclaredCases::NONE;
                    CASES
                },
            }),
        };
    };
}
