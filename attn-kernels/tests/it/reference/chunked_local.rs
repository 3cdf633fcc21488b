//! Chunked local attention as virtual batches: plain causal attention of each is attention under the chunk mask.

use super::by_hand::{assert_close, dispatch};
use super::device::{cases, gpu};
use super::layer::{ATTENTION, Layer, SHAPES, queries, shape_of};
use attn_kernels::cpu;
use attn_kernels::cpu::attention::Options;
use attn_kernels::gpu::Pass;
use attn_kernels::kernel::KvDtype;
use attn_kernels::kernel::attention::{Attention, Reach};
use attn_kernels::kernel::chunked_local::{virtual_batches, virtual_tables};
use attn_kernels::kernel::paged_prefill::{self, KeyLoads, PagedPrefillParams, TILE_ROWS, Tile};
use proptest::prelude::*;

proptest! {
    #![proptest_config(cases(6))]
    #[test]
    fn virtual_batches_are_the_chunk_mask(
        shape in 2..SHAPES.len(),
        requests in prop::collection::vec((1u32..150, 0u32..200), 1..4),
        blocks in 1u32..6,
        seed: u64,
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let (shape, num_heads) = shape_of(shape, KvDtype::F16);
        let chunk = blocks * shape.block_size;
        let lens: Vec<u32> = requests.iter().map(|(rows, before)| rows + before).collect();
        let layer = Layer::new(shape, &lens, seed);
        let (mut tables, mut tiles, mut whole, mut at) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for ((rows, before), table) in requests.iter().zip(&layer.table_of) {
            let first = at;
            let blocks = (rows + before).div_ceil(shape.block_size) as usize;
            let of_request = &layer.tables[*table as usize..][..blocks];
            let batches = virtual_batches(*rows, rows + before, chunk, shape.block_size).unwrap();
            let start = tables.len();
            tables.extend(virtual_tables(&batches, of_request, chunk, shape.block_size));
            for (index, batch) in (0u32..).zip(&batches) {
                let table = u32::try_from(start).unwrap() + index * (chunk / shape.block_size);
                for row in (0..batch.rows).step_by(TILE_ROWS as usize) {
                    let (rows, position) = (TILE_ROWS.min(batch.rows - row), batch.keys - batch.rows + row);
                    tiles.push(Tile::new(at + row..at + row + rows, position, table));
                }
                at += batch.rows;
            }
            assert_eq!(at - first, *rows, "rows of the batches of a request");
            whole.push(Tile::new(first..first + rows, *before, *table));
        }
        let width = (num_heads * shape.head_dim) as usize;
        let q = queries(at as usize, width, width, seed);
        let params = PagedPrefillParams {
            num_heads,
            num_kv_heads: shape.num_kv_heads,
            q_stride: num_heads * shape.head_dim,
            scale: 1.0 / (shape.head_dim as f32).sqrt(),
            tiles: u32::try_from(tiles.len()).unwrap(),
            ..PagedPrefillParams::default()
        };
        let [k, v] = layer.upload(gpu).unwrap();
        let q_buf = gpu.upload("q", &q).unwrap();
        let lists = (gpu.upload("tables", &tables).unwrap(), gpu.upload("tiles", &tiles).unwrap());
        let out = gpu.upload("out", &vec![f32::NAN; q.len()]).unwrap();
        let lse = gpu.upload("lse", &vec![f32::NAN; (at * num_heads) as usize]).unwrap();
        let bindings = [
            (&q_buf).into(), (&k).into(), (&v).into(), (&lists.0).into(), (&lists.1).into(), (&out).into(), (&lse).into(),
        ];
        let variant = paged_prefill::variant(&shape, num_heads, KeyLoads::Uniform, &Attention::default());
        let last = tiles.iter().map(|tile| tile.position + tile.rows - 1).max().unwrap();
        let mut pass = Pass::new("chunks");
        for (first_key, num_keys) in paged_prefill::segments(0, last, gpu.is_cpu()) {
            let params = PagedPrefillParams { first_key, num_keys, ..params };
            dispatch(gpu, &mut pass, &variant, &params, &bindings);
        }
        let read = pass.read(&out, 0..q.len());
        let got = gpu.submit(pass).unwrap().wait().unwrap().get(read);

        let (mut want, mut lse) = (vec![f32::NAN; q.len()], vec![f32::NAN; (at * num_heads) as usize]);
        let params = PagedPrefillParams { window: chunk, ..params };
        let options = Options { mask: Reach::Chunk(chunk), ..Options::default() };
        cpu::paged_prefill::paged_prefill(
            &layer.kv(), &params, &q, &layer.tables, &whole, &mut want, &mut lse, &options,
        );
        assert_close(&format!("{shape:?}, chunks of {chunk}, {requests:?}"), ATTENTION, &got, &want);
    }
}
