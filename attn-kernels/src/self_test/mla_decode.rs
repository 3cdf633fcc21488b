//! Cases of `mla_decode` and `latent_write`.

use super::cache_write::stored;
use super::latents::latent_words;
use super::layer::{ATTENTION, COOP, Layer, queries};
use super::options::Lists;
use super::spec::{SPREAD, Size, WHOLE};
use super::{Case, Spec, cached, count, filled};
use crate::cpu::mla_decode::LatentRow;
use crate::cpu::{self, Tolerance};
use crate::kernel::KvDtype;
use crate::kernel::attention::CONTEXT;
use crate::kernel::latent_write::LatentWriteParams;
use crate::kernel::mla_decode::{self, LatentShape, MlaDecodeParams, PARTITION};
use crate::profile::Registers;
use crate::{Level, Variant, slot};

fn shape(variant: &Variant, block_size: u32) -> LatentShape {
    let (_, dtype) = cached(variant);
    LatentShape {
        latent: filled(variant, slot::LATENT),
        rope: filled(variant, slot::ROPE),
        block_size,
        dtype,
        plain: variant.get(mla_decode::PLAIN).unwrap_or(0),
    }
}

pub(crate) fn latent_write(variant: &Variant, spec: &Spec) -> Vec<Case> {
    let shape = shape(variant, spec.size().map_or(16, |size| size.cache.block_size));
    let (rows, latent_start) = (spec.rows(21, 1..=32), spec.number(2, 0..=4));
    let rope_start = latent_start + shape.latent + spec.number(3, 0..=5);
    let row_stride = rope_start + shape.rope + spec.number(4, 0..=5);
    let params = LatentWriteParams { rows, row_stride, latent_start, rope_start };
    let case = Case::new("rows to scattered slots", variant, &params)
        .costs(f64::from(rows) * (4 * shape.width() as usize + shape.token_bytes()) as f64, 0.0);
    if spec.size().is_some() {
        let slots: Vec<u32> = (0..rows).map(|row| row * SPREAD % rows).collect();
        let words = rows as usize * shape.token_bytes() / size_of::<u32>();
        return vec![case.floats_of(rows * row_stride).binding(&slots).random(shape.dtype, words)];
    }
    let kv = spec.floats((rows * params.row_stride) as usize, 1);
    // Distinct slots out of order; every fifth row has none.
    let slots = spec.slots(rows, 32, |row| (row % 5 != 4).then_some(row * 7 % 32));
    let before = vec![f32::NAN; 32 * shape.width() as usize];
    let mut latents = before.clone();
    cpu::latent_write::latent_write(&shape, &params, &kv, &slots, &mut latents);
    let case = case.binding(&kv).binding(&slots);
    vec![case.latents(&shape, &before, written(shape.dtype), &latents)]
}

/// Tolerance of latents as `cache_write` stores them; fp8 codes have a tolerance of their own.
fn written(dtype: KvDtype) -> Tolerance {
    match dtype {
        // The neighbour of a code, where the quotient is a tie.
        KvDtype::Fp8 => Tolerance { abs: f64::exp2(-16.0), rel: f64::exp2(-3.0) },
        _ => stored(dtype),
    }
}

/// Rounds values as the cache does.
fn keep(shape: &LatentShape, latents: &mut [f32]) {
    for token in latents.chunks_exact_mut(shape.width() as usize) {
        token.copy_from_slice(&cpu::latent_write::stored_latent(shape, token));
    }
}

/// Makes the slots of a cache: latents, except for NaN in every fourth slot, to which no list refers.
fn slots(shape: &LatentShape, count: u32, spec: &Spec, seed: u64) -> Vec<f32> {
    let width = shape.width() as usize;
    let mut latents = spec.floats(count as usize * width, seed);
    keep(shape, &mut latents);
    latents.chunks_exact_mut(width).step_by(4).for_each(|latent| latent.fill(f32::NAN));
    latents
}

/// Number of entries from the start of one list of slots to the start of the next.
const LIST: u32 = 605;

/// Returns the index of a slot that holds a latent.
fn slot(index: u32, count: u32) -> u32 {
    index * 7 % (count / 4) * 4 + 1 + index % 3
}

/// Returns the number of window keys and of compressed keys of each row, which share one softmax. For cooperative
/// matrices, the keys of a row fit into one partition.
fn counts(variant: &Variant, spec: &Spec) -> [[u32; 2]; 4] {
    let (far, most) = if is_coop(variant) { (101, 101) } else { (190, 600) };
    let drawn =
        |[window, compressed]: [u32; 2]| [spec.number(window, 0..=128), spec.number(compressed, 0..=most)];
    [[128, far], [1, 0], [0, 0], [0, 70]].map(drawn)
}

/// Whether the variant computes with cooperative matrices. It scales partial results by a maximum that need not be
/// the largest score, so only normalised results and logarithms of sums can be compared.
fn is_coop(variant: &Variant) -> bool {
    variant.level == Level::Coop
}

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if let Some(size) = spec.size() {
        return vec![timed(variant, spec, size)];
    }
    if variant.get(mla_decode::TWO) == Some(true) {
        return vec![two(variant, spec)];
    }
    // Matrices have one partition here; of a list that names half of the tokens, the second has those from about 512 on.
    let (end, part) = match (is_coop(variant), is_listed(variant)) {
        (true, true) => (231, (600, 900)),
        (true, false) => (231, (300, 400)),
        (false, true) => (300, (600, 900)),
        (false, false) => (300, (200, 400)),
    };
    vec![
        paged("several partitions", variant, spec, (10, end), (0, u32::MAX)),
        paged("a part of the keys", variant, spec, part, (PARTITION, PARTITION)),
    ]
}

fn is_listed(variant: &Variant) -> bool {
    filled(variant, CONTEXT)
}

/// Makes the timed case with one row per sequence. Its keys are all tokens, listed tokens, or `k` tokens of a window
/// and `context` compressed entries; they are split into partitions.
fn timed(variant: &Variant, spec: &Spec, size: &Size) -> Case {
    let &Size { num_heads, batch, context, k, .. } = size;
    let shape = shape(variant, filled(variant, slot::BLOCK_SIZE));
    let is_two = variant.get(mla_decode::TWO) == Some(true);
    let lens = size.lens();
    let layer = Layer::empty(shape.values(), &lens, 1);
    let lists = (!is_two && is_listed(variant)).then(|| spec.lists(lens.into_iter(), 1, (0.5, 4)));
    let keys = match &lists {
        Some(lists) => lists.stride - 1,
        None => context + if is_two { k } else { 0 },
    };
    let params = MlaDecodeParams {
        num_heads,
        q_stride: num_heads * shape.width(),
        max_partitions: keys.div_ceil(PARTITION),
        reduced: 1,
        scale: 1.0 / (shape.width() as f32).sqrt(),
        list_stride: lists.as_ref().map_or(if is_two { k } else { 0 }, |lists| lists.stride),
        compressed_stride: if is_two { context } else { 0 },
        rows: batch,
        ..MlaDecodeParams::default()
    };
    let tokens = f64::from(batch) * f64::from(keys);
    let operations = tokens * f64::from(num_heads) * 2.0 * f64::from(shape.width() + shape.latent);
    let words = |tokens: u32| tokens as usize * shape.token_bytes() / size_of::<u32>();
    let case = Case::new("all rows", variant, &params)
        .costs(tokens * shape.token_bytes() as f64, operations)
        .floats_of(batch * params.q_stride);
    let case = if is_two {
        [k, context].into_iter().fold(case, |case, keys| case.random(shape.dtype, words(batch * keys)))
    } else {
        case.random(shape.dtype, words(layer.num_blocks() * shape.block_size)).binding(&layer.tables)
    };
    let row = |(row, table): (u32, &u32)| [row, keys.max(context), if is_two { k } else { *table }, 0];
    let partials = batch * num_heads * params.max_partitions;
    let case = case
        .binding(&(0..).zip(&layer.table_of).map(row).collect::<Vec<_>>())
        .floats_of(partials * shape.latent)
        .floats_of(2 * partials);
    if !is_two {
        return case.optional(lists.as_ref().map(|lists| &lists.lists[..]));
    }
    let slots = |of: u32| -> Vec<u32> { (0..batch * of).map(|slot| slot * SPREAD % (batch * of)).collect() };
    case.binding(&slots(k)).binding(&slots(context))
}

fn two(variant: &Variant, spec: &Spec) -> Case {
    let shape = shape(variant, filled(variant, slot::BLOCK_SIZE));
    let counts = counts(variant, spec);
    let (window, compressed) = (slots(&shape, 64, spec, 1), slots(&shape, 128, spec, 2));
    let [window_slots, compressed_slots] = [(64, 1), (128, 2)]
        .map(|(slots, seed)| -> Vec<u32> { (0..4 * LIST).map(|i| slot(i + seed, slots)).collect() });
    let width = shape.width() as usize;
    let at = |cache, slot: &u32| -> &[f32] {
        let cache: &Vec<f32> = cache;
        &cache[*slot as usize * width..][..width]
    };
    let keys = |index: usize| -> Vec<&[f32]> {
        let [near, far] = counts[index].map(|n| n as usize);
        let list = index * LIST as usize;
        let near = window_slots[list..][..near].iter().map(|slot| at(&window, slot));
        near.chain(compressed_slots[list..][..far].iter().map(|slot| at(&compressed, slot))).collect()
    };
    let rows: Vec<[u32; 4]> =
        (0..).zip(counts).map(|(i, [near, far])| [3 - i, near + far, near, 0]).collect();
    let caches = [&window, &compressed].map(|cache| latent_words(&shape, cache));
    let lists = [window_slots.clone(), compressed_slots.clone()];
    let partition_size = if spec.is_whole() { WHOLE } else { PARTITION };
    let params = MlaDecodeParams { partition_size, ..lists_of(LIST) };
    case("a window and compressed keys", (variant, spec), &shape, &rows, params, keys, |case| {
        case.binding(&caches[0]).binding(&caches[1])
    })
    .binding(&lists[0])
    .binding(&lists[1])
}

/// Makes a case over one cache. The first row sees the keys in `first..end`; the dispatch attends `num_keys` keys
/// from `first_key` on.
fn paged(
    what: &'static str,
    variant: &Variant,
    spec: &Spec,
    (first, end): (u32, u32),
    (first_key, num_keys): (u32, u32),
) -> Case {
    let shape = shape(variant, filled(variant, slot::BLOCK_SIZE));
    let block = shape.block_size;
    // By matrices each row stays within one partition of the dispatch, so that its results are normalised.
    let coop = is_coop(variant);
    let parts = if coop { 1 } else { spec.number(1, 1..=3) };
    let (end, partition_size) = (parts * end, if spec.is_whole() { WHOLE } else { parts * PARTITION });
    let (first_key, num_keys) = (parts * first_key, num_keys.saturating_mul(parts));
    let most = if coop { PARTITION } else { end.max(block + 1) };
    let edge = spec.one_of(block, &[block, PARTITION]);
    let mut lens = [end.min(most), 1, 0, (block + 1).min(most)].map(|len| spec.len(len, edge, 0..=most));
    let begins_late = coop && first_key > 0;
    if begins_late {
        lens[0] = spec.number(end, first..=end);
    }
    let blocks_of = |len: u32| len.div_ceil(block);
    let num_blocks: u32 = lens.iter().map(|len| blocks_of(*len)).sum::<u32>() + 1;
    let width = shape.width() as usize;
    // Blocks of sequences from the last to the first; block 0 is of none. Slots that hold no token are NaN.
    let tables: Vec<u32> = (1..num_blocks).rev().collect();
    let mut contents = spec.floats(lens.iter().sum::<u32>() as usize * width, 3);
    keep(&shape, &mut contents);
    let latents = placed(&contents, width, (&lens, block), &tables);
    let mut rows = Vec::new();
    for (i, len) in (0..).zip(lens) {
        let table: u32 = lens[..i as usize].iter().map(|len| blocks_of(*len)).sum();
        let begin = match i {
            0 if begins_late => first,
            0 => spec.number(first, 0..=len),
            _ => spec.number(0, 0..=len),
        };
        rows.push([3 - i, len, table, begin]);
    }
    let aside = spec.aside();
    let chance = if begins_late { 0.5 } else { aside.density(0.5) };
    let lists = is_listed(variant)
        .then(|| Lists::random(lens.into_iter(), filled(variant, slot::SELECT_BLOCK), chance, aside.seed(4)));
    let options = cpu::attention::Options {
        selected: lists.as_ref().map(Lists::selected),
        ..cpu::attention::Options::default()
    };
    let keys = |index: usize| -> Vec<&[f32]> {
        let [_, len, table, first] = rows[index].map(|n| n as usize);
        let keys = options.context(index, len).into_iter();
        let at = |key: usize| {
            let block_size = block as usize;
            tables[table + key / block_size] as usize * block_size + key % block_size
        };
        keys.map(|key| if key < first { &[][..] } else { &latents[at(key) * width..][..width] }).collect()
    };
    let stride = lists.as_ref().map_or(0, |lists| lists.stride);
    let cache = latent_words(&shape, &latents);
    let params = MlaDecodeParams { first_key, num_keys, partition_size, ..lists_of(stride) };
    let case = case(what, (variant, spec), &shape, &rows, params, keys, |case| {
        case.binding(&cache).binding(&tables)
    });
    case.optional(lists.as_ref().map(|lists| &lists.lists[..]))
}

/// Returns the latents of all blocks: sequences of these lengths have theirs in the blocks of `tables`, and block 0
/// belongs to no sequence.
fn placed(contents: &[f32], width: usize, (lens, block): (&[u32], u32), tables: &[u32]) -> Vec<f32> {
    let mut latents = vec![f32::NAN; (tables.len() + 1) * block as usize * width];
    let (mut contents, mut table) = (contents.chunks_exact(width), 0);
    for len in lens {
        for (token, latent) in (0..*len).zip(contents.by_ref()) {
            let slot = (tables[(table + token / block) as usize] * block + token % block) as usize;
            latents[slot * width..][..width].copy_from_slice(latent);
        }
        table += len.div_ceil(block);
    }
    latents
}

/// Returns parameters for lists of `stride` entries.
fn lists_of(stride: u32) -> MlaDecodeParams {
    MlaDecodeParams { list_stride: stride, compressed_stride: stride, ..MlaDecodeParams::default() }
}

/// Returns the number of query heads, a multiple of the number of heads that share a workgroup in the variant.
fn num_heads(variant: &Variant, registers: Registers, spec: &Spec) -> u32 {
    let together = filled(variant, slot::HEADS);
    let all = (1..=4).map(|groups| groups * together);
    let fits: Vec<u32> = all.filter(|all| mla_decode::heads_per_group(*all, registers) == together).collect();
    spec.one_of(fits[fits.len().min(2) - 1], &fits)
}

/// Makes a case in which each row attends the keys that `keys` returns for it; an empty slice stands for a key that
/// the row does not see.
fn case<'a>(
    what: &'static str,
    (variant, spec): (&Variant, &Spec),
    shape: &LatentShape,
    rows: &[[u32; 4]],
    params: MlaDecodeParams,
    keys: impl Fn(usize) -> Vec<&'a [f32]>,
    inputs: impl FnOnce(Case) -> Case,
) -> Case {
    let coop = is_coop(variant);
    let registers = variant.registers.unwrap_or(Registers::Many);
    let num_heads = if coop { 64 } else { num_heads(variant, registers, spec) };
    let width = num_heads * shape.width();
    let q_stride = width + 8 * spec.number(1, 0..=3);
    let longest = rows.iter().map(|row| row[1]).max().unwrap_or(0);
    let max_partitions = if coop { 1 } else { longest.div_ceil(params.partition_size).max(1) };
    let params = MlaDecodeParams {
        num_heads,
        q_stride,
        max_partitions,
        reduced: u32::from(!coop && !spec.is_whole()),
        scale: 1.0 / (shape.width() as f32).sqrt(),
        rows: count(rows),
        ..params
    };
    let latent_row = |(index, row): (usize, &[u32; 4])| {
        let keys = keys(index);
        LatentRow { row: row[0] as usize, begin: keys.iter().take_while(|key| key.is_empty()).count(), keys }
    };
    let latents: Vec<LatentRow<'_>> = rows.iter().enumerate().map(latent_row).collect();
    let q = queries(rows.len(), width as usize, q_stride as usize, spec.seed(6));
    let heads = (count(rows) * num_heads * max_partitions) as usize;
    let mut partial = vec![f32::NAN; heads * shape.latent as usize];
    let mut stats = vec![[f32::NAN; 2]; heads];
    cpu::mla_decode::mla_decode(shape, &params, &q, &latents, &mut partial, &mut stats);
    // Codes become f16 on the way: products with their scales are rounded.
    let codes = shape.dtype.is_code();
    let near = if codes { Tolerance { abs: 2e-3, rel: 2e-3 } } else { ATTENTION };
    let case = inputs(Case::new(what, variant, &params).binding(&q)).binding(rows);
    if coop {
        return case.output(COOP, &partial).log_sums(COOP, &stats);
    }
    if params.reduced == 0 {
        return case.output(near, &partial).output(near, stats.as_flattened());
    }
    // Sums are not normalised: they grow with the number of keys.
    let tolerance = Tolerance { abs: near.abs * f64::from(params.partition_size), ..near };
    case.output(tolerance, &partial).output(near, stats.as_flattened())
}
