//! Cases of `paged_decode`.

use super::layer::{ATTENTION, Layer, queries};
use super::{Case, count, shape, size};
use crate::Variant;
use crate::cpu::{self, Tolerance};
use crate::kernel::paged_decode::{self, PARTITION, PagedDecodeParams};

pub(super) fn cases(variant: &Variant) -> Vec<Case> {
    let block = size(variant, "BLOCK_SIZE");
    vec![
        case("several partitions", variant, &[1, block - 1, 300, block, 0, 513, block + 1]),
        case("one partition", variant, &[block + 1, 0, PARTITION.min(200), 1]),
    ]
}

fn case(what: &'static str, variant: &Variant, lens: &[u32]) -> Case {
    let shape = shape(variant, 2);
    let num_heads = shape.num_kv_heads * size(variant, "GROUP");
    let layer = Layer::new(shape, lens, 5);
    let count = count(lens);
    // Rows of queries are in reverse order of sequences, with a gap between them.
    let sequences = lens.iter().zip(&layer.table_of).rev();
    let rows: Vec<[u32; 4]> =
        (0..).zip(sequences).map(|(row, (len, table))| [row, *len, *table, 0]).collect();
    let longest = lens.iter().copied().max().unwrap_or(0);
    let max_partitions = longest.div_ceil(PARTITION).max(1);
    let width = num_heads * shape.head_dim;
    let params = PagedDecodeParams {
        num_heads,
        num_kv_heads: shape.num_kv_heads,
        q_stride: width + 8,
        max_partitions,
        scale: 1.0 / (shape.head_dim as f32).sqrt(),
        neg_inf: f32::NEG_INFINITY,
        pad0: 0,
        pad1: 0,
    };
    let q = queries(lens.len(), width as usize, width as usize + 8, 6);
    let heads = (count * num_heads * max_partitions) as usize;
    let mut partial = vec![f32::NAN; heads * shape.head_dim as usize];
    let mut stats = vec![[f32::NAN; 2]; heads];
    let tables = &layer.tables;
    cpu::paged_decode::paged_decode(&layer.kv(), &params, &q, tables, &rows, &mut partial, &mut stats);
    let [k, v] = layer.words();
    // Of more than one partition sums are not normalised: they grow with the number of keys.
    let keys = if max_partitions == 1 { 1.0 } else { f64::from(PARTITION) };
    let tolerance = Tolerance { abs: ATTENTION.abs * keys, ..ATTENTION };
    Case::new(what, variant, &params, paged_decode::grid(&shape, num_heads, count, max_partitions))
        .binding(&q)
        .binding(&k)
        .binding(&v)
        .binding(tables)
        .binding(&rows)
        .output(tolerance, &partial)
        .output(ATTENTION, stats.as_flattened())
}
