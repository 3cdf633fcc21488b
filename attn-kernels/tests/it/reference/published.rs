//! Caches whose values have their tokens last: what is written, gathered and attended is that of the engine's layout.

use super::by_hand::dispatch;
use super::decode::lanes_of;
use super::device::{assert_bits, gpu};
use super::layer::{cut, queries};
use attn_kernels::Variant;
use attn_kernels::gpu::{Bound, Buf, Gpu, Pass};
use attn_kernels::kernel::attention::{Attention, Context};
use attn_kernels::kernel::cache_write::{self, CacheWriteParams};
use attn_kernels::kernel::gather_cache::{self, GatherCacheParams};
use attn_kernels::kernel::paged_decode::{self, Lanes, PagedDecodeParams};
use attn_kernels::kernel::paged_prefill::{self, KeyLoads, PagedPrefillParams, TILE_ROWS, Tile};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape, block_digest};
use attn_kernels::self_test::layer::cache_words;

use crate::usual;

const TABLE: [u32; 3] = [2, 0, 3];
const BLOCKS: u32 = 4;

/// A sequence in a cache of either layout.
struct Layout<'a> {
    gpu: &'a Gpu,
    shape: KvShape,
    num_heads: u32,
    len: u32,
    k: Buf<u32>,
    v: Buf<u32>,
}

impl<'a> Layout<'a> {
    /// A cache of which every slot is NaN.
    fn new(gpu: &'a Gpu, shape: KvShape, num_heads: u32) -> Self {
        let nan = vec![f32::NAN; BLOCKS as usize * shape.block_elements()];
        let nan = cache_words(&shape, KvShape::k_index, &nan);
        let [k, v] = ["k", "v"].map(|name| gpu.upload(name, &nan).unwrap());
        Self { gpu, shape, num_heads, len: 2 * shape.block_size + 3, k, v }
    }

    fn run<P: bytemuck::Pod>(&self, variant: Variant, params: &P, bindings: &[Bound]) {
        let mut pass = Pass::new("published");
        dispatch(self.gpu, &mut pass, &variant, params, bindings);
        self.gpu.submit(pass).unwrap().wait().unwrap();
    }

    /// Writes the tokens; the words of both buffers.
    fn write(&self) -> [Vec<u32>; 2] {
        let width = self.shape.num_kv_heads * self.shape.head_dim;
        let params = CacheWriteParams {
            rows: self.len,
            num_kv_heads: self.shape.num_kv_heads,
            row_stride: 2 * width,
            k_start: 0,
            v_start: width,
            k_scale: 1.0,
            v_scale: 1.0,
        };
        let size = self.shape.block_size;
        let slot = |token: u32| (TABLE[(token / size) as usize] * size + token % size).cast_signed();
        let slots: Vec<i32> = (0..self.len).map(slot).collect();
        let rows = queries(self.len as usize, 2 * width as usize, 2 * width as usize, 1);
        let (kv, slots) = (self.gpu.upload("kv", &rows).unwrap(), self.gpu.upload("slots", &slots).unwrap());
        let bindings = [(&kv).into(), (&slots).into(), (&self.k).into(), (&self.v).into()];
        self.run(cache_write::variant(&self.shape), &params, &bindings);
        [&self.k, &self.v].map(|buf| self.gpu.read(buf, 0..buf.len()).unwrap())
    }

    /// Keys and values of the sequence, side by side.
    fn gather(&self) -> Vec<f32> {
        let params = GatherCacheParams {
            num_kv_heads: self.shape.num_kv_heads,
            list_stride: 0,
            k_scale: 1.0,
            v_scale: 1.0,
            max_keys: self.len,
            spans: 1,
        };
        let elements = (self.len * self.shape.num_kv_heads * self.shape.head_dim) as usize;
        let [k, v] = ["k_out", "v_out"].map(|name| self.gpu.buffer::<f32>(name, elements).unwrap());
        let spans = self.gpu.upload("spans", &[[0, self.len, 0, 0]]).unwrap();
        let table = self.gpu.upload("table", &TABLE).unwrap();
        let bindings: [Bound; 6] =
            [(&spans).into(), (&self.k).into(), (&self.v).into(), (&table).into(), (&k).into(), (&v).into()];
        self.run(gather_cache::variant(&self.shape, Context::Full), &params, &bindings);
        [k, v].map(|buf| self.gpu.read(&buf, 0..elements).unwrap()).concat()
    }

    /// One row, by lanes that share keys in this way.
    fn attend(&self, lanes: Lanes) -> Vec<f32> {
        let width = self.num_heads * self.shape.head_dim;
        let params = PagedDecodeParams {
            num_heads: self.num_heads,
            num_kv_heads: self.shape.num_kv_heads,
            q_stride: width,
            scale: 0.3,
            rows: 1,
            ..PagedDecodeParams::default()
        };
        let q = self.gpu.upload("q", &queries(1, width as usize, width as usize, 2)).unwrap();
        let table = self.gpu.upload("table", &TABLE).unwrap();
        let rows = self.gpu.upload("rows", &[[0, self.len, 0, 0]]).unwrap();
        let out = self.gpu.buffer::<f32>("out", width as usize).unwrap();
        let stats = self.gpu.buffer::<[f32; 2]>("stats", self.num_heads as usize).unwrap();
        let bindings: [Bound; 7] = [
            (&q).into(),
            (&self.k).into(),
            (&self.v).into(),
            (&table).into(),
            (&rows).into(),
            (&out).into(),
            (&stats).into(),
        ];
        let variant = paged_decode::variant(&self.shape, self.num_heads, lanes, &Attention::default());
        self.run(variant, &params, &bindings);
        self.gpu.read(&out, 0..out.len()).unwrap()
    }

    /// The last rows of the sequence, as one tile, and their log-sum-exps.
    fn prefill(&self, loads: KeyLoads) -> Vec<f32> {
        let rows = self.len.min(TILE_ROWS);
        let width = (self.num_heads * self.shape.head_dim) as usize;
        let tiles = cut(&[Tile::new(0..rows, self.len - rows, 0)], paged_prefill::tile_rows(loads));
        let params = PagedPrefillParams {
            num_heads: self.num_heads,
            num_kv_heads: self.shape.num_kv_heads,
            q_stride: self.num_heads * self.shape.head_dim,
            scale: 0.3,
            tiles: u32::try_from(tiles.len()).unwrap(),
            ..PagedPrefillParams::default()
        };
        let q = self.gpu.upload("q", &queries(rows as usize, width, width, 3)).unwrap();
        let (tables, tiles) =
            (self.gpu.upload("table", &TABLE).unwrap(), self.gpu.upload("tiles", &tiles).unwrap());
        let out = self.gpu.buffer::<f32>("out", rows as usize * width).unwrap();
        let lse = self.gpu.buffer::<f32>("lse", (rows * self.num_heads) as usize).unwrap();
        let bindings: [Bound; 7] = [
            (&q).into(),
            (&self.k).into(),
            (&self.v).into(),
            (&tables).into(),
            (&tiles).into(),
            (&out).into(),
            (&lse).into(),
        ];
        let variant = paged_prefill::variant(&self.shape, self.num_heads, loads, &Attention::default());
        self.run(variant, &params, &bindings);
        [out, lse].map(|buf| self.gpu.read(&buf, 0..buf.len()).unwrap()).concat()
    }
}

/// A V buffer in the order of the published layout; scales stay where they are.
fn transposed(shape: &KvShape, v: &[u32]) -> Vec<u32> {
    let (size, dim, element) =
        (shape.block_size as usize, shape.head_dim as usize, shape.dtype.bytes() as usize);
    let part = shape.block_bytes() / shape.num_kv_heads as usize;
    let parts = bytemuck::cast_slice::<u32, u8>(v).chunks_exact(part);
    let turned = parts.flat_map(|part| {
        let (codes, scales) = part.split_at(size * dim * element);
        let elements = (0..dim).flat_map(move |d| (0..size).map(move |offset| (offset * dim + d) * element));
        elements.flat_map(move |at| &codes[at..at + element]).chain(scales)
    });
    bytemuck::pod_collect_to_vec(&turned.copied().collect::<Vec<u8>>())
}

#[test]
fn either_layout_gives_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    // First the shapes of the self-test, whose kernels over the engine's layout it compiles too.
    let cases = [
        (2, 16, 16, 2, KvDtype::F16),
        (2, 16, 16, 2, KvDtype::Int8),
        (2, 24, 16, 2, KvDtype::F16),
        (1, 8, 4, 4, KvDtype::F32),
        (1, 16, 4, 3, KvDtype::Fp8),
        (2, 24, 32, 1, KvDtype::Int8),
        // Lanes share the rows of prefill.
        (1, 64, 16, 2, KvDtype::F16),
        (1, 128, 16, 1, KvDtype::F32),
    ];
    for &(num_kv_heads, head_dim, block_size, group, dtype) in usual(2, &cases) {
        let shape = KvShape { num_kv_heads, head_dim, block_size, dtype, layout: KvLayout::Native };
        let [own, other] = [KvLayout::Native, KvLayout::V0]
            .map(|layout| Layout::new(gpu, KvShape { layout, ..shape }, num_kv_heads * group));
        let ([k, v], [k_published, v_published]) = (own.write(), other.write());
        assert_eq!(k, k_published, "{shape:?}");
        assert_eq!(v_published, transposed(&shape, &v), "{shape:?}");
        let results = |layout: &Layout<'_>| {
            let mut all = vec![layout.gather(), layout.prefill(KeyLoads::Uniform)];
            all.extend(lanes_of(gpu, &shape).into_iter().map(|lanes| layout.attend(lanes)));
            all
        };
        let outputs = ["gathered", "prefilled", "attended", "attended by subgroups"]
            .into_iter()
            .zip(results(&own))
            .zip(results(&other));
        for ((what, want), got) in outputs {
            assert!(want.iter().all(|x| x.is_finite()), "{what}, {shape:?}");
            assert_bits(&format!("{what}, {shape:?}"), &got, &want);
        }
    }
}

#[test]
fn lanes_that_would_broadcast_neighbours_read_for_themselves() {
    let Some(gpu) = gpu() else { return };
    let shape = KvShape {
        num_kv_heads: 1,
        head_dim: 16,
        block_size: 8,
        dtype: KvDtype::F16,
        layout: KvLayout::Native,
    };
    let layout = Layout::new(gpu, KvShape { layout: KvLayout::V0, ..shape }, 4);
    layout.write();
    assert_bits("prefill", &layout.prefill(KeyLoads::Broadcast), &layout.prefill(KeyLoads::Uniform));
}

#[test]
#[should_panic(expected = "kernel block_digest: slot k has nothing for (V0, F16)")]
fn other_kernels_are_refused() {
    let shape =
        KvShape { num_kv_heads: 1, head_dim: 64, block_size: 16, dtype: KvDtype::F16, layout: KvLayout::V0 };
    let _ = block_digest::variant(&shape, block_digest::Digest::Mean);
}
