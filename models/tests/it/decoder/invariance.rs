//! `reproducible`: a row's arithmetic is the same bit by bit, whatever the step around it looks like.

use attn_kernels::kernel::KvDtype;
use models::DecoderOptions;

use super::served::{Request, Served, serve};
use super::tiny::{family, tiny};
use super::{CAPACITY, blocks_of, options};
use crate::{is_long, usual};

/// Tokens drawn after each prompt.
const TOKENS: usize = 12;

fn reproducible() -> DecoderOptions {
    options(KvDtype::F16).reproducible(true)
}

/// The longest prompt alone, in one chunk.
fn alone() -> Served {
    let request = Request::new(&tiny().prompts[3].ids, TOKENS);
    serve(&mut tiny().decoder(&reproducible()), &[request], 200).remove(0)
}

pub(crate) fn assert_same(what: &str, got: &Served, want: &Served) {
    let vocab = tiny().vocab();
    let (got_bits, want_bits) = (got.bits(), want.bits());
    assert_eq!(got_bits.len(), want_bits.len(), "{what}");
    if let Some(at) = (0..got_bits.len()).find(|at| got_bits[*at] != want_bits[*at]) {
        let (row, id) = (at / vocab, at % vocab);
        panic!("{what}: row {row}, id {id}: {} instead of {}", got.logits[at], want.logits[at]);
    }
    assert_eq!(got.drawn, want.drawn, "{what}");
}

#[test]
fn chunks_do_not_change_a_bit() {
    let want = alone();
    let mut decoder = tiny().decoder(&reproducible());
    let request = Request::new(&tiny().prompts[3].ids, TOKENS);
    for chunk in [1, 7, 16, 64, 150] {
        let served = serve(&mut decoder, &[request], chunk);
        assert_same(&format!("chunks of {chunk}"), &served[0], &want);
    }
}

#[test]
fn blocks_and_the_size_of_the_pool_do_not_change_a_bit() {
    let want = alone();
    let request = Request::new(&tiny().prompts[3].ids, TOKENS);
    let mut other: Vec<DecoderOptions> = [4, 8, 64].map(|size| blocks_of(size, &reproducible())).to_vec();
    other.extend([1, 8].map(|n| reproducible().num_blocks(n * CAPACITY / 16 + 1)));
    for options in other {
        let served = serve(&mut tiny().decoder(&options), &[request], 64);
        let what = format!("{} blocks of {}", options.num_blocks, options.block_size);
        assert_same(&what, &served[0], &want);
    }
}

#[test]
fn caches_of_codes_are_invariant_too() {
    let request = Request::new(&tiny().prompts[3].ids, TOKENS);
    for kv_dtype in [KvDtype::Fp8, KvDtype::Int8] {
        let options = reproducible().kv_dtype(kv_dtype);
        let want = serve(&mut tiny().decoder(&options), &[request], 200).remove(0);
        let sizes = [(4, 64, 130), (16, 7, request.prefill), (64, 150, request.prefill)];
        for &(block_size, chunk, prefill) in usual(1, &sizes) {
            let request = Request { prefill, ..request };
            let served = serve(&mut tiny().decoder(&blocks_of(block_size, &options)), &[request], chunk);
            let what =
                format!("{kv_dtype:?}, blocks of {block_size}, chunks of {chunk}, decode from {prefill}");
            assert_same(&what, &served[0], &want);
        }
    }
}

#[test]
fn company_does_not_change_a_bit() {
    let prompts = &tiny().prompts;
    let mut decoder = tiny().decoder(&reproducible());
    let alone: Vec<Served> = prompts
        .iter()
        .map(|prompt| serve(&mut decoder, &[Request::new(&prompt.ids, TOKENS)], 200).remove(0))
        .collect();
    for order in [[0, 1, 2, 3], [3, 1, 0, 2]] {
        for chunk in [7, 64] {
            let requests = order.map(|n| Request::new(&prompts[n].ids, TOKENS));
            let together = serve(&mut decoder, &requests, chunk);
            for (n, served) in order.iter().zip(&together) {
                let what = format!("prompt {n} of the batch {order:?}, chunks of {chunk}");
                assert_same(&what, served, &alone[*n]);
            }
        }
    }
}

/// Without it a preempted request, whose drawn tokens come back as prefill, would go on differently.
#[test]
fn decode_rows_equal_prefill_rows_bit_by_bit() {
    let want = alone();
    let mut decoder = tiny().decoder(&reproducible());
    for prefill in [0, 1, 130] {
        let request = Request { prefill, ..Request::new(&tiny().prompts[3].ids, TOKENS) };
        let served = serve(&mut decoder, &[request], 64);
        assert_same(&format!("decode from {prefill}"), &served[0], &want);
    }
    let longer: Vec<u32> = tiny().prompts[3].ids.iter().chain(&want.drawn[..TOKENS - 1]).copied().collect();
    let recomputed = serve(&mut decoder, &[Request::new(&longer, 1)], 64).remove(0);
    assert_eq!(recomputed.bits(), want.bits());
    assert_eq!(recomputed.drawn[..], want.drawn[TOKENS - 1..]);
}

/// Without `reproducible` chunks may change a row, and company by the size of partitions alone, which on a software driver is
/// the same for all of these.
#[test]
fn company_does_not_change_a_bit_in_the_default_mode() {
    let prompts = &tiny().prompts;
    let mut decoder = tiny().decoder(&options(KvDtype::F16));
    // One sequence decodes over three partitions of keys, the others over one.
    let long: Vec<u32> = prompts[3].ids.iter().copied().cycle().take(600).collect();
    let requests =
        [&long, &prompts[0].ids, &prompts[1].ids, &prompts[2].ids].map(|p| Request::new(p, TOKENS));
    let together = serve(&mut decoder, &requests, 64);
    for (n, (request, served)) in requests.iter().zip(&together).enumerate() {
        let alone = serve(&mut decoder, &[*request], 64);
        assert_same(&format!("request {n}"), served, &alone[0]);
    }
}

/// Rows of the longest prompt, of 200, before the first that decodes: by default more of them.
pub(super) fn decode_from() -> usize {
    if is_long() { 130 } else { 170 }
}

/// Compressed attention goes row by row and keeps its states: neither blocks nor chunks nor the phase change a bit.
#[test]
fn nothing_around_a_row_of_compressed_attention_changes_a_bit() {
    nothing_changes_a_bit(
        "tiny-deepseek-v4",
        usual(1, &[(4, 64, decode_from()), (16, 7, 200), (64, 1, 200)]),
    );
}

/// So does NSA, but that its means are those of blocks of the cache: of 16 tokens here, whether 16 or 64 are asked for.
#[test]
fn nothing_around_a_row_of_native_sparse_attention_changes_a_bit() {
    nothing_changes_a_bit("tiny-nsa", usual(1, &[(16, 64, decode_from()), (64, 7, 200)]));
}

fn nothing_changes_a_bit(name: &'static str, cases: &[(u32, usize, usize)]) {
    let tiny = family(name);
    let request = Request::new(&tiny.prompts[3].ids, TOKENS);
    let options = options(KvDtype::F32);
    let want = serve(&mut tiny.decoder(&options), &[request], 200).remove(0);
    for &(block_size, chunk, prefill) in cases {
        let mut decoder = tiny.decoder(&blocks_of(block_size, &options));
        let served = serve(&mut decoder, &[Request { prefill, ..request }], chunk).remove(0);
        let what = format!("{name}, blocks of {block_size}, chunks of {chunk}, decode from {prefill}");
        assert!(served.bits() == want.bits(), "{what}: other logits");
        assert_eq!(served.drawn, want.drawn, "{what}");
    }
}
