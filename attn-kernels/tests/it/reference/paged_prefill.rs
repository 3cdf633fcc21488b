//! `paged_prefill` against its reference, and what it promises to the bit.

use super::device::{assert_bits, assert_close, dispatch, gpu};
use super::layer::{ATTENTION, Layer, cut, queries, shape_of};
use super::options::{AttentionInputs, Lists};
use attn_kernels::Level;
use attn_kernels::cpu;
use attn_kernels::gpu::{Bound, Buf, Gpu, Pass};
use attn_kernels::kernel::attention::{Attention, Context, Reach};
use attn_kernels::kernel::paged_prefill::{self, KeyLoads, PagedPrefillParams, TILE_ROWS, Tile};
use attn_kernels::kernel::prefill_reduce::{self, PrefillReduceParams};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};

use crate::usual;

/// Some rows of one sequence: position of the first, number.
type Chunk = (u32, u32);

/// Chunks of one sequence each.
struct Prefill {
    layer: Layer,
    num_heads: u32,
    q_stride: u32,
    rows: u32,
    tiles: Vec<Tile>,
    /// Lists are of each tile and KV head.
    asked: AttentionInputs,
    q: Vec<f32>,
    /// Keys of a part; all in one where this is `u32::MAX`.
    part_keys: u32,
}

/// The ways to load keys that the device has.
fn loads(gpu: &Gpu) -> Vec<KeyLoads> {
    if gpu.level() >= Level::Subgroup && gpu.info().subgroup_min_size >= 8 {
        return vec![KeyLoads::Uniform, KeyLoads::Broadcast];
    }
    eprintln!("paged_prefill with KeyLoads::Broadcast is skipped: subgroups of less than 8");
    vec![KeyLoads::Uniform]
}

impl Prefill {
    /// Tiles of at most `tile_rows` rows.
    fn new(shape: KvShape, num_heads: u32, chunks: &[Chunk], tile_rows: u32, gap: u32, seed: u64) -> Self {
        let lens: Vec<u32> = chunks.iter().map(|(first, rows)| first + rows).collect();
        let layer = Layer::new(shape, &lens, seed);
        let (mut tiles, mut at) = (Vec::new(), 0);
        for ((first, rows), table) in chunks.iter().zip(&layer.table_of) {
            for start in (0..*rows).step_by(tile_rows as usize) {
                let end = (*rows).min(start + tile_rows);
                let list = u32::try_from(tiles.len()).unwrap();
                tiles.push(Tile::new(at + start..at + end, first + start, *table).listed(list));
            }
            at += rows;
        }
        let width = num_heads * shape.head_dim;
        let q = queries(at as usize, width as usize, (width + gap) as usize, seed);
        Self {
            layer,
            num_heads,
            q_stride: width + gap,
            rows: at,
            tiles,
            asked: AttentionInputs::default(),
            q,
            part_keys: u32::MAX,
        }
    }

    /// Cuts the keys into parts.
    fn cut(self, part_keys: u32) -> Self {
        Self { part_keys, ..self }
    }

    /// Puts each selection block of `block` tokens in the list of a tile with `chance`.
    fn listed(mut self, block: u32, chance: f64, seed: u64) -> Self {
        let heads = self.layer.shape.num_kv_heads as usize;
        let lens = self.tiles.iter().flat_map(|t| std::iter::repeat_n(t.position + t.rows, heads));
        self.asked.list(Lists::random(lens, block, chance, seed));
        self
    }

    /// Sets `attention`; blocks that no row of a sequence sees are taken away.
    fn asking(mut self, attention: Attention, seed: u64) -> Self {
        self.asked = AttentionInputs::new(attention, self.num_heads, seed);
        for index in 0..self.layer.table_of.len() {
            let of_sequence = |tile: &&Tile| tile.table == self.layer.table_of[index];
            let first = self.tiles.iter().filter(of_sequence).map(|tile| tile.position).min();
            self.layer.recycle(index, attention.mask.first_key(first.unwrap_or(0)));
        }
        self
    }

    fn attention(&self) -> &Attention {
        &self.asked.attention
    }

    fn params(&self, (first_key, num_keys): (u32, u32)) -> PagedPrefillParams {
        PagedPrefillParams {
            num_heads: self.num_heads,
            num_kv_heads: self.layer.shape.num_kv_heads,
            q_stride: self.q_stride,
            first_key,
            scale: 1.0 / (self.layer.shape.head_dim as f32).sqrt(),
            neg_inf: f32::NEG_INFINITY,
            num_keys,
            list_stride: self.asked.list_stride(),
            window: self.attention().mask.tokens(),
            softcap: self.asked.softcap,
            k_scale: 1.0,
            v_scale: 1.0,
            part_keys: self.part_keys,
            part_rows: self.rows,
            log_skip: 0.0,
        }
    }

    fn on_gpu(&self, gpu: &Gpu, loads: KeyLoads) -> [Vec<f32>; 2] {
        let shape = &self.layer.shape;
        let [k, v] = self.layer.upload(gpu).unwrap();
        let q = gpu.upload("q", &self.q).unwrap();
        let tables = gpu.upload("tables", &self.layer.tables).unwrap();
        let tile_rows = paged_prefill::tile_rows(loads);
        let cut = cut(&self.tiles, tile_rows);
        let tiles = gpu.upload("tiles", &cut).unwrap();
        let last = self.tiles.iter().map(|tile| tile.position + tile.rows - 1).max().unwrap();
        let parts = last / self.part_keys + 1;
        let heads = (self.rows * self.num_heads) as usize;
        let nan = |name, len: usize| gpu.upload(name, &vec![f32::NAN; len]).unwrap();
        let out = nan("out", parts as usize * heads * shape.head_dim as usize);
        let lse = nan("lse", parts as usize * heads);
        let mut bindings: Vec<Bound> = vec![
            (&q).into(),
            (&k).into(),
            (&v).into(),
            (&tables).into(),
            (&tiles).into(),
            (&out).into(),
            (&lse).into(),
        ];
        let extra = self.asked.upload(gpu).unwrap();
        bindings.extend(extra.as_ref().map(Into::into));
        let mut pass = Pass::new("prefill");
        let variant = paged_prefill::variant(shape, self.num_heads, loads, self.attention());
        let count = u32::try_from(cut.len()).unwrap();
        let [x, y, _] = paged_prefill::grid(shape, self.num_heads, loads, count);
        let first = match self.attention().context {
            Context::Full => self.tiles.iter().map(|t| self.attention().mask.first_key(t.position)).min(),
            Context::Blocks(_) | Context::Tokens => None,
        };
        let whole = self.params((0, u32::MAX));
        if parts > 1 {
            dispatch(gpu, &mut pass, &variant, &whole, &bindings, [x, y, parts]);
            return self.reduce(gpu, pass, parts, [&out, &lse]);
        }
        for segment in paged_prefill::segments(first.unwrap_or(0), last, gpu.is_cpu()) {
            dispatch(gpu, &mut pass, &variant, &self.params(segment), &bindings, [x, y, 1]);
        }
        let reads = [pass.read(&out, 0..out.len()), pass.read(&lse, 0..lse.len())];
        let outcome = gpu.submit(pass).unwrap().wait().unwrap();
        reads.map(|read| outcome.get(read))
    }

    /// Output and log-sum-exp of all parts together.
    fn reduce(&self, gpu: &Gpu, mut pass: Pass, parts: u32, of_parts: [&Buf<f32>; 2]) -> [Vec<f32>; 2] {
        let (dim, rows) = (self.layer.shape.head_dim, self.rows * self.num_heads);
        let [out, lse] =
            [rows * dim, rows].map(|len| gpu.upload("reduced", &vec![f32::NAN; len as usize]).unwrap());
        let neg_inf = f32::NEG_INFINITY;
        let params = PrefillReduceParams { rows, first_row: 0, parts, part_rows: rows, neg_inf };
        let bindings: Vec<Bound> = of_parts.into_iter().chain([&out, &lse]).map(Into::into).collect();
        let grid = prefill_reduce::grid(&params, dim);
        dispatch(gpu, &mut pass, &prefill_reduce::variant(dim), &params, &bindings, grid);
        let reads = [pass.read(&out, 0..out.len()), pass.read(&lse, 0..lse.len())];
        let outcome = gpu.submit(pass).unwrap().wait().unwrap();
        reads.map(|read| outcome.get(read))
    }

    fn check(&self, gpu: &Gpu) {
        let heads = (self.rows * self.num_heads) as usize;
        let mut want = [heads * self.layer.shape.head_dim as usize, heads].map(|n| vec![f32::NAN; n]);
        let [out, lse] = &mut want;
        let tables = &self.layer.tables;
        let kv = self.layer.kv();
        cpu::paged_prefill::paged_prefill(
            &kv,
            &self.params((0, u32::MAX)),
            &self.q,
            tables,
            &self.tiles,
            out,
            lse,
            &self.asked.options(),
        );
        for loads in loads(gpu) {
            let shape = &self.layer.shape;
            let what = format!(
                "{shape:?}, {} heads, {loads:?}, {:?}, {:?}",
                self.num_heads,
                self.attention(),
                self.tiles
            );
            let [out, lse] = self.on_gpu(gpu, loads);
            assert_close(&format!("output, {what}"), ATTENTION, &out, &want[0]);
            assert_close(&format!("lse, {what}"), ATTENTION, &lse, &want[1]);
        }
    }
}

/// The ends of what is served, as for decode. Software drivers take half a minute to compile each of the large heads, so
/// these are for devices.
#[test]
fn heads_groups_and_blocks_at_their_limits() {
    let Some(gpu) = gpu() else { return };
    for (head_dim, num_kv_heads, group, block_size, dtype) in [
        (16, 1, 128, 128, KvDtype::F16),
        (24, 3, 1, 4, KvDtype::Int8),
        (248, 2, 3, 128, KvDtype::F32),
        (256, 1, 32, 4, KvDtype::F16),
        (512, 1, 8, 16, KvDtype::F16),
        (512, 2, 1, 64, KvDtype::Fp8),
    ] {
        let shape = KvShape { num_kv_heads, head_dim, block_size, dtype, layout: KvLayout::Native };
        if head_dim > 128 && gpu.is_cpu() {
            eprintln!("{shape:?} is left to devices");
            continue;
        }
        let chunks = [(0, 5), (block_size + 1, 70), (300, 1)];
        Prefill::new(shape, num_kv_heads * group, &chunks, TILE_ROWS, 8, 41).check(gpu);
    }
}

/// A software driver cuts this into segments; large heads, and heads that lanes serve together.
#[test]
fn thousands_of_keys() {
    let Some(gpu) = gpu() else { return };
    for (index, dtype, len) in [(1, KvDtype::F16, 4000), (3, KvDtype::F16, 9000)] {
        let (shape, num_heads) = shape_of(index, dtype);
        Prefill::new(shape, num_heads, &[(len, 2), (510, 5), (3, 1)], TILE_ROWS, 0, 23).check(gpu);
    }
}

/// Parts of which some rows see nothing, and parts that end within a block, put together.
#[test]
fn parts_of_keys_are_put_together() {
    let Some(gpu) = gpu() else { return };
    let cases = [(2, KvDtype::F32, 8), (3, KvDtype::F16, 200), (1, KvDtype::F16, 64)];
    for &(index, dtype, part_keys) in usual(2, &cases) {
        let (shape, num_heads) = shape_of(index, dtype);
        let chunks = [(390, 5), (0, 66), (200, 1)];
        Prefill::new(shape, num_heads, &chunks, TILE_ROWS, 8, 31).cut(part_keys).check(gpu);
    }
    let shape = KvShape {
        num_kv_heads: 1,
        head_dim: 16,
        block_size: 8,
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    let window = Attention { mask: Reach::Window(70), ..Attention::default() };
    Prefill::new(shape, 2, &[(300, 20)], TILE_ROWS, 8, 32).asking(window, 33).cut(64).check(gpu);
}

#[test]
fn a_row_does_not_depend_on_its_tile_chunk_or_block() {
    let Some(gpu) = gpu() else { return };
    let whole = |block_size, tile_rows, loads| {
        let shape = KvShape {
            num_kv_heads: 1,
            head_dim: 16,
            block_size,
            dtype: KvDtype::F16,
            layout: KvLayout::Native,
        };
        Prefill::new(shape, 3, &[(0, 90)], tile_rows, 0, 21).on_gpu(gpu, loads)
    };
    for loads in loads(gpu) {
        let want = whole(16, TILE_ROWS, loads);
        for (block_size, tile_rows) in [(16, 1), (16, 7), (4, 64), (256, 33)] {
            for (got, want) in whole(block_size, tile_rows, loads).iter().zip(&want) {
                assert_bits(&format!("blocks of {block_size}, tiles of {tile_rows}, {loads:?}"), got, want);
            }
        }
    }
}

#[test]
fn a_chunk_is_part_of_the_whole() {
    let Some(gpu) = gpu() else { return };
    let shape = KvShape {
        num_kv_heads: 1,
        head_dim: 16,
        block_size: 16,
        dtype: KvDtype::F32,
        layout: KvLayout::Native,
    };
    let width = 3 * 16;
    for loads in loads(gpu) {
        let mut prefill = Prefill::new(shape, 3, &[(0, 90)], TILE_ROWS, 0, 22);
        let [whole, _] = prefill.on_gpu(gpu, loads);
        for (first, rows) in [(0, 40), (40, 1), (41, 49)] {
            prefill.tiles = vec![Tile::new(first..first + rows, first, 0)];
            let [chunk, _] = prefill.on_gpu(gpu, loads);
            let range = (first * width) as usize..((first + rows) * width) as usize;
            assert_bits(&format!("rows {first}, {rows}, {loads:?}"), &chunk[range.clone()], &whole[range]);
        }
    }
}

/// Rows in the middle of a block, rows before all listed blocks, empty lists, segments without keys.
#[test]
fn listed_blocks_are_all_that_is_attended() {
    let Some(gpu) = gpu() else { return };
    let shape = KvShape {
        num_kv_heads: 2,
        head_dim: 24,
        block_size: 16,
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    let lists = [(16, 0.3, 1), (128, 0.5, 2), (128, 0.0, 4), (64, 0.2, 3), (32, 0.0, 5)];
    for &(block, chance, seed) in usual(3, &lists) {
        Prefill::new(shape, 4, &[(0, 130), (1300, 70), (37, 1)], TILE_ROWS, 4, 18)
            .listed(block, chance, seed)
            .check(gpu);
    }
}

/// Every mask, over segments, blocks and tiles, and what no row sees taken away.
#[test]
fn masks_bound_what_is_read() {
    let Some(gpu) = gpu() else { return };
    let shape = KvShape {
        num_kv_heads: 1,
        head_dim: 16,
        block_size: 4,
        dtype: KvDtype::F32,
        layout: KvLayout::Native,
    };
    for mask in
        [Reach::Window(128), Reach::Window(1), Reach::Window(700), Reach::Chunk(36), Reach::Chunk(600)]
    {
        let attention = Attention { mask, ..Attention::default() };
        let chunks = [(0, 130), (1300, 70), (37, 1), (505, 30)];
        Prefill::new(shape, 2, &chunks, TILE_ROWS, 4, 18).asking(attention, 3).check(gpu);
        Prefill::new(shape, 2, &chunks, TILE_ROWS, 4, 19).asking(attention, 4).listed(16, 0.5, 5).check(gpu);
    }
}
