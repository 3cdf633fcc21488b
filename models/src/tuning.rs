//! Sizes of products at which one kernel becomes faster than another, measured on the device.
//!
//! Both kernels of a [`Contest`] are timed in turns at growing sizes. [`Crossings`] follow from the times alone, and replace the
//! constants of [`Tuning`] that they decide.

mod layers;
mod rig;

use std::fmt;
use std::time::Duration;

use attn_kernels::profile::Tuning;
use serde::{Deserialize, Serialize};

pub use crate::matrix::ProductRoute;
pub use layers::{LayerProduct, LayerProducts};
pub use rig::{Rig, Shapes, kernels_digest};

/// Comparison of two kernels for the same products. The later kernel is faster for large sizes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Contest {
    /// Integer dot products against cooperative matrices, by number of rows. Only in this comparison, the kernels round
    /// differently.
    CodedRows,
    /// `matmul_int8` against `matmul_int8_tile`, by number of rows.
    FewCodedRows,
    /// `matmul` against `matmul_tile`, by number of rows.
    FewRows,
    /// Small tiles of `matmul_tile` against large ones, by number of large tiles.
    PlainTiles,
    /// `matmul_int8` against `matmul_int8_tile`, by number of large tiles.
    CodedTiles,
}

/// Numbers of rows at which kernels are timed, since lanes process rows by powers of two. One row never uses tiles.
const ROWS: [u32; 11] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];

/// Numbers of large tiles at which kernels are timed.
const TILES: [u32; 9] = [16, 32, 64, 96, 128, 192, 256, 384, 512];

impl Contest {
    /// All comparisons, the most important first, in case time runs out.
    pub const ALL: [Self; 5] =
        [Self::CodedRows, Self::FewCodedRows, Self::FewRows, Self::PlainTiles, Self::CodedTiles];

    /// Returns the sizes at which the two kernels are timed, ascending.
    #[must_use]
    pub fn sizes(self) -> &'static [u32] {
        match self {
            Self::CodedRows | Self::FewCodedRows | Self::FewRows => &ROWS,
            Self::PlainTiles | Self::CodedTiles => &TILES,
        }
    }

    /// Whether sizes are numbers of rows, not of tiles.
    fn counts_rows(self) -> bool {
        matches!(self, Self::CodedRows | Self::FewCodedRows | Self::FewRows)
    }
}

impl fmt::Display for Contest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CodedRows => "codes : matrices",
            Self::FewCodedRows | Self::CodedTiles => "codes by lanes : tiles",
            Self::FewRows => "f32 by lanes : tiles",
            Self::PlainTiles => "f32 by small : large tiles",
        })
    }
}

/// A product that is timed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct TimedProduct {
    /// Comparison that the product belongs to.
    pub contest: Contest,
    /// Number of rows or tiles.
    pub size: u32,
    /// Whether the later kernel is timed.
    pub later: bool,
}

/// Times of both kernels at one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Times {
    /// Number of rows or tiles.
    pub size: u32,
    /// Time of the kernel that is faster for small sizes.
    pub earlier: Duration,
    /// Time of the other kernel.
    pub later: Duration,
}

/// Maximum time of the faster kernel relative to the other: smaller differences are noise.
const WINS: f64 = 0.95;

/// Time after which no larger sizes are timed, so that slow devices are not held up.
const SLOW: Duration = Duration::from_millis(60);

/// Number of rounds in which both kernels alternate, so that a rising clock favours neither.
const ROUNDS: usize = 2;

/// Time that no product reaches on any device.
const ABSURD: Duration = Duration::from_secs(10);

/// Ratio between the times of two kernels that is too large to be true.
const ABSURD_FACTOR: f64 = 1000.0;

impl Times {
    fn later_wins(&self) -> bool {
        self.later.as_secs_f64() <= self.earlier.as_secs_f64() * WINS
    }

    fn earlier_wins(&self) -> bool {
        self.earlier.as_secs_f64() <= self.later.as_secs_f64() * WINS
    }

    fn is_absurd(&self) -> bool {
        let (short, long) = (self.earlier.min(self.later), self.earlier.max(self.later));
        short.is_zero() || long > ABSURD || long.as_secs_f64() > short.as_secs_f64() * ABSURD_FACTOR
    }
}

/// Times of both kernels of a comparison by size, ascending.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ContestTimes {
    /// The contest.
    pub contest: Contest,
    /// Times of both kernels, up to the size that decides which one is faster.
    pub times: Vec<Times>,
}

impl ContestTimes {
    /// Measures both kernels of a contest at growing sizes until the faster one is known, or products get too slow. `time`
    /// measures one product, and returns `None` when no time is left.
    ///
    /// # Errors
    /// Those of `time`.
    pub fn take<E>(
        contest: Contest,
        mut time: impl FnMut(TimedProduct) -> Result<Option<Duration>, E>,
    ) -> Result<Self, E> {
        let mut this = Self { contest, times: Vec::new() };
        for &size in contest.sizes() {
            let [mut earlier, mut later] = [Duration::MAX; 2];
            for _ in 0..ROUNDS {
                for (shortest, later) in [(&mut earlier, false), (&mut later, true)] {
                    let Some(time) = time(TimedProduct { contest, size, later })? else { return Ok(this) };
                    *shortest = time.min(*shortest);
                }
            }
            this.times.push(Times { size, earlier, later });
            if this.settled().is_some() || earlier.max(later) > SLOW {
                break;
            }
        }
        Ok(this)
    }

    /// Index of the first size at which the later kernel is faster, if it also is at the next size.
    fn settled(&self) -> Option<usize> {
        self.times.windows(2).position(|pair| pair.iter().all(Times::later_wins))
    }

    /// Returns the maximum number of rows, or the minimum number of tiles, according to the times. `None` if neither kernel is
    /// clearly faster, or there are too few times.
    fn crossing(&self) -> Option<u32> {
        let rows = self.contest.counts_rows();
        if let Some(first) = self.settled() {
            return Some(match first.checked_sub(1) {
                _ if !rows => self.times[first].size,
                Some(last) => self.times[last].size,
                None => self.times[first].size - 1,
            });
        }
        let largest = *self.contest.sizes().last()?;
        let last = self.times.last_chunk::<2>()?;
        (last[1].size == largest && last.iter().all(Times::earlier_wins)).then_some(largest)
    }
}

impl fmt::Display for ContestTimes {
    /// Writes the times in microseconds, as `f32 by lanes : tiles, us: 2 rows 40.1 : 80.0, 3 rows 60.2 : 80.1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.contest.counts_rows() { "rows" } else { "tiles" };
        write!(f, "{}, us", self.contest)?;
        for (index, Times { size, earlier, later }) in self.times.iter().enumerate() {
            let [earlier, later] = [earlier, later].map(|time| time.as_secs_f64() * 1e6);
            let sign = if index == 0 { ':' } else { ',' };
            write!(f, "{sign} {size} {unit} {earlier:.1} : {later:.1}")?;
        }
        Ok(())
    }
}

/// Error for times that cannot be those of a device.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{contest} took {earlier:?} : {later:?} at size {size}: times are above 0, at most {ABSURD:?} and a factor of {ABSURD_FACTOR} apart"
)]
pub struct AbsurdTimes {
    contest: Contest,
    size: u32,
    earlier: Duration,
    later: Duration,
}

/// Constants of [`Tuning`] that times of a device determine; `None` for those that stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Crossings {
    /// Measured value of [`Tuning::coded_rows`].
    pub coded_rows: Option<u32>,
    /// Measured value of [`Tuning::few_coded_rows`].
    pub few_coded_rows: Option<u32>,
    /// Measured value of [`Tuning::few_rows`].
    pub few_rows: Option<u32>,
    /// Measured value of [`Tuning::plain_tiles`].
    pub plain_tiles: Option<u32>,
}

impl Crossings {
    /// Computes the crossings from times. O(times).
    ///
    /// # Errors
    /// Times that no device takes: none of the others is worth more then.
    pub fn of(all: &[ContestTimes]) -> Result<Self, AbsurdTimes> {
        for ContestTimes { contest, times } in all {
            if let Some(&Times { size, earlier, later }) = times.iter().find(|times| times.is_absurd()) {
                return Err(AbsurdTimes { contest: *contest, size, earlier, later });
            }
        }
        let of = |contest| all.iter().find(|times| times.contest == contest)?.crossing();
        // One number stands for both, so that both must have overtaken.
        let [plain, coded] = [Contest::PlainTiles, Contest::CodedTiles].map(of);
        Ok(Self {
            coded_rows: of(Contest::CodedRows),
            few_coded_rows: of(Contest::FewCodedRows),
            few_rows: of(Contest::FewRows),
            plain_tiles: plain.zip(coded).map(|(plain, coded)| plain.max(coded)),
        })
    }

    /// Returns `tuning` with the measured values in place of its own.
    #[must_use]
    pub fn apply(&self, tuning: Tuning) -> Tuning {
        let Self { coded_rows, few_coded_rows, few_rows, plain_tiles } = *self;
        tuning
            .rows(
                coded_rows.unwrap_or(tuning.coded_rows),
                few_coded_rows.unwrap_or(tuning.few_coded_rows),
                few_rows.unwrap_or(tuning.few_rows),
            )
            .plain_tiles(plain_tiles.unwrap_or(tuning.plain_tiles))
    }
}

impl fmt::Display for Crossings {
    /// Describes which kernels multiply up to which sizes, as `codes up to 4 rows, lanes up to 8 by codes and 12 in f32,
    /// measured`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { coded_rows, few_coded_rows, few_rows, plain_tiles } = self;
        let mut said = Vec::new();
        said.extend(coded_rows.map(|rows| format!("codes up to {rows} rows")));
        said.extend(few_coded_rows.map(|rows| format!("lanes of codes up to {rows}")));
        said.extend(few_rows.map(|rows| format!("lanes of f32 up to {rows}")));
        said.extend(plain_tiles.map(|tiles| format!("large tiles from {tiles} on")));
        match said.is_empty() {
            true => f.write_str("of an H200: the times of this device decide nothing"),
            false => write!(f, "{}, measured", said.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests;
