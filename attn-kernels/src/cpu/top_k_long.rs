//! Reference of `top_k_long`: the output of `top_k`, whichever way it was found.

pub use super::top_k::top_k as top_k_long;
