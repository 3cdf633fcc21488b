//! Caches whose values have their tokens last: what is written, gathered and attended is that of the engine's layout.

use crate::device::{assert_bits, dispatch, gpu};
use crate::layer::queries;
use attn_kernels::Variant;
use attn_kernels::gpu::{Bind, Buf, Gpu, Pass};
use attn_kernels::kernel::attention::{Attention, Context};
use attn_kernels::kernel::cache_write::{self, CacheWriteParams};
use attn_kernels::kernel::gather_cache::{self, GatherCacheParams};
use attn_kernels::kernel::paged_decode::{self, PagedDecodeParams};
use attn_kernels::kernel::{KvDtype, KvShape, paged_prefill, published};
use attn_kernels::self_test::layer::{values, values_published, words};

const TABLE: [u32; 3] = [2, 0, 3];
const BLOCKS: u32 = 4;

/// A sequence in a cache of either layout.
struct Layout<'a> {
    gpu: &'a Gpu,
    shape: KvShape,
    num_heads: u32,
    len: u32,
    is_published: bool,
    k: Buf<u32>,
    v: Buf<u32>,
}

impl<'a> Layout<'a> {
    /// A cache of which every slot is NaN.
    fn new(gpu: &'a Gpu, shape: KvShape, num_heads: u32, is_published: bool) -> Self {
        let nan = words(shape.dtype, &vec![f32::NAN; BLOCKS as usize * shape.block_elements()]);
        let [k, v] = ["k", "v"].map(|name| gpu.upload(name, &nan).unwrap());
        Self { gpu, shape, num_heads, len: 2 * shape.block_size + 3, is_published, k, v }
    }

    fn variant(&self, variant: Variant) -> Variant {
        if self.is_published { published(variant).unwrap() } else { variant }
    }

    fn run<P: bytemuck::Pod>(&self, variant: Variant, params: &P, bindings: &[Bind], grid: [u32; 3]) {
        let mut pass = Pass::new("published");
        dispatch(self.gpu, &mut pass, &self.variant(variant), params, bindings, grid);
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
            pad0: 0,
        };
        let size = self.shape.block_size;
        let slot = |token: u32| (TABLE[(token / size) as usize] * size + token % size).cast_signed();
        let slots: Vec<i32> = (0..self.len).map(slot).collect();
        let rows = queries(self.len as usize, 2 * width as usize, 2 * width as usize, 1);
        let (kv, slots) = (self.gpu.upload("kv", &rows).unwrap(), self.gpu.upload("slots", &slots).unwrap());
        let bindings = [(&kv).into(), (&slots).into(), (&self.k).into(), (&self.v).into()];
        let grid = cache_write::grid(&self.shape, self.len);
        self.run(cache_write::variant(&self.shape), &params, &bindings, grid);
        [&self.k, &self.v].map(|buf| self.gpu.read(buf, 0..buf.len()).unwrap())
    }

    /// Keys and values of the sequence, side by side.
    fn gather(&self) -> Vec<f32> {
        let params = GatherCacheParams {
            num_kv_heads: self.shape.num_kv_heads,
            list_stride: 0,
            k_scale: 1.0,
            v_scale: 1.0,
            most_keys: self.len,
            pad0: 0,
            pad1: 0,
            pad2: 0,
        };
        let elements = (self.len * self.shape.num_kv_heads * self.shape.head_dim) as usize;
        let [k, v] = ["k_out", "v_out"].map(|name| self.gpu.buffer::<f32>(name, elements).unwrap());
        let spans = self.gpu.upload("spans", &[[0, self.len, 0, 0]]).unwrap();
        let table = self.gpu.upload("table", &TABLE).unwrap();
        let bindings: [Bind; 6] =
            [(&spans).into(), (&self.k).into(), (&self.v).into(), (&table).into(), (&k).into(), (&v).into()];
        let grid = gather_cache::grid(&self.shape, &params, 1);
        self.run(gather_cache::variant(&self.shape, Context::Full), &params, &bindings, grid);
        [k, v].map(|buf| self.gpu.read(&buf, 0..elements).unwrap()).concat()
    }

    fn attend(&self) -> Vec<f32> {
        let width = self.num_heads * self.shape.head_dim;
        let params = PagedDecodeParams {
            num_heads: self.num_heads,
            num_kv_heads: self.shape.num_kv_heads,
            q_stride: width,
            max_partitions: 1,
            scale: 0.3,
            reduced: 0,
            list_stride: 0,
            first_list: 0,
            first_key: 0,
            num_keys: u32::MAX,
            softcap: 0.0,
            k_scale: 1.0,
            v_scale: 1.0,
            pad0: 0,
            pad1: 0,
            pad2: 0,
        };
        let q = self.gpu.upload("q", &queries(1, width as usize, width as usize, 2)).unwrap();
        let table = self.gpu.upload("table", &TABLE).unwrap();
        let rows = self.gpu.upload("rows", &[[0, self.len, 0, 0]]).unwrap();
        let out = self.gpu.buffer::<f32>("out", width as usize).unwrap();
        let stats = self.gpu.buffer::<[f32; 2]>("stats", self.num_heads as usize).unwrap();
        let bindings: [Bind; 7] = [
            (&q).into(),
            (&self.k).into(),
            (&self.v).into(),
            (&table).into(),
            (&rows).into(),
            (&out).into(),
            (&stats).into(),
        ];
        let variant = paged_decode::variant(&self.shape, self.num_heads, &Attention::default());
        let grid = paged_decode::grid(&self.shape, self.num_heads, 1, 1);
        self.run(variant, &params, &bindings, grid);
        self.gpu.read(&out, 0..out.len()).unwrap()
    }
}

#[test]
fn either_layout_gives_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    for (num_kv_heads, head_dim, block_size, group, dtype) in [
        (2, 24, 16, 2, KvDtype::F16),
        (1, 64, 4, 3, KvDtype::F16),
        (2, 40, 32, 1, KvDtype::F32),
        (1, 8, 4, 4, KvDtype::F32),
    ] {
        let shape = KvShape { num_kv_heads, head_dim, block_size, dtype };
        let [own, other] =
            [false, true].map(|is_published| Layout::new(gpu, shape, num_kv_heads * group, is_published));
        let ([k, v], [k_published, v_published]) = (own.write(), other.write());
        assert_eq!(k, k_published, "{shape:?}");
        let want = words(dtype, &values_published(&shape, &values(dtype, &v)));
        assert_eq!(v_published, want, "{shape:?}");
        let gathered = own.gather();
        assert!(gathered.iter().all(|x| x.is_finite()));
        assert_bits(&format!("gathered, {shape:?}"), &other.gather(), &gathered);
        let attended = own.attend();
        assert!(attended.iter().all(|x| x.is_finite()));
        assert_bits(&format!("attended, {shape:?}"), &other.attend(), &attended);
    }
}

#[test]
fn other_kernels_and_codes_are_refused() {
    let shape = KvShape { num_kv_heads: 1, head_dim: 64, block_size: 16, dtype: KvDtype::F16 };
    let loads = paged_prefill::KeyLoads::Uniform;
    let prefill = paged_prefill::variant(&shape, 1, loads, &Attention::default());
    let codes = cache_write::variant(&KvShape { dtype: KvDtype::Fp8, ..shape });
    let said = |variant| published(variant).unwrap_err().to_string();
    assert_eq!(
        said(prefill),
        "paged_prefill: no variant over this cache reads values of the published layout"
    );
    assert_eq!(said(codes), "cache_write: no variant over this cache reads values of the published layout");
}
