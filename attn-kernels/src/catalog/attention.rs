//! Variants of the attention kernels.

use super::NamedVariant;
use crate::Level;
use crate::kernel::attention::{Attention, Context, Logit, Pages, Reach};
use crate::kernel::mla_decode::LatentShape;
use crate::kernel::paged_decode::Lanes;
use crate::kernel::paged_decode_subgroup::{self, SUBGROUPS};
use crate::kernel::paged_prefill::KeyLoads;
use crate::kernel::{
    KvDtype, KvShape, cache_write, flash, gather_cache, latent_write, masked_attention, published,
};
use crate::kernel::{
    mla_decode, mla_decode_coop, paged_decode, paged_decode_coop, paged_prefill, paged_prefill_coop,
    paged_reduce,
};
use crate::profile::Registers;

/// Element types of caches, by their names.
const DTYPES: [(&str, KvDtype); 4] =
    [("f16", KvDtype::F16), ("f32", KvDtype::F32), ("fp8", KvDtype::Fp8), ("int8", KvDtype::Int8)];

/// Variants for `num_heads` query heads over caches of these types, f16 first; masks and logits over f16 alone.
pub(super) fn variants(num_heads: u32, types: &[(&str, KvShape); 2]) -> Vec<NamedVariant> {
    let of = |mask, logit, sinks| Attention { mask, logit, sinks, ..Attention::default() };
    let mut all = Vec::new();
    for (name, attention, types) in [
        ("", Attention::default(), &types[..]),
        ("blocks-", Attention::blocks(64), &types[..]),
        ("pages-", Attention { pages: Pages::OfHeads, ..Attention::blocks(64) }, &types[..1]),
        ("window-", of(Reach::Window(128), Logit::Plain, false), &types[..1]),
        ("chunk-", of(Reach::Chunk(8192), Logit::Plain, false), &types[..1]),
        ("softcap-", of(Reach::Full, Logit::Softcap, false), &types[..1]),
        ("alibi-", of(Reach::Full, Logit::Alibi, false), &types[..1]),
        ("alibi-blocks-", Attention { logit: Logit::Alibi, ..Attention::blocks(64) }, &types[..1]),
        ("sinks-", of(Reach::Full, Logit::Plain, true), &types[..1]),
        ("skip-", Attention { skip: true, ..Attention::default() }, &types[..1]),
    ] {
        for named in variants_of(name, &attention, num_heads, types) {
            // Not every option changes every kernel.
            if !all.iter().any(|other: &NamedVariant| other.variant == named.variant) {
                all.push(named);
            }
        }
    }
    all.extend(code_variants(num_heads, &types[0].1));
    all.extend(gathering(num_heads, &types[0].1));
    all.extend(published_variants(num_heads, &types[0].1));
    all.extend(flash_variants(&types[0].1));
    all.extend(latent_variants(types[0].1.head_dim));
    all
}

/// Attention to caches of codes, otherwise of shape `f16`: dense, and by matrices to pages of heads.
fn code_variants(num_heads: u32, f16: &KvShape) -> Vec<NamedVariant> {
    let dense = Attention::default();
    let mut all = Vec::new();
    for (part, dtype) in [("fp8", KvDtype::Fp8), ("int8", KvDtype::Int8)] {
        let shape = KvShape { dtype, ..*f16 };
        for variant in [
            cache_write::variant(&shape),
            paged_prefill::variant(&shape, num_heads, KeyLoads::Uniform, &dense),
        ] {
            all.push(NamedVariant::new(part, variant));
        }
        let software = paged_prefill::variant(&shape, num_heads, KeyLoads::Broadcast, &dense);
        all.push(NamedVariant::new(&format!("software-{part}"), software));
        all.extend(decode_variants(part, &shape, num_heads, &dense));
        all.push(NamedVariant::new(part, paged_prefill_coop::variant(&shape, &dense)));
        let pages = Attention { pages: Pages::OfHeads, ..Attention::blocks(64) };
        all.push(NamedVariant::new(&format!("pages-{part}"), paged_prefill_coop::variant(&shape, &pages)));
    }
    all
}

/// `paged_decode` through workgroup memory, by subgroups of each size, and with matrices.
fn decode_variants(part: &str, shape: &KvShape, num_heads: u32, attention: &Attention) -> Vec<NamedVariant> {
    let of = |lanes| paged_decode::variant(shape, num_heads, lanes, attention);
    let mut all = vec![NamedVariant::new(part, of(Lanes::Workgroup))];
    for lanes in SUBGROUPS.into_iter().filter(|lanes| paged_decode_subgroup::serves(shape, *lanes)) {
        let part = format!("{lanes}-{part}");
        all.push(NamedVariant::new(&part, of(Lanes::Subgroup(lanes))));
    }
    if paged_decode_coop::serves(shape) && attention.context != Context::Tokens {
        all.push(NamedVariant::new(part, of(Lanes::Matrices)));
    }
    all
}

/// The kernels that take values of the published layout, over caches otherwise of shape `f16`.
fn published_variants(num_heads: u32, f16: &KvShape) -> Vec<NamedVariant> {
    let dense = Attention::default();
    let mut all = Vec::new();
    for (part, dtype) in DTYPES {
        let shape = KvShape { dtype, ..*f16 };
        for variant in [
            cache_write::variant(&shape),
            gather_cache::variant(&shape, Context::Full),
            masked_attention::variant(&shape, 64),
            paged_prefill::variant(&shape, num_heads, KeyLoads::Uniform, &dense),
        ] {
            let variant = published(variant).expect("these kernels take them");
            all.push(NamedVariant::new(&format!("published-{part}"), variant));
        }
        let decode = decode_variants(&format!("published-{part}"), &shape, num_heads, &dense);
        all.extend(decode.into_iter().filter(|named| named.level() < Level::Coop).map(|named| {
            NamedVariant { variant: published(named.variant).expect("these kernels take them"), ..named }
        }));
    }
    all
}

/// The kernels that take FlashAttention's layout, over caches otherwise of shape `f16`.
fn flash_variants(f16: &KvShape) -> Vec<NamedVariant> {
    let mut all = Vec::new();
    for (part, dtype) in DTYPES.into_iter().filter(|(_, dtype)| *dtype != KvDtype::Int8) {
        let shape = KvShape { dtype, ..*f16 };
        for variant in [cache_write::variant(&shape), gather_cache::variant(&shape, Context::Full)] {
            let variant = flash(variant).expect("these kernels take it");
            all.push(NamedVariant::new(&format!("flash-{part}"), variant));
        }
    }
    all
}

/// The kernels that gather keys and values by lists, over f16 and codes.
fn gathering(num_heads: u32, f16: &KvShape) -> Vec<NamedVariant> {
    let mut all = Vec::new();
    for (part, dtype) in DTYPES {
        let shape = KvShape { dtype, ..*f16 };
        let mut push = |name: &str, variant| {
            all.push(NamedVariant::new(&format!("{name}{part}"), variant));
        };
        push("", gather_cache::variant(&shape, Context::Full));
        push("blocks-", gather_cache::variant(&shape, Context::Blocks(64)));
        push("", masked_attention::variant(&shape, 64));
        let tokens = Attention { context: Context::Tokens, ..Attention::default() };
        all.extend(decode_variants(&format!("tokens-{part}"), &shape, num_heads, &tokens));
    }
    all
}

/// The 128 heads of DeepSeek V3 for a `head_dim` of 128, smaller in proportion; over two caches the latents of V4.
fn latent_variants(head_dim: u32) -> Vec<NamedVariant> {
    let mut all = Vec::new();
    for (part, dtype) in DTYPES {
        let shape = LatentShape { latent: 4 * head_dim, rope: head_dim / 2, block_size: 64, dtype, plain: 0 };
        let two = LatentShape { rope: 0, ..shape };
        let tokens = Attention { context: Context::Tokens, ..Attention::default() };
        all.push(NamedVariant::new(part, latent_write::variant(&shape)));
        for (prefix, registers) in Registers::DIVISIONS {
            for (name, variant) in [
                ("", mla_decode::variant(&shape, 128, &Attention::default(), registers)),
                ("tokens-", mla_decode::variant(&shape, 128, &tokens, registers)),
                ("two-", mla_decode::variant_of_two(&two, 128, registers)),
            ] {
                all.push(NamedVariant::new(&format!("{prefix}{name}{part}"), variant));
            }
        }
        all.extend(latent_coop_variants(part, dtype));
    }
    let dtype = KvDtype::Fp8;
    let published = LatentShape { latent: 4 * head_dim, rope: 0, block_size: 64, dtype, plain: head_dim / 2 };
    let sizes_of_v4 = LatentShape { latent: 512, plain: 64, ..published };
    for (prefix, registers) in Registers::DIVISIONS {
        let variant = mla_decode::variant_of_two(&published, 64, registers);
        all.push(NamedVariant::new(&format!("{prefix}two-fp8-bf16"), variant));
    }
    for variant in [latent_write::variant(&published), mla_decode_coop::variant_of_two(&sizes_of_v4, 64)] {
        all.push(NamedVariant::new("two-fp8-bf16", variant));
    }
    all
}

/// Variants by matrices, in the sizes of DeepSeek alone.
fn latent_coop_variants(part: &str, dtype: KvDtype) -> Vec<NamedVariant> {
    let shape = LatentShape { latent: 512, rope: 64, block_size: 64, dtype, plain: 0 };
    if !mla_decode_coop::serves(&shape, 128) {
        return Vec::new();
    }
    let two = LatentShape { rope: 0, ..shape };
    let tokens = Attention { context: Context::Tokens, ..Attention::default() };
    let named = |name: &str, variant| NamedVariant::new(&format!("{name}{part}"), variant);
    vec![
        named("", mla_decode_coop::variant(&shape, 128, &Attention::default())),
        named("tokens-", mla_decode_coop::variant(&shape, 128, &tokens)),
        named("two-", mla_decode_coop::variant_of_two(&two, 128)),
    ]
}

fn variants_of(
    name: &str,
    attention: &Attention,
    num_heads: u32,
    types: &[(&str, KvShape)],
) -> Vec<NamedVariant> {
    let mut all = Vec::new();
    for (dtype, shape) in types {
        all.extend(decode_variants(&format!("{name}{dtype}"), shape, num_heads, attention));
        for (loads, part) in [(KeyLoads::Uniform, ""), (KeyLoads::Broadcast, "broadcast-")] {
            let variant = paged_prefill::variant(shape, num_heads, loads, attention);
            all.push(NamedVariant::new(&format!("{name}{part}{dtype}"), variant));
        }
    }
    let f16 = &types[0].1;
    let coop = paged_prefill_coop::variant(f16, attention);
    all.push(NamedVariant::new(&format!("{name}f16"), coop));
    let reduce = paged_reduce::variant(f16, attention);
    all.push(NamedVariant::new(name.trim_end_matches('-'), reduce));
    all
}
