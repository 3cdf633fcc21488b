//! Properties and measured times of a device, which decide the kernels that run on it and the split of their work.

mod matrices;
mod registers;

pub use matrices::Matrices;
pub(crate) use matrices::UNIT;
pub use registers::Registers;

use derive_setters::Setters;

use crate::kernel::KvDtype;
use crate::verdicts::Verdicts;
use crate::{Kernel, Level, Variant};
use std::ops::RangeInclusive;

/// Description of a device, from which kernels, tiles and splits are chosen.
/// [`Gpu::profile`](crate::gpu::Gpu::profile) describes an open device. Choices depend on nothing else, so a profile
/// made by hand shows what another device would get.
#[derive(Clone, Copy, PartialEq, Debug, Setters)]
#[non_exhaustive]
pub struct DeviceProfile {
    /// Whether the adapter is a processor in place of a GPU: loads at one address for all lanes are then cheap,
    /// gathers are not, and barriers switch contexts.
    pub software: bool,
    /// Highest level whose kernels run on this device.
    pub level: Level,
    /// Smallest and largest number of lanes of a subgroup.
    #[setters(skip)]
    pub subgroups: [u32; 2],
    /// Cooperative matrices of kernels of [`Level::Coop`], if they run.
    #[setters(skip)]
    pub matrices: Option<Matrices>,
    /// Shared memory of a workgroup, in bytes.
    pub workgroup_bytes: u32,
    /// Maximum number of lanes of a workgroup.
    pub workgroup_lanes: u32,
    /// Whether lanes have few or many registers.
    pub registers: Registers,
    /// Maximum size of a binding, in bytes.
    pub binding_bytes: u64,
    /// Sizes of work at which one kernel, tile or split overtakes another.
    pub tuning: Tuning,
    /// Variants that the driver gets wrong.
    pub verdicts: Verdicts,
}

impl DeviceProfile {
    /// A GPU with WebGPU's default limits and few registers, at baseline level.
    pub const WEBGPU: Self = Self {
        software: false,
        level: Level::Baseline,
        subgroups: [4, 128],
        matrices: None,
        workgroup_bytes: 16 << 10,
        workgroup_lanes: 256,
        registers: Registers::Few,
        binding_bytes: 128 << 20,
        tuning: Tuning::H200,
        verdicts: Verdicts::NONE,
    };

    /// An H100 or H200 of NVIDIA under its Vulkan driver.
    pub const H200: Self = Self {
        level: Level::Coop,
        subgroups: [32, 32],
        matrices: Some(Matrices::NVIDIA),
        workgroup_bytes: 48 << 10,
        workgroup_lanes: 1024,
        registers: Registers::Many,
        binding_bytes: (1 << 31) - 1,
        ..Self::WEBGPU
    };

    /// Sets the smallest and largest number of lanes of a subgroup.
    #[must_use]
    pub const fn subgroups(self, smallest: u32, largest: u32) -> Self {
        Self { subgroups: [smallest, largest], ..self }
    }

    /// Sets the cooperative matrices of kernels of [`Level::Coop`]; `None` if they do not run.
    #[must_use]
    pub fn with_matrices(self, matrices: Option<Matrices>) -> Self {
        let level = if matrices.is_some() { Level::Coop } else { self.level.min(Level::Subgroup) };
        Self { matrices, level, ..self }
    }

    /// Whether a variant runs on this device: the device has its level and subgroups of sizes that it serves, and the
    /// driver computes it correctly.
    #[must_use]
    pub fn runs(&self, variant: &Variant) -> bool {
        variant.level <= self.level
            && self.has_subgroups(variant.level, &variant.subgroups)
            && self.verdicts.allow(variant)
    }

    /// Whether a variant divides its work in a way that suits this device. The division must suit the registers; a
    /// division for software drivers suits only such drivers.
    #[must_use]
    pub fn suits(&self, variant: &Variant) -> bool {
        self.registers.suit(variant) && (self.software || !variant.software)
    }

    /// Whether all subgroup sizes in kernels of `level` are within `lanes`.
    pub(crate) fn has_subgroups(&self, level: Level, lanes: &RangeInclusive<u32>) -> bool {
        match (level, self.matrices) {
            (Level::Baseline, _) => true,
            (Level::Coop, Some(matrices)) => lanes.contains(&matrices.lanes()),
            _ => self.subgroups.iter().all(|size| lanes.contains(size)),
        }
    }

    /// Whether the device has `level`, and no variant of `kernel` there is known to be wrong, except for codes of another
    /// type than `dtype`. This check is for choices between kernels, before the variant is known in full.
    #[must_use]
    pub fn trusts(&self, kernel: &Kernel, level: Level, dtype: KvDtype) -> bool {
        level <= self.level && self.verdicts.allow_all(kernel, level, dtype)
    }

    /// Returns the variant of the highest level that the device runs; the baseline variant if it runs none.
    #[must_use]
    pub fn best(&self, variant: impl Fn(Level) -> Variant) -> Variant {
        let best = variant(self.level);
        if self.runs(&best) { best } else { variant(Level::Baseline) }
    }

    /// Sets whether results may be rounded to f16, a condition of cooperative matrices.
    #[must_use]
    pub fn rounded(self, rounded: bool) -> Self {
        if rounded { self } else { self.level(self.level.min(Level::Subgroup)) }
    }

    /// Whether kernels with cooperative matrices run.
    #[must_use]
    pub fn runs_matrices(&self) -> bool {
        self.level == Level::Coop
    }

    /// Whether the device runs kernels with workgroups of 32 lanes, which must be whole subgroups.
    #[must_use]
    pub fn runs_single_units(&self) -> bool {
        self.runs_matrices() && self.matrices.is_some_and(|matrices| matrices.lanes() <= UNIT)
    }

    /// Returns the number of lanes of a subgroup, if all subgroups have the same number.
    #[must_use]
    pub fn subgroup_size(&self) -> Option<u32> {
        let [smallest, largest] = self.subgroups;
        (smallest == largest).then_some(smallest)
    }

    /// Whether eight lanes may load for each other, which pays if a load of all lanes at one address is cheap: on
    /// software drivers with subgroups of at least eight.
    #[must_use]
    pub fn broadcasts(&self) -> bool {
        self.software && self.level >= Level::Subgroup && self.subgroups[0] >= 8
    }
}

impl Registers {
    /// Whether the division of work of `variant` suits devices of this register class. A division that does not
    /// depend on registers always does.
    #[must_use]
    pub fn suit(self, variant: &Variant) -> bool {
        variant.registers.is_none_or(|registers| registers == self)
    }
}

/// Sizes of work at which one kernel, tile or split overtakes another.
///
/// The device decides `coded_rows`, `few_coded_rows`, `few_rows` and `plain_tiles`, between two kernels that both may multiply:
/// they are measured when an engine first uses it, and those of an H200 stand for what its times do not decide. The others are
/// constants, each for a reason of its own. Those that fill a device are of the 132 multiprocessors of an H200; a smaller device
/// is full with them too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Setters)]
#[non_exhaustive]
pub struct Tuning {
    /// Number of workgroups of tiles that fill the device, for prompts and for products with cooperative matrices:
    /// two per multiprocessor. A few more would wait for the first to end. Twice as many are faster for sixteen rows
    /// after 100,000 tokens of Llama 3 8B, 56 in place of 62 ms a step, and slower for 256 rows after 20,000.
    ///
    /// A constant: it decides where sums are cut, also of results that must not depend on a measurement.
    pub tiles: u32,
    /// Number of tiles that fill the device in products without matrices. From this number on, large tiles beat small
    /// ones, and tiles of codes beat lanes. Measured.
    pub plain_tiles: u32,
    /// Number of workgroups of `paged_decode` that fill the device. With fewer, smaller partitions are faster; with
    /// more, larger ones.
    ///
    /// A constant: it depends on heads, lengths and the cache's type, so that no one shape shows it, and splits change last bits.
    pub decode: DecodeWorkgroups,
    /// Maximum number of keys of a partition that is split to fill the device. A constant, as `decode` is.
    pub max_partition: u32,
    /// Minimum number of keys of a part of a tile for which a split pays, although each part writes an output. A
    /// constant, as `decode` is.
    pub min_part_keys: u32,
    /// Number of weights of a matrix below which a few rows wait for dispatches rather than for weights: one dispatch
    /// with f32 then beats two with codes, or a few workgroups of matrices (SmolLM2 of 135M lost a fifth with one
    /// stream by codes).
    ///
    /// A constant: it decides on the rounding of results that must not depend on a measurement, and products that are timed alone
    /// do not wait as those of a step do.
    pub small_weights: u64,
    /// Maximum number of rows that a matrix of fewer than `small_weights` multiplies by one dispatch with f32: 32 rows of 1,024 x
    /// 1,024 take 13.6 us, and 15.5 by matrices, 64 rows 22.6 and 15.8. A constant, because matrices of this kind have no common
    /// size.
    pub small_rows: u32,
    /// Maximum number of rows that integer dot products multiply faster than cooperative matrices, which multiply 16 rows or
    /// none: decode steps of Llama 3 8B as `Q4_K` with 2, 4 and 8 rows take 3.5, 4.3 and 6.7 ms by codes, 5.5, 5.6 and 5.8 by
    /// matrices. Measured.
    pub coded_rows: u32,
    /// Maximum number of rows that `matmul_int8` multiplies faster than `matmul_int8_tile`, whose tiles would be mostly empty.
    /// Measured.
    pub few_coded_rows: u32,
    /// Maximum number of rows that `matmul` multiplies faster than `matmul_tile`, whose tiles would be mostly empty.
    /// Measured.
    pub few_rows: u32,
    /// Minimum number of activations read by products for which it pays to round them to f16 beforehand: reading the
    /// bytes that this saves would take longer than a dispatch. A constant: no one shape shows it, because it depends
    /// on columns as much as on rows.
    pub worth_rounding: u64,
    /// Minimum number of experts per pair of row and expert for which most pairs have an expert of their own, so that
    /// a tile of 16 rows would multiply one row. With 128 experts, 64 pairs are faster with matrices, and 8 pairs
    /// with f32. A constant: the model decides which experts a step meets, and no product alone shows it.
    pub experts_a_pair: u32,
}

/// Number of workgroups of `paged_decode` that fill a device, by kind of workgroup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeWorkgroups {
    /// Number of workgroups with groups of more than two heads.
    pub many_heads: u32,
    /// Number of workgroups with groups of one or two heads, which take few registers, so that more of them run at once.
    pub few_heads: u32,
    /// Number of workgroups with cooperative matrices, each of which is a single subgroup.
    pub matrices: u32,
}

impl Tuning {
    /// Tuning measured on an H200.
    pub const H200: Self = Self {
        tiles: 264,
        plain_tiles: 128,
        decode: DecodeWorkgroups { many_heads: 400, few_heads: 800, matrices: 1000 },
        max_partition: 2048,
        min_part_keys: 1024,
        small_weights: 4 << 20,
        small_rows: 32,
        coded_rows: 4,
        few_coded_rows: 8,
        few_rows: 8,
        worth_rounding: 16 << 20,
        experts_a_pair: 4,
    };

    /// Sets the maximum numbers of rows for which `matmul_int8` is faster than cooperative matrices, `matmul_int8`
    /// faster than `matmul_int8_tile`, and `matmul` faster than `matmul_tile`.
    #[must_use]
    pub const fn rows(self, coded: u32, few_coded: u32, few: u32) -> Self {
        Self { coded_rows: coded, few_coded_rows: few_coded, few_rows: few, ..self }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self::H200
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::attention::Attention;
    use crate::kernel::paged_decode::{self, Lanes};
    use crate::kernel::strided_qk::Scorer;
    use crate::kernel::top_k::{self, Output};
    use crate::kernel::{KvLayout, KvShape};

    #[test]
    fn lanes_with_few_registers_read_codes_through_workgroup_memory() {
        let of = |registers, dtype| {
            let profile = DeviceProfile::H200.with_matrices(None).registers(registers);
            let shape =
                KvShape { num_kv_heads: 8, head_dim: 128, block_size: 16, dtype, layout: KvLayout::Native };
            let form = Lanes::of(&profile, &shape, 32, 1);
            assert!(registers.suit(&paged_decode::variant(&shape, 32, form, &Attention::default())));
            form
        };
        assert_eq!(of(Registers::Few, KvDtype::Int8), Lanes::Workgroup);
        assert_eq!(of(Registers::Many, KvDtype::Int8), Lanes::Subgroup(32));
        assert_eq!([Registers::Few, Registers::Many].map(|r| of(r, KvDtype::F16)), [Lanes::Subgroup(32); 2]);
    }

    /// Tests the choice alone: no kernel runs, because the driver here does not have most of these sizes.
    #[test]
    fn subgroups_of_every_size_get_kernels_that_serve_them() {
        for lanes in [4, 8, 16, 32, 64, 128] {
            let profile = DeviceProfile::WEBGPU.level(Level::Subgroup).subgroups(lanes, lanes);
            let shape = KvShape {
                num_kv_heads: 8,
                head_dim: 128,
                block_size: 16,
                dtype: KvDtype::F16,
                layout: KvLayout::Native,
            };
            let form = Lanes::of(&profile, &shape, 16, 1);
            let top_k = top_k::best(&profile, Output::List);
            let decode = paged_decode::variant(&shape, 16, form, &Attention::default());
            for variant in [&decode, &top_k] {
                assert!(profile.runs(variant), "{lanes}: {}", variant.kernel.name);
            }
            let software = DeviceProfile { software: true, ..profile };
            let broadcasts = software.broadcasts();
            let strided = Scorer::best(&software, &shape, 8, 128).scores.kernel.name;
            assert_eq!(strided == "strided_qk_broadcast", lanes == 8, "{lanes}: {strided}");
            let served = crate::variants().into_iter().filter(|named| profile.runs(&named.variant));
            let by_subgroups = served.filter(|named| named.level() == Level::Subgroup).count();
            // Heads of 128 elements are more than eight lanes own.
            assert!(
                (form == Lanes::Subgroup(32)) == (lanes == 32)
                    && by_subgroups > 0
                    && broadcasts == (lanes >= 8),
                "{lanes}: {form:?}"
            );
        }
    }
}
