//! Kernels of many forms, which no list has all of, with the cases that a spec draws. They run as trusted modules: what they
//! write outside of their buffers is seen, and matrices cannot be bounds-checked.

use std::sync::OnceLock;

use attn_kernels::gpu::{Checks, Gpu, GpuOptions};
use attn_kernels::kernel::attention::{Attention, Context, Logit, Reach};
use attn_kernels::kernel::index_logits::{self, IndexKeys};
use attn_kernels::kernel::index_logits_coop::IndexKernel;
use attn_kernels::kernel::mla_decode::{self, LatentShape};
use attn_kernels::kernel::mla_decode_coop::MlaKernel;
use attn_kernels::kernel::paged_decode::{self, Lanes};
use attn_kernels::kernel::paged_prefill::{self, KeyLoads, heads_per_lane};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape, strided_qk, strided_qk_coop};
use attn_kernels::kernel::{paged_decode_coop, paged_prefill_coop, paged_reduce};
use attn_kernels::profile::Registers;
use attn_kernels::self_test::{self, Case, Spec};
use attn_kernels::{Level, Variant};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::reference::decode::lanes_of;
use crate::reference::device::{self, assert_bits, assert_draw_passes as check, cases, described};
use crate::reference::layer::coded_shapes;
use crate::reference::options::attentions;

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
    let ([of_all, of_named], what) = ([&all, &named].map(|case| after(gpu, case)), described(listed));
    for (buffer, _) in &all.wants {
        assert_bits(&what, bytemuck::cast_slice(&of_named[*buffer]), bytemuck::cast_slice(&of_all[*buffer]));
    }
}

/// Buffers of a case as its kernel leaves them.
fn after(gpu: &Gpu, case: &Case) -> Vec<Vec<u32>> {
    case.after(gpu).unwrap_or_else(|fault| panic!("{}: {fault}", described(&case.variant)))
}

/// Fails unless each row of the first case has the same bits among rows without keys as among the others. Rows are of four words,
/// in a buffer by number.
fn assert_rows_are_independent(gpu: &Gpu, variant: &Variant, rows: usize, seed: u64) {
    let case = self_test::cases(variant, &Spec::random(seed)).remove(0);
    let alone = |index| {
        let mut case = case.clone();
        for (_, row) in
            case.buffers[rows].chunks_exact_mut(4).enumerate().filter(|(other, _)| *other != index)
        {
            (row[1], row[3]) = (0, 0);
        }
        after(gpu, &case)
    };
    let together = after(gpu, &case);
    let alone: Vec<_> = (0..case.buffers[rows].len() / 4).map(alone).collect();
    for (buffer, _) in &case.wants {
        for (at, word) in together[*buffer].iter().enumerate() {
            let same = alone.iter().any(|alone| alone[*buffer][at] == *word);
            assert!(
                same,
                "{}, seed {seed}: word {at} of buffer {buffer} depends on other rows",
                described(variant)
            );
        }
    }
}

/// Checks `paged_decode` by `lanes`: its cases, rows alone, and lists of all blocks.
fn check_decode(
    gpu: &Gpu,
    shape: &KvShape,
    (num_heads, lanes): (u32, Lanes),
    attention: Attention,
    seed: u64,
) {
    let variant = |attention| paged_decode::variant(shape, num_heads, lanes, &attention);
    check(gpu, variant(attention), seed);
    assert_rows_are_independent(gpu, &variant(attention), 4, seed);
    // A lane has codes of two neighbouring keys, but listed tokens have no neighbours: their sums have another order.
    let reordered = attention.context == Context::Tokens && shape.dtype.is_code();
    if attention.context != Context::Full && !reordered {
        let dense = variant(Attention { context: Context::Full, ..attention });
        assert_lists_of_all_change_nothing(gpu, &dense, &variant(attention), seed);
    }
}

/// Checks `mla_decode`, or its form by matrices, of `attention`: its cases, rows alone, and lists of all blocks.
fn check_latents(gpu: &Gpu, variant: &dyn Fn(Attention) -> Variant, context: Context, seed: u64) {
    let of = |context| variant(Attention { context, ..Attention::default() });
    check(gpu, of(context), seed);
    assert_rows_are_independent(gpu, &of(context), 3, seed);
    if context != Context::Full {
        assert_lists_of_all_change_nothing(gpu, &of(Context::Full), &of(context), seed);
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

proptest! {
    #![proptest_config(cases(2))]

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
        (latent, rope, log) in (1u32..=16, 0u32..=8, 2u32..=7),
        num_heads in select(vec![1u32, 2, 5, 16, 24, 128]),
        dtype in select(vec![KvDtype::F16, KvDtype::F32, KvDtype::Fp8, KvDtype::Int8]),
        context in contexts(),
        few: bool,
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            let shape = LatentShape { latent: 8 * latent, rope: 8 * rope, block_size: 1 << log, dtype, plain: 0 };
            let registers = if few { Registers::Few } else { Registers::Many };
            let variant = |attention| mla_decode::variant(&shape, num_heads, &attention, registers);
            let context = in_blocks(context, 1 << log);
            check_latents(gpu, &variant, context, seed);
            let attention = Attention { context, sinks: few, ..Attention::default() };
            check(gpu, mla_decode::reduce_variant(gpu.profile(), &shape, &attention), seed);
            check(gpu, mla_decode::variant_of_two(&shape, num_heads, registers), seed);
        }
    }
}

proptest! {
    #![proptest_config(cases(1))]

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
            let subgroups = gpu.level() >= Level::Subgroup && gpu.info().subgroup_min_size >= 8;
            let loads = [Some(KeyLoads::Uniform), subgroups.then_some(KeyLoads::Broadcast)];
            for loads in loads.into_iter().flatten() {
                let variant = |attention| paged_prefill::variant(&shape, num_heads, loads, &attention);
                check(gpu, variant(attention), seed);
                let dense = variant(Attention { context: Context::Full, ..attention });
                if context != Context::Full {
                    assert_lists_of_all_change_nothing(gpu, &dense, &variant(attention), seed);
                }
            }
        }
    }

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
        spans in 1u32..=10,
        (log_stride, log_page, log_rows) in (2u32..=4, 4u32..=7, 4u32..=6),
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
            let variant = |attention| paged_prefill_coop::variant(&shape, &attention);
            check(gpu, variant(attention), seed);
            if attention.context != Context::Full {
                let dense = variant(Attention { context: Context::Full, ..attention });
                assert_lists_of_all_change_nothing(gpu, &dense, &variant(attention), seed);
            }
        }
    }

    #[test]
    fn decode_by_matrices(
        (log_dim, log_block) in (5u32..=7, 4u32..=7),
        group in 1u32..=16,
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
            let attention = Attention { context, ..attention };
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
            check_latents(gpu, &|attention| kernel.variant(&attention), context, seed);
            check(gpu, kernel.variant_of_two(), seed);
        }
    }
}
