//! `mla_decode` over one cache and over two, and its reduce pass, against the reference.

use super::device::{assert_bits, assert_close, dispatch, gpu};
use super::latent_slots::Slots;
use super::layer::{ATTENTION, queries};
use super::options::{AttentionInputs, Lists};
use attn_kernels::cpu;
use attn_kernels::cpu::Tolerance;
use attn_kernels::cpu::mla_decode::{LatentRow, attend};
use attn_kernels::gpu::{Buf, Gpu, Pass};
use attn_kernels::kernel::KvDtype;
use attn_kernels::kernel::attention::{Attention, Context};
use attn_kernels::kernel::mla_decode::{self, LatentShape, MlaDecodeParams, PARTITION};
use attn_kernels::kernel::paged_reduce::{self, PagedReduceParams};
use attn_kernels::profile::Registers;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::usual;

/// Sequences to decode, one row each, in a paged cache.
struct Mla {
    shape: LatentShape,
    num_heads: u32,
    slots: Slots,
    tables: Vec<u32>,
    /// `[row, length, table, first key]`
    rows: Vec<[u32; 4]>,
    /// Rows before the first of the dispatch.
    skipped: u32,
    q_stride: u32,
    q: Vec<f32>,
    asked: AttentionInputs,
    /// Keys of a dispatch, whole partitions; `u32::MAX` for all in one.
    num_keys: u32,
    /// Keys of a partition.
    partition: u32,
    registers: Registers,
}

impl Mla {
    fn new(shape: LatentShape, num_heads: u32, lens: &[u32], seed: u64) -> Self {
        let blocks = |len: u32| len.div_ceil(shape.block_size) as usize;
        let mut slots = Slots::new(lens.iter().map(|len| blocks(*len)).sum::<usize>() + 2, &shape, seed);
        let (mut tables, mut rows) = (Vec::new(), Vec::new());
        for (index, len) in (0..).zip(lens) {
            let table = tables.len();
            tables.extend(slots.free.drain(..blocks(*len)));
            let mut rng = StdRng::seed_from_u64(seed ^ u64::from(index) << 32);
            for token in 0..*len {
                let block = tables[table + (token / shape.block_size) as usize];
                slots.fill(&shape, (block * shape.block_size + token % shape.block_size) as usize, &mut rng);
            }
            let last = u32::try_from(lens.len()).unwrap() - 1;
            rows.push([last - index, *len, u32::try_from(table).unwrap(), 0]);
        }
        let width = num_heads * shape.width();
        let q_stride = width + 8;
        let q = queries(lens.len(), width as usize, q_stride as usize, seed);
        Self {
            shape,
            num_heads,
            slots,
            tables,
            rows,
            skipped: 0,
            q_stride,
            q,
            asked: AttentionInputs::default(),
            num_keys: u32::MAX,
            partition: PARTITION,
            registers: Registers::Many,
        }
    }

    fn in_partitions(self, partition: u32) -> Self {
        Self { partition, ..self }
    }

    /// Puts each selection block, or token, in the list of a row with `chance`.
    fn listed(mut self, context: Context, chance: f64, seed: u64) -> Self {
        let block = if let Context::Blocks(tokens) = context { tokens } else { 1 };
        self.asked.list(Lists::random(self.rows.iter().map(|row| row[1]), block, chance, seed));
        self.asked.attention.context = context;
        self
    }

    fn params(&self, max_partitions: u32) -> MlaDecodeParams {
        MlaDecodeParams {
            num_heads: self.num_heads,
            q_stride: self.q_stride,
            max_partitions,
            partition_size: self.partition,
            reduced: u32::from(max_partitions > 1 || self.num_keys < u32::MAX),
            scale: 1.0 / (self.shape.width() as f32).sqrt(),
            list_stride: self.asked.list_stride(),
            first_row: self.skipped,
            ..MlaDecodeParams::default()
        }
    }

    fn max_partitions(&self) -> u32 {
        self.rows.iter().map(|row| row[1].div_ceil(self.partition)).max().unwrap().max(1)
    }

    fn on_gpu(&self, gpu: &Gpu) -> Vec<f32> {
        let latents = self.slots.upload(gpu, &self.shape);
        let tables = gpu.upload("tables", &self.tables).unwrap();
        let lists = self.asked.upload(gpu).unwrap();
        let attention = &self.asked.attention;
        let variant = mla_decode::variant(&self.shape, self.num_heads, attention, self.registers);
        let params = self.params(self.max_partitions());
        self.dispatch(gpu, &variant, &[&latents, &tables], lists.as_slice(), params)
    }

    /// Runs `variant` with `inputs` before and `lists` after rows, partial and stats, and the reduce pass.
    fn dispatch(
        &self,
        gpu: &Gpu,
        variant: &attn_kernels::Variant,
        inputs: &[&Buf<u32>],
        lists: &[Buf<u32>],
        params: MlaDecodeParams,
    ) -> Vec<f32> {
        let latent = self.shape.latent as usize;
        let (count, heads) = (self.rows.len(), self.num_heads as usize);
        let most = params.max_partitions;
        let q = gpu.upload("q", &self.q).unwrap();
        let rows = gpu.upload("rows", &self.rows).unwrap();
        let nan = |n: usize| gpu.upload("nan", &vec![f32::NAN; n]).unwrap();
        let stats = gpu.upload("stats", &vec![[f32::NAN; 2]; count * heads * most as usize]).unwrap();
        let (partial, out) = (nan(count * heads * most as usize * latent), nan(count * heads * latent));
        let mut bindings = vec![(&q).into()];
        bindings.extend(inputs.iter().map(|buf| (*buf).into()));
        bindings.extend([(&rows).into(), (&partial).into(), (&stats).into()]);
        bindings.extend(lists.iter().map(Into::into));
        let mut pass = Pass::new("mla");
        let rows_count = u32::try_from(count).unwrap() - self.skipped;
        // The last part first: none needs what another left.
        for first_key in
            (0..most * self.partition).step_by(self.num_keys as usize).collect::<Vec<_>>().into_iter().rev()
        {
            let params = MlaDecodeParams { first_key, num_keys: self.num_keys, ..params };
            let grid = mla_decode::grid(&params, rows_count, self.registers);
            dispatch(gpu, &mut pass, variant, &params, &bindings, grid);
        }
        if params.reduced == 1 {
            let params = PagedReduceParams::from(&params);
            let mut bindings = vec![(&partial).into(), (&stats).into(), (&rows).into(), (&out).into()];
            bindings.extend(lists.iter().take(usize::from(self.asked.lists.is_some())).map(Into::into));
            let sinks = gpu.upload("sinks", self.asked.sinks().unwrap_or(&[0.0])).unwrap();
            bindings.extend(self.asked.attention.sinks.then_some((&sinks).into()));
            let variant = mla_decode::reduce_variant(gpu.profile(), &self.shape, &self.asked.attention);
            let grid = paged_reduce::grid(&params, rows_count);
            dispatch(gpu, &mut pass, &variant, &params, &bindings, grid);
        }
        let last = if params.reduced == 1 { &out } else { &partial };
        let read = pass.read(last, 0..out.len());
        gpu.submit(pass).unwrap().wait().unwrap().get(read)
    }

    /// The latents of each row in the order of attention.
    fn latents(&self) -> Vec<LatentRow<'_>> {
        let options = self.asked.options();
        let of = |(index, [row, len, table, first]): (usize, &[u32; 4])| {
            let keys = options.context(index, *len as usize);
            let begin = keys.partition_point(|key| *key < *first as usize);
            let slot = |key: usize| {
                let block = self.tables[*table as usize + key / self.shape.block_size as usize] as usize;
                block * self.shape.block_size as usize + key % self.shape.block_size as usize
            };
            let keys = keys.into_iter().map(|key| self.slots.latent(&self.shape, slot(key))).collect();
            LatentRow { row: *row as usize, keys, begin }
        };
        self.rows.iter().enumerate().map(of).collect()
    }

    /// Textbook attention of every row, with sinks.
    fn want(&self, rows: &[LatentRow<'_>], params: &MlaDecodeParams) -> Vec<f32> {
        let (heads, latent) = (self.num_heads as usize, self.shape.latent as usize);
        let mut out = vec![f32::NAN; rows.len() * heads * latent];
        for row in rows {
            for head in 0..heads {
                let q = &self.q[row.row * self.q_stride as usize..];
                let state = attend(&self.shape, params, q, head, &row.keys[row.begin.min(row.keys.len())..]);
                let lse = state.lse().max(f32::MIN);
                let share = self.asked.sinks().map_or(1.0, |s| 1.0 / (1.0 + (s[head] - lse).exp()));
                let to = &mut out[(row.row * heads + head) * latent..][..latent];
                to.iter_mut().zip(state.output()).for_each(|(to, x)| *to = x * share);
            }
        }
        out
    }

    fn check(&self, gpu: &Gpu) {
        let params = self.params(self.max_partitions());
        let rows = self.latents();
        let what = format!("{:?}, {} heads, {:?}", self.shape, self.num_heads, self.rows);
        assert_close(&what, tolerance(&self.shape), &self.on_gpu(gpu), &self.want(&rows, &params));
        if params.reduced == 0 {
            let heads = rows.len() * self.num_heads as usize;
            let mut out = vec![f32::NAN; heads * self.shape.latent as usize];
            let mut stats = vec![[f32::NAN; 2]; heads];
            cpu::mla_decode::mla_decode(&self.shape, &params, &self.q, &rows, &mut out, &mut stats);
            assert_close(&format!("reference, {what}"), ATTENTION, &out, &self.want(&rows, &params));
        }
    }
}

/// Codes become f16 on the way: products with their scales are rounded.
fn tolerance(shape: &LatentShape) -> Tolerance {
    match shape.dtype {
        KvDtype::F16 | KvDtype::F32 => ATTENTION,
        KvDtype::Fp8 | KvDtype::Int8 => Tolerance { abs: 2e-3, rel: 2e-3 },
    }
}

fn shape(latent: u32, rope: u32, block_size: u32, dtype: KvDtype) -> LatentShape {
    LatentShape { latent, rope, block_size, dtype, plain: 0 }
}

#[test]
fn lists_and_first_keys_bound_what_is_read() {
    let Some(gpu) = gpu() else { return };
    let shape = shape(64, 16, 16, KvDtype::F16);
    let lens = [1, 700, 513, 0, 2000];
    for (context, chance) in [(Context::Tokens, 0.3), (Context::Blocks(32), 0.2), (Context::Tokens, 0.0)] {
        let mut mla = Mla::new(shape, 16, &lens, 7).listed(context, chance, 8);
        mla.check(gpu);
        mla.rows.iter_mut().for_each(|row| row[3] = row[1] / 2);
        mla.check(gpu);
    }
    for partition in [PARTITION, 2 * PARTITION] {
        let mut mla = Mla::new(shape, 16, &lens, 9).in_partitions(partition);
        mla.rows.iter_mut().for_each(|row| row[3] = row[1].saturating_sub(130));
        mla.check(gpu);
    }
}

/// As a ring brings the keys, a chunk of them at a time.
#[test]
fn parts_of_the_keys_add_up_to_the_bits_of_all() {
    let Some(gpu) = gpu() else { return };
    for (lens, context) in
        [([5, 1300, 512], Context::Full), ([700, 0, 2000], Context::Tokens), ([3, 256, 90], Context::Full)]
    {
        let partition = if lens[0] == 700 { 2 * PARTITION } else { PARTITION };
        let mut mla = Mla::new(shape(64, 16, 16, KvDtype::F16), 8, &lens, 7).in_partitions(partition);
        if context == Context::Tokens {
            mla = mla.listed(context, 0.6, 8);
        }
        mla.rows[1][3] = mla.rows[1][1] / 2;
        let want = mla.on_gpu(gpu);
        for partitions in [1, 2, 3] {
            mla.num_keys = partitions * partition;
            assert_bits(&format!("{lens:?}, {partitions} partitions at a time"), &mla.on_gpu(gpu), &want);
        }
    }
}

#[test]
fn dispatches_may_begin_at_any_row() {
    let Some(gpu) = gpu() else { return };
    let lens = [5, 1300, 0, 512];
    let mut plain = Mla::new(shape(64, 16, 16, KvDtype::F16), 8, &lens, 14);
    let mut listed = Mla::new(plain.shape, 8, &lens, 14).listed(Context::Tokens, 0.4, 15);
    for mla in [&mut plain, &mut listed] {
        let all = mla.on_gpu(gpu);
        for skipped in 1..4 {
            mla.skipped = skipped;
            // The last sequence has the first row.
            let rows = ..(lens.len() - skipped as usize) * 8 * 64;
            assert_bits(&format!("rows from {skipped} on"), &mla.on_gpu(gpu)[rows], &all[rows]);
        }
    }
}

/// A window of raw tokens and compressed ones from another cache, under one softmax with a sink. What the paged test laid out
/// serves as the window's cache.
#[test]
fn two_caches_share_a_softmax() {
    let Some(gpu) = gpu() else { return };
    let shapes = [
        (shape(64, 8, 16, KvDtype::F32), 6),
        (LatentShape { plain: 8, ..shape(152, 0, 16, KvDtype::Fp8) }, 6),
        (LatentShape { plain: 64, ..shape(512, 0, 64, KvDtype::Fp8) }, 16),
        (shape(512, 0, 64, KvDtype::F16), 16),
    ];
    for &(shape, num_heads) in usual(2, &shapes) {
        let counts = [(1, 0), (128, 0), (128, 300), (0, 7), (0, 0), (77, 179), (3, 600)];
        let lens: Vec<u32> = counts.iter().map(|(window, compressed)| window + compressed).collect();
        let partition = if num_heads == 6 { 2 * PARTITION } else { PARTITION };
        let mut mla = Mla::new(shape, num_heads, &lens, 11).in_partitions(partition);
        mla.asked = AttentionInputs::new(Attention { sinks: true, ..Attention::default() }, num_heads, 2);
        let mut rng = StdRng::seed_from_u64(12);
        let mut compressed = Slots::new(64, &shape, 13);
        let (window_stride, compressed_stride) = (130, 605);
        let mut window_slots = vec![u32::MAX; lens.len() * window_stride];
        let mut compressed_slots = vec![u32::MAX; lens.len() * compressed_stride];
        let used: Vec<usize> = (0..mla.slots.values.len() / shape.width() as usize)
            .filter(|slot| !mla.slots.latent(&shape, *slot)[0].is_nan())
            .collect();
        for slot in (0..64 * shape.block_size as usize).filter(|slot| slot % 3 != 0) {
            compressed.fill(&shape, slot, &mut rng);
        }
        let mut picks = Vec::new();
        for (index, (window, far)) in counts.into_iter().enumerate() {
            let of_window: Vec<usize> = (0..window).map(|_| used[rng.random_range(0..used.len())]).collect();
            let of_far: Vec<usize> = (0..far).map(|_| 3 * rng.random_range(0..200) + 1).collect();
            let put = |to: &mut [u32], slots: &[usize]| {
                to.iter_mut().zip(slots).for_each(|(to, slot)| *to = u32::try_from(*slot).unwrap());
            };
            put(&mut window_slots[index * window_stride..], &of_window);
            put(&mut compressed_slots[index * compressed_stride..], &of_far);
            mla.rows[index] = [mla.rows[index][0], window + far, window, 0];
            picks.push((of_window, of_far));
        }
        let rows: Vec<LatentRow<'_>> = picks
            .iter()
            .zip(&mla.rows)
            .map(|((window, far), row)| {
                let window = window.iter().map(|slot| mla.slots.latent(&shape, *slot));
                let far = far.iter().map(|slot| compressed.latent(&shape, *slot));
                LatentRow { row: row[0] as usize, keys: window.chain(far).collect(), begin: 0 }
            })
            .collect();
        let params = MlaDecodeParams {
            reduced: 1,
            list_stride: u32::try_from(window_stride).unwrap(),
            compressed_stride: u32::try_from(compressed_stride).unwrap(),
            ..mla.params(lens.iter().max().unwrap().div_ceil(partition))
        };
        let caches = [mla.slots.upload(gpu, &shape), compressed.upload(gpu, &shape)];
        let lists = [window_slots, compressed_slots].map(|slots| gpu.upload("slots", &slots).unwrap());
        let want = mla.want(&rows, &params);
        for (registers, skipped) in [(Registers::Many, 0), (Registers::Few, 0), (Registers::Many, 3)] {
            (mla.registers, mla.skipped) = (registers, skipped);
            let variant = mla_decode::variant_of_two(&shape, num_heads, registers);
            let of_dispatch = MlaDecodeParams { first_row: skipped, ..params };
            let got = mla.dispatch(gpu, &variant, &[&caches[0], &caches[1]], &lists, of_dispatch);
            let of = ..(lens.len() - skipped as usize) * (num_heads * shape.latent) as usize;
            let what =
                format!("{shape:?}, {num_heads} heads, {registers:?} registers, from row {skipped} on");
            assert_close(&what, tolerance(&shape), &got[of], &want[of]);
        }
    }
}
