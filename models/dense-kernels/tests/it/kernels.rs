//! Every dense kernel on the adapter that is there, with bounds checks on, against its CPU reference.

#[path = "../../../../attn-kernels/tests/it/reference/device.rs"]
pub(crate) mod device;
mod embed;
mod hyper;
mod int8;
mod logits;
mod matmul;
mod moe;
mod sample;
mod scan;
mod softcap;
mod tensors;
