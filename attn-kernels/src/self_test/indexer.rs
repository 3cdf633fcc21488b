//! Cases of `index_logits` and `prefix_slots`.

use sparse_select::dsa::fp8::{self, ScaleFormat};
use sparse_select::dsa::logits::PagedIndexKeys;

use super::layer::Layer;
use super::spec::Size;
use super::{Case, Spec, count, filled};
use crate::cpu::{self, PagedKv, Tolerance, f32_of};
use crate::kernel::index_logits::{self, IndexLogitsParams};
use crate::kernel::prefix_slots::PrefixSlotsParams;
use crate::kernel::{KEYS, KvDtype, KvLayout, KvShape, index_logits_coop};
use crate::{Level, Variant, slot};

/// Tolerance of a logit, which is a sum over heads of dot products with some hundred terms.
const LOGITS: Tolerance = Tolerance { abs: 5e-5, rel: 2e-5 };

/// Tolerance of a logit that cooperative matrices compute, which add and round in another way than the reference.
const COOP: Tolerance = Tolerance { abs: 5e-4, rel: 5e-4 };

pub(crate) fn index_logits(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(size) = spec.size() {
        return vec![timed(variant, size)];
    }
    // A part of what the coop level takes at once, and more than it does.
    vec![
        logits_of("six heads, rows of one to three pages", variant, spec, spec.number(6, 1..=32)),
        logits_of("70 heads, rows of one to three pages", variant, spec, spec.number(70, 33..=70)),
    ]
}

/// Whether keys are codes with scales, as the published indexer has them.
fn is_published(variant: &Variant) -> bool {
    match variant.level {
        Level::Coop => filled(variant, index_logits_coop::PUBLISHED),
        _ => variant.get(index_logits::PUBLISHED).is_some(),
    }
}

/// Makes the timed case: each sequence has one row, which scores all keys.
fn timed(variant: &Variant, size: &Size) -> Case {
    let &Size { num_heads, batch, context, cache, .. } = size;
    let head_dim = filled(variant, slot::HEAD_DIM);
    let cache = KvShape { num_kv_heads: 1, head_dim, block_size: filled(variant, slot::BLOCK_SIZE), ..cache };
    let layer = Layer::empty(cache, &size.lens(), 1);
    // Codes have scales of four bytes.
    let key_words = if is_published(variant) { head_dim / 4 + 1 } else { head_dim * cache.dtype.bytes() / 4 };
    let words = count(&layer.tables) * cache.block_size * key_words;
    let neg_inf = f32::NEG_INFINITY;
    let params = IndexLogitsParams { num_heads, logit_stride: context, neg_inf, rows: batch };
    let rows: Vec<_> = (0..).zip(&layer.table_of).map(|(row, table)| [row, 0, context, *table]).collect();
    let operations = 2.0 * f64::from(num_heads * head_dim) * f64::from(batch) * f64::from(context);
    let spare = 2 * cache.block_size * key_words;
    Case::new("all keys", variant, &params)
        .costs(4.0 * f64::from(words), operations)
        .floats_of(batch * num_heads * head_dim)
        .words_of(words + spare)
        .binding(&layer.tables)
        .binding(&rows)
        .floats_of(batch * num_heads)
        .floats_of(batch * context)
}

fn logits_of(what: &'static str, variant: &Variant, spec: &Spec, heads: u32) -> Case {
    let (head_dim, page) = (filled(variant, slot::HEAD_DIM), filled(variant, slot::BLOCK_SIZE));
    let coop = variant.level == Level::Coop;
    let published = is_published(variant);
    // Codes are made of keys in f32.
    let dtype = match variant.get(KEYS.0) {
        _ if published => KvDtype::F32,
        Some((_, dtype)) => dtype,
        None => KvDtype::F16,
    };
    let shape = KvShape { num_kv_heads: 1, head_dim, block_size: page, dtype, layout: KvLayout::Native };
    let lens = [page + 3, 1, 3 * page].map(|len| spec.len(len, page, 1..=3 * page));
    let layer = Layer::new(shape, &lens, spec.seed(1));
    let (k, kept) =
        if published { coded(&layer, &lens) } else { (layer.words()[0].clone(), layer.k.clone()) };
    let stride = 3 * page + spec.number(5, 0..=9);
    let neg_inf = f32::NEG_INFINITY;
    let params = IndexLogitsParams { num_heads: heads, logit_stride: stride, neg_inf, rows: 3 };
    // One row sees no key before its seventh; two rows of logits are of one query.
    let sequences = [(2, 7), (0, 0), (1, 0)];
    let rows = sequences
        .map(|(i, first)| [u32::from(i != 2), spec.number(first, 0..=lens[i]), lens[i], layer.table_of[i]]);
    // Numbers that f16 holds, as fp8 codes are.
    let mut q = spec.floats((2 * heads * head_dim) as usize, 2);
    q.iter_mut().for_each(|x| *x = cpu::cache_write::stored(KvDtype::F16, *x));
    let gates = spec.floats((2 * heads) as usize, 3);
    let kept = PagedKv { k: &kept, ..layer.kv() };
    let key =
        |table: usize, t: usize| kept.key(&layer.tables[table..], 0, t).map(f32_of).collect::<Vec<f32>>();
    let mut logits = vec![f32::NAN; (3 * stride) as usize];
    cpu::index_logits::index_logits(&params, head_dim as usize, &q, &rows, &gates, key, &mut logits);
    Case::new(what, variant, &params)
        .binding(&q)
        .binding(&k)
        .binding(&layer.tables)
        .binding(&rows)
        .binding(&gates)
        .output(if coop { COOP } else { LOGITS }, &logits)
}

/// Returns the keys of a layer as fp8 pages with scales, and their values as the device decodes them, in the layer's
/// layout.
fn coded(layer: &Layer, lens: &[u32]) -> (Vec<u32>, Vec<f32>) {
    let KvShape { head_dim, block_size, .. } = layer.shape;
    let (head_dim, page) = (head_dim as usize, block_size as usize);
    let mut kept = vec![f32::NAN; layer.k.len()];
    let mut pages = PagedIndexKeys::new(layer.k.len() / (head_dim * page), page, head_dim);
    for (&table, &len) in layer.table_of.iter().zip(lens) {
        let table = &layer.tables[table as usize..];
        for t in 0..len as usize {
            let key: Vec<f32> = layer.kv().key(table, 0, t).map(f32_of).collect();
            let (codes, scale) = fp8::quantise(&key, ScaleFormat::F32);
            let (block, offset) = (table[t / page] as usize, t % page);
            pages.store(block * page + offset, &codes, scale);
            for (dim, code) in codes.iter().enumerate() {
                kept[layer.shape.k_index(block, 0, offset, dim)] = fp8::decode(*code) * scale;
            }
        }
    }
    (bytemuck::pod_collect_to_vec(pages.bytes()), kept)
}

pub(crate) fn prefix_slots(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(&Size { batch, context, cache, .. }) = spec.size() {
        let layer = Layer::empty(cache, &vec![context; batch as usize], 1);
        let sequences = (0..).zip(&layer.table_of);
        let spans: Vec<[u32; 4]> = sequences.map(|(i, table)| [0, context, i * context, *table]).collect();
        let params = PrefixSlotsParams::new(cache.block_size, &spans);
        let case = Case::new("whole prefixes", variant, &params).binding(&spans);
        let bytes = 4.0 * (f64::from(batch * context) + layer.tables.len() as f64);
        return vec![case.binding(&layer.tables).floats_of(batch * context).costs(bytes, 0.0)];
    }
    let tables: Vec<u32> = (0..50).map(|entry| entry * 37 % 64).collect();
    // Positions, tokens, first slot, first entry of the table; five slots between two spans belong to none.
    let spans = [[0, 300, 5, 0], [17, 40, 310, 20], [3, 0, 350, 30], [250, 1, 350, 10]];
    let params = PrefixSlotsParams::new(spec.one_of(16, &[16, 32, 64]), &spans);
    let before = vec![77_777; 352];
    let mut after = before.clone();
    cpu::prefix_slots::prefix_slots(&params, &spans, &tables, &mut after);
    let case = Case::new("spans of prefixes", variant, &params)
        .binding(&spans)
        .binding(&tables)
        .words(&before, &after);
    vec![case]
}
