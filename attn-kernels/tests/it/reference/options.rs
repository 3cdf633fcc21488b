//! Attention beside the dense causal case: the values of the self-test, and random ones.

pub(crate) use attn_kernels::self_test::options::{AttentionInputs, Lists};

use attn_kernels::kernel::attention::{Attention, Logit, Reach};
use proptest::prelude::*;

/// Any mask and logit, with and without sinks.
pub(crate) fn attentions() -> impl Strategy<Value = Attention> {
    let tokens = prop_oneof![1u32..20, 100u32..600];
    let mask = (0..3, tokens).prop_map(|(kind, tokens)| match kind {
        0 => Reach::Full,
        1 => Reach::Window(tokens),
        _ => Reach::Chunk(tokens),
    });
    let logit = prop::sample::select(vec![Logit::Plain, Logit::Softcap, Logit::Alibi]);
    (mask, logit, any::<bool>()).prop_map(|(mask, logit, sinks)| Attention {
        mask,
        logit,
        sinks,
        ..Attention::default()
    })
}
