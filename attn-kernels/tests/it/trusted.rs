//! Kernels of many forms, which no list has all of, with the cases that a spec draws. They run as trusted modules: what they
//! write outside of their buffers is seen, and matrices cannot be bounds-checked.

use std::marker::PhantomData;
use std::sync::OnceLock;

use attn_kernels::gpu::{Checks, Gpu, GpuOptions};
use attn_kernels::kernel::attention::{Attention, Context, Logit, Reach};
use attn_kernels::kernel::index_logits::{self, IndexKeys};
use attn_kernels::kernel::index_logits_coop::IndexKernel;
use attn_kernels::kernel::mla_decode::{self, LatentShape, MlaDecodeParams};
use attn_kernels::kernel::mla_decode_coop::MlaKernel;
use attn_kernels::kernel::paged_decode::{self, Lanes, PagedDecodeParams};
use attn_kernels::kernel::paged_prefill::{self, KeyLoads, heads_per_lane};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape, strided_qk, strided_qk_coop};
use attn_kernels::kernel::{paged_decode_coop, paged_prefill_coop, paged_reduce};
use attn_kernels::profile::Registers;
use attn_kernels::self_test::options::AttentionInputs;
use attn_kernels::self_test::{self, Spec};
use attn_kernels::{Level, Variant};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::reference::decode::{Decoder, lanes_of};
use crate::reference::device::{self, assert_draw_passes as check, cases, is_long};
use crate::reference::layer::coded_shapes;
use crate::reference::options::attentions;
use crate::reference::paged_prefill::Prefill;
use crate::reference::properties::assert_same_bits;
use crate::usual;

/// The device without bounds checks, opened once.
fn gpu() -> Option<&'static Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    let open = || {
        let _exists = device::gpu()?;
        Some(Gpu::open(&GpuOptions::new(Checks::Off)).expect("it opened with checks"))
    };
    GPU.get_or_init(open).as_ref()
}

/// The device of kernels by matrices, opened once.
fn matrices() -> Option<&'static Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    GPU.get_or_init(crate::adapter::gpu).as_ref()
}

/// Whether blocks or single tokens are listed, and of how many tokens a block is.
fn contexts() -> impl Strategy<Value = Context> {
    let blocks = (0u32..4).prop_map(|times| Context::Blocks(1 << times));
    prop_oneof![2 => Just(Context::Full), 1 => blocks, 1 => Just(Context::Tokens)]
}

/// `context` in units of blocks of at least `block` tokens.
fn in_blocks(context: Context, block: u32) -> Context {
    match context {
        Context::Blocks(times) => Context::Blocks(times * block),
        other => other,
    }
}

/// Fails unless a variant that attends listed blocks computes the bits of the one that attends all, if all are listed.
fn assert_lists_of_all_change_nothing(gpu: &Gpu, dense: &Variant, listed: &Variant, seed: u64) {
    let all = self_test::cases(dense, &Spec::random(seed)).remove(0);
    let named = self_test::cases(listed, &Spec::random(seed).listing_all()).remove(0);
    assert_same_bits(gpu, &named, &all);
}

/// Sinks that `seed` draws for so many heads.
fn sinks_of(seed: u64) -> impl Fn(u32) -> Vec<f32> {
    move |num_heads| AttentionInputs::new(Attention::default(), num_heads, seed).sinks
}

/// Checks `paged_decode` by `lanes`: its cases, rows and keys in any dispatches, the smallest blocks, and lists of all blocks.
fn check_decode(
    gpu: &Gpu,
    shape: &KvShape,
    (num_heads, lanes): (u32, Lanes),
    attention: Attention,
    seed: u64,
) {
    let least = if lanes == Lanes::Matrices { 16 } else { 4 };
    let variant = |shape: &KvShape, attention| paged_decode::variant(shape, num_heads, lanes, &attention);
    check(gpu, variant(shape, attention), seed);
    let sinks = sinks_of(seed);
    let decoder = |shape: &KvShape| Decoder {
        variant: variant(shape, attention),
        reduce: paged_reduce::best(gpu.profile(), shape, &attention),
        params: PhantomData::<PagedDecodeParams>,
        sinks: attention.sinks.then_some(&sinks),
    };
    decoder(shape).check(gpu, seed);
    if shape.block_size > least {
        let other = KvShape { block_size: least, ..*shape };
        decoder(shape).check_blocks(gpu, &decoder(&other), shape.block_size, seed);
    }
    // A lane has codes of two neighbouring keys, but listed tokens have no neighbours: their sums have another order.
    let reordered = attention.context == Context::Tokens && shape.dtype.is_code();
    if attention.context != Context::Full && !reordered {
        let dense = variant(shape, Attention { context: Context::Full, ..attention });
        assert_lists_of_all_change_nothing(gpu, &dense, &variant(shape, attention), seed);
    }
}

/// Checks a variant of `mla_decode`, or of its form by matrices: its cases, and rows and keys in any dispatches.
fn check_latents(
    gpu: &Gpu,
    variant: Variant,
    reduce: &dyn Fn(&Attention) -> Variant,
    context: Context,
    seed: u64,
) {
    check(gpu, variant.clone(), seed);
    let (sinks, has_sinks) = (sinks_of(seed), seed.is_multiple_of(2));
    let reduce = reduce(&Attention { context, sinks: has_sinks, ..Attention::default() });
    check(gpu, reduce.clone(), seed);
    let params = PhantomData::<MlaDecodeParams>;
    Decoder { variant, reduce, params, sinks: has_sinks.then_some(&sinks) }.check(gpu, seed);
}

/// Checks a kernel of prefill, of which `variant` returns the variant for a cache and an attention: its cases, rows in any tiles,
/// keys in any parts, blocks of four tokens, and lists of all blocks.
fn check_prefill(
    gpu: &Gpu,
    shape: &KvShape,
    variant: &dyn Fn(&KvShape, Attention) -> Variant,
    attention: Attention,
    seed: u64,
) {
    check(gpu, variant(shape, attention), seed);
    let of = |shape: &KvShape| {
        let variant = variant(shape, attention);
        Prefill { goes_on: variant.level < Level::Coop, variant }
    };
    of(shape).check(gpu, seed);
    if shape.block_size > 4 {
        let other = KvShape { block_size: 4, ..*shape };
        of(shape).check_blocks(gpu, &of(&other), shape.block_size, seed);
    }
    if attention.context != Context::Full {
        let dense = variant(shape, Attention { context: Context::Full, ..attention });
        assert_lists_of_all_change_nothing(gpu, &dense, &variant(shape, attention), seed);
    }
}

fn dtypes() -> impl Strategy<Value = KvDtype> {
    select(&[KvDtype::F16, KvDtype::Fp8, KvDtype::Int8][..])
}

/// Attention that matrices serve.
fn attention() -> impl Strategy<Value = Attention> {
    let masks = prop_oneof![
        Just(Reach::Full),
        (1u32..100).prop_map(Reach::Window),
        (1u32..100).prop_map(Reach::Chunk)
    ];
    let logits = select(&[Logit::Plain, Logit::Softcap, Logit::Alibi][..]);
    // Selected blocks are whole blocks of the cache and whole loads.
    let contexts = prop_oneof![Just(Context::Full), (6u32..9).prop_map(|log| Context::Blocks(1 << log))];
    (masks, logits, contexts).prop_map(|(mask, logit, context)| Attention {
        mask,
        logit,
        context,
        ..Attention::default()
    })
}

/// The ways to load keys that the device has.
fn loads(gpu: &Gpu) -> impl Iterator<Item = KeyLoads> {
    let subgroups = gpu.level() >= Level::Subgroup && gpu.info().subgroup_min_size >= 8;
    [Some(KeyLoads::Uniform), subgroups.then_some(KeyLoads::Broadcast)].into_iter().flatten()
}

/// The ends of what prefill serves. Software drivers take half a minute to compile each of the large heads, so these are for
/// devices.
#[test]
fn heads_groups_and_blocks_of_prefill_at_their_limits() {
    let Some(gpu) = gpu() else { return };
    for (head_dim, group, block_size, dtype) in [
        (16, 128, 128, KvDtype::F16),
        (24, 1, 4, KvDtype::Int8),
        (248, 3, 128, KvDtype::F32),
        (256, 32, 4, KvDtype::F16),
        (512, 8, 16, KvDtype::F16),
        (512, 1, 64, KvDtype::Fp8),
    ] {
        let shape = KvShape { num_kv_heads: 1, head_dim, block_size, dtype, layout: KvLayout::Native };
        if head_dim > 128 && gpu.is_cpu() {
            eprintln!("{shape:?} is left to devices");
            continue;
        }
        for loads in loads(gpu) {
            check(gpu, paged_prefill::variant(&shape, group, loads, &Attention::default()), 41);
        }
    }
}

/// The ends of what decode serves: heads of 16 to 512 elements, groups of 1 to 128 query heads, blocks of 4 to 128 tokens.
#[test]
fn heads_groups_and_blocks_of_decode_at_their_limits() {
    let Some(gpu) = gpu() else { return };
    let limits = [
        (512, 8, 4, KvDtype::Int8),
        (16, 128, 128, KvDtype::F32),
        (24, 100, 8, KvDtype::Fp8),
        (248, 1, 128, KvDtype::F32),
        (16, 31, 4, KvDtype::F16),
        (256, 128, 4, KvDtype::F16),
        (512, 3, 16, KvDtype::F16),
    ];
    for &(head_dim, group, block_size, dtype) in usual(3, &limits) {
        let shape = KvShape { num_kv_heads: 1, head_dim, block_size, dtype, layout: KvLayout::Native };
        for lanes in lanes_of(gpu, &shape) {
            check(gpu, paged_decode::variant(&shape, group, lanes, &Attention::default()), 31);
        }
    }
}

proptest! {
    #![proptest_config(cases(3))]

    #[test]
    fn decode(
        (shape, num_heads) in coded_shapes(),
        attention in attentions(),
        context in contexts(),
        lanes: Index,
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            let attention = Attention { context: in_blocks(context, shape.block_size), ..attention };
            let lanes = *lanes.get(&lanes_of(gpu, &shape));
            check_decode(gpu, &shape, (num_heads, lanes), attention, seed);
            check(gpu, paged_reduce::best(gpu.profile(), &shape, &attention), seed);
        }
    }

    #[test]
    fn latents(
        (latent, rope, log, plain) in (1u32..=if is_long() { 64 } else { 16 }, 0u32..=8, 2u32..=7, 0u32..=8),
        num_heads in select(vec![1u32, 2, 5, 16, 24, 128]),
        dtype in select(vec![KvDtype::F16, KvDtype::F32, KvDtype::Fp8, KvDtype::Int8]),
        context in contexts(),
        few: bool,
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            let shape = LatentShape { latent: 8 * latent, rope: 8 * rope, block_size: 1 << log, dtype, plain: 0 };
            let registers = if few { Registers::Few } else { Registers::Many };
            let of = |context| {
                mla_decode::variant(&shape, num_heads, &Attention { context, ..Attention::default() }, registers)
            };
            let reduce = |attention: &Attention| mla_decode::reduce_variant(gpu.profile(), &shape, attention);
            let context = in_blocks(context, 1 << log);
            check_latents(gpu, of(context), &reduce, context, seed);
            if context != Context::Full {
                assert_lists_of_all_change_nothing(gpu, &of(Context::Full), &of(context), seed);
            }
            // Some elements of what is as long as keys are not coded, in fp8.
            let plain = if dtype == KvDtype::Fp8 && latent > plain { 8 * plain } else { 0 };
            let shape = LatentShape { rope: if plain > 0 { 0 } else { shape.rope }, plain, ..shape };
            let two = mla_decode::variant_of_two(&shape, num_heads, registers);
            check_latents(gpu, two, &reduce, Context::Full, seed);
        }
    }
}

proptest! {
    #![proptest_config(cases(2))]

    /// Prefill of shapes of which a software driver compiles a lane in a few seconds.
    #[test]
    fn prefill(
        (shape, num_heads) in coded_shapes(),
        attention in attentions(),
        context in contexts(),
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            let heads = heads_per_lane(&shape, num_heads, KeyLoads::Broadcast);
            let shape = KvShape { head_dim: shape.head_dim.min(64 / heads / 8 * 8), ..shape };
            // There are no lists of tokens.
            let context = if context == Context::Tokens { Context::Full } else { context };
            let attention = Attention { context: in_blocks(context, shape.block_size.max(8)), ..attention };
            for loads in loads(gpu) {
                let variant = |shape: &KvShape, attention| {
                    paged_prefill::variant(shape, num_heads, loads, &attention)
                };
                check_prefill(gpu, &shape, &variant, attention, seed);
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(1))]

    /// Keys in codes with scales, or in a cache; matrices take vectors of whole sixteens.
    #[test]
    fn index_logits(eighths in 1u32..=20, log_page in 2u32..=7, dtype in select(vec![KvDtype::Fp8, KvDtype::F16, KvDtype::F32]), seed: u64) {
        let keys = |head_dim, dtype| match dtype {
            KvDtype::Fp8 => IndexKeys::Fp8 { head_dim, page: 1 << log_page },
            _ => IndexKeys::Cached(
                KvShape { num_kv_heads: 1, head_dim, block_size: 1 << log_page, dtype, layout: KvLayout::Native },
            ),
        };
        if let Some(gpu) = gpu() {
            check(gpu, index_logits::variant(&keys(8 * eighths, dtype)), seed);
        }
        if let Some(gpu) = matrices() {
            let dtype = if dtype == KvDtype::F32 { KvDtype::F16 } else { dtype };
            check(gpu, IndexKernel::new(keys(16 * eighths.div_ceil(2), dtype), gpu.profile()).variant(), seed);
        }
    }

    #[test]
    fn strided_scores(
        spans in 1u32..=16,
        (log_stride, log_page, log_rows) in (2u32..=4, 4u32..=8, 4u32..=6),
        seed: u64,
    ) {
        let stride = 1 << log_stride;
        let block = stride << log_rows;
        let page = 1 << log_page.min(log_stride + log_rows);
        let shape =
            KvShape { num_kv_heads: 2, head_dim: 16 * spans, block_size: page, dtype: KvDtype::F16, layout: KvLayout::Native };
        prop_assert!(strided_qk_coop::serves(&shape, stride, block));
        if let Some(gpu) = gpu() {
            check(gpu, strided_qk::variant(&shape, stride, block), seed);
        }
        if let Some(gpu) = matrices() {
            check(gpu, strided_qk_coop::variant(&shape, stride, block), seed);
        }
    }

    #[test]
    fn prefill_by_matrices(
        (spans, log_block) in (1u32..=16, 2u32..=6),
        dtype in dtypes(),
        attention in attention(),
        seed: u64,
    ) {
        if let Some(gpu) = matrices() {
            // The device decides about heads of more than 128.
            let shape =
                KvShape { num_kv_heads: 2, head_dim: 16 * spans, block_size: 1 << log_block, dtype, layout: KvLayout::Native };
            prop_assert!(spans > 8 || paged_prefill_coop::serves(&shape, gpu.profile()));
            prop_assume!(paged_prefill_coop::serves(&shape, gpu.profile()));
            let variant = |shape: &KvShape, attention| paged_prefill_coop::variant(shape, &attention);
            check_prefill(gpu, &shape, &variant, attention, seed);
        }
    }

    #[test]
    fn decode_by_matrices(
        (log_dim, log_block) in (5u32..=7, 4u32..=7),
        (group, sinks) in (1u32..=20, any::<bool>()),
        dtype in dtypes(),
        attention in attention(),
        seed: u64,
    ) {
        if let Some(gpu) = matrices() {
            let shape =
                KvShape { num_kv_heads: 2, head_dim: 1 << log_dim, block_size: 1 << log_block, dtype, layout: KvLayout::Native };
            prop_assert!(paged_decode_coop::serves(&shape));
            // Listed blocks are whole blocks of the cache.
            let context = match attention.context {
                Context::Blocks(tokens) => Context::Blocks(tokens.max(shape.block_size)),
                other => other,
            };
            let attention = Attention { context, sinks, ..attention };
            check_decode(gpu, &shape, (2 * group, Lanes::Matrices), attention, seed);
        }
    }

    #[test]
    fn latents_by_matrices(
        (latent, rope, log_block) in (1u32..=4, 0u32..=1, 2u32..=7),
        dtype in dtypes(),
        tokens: bool,
        seed: u64,
    ) {
        if let Some(gpu) = matrices() {
            let shape = LatentShape { latent: 128 * latent, rope: 64 * rope, block_size: 1 << log_block, dtype, plain: 0 };
            let kernel = MlaKernel::new(&shape, 32, gpu.profile());
            let context = if tokens { Context::Tokens } else { Context::Full };
            let of = |context| kernel.variant(&Attention { context, ..Attention::default() });
            let reduce = |attention: &Attention| mla_decode::reduce_variant(gpu.profile(), &shape, attention);
            check_latents(gpu, of(context), &reduce, context, seed);
            if context != Context::Full {
                assert_lists_of_all_change_nothing(gpu, &of(Context::Full), &of(context), seed);
            }
            check_latents(gpu, kernel.variant_of_two(), &reduce, Context::Full, seed);
        }
    }
}
