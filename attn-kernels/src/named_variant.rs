//! Variants with names.

use crate::declare::Sizes;
use crate::{Kernel, Level, Variant};

/// A variant with the name that reports and files use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedVariant {
    /// The kernel's name and, after a hyphen, the features of the variant: `paged_decode-f16`.
    pub name: String,
    /// The variant, at sizes that are common in models.
    pub variant: Variant,
}

impl NamedVariant {
    /// Names `variant` with the kernel's name, a hyphen and `part`; without a part, with the kernel's name alone.
    #[must_use]
    pub fn new(part: &str, variant: Variant) -> Self {
        let kernel = variant.kernel.name;
        let name = if part.is_empty() { kernel.into() } else { format!("{kernel}-{part}") };
        Self { name, variant }
    }

    /// Lists the variants of kernels at sizes of a model. Of equal variants, only the first is listed.
    #[must_use]
    pub fn list(kernels: &[&'static Kernel], sizes: &Sizes) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for kernel in kernels {
            let start = all.len();
            for (part, variant) in kernel.declared.iter().flat_map(|declared| (declared.listed)(sizes)) {
                // Not every option changes every kernel.
                if !all[start..].iter().any(|other| other.variant == variant) {
                    all.push(Self::new(&part, variant));
                }
            }
        }
        all
    }

    /// Level of adapter that the variant needs.
    #[must_use]
    pub fn level(&self) -> Level {
        self.variant.level
    }
}
