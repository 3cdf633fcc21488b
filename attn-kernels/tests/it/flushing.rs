//! Codes of 8 bits on a driver that flushes subnormal halves, as WGSL allows. No such driver is at hand: the conversion in the
//! text of a kernel is replaced by one that flushes, so that the rest of the text runs as it is.

use std::collections::BTreeSet;

use attn_kernels::gpu::{Bound, Pass};
use attn_kernels::kernel::attention::Context;
use attn_kernels::kernel::gather_cache::{self, GatherCacheParams};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use attn_kernels::profile::Matrices;
use attn_kernels::self_test::{Spec, cases, skipped};
use attn_kernels::source::Modules;
use attn_kernels::{Kernel, TextLength, Variant};
use kvblock::e4m3;

use super::reference::by_hand::dispatch;
use super::reference::device::gpu;
use super::reference::layer::small_variants;

const FLUSHING: &str = "
fn flushing(halves: u32) -> vec2<f32> {
    let normal = vec2((halves & 0x7c00u) != 0u, (halves & 0x7c000000u) != 0u);
    return select(vec2(0.0), unpack2x16float(halves), normal);
}
";

/// The variant with halves that flush.
fn flushing(variant: &Variant) -> Variant {
    let flushing = |text: &str| text.replace("unpack2x16float(", "flushing(");
    let module = |(name, text): &(&'static str, &str)| (*name, &*flushing(text).leak());
    let modules = |table: &Modules| -> Modules { table.iter().map(module).collect::<Vec<_>>().leak() };
    let kernel = Kernel {
        wgsl: (flushing(variant.kernel.wgsl) + FLUSHING).leak(),
        modules: variant.kernel.modules.iter().map(modules).collect::<Vec<_>>().leak(),
        ..*variant.kernel
    };
    Variant { kernel: Box::leak(Box::new(kernel)), ..variant.clone() }
}

/// Tokens of a block, and elements of a head: a block holds every code once.
const SHAPE: [u32; 2] = [4, 64];

/// Keys as a cache of `dtype` gives them that holds the elements `stored`, each of `bytes` bytes.
fn gathered(dtype: KvDtype, stored: &[u32; 256], flushes: bool) -> Option<Vec<f32>> {
    let gpu = gpu()?;
    let [block_size, head_dim] = SHAPE;
    let shape = KvShape { num_kv_heads: 1, head_dim, block_size, dtype, layout: KvLayout::Native };
    let size = dtype.bytes() as usize;
    let mut block = vec![0u8; 256 * size];
    for (element, bits) in stored.iter().enumerate() {
        let at = shape.k_index(0, 0, element / 64, element % 64) * size;
        block[at..at + size].copy_from_slice(&bits.to_le_bytes()[..size]);
    }
    if dtype == KvDtype::Int8 {
        block.extend([1.0f32; 4].iter().flat_map(|scale| scale.to_le_bytes()));
    }
    let words: Vec<u32> = bytemuck::pod_collect_to_vec(&block);
    let variant = gather_cache::variant(&shape, Context::Full);
    let variant = if flushes { flushing(&variant) } else { variant };
    let [k, v, spans, tables] = [&words[..], &words, &[0, block_size, 0, 0], &[0]]
        .map(|words| gpu.upload("words", words).expect("small"));
    let out = [(); 2].map(|()| gpu.upload("out", &[f32::NAN; 256]).expect("small"));
    let bindings: [Bound; 6] =
        [(&spans).into(), (&k).into(), (&v).into(), (&tables).into(), (&out[0]).into(), (&out[1]).into()];
    let params = GatherCacheParams {
        num_kv_heads: 1,
        list_stride: 0,
        k_scale: 1.0,
        v_scale: 1.0,
        max_keys: block_size,
        spans: 1,
    };
    let mut pass = Pass::new("gather");
    dispatch(gpu, &mut pass, &variant, &params, &bindings);
    let read = pass.read(&out[0], 0..256);
    Some(gpu.submit(pass).expect("it was recorded").wait().expect("it runs").get(read))
}

#[test]
fn every_code_has_its_value() {
    let codes = std::array::from_fn(|code| u32::try_from(code).expect("a byte"));
    for flushes in [false, true] {
        let Some(fp8) = gathered(KvDtype::Fp8, &codes, flushes) else { return };
        let Some(int8) = gathered(KvDtype::Int8, &codes, flushes) else { return };
        for code in 0..=255u8 {
            let (fp8, int8) = (fp8[usize::from(code)], int8[usize::from(code)]);
            assert_eq!(int8.to_bits(), f32::from(code.cast_signed()).to_bits(), "int8 {code:#x}, {flushes}");
            // NaN has two codes, which no cache is given.
            if code & 0x7f != 0x7f {
                assert_eq!(fp8.to_bits(), e4m3::decode(code).to_bits(), "fp8 {code:#x}, {flushes}");
            }
        }
    }
}

/// The simulated driver does flush: an f16 cache loses what is below 2^-14, and nothing else.
#[test]
fn halves_that_are_not_normal_are_flushed() {
    let halves = std::array::from_fn(|i| u32::try_from(i * 8).expect("small"));
    let Some(kept) = gathered(KvDtype::F16, &halves, false) else { return };
    let Some(flushed) = gathered(KvDtype::F16, &halves, true) else { return };
    assert!(kept[1..128].iter().all(|x| *x > 0.0) && flushed[..128].iter().all(|x| *x == 0.0));
    assert!(kept[128..].iter().zip(&flushed[128..]).all(|(kept, flushed)| kept == flushed && *kept > 0.0));
}

/// Each kernel with either code, at its first case.
#[test]
fn kernels_of_codes_pass_where_halves_are_flushed() {
    let Some(gpu) = gpu() else { return };
    let mut tested = BTreeSet::new();
    for named in small_variants() {
        let text = named.variant.wgsl_of(TextLength::Short, Matrices::NVIDIA).expect("variants compose");
        let Some(code) =
            ["fp8_quad", "int8_quad"].into_iter().find(|quad| text.contains(&format!("fn {quad}(")))
        else {
            continue;
        };
        let mut case = cases(&named.variant, &Spec::default()).remove(0);
        if skipped(gpu, &named, &case).is_none() && tested.insert((named.variant.kernel.name, code)) {
            case.variant = flushing(&case.variant);
            case.run(gpu).unwrap_or_else(|fault| panic!("{}: {fault}", named.name));
        }
    }
    assert!(tested.len() > 10, "{tested:?}");
}
