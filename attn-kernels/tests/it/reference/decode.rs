//! Sequences that `paged_decode` and `paged_reduce` decode, on the device and by their references.

use super::device::{assert_close, dispatch};
use super::layer::{ATTENTION, Layer, queries};
use super::options::{AttentionInputs, Lists};
use attn_kernels::Level;
use attn_kernels::cpu;
use attn_kernels::cpu::attention::attend;
use attn_kernels::gpu::{Bound, Gpu, Pass};
use attn_kernels::kernel::attention::{Attention, Context};
use attn_kernels::kernel::paged_decode::{self, Lanes, PARTITION, PagedDecodeParams};
use attn_kernels::kernel::paged_decode_subgroup::{FORMS, serves};
use attn_kernels::kernel::paged_reduce::{self, PagedReduceParams};
use attn_kernels::kernel::{KvDtype, KvShape};
use attn_kernels::launch::{Attend, AttendError, AttendRow};

/// Sequences to decode, one row each; rows of queries are in reverse order of sequences.
pub(crate) struct Decode {
    pub(crate) layer: Layer,
    pub(crate) num_heads: u32,
    q_stride: u32,
    pub(crate) lens: Vec<u32>,
    /// First key that each sequence sees.
    pub(crate) first: Vec<u32>,
    /// Keys of a partition.
    partition: u32,
    /// Rows before the first of the dispatch.
    skipped: u32,
    /// Lists are of each sequence and KV head, in order of sequences.
    asked: AttentionInputs,
    q: Vec<f32>,
}

/// Moves half of the factor on scores to the scale of keys.
fn scaled(shape: &KvShape, params: PagedDecodeParams) -> PagedDecodeParams {
    match shape.dtype {
        KvDtype::Fp8 => PagedDecodeParams { scale: 2.0 * params.scale, k_scale: 0.5, ..params },
        _ => params,
    }
}

/// The ways to share keys that `gpu` has for a cache of `shape`, the fastest or not.
pub(crate) fn lanes_of(gpu: &Gpu, shape: &KvShape) -> Vec<Lanes> {
    let size = gpu.profile().subgroup_size().filter(|_| gpu.level() >= Level::Subgroup);
    let runs = |form: &Lanes| match *form {
        Lanes::Subgroup(lanes) | Lanes::Alone(lanes) => size == Some(lanes) && serves(shape, *form),
        Lanes::Workgroup | Lanes::Matrices => false,
    };
    std::iter::once(Lanes::Workgroup).chain(FORMS.into_iter().filter(runs)).collect()
}

/// Outputs of the kernels.
pub(crate) struct Decoded {
    partial: Vec<f32>,
    stats: Vec<[f32; 2]>,
    /// `[rows, num_heads, head_dim]`
    pub(crate) out: Vec<f32>,
}

impl Decode {
    pub(crate) fn new(shape: KvShape, num_heads: u32, lens: &[u32], gap: u32, seed: u64) -> Self {
        let width = num_heads * shape.head_dim;
        let q_stride = width + gap;
        let q = queries(lens.len(), width as usize, q_stride as usize, seed);
        let layer = Layer::new(shape, lens, seed);
        let (lens, first) = (lens.to_vec(), vec![0; lens.len()]);
        Self {
            layer,
            num_heads,
            q_stride,
            lens,
            first,
            partition: PARTITION,
            skipped: 0,
            asked: AttentionInputs::default(),
            q,
        }
    }

    /// Sets partitions of `partition` keys.
    pub(crate) fn in_partitions(self, partition: u32) -> Self {
        Self { partition, ..self }
    }

    /// Leaves the first rows, and their lists, to another dispatch.
    pub(crate) fn skipping(self, skipped: u32) -> Self {
        Self { skipped, ..self }
    }

    /// Puts each selection block of `block` tokens in the lists with `chance`.
    pub(crate) fn listed(mut self, block: u32, chance: f64, seed: u64) -> Self {
        let heads = self.layer.shape.num_kv_heads as usize;
        let lens = self.lens.iter().flat_map(|len| std::iter::repeat_n(*len, heads));
        self.asked.list(Lists::random(lens, block, chance, seed));
        self
    }

    /// Sets `attention`; blocks that no key is seen of are taken away.
    pub(crate) fn asking(mut self, attention: Attention, seed: u64) -> Self {
        self.asked = AttentionInputs::new(attention, self.num_heads, seed);
        for index in 0..self.lens.len() {
            self.first[index] = self.lens[index].checked_sub(1).map_or(0, |p| attention.mask.first_key(p));
            self.layer.recycle(index, self.first[index]);
        }
        self
    }

    pub(crate) fn attention(&self) -> &Attention {
        &self.asked.attention
    }

    fn reduced(&self, max_partitions: u32) -> bool {
        max_partitions > 1 || self.attention().sinks
    }

    /// `[row, length, table, first key]` of each sequence in `order`.
    fn rows(&self, order: &[usize]) -> Vec<[u32; 4]> {
        let last = self.lens.len() - 1;
        let row = |&i: &usize| {
            [u32::try_from(last - i).unwrap(), self.lens[i], self.layer.table_of[i], self.first[i]]
        };
        order.iter().map(row).collect()
    }

    fn params(&self, max_partitions: u32, keys: (u32, u32)) -> PagedDecodeParams {
        PagedDecodeParams {
            num_heads: self.num_heads,
            num_kv_heads: self.layer.shape.num_kv_heads,
            q_stride: self.q_stride,
            max_partitions,
            partition_size: self.partition,
            scale: 1.0 / (self.layer.shape.head_dim as f32).sqrt(),
            reduced: self.reduced(max_partitions).into(),
            list_stride: self.asked.list_stride(),
            first_row: self.skipped,
            first_key: keys.0,
            num_keys: keys.1,
            softcap: self.asked.softcap,
            ..PagedDecodeParams::default()
        }
    }

    fn reduce_params(&self, max_partitions: u32) -> PagedReduceParams {
        PagedReduceParams::from(&self.params(max_partitions, (0, u32::MAX)))
    }

    fn max_partitions(&self, rows: &[[u32; 4]]) -> u32 {
        // A list holds at most all blocks, the first keys among them.
        let of = |row: &[u32; 4]| {
            let begin = if self.attention().context == Context::Full { row[3] } else { 0 };
            paged_decode::partitions(self.partition, begin, row[1])
        };
        rows.iter().map(of).max().unwrap_or(0).max(1)
    }

    /// Elements of `partial` and `stats` with that many partitions.
    fn sizes(&self, rows: usize, max_partitions: u32) -> (usize, usize) {
        let stats = rows * (self.num_heads * max_partitions) as usize;
        (stats.max(self.lens.len() * self.num_heads as usize) * self.layer.shape.head_dim as usize, stats)
    }

    pub(crate) fn on_gpu(
        &self,
        (gpu, lanes): (&Gpu, Lanes),
        order: &[usize],
        max_partitions: u32,
    ) -> Decoded {
        let (shape, rows) = (&self.layer.shape, self.rows(order));
        let [k, v] = self.layer.upload(gpu).unwrap();
        let q = gpu.upload("q", &self.q).unwrap();
        let tables = gpu.upload("tables", &self.layer.tables).unwrap();
        let rows_buf = gpu.upload("rows", &rows).unwrap();
        let (partial_len, stats_len) = self.sizes(rows.len(), max_partitions);
        let partial = gpu.upload("partial", &vec![f32::NAN; partial_len]).unwrap();
        let stats = gpu.upload("stats", &vec![[f32::NAN; 2]; stats_len]).unwrap();
        let out_len = self.lens.len() * (self.num_heads * shape.head_dim) as usize;
        let blocks = u32::try_from(self.layer.k.len() / shape.block_elements()).unwrap();
        let (params, cached) = (self.params(max_partitions, (0, u32::MAX)), (&self.layer.tables[..], blocks));
        let count = u32::try_from(rows.len()).unwrap() - self.skipped;
        let of_dispatch = &rows[self.skipped as usize..];
        paged_decode::check(shape, &params, of_dispatch, cached, [self.q.len(), partial_len, stats_len])
            .unwrap();
        let out = gpu.upload("out", &vec![f32::NAN; out_len]).unwrap();
        let mut pass = Pass::new("decode");
        let mut bindings: Vec<Bound> = vec![
            (&q).into(),
            (&k).into(),
            (&v).into(),
            (&tables).into(),
            (&rows_buf).into(),
            (&partial).into(),
            (&stats).into(),
        ];
        let extra = self.asked.upload(gpu).unwrap();
        bindings.extend(extra.as_ref().map(Into::into));
        let variant = paged_decode::variant(shape, self.num_heads, lanes, self.attention());
        // All keys at once, or two partitions a dispatch.
        let longest = self.lens.iter().copied().max().unwrap_or(0).max(1);
        let step = if max_partitions.is_multiple_of(2) { 2 * self.partition } else { u32::MAX };
        for first in (0..longest).step_by(step as usize) {
            let params = scaled(shape, self.params(max_partitions, (first, step)));
            let grid = paged_decode::grid(&params, shape, lanes, count);
            dispatch(gpu, &mut pass, &variant, &params, &bindings, grid);
        }
        let sinks = gpu.upload("sinks", self.asked.sinks().unwrap_or(&[0.0])).unwrap();
        if self.reduced(max_partitions) {
            let params = self.reduce_params(max_partitions);
            let mut bindings = vec![(&partial).into(), (&stats).into(), (&rows_buf).into(), (&out).into()];
            bindings.extend(extra.as_ref().filter(|_| self.asked.lists.is_some()).map(Into::into));
            bindings.extend(self.attention().sinks.then_some((&sinks).into()));
            let variant = paged_reduce::best(gpu.profile(), shape, self.attention());
            dispatch(gpu, &mut pass, &variant, &params, &bindings, paged_reduce::grid(&params, count));
        }
        let reads = (pass.read(&partial, 0..partial_len), pass.read(&stats, 0..stats_len));
        let read = pass.read(if self.reduced(max_partitions) { &out } else { &partial }, 0..out_len);
        let outcome = gpu.submit(pass).unwrap().wait().unwrap();
        Decoded { partial: outcome.get(reads.0), stats: outcome.get(reads.1), out: outcome.get(read) }
    }

    /// Checks the kernel through workgroup memory, and where the adapter can, by subgroups.
    pub(crate) fn check(&self, gpu: &Gpu) {
        for lanes in lanes_of(gpu, &self.layer.shape) {
            self.check_by(gpu, lanes);
        }
    }

    /// Partitions against the reference, and the result against attention over all keys at once.
    pub(crate) fn check_by(&self, gpu: &Gpu, lanes: Lanes) {
        let order: Vec<usize> = (0..self.lens.len()).collect();
        let rows = self.rows(&order);
        let max_partitions = self.max_partitions(&rows);
        let got = self.on_gpu((gpu, lanes), &order, max_partitions);
        let what = format!(
            "{lanes:?}, {:?}, {} heads, {rows:?}, {:?}",
            self.layer.shape,
            self.num_heads,
            self.attention()
        );
        let (partial, stats) = self.sizes(rows.len(), max_partitions);
        let (mut partial, mut stats) = (vec![f32::NAN; partial], vec![[f32::NAN; 2]; stats]);
        let params = self.params(max_partitions, (0, u32::MAX));
        let tables = &self.layer.tables;
        let kv = self.layer.kv();
        let options = self.asked.options();
        cpu::paged_decode::paged_decode(
            &kv,
            &params,
            &self.q,
            tables,
            &rows,
            &mut partial,
            &mut stats,
            &options,
        );
        assert_close(&format!("stats, {what}"), ATTENTION, got.stats.as_flattened(), stats.as_flattened());
        // Unnormalised sums grow with the number of keys, and their errors with them.
        let normalised = |partial: &[f32], stats: &[[f32; 2]]| -> Vec<f32> {
            let dim = self.layer.shape.head_dim as usize;
            let sum = |i: usize| if !self.reduced(max_partitions) { 1.0 } else { stats[i / dim][1] };
            partial.iter().enumerate().map(|(i, x)| x / sum(i)).collect()
        };
        let (got_partial, want_partial) =
            (normalised(&got.partial, &got.stats), normalised(&partial, &stats));
        assert_close(&format!("partial, {what}"), ATTENTION, &got_partial, &want_partial);
        assert_close(&format!("output, {what}"), ATTENTION, &got.out, &self.whole(&rows));
        if self.reduced(max_partitions) {
            let params = self.reduce_params(max_partitions);
            let mut out = vec![f32::NAN; got.out.len()];
            let dim = self.layer.shape.head_dim as usize;
            cpu::paged_reduce::paged_reduce(
                dim,
                &params,
                &got.partial,
                &got.stats,
                &rows,
                &mut out,
                &options,
                self.asked.sinks(),
            );
            assert_close(&format!("reduce, {what}"), ATTENTION, &got.out, &out);
        }
    }

    /// `Gpu::attend` over the same queries, which must lie side by side, against attention over all keys at once.
    pub(crate) fn check_attend(&self, gpu: &Gpu) {
        let order: Vec<usize> = (0..self.lens.len()).rev().collect();
        let rows = self.rows(&order);
        let attended: Vec<AttendRow> =
            rows.iter().map(|[_, keys, table, _]| AttendRow { keys: *keys, table: *table }).collect();
        let [k, v] = self.layer.upload(gpu).unwrap();
        let q = gpu.upload("q", &self.q).unwrap();
        let out = gpu.upload("out", &vec![f32::NAN; self.q.len()]).unwrap();
        let attend = Attend {
            shape: self.layer.shape,
            num_heads: self.num_heads,
            scale: self.params(1, (0, u32::MAX)).scale,
            q: &q,
            k: &k,
            v: &v,
            tables: &self.layer.tables,
            rows: &attended,
            out: &out,
        };
        let mut pass = Pass::new("attend");
        gpu.attend(&mut pass, &attend).unwrap();
        let read = pass.read(&out, 0..self.q.len());
        let got = gpu.submit(pass).unwrap().wait().unwrap().get(read);
        let what = format!("{:?}, {} heads, {rows:?}", self.layer.shape, self.num_heads);
        assert_close(&what, ATTENTION, &got, &self.whole(&rows));

        let beyond = [AttendRow { keys: u32::MAX / 2, ..attended[0] }];
        let refused = gpu.attend(&mut Pass::new("beyond"), &Attend { rows: &beyond, ..attend }).unwrap_err();
        assert!(matches!(refused, AttendError::Launch(_)), "{refused}");
        let short = gpu.buffer("short", self.q.len() - 1).unwrap();
        let refused = gpu.attend(&mut Pass::new("short"), &Attend { out: &short, ..attend }).unwrap_err();
        assert!(matches!(refused, AttendError::Launch(_)), "{refused}");
    }

    /// Textbook attention of every row.
    fn whole(&self, rows: &[[u32; 4]]) -> Vec<f32> {
        let dim = self.layer.shape.head_dim as usize;
        let group = self.num_heads / self.layer.shape.num_kv_heads;
        let mut out = vec![f32::NAN; self.lens.len() * self.num_heads as usize * dim];
        let kv_heads = self.layer.shape.num_kv_heads;
        let options = self.asked.options();
        for (index, [row, len, table, first]) in (0..).zip(rows) {
            for head in 0..self.num_heads {
                let q = &self.q[(row * self.q_stride) as usize + head as usize * dim..][..dim];
                let table = &self.layer.tables[*table as usize..];
                let scale = self.params(1, (0, u32::MAX)).scale;
                let list = (index * kv_heads + head / group) as usize;
                let keys = options.context(list, *len as usize);
                let keys = keys.into_iter().filter(|key| *key >= *first as usize);
                let logit = |product: f64, key: usize| {
                    options.logit(f64::from(scale) * product, head as usize, *len as usize - 1 - key)
                };
                let state = attend(&self.layer.kv(), table, (head / group) as usize, q, keys, logit);
                let sinks = self.asked.sinks();
                let lse = state.lse().max(f32::MIN);
                let share = sinks.map_or(1.0, |s| 1.0 / (1.0 + (s[head as usize] - lse).exp()));
                let at = (row * self.num_heads + head) as usize * dim;
                out[at..at + dim].iter_mut().zip(state.output()).for_each(|(to, x)| *to = x * share);
            }
        }
        out
    }
}
