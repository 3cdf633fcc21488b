//! Every dense kernel on the adapter that is there, with bounds checks on, against its CPU reference.

#[path = "../../../../attn-kernels/tests/it/reference/device.rs"]
pub(crate) mod device;
mod hyper;
mod int8;
mod logits;
mod matmul;
mod moe;
#[path = "../../../../attn-kernels/tests/it/reference/properties.rs"]
mod properties;
mod sample;
mod softcap;
pub(crate) mod tensors;
