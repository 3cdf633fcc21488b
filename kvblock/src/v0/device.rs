use core::fmt;

/// Memory that a block lives in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Device {
    /// Device memory, which attention reads.
    Gpu,
    /// Host memory, for swapped-out blocks.
    Cpu,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpu => "the GPU",
            Self::Cpu => "the CPU",
        })
    }
}
