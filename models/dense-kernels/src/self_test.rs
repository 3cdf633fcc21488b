//! Every variant of the dense kernels against its CPU reference, as data: see [`attn_kernels::self_test`].

pub(crate) mod hyper;
pub(crate) mod index;
pub(crate) mod matmul;
pub(crate) mod moe;
mod products;
pub(crate) mod rows;
pub(crate) mod sample;
pub mod tensors;

pub use attn_kernels::self_test::cases;
