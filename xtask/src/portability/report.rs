//! Answers of compilers, and the figures in them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Properties of a device that decide which kernels it gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    /// Name of the device.
    pub(super) device: String,
    /// Driver of the device, with the version.
    pub(super) driver: String,
    /// Version of Vulkan.
    pub(super) vulkan: String,
    /// PCI id of the adapter's vendor.
    pub(super) vendor: u32,
    /// Whether the device is a software driver.
    pub(super) is_cpu: bool,
    /// Minimum and maximum number of lanes of a subgroup.
    pub(super) subgroups: (u32, u32),
    /// Whether the device has the subgroup operations that wgpu requires.
    pub(super) subgroup_operations: bool,
    /// Whether shaders have the type f16.
    pub(super) f16: bool,
    /// Whether shaders have a type of 8 bits.
    pub(super) int8: bool,
    /// Shapes of cooperative matrices, with the types of factors and sums.
    pub(super) matrices: Vec<String>,
    /// Bytes of workgroup memory.
    pub(super) workgroup_bytes: u32,
    /// Number of invocations of a workgroup.
    pub(super) workgroup_lanes: u32,
}

/// A program into which the driver compiled a pipeline, with statistics by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Executable {
    /// Name of the kernel variant.
    pub(super) name: String,
    /// Number of lanes of its subgroups.
    pub(super) subgroup: u32,
    /// Values by the driver's names.
    pub(super) statistics: BTreeMap<String, f64>,
}

/// Answer of a compiler about one module: its programs, or why it is refused.
pub(super) type Answer = Result<Vec<Executable>, String>;

/// Figures of a compiled kernel, as far as its compiler tells them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(super) struct Figures {
    /// Number of lanes of a subgroup.
    pub(super) subgroup: Option<u64>,
    /// Number of registers of a lane.
    pub(super) registers: Option<u64>,
    /// Number of registers that went to memory, or of moves of registers to memory.
    pub(super) spills: Option<u64>,
    /// Number of subgroups that a compute unit holds at a time.
    pub(super) waves: Option<u64>,
}

/// Names of a figure in the statistics of RADV, ANV, NVK, Turnip and Honeykrisp, in this order as far as they have one.
/// Honeykrisp names spills as ANV does.
const REGISTERS: [&str; 5] = ["VGPRs", "Max live registers", "Number of GPRs", "Registers used", "GPRs"];
const SPILLS: [&str; 4] = ["Spilled VGPRs", "Spills", "Spills to memory", "STP Count"];
const WAVES: [&str; 3] = ["Subgroups per SIMD", "Max warps/SM", "Max Waves Per Core"];
/// Name of a statistic of Honeykrisp: the number of lanes that a core runs at a time, in place of a number of subgroups.
const LANES: &str = "Threads";

impl Figures {
    /// Reads the figures of one kernel from its last program. Drivers that make several programs list the one with the
    /// widest subgroups last.
    #[expect(clippy::cast_possible_truncation, reason = "counts, which drivers give in any format")]
    pub(super) fn of(executables: &[Executable]) -> Self {
        let Some(program) = executables.last() else { return Self::default() };
        let value = |name: &str| program.statistics.get(name).map(|value| *value as u64);
        let first = |names: &[&str]| names.iter().find_map(|name| value(name));
        let lanes = u64::from(program.subgroup);
        Self {
            subgroup: (lanes > 0).then_some(lanes),
            registers: first(&REGISTERS),
            spills: first(&SPILLS),
            waves: first(&WAVES).or_else(|| value(LANES)?.checked_div(lanes)),
        }
    }
}

/// One kernel on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct KernelRow {
    /// Id of the device.
    pub(super) device: &'static str,
    /// Name and level of the kernel: `paged_decode-f16.baseline`.
    pub(super) kernel: String,
    /// Reason of a refusal; none if the kernel was accepted.
    pub(super) refused: Option<String>,
    /// Figures of the compiled kernel.
    #[serde(flatten)]
    pub(super) figures: Figures,
    /// Bytes of workgroup memory.
    pub(super) workgroup_bytes: u32,
    /// All figures that the driver reports.
    pub(super) programs: Vec<Executable>,
}

impl KernelRow {
    /// A row from a compiler's answer.
    pub(super) fn new(device: &'static str, kernel: &str, workgroup_bytes: u32, answer: Answer) -> Self {
        let (refused, programs) = match answer {
            Ok(programs) => (None, programs),
            Err(reason) => (Some(reason), Vec::new()),
        };
        let figures = Figures::of(&programs);
        Self { device, kernel: kernel.to_owned(), refused, figures, workgroup_bytes, programs }
    }
}
