//! attn-kernels
