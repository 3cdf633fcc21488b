//! Attention behind long prefixes, chunk by chunk, against the reference over all keys at once.

use super::by_hand::assert_close;
use super::device::{assert_bits, cases, gpu};
use super::layer::{ATTENTION, Layer, queries};
use attn_kernels::cpu;
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::kernel::attention::Attention;
use attn_kernels::kernel::chunked_prefix::{ChunkedPrefix, PrefixRows};
use attn_kernels::kernel::paged_prefill::{self, KeyLoads, PagedPrefillParams, TILE_ROWS, Tile};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use attn_kernels::launch::{PrefixBuffers, PrefixPass};
use proptest::prelude::*;

const HEADS: u32 = 4;

struct Batch {
    layer: Layer,
    sequences: Vec<PrefixRows>,
    rows: u32,
    q: Vec<f32>,
}

fn shape(dtype: KvDtype, block_size: u32) -> KvShape {
    KvShape { num_kv_heads: 2, head_dim: 32, block_size, dtype, layout: KvLayout::Native }
}

impl Batch {
    /// Sequences of `(prefix, rows)`.
    fn new(shape: KvShape, lens: &[(u32, u32)], seed: u64) -> Self {
        let layer =
            Layer::new(shape, &lens.iter().map(|(prefix, rows)| prefix + rows).collect::<Vec<_>>(), seed);
        let mut rows = 0;
        let sequence = |(&(prefix, own), &table): (&(u32, u32), &u32)| {
            rows += own;
            PrefixRows { row: rows - own, rows: own, prefix, table }
        };
        let sequences = lens.iter().zip(&layer.table_of).map(sequence).collect();
        let width = (HEADS * shape.head_dim) as usize;
        Self { layer, sequences, rows, q: queries(rows as usize, width, width, seed) }
    }

    fn params(&self) -> PagedPrefillParams {
        let KvShape { num_kv_heads, head_dim, .. } = self.layer.shape;
        PagedPrefillParams {
            num_heads: HEADS,
            num_kv_heads,
            q_stride: HEADS * head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            ..PagedPrefillParams::default()
        }
    }

    /// Output and lse on the device, with chunks of `capacity` tokens in all.
    fn on_gpu(&self, gpu: &Gpu, capacity: u32) -> [Vec<f32>; 2] {
        let shape = &self.layer.shape;
        let plan = ChunkedPrefix::new(&self.sequences, capacity, shape.block_size, TILE_ROWS).unwrap();
        let heads = (self.rows * HEADS) as usize;
        let [k, v] = &self.layer.upload(gpu).unwrap();
        let q = &gpu.upload("q", &self.q).unwrap();
        let tables = &gpu.upload("tables", bytemuck::cast_slice(&self.layer.tables)).unwrap();
        let out = &gpu.upload("out", &vec![f32::NAN; heads * shape.head_dim as usize]).unwrap();
        let lse = &gpu.upload("lse", &vec![f32::NAN; heads]).unwrap();
        let mut pass = Pass::new("prefix");
        let on = PrefixPass::new(gpu, &mut pass, &plan, tables, [self.rows, HEADS, shape.head_dim]).unwrap();
        let variant = paged_prefill::variant(shape, HEADS, KeyLoads::Uniform, &Attention::default());
        let prefill = gpu.pipeline(&variant).unwrap();
        let buffers = PrefixBuffers { q, k, v, tables, out, lse };
        on.attend(gpu, &mut pass, buffers, self.params(), &prefill);
        let reads = [pass.read(out, 0..out.len()), pass.read(lse, 0..lse.len())];
        let outcome = gpu.submit(pass).unwrap().wait().unwrap();
        reads.map(|read| outcome.get(read))
    }

    /// All keys at once, in f64.
    fn reference(&self) -> [Vec<f32>; 2] {
        let heads = (self.rows * HEADS) as usize;
        let mut want = [heads * self.layer.shape.head_dim as usize, heads].map(|n| vec![f32::NAN; n]);
        let [out, lse] = &mut want;
        let tile = |s: &PrefixRows| Tile::new(s.row..s.row + s.rows, s.prefix, s.table);
        let tiles: Vec<Tile> = self.sequences.iter().map(tile).collect();
        cpu::paged_prefill::paged_prefill(
            &self.layer.kv(),
            &self.params(),
            &self.q,
            &self.layer.tables,
            &tiles,
            out,
            lse,
            &cpu::attention::Options::default(),
        );
        want
    }

    #[track_caller]
    fn check(&self, gpu: &Gpu, capacity: u32) {
        let ([out, lse], [want_out, want_lse]) = (self.on_gpu(gpu, capacity), self.reference());
        assert_close(&format!("output, capacity {capacity}"), ATTENTION, &out, &want_out);
        assert_close(&format!("lse, capacity {capacity}"), ATTENTION, &lse, &want_lse);
    }
}

#[test]
fn chunks_are_the_whole() {
    let Some(gpu) = gpu() else { return };
    // No prefix, one shorter than a chunk, one of whole chunks, one of some and a rest; tiles of more than 64 rows.
    let lens = [(0, 7), (20, 3), (128, 66), (333, 5)];
    let batch = Batch::new(shape(KvDtype::F16, 16), &lens, 1);
    for capacity in [64, 256, 131_072] {
        batch.check(gpu, capacity);
    }
}

#[test]
fn a_sequence_has_the_same_bits_alone_and_in_company() {
    let Some(gpu) = gpu() else { return };
    let shape = shape(KvDtype::F32, 8);
    let together = Batch::new(shape, &[(200, 9), (17, 4), (90, 2)], 2);
    let [out, lse] = together.on_gpu(gpu, 3 * 40);
    let width = (HEADS * shape.head_dim) as usize;
    for sequence in &together.sequences {
        let own = sequence.row as usize..(sequence.row + sequence.rows) as usize;
        let alone = Batch {
            sequences: vec![PrefixRows { row: 0, ..*sequence }],
            rows: sequence.rows,
            q: together.q[own.start * width..own.end * width].to_vec(),
            layer: together.layer.clone(),
        };
        // The same chunks of 40 tokens.
        let [alone_out, alone_lse] = alone.on_gpu(gpu, 40);
        assert_bits("output", &out[own.start * width..own.end * width], &alone_out);
        let heads = HEADS as usize;
        assert_bits("lse", &lse[own.start * heads..own.end * heads], &alone_lse);
    }
}

proptest! {
    #![proptest_config(cases(6))]
    #[test]
    fn any_cut_gives_the_attention_over_all_keys(
        lens in prop::collection::vec((0u32..300, 1u32..6), 1..5),
        share in 1u32..12,
        f16: bool,
        seed: u64,
    ) {
        if let Some(gpu) = gpu() {
            let dtype = if f16 { KvDtype::F16 } else { KvDtype::F32 };
            let capacity = 16 * share * u32::try_from(lens.len()).unwrap();
            Batch::new(shape(dtype, 16), &lens, seed).check(gpu, capacity);
        }
    }
}
