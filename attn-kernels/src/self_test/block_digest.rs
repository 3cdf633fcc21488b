//! Cases of `block_digest`.

use super::cache_write::stored;
use super::layer::{Layer, converted, floats, values, words};
use super::{Case, count, filled, shape};
use crate::Variant;
use crate::cpu::{self, Tolerance};
use crate::kernel::block_digest::{self, BlockDigestParams, Digest};
use crate::kernel::{KvDtype, KvShape, VALUES};
use crate::rows::BlockTokens;

/// A sum of a page's keys, divided.
const MEANS: Tolerance = Tolerance { abs: 1e-6, rel: 1e-6 };

/// The pages of sequences of these lengths: (physical block, tokens).
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

pub(crate) fn cases(variant: &Variant) -> Vec<Case> {
    let shape = shape(variant, 2);
    let kept = block_digest::dtype(shape.dtype);
    let digest = filled(variant, block_digest::DIGEST);
    let tolerance = match digest {
        Digest::MinMax => Tolerance::EXACT,
        Digest::Mean if kept == KvDtype::F32 => MEANS,
        // What rounds an f16 down in f32 rounds it up in f64 where it is next to a tie.
        Digest::Mean => stored(kept),
    };
    let lens = [1, shape.block_size, 5 * shape.block_size - 3];
    let layer = Layer::new(shape, &lens, 1);
    let mut touched = pages(&layer, &lens);
    // A page that no step wrote keeps its digest.
    touched.remove(2);
    touched.insert(1, [BlockTokens::NONE.block, BlockTokens::NONE.tokens]);
    let num_blocks = layer.k.len() / shape.block_elements();
    let before = values(kept, &words(kept, &floats(digest.pool_elements(&shape, num_blocks), 2)));
    let count = count(&touched);
    let whole = BlockDigestParams::new(2, count);
    let of_values = variant.get(VALUES).is_some();
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
        Case::new(name, variant, &params, block_digest::grid(&shape, count))
            .binding(&touched)
            .binding(&cache[params.first_block as usize * shape.block_bytes() / 4..])
            .cache(kept, &before, tolerance, &after)
    };
    let cut = BlockDigestParams { first_block: 3, num_blocks: layer.num_blocks() - 3, ..whole };
    vec![case("whole and begun pages", whole), case("pages of a part of the cache", cut)]
}
