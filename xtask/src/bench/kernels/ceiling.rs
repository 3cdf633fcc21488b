//! Ceilings of the device: bytes per second read in order, and operations per second from registers.

use std::cell::Cell;
use std::sync::Arc;

use anyhow::Result;
use attn_kernels::gpu::{Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::KvDtype;
use attn_kernels::profile::Matrices;
use attn_kernels::self_test::Random;
use attn_kernels::{Kernel, KernelRole, Params, Variant, bindings, params};
use serde::Serialize;

use super::work::time;

/// Number of runs; their median counts.
const RUNS: usize = 7;

static FILL: Kernel = Kernel {
    name: "fill",
    role: KernelRole::Other,
    wgsl: include_str!("../../../wgsl/fill.wgsl"),
    modules: &[attn_kernels::MODULES],
    params: FillParams::LAYOUT,
    bindings: FillBuffers::BINDINGS,
    grid: attn_kernels::grid!(FillParams, |params, _| [params.workgroups, 1, 1]),
    declared: None,
};

params! {
    /// Parameters of `fill`.
    pub struct FillParams {
        /// Number of words to fill.
        pub words: u32,
        /// Seed of the numbers.
        pub seed: u32,
        /// Type of the numbers.
        pub kind: u32,
        /// Number of workgroups.
        pub workgroups: u32,
    }
}

bindings! {
    /// Buffers of `fill`.
    pub struct FillBuffers(FillParams) {
        /// Words.
        write out: u32,
    }
}

static STREAM_READ: Kernel = Kernel {
    name: "stream_read",
    role: KernelRole::Other,
    wgsl: include_str!("../../../wgsl/stream_read.wgsl"),
    modules: &[attn_kernels::MODULES],
    params: StreamReadParams::LAYOUT,
    bindings: StreamReadBuffers::BINDINGS,
    grid: attn_kernels::grid!(StreamReadParams, |params, _| [params.workgroups, 1, 1]),
    declared: None,
};

params! {
    /// Parameters of `stream_read`.
    pub struct StreamReadParams {
        /// Number of groups of four words.
        pub quads: u32,
        /// Number of workgroups.
        pub workgroups: u32,
    }
}

bindings! {
    /// Buffers of `stream_read`.
    pub struct StreamReadBuffers(StreamReadParams) {
        /// Words.
        read data: u32,
        /// Sum of each lane.
        write out: u32,
    }
}

static FMA_RATE: Kernel = Kernel {
    name: "fma_rate",
    role: KernelRole::Other,
    wgsl: include_str!("../../../wgsl/fma_rate.wgsl"),
    modules: &[attn_kernels::MODULES],
    params: FmaRateParams::LAYOUT,
    bindings: FmaRateBuffers::BINDINGS,
    grid: attn_kernels::grid!(FmaRateParams, |params, _| [params.workgroups, 1, 1]),
    declared: None,
};

params! {
    /// Parameters of `fma_rate`.
    pub struct FmaRateParams {
        /// Number of rounds of multiply-adds.
        pub rounds: u32,
        /// Factor of the multiply-adds.
        pub factor: f32,
        /// Number of workgroups.
        pub workgroups: u32,
    }
}

bindings! {
    /// Buffers of `fma_rate`.
    pub struct FmaRateBuffers(FmaRateParams) {
        /// Sum of each lane.
        write out: f32,
    }
}

static COOP_RATE: Kernel = Kernel {
    name: "coop_rate",
    role: KernelRole::Other,
    wgsl: include_str!("../../../wgsl/coop_rate.wgsl"),
    modules: &[attn_kernels::MODULES],
    params: CoopRateParams::LAYOUT,
    bindings: CoopRateBuffers::BINDINGS,
    grid: attn_kernels::grid!(CoopRateParams, |params, _| [params.workgroups, 1, 1]),
    declared: None,
};

params! {
    /// Parameters of `coop_rate`.
    pub struct CoopRateParams {
        /// Number of rounds of products.
        pub rounds: u32,
        /// Number of workgroups.
        pub workgroups: u32,
    }
}

bindings! {
    /// Buffers of `coop_rate`.
    pub struct CoopRateBuffers(CoopRateParams) {
        /// Sums.
        write out: f32,
    }
}

/// Maximum rates that were measured.
#[derive(Debug, Clone, Copy, Serialize)]
pub(in crate::bench) struct Ceiling {
    /// Number of bytes read per second.
    pub(in crate::bench) bytes_s: f64,
    /// Number of operations in f32 per second; a multiply-add is two.
    pub(in crate::bench) f32_s: f64,
    /// Number of operations of cooperative matrices per second, if the device runs them.
    pub(in crate::bench) matrix_s: Option<f64>,
}

impl Ceiling {
    /// The rate of the device's fastest multiply-adds.
    pub(in crate::bench) fn operations_s(&self) -> f64 {
        self.matrix_s.unwrap_or(self.f32_s)
    }

    /// Measures all rates; each is the best of several runs.
    pub(in crate::bench) fn measure(gpu: &Gpu) -> Result<Self> {
        let matrix_s = if gpu.runs_coop() { Some(matrix_rate(gpu)?) } else { None };
        Ok(Self { bytes_s: read_rate(gpu)?, f32_s: f32_rate(gpu)?, matrix_s })
    }
}

/// A buffer of random numbers, with this many elements of `dtype`.
pub(super) fn random(gpu: &Gpu, dtype: KvDtype, elements: usize, seed: u32) -> Result<Buf<u32>> {
    random_words(gpu, &Random { dtype, words: elements * dtype.bytes() as usize / 4 }, seed)
}

/// The random data of a case that is timed.
pub(super) fn random_words(gpu: &Gpu, random: &Random, seed: u32) -> Result<Buf<u32>> {
    let Random { dtype, words } = *random;
    let buf = gpu.buffer("random", words)?;
    let kind = match dtype {
        KvDtype::F32 => 0,
        KvDtype::F16 => 1,
        KvDtype::Fp8 | KvDtype::Int8 => 2,
    };
    let workgroups = u32::try_from(words.div_ceil(256))?.clamp(1, 4096);
    let params = FillParams { words: u32::try_from(words)?, seed, kind, workgroups };
    let mut pass = Pass::new("fill");
    pass.dispatch(&gpu.pipeline(&Variant::new(&FILL))?, &params, FillBuffers { out: buf.bind() });
    gpu.submit(pass)?.wait()?;
    Ok(buf)
}

fn read_rate(gpu: &Gpu) -> Result<f64> {
    let groups = if gpu.is_cpu() { 256 } else { 4096 };
    // Sixteen rounds of four quads a lane, as far as one binding holds them.
    let quads_of = |groups: u32| groups * 256 * 4 * 16;
    let fits = |groups: &u32| u64::from(quads_of(*groups)) * 16 <= gpu.max_binding_bytes();
    let groups = (0..12).map(|halvings| groups >> halvings).find(fits).unwrap_or(1);
    let quads = quads_of(groups);
    let data = random(gpu, KvDtype::F32, quads as usize * 4, 1)?;
    let out = gpu.buffer::<u32>("out", groups as usize * 256)?;
    let pipeline = gpu.pipeline(&Variant::new(&STREAM_READ))?;
    let buffers = StreamReadBuffers { data: data.bind(), out: out.bind() };
    let seconds = time(gpu, RUNS, &|_| (), |pass| {
        pass.dispatch(&pipeline, &StreamReadParams { quads, workgroups: groups }, buffers.clone());
    })?;
    Ok(f64::from(quads) * 16.0 / seconds)
}

/// Records reads that fill the caches of a GPU with other data; records nothing on a software driver, whose caches are small
/// compared to its times.
pub(super) fn flush(gpu: &Gpu) -> Result<impl Fn(&mut Pass) + use<>> {
    let (groups, rounds) = (1024, if gpu.is_cpu() { 1 } else { 16 });
    let quads = groups * 256 * 4 * rounds;
    let data = random(gpu, KvDtype::F32, quads as usize * 4, 2)?;
    let out = gpu.buffer::<u32>("out", groups as usize * 256)?;
    let pipeline = gpu.pipeline(&Variant::new(&STREAM_READ))?;
    let software = gpu.is_cpu();
    Ok(move |pass: &mut Pass| {
        if !software {
            let buffers = StreamReadBuffers { data: data.bind(), out: out.bind() };
            pass.dispatch(&pipeline, &StreamReadParams { quads, workgroups: groups }, buffers.clone());
        }
    })
}

/// Reports if the device's clock is lower than before: cards lower it for a second or so after pauses.
pub(super) struct Pace {
    pipeline: Arc<Pipeline>,
    out: Buf<f32>,
    /// Minimum seconds of a fixed chain of multiply-adds.
    best: Cell<f64>,
}

impl Pace {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        let (pipeline, out) = (gpu.pipeline(&Variant::new(&FMA_RATE))?, gpu.buffer("out", 256)?);
        Ok(Self { pipeline, out, best: Cell::new(f64::INFINITY) })
    }

    /// Whether the clock is a tenth or more below its best; on drivers that run on the CPU, never.
    pub(super) fn is_down(&self, gpu: &Gpu) -> Result<bool> {
        if gpu.is_cpu() {
            return Ok(false);
        }
        let params = FmaRateParams { rounds: 2500, factor: 0.999, workgroups: 1 };
        let seconds = time(gpu, 3, &|_| (), |pass| {
            pass.dispatch(&self.pipeline, &params, FmaRateBuffers { out: self.out.bind() })
        })?;
        self.best.set(self.best.get().min(seconds));
        Ok(seconds > 1.1 * self.best.get())
    }
}

fn f32_rate(gpu: &Gpu) -> Result<f64> {
    let (groups, rounds) = if gpu.is_cpu() { (64, 500) } else { (8192, 500) };
    let out = gpu.buffer::<f32>("out", groups as usize * 256)?;
    let pipeline = gpu.pipeline(&Variant::new(&FMA_RATE))?;
    let params = FmaRateParams { rounds, factor: 0.999, workgroups: groups };
    let seconds = time(gpu, RUNS, &|_| (), |pass| {
        pass.dispatch(&pipeline, &params, FmaRateBuffers { out: out.bind() })
    })?;
    Ok(f64::from(groups) * 256.0 * f64::from(rounds) * 128.0 / seconds)
}

fn matrix_rate(gpu: &Gpu) -> Result<f64> {
    let (groups, rounds) = (2112, 2000);
    let out = gpu.buffer::<f32>("out", groups as usize * 128)?;
    let pipeline = gpu.pipeline(&Variant::new(&COOP_RATE).with_matrices())?;
    let seconds = time(gpu, RUNS, &|_| (), |pass| {
        let params = CoopRateParams { rounds, workgroups: groups };
        pass.dispatch(&pipeline, &params, CoopRateBuffers { out: out.bind() });
    })?;
    // Eight products of a subgroup a round.
    let matrices = gpu.profile().matrices.unwrap_or(Matrices::NVIDIA);
    let products = 8 * 128 / matrices.lanes();
    let operations = 2 * matrices.size().pow(3) * products;
    Ok(f64::from(groups) * f64::from(rounds) * f64::from(operations) / seconds)
}

#[cfg(test)]
mod tests {
    use attn_kernels::gpu::{Checks, GpuOptions};
    use attn_kernels::reflect::interface;

    use super::*;

    #[test]
    fn work_after_a_measurement_has_no_timestamps() {
        let gpu = Gpu::open(&GpuOptions::new(Checks::On)).unwrap();
        assert!(f32_rate(&gpu).unwrap() > 0.0);
        assert!(!gpu.is_timing());
    }

    #[test]
    fn the_kernels_are_valid_and_have_their_bindings() {
        for kernel in [&FILL, &STREAM_READ, &FMA_RATE, &COOP_RATE] {
            let interface =
                interface(&Variant::new(kernel)).unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
            assert_eq!(interface.bindings.len(), kernel.bindings.len(), "{}", kernel.name);
        }
    }
}
