//! The self-test of the dense kernels: it knows every variant, and passes on the adapter that is there with bounds
//! checks on.

use attn_kernels::gpu::{Checks, Gpu, GpuOptions};
use attn_kernels::self_test::skipped;
use models::kernel::{catalog, variants};
use models::self_test::cases;

#[test]
fn every_kernel_and_variant_has_cases() {
    let all = variants();
    for kernel in catalog() {
        let listed = all.iter().any(|named| named.variant.kernel.name == kernel.name);
        assert!(listed, "{} has no variant", kernel.name);
    }
    for named in all {
        let cases = cases(&named.variant);
        assert!(!cases.is_empty(), "{}: src/self_test has no cases of its kernel", named.name);
        for case in cases {
            assert_eq!(case.variant, named.variant, "{}: {}", named.name, case.what);
            let bindings = named.variant.bindings.len();
            assert_eq!(case.buffers.len(), bindings, "{}: {}", named.name, case.what);
            assert!(!case.wants.is_empty(), "{}: {} compares nothing", named.name, case.what);
        }
    }
}

#[test]
fn every_variant_passes() {
    if std::env::var_os("ATTN_GPU").is_some_and(|value| value == "skip") {
        eprintln!("ATTN_GPU=skip: no kernel runs");
        return;
    }
    let gpu = Gpu::open(&GpuOptions::new(Checks::On)).expect("GPU tests need an adapter");
    for named in variants() {
        for case in cases(&named.variant) {
            match skipped(&gpu, &named, &case) {
                Some(reason) => eprintln!("{} ({}) is skipped: {reason}", named.name, named.level),
                None => case.run(&gpu).unwrap_or_else(|fault| panic!("{}: {fault}", named.name)),
            }
        }
    }
}
