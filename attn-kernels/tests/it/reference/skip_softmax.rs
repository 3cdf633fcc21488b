//! `paged_prefill` that leaves out keys of little weight, against its reference and against attention of all keys.

use super::by_hand::{assert_close, dispatch};
use super::device::{assert_bits, gpu};
use super::layer::{ATTENTION, Layer, cut, queries};
use attn_kernels::Level;
use attn_kernels::cpu;
use attn_kernels::cpu::attention::{Options, SkipTiles};
use attn_kernels::gpu::{Bound, Gpu, Pass};
use attn_kernels::kernel::attention::Attention;
use attn_kernels::kernel::paged_prefill::{self, KeyLoads, PagedPrefillParams, TILE_ROWS, Tile};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};

const HEADS: u32 = 4;
const SHAPE: KvShape =
    KvShape { num_kv_heads: 2, head_dim: 32, block_size: 16, dtype: KvDtype::F16, layout: KvLayout::Native };

/// A sequence of which some blocks have keys that no query looks for.
struct Prompt {
    layer: Layer,
    q: Vec<f32>,
    tiles: Vec<Tile>,
    rows: u32,
}

impl Prompt {
    /// Rows `first..first + rows`.
    fn new(first: u32, rows: u32) -> Self {
        let mut layer = Layer::new(SHAPE, &[first + rows], 7);
        layer.hush();
        let width = (HEADS * SHAPE.head_dim) as usize;
        let tile = |row: u32| Tile::new(row..rows.min(row + TILE_ROWS), first + row, 0);
        let tiles = (0..rows).step_by(TILE_ROWS as usize).map(tile).collect();
        Self { layer, q: queries(rows as usize, width, width, 8), tiles, rows }
    }

    fn params(&self, log_skip: f32) -> PagedPrefillParams {
        PagedPrefillParams {
            num_heads: HEADS,
            num_kv_heads: SHAPE.num_kv_heads,
            q_stride: HEADS * SHAPE.head_dim,
            scale: 1.0 / (SHAPE.head_dim as f32).sqrt(),
            log_skip,
            ..PagedPrefillParams::default()
        }
    }

    /// Output and log-sum-exps of the kernel.
    fn on_gpu(&self, gpu: &Gpu, loads: KeyLoads, attention: &Attention, log_skip: f32) -> [Vec<f32>; 2] {
        let [k, v] = self.layer.upload(gpu).unwrap();
        let q = gpu.upload("q", &self.q).unwrap();
        let tables = gpu.upload("tables", &self.layer.tables).unwrap();
        let cut = cut(&self.tiles, paged_prefill::tile_rows(loads));
        let tiles = gpu.upload("tiles", &cut).unwrap();
        let out = gpu.upload("out", &vec![f32::NAN; self.q.len()]).unwrap();
        let lse = gpu.upload("lse", &vec![f32::NAN; (self.rows * HEADS) as usize]).unwrap();
        let bindings: Vec<Bound> = vec![
            (&q).into(),
            (&k).into(),
            (&v).into(),
            (&tables).into(),
            (&tiles).into(),
            (&out).into(),
            (&lse).into(),
        ];
        let variant = paged_prefill::variant(&SHAPE, HEADS, loads, attention);
        let tiles = u32::try_from(cut.len()).unwrap();
        let params = PagedPrefillParams { tiles, ..self.params(log_skip) };
        let mut pass = Pass::new("prefill");
        dispatch(gpu, &mut pass, &variant, &params, &bindings);
        let reads = [pass.read(&out, 0..out.len()), pass.read(&lse, 0..lse.len())];
        let outcome = gpu.submit(pass).unwrap().wait().unwrap();
        reads.map(|read| outcome.get(read))
    }

    fn on_cpu(&self, skip: Option<SkipTiles>, log_skip: f32) -> [Vec<f32>; 2] {
        let mut of = [self.q.len(), (self.rows * HEADS) as usize].map(|len| vec![f32::NAN; len]);
        let [out, lse] = &mut of;
        let (params, options) = (self.params(log_skip), Options { skip, ..Options::default() });
        let (kv, tables) = (self.layer.kv(), &self.layer.tables);
        cpu::paged_prefill::paged_prefill(&kv, &params, &self.q, tables, &self.tiles, out, lse, &options);
        of
    }
}

fn loads(gpu: &Gpu) -> Vec<KeyLoads> {
    let broadcasts = gpu.level() >= Level::Subgroup && gpu.info().subgroup_min_size >= 8;
    if broadcasts { vec![KeyLoads::Uniform, KeyLoads::Broadcast] } else { vec![KeyLoads::Uniform] }
}

/// Share of the weight of each row that is left out, by the log-sum-exps of all keys and of those kept.
fn dropped(all: &[f32], kept: &[f32]) -> Vec<f64> {
    all.iter().zip(kept).map(|(all, kept)| 1.0 - f64::from(kept - all).exp()).collect()
}

#[test]
fn rows_leave_out_tiles_of_little_weight() {
    let Some(gpu) = gpu() else { return };
    let attention = Attention { skip: true, ..Attention::default() };
    for (first, rows, log_skip) in [(0, 150, 3.5), (230, 70, 4.5), (96, 1, 2.0)] {
        let prompt = Prompt::new(first, rows);
        let [out, lse] = prompt.on_cpu(Some(SkipTiles { rows: 1, keys: 8 }), log_skip);
        let [_, all] = prompt.on_cpu(None, log_skip);
        let shares = dropped(&all, &lse);
        assert!(shares.iter().any(|share| *share > 1e-3), "nothing is left out: {shares:?}");
        for loads in loads(gpu) {
            let [got, got_lse] = prompt.on_gpu(gpu, loads, &attention, log_skip);
            let what = format!("rows {first} to {}, {loads:?}", first + rows);
            assert_close(&what, ATTENTION, &got, &out);
            assert_close(&what, ATTENTION, &got_lse, &lse);
        }
    }
}

/// A key that is left out has less than a threshold of the largest weight at that time, and so of the weight of all.
#[test]
fn the_error_is_bounded_by_the_threshold() {
    let Some(gpu) = gpu() else { return };
    let attention = Attention { skip: true, ..Attention::default() };
    let prompt = Prompt::new(230, 70);
    let [exact, all] = prompt.on_cpu(None, 0.0);
    let most = prompt.layer.v.iter().filter(|v| v.is_finite()).fold(0.0_f32, |most, v| most.max(v.abs()));
    for (log_skip, loads) in [(-1.0, KeyLoads::Uniform), (1.0, KeyLoads::Uniform), (4.0, KeyLoads::Uniform)] {
        let [out, lse] = prompt.on_gpu(gpu, loads, &attention, log_skip);
        let shares = dropped(&all, &lse);
        let dim = SHAPE.head_dim as usize;
        for (row, share) in shares.iter().enumerate() {
            // Of all keys, n, each has less than e^log_skip / n of the largest weight.
            let bound = f64::from(log_skip).exp();
            assert!(*share <= bound / (1.0 + bound) + 1e-4, "row {row}: {share} of the weight is left out");
            let (out, exact) = (&out[row * dim..][..dim], &exact[row * dim..][..dim]);
            for (out, exact) in out.iter().zip(exact) {
                let error = f64::from(out - exact).abs();
                let bound = 2.0 * f64::from(most) * share.max(0.0) + 1e-4;
                assert!(error <= bound, "row {row}: {out}, not {exact}, {share} of the weight is left out");
            }
        }
    }
}

#[test]
fn a_threshold_of_nothing_leaves_nothing_out() {
    let Some(gpu) = gpu() else { return };
    let prompt = Prompt::new(100, 90);
    for loads in loads(gpu) {
        let skip = prompt.on_gpu(gpu, loads, &Attention { skip: true, ..Attention::default() }, -100.0);
        let plain = prompt.on_gpu(gpu, loads, &Attention::default(), -100.0);
        // Rows of few keys: the threshold is above the largest weight there, and counts for nothing.
        let short = prompt.on_gpu(gpu, loads, &Attention { skip: true, ..Attention::default() }, 6.0);
        for (what, got) in [("a low threshold", skip), ("short rows", short)] {
            got.iter().zip(&plain).for_each(|(got, plain)| assert_bits(what, got, plain));
        }
    }
}
