//! `paged_prefill_coop` against `paged_prefill` on the same adapter, both as trusted modules: cooperative loads cannot
//! be bounds-checked. Slots of the cache that hold no token are NaN, and so is what the kernels should overwrite.

use crate::adapter::gpu;
use attn_kernels::Variant;
use attn_kernels::gpu::{Bound, Gpu, Pass};
use attn_kernels::kernel::attention::{Attention, Logit, Reach};
use attn_kernels::kernel::paged_prefill::{self, KeyLoads, PagedPrefillParams, Tile};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape, paged_prefill_coop};
use attn_kernels::self_test::layer::{Layer, queries};
use attn_kernels::self_test::options::{AttentionInputs, Lists};

/// Rows that share lists of selected blocks.
const QUERY_BLOCK: u32 = paged_prefill_coop::TILE_ROWS;

/// Chunks `(position of the first row, rows)` of one sequence each.
struct Prefill {
    layer: Layer,
    num_heads: u32,
    chunks: Vec<(u32, u32)>,
    q_stride: u32,
    q: Vec<f32>,
    /// Lists are of each query block and KV head.
    asked: AttentionInputs,
}

impl Prefill {
    fn new(shape: KvShape, num_heads: u32, chunks: &[(u32, u32)], loud: f32) -> Self {
        let lens: Vec<u32> = chunks.iter().map(|(first, rows)| first + rows).collect();
        let rows: u32 = chunks.iter().map(|(_, rows)| rows).sum();
        let width = num_heads * shape.head_dim;
        let q_stride = width + 12;
        let mut q = queries(rows as usize, width as usize, q_stride as usize, 3);
        q.iter_mut().for_each(|x| *x *= loud);
        Self {
            layer: Layer::new(shape, &lens, 3),
            num_heads,
            chunks: chunks.into(),
            q_stride,
            q,
            asked: AttentionInputs::default(),
        }
    }

    /// Puts each selection block of `block` tokens in the list of a query block with `chance`.
    fn listed(mut self, block: u32, chance: f64) -> Self {
        let of_chunk = |&(first, rows): &(u32, u32)| {
            (0..rows).step_by(QUERY_BLOCK as usize).map(move |start| first + rows.min(start + QUERY_BLOCK))
        };
        let lens: Vec<u32> = self.chunks.iter().flat_map(of_chunk).collect();
        let heads = self.layer.shape.num_kv_heads as usize;
        let lens = lens.into_iter().flat_map(|len| std::iter::repeat_n(len, heads));
        self.asked.list(Lists::random(lens, block, chance, 7));
        self
    }

    /// Sets `attention`; blocks that no row of a sequence sees are taken away.
    fn asking(mut self, attention: Attention) -> Self {
        self.asked = AttentionInputs::new(attention, self.num_heads, 8);
        for (index, (first, _)) in self.chunks.iter().enumerate() {
            self.layer.recycle(index, attention.mask.first_key(*first));
        }
        self
    }

    fn attention(&self) -> &Attention {
        &self.asked.attention
    }

    fn tiles(&self, tile_rows: u32) -> Vec<Tile> {
        let (mut tiles, mut at, mut list) = (Vec::new(), 0, 0);
        for ((first, rows), table) in self.chunks.iter().zip(&self.layer.table_of) {
            for start in (0..*rows).step_by(tile_rows as usize) {
                let end = (*rows).min(start + tile_rows);
                let tile = Tile::new(at + start..at + end, first + start, *table);
                tiles.push(tile.listed(list + start / QUERY_BLOCK));
            }
            at += rows;
            list += rows.div_ceil(QUERY_BLOCK);
        }
        tiles
    }

    /// Output and log-sum-exp of one kernel.
    fn run(
        &self,
        gpu: &Gpu,
        variant: &Variant,
        tile_rows: u32,
        grid: impl Fn(u32) -> [u32; 3],
    ) -> [Vec<f32>; 2] {
        let shape = &self.layer.shape;
        let params = PagedPrefillParams {
            num_heads: self.num_heads,
            num_kv_heads: shape.num_kv_heads,
            q_stride: self.q_stride,
            scale: 1.0 / (shape.head_dim as f32).sqrt(),
            list_stride: self.asked.list_stride(),
            window: self.attention().mask.tokens(),
            softcap: self.asked.softcap,
            ..PagedPrefillParams::default()
        };
        let tiles = self.tiles(tile_rows);
        let [k, v] = self.layer.upload(gpu).unwrap();
        let q = gpu.upload("q", &self.q).unwrap();
        let tables = gpu.upload("tables", &self.layer.tables).unwrap();
        let tile_buf = gpu.upload("tiles", &tiles).unwrap();
        let heads = self.q.len() / self.q_stride as usize * self.num_heads as usize;
        let out = gpu.upload("out", &vec![f32::NAN; heads * shape.head_dim as usize]).unwrap();
        let lse = gpu.upload("lse", &vec![f32::NAN; heads]).unwrap();
        let mut bindings: Vec<Bound> = vec![
            (&q).into(),
            (&k).into(),
            (&v).into(),
            (&tables).into(),
            (&tile_buf).into(),
            (&out).into(),
            (&lse).into(),
        ];
        let extra = self.asked.upload(gpu).unwrap();
        bindings.extend(extra.as_ref().map(Into::into));
        let pipeline = gpu.pipeline(variant).unwrap_or_else(|e| panic!("{e}"));
        let mut pass = Pass::new("prefill");
        pass.dispatch_bytes(
            &pipeline,
            bytemuck::bytes_of(&params),
            &bindings,
            grid(u32::try_from(tiles.len()).unwrap()),
        );
        let reads = [pass.read(&out, 0..out.len()), pass.read(&lse, 0..lse.len())];
        let outcome = gpu.submit(pass).unwrap().wait().unwrap();
        reads.map(|read| outcome.get(read))
    }

    fn coop(&self, gpu: &Gpu, tile_rows: u32) -> [Vec<f32>; 2] {
        let variant = paged_prefill_coop::variant(&self.layer.shape, self.attention());
        self.run(gpu, &variant, tile_rows, |tiles| paged_prefill_coop::grid(self.num_heads, tiles))
    }

    fn plain(&self, gpu: &Gpu) -> [Vec<f32>; 2] {
        let (shape, loads) = (&self.layer.shape, KeyLoads::Uniform);
        let variant = paged_prefill::variant(shape, self.num_heads, loads, self.attention());
        self.run(gpu, &variant, paged_prefill::TILE_ROWS, |tiles| {
            paged_prefill::grid(shape, self.num_heads, loads, tiles)
        })
    }
}

/// ‖got - want‖ / ‖want‖; NaN where anything is.
fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |x: f64| x * x;
    let error: f64 = got.iter().zip(want).map(|(g, w)| square(f64::from(*g) - f64::from(*w))).sum();
    let norm: f64 = want.iter().map(|w| square(f64::from(*w))).sum();
    if error == 0.0 { 0.0 } else { (error / norm).sqrt() }
}

fn shape(num_kv_heads: u32, head_dim: u32, block_size: u32) -> KvShape {
    KvShape { num_kv_heads, head_dim, block_size, dtype: KvDtype::F16, layout: KvLayout::Native }
}

/// Compares with `paged_prefill`; queries are `loud` times larger.
fn check(gpu: &Gpu, prefill: &Prefill, loud: f32) {
    let what = format!("{:?}, {:?}, queries times {loud}", prefill.layer.shape, prefill.attention());
    let [want, want_lse] = prefill.plain(gpu);
    let [out, lse] = prefill.coop(gpu, paged_prefill_coop::TILE_ROWS);
    let error = relative_error(&out, &want);
    assert!(error <= 2e-3, "{what}: relative error {error:e}");
    for (i, (got, want)) in lse.iter().zip(&want_lse).enumerate() {
        // Queries are rounded to f16, so scores err in proportion to their size, whatever the sum is: of the order of
        // 2^-11 * |q| * |k| * scale, and |q| is about 16 times `loud`.
        let bound = 2e-3 * loud.max(want.abs()).max(1.0);
        let same = got == want || (got - want).abs() <= bound;
        assert!(same, "{what}: lse {i} is {got}, not {want}");
    }
}

const CHUNKS: [(u32, u32); 6] = [(0, 1), (15, 3), (16, 2), (0, 300), (700, 129), (77, 64)];

#[test]
fn agrees_with_paged_prefill() {
    let Some(gpu) = gpu() else { return };
    for (num_kv_heads, head_dim, block_size, group) in
        [(3, 64, 16, 3), (1, 128, 4, 4), (2, 80, 32, 2), (2, 16, 256, 1), (1, 96, 8, 7), (1, 112, 64, 8)]
    {
        // The loud queries have peaked weights and maxima that grow late: output in registers is rescaled.
        for loud in [0.5, 8.0] {
            let shape = shape(num_kv_heads, head_dim, block_size);
            check(&gpu, &Prefill::new(shape, num_kv_heads * group, &CHUNKS, loud), loud);
        }
    }
}

/// Two subgroups share the rows of one.
#[test]
fn wide_heads_agree_with_paged_prefill_where_they_are_served() {
    let Some(gpu) = gpu() else { return };
    let wide = [(1, 256, 16, 4), (2, 192, 4, 2), (1, 160, 64, 3)].into_iter();
    let served = |(kv_heads, head_dim, block_size, _): &(u32, u32, u32, u32)| {
        paged_prefill_coop::serves(&shape(*kv_heads, *head_dim, *block_size), gpu.profile())
    };
    for (num_kv_heads, head_dim, block_size, group) in wide.filter(served) {
        let shape = shape(num_kv_heads, head_dim, block_size);
        for loud in [0.5, 8.0] {
            check(&gpu, &Prefill::new(shape, num_kv_heads * group, &CHUNKS, loud), loud);
            check(&gpu, &Prefill::new(shape, num_kv_heads * group, &CHUNKS, loud).listed(64, 0.5), loud);
        }
        let window = Attention { mask: Reach::Window(200), ..Attention::default() };
        check(&gpu, &Prefill::new(shape, num_kv_heads * group, &CHUNKS, 4.0).asking(window), 4.0);
        let codes = KvShape { dtype: KvDtype::Int8, ..shape };
        check(&gpu, &Prefill::new(codes, num_kv_heads * group, &CHUNKS, 0.5), 0.5);
    }
}

/// Codes times scales, rounded to f16 once more than by `paged_prefill`.
#[test]
fn caches_of_codes_are_read_as_by_paged_prefill() {
    let Some(gpu) = gpu() else { return };
    for dtype in [KvDtype::Fp8, KvDtype::Int8] {
        for (head_dim, block_size) in [(64, 16), (128, 4), (80, 64)] {
            let prefill =
                |loud| Prefill::new(KvShape { dtype, ..shape(2, head_dim, block_size) }, 6, &CHUNKS, loud);
            for loud in [0.5, 8.0] {
                check(&gpu, &prefill(loud), loud);
            }
            check(&gpu, &prefill(0.5).listed(64, 0.5), 0.5);
        }
    }
}

/// Among them rows before every listed block, and query blocks with none.
#[test]
fn listed_blocks_are_all_that_is_attended() {
    let Some(gpu) = gpu() else { return };
    for (block_size, block, chance) in [(16, 16, 0.3), (16, 64, 0.5), (4, 128, 0.2), (32, 32, 0.0)] {
        for loud in [0.5, 8.0] {
            let prefill = Prefill::new(shape(2, 64, block_size), 6, &CHUNKS, loud).listed(block, chance);
            check(&gpu, &prefill, loud);
        }
    }
}

#[test]
fn masks_and_logits_are_those_of_paged_prefill() {
    let Some(gpu) = gpu() else { return };
    let of = |mask, logit| Attention { mask, logit, ..Attention::default() };
    for attention in [
        of(Reach::Window(128), Logit::Plain),
        of(Reach::Window(17), Logit::Plain),
        of(Reach::Window(1), Logit::Plain),
        of(Reach::Chunk(96), Logit::Plain),
        of(Reach::Full, Logit::Softcap),
        of(Reach::Full, Logit::Alibi),
        of(Reach::Window(300), Logit::Softcap),
    ] {
        for loud in [0.5, 8.0] {
            check(&gpu, &Prefill::new(shape(2, 64, 16), 6, &CHUNKS, loud).asking(attention), loud);
        }
    }
    let window = of(Reach::Window(200), Logit::Plain);
    check(&gpu, &Prefill::new(shape(2, 64, 16), 6, &CHUNKS, 4.0).asking(window).listed(32, 0.5), 4.0);
}

#[test]
fn a_row_does_not_depend_on_its_tile_or_block() {
    let Some(gpu) = gpu() else { return };
    let run = |block_size, tile_rows| {
        Prefill::new(shape(1, 64, block_size), 3, &[(0, 301)], 4.0).coop(&gpu, tile_rows)
    };
    let want = run(16, paged_prefill_coop::TILE_ROWS);
    for (block_size, tile_rows) in [(16, 1), (16, 7), (4, 128), (256, 33)] {
        let got = run(block_size, tile_rows);
        for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
            assert_eq!(got.to_bits(), want.to_bits(), "blocks of {block_size}, tiles of {tile_rows}");
        }
    }
}
