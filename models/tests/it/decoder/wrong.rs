//! The decoder on drivers that get some variants wrong: the verdicts are made up, the kernels that remain run.

use std::sync::Arc;

use attn_kernels::gpu::{Gpu, GpuOptions};
use attn_kernels::kernel::KvDtype;
use attn_kernels::verdicts::Verdicts;
use attn_kernels::{Level, NamedVariant};
use models::{Checkpoint, Decoder, ModelError};

use super::options;
use super::profiles::{equals_reference, of_a_gpu};
use super::random::last_logits;
use super::tiny::{checks, family, fixture};

/// A device that gets `wrong` variants wrong.
fn open(options: &GpuOptions, wrong: impl Fn(&NamedVariant) -> bool) -> Gpu {
    let gpu = Gpu::open(options).expect("GPU tests need an adapter");
    let all = attn_kernels::variants().into_iter().chain(models::kernel::variants());
    let here: Vec<_> = all.filter(|named| gpu.profile().runs(&named.variant)).collect();
    assert!(here.iter().any(&wrong), "nothing is wrong");
    gpu.with_verdicts(Verdicts::new(here.into_iter().map(|named| (named.clone(), !wrong(&named)))))
}

/// Names of the wrong variants that choices have passed over.
fn passed_over(decoder: &Decoder) -> Vec<&'static str> {
    decoder.gpu().profile().verdicts.passed_over().iter().map(|named| &*named.name).collect()
}

#[test]
fn without_subgroups_kernels_without_them_run() {
    let gpu = Gpu::open(&GpuOptions::new(checks())).expect("GPU tests need an adapter");
    if gpu.level() < Level::Subgroup {
        return;
    }
    for name in ["tiny-llama", "tiny-deepseek-v4"] {
        let gpu = open(&GpuOptions::new(checks()), |named| named.level() >= Level::Subgroup);
        let passed_over = passed_over(&equals_reference(family(name), &family(name).prompts[0], gpu));
        assert!(passed_over.iter().any(|name| name.starts_with("rms_norm-")), "{name}: {passed_over:?}");
    }
}

#[test]
fn a_wrong_product_has_another_in_its_place() {
    for wrong in ["matmul_tile", "matmul"] {
        let gpu = open(&of_a_gpu(), |named| named.variant.kernel.name == wrong);
        let tiny = family("tiny-llama");
        let longest = tiny.prompts.iter().max_by_key(|prompt| prompt.ids.len()).unwrap();
        let decoder = equals_reference(tiny, longest, gpu);
        assert!(!decoder.gpu().kernels().contains(&wrong));
        let passed_over = passed_over(&decoder);
        assert!(passed_over.iter().any(|name| name.starts_with(wrong)), "{passed_over:?}");
    }
}

/// Loading is refused, or the first step; the words are the same.
#[test]
fn what_nothing_else_does_is_refused_by_name() {
    let checkpoint = Checkpoint::open(fixture("tiny-llama")).unwrap();
    let config = checkpoint.config().unwrap();
    let load = |gpu, dtype| Decoder::load(&gpu, &config, checkpoint.weights(), &options(dtype));
    let refused = |gpu: &Gpu, error: ModelError| {
        let (adapter, driver) = (&gpu.info().name, &gpu.info().driver_info);
        error.to_string().replace(&format!("{adapter}, {driver}"), "ADAPTER, DRIVER")
    };
    let tokens = [3, 1, 4, 1, 5];

    let decode = |named: &NamedVariant| {
        ["paged_decode-fp8", "paged_decode_subgroup-software-fp8"].contains(&named.name.as_str())
    };
    let gpu = Arc::new(open(&GpuOptions::new(checks()), decode));
    for dtype in [KvDtype::F16, KvDtype::Int8] {
        assert!(
            last_logits(&mut load(Arc::clone(&gpu), dtype).unwrap(), &tokens).iter().all(|x| x.is_finite())
        );
    }
    let error = load(Arc::clone(&gpu), KvDtype::Fp8).unwrap_err();
    insta::assert_snapshot!(refused(&gpu, error), @"paged_decode over KV in fp8: the self-test found paged_decode-fp8 wrong on ADAPTER, DRIVER, and nothing else does the same");

    let embed = |named: &NamedVariant| named.variant.kernel.name == "embed";
    let gpu = Arc::new(open(&GpuOptions::new(checks()), embed));
    let error = load(Arc::clone(&gpu), KvDtype::F16).unwrap_err();
    insta::assert_snapshot!(refused(&gpu, error), @"weights in f32: the self-test found embed-f32 wrong on ADAPTER, DRIVER, and nothing else does the same");
}
