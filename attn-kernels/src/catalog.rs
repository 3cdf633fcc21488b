//! Every kernel of this crate, which `build.rs` reads from the folder, and the variants that reports and tests list.

use crate::declare::Sizes;
use crate::{Kernel, NamedVariant};

/// Lists every kernel, by name.
#[must_use]
pub fn catalog() -> Vec<&'static Kernel> {
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"))
}

/// Lists one named variant of every kernel for each choice of modules, at sizes of typical models.
#[must_use]
pub fn variants() -> Vec<NamedVariant> {
    variants_of(128)
}

/// Lists the [`variants`] for heads of `head_dim` elements. Software drivers compile kernels for small heads much
/// faster.
#[must_use]
pub fn variants_of(head_dim: u32) -> Vec<NamedVariant> {
    NamedVariant::list(&catalog(), &Sizes::of_heads(head_dim))
}
