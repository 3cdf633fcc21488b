//! Cases of `block_digest`.

use super::cache_write::stored;
use super::layer::{Layer, converted, values, words};
use super::{Case, Spec, count, filled, shape};
use crate::Variant;
use crate::cpu::{self, Tolerance};
use crate::kernel::block_digest::{self, BlockDigestParams, Digest};
use crate::kernel::{KvDtype, KvShape, VALUES};
use crate::rows::BlockTokens;

/// Tolerance of the mean of a block's keys.
const MEANS: Tolerance = Tolerance { abs: 1e-6, rel: 1e-6 };

/// Returns the blocks of sequences of these lengths: (physical block, tokens).
pub(crate) fn pages(layer: &Layer, lens: &[u32]) -> Vec<[u32; 2]> {
    let size = layer.shape.block_size;
    let of = |(first, len): (&u32, &u32)| {
        let (first, len) = (*first as usize, *len);
        (0..len.div_ceil(size))
            .map(move |page| [first + page as usize, (len - page * size).min(size) as usize])
    };
    let pages = layer.table_of.iter().zip(lens).flat_map(of);
    pages.map(|[entry, tokens]| [layer.tables[entry], u32::try_from(tokens).expect("a page")]).collect()
}

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let shape = shape(variant, spec.kv_heads(2, 1..=4));
    let kept = block_digest::dtype(shape.dtype);
    let digest = filled(variant, block_digest::DIGEST);
    let tolerance = match digest {
        Digest::MinMax => Tolerance::EXACT,
        Digest::Mean if kept == KvDtype::F32 => MEANS,
        // What rounds an f16 down in f32 rounds it up in f64 where it is next to a tie.
        Digest::Mean => stored(kept),
    };
    let page = shape.block_size;
    let lens = spec.lens(&[1, page, 5 * page - 3], page, 1..=6 * page);
    let layer = spec.layer(shape, &lens, 1);
    let mut touched = pages(&layer, &lens);
    let page_bytes = shape.block_bytes() + 4 * digest.pool_len(&shape, 1);
    let new = |name, params: &BlockDigestParams| {
        Case::new(name, variant, params).costs(f64::from(params.touched) * page_bytes as f64, 0.0)
    };
    if spec.size().is_some() {
        let params = BlockDigestParams::new(shape.num_kv_heads, count(&touched));
        let case = new("pages", &params).binding(&touched).blocks_of(&shape, layer.num_blocks());
        return vec![case.random(kept, digest.pool_len(&shape, layer.num_blocks() as usize))];
    }
    // A page that no step wrote keeps its digest.
    touched.remove(2.min(touched.len() - 1));
    touched.insert(1.min(touched.len()), [BlockTokens::NONE.block, BlockTokens::NONE.tokens]);
    let num_blocks = layer.k.len() / shape.block_elements();
    let before = values(kept, &words(kept, &spec.floats(digest.pool_elements(&shape, num_blocks), 2)));
    let count = count(&touched);
    let whole = BlockDigestParams::new(shape.num_kv_heads, count);
    let of_values = variant.get(VALUES.0).is_some();
    let [k, v] = layer.words();
    let cache = if of_values { v } else { k };
    let keys = match of_values {
        true => converted(&layer.v, (&shape, KvShape::v_index), (&shape, KvShape::k_index)),
        false => layer.k.clone(),
    };
    let case = |name: &'static str, params: BlockDigestParams| {
        let held = |[block, _]: &[u32; 2]| *block >= params.first_block;
        let held: Vec<[u32; 2]> = touched.iter().copied().filter(held).collect();
        let mut after = before.clone();
        cpu::block_digest::block_digest(&shape, digest, &held, &keys, &mut after);
        new(name, &params)
            .binding(&touched)
            .binding(&cache[params.first_block as usize * shape.block_bytes() / 4..])
            .cache(kept, &before, tolerance, &after)
    };
    let first_block = spec.number(3, 0..=layer.num_blocks() - 1);
    let cut = BlockDigestParams { first_block, num_blocks: layer.num_blocks() - first_block, ..whole };
    vec![case("whole and begun pages", whole), case("pages of a part of the cache", cut)]
}
