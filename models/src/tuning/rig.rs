//! Products that are timed on a device.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use attn_kernels::gpu::{Buf, Gpu, GpuError, Pass};
use bytemuck::Pod;
use half::f16;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use xxhash_rust::xxh3::Xxh3Default;

use super::{Contest, ContestTimes, TimedProduct};
use crate::ModelError;
use crate::kernel::matmul_tile::Tile;
use crate::kernel::{
    matmul, matmul_coop, matmul_int8, matmul_int8_tile, matmul_tile, quantize_rows, split_sum,
};
use crate::matrix::{Contender, Kernels, Matrix, MaxProduct, SLACK};
use crate::pack::{BLOCK, Format};

/// Format of the weights: four bits, as in most quantised models.
const FORMAT: Format = Format::Q4;

/// Number of rows of a large tile.
const TILE_ROWS: u32 = 64;

/// Shapes of the matrices that are multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shapes {
    /// Number of input features.
    width: u32,
    /// Number of columns of matrices for contests of rows.
    cols: u32,
    /// Number of columns of the matrices for comparisons by rows.
    matrices: usize,
    /// Number of columns of the single matrix for comparisons by tiles.
    tiled_cols: u32,
}

impl Shapes {
    /// Half of gate and up of an 8B model, in four layers: 147 MB.
    pub const OF_8B: Self = Self { width: 4096, cols: 14_336, matrices: 4, tiled_cols: 2048 };

    /// Small shapes for tests on software drivers. Products then have an eighth of the tiles that [`Contest::sizes`]
    /// lists.
    pub const TINY: Self = Self { width: 64, cols: 256, matrices: 2, tiled_cols: 256 };

    /// Returns rows and columns of a product, and the number of matrices.
    fn product(self, product: TimedProduct) -> (u32, u32, usize) {
        match product.contest {
            Contest::PlainTiles | Contest::CodedTiles => {
                let rows = product.size.div_ceil(Self::OF_8B.tiled_cols / Tile::LARGE.cols()) * TILE_ROWS;
                (rows, self.tiled_cols, 1)
            }
            _ => (product.size, self.cols, self.matrices),
        }
    }

    /// Returns the maximum number of rows and the maximum number of results of a product.
    fn max(self) -> [u32; 2] {
        let all = Contest::ALL.into_iter().flat_map(|contest| {
            contest.sizes().iter().map(move |&size| TimedProduct { contest, size, later: true })
        });
        all.map(|product| self.product(product))
            .map(|(rows, cols, _)| [rows, rows * cols])
            .fold([0; 2], |max, of| [max[0].max(of[0]), max[1].max(of[1])])
    }
}

impl TimedProduct {
    fn contender(self) -> Contender {
        match (self.contest, self.later) {
            (Contest::CodedRows | Contest::FewCodedRows | Contest::CodedTiles, false) => {
                Contender::CodedLanes
            }
            (Contest::CodedRows, true) => Contender::Matrices,
            (Contest::FewCodedRows | Contest::CodedTiles, true) => Contender::CodedTiles,
            (Contest::FewRows, false) => Contender::Lanes,
            (Contest::FewRows, true) | (Contest::PlainTiles, false) => Contender::Tiles { large: false },
            (Contest::PlainTiles, true) => Contender::Tiles { large: true },
        }
    }
}

/// Number of timed runs, after one run that is ignored; the shortest time counts.
const RUNS: usize = 3;

/// Duration above which runs are not repeated.
const LONG: Duration = Duration::from_millis(20);

/// Total time of runs after which no further one starts.
const LIMIT: Duration = Duration::from_millis(1500);

/// Duration of the load that raises the device's clock beforehand.
const WARM_UP: Duration = Duration::from_millis(50);

/// Number of elements that the host generates for a buffer, which are repeated.
const CHUNK: usize = 64 << 10;

/// Matrices and activations on a device, with the kernels that multiply them.
#[derive(Debug)]
pub struct Rig {
    gpu: Arc<Gpu>,
    shapes: Shapes,
    quants: Vec<Buf<[u32; 4]>>,
    scales: Vec<Buf<u32>>,
    x: Buf<f32>,
    y: Buf<f32>,
    /// Kernels that round to 8-bit codes, or not at all.
    plain: Kernels,
    /// Kernels that round to f16, if the device runs cooperative matrices.
    rounding: Option<Kernels>,
    /// Whether the device has timestamps; otherwise times include waiting for results.
    stamped: bool,
    /// Products that have run, whose kernels are compiled.
    warm: HashSet<TimedProduct>,
    spent: Duration,
}

impl Rig {
    /// Creates matrices of random weights on a device.
    ///
    /// # Errors
    /// A device that is lost or out of memory.
    pub fn new(gpu: &Arc<Gpu>, shapes: Shapes) -> Result<Self, ModelError> {
        let mut rng = StdRng::seed_from_u64(1);
        let [rows, results] = shapes.max();
        let (width, blocks) = (shapes.width as usize, shapes.width as usize / BLOCK);
        let columns = blocks * shapes.cols.max(shapes.tiled_cols) as usize;
        let planes = 0..shapes.matrices;
        let quants = planes.clone().map(|_| fill(gpu, columns, || rng.random::<[u32; 4]>()));
        let quants = quants.collect::<Result<_, _>>()?;
        let scales = planes.map(|_| {
            let mut half = || u32::from(f16::from_f32(rng.random_range(-1.0..1.0)).to_bits());
            fill(gpu, columns, || half() << 16 | half())
        });
        let scales = scales.collect::<Result<_, _>>()?;
        let x = fill(gpu, rows as usize * width + SLACK, || rng.random_range(-1.0..1.0))?;
        let y = gpu.buffer("products", results as usize)?;
        let kernels = |contender: Contender, rows| {
            let width = shapes.width;
            let precision = contender.precision();
            let max = MaxProduct {
                rows,
                width,
                normed_width: width,
                routed_width: width,
                expert_rows: 0,
                precision,
            };
            Kernels::new(gpu, max, None)
        };
        let plain = kernels(Contender::CodedLanes, rows)?;
        let largest = Contest::CodedRows.sizes().iter().copied().max().unwrap_or(1);
        let rounding = gpu.runs_coop().then(|| kernels(Contender::Matrices, largest)).transpose()?;
        let (gpu, stamped) = (Arc::clone(gpu), gpu.time_passes(true));
        let (warm, spent) = (HashSet::new(), Duration::ZERO);
        Ok(Self { gpu, shapes, quants, scales, x, y, plain, rounding, stamped, warm, spent })
    }

    /// Times all contests whose kernels run on the device and pass its self-test.
    ///
    /// # Errors
    /// Those of the device.
    pub fn measure(&mut self) -> Result<Vec<ContestTimes>, ModelError> {
        // Recording asks for kernels, which threads of the device's compile.
        let mut contests = Vec::new();
        for contest in Contest::ALL {
            if self.compiles(contest)? {
                contests.push(contest);
            }
        }
        let begun = Instant::now();
        let first = TimedProduct { contest: Contest::FewRows, size: 2, later: false };
        while contests.contains(&first.contest) && begun.elapsed() < WARM_UP {
            self.run(first)?;
        }
        contests
            .into_iter()
            .map(|contest| ContestTimes::take(contest, |product| self.time(product)))
            .collect()
    }

    /// Whether both kernels of a contest run on the device.
    fn compiles(&mut self, contest: Contest) -> Result<bool, ModelError> {
        if contest == Contest::CodedRows && self.rounding.is_none() {
            return Ok(false);
        }
        for &size in contest.sizes() {
            for later in [false, true] {
                match self.record(TimedProduct { contest, size, later }) {
                    Err(ModelError::Gpu(GpuError::Wrong { .. })) => return Ok(false),
                    recorded => recorded.map(drop)?,
                }
            }
        }
        Ok(true)
    }

    /// Returns the shortest time of a product; `None` when no time is left.
    fn time(&mut self, product: TimedProduct) -> Result<Option<Duration>, ModelError> {
        if self.spent > LIMIT {
            return Ok(None);
        }
        if self.warm.insert(product) {
            self.run(product)?;
        }
        let mut shortest = Duration::MAX;
        for _ in 0..RUNS {
            let begun = Instant::now();
            shortest = self.run(product)?.min(shortest);
            self.spent += begun.elapsed();
            if begun.elapsed() > LONG {
                break;
            }
        }
        Ok(Some(shortest))
    }

    fn run(&mut self, product: TimedProduct) -> Result<Duration, ModelError> {
        let pass = self.record(product)?;
        let begun = Instant::now();
        let outcome = self.gpu.submit(pass)?.wait()?;
        let nanoseconds: f64 = outcome.timings.iter().map(|timing| timing.ns).sum();
        Ok(match self.stamped {
            true => Duration::try_from_secs_f64(nanoseconds * 1e-9).unwrap_or_default(),
            false => begun.elapsed(),
        })
    }

    fn record(&mut self, product: TimedProduct) -> Result<Pass, ModelError> {
        let mut pass = Pass::new("contest");
        let contender = product.contender();
        let kernels = match (contender, &mut self.rounding) {
            (Contender::Matrices, Some(rounding)) => rounding,
            _ => &mut self.plain,
        };
        let (rows, cols, matrices) = self.shapes.product(product);
        for (quants, scales) in self.quants.iter().zip(&self.scales).take(matrices) {
            let matrix = Matrix::of_planes(FORMAT, [self.shapes.width, cols, 1], quants, scales);
            matrix.contend(kernels, &mut pass, [&self.x, &self.y], rows, contender)?;
        }
        Ok(pass)
    }

    /// Runs a product once, and returns the results of the last matrix.
    ///
    /// # Errors
    /// Those of the device.
    pub fn results(&mut self, product: TimedProduct) -> Result<Vec<f32>, ModelError> {
        let mut pass = self.record(product)?;
        let (rows, cols, _) = self.shapes.product(product);
        let read = pass.read(&self.y, 0..(rows * cols) as usize);
        Ok(self.gpu.submit(pass)?.wait()?.get(read))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.gpu.time_passes(false);
        self.gpu.forget_bind_groups();
    }
}

/// Returns a buffer of elements that `make` generates, with repetitions.
pub(super) fn fill<T: Pod>(gpu: &Gpu, len: usize, mut make: impl FnMut() -> T) -> Result<Buf<T>, ModelError> {
    let chunk: Vec<T> = (0..len.min(CHUNK)).map(|_| make()).collect();
    let (chunk, buf) = (gpu.upload("chunk", &chunk)?, gpu.buffer("operands", len)?);
    let mut pass = Pass::new("fill");
    for at in (0..len).step_by(CHUNK) {
        pass.copy(&chunk, 0..CHUNK.min(len - at), &buf, at);
    }
    gpu.submit(pass)?.wait()?;
    Ok(buf)
}

/// Returns a digest of the timed kernels and of this version. Times that were stored with another digest are not
/// valid.
#[must_use]
pub fn kernels_digest() -> u64 {
    let kernels = [
        &matmul::KERNEL,
        &matmul_coop::KERNEL,
        &matmul_int8::KERNEL,
        &matmul_int8_tile::KERNEL,
        &matmul_tile::KERNEL,
        &quantize_rows::KERNEL,
        &split_sum::KERNEL,
    ];
    let mut hasher = Xxh3Default::new();
    hasher.update(env!("CARGO_PKG_VERSION").as_bytes());
    for kernel in kernels {
        hasher.update(kernel.wgsl.as_bytes());
        kernel
            .modules
            .iter()
            .flat_map(|table| table.iter())
            .for_each(|(_, text)| hasher.update(text.as_bytes()));
    }
    hasher.digest()
}
