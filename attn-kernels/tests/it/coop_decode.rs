//! `paged_decode_coop` against `paged_decode` on the same adapter, both as trusted modules: cooperative loads cannot be
//! bounds-checked. Slots of the cache that hold no token are NaN, and so is what the kernels should overwrite.

use crate::adapter::gpu;
use attn_kernels::gpu::{Bound, Gpu, Pass};
use attn_kernels::kernel::attention::{Attention, Logit, Reach};
use attn_kernels::kernel::paged_decode::{self, Lanes, PagedDecodeParams};
use attn_kernels::kernel::paged_reduce::{self, PagedReduceParams};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use attn_kernels::self_test::layer::{Layer, queries};
use attn_kernels::self_test::options::{AttentionInputs, Lists};

/// Sequences of these lengths, a row each.
struct Decode {
    layer: Layer,
    num_heads: u32,
    lens: Vec<u32>,
    /// Keys of a partition.
    partition: u32,
    q: Vec<f32>,
    asked: AttentionInputs,
}

const LENS: [u32; 9] = [1, 15, 16, 17, 0, 300, 33, 1030, 513];

impl Decode {
    /// Queries are `loud` times larger.
    fn new(shape: KvShape, group: u32, partition: u32, loud: f32) -> Self {
        let num_heads = shape.num_kv_heads * group;
        let width = (num_heads * shape.head_dim) as usize;
        let mut q = queries(LENS.len(), width, width, 3);
        q.iter_mut().for_each(|x| *x *= loud);
        let layer = Layer::new(shape, &LENS, 3);
        Self { layer, num_heads, lens: LENS.into(), partition, q, asked: AttentionInputs::default() }
    }

    /// Sets `attention`; blocks that no key is seen of are taken away.
    fn asking(mut self, attention: Attention) -> Self {
        self.asked = AttentionInputs::new(attention, self.num_heads, 8);
        for (index, len) in self.lens.clone().iter().enumerate() {
            self.layer.recycle(index, first_key(attention, *len));
        }
        self
    }

    /// Puts each selection block of `block` tokens in a list with `chance`.
    fn listed(mut self, block: u32, chance: f64) -> Self {
        let heads = self.layer.shape.num_kv_heads as usize;
        let lens = self.lens.iter().flat_map(|len| std::iter::repeat_n(*len, heads));
        self.asked.list(Lists::random(lens, block, chance, 7));
        self
    }

    /// Outputs of the rows of `sequences`, `[rows, num_heads, head_dim]`, in two dispatches where `halves`.
    fn run(&self, gpu: &Gpu, lanes: Lanes, sequences: &[usize], halves: bool) -> Vec<f32> {
        let (shape, heads, attention) = (&self.layer.shape, self.num_heads, &self.asked.attention);
        let count = |n: usize| u32::try_from(n).unwrap();
        let rows: Vec<[u32; 4]> = sequences
            .iter()
            .map(|&i| [count(i), self.lens[i], self.layer.table_of[i], first_key(*attention, self.lens[i])])
            .collect();
        let longest = self.lens.iter().copied().max().unwrap();
        let max_partitions = paged_decode::partitions(self.partition, 0, longest);
        let reduced = max_partitions > 1 || attention.sinks;
        let params = PagedDecodeParams {
            num_heads: heads,
            num_kv_heads: shape.num_kv_heads,
            q_stride: heads * shape.head_dim,
            max_partitions,
            partition_size: self.partition,
            scale: 1.0 / (shape.head_dim as f32).sqrt(),
            reduced: reduced.into(),
            list_stride: self.asked.list_stride(),
            softcap: self.asked.softcap,
            k_scale: if shape.dtype == KvDtype::Fp8 { 0.5 } else { 1.0 },
            v_scale: if shape.dtype == KvDtype::Fp8 { 2.0 } else { 1.0 },
            ..PagedDecodeParams::default()
        };
        let stats_len = rows.len() * (heads * max_partitions) as usize;
        let out_len = self.lens.len() * (heads * shape.head_dim) as usize;
        let [k, v] = self.layer.upload(gpu).unwrap();
        let q = gpu.upload("q", &self.q).unwrap();
        let tables = gpu.upload("tables", &self.layer.tables).unwrap();
        let row_buf = gpu.upload("rows", &rows).unwrap();
        let partial = (stats_len * shape.head_dim as usize).max(out_len);
        let partial = gpu.upload("partial", &vec![f32::NAN; partial]).unwrap();
        let stats = gpu.upload("stats", &vec![[f32::NAN; 2]; stats_len]).unwrap();
        let out = gpu.upload("out", &vec![f32::NAN; out_len]).unwrap();
        let sinks = gpu.upload("sinks", self.asked.sinks().unwrap_or(&[0.0])).unwrap();
        let extra = self.asked.upload(gpu).unwrap();
        let mut bindings: Vec<Bound> = vec![(&q).into(), (&k).into(), (&v).into()];
        bindings.extend([(&tables).into(), (&row_buf).into(), (&partial).into(), (&stats).into()]);
        bindings.extend(extra.as_ref().map(Into::into));

        let mut pass = Pass::new("decode");
        let pipeline = gpu.pipeline(&paged_decode::variant(shape, heads, lanes, attention)).unwrap();
        let half = max_partitions.div_ceil(2) * self.partition;
        let ranges = if halves { vec![(0, half), (half, half)] } else { vec![(0, u32::MAX)] };
        for (first_key, num_keys) in ranges {
            let params = PagedDecodeParams { first_key, num_keys, ..params };
            let grid = paged_decode::grid(&params, shape, lanes, count(rows.len()));
            pass.dispatch_bytes(&pipeline, bytemuck::bytes_of(&params), &bindings, grid);
        }
        if reduced {
            let mut bindings = vec![(&partial).into(), (&stats).into(), (&row_buf).into(), (&out).into()];
            bindings.extend(extra.as_ref().filter(|_| self.asked.lists.is_some()).map(Into::into));
            bindings.extend(attention.sinks.then_some((&sinks).into()));
            let pipeline = gpu.pipeline(&paged_reduce::best(gpu.profile(), shape, attention)).unwrap();
            let params = PagedReduceParams::from(&params);
            let grid = paged_reduce::grid(&params, count(rows.len()));
            pass.dispatch_bytes(&pipeline, bytemuck::bytes_of(&params), &bindings, grid);
        }
        let read = pass.read(if reduced { &out } else { &partial }, 0..out_len);
        gpu.submit(pass).unwrap().wait().unwrap().get(read)
    }

    fn all(&self, gpu: &Gpu, lanes: Lanes) -> Vec<f32> {
        self.run(gpu, lanes, &(0..self.lens.len()).collect::<Vec<_>>(), false)
    }

    /// Elements of a row of outputs.
    fn width(&self) -> usize {
        (self.num_heads * self.layer.shape.head_dim) as usize
    }

    /// Compares each row with that of `paged_decode` through workgroup memory.
    fn check(&self, gpu: &Gpu) {
        let (want, got) = (self.all(gpu, Lanes::Workgroup), self.all(gpu, Lanes::Matrices));
        for (index, (want, got)) in want.chunks(self.width()).zip(got.chunks(self.width())).enumerate() {
            let square = |x: f32| f64::from(x) * f64::from(x);
            let error: f64 = want.iter().zip(got).map(|(w, g)| square(w - g)).sum();
            let norm: f64 = want.iter().map(|w| square(*w)).sum();
            // Zero for a row without keys.
            assert!(
                error.sqrt() <= 4e-3 * norm.sqrt(),
                "{:?}, {} heads, partitions of {}, {:?}, {} keys: error {:e}, norm {:e}",
                self.layer.shape,
                self.num_heads,
                self.partition,
                self.asked.attention,
                self.lens[index],
                error.sqrt(),
                norm.sqrt()
            );
        }
    }
}

fn first_key(attention: Attention, len: u32) -> u32 {
    len.checked_sub(1).map_or(0, |position| attention.mask.first_key(position))
}

fn shape(num_kv_heads: u32, head_dim: u32, block_size: u32, dtype: KvDtype) -> KvShape {
    KvShape { num_kv_heads, head_dim, block_size, dtype, layout: KvLayout::Native }
}

const DTYPES: [KvDtype; 3] = [KvDtype::F16, KvDtype::Fp8, KvDtype::Int8];

/// Loud queries have logits that grow by far more than a segment bears, again and again.
#[test]
fn agrees_with_paged_decode() {
    let Some(gpu) = gpu() else { return };
    for dtype in DTYPES {
        for (num_kv_heads, head_dim, block_size, group) in [
            (2, 128, 16, 8),
            (1, 64, 32, 3),
            (3, 32, 128, 1),
            (2, 64, 16, 16),
            (1, 128, 64, 20),
            (1, 32, 16, 9),
        ] {
            let shape = shape(num_kv_heads, head_dim, block_size, dtype);
            let partitions =
                [(16, 0.5), (32, 8.0), (64, 0.5), (256, 1.0), (2048, 1.0), (1 << 31, 8.0), (64, 8.0)];
            for (partition, loud) in partitions {
                Decode::new(shape, group, partition, loud).check(&gpu);
            }
        }
    }
}

#[test]
fn listed_blocks_masks_and_logits_are_those_of_paged_decode() {
    let Some(gpu) = gpu() else { return };
    let of = |mask, logit, sinks| Attention { mask, logit, sinks, ..Attention::default() };
    for dtype in DTYPES {
        let decode = |partition, loud| Decode::new(shape(2, 64, 16, dtype), 6, partition, loud);
        for (block, chance) in [(16, 0.3), (64, 0.5), (128, 0.0)] {
            decode(256, 4.0).listed(block, chance).check(&gpu);
            decode(2048, 0.5).listed(block, chance).check(&gpu);
        }
        for attention in [
            of(Reach::Window(128), Logit::Plain, false),
            of(Reach::Window(17), Logit::Plain, true),
            of(Reach::Chunk(96), Logit::Plain, false),
            of(Reach::Full, Logit::Softcap, true),
            of(Reach::Full, Logit::Alibi, false),
        ] {
            decode(256, 4.0).asking(attention).check(&gpu);
            decode(2048, 1.0).asking(attention).check(&gpu);
        }
        let alibi = of(Reach::Full, Logit::Alibi, false);
        decode(256, 1.0).asking(alibi).listed(32, 0.5).check(&gpu);
    }
}

fn assert_bits(what: &str, got: &[f32], want: &[f32]) {
    let differs = got.iter().zip(want).position(|(got, want)| got.to_bits() != want.to_bits());
    assert_eq!((got.len(), differs), (want.len(), None), "{what}");
}

#[test]
fn keys_in_parts_and_in_blocks_of_any_size_give_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    for dtype in DTYPES {
        let decode = || Decode::new(shape(2, 64, 16, dtype), 8, 128, 4.0);
        let want = decode().all(&gpu, Lanes::Matrices);
        let order: Vec<usize> = (0..LENS.len()).rev().collect();
        let parts = decode().run(&gpu, Lanes::Matrices, &order, true);
        assert_bits(&format!("{dtype:?}, in two dispatches"), &parts, &want);
        let wide = Decode::new(shape(2, 64, 128, dtype), 8, 128, 4.0).all(&gpu, Lanes::Matrices);
        assert_bits(&format!("{dtype:?}, blocks of 128"), &wide, &want);
    }
}
