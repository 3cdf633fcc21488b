//! Reference of `hamming_score`.

use crate::kernel::KvShape;
use crate::kernel::hamming_score::HammingScoreParams;

/// Computes the scores `[n, score_stride]` of blocks of `select_block` tokens, from codes of `words` u32.
pub fn hamming_score(
    (shape, select_block, words): (&KvShape, usize, usize),
    params: &HammingScoreParams,
    queries: &[u32],
    codes: &[u32],
    tables: &[u32],
    rows: &[[u32; 4]],
    scores: &mut [f32],
) {
    let (heads, page) = (params.num_kv_heads as usize, shape.block_size as usize);
    for (index, &[_, len, table, _]) in rows.iter().enumerate() {
        let (len, table) = (len as usize, table as usize);
        let distance = |token: usize| {
            if token < params.sink_tokens as usize || token + params.recent_tokens as usize >= len {
                return 0;
            }
            let block = tables[table + token / page] as usize;
            let of_head = |head: usize| {
                let key = &codes[((block * heads + head) * page + token % page) * words..][..words];
                let query = &queries[(index * heads + head) * words..][..words];
                key.iter().zip(query).map(|(k, q)| (k ^ q).count_ones()).sum::<u32>()
            };
            (0..heads).map(of_head).min().unwrap_or(0)
        };
        let blocks = len.div_ceil(select_block);
        let must = |block: usize| {
            params.must_select[..params.num_must as usize].iter().any(|&must| {
                let at = i64::from(must) + if must < 0 { blocks as i64 } else { 0 };
                usize::try_from(at) == Ok(block)
            })
        };
        let stride = params.score_stride as usize;
        for (block, score) in scores[index * stride..][..stride].iter_mut().enumerate() {
            let tokens = block * select_block..len.min((block + 1) * select_block);
            *score = match tokens.map(distance).min() {
                None => f32::NEG_INFINITY,
                Some(_) if must(block) => f32::INFINITY,
                Some(nearest) => -(nearest as f32),
            };
        }
    }
}
