//! Page sizes, memory formulas and grouping, against published numbers.

use std::fmt::Write;

use kvblock::{
    AttentionKind, BlockSize, CacheLayout, CapacityError, KvCacheSpec, KvDtype, LayoutError, LayoutOptions,
    LengthLimits, PageLayout, merge_specs, tuples_per_group,
};
use proptest::prelude::*;

const HYBRID: LayoutOptions = LayoutOptions::HYBRID;
const UNIFIED: LayoutOptions = LayoutOptions::UNIFORM;

fn size(tokens: u32) -> BlockSize {
    BlockSize::new(tokens).unwrap()
}

fn window(window: u32) -> AttentionKind {
    AttentionKind::SlidingWindow { window }
}

fn dense(kind: AttentionKind) -> KvCacheSpec {
    KvCacheSpec::new(kind, size(16), 8, 128, KvDtype::F16)
}

/// The sub-caches of DeepSeek V4 Flash, 43 layers: 0 and 1 have a window only, even ones compress 4 to 1 and
/// have an indexer, odd ones compress 128 to 1.
fn deepseek_v4() -> Vec<KvCacheSpec> {
    let latent = |kind, block, bytes, ratio| {
        KvCacheSpec::latent(kind, size(block), bytes, KvDtype::Fp8, ratio).page_align_bytes(576)
    };
    let mut specs = Vec::new();
    for layer in 0..43 {
        specs.push(latent(window(128), 64, 584, 1));
        if layer >= 2 && layer % 2 == 0 {
            specs.push(latent(AttentionKind::FULL, 256, 584, 4));
            specs.push(latent(AttentionKind::FULL, 256, 132, 4));
            specs.push(latent(window(8), 4, 8192, 1));
            specs.push(latent(window(8), 4, 2048, 1));
        } else if layer >= 2 {
            specs.push(latent(AttentionKind::FULL, 256, 584, 128));
            specs.push(latent(window(128), 8, 4096, 1));
        }
    }
    specs
}

fn draw(layout: &CacheLayout) -> String {
    let mut out = String::new();
    for group in &layout.groups {
        let spec = &group.spec;
        let kind = match spec.kind {
            AttentionKind::Full { window, chunk } => match (window, chunk) {
                (None, None) => "full".into(),
                (window, chunk) => format!("full, masks {window:?} {chunk:?}"),
            },
            AttentionKind::SlidingWindow { window } => format!("window {window}"),
            AttentionKind::ChunkedLocal { chunk } => format!("chunk {chunk}"),
        };
        let eagle = if group.eagle { ", eagle" } else { "" };
        writeln!(out, "{kind}, blocks of {}: {} layers{eagle}", spec.block_size.get(), group.layers.len())
            .unwrap();
    }
    writeln!(out, "{} buffers, {} bytes a block", layout.tensors.len(), layout.bytes_per_block()).unwrap();
    out
}

#[test]
fn page_bytes() {
    assert_eq!(dense(AttentionKind::FULL).page_bytes(), 2 * 16 * 8 * 128 * 2);
    let mut scaled = dense(AttentionKind::FULL);
    scaled.layout = PageLayout::KeyValue {
        num_kv_heads: 8,
        key_dim: 192,
        value_dim: 128,
        dtype: KvDtype::Int8,
        per_token_head_scales: true,
    };
    assert_eq!(scaled.page_bytes(), 16 * 8 * (192 + 128) + 2 * 16 * 8 * 4);
    let mla = |bytes, dtype| KvCacheSpec::latent(AttentionKind::FULL, size(64), bytes, dtype, 1);
    assert_eq!(mla(576 * 2, KvDtype::F16).page_bytes(), 64 * 576 * 2);
    assert_eq!(mla(656, KvDtype::Fp8).page_bytes(), 64 * (512 + 4 * 4 + 64 * 2));
    let padded = dense(AttentionKind::FULL).padded_page_bytes(70_000);
    assert_eq!(padded.page_bytes(), 70_000);
}

#[test]
fn deepseek_v4_pages() {
    let specs = deepseek_v4();
    // Layer 0: window. Layer 2: window, C4A, indexer, its state, indexer state. Layer 3: window, C128A, its
    // state.
    let pages: Vec<(u64, u64)> =
        specs[2..10].iter().map(|spec| (spec.unpadded_page_bytes(), spec.page_bytes())).collect();
    let window = (37376, 37440);
    let c4a = [(37376, 37440), (8448, 8640), (32768, 32832), (8192, 8640)];
    let c128a = [(1168, 1728), (32768, 32832)];
    assert_eq!(pages[0], window);
    assert_eq!(pages[1..5], c4a);
    assert_eq!(pages[5], window);
    assert_eq!(pages[6..8], c128a);
}

#[test]
fn deepseek_v4_groups() {
    let layout = CacheLayout::plan(&deepseek_v4(), HYBRID).unwrap();
    insta::assert_snapshot!(draw(&layout), @r"
    full, blocks of 256: 62 layers
    window 128, blocks of 64: 22 layers
    window 128, blocks of 64: 21 layers
    window 8, blocks of 4: 42 layers
    window 128, blocks of 8: 20 layers
    66 buffers, 1051776 bytes a block
    ");
    assert_eq!(layout.bytes_per_block(), 22 * 47808);
    let all: usize = layout.tensors.iter().map(|tensor| tensor.layers.len()).sum();
    assert_eq!(all, deepseek_v4().len());
}

#[test]
fn tuples_waste_little() {
    assert_eq!(tuples_per_group(&[43, 21, 20], 21), Ok(22));
    assert_eq!(tuples_per_group(&[10, 5], 1), Ok(5), "5 and 1 waste nothing: the larger wins");
    assert_eq!(tuples_per_group(&[3, 2], 7), Ok(7));
    for (counts, bound) in [(&[][..], 1), (&[3, 0][..], 1), (&[3][..], 0)] {
        assert_eq!(tuples_per_group(counts, bound), Err(LayoutError::NoTuples));
    }
}

#[test]
fn a_page_above_the_largest_latent_page_is_refused() {
    let mut specs = deepseek_v4();
    specs[0].padded_page_bytes = Some(40_000);
    let expected = LayoutError::PageSizes { layer: 0, page_bytes: 40_000, largest: 37440 };
    assert_eq!(CacheLayout::plan(&specs, HYBRID), Err(expected));
}

#[test]
fn equal_layers_are_one_group() {
    let layout = CacheLayout::plan(&[dense(AttentionKind::FULL); 30], HYBRID).unwrap();
    insta::assert_snapshot!(draw(&layout), @r"
    full, blocks of 16: 30 layers
    30 buffers, 1966080 bytes a block
    ");
    // Other head sizes: still one block table, buffers of their own.
    let wide = KvCacheSpec::new(AttentionKind::FULL, size(16), 8, 256, KvDtype::F16);
    let layout = CacheLayout::plan(&[dense(AttentionKind::FULL), wide], HYBRID).unwrap();
    assert_eq!(layout.groups.len(), 1);
    assert_eq!(layout.tensors.iter().map(|t| t.page_bytes).collect::<Vec<_>>(), [65536, 131_072]);
    assert_eq!(CacheLayout::plan(&[], HYBRID), Ok(CacheLayout::default()));
}

#[test]
fn layer_kinds_share_buffers() {
    let alternating = |n: usize, every: usize| -> Vec<KvCacheSpec> {
        (0..n)
            .map(|i| dense(if i % every == every - 1 { AttentionKind::FULL } else { window(128) }))
            .collect()
    };
    let gpt_oss = CacheLayout::plan(&alternating(24, 2), HYBRID).unwrap();
    insta::assert_snapshot!(draw(&gpt_oss), @r"
    window 128, blocks of 16: 12 layers
    full, blocks of 16: 12 layers
    12 buffers, 786432 bytes a block
    ");
    let gemma3 = CacheLayout::plan(&alternating(30, 6), HYBRID).unwrap();
    insta::assert_snapshot!(draw(&gemma3), @r"
    window 128, blocks of 16: 5 layers
    window 128, blocks of 16: 5 layers
    window 128, blocks of 16: 5 layers
    window 128, blocks of 16: 5 layers
    window 128, blocks of 16: 5 layers
    full, blocks of 16: 5 layers
    5 buffers, 327680 bytes a block
    ");
    assert_eq!(gemma3.groups[0].layers, [0, 6, 12, 18, 24], "dealt round robin");
    // 4 and 5 layers: groups of 5, one place stays empty.
    let close = CacheLayout::plan(&alternating(9, 2), HYBRID.eagle_layer(8)).unwrap();
    insta::assert_snapshot!(draw(&close), @r"
    window 128, blocks of 16: 5 layers, eagle
    full, blocks of 16: 4 layers
    5 buffers, 327680 bytes a block
    ");
}

#[test]
fn small_pages_grow() {
    let mut specs = vec![dense(AttentionKind::FULL); 2];
    specs.push(KvCacheSpec::new(window(64), size(16), 4, 128, KvDtype::F16));
    let layout = CacheLayout::plan(&specs, HYBRID).unwrap();
    insta::assert_snapshot!(draw(&layout), @r"
    full, blocks of 16: 1 layers
    full, blocks of 16: 1 layers
    window 64, blocks of 32: 1 layers
    1 buffers, 65536 bytes a block
    ");
    specs[2] = KvCacheSpec::new(window(64), size(16), 3, 128, KvDtype::F16);
    let expected = LayoutError::PageSizes { layer: 2, page_bytes: 24576, largest: 65536 };
    assert_eq!(CacheLayout::plan(&specs, HYBRID), Err(expected));
}

#[test]
fn without_hybrid_windows_are_only_masks() {
    let specs = [dense(AttentionKind::FULL), dense(window(128)), dense(window(128))];
    let layout = CacheLayout::plan(&specs, UNIFIED).unwrap();
    insta::assert_snapshot!(draw(&layout), @r"
    full, masks Some(128) None, blocks of 16: 3 layers
    3 buffers, 196608 bytes a block
    ");
    let two_windows = [dense(window(128)), dense(window(64))];
    assert_eq!(CacheLayout::plan(&two_windows, UNIFIED), Err(LayoutError::Kinds { layer: 1 }));
    let both = [dense(window(128)), dense(AttentionKind::ChunkedLocal { chunk: 64 })];
    let expected = LayoutError::WindowAndChunk { window: 128, chunk: 64 };
    assert_eq!(CacheLayout::plan(&both, UNIFIED), Err(expected));
}

#[test]
fn latents_of_one_group_agree_on_their_type() {
    let latent = |dtype| KvCacheSpec::latent(AttentionKind::FULL, size(64), 656, dtype, 1);
    let expected = LayoutError::LatentTypes { layer: 1, found: KvDtype::F16, expected: KvDtype::Fp8 };
    assert_eq!(merge_specs(&[latent(KvDtype::Fp8), latent(KvDtype::F16)]), Err(expected));
}

#[test]
fn memory_of_a_sequence() {
    let limits = |max_model_len, max_batched_tokens| {
        LengthLimits::new(max_model_len).max_batched_tokens(max_batched_tokens)
    };
    let blocks = |kind, limits| dense(kind).max_blocks_per_seq(limits);
    assert_eq!(blocks(AttentionKind::FULL, limits(8193, 512)), 513);
    assert_eq!(blocks(window(128), limits(8193, 512)), (127_u32 + 512).div_ceil(16) + 1);
    assert_eq!(blocks(window(128), limits(100, 512)), 7 + 1);
    let chunk = AttentionKind::ChunkedLocal { chunk: 1024 };
    assert_eq!(blocks(chunk, limits(8193, 512)), 1536 / 16);
    assert_eq!(dense(AttentionKind::FULL).admission_cap(limits(8193, 512)), None);
    assert_eq!(dense(chunk).admission_cap(limits(8193, 512)), Some(96));
    assert_eq!(dense(window(128)).max_memory_bytes(limits(8193, 512)), 41 * 65536);
}

#[test]
fn capacity() {
    let layout = CacheLayout::plan(&[dense(AttentionKind::FULL); 4], HYBRID).unwrap();
    let limits = LengthLimits::new(160).max_batched_tokens(64);
    assert_eq!(layout.bytes_per_block(), 4 * 65536);
    let memory = 11 * 4 * 65536;
    assert_eq!(layout.check_memory(memory, limits), Ok(11), "10 blocks and the null block");
    assert_eq!(layout.num_blocks(u64::MAX), u32::MAX / 16, "slots are u32");
    assert!((layout.max_concurrency(25, limits) - 2.5).abs() < 1e-12);
    let expected = CapacityError::TooLong {
        max_model_len: 160,
        needed_bytes: memory,
        available_bytes: memory - 1,
        fitting_len: 144,
    };
    assert_eq!(layout.check_memory(memory - 1, limits), Err(expected));
    assert!(matches!(layout.check_memory(4 * 65536, limits), Err(CapacityError::NothingFits { .. })));
}

proptest! {
    /// The binary search agrees with trying every length.
    #[test]
    fn the_fitting_length_is_the_largest(blocks in 2_u64..40, w in 1_u32..40, batched in 1_u32..80) {
        let specs = [dense(AttentionKind::FULL), dense(window(w))];
        let layout = CacheLayout::plan(&specs, HYBRID).unwrap();
        let limits = LengthLimits::new(300).max_batched_tokens(batched);
        let memory = blocks * layout.bytes_per_block();
        let fits = |max_model_len| layout.bytes_per_seq(limits.max_model_len(max_model_len)) <= memory;
        let expected = (1..=300).rev().find(|&len| fits(len));
        prop_assert_eq!(layout.fit_max_model_len(memory, limits).ok(), expected);
    }

    /// Every layer has one buffer of its page size, and no group uses a buffer twice.
    #[test]
    fn every_layer_has_one_place(kinds in prop::collection::vec(0_u32..3, 1..30)) {
        let kind = |k: u32| [AttentionKind::FULL, window(32), window(64)][k as usize];
        let specs: Vec<KvCacheSpec> = kinds.iter().map(|&k| dense(kind(k))).collect();
        let layout = CacheLayout::plan(&specs, HYBRID).unwrap();
        let mut layers: Vec<usize> = layout.tensors.iter().flat_map(|t| t.layers.clone()).collect();
        layers.sort_unstable();
        prop_assert!(layers.into_iter().eq(0..specs.len()));
        for group in &layout.groups {
            prop_assert!(group.layers.iter().all(|&layer| specs[layer].kind == group.spec.kind));
            for tensor in &layout.tensors {
                prop_assert!(tensor.layers.iter().filter(|layer| group.layers.contains(layer)).count() <= 1);
            }
        }
    }
}
