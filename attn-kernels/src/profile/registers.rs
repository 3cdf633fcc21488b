//! Numbers of registers of lanes, by which kernels divide their work.

/// Class of the number of 32-bit registers that a lane has before its values spill to memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Registers {
    /// 128 or fewer: devices of Apple, Qualcomm, Arm and Intel, and unknown devices.
    Few,
    /// About 256: devices of NVIDIA and AMD, and processors, whose values are in caches.
    Many,
}

/// Vendors whose lanes have many registers, by their PCI ids: NVIDIA and AMD.
const MANY: [u32; 2] = [0x10de, 0x1002];

impl Registers {
    /// Both register classes, with the beginnings of the names of variants that are specialised for them.
    pub const DIVISIONS: [(&str, Self); 2] = [("", Self::Many), ("lean-", Self::Few)];

    /// Returns the register class of GPUs of the vendor with this PCI id: few for Metal, which reports no vendor.
    /// `None` stands for a processor.
    #[must_use]
    pub fn of_vendor(vendor: Option<u32>) -> Self {
        if vendor.is_none_or(|vendor| MANY.contains(&vendor)) { Self::Many } else { Self::Few }
    }
}
