//! Cases of `hash_codes`, `hamming_score`, `nsa_probs`, `nsa_attend` and `nsa_block_score`.

use sparse_select::Params;
use sparse_select::nsa::Nsa;

use super::block_digest::pages;
use super::block_score::cache_of;
use super::layer::{ATTENTION, Layer, converted, queries, words};
use super::spec::Size;
use super::{Case, Spec, count, filled, shape, token_bytes};
use crate::cpu::{self, Tolerance, f32_of};
use crate::kernel::block_digest::{self, Digest};
use crate::kernel::hamming_score::{self, HammingScoreParams};
use crate::kernel::hash_codes::{self, HashCodesParams, HashSource};
use crate::kernel::nsa_attend::NsaAttendParams;
use crate::kernel::nsa_block_score::{self, NsaBlockScoreParams};
use crate::kernel::nsa_probs::NsaProbsParams;
use crate::kernel::{KvDtype, KvLayout, KvShape};
use crate::{Variant, slot};

/// Rounds values to multiples of 1/8, whose products are exact, so that the device computes the same signs as the
/// reference.
fn eighths(values: &mut [f32]) {
    values.iter_mut().for_each(|x| *x = (*x * 8.0).round() / 8.0);
}

pub(crate) fn hash_codes(variant: &Variant, spec: &Spec) -> Vec<Case> {
    const BITS: u32 = 160;
    if let Some(size) = spec.size() {
        return vec![hashed_keys(variant, size)];
    }
    let shape = shape(variant, 2);
    let dim = shape.head_dim as usize;
    let mut weights = spec.floats(dim * BITS as usize, 3);
    eighths(&mut weights);
    let params = |entries: u32| HashCodesParams {
        num_kv_heads: 2,
        entries,
        group: 4,
        q_stride: 8 * shape.head_dim,
        first_channel: 0,
        channels: shape.head_dim,
        bits: BITS,
        first_word: 1,
        words: 7,
        first_block: 0,
        num_blocks: u32::MAX,
    };
    let place = |codes: &mut [u32], at: usize, code: &[u32]| {
        codes[at * 7 + 1..][..code.len()].copy_from_slice(code);
    };
    if filled(variant, hash_codes::SOURCE) == HashSource::Queries {
        let mut q = queries(5, 8 * dim, 8 * dim, spec.seed(1));
        eighths(&mut q);
        let rows = [3_u32, 0, 1, 4, 2];
        let params = params(5);
        let before = vec![77_777; 5 * 2 * 7];
        let mut after = before.clone();
        for (index, &row) in rows.iter().enumerate() {
            for head in 0..2 {
                let query = |g: usize| &q[(row as usize * 8 + head * 4 + g) * dim..][..dim];
                let mean: Vec<f32> =
                    (0..dim).map(|d| (0..4).map(|g| query(g)[d]).sum::<f32>() / 4.0).collect();
                place(&mut after, index * 2 + head, &cpu::hash_codes::hash_code(&params, &mean, &weights));
            }
        }
        let case = Case::new("mean queries", variant, &params);
        return vec![case.binding(&rows).binding(&q).binding(&weights).words(&before, &after)];
    }
    let mut layer = Layer::new(shape, &[3 * shape.block_size + 1], spec.seed(1));
    eighths(&mut layer.k);
    if shape.dtype == KvDtype::Int8 {
        // A largest element of 127/128 makes the scale of a row 1/128, of which eighths are multiples.
        layer.k.iter_mut().for_each(|x| *x = x.clamp(-0.875, 0.875));
        for row in 0..layer.k.len() / dim {
            let (page, heads) = (shape.block_size as usize, shape.num_kv_heads as usize);
            let at = shape.k_index(row / page / heads, row / page % heads, row % page, 0);
            // NaN, where no token is, stays.
            layer.k[at] = layer.k[at].mul_add(0.0, 127.0 / 128.0);
        }
    }
    let tokens = spec.number(2 * shape.block_size + 5, 2..=3 * shape.block_size + 1);
    let slot =
        |t: u32| layer.tables[(t / shape.block_size) as usize] * shape.block_size + t % shape.block_size;
    let mut slots: Vec<u32> = (0..tokens).map(slot).collect();
    slots[1] = hash_codes::NO_ENTRY;
    let whole = params(tokens);
    let before = vec![77_777; layer.k.len() / dim * 7];
    let [k, _] = layer.words();
    let page = shape.block_size as usize;
    let case = |name: &'static str, params: HashCodesParams| {
        let mut after = before.clone();
        let held = |slot: u32| slot != hash_codes::NO_ENTRY && slot / shape.block_size >= params.first_block;
        for (t, slot) in slots.iter().enumerate().filter(|(_, slot)| held(**slot)) {
            for head in 0..2 {
                let key: Vec<f32> = layer.kv().key(&layer.tables, head, t).map(f32_of).collect();
                let slot = *slot as usize;
                let at = (slot / page * 2 + head) * page + slot % page;
                place(&mut after, at, &cpu::hash_codes::hash_code(&params, &key, &weights));
            }
        }
        Case::new(name, variant, &params)
            .binding(&slots)
            .binding(&k[params.first_block as usize * shape.block_bytes() / 4..])
            .binding(&weights)
            .words(&before, &after)
    };
    let first_block = spec.number(2, 0..=layer.num_blocks() - 1);
    let cut = HashCodesParams { first_block, num_blocks: layer.num_blocks() - first_block, ..whole };
    vec![case("cached keys", whole), case("keys of a part of the cache", cut)]
}

/// Makes the timed case: codes of all keys of one sequence.
fn hashed_keys(variant: &Variant, size: &Size) -> Case {
    let shape = shape(variant, size.cache.num_kv_heads);
    let (context, dim) = (size.context, shape.head_dim);
    let params = HashCodesParams {
        num_kv_heads: shape.num_kv_heads,
        entries: context,
        group: size.num_heads / shape.num_kv_heads,
        q_stride: size.num_heads * dim,
        first_channel: 0,
        channels: dim,
        bits: dim,
        first_word: 0,
        words: dim / 32,
        first_block: 0,
        num_blocks: u32::MAX,
    };
    let (keys, blocks) = (context * shape.num_kv_heads, context.div_ceil(shape.block_size));
    let bytes = f64::from(context) * token_bytes(&shape) / 2.0 + 4.0 * f64::from(keys * params.words);
    Case::new("keys", variant, &params)
        .costs(bytes, 2.0 * f64::from(keys) * f64::from(dim * dim))
        .binding(&(0..context).collect::<Vec<u32>>())
        .blocks_of(&shape, blocks)
        .floats_of(dim * dim)
        .words_of(blocks * shape.block_size * shape.num_kv_heads * params.words)
}

pub(crate) fn hamming_score(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (page, pages, words) = (
        filled(variant, slot::BLOCK_SIZE),
        filled(variant, slot::PAGES),
        filled(variant, hamming_score::WORDS),
    );
    let shape = KvShape {
        num_kv_heads: spec.kv_heads(2, 1..=4),
        head_dim: 8,
        block_size: page,
        dtype: KvDtype::F32,
        layout: KvLayout::Native,
    };
    let block = page * pages;
    let lens = spec.lens(&[6 * block + 3, 1, 4 * block], block, 1..=8 * block);
    let layer = spec.layer(shape, &lens, 1);
    let bits = |len: usize, seed| -> Vec<u32> {
        spec.floats(len, seed).iter().map(|x| x.to_bits().wrapping_mul(7919)).collect()
    };
    let rows: Vec<[u32; 4]> =
        lens.iter().zip(&layer.table_of).map(|(len, table)| [0, *len, *table, 0]).collect();
    let params = HammingScoreParams {
        num_kv_heads: shape.num_kv_heads,
        score_stride: spec.named(|size| size.context.div_ceil(block), 9, 8..=12),
        sink_tokens: spec.number(block, 0..=3 * block),
        recent_tokens: spec.number(block / 2, 0..=3 * block),
        must_select: [2, -2, 0, 0].map(|block| spec.one_of(block, &[0, 1, 4, -1, -3])),
        num_must: if spec.size().is_some() { 0 } else { 2 },
        infinity: f32::INFINITY,
        rows: count(&lens),
    };
    let keys: f64 = lens.iter().map(|len| f64::from(*len)).sum();
    let case = Case::new("sinks, recent tokens and blocks always selected", variant, &params)
        .costs(keys * f64::from(4 * words * shape.num_kv_heads), 0.0);
    if spec.size().is_some() {
        let of_slot = shape.num_kv_heads * words;
        return vec![
            case.words_of(count(&rows) * of_slot)
                .words_of(layer.num_blocks() * page * of_slot)
                .binding(&layer.tables)
                .binding(&rows)
                .floats_of(count(&rows) * params.score_stride),
        ];
    }
    let mut want = vec![f32::NAN; (count(&rows) * params.score_stride) as usize];
    let codes = bits(layer.k.len() / 8 * words as usize, 2);
    let queries = bits((count(&lens) * shape.num_kv_heads * words) as usize, 3);
    let kinds = (&shape, block as usize, words as usize);
    cpu::hamming_score::hamming_score(kinds, &params, &queries, &codes, &layer.tables, &rows, &mut want);
    let case = case
        .binding(&queries)
        .binding(&codes)
        .binding(&layer.tables)
        .binding(&rows)
        .output(Tolerance::EXACT, &want);
    vec![case]
}

/// Makes cases whose probabilities are multiples of 1/256, so that their sums are exact.
pub(crate) fn nsa_block_score(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let (kernel, block) = (filled(variant, nsa_block_score::KERNEL_STRIDES), filled(variant, slot::BLOCK));
    let stride = 16;
    let policy = format!(
        "nsa:window_size=0,kernel_size={},kernel_stride={stride},block_size={}",
        kernel * stride,
        block * stride
    );
    let policy: sparse_select::Spec = policy.parse().expect("a spec of known keys");
    let nsa = Params::new("nsa", sparse_select::nsa::ENTRY.keys, &policy.params)
        .and_then(|params| Nsa::from_params(&params))
        .expect("sizes are multiples of the stride");
    let usual = [40 * stride + 5, 1, kernel * stride, block * stride * 3];
    let lens = spec.lens(&usual, stride, 1..=40 * stride + 5);
    let kv_heads = spec.kv_heads(2, 1..=4);
    let num_heads = kv_heads * spec.group(3, 1..=6);
    let strides = |size: &Size| [size.context / stride, size.context.div_ceil(block * stride)];
    let [prob_stride, score_stride] = spec.size().map_or([41, 40 / block + 3], strides);
    let params = NsaBlockScoreParams {
        num_heads,
        num_kv_heads: kv_heads,
        prob_stride,
        score_stride,
        stride,
        init_blocks: nsa.init_blocks,
        local_blocks: nsa.recent_blocks(),
        infinity: f32::INFINITY,
        rows: count(&lens),
    };
    let rows: Vec<[u32; 4]> = lens.iter().map(|len| [0, *len, 0, 0]).collect();
    let [probs, scores] = [num_heads * prob_stride, kv_heads * score_stride].map(|len| count(&rows) * len);
    let case =
        Case::new("forced blocks and overlaps", variant, &params).costs(4.0 * f64::from(probs + scores), 0.0);
    if spec.size().is_some() {
        return vec![case.floats_of(probs).binding(&rows).floats_of(scores)];
    }
    let mut probs = spec.floats(probs as usize, 1);
    probs.iter_mut().for_each(|p| *p = (p.abs() * 256.0).floor() / 256.0);
    let mut want = vec![f32::NAN; scores as usize];
    cpu::nsa_block_score::nsa_block_score(&nsa, &params, &probs, &rows, &mut want);
    vec![case.binding(&probs).binding(&rows).output(Tolerance::EXACT, &want)]
}

pub(crate) fn nsa_probs(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let kv_heads = spec.size().map_or(2, |size| size.cache.num_kv_heads);
    let shape = KvShape { dtype: cache_of(variant), ..shape(variant, kv_heads) };
    let stride = shape.block_size * filled(variant, slot::PAGES);
    let kernel = stride * filled(variant, nsa_block_score::KERNEL_STRIDES);
    // More strides than a workgroup has lanes, in lengths with and without a compressed key, whole and with a rest.
    let usual = [300 * stride + 5, 1, kernel, kernel - 1, kernel + 3 * stride];
    let lens = spec.lens(&usual, stride, 1..=300 * stride + 5);
    let layer = spec.layer(shape, &lens, 1);
    let num_heads = kv_heads * spec.group(3, 1..=6);
    let width = num_heads * shape.head_dim;
    let params = NsaProbsParams {
        num_heads,
        num_kv_heads: kv_heads,
        q_stride: width + 4,
        prob_stride: spec.size().map_or(301, |size| size.context / stride),
        scale: 2.0 / (shape.head_dim as f32).sqrt(),
        rows: count(&lens),
    };
    let sequences = (0..).zip(lens.iter().zip(&layer.table_of));
    let rows: Vec<[u32; 4]> = sequences.map(|(row, (len, table))| [row, *len, *table, 0]).collect();
    let (touched, probs) = (pages(&layer, &lens), count(&rows) * num_heads * params.prob_stride);
    let [elements, read] =
        [Digest::pool_elements, Digest::pool_len].map(|of| of(Digest::Mean, &shape, touched.len()));
    let case = Case::new("compressed keys of several lengths", variant, &params).costs(
        4.0 * (read as f64 + f64::from(probs)),
        2.0 * elements as f64 * f64::from(num_heads / kv_heads),
    );
    if spec.size().is_some() {
        let words = Digest::Mean.pool_len(&shape, layer.num_blocks() as usize);
        let case = case.floats_of(count(&rows) * params.q_stride);
        let case = case.random(block_digest::dtype(shape.dtype), words);
        return vec![case.binding(&layer.tables).binding(&rows).floats_of(probs)];
    }
    let mut digests = vec![f32::NAN; Digest::Mean.pool_elements(&shape, layer.num_blocks() as usize)];
    cpu::block_digest::block_digest(&shape, Digest::Mean, &touched, &layer.k, &mut digests);
    let q = queries(lens.len(), width as usize, width as usize + 4, spec.seed(2));
    let mut want = vec![f32::NAN; probs as usize];
    let sizes = [kernel as usize, stride as usize];
    cpu::nsa_probs::nsa_probs(&layer.kv(), sizes, &params, &q, &layer.tables, &rows, &mut want);
    let case = case
        .binding(&q)
        .binding(&words(block_digest::dtype(shape.dtype), &digests))
        .binding(&layer.tables)
        .binding(&rows)
        .output(Tolerance { abs: 1e-6, rel: 1e-4 }, &want);
    vec![case]
}

/// Attention to the mean values of all sequences, of a case that is only timed.
fn timed_nsa_attend(variant: &Variant, spec: &Spec, size: &Size) -> Case {
    let (num_heads, num_kv_heads) = (size.num_heads, size.cache.num_kv_heads);
    let shape = KvShape { dtype: cache_of(variant), ..shape(variant, num_kv_heads) };
    let lens = size.lens();
    let layer = spec.layer(shape, &lens, 1);
    let prob_stride = size.context / (shape.block_size * filled(variant, slot::PAGES));
    let rows: Vec<[u32; 4]> = (0..)
        .zip(lens.iter().zip(&layer.table_of))
        .map(|(row, (len, table))| [row, *len, *table, 0])
        .collect();
    let params = NsaAttendParams { num_heads, num_kv_heads, prob_stride, rows: size.batch };
    let (probs, out) = (size.batch * num_heads * prob_stride, size.batch * num_heads * shape.head_dim);
    let words = Digest::Mean.pool_len(&shape, layer.num_blocks() as usize);
    Case::new("means of all blocks", variant, &params)
        .costs(4.0 * (words as f64 + f64::from(probs + out)), 2.0 * f64::from(probs * shape.head_dim))
        .floats_of(probs)
        .random(block_digest::dtype(shape.dtype), words)
        .binding(&layer.tables)
        .binding(&rows)
        .floats_of(out)
}

pub(crate) fn nsa_attend(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(size) = spec.size() {
        return vec![timed_nsa_attend(variant, spec, size)];
    }
    let shape = KvShape { dtype: cache_of(variant), ..shape(variant, 2) };
    let block = shape.block_size * filled(variant, slot::PAGES);
    // More blocks than a workgroup has sides, in lengths with and without a whole block.
    let lens = [20 * block + 5, 1, block, block - 1].map(|len| spec.len(len, block, 1..=20 * block + 5));
    let layer = Layer::new(shape, &lens, spec.seed(1));
    let num_heads = 2 * spec.number(3, 1..=6);
    let mut digests = vec![f32::NAN; Digest::Mean.pool_elements(&shape, layer.num_blocks() as usize)];
    let values = converted(&layer.v, (&shape, KvShape::v_index), (&shape, KvShape::k_index));
    cpu::block_digest::block_digest(&shape, Digest::Mean, &pages(&layer, &lens), &values, &mut digests);
    let params = NsaAttendParams { num_heads, num_kv_heads: 2, prob_stride: 21, rows: count(&lens) };
    // Rows write elsewhere than they stand.
    let out_row = [3, 0, 4, 1];
    let sequences = out_row.iter().zip(lens.iter().zip(&layer.table_of));
    let rows: Vec<[u32; 4]> = sequences.map(|(row, (len, table))| [*row, *len, *table, 0]).collect();
    let probs: Vec<f32> =
        spec.floats((count(&rows) * num_heads * 21) as usize, 2).iter().map(|p| p.abs() / 20.0).collect();
    let before = vec![77.0; (5 * num_heads * shape.head_dim) as usize];
    let mut after = before.clone();
    let kv = layer.kv();
    cpu::nsa_attend::nsa_attend(&kv, block as usize, &params, &probs, &layer.tables, &rows, &mut after);
    let case = Case::new("blocks of several lengths", variant, &params)
        .binding(&probs)
        .binding(&words(block_digest::dtype(shape.dtype), &digests))
        .binding(&layer.tables)
        .binding(&rows)
        .updated(&before, ATTENTION, &after);
    vec![case]
}
