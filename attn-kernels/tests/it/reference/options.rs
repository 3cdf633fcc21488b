//! Attention beside the dense causal case: the values of the self-test, and random ones.

pub(crate) use attn_kernels::self_test::options::{AttentionInputs, Lists};

use attn_kernels::kernel::attention::{Attention, Logit, Mask};
use proptest::prelude::*;

/// Any mask and logit, with and without sinks.
pub(crate) fn attentions() -> impl Strategy<Value = Attention> {
    let tokens = prop_oneof![1u32..20, 100u32..600];
    let mask = (0..3, tokens).prop_map(|(kind, tokens)| match kind {
        0 => Mask::Causal,
        1 => Mask::Window(tokens),
        _ => Mask::Chunk(tokens),
    });
    let logit = prop::sample::select(vec![Logit::Plain, Logit::Softcap, Logit::Alibi]);
    (mask, logit, any::<bool>()).prop_map(|(mask, logit, sinks)| Attention {
        mask,
        logit,
        sinks,
        ..Attention::default()
    })
}
