//! `masked_attention` as dense attention, and what it refuses.

use super::by_hand::{assert_close, dispatch};
use super::device::gpu;
use super::layer::{ATTENTION, Layer, queries, shape_of};
use super::options::Lists;
use attn_kernels::cpu::attention::attend;
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::kernel::KvDtype;
use attn_kernels::kernel::masked_attention::{self, MaskedAttentionParams, MaskedRow};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Rows of one sequence, each with a mask and a list of its own.
struct Masked {
    layer: Layer,
    params: MaskedAttentionParams,
    rows: Vec<MaskedRow>,
    lists: Lists,
    masks: Vec<u32>,
    q: Vec<f32>,
}

impl Masked {
    fn new(layer: Layer, num_heads: u32, lens: &[u32], lists: Lists, seed: u64) -> Self {
        let count = u32::try_from(lens.len()).unwrap();
        let longest = lens.iter().max().map_or(0, |len| *len);
        let width = num_heads * layer.shape.head_dim;
        let params = MaskedAttentionParams {
            num_heads,
            num_kv_heads: layer.shape.num_kv_heads,
            q_stride: width,
            list_stride: lists.stride,
            mask_stride: longest.div_ceil(32).max(1),
            rows: count,
            scale: 1.0 / (layer.shape.head_dim as f32).sqrt(),
            k_scale: 1.0,
            v_scale: 1.0,
        };
        let row = |(i, len): (u32, &u32)| MaskedRow {
            q: count - 1 - i,
            out: i,
            mask: i,
            list: i,
            len: *len,
            table: layer.table_of[0],
        };
        let rows = (0..).zip(lens).map(row).collect();
        let mut rng = StdRng::seed_from_u64(seed);
        let masks = (0..count * params.mask_stride).map(|_| rng.random()).collect();
        let q = queries(lens.len(), width as usize, width as usize, seed);
        Self { layer, params, rows, lists, masks, q }
    }

    fn on_gpu(&self, gpu: &Gpu) -> Vec<f32> {
        let (shape, block) = (&self.layer.shape, self.lists.block);
        let [k, v] = self.layer.upload(gpu).unwrap();
        let upload = |words: &[u32]| gpu.upload("list", words).unwrap();
        let q = gpu.upload("q", &self.q).unwrap();
        let [tables, masks, selected] =
            [&self.layer.tables, &self.masks, &self.lists.lists].map(|list| upload(list));
        let rows = gpu.upload("rows", &self.rows).unwrap();
        let out = gpu.upload("out", &vec![f32::NAN; self.q.len()]).unwrap();
        let bindings = [
            (&q).into(),
            (&k).into(),
            (&v).into(),
            (&tables).into(),
            (&rows).into(),
            (&masks).into(),
            (&out).into(),
            (&selected).into(),
        ];
        let mut pass = Pass::new("masked");
        let variant = masked_attention::variant(shape, block);
        dispatch(gpu, &mut pass, &variant, &self.params, &bindings);
        let read = pass.read(&out, 0..out.len());
        gpu.submit(pass).unwrap().wait().unwrap().get(read)
    }
}

/// All blocks, and a mask of the keys up to each row's position.
#[test]
fn all_blocks_under_a_causal_mask_are_dense_attention() {
    let Some(gpu) = gpu() else { return };
    let (shape, num_heads) = shape_of(2, KvDtype::F16);
    let lens = [200; 5];
    let lists = Lists::random(lens.into_iter(), 32, 1.0, 1);
    let mut masked = Masked::new(Layer::new(shape, &[200], 3), num_heads, &lens, lists, 1);
    let position = |row: usize| row * 45 + 7;
    let stride = masked.params.mask_stride as usize;
    for row in 0..lens.len() {
        for key in 0..200 {
            let word = &mut masked.masks[row * stride + key / 32];
            *word = *word & !(1 << (key % 32)) | u32::from(key <= position(row)) << (key % 32);
        }
    }
    let (dim, group) = (shape.head_dim as usize, (num_heads / shape.num_kv_heads) as usize);
    let mut want = Vec::new();
    for row in 0..lens.len() {
        for head in 0..num_heads as usize {
            let q = &masked.q[((lens.len() - 1 - row) * num_heads as usize + head) * dim..][..dim];
            let logit = |product, _| f64::from(masked.params.scale) * product;
            let keys = 0..=position(row);
            let state = attend(&masked.layer.kv(), &masked.layer.tables, head / group, q, keys, logit);
            want.extend(state.output());
        }
    }
    assert_close("causal", ATTENTION, &masked.on_gpu(gpu), &want);
}
