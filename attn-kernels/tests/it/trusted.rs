//! The kernels that have a form by cooperative matrices, over many shapes, as trusted modules: matrices cannot be bounds-checked.
//! Where none run, what stands in for them there is compared with the same references.

use std::sync::OnceLock;

use attn_kernels::gpu::{Checks, Gpu, GpuOptions};
use attn_kernels::kernel::attention::{Attention, Context, Logit, Reach};
use attn_kernels::kernel::index_logits::IndexKeys;
use attn_kernels::kernel::index_logits_coop::IndexKernel;
use attn_kernels::kernel::mla_decode::LatentShape;
use attn_kernels::kernel::mla_decode_coop::MlaKernel;
use attn_kernels::kernel::paged_decode::{self, Lanes};
use attn_kernels::kernel::paged_prefill::{self, KeyLoads};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape, strided_qk, strided_qk_coop};
use attn_kernels::kernel::{paged_decode_coop, paged_prefill_coop};
use attn_kernels::self_test::{self, Spec};
use attn_kernels::{Level, Variant};
use proptest::prelude::*;

use crate::reference::device::cases;

fn gpu() -> Option<&'static Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    let open = || {
        if std::env::var_os("ATTN_GPU").is_some_and(|value| value == "skip") {
            eprintln!("ATTN_GPU=skip: no kernel runs");
            return None;
        }
        let gpu = Gpu::open(&GpuOptions::new(Checks::Off)).expect("GPU tests need an adapter");
        let by = if gpu.runs_coop() { Level::Coop } else { Level::Baseline };
        eprintln!("{}: kernels of level {by}", gpu.info().name);
        Some(gpu)
    };
    GPU.get_or_init(open).as_ref()
}

fn check(gpu: &Gpu, variant: &Variant) -> Result<(), TestCaseError> {
    let cases = self_test::cases(variant, &Spec::default());
    prop_assert!(!cases.is_empty(), "{}: no cases", variant.kernel.name);
    for case in cases {
        let outcome = case.run(gpu);
        prop_assert!(outcome.is_ok(), "{variant:?}: {}", outcome.unwrap_err());
    }
    Ok(())
}

fn dtypes() -> impl Strategy<Value = KvDtype> {
    prop::sample::select(&[KvDtype::F16, KvDtype::Fp8, KvDtype::Int8][..])
}

fn attention() -> impl Strategy<Value = Attention> {
    let masks = prop_oneof![
        Just(Reach::Full),
        (1u32..100).prop_map(Reach::Window),
        (1u32..100).prop_map(Reach::Chunk)
    ];
    let logits = prop::sample::select(&[Logit::Plain, Logit::Softcap, Logit::Alibi][..]);
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
    #![proptest_config(cases(3))]

    #[test]
    fn prefill(spans in 1u32..=8, log_block in 2u32..=6, dtype in dtypes(), attention in attention()) {
        if let Some(gpu) = gpu() {
            let shape =
                KvShape { num_kv_heads: 2, head_dim: 16 * spans, block_size: 1 << log_block, dtype, layout: KvLayout::Native };
            prop_assert!(paged_prefill_coop::serves(&shape));
            let variant = if gpu.runs_coop() {
                paged_prefill_coop::variant(&shape, &attention)
            } else {
                paged_prefill::variant(&shape, 4, KeyLoads::Uniform, &attention)
            };
            check(gpu, &variant)?;
        }
    }

    #[test]
    fn decode(
        (log_dim, log_block) in (5u32..=7, 4u32..=7),
        group in 1u32..=16,
        dtype in dtypes(),
        attention in attention(),
    ) {
        if let Some(gpu) = gpu() {
            let shape =
                KvShape { num_kv_heads: 2, head_dim: 1 << log_dim, block_size: 1 << log_block, dtype, layout: KvLayout::Native };
            prop_assert!(paged_decode_coop::serves(&shape));
            let lanes = if gpu.runs_coop() { Lanes::Matrices } else { Lanes::Workgroup };
            // Listed blocks are whole blocks of the cache.
            let context = match attention.context {
                Context::Blocks(tokens) => Context::Blocks(tokens.max(shape.block_size)),
                other => other,
            };
            check(gpu, &paged_decode::variant(&shape, 2 * group, lanes, &Attention { context, ..attention }))?;
        }
    }

    #[test]
    fn latents(
        (latent, rope) in (1u32..=4, 0u32..=1),
        log_block in 2u32..=7,
        dtype in dtypes(),
        kind in 0u32..3,
    ) {
        if let Some(gpu) = gpu() {
            let shape = LatentShape { latent: 128 * latent, rope: 64 * rope, block_size: 1 << log_block, dtype, plain: 0 };
            let kernel = MlaKernel::new(&shape, 32, gpu.profile());
            let context = if kind == 1 { Context::Tokens } else { Context::Full };
            check(gpu, &match kind {
                2 => kernel.variant_of_two(),
                _ => kernel.variant(&Attention { context, ..Attention::default() }),
            })?;
        }
    }

    #[test]
    fn index_logits(spans in 1u32..=10, log_page in 2u32..=7, published: bool) {
        if let Some(gpu) = gpu() {
            let (head_dim, page) = (16 * spans, 1 << log_page);
            let keys = match published {
                true => IndexKeys::Fp8 { head_dim, page },
                false => IndexKeys::Cached(
                    KvShape { num_kv_heads: 1, head_dim, block_size: page, dtype: KvDtype::F16, layout: KvLayout::Native },
                ),
            };
            check(gpu, &IndexKernel::new(keys, gpu.profile()).variant())?;
        }
    }

    #[test]
    fn strided_scores(spans in 1u32..=10, log_stride in 2u32..=4, log_page in 4u32..=7, log_rows in 4u32..=6) {
        if let Some(gpu) = gpu() {
            let stride = 1 << log_stride;
            let block = stride << log_rows;
            let page = 1 << log_page.min(log_stride + log_rows);
            let shape =
                KvShape { num_kv_heads: 2, head_dim: 16 * spans, block_size: page, dtype: KvDtype::F16, layout: KvLayout::Native };
            prop_assert!(strided_qk_coop::serves(&shape, stride, block));
            check(gpu, &match gpu.runs_coop() {
                true => strided_qk_coop::variant(&shape, stride, block),
                false => strided_qk::variant(&shape, stride, block),
            })?;
        }
    }
}
