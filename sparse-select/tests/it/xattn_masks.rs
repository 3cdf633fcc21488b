//! Masks that the authors' code of XAttention chose (`tests/fixtures/make_xattn.py`).

use serde::Deserialize;

use crate::tensors::{Tensor, row, select};

/// One prompt, and the blocks that the authors' code kept.
#[derive(Deserialize)]
struct Case {
    seed: u64,
    tokens: usize,
    heads: usize,
    dim: usize,
    block: usize,
    stride: usize,
    threshold: f64,
    chunk: usize,
    spread: i64,
    /// A digit for each visible block: `[heads][query blocks]`, from the second chunk on.
    masks: Vec<Vec<String>>,
}

#[test]
fn xattn_keeps_the_blocks_that_the_authors_code_keeps() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../fixtures/xattn.json")).unwrap();
    for case in cases {
        let shape = [case.heads, case.tokens, case.dim];
        let (q, k) = (
            Tensor::seeded(case.seed, shape, case.spread),
            Tensor::seeded(case.seed + 100, shape, case.spread),
        );
        let Case { block, stride, threshold, chunk, .. } = case;
        let spec =
            format!("xattn:block_size={block},stride={stride},threshold={threshold},chunk_size={chunk}");
        let found = select(&spec, &q, &k).selection;
        for (head, masks) in case.masks.iter().enumerate() {
            for (query_block, mask) in (chunk / block..).zip(masks) {
                let kept: Vec<u32> = (0..)
                    .zip(mask.chars())
                    .filter(|&(_, kept)| kept == '1')
                    .map(|(block, _)| block)
                    .collect();
                assert_eq!(
                    row(&found, head, query_block),
                    kept,
                    "seed {}, head {head}, block {query_block}",
                    case.seed
                );
            }
        }
    }
}
