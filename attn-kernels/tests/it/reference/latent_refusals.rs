//! Refused launches of latent attention, merges and codes, with the numbers that the refusal names. No device is asked.

use attn_kernels::kernel::apply_sinks::{self, ApplySinksParams};
use attn_kernels::kernel::attention::{Attention, Context, Reach};
use attn_kernels::kernel::dequantise::{self, DequantiseParams};
use attn_kernels::kernel::latent_write::{self, LatentWriteParams};
use attn_kernels::kernel::lse_merge::{self, LseMergeParams};
use attn_kernels::kernel::mla_decode::{self, LatentShape, MlaDecodeParams, SlotLists};
use attn_kernels::kernel::paged_reduce::{self, PagedReduceParams};
use attn_kernels::kernel::quantise::{self, QuantiseParams};
use attn_kernels::kernel::top_k::Transform;
use attn_kernels::kernel::top_k_transform::{self, TopKTransformParams};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape, LaunchError};
use insta::assert_snapshot;

const LATENTS: LatentShape =
    LatentShape { latent: 32, rope: 8, block_size: 16, dtype: KvDtype::F16, plain: 0 };

/// Returns the message of a refusal.
fn said(refused: Result<(), LaunchError>) -> String {
    refused.unwrap_err().to_string()
}

#[test]
fn shapes_of_latents() {
    let said = |change: fn(&mut LatentShape)| {
        let mut shape = LATENTS;
        change(&mut shape);
        said(shape.validate())
    };
    assert_eq!(LatentShape { latent: 512, rope: 64, block_size: 256, ..LATENTS }.validate(), Ok(()));
    assert_snapshot!(said(|s| s.latent = 0), @"cache of latents: latent is 0");
    assert_snapshot!(said(|s| s.latent = 20), @"cache of latents: latent is 20, not a multiple of 8");
    assert_snapshot!(said(|s| s.latent = 576), @"cache of latents: latent is 576, the limit is 512");
    assert_snapshot!(said(|s| s.rope = 4), @"cache of latents: rope part is 4, not a multiple of 8");
    assert_snapshot!(said(|s| s.rope = 72), @"cache of latents: rope part is 72, the limit is 64");
    let v4 = LatentShape { rope: 0, dtype: KvDtype::Fp8, plain: 8, ..LATENTS };
    assert_eq!((v4.validate(), v4.token_bytes()), (Ok(()), 24 + 16 + 8));
    assert_eq!(LatentShape { latent: 512, plain: 64, ..v4 }.token_bytes(), 584);
    let of_v4 = |change: fn(&mut LatentShape)| {
        let mut shape = v4;
        change(&mut shape);
        shape.validate().unwrap_err().to_string()
    };
    assert_snapshot!(of_v4(|s| s.plain = 32), @"cache of latents: part in bf16 is 32, the limit is 31");
    assert_snapshot!(of_v4(|s| s.plain = 4), @"cache of latents: part in bf16 is 4, not a multiple of 8");
    assert_snapshot!(of_v4(|s| s.rope = 8), @"cache of latents: rope part beside one in bf16 is 8, the limit is 0");
    assert_snapshot!(of_v4(|s| s.dtype = KvDtype::Int8), @"cache of latents: part in bf16 is 8, the limit is 0");
    assert_snapshot!(said(|s| s.block_size = 24), @"cache of latents: block size is 24, not a power of two");
    assert_snapshot!(said(|s| s.block_size = 2), @"cache of latents: block size is 2, not a multiple of 4");
    assert_snapshot!(said(|s| s.block_size = 512), @"cache of latents: block size is 512, the limit is 256");
}

#[test]
fn blocks_and_masks_of_attention() {
    let shape = KvShape {
        num_kv_heads: 2,
        head_dim: 16,
        block_size: 4,
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    let masked = |mask| Attention { mask, ..Attention::default() }.validate(&shape, 1);
    assert_eq!(Attention::blocks(8).validate(&shape, 8), Ok(()));
    assert_snapshot!(said(Attention::blocks(0).validate(&shape, 1)), @"attention: selection block is 0");
    assert_snapshot!(said(Attention::blocks(6).validate(&shape, 1)), @"attention: selection block is 6, not a multiple of 4");
    assert_snapshot!(said(Attention::blocks(8).validate(&shape, 16)), @"attention: selection block is 8, not a multiple of 16");
    let tokens = Attention { context: Context::Tokens, ..Attention::default() };
    assert_eq!(tokens.validate(&shape, 1), Ok(()));
    assert_snapshot!(said(tokens.validate(&shape, 8)), @"attention: selection block is 1, not a multiple of 8");
    assert_snapshot!(said(masked(Reach::Window(0))), @"attention: tokens of the window or chunk is 0");
    assert_snapshot!(said(masked(Reach::Chunk(0))), @"attention: tokens of the window or chunk is 0");
}

fn mla_params() -> MlaDecodeParams {
    MlaDecodeParams {
        num_heads: 4,
        q_stride: 160,
        max_partitions: 2,
        reduced: 1,
        scale: 1.0,
        ..MlaDecodeParams::default()
    }
}

#[test]
fn rows_of_latents() {
    let tables = [0, 1, 2, 7, 8];
    let check = |change: fn(&mut MlaDecodeParams), row| {
        let mut params = mla_params();
        change(&mut params);
        mla_decode::check(&LATENTS, &params, &[[0, 1, 1, 0], row], (&tables, 8), [320, 512, 16, 18])
    };
    assert_eq!(check(|_| {}, [1, 64, 0, 20]), Ok(()));
    assert_snapshot!(said(check(|p| p.q_stride = 161, [1, 1, 0, 0])), @"mla_decode: f32 from row to row of q is 161, not a multiple of 4");
    assert_snapshot!(said(check(|p| p.first_key = 128, [1, 1, 0, 0])), @"mla_decode: first key of the dispatch is 128, not a multiple of 256");
    assert_snapshot!(said(check(|p| p.num_keys = 300, [1, 1, 0, 0])), @"mla_decode: keys of the dispatch is 300, not a multiple of 256");
    assert_eq!(check(|p| p.list_stride = 9, [1, 64, 0, 20]), Ok(()));
    assert_snapshot!(said(check(|p| p.list_stride = 10, [1, 64, 0, 20])), @"mla_decode: entries of lists is 20, the limit is 18");
    assert_snapshot!(said(check(|p| p.num_heads = 0, [1, 1, 0, 0])), @"mla_decode: number of query heads is 0");
    assert_snapshot!(said(check(|_| {}, [2, 1, 0, 0])), @"mla_decode: end in q of entry 1 is 480, the limit is 320");
    assert_snapshot!(said(check(|_| {}, [1, 9, 0, 10])), @"mla_decode: first key of entry 1 is 10, the limit is 9");
    assert_snapshot!(said(check(|_| {}, [1, 90, 0, 0])), @"mla_decode: end in the tables of entry 1 is 6, the limit is 5");
    assert_snapshot!(said(check(|_| {}, [1, 80, 0, 0])), @"mla_decode: block of the table + 1 of entry 1 is 9, the limit is 8");
    assert_snapshot!(said(check(|_| {}, [1, 513, 0, 0])), @"mla_decode: partitions of entry 1 is 3, the limit is 2");
    assert_snapshot!(said(check(|p| p.max_partitions = 3, [1, 1, 0, 0])), @"mla_decode: entries of stats is 24, the limit is 16");
    assert_snapshot!(said(check(|p| p.reduced = 0, [1, 1, 0, 0])), @"mla_decode: partitions without a reduce pass is 2, the limit is 1");
}

#[test]
fn rows_of_two_caches() {
    let (window, compressed) = ([0, 15, 16, 99], [5, 6, 7, 31, 32, 99]);
    let check = |row| {
        let params = MlaDecodeParams { list_stride: 2, compressed_stride: 3, ..mla_params() };
        let lists =
            [SlotLists { lists: &window, num_slots: 17 }, SlotLists { lists: &compressed, num_slots: 33 }];
        mla_decode::check_two(&LATENTS, &params, &[[0, 3, 1, 0], row], lists, [320, 512, 16])
    };
    assert_eq!(check([1, 3, 1, 0]), Ok(()));
    assert_eq!(check([1, 0, 0, 0]), Ok(()));
    assert_snapshot!(said(check([1, 1, 2, 0])), @"mla_decode: keys in the window of entry 1 is 2, the limit is 1");
    assert_snapshot!(said(check([1, 2, 2, 0])), @"mla_decode: slot + 1 of entry 1 is 100, the limit is 17");
    assert_snapshot!(said(check([1, 4, 1, 0])), @"mla_decode: slot + 1 of entry 1 is 100, the limit is 33");
    assert_snapshot!(said(check([1, 5, 1, 0])), @"mla_decode: end in the lists of slots of entry 1 is 7, the limit is 6");
    assert_snapshot!(said(check([1, 513, 1, 0])), @"mla_decode: partitions of entry 1 is 3, the limit is 2");
}

#[test]
fn slots_of_latents() {
    let params = LatentWriteParams { rows: 2, row_stride: 50, latent_start: 2, rope_start: 40 };
    let check = |slots: &[i32], len| latent_write::check(&LATENTS, &params, slots, 8, len);
    assert_eq!(check(&[-1, 127], 98), Ok(()));
    assert_snapshot!(said(check(&[0, 128], 98)), @"latent_write: slot + 1 of entry 1 is 129, the limit is 128");
    assert_snapshot!(said(check(&[0, 1], 97)), @"latent_write: end in the source of entry 1 is 98, the limit is 97");
    assert_snapshot!(said(check(&[0], 98)), @"latent_write: rows is 2, the limit is 1");
}

#[test]
fn merges() {
    let params = PagedReduceParams {
        num_heads: 4,
        num_kv_heads: 2,
        max_partitions: 2,
        list_stride: 0,
        first_row: 0,
        partition_size: 256,
    };
    let rows = [[0, 1, 0, 0], [1, 300, 0, 0]];
    let reduce =
        |head_dim, params, lens, sinks| said(paged_reduce::check(head_dim, &params, &rows, lens, sinks));
    assert_eq!(paged_reduce::check(16, &params, &rows, [256, 16, 128], Some(4)), Ok(()));
    assert_snapshot!(reduce(20, params, [256, 16, 128], None), @"paged_reduce: head size is 20, not a multiple of 8");
    let odd = PagedReduceParams { num_kv_heads: 3, ..params };
    assert_snapshot!(reduce(16, odd, [256, 16, 128], None), @"paged_reduce: query heads is 4, not a multiple of 3");
    assert_snapshot!(reduce(16, params, [255, 16, 128], None), @"paged_reduce: f32 of partials is 256, the limit is 255");
    assert_snapshot!(reduce(16, params, [256, 15, 128], None), @"paged_reduce: entries of stats is 16, the limit is 15");
    assert_snapshot!(reduce(16, params, [256, 16, 127], None), @"paged_reduce: end in the output of entry 1 is 128, the limit is 127");
    assert_snapshot!(reduce(16, params, [256, 16, 128], Some(3)), @"paged_reduce: f32 of sinks is 4, the limit is 3");

    let params = LseMergeParams::new(3);
    assert_eq!(lse_merge::check(8, &params, [24, 24], [3, 3]), Ok(()));
    assert_snapshot!(said(lse_merge::check(6, &params, [24, 24], [3, 3])), @"lse_merge: head size is 6, not a multiple of 4");
    assert_snapshot!(said(lse_merge::check(8, &params, [24, 23], [3, 3])), @"lse_merge: f32 of an output is 24, the limit is 23");
    assert_snapshot!(said(lse_merge::check(8, &params, [24, 24], [2, 3])), @"lse_merge: f32 of lse is 3, the limit is 2");

    let params = ApplySinksParams { first_row: 1, rows: 2, num_heads: 4 };
    assert_eq!(apply_sinks::check(8, &params, [12, 4, 96]), Ok(()));
    assert_snapshot!(said(apply_sinks::check(0, &params, [12, 4, 96])), @"apply_sinks: head size is 0");
    assert_snapshot!(said(apply_sinks::check(8, &params, [11, 4, 96])), @"apply_sinks: f32 of lse is 12, the limit is 11");
    assert_snapshot!(said(apply_sinks::check(8, &params, [12, 3, 96])), @"apply_sinks: f32 of sinks is 4, the limit is 3");
    assert_snapshot!(said(apply_sinks::check(8, &params, [12, 4, 95])), @"apply_sinks: f32 of the output is 96, the limit is 95");
}

#[test]
fn codes_and_positions() {
    let params = QuantiseParams { rows: 2, row_stride: 20, first: 3, scale: 1.0 };
    assert_eq!(quantise::check(16, &params, [39, 8, 2]), Ok(()));
    assert_eq!(quantise::check(16, &QuantiseParams { rows: 0, ..params }, [0, 0, 0]), Ok(()));
    assert_snapshot!(said(quantise::check(6, &params, [39, 8, 2])), @"quantise: width of a row is 6, not a multiple of 4");
    assert_snapshot!(said(quantise::check(16, &params, [38, 8, 2])), @"quantise: f32 of x is 39, the limit is 38");
    assert_snapshot!(said(quantise::check(16, &params, [39, 7, 2])), @"quantise: words of codes is 8, the limit is 7");
    let params = DequantiseParams { rows: 2, row_stride: 20, first: 3 };
    assert_snapshot!(said(dequantise::check(16, &params, [39, 8, 1])), @"dequantise: scales is 2, the limit is 1");

    let params = TopKTransformParams { rows: 2, out_stride: 2, page_size: 4 };
    let rows = [[0, 0, 0, 0], [0, 0, 0, 2]];
    let check = |params, out: &[u32], len| top_k_transform::check(&params, Transform::Paged, &rows, out, len);
    assert_eq!(check(params, &[4, u32::MAX, 7, u32::MAX], 4), Ok(()));
    assert_snapshot!(said(check(params, &[4, 0, 8, 0], 4)), @"top_k_transform: end in the table of entry 1 is 5, the limit is 4");
    assert_snapshot!(said(check(params, &[4, 0, 8], 4)), @"top_k_transform: positions is 4, the limit is 3");
    assert_snapshot!(said(check(TopKTransformParams { page_size: 0, ..params }, &[0; 4], 4)), @"top_k_transform: page size is 0");
    assert_snapshot!(said(check(TopKTransformParams { rows: 3, ..params }, &[0; 6], 4)), @"top_k_transform: rows is 3, the limit is 2");
}
