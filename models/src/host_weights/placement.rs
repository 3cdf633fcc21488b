//! Decision which layers keep their weights in host memory.

use attn_kernels::rows::BlockCopy;

use crate::ModelError;
use crate::cast::u32_of;

/// Sizes of a model's weights as a device holds them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WeightOutline {
    /// Bytes that are always on the device: embedding, output head, norms and other vectors.
    pub(crate) fixed_bytes: u64,
    pub(crate) layers: Vec<LayerOutline>,
}

/// Sizes of the matrices of a layer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct LayerOutline {
    /// Bytes if each matrix has its own buffer.
    pub(crate) bytes: u64,
    /// Bytes of the buffers that the matrices fill one after the other, none larger than a binding.
    pub(crate) buffers: Vec<u64>,
}

impl LayerOutline {
    /// Allocates a plane of `bytes` bytes in buffers of at most `max_bytes`. Returns the buffer's index and the plane's offset.
    pub(super) fn take(&mut self, bytes: u64, max_bytes: u64) -> (usize, u64) {
        self.bytes += bytes;
        let at = self.buffers.last().map(|end| end.next_multiple_of(ALIGN));
        let at = at.filter(|at| at + bytes <= max_bytes).unwrap_or_else(|| {
            self.buffers.push(0);
            0
        });
        let buffer = self.buffers.len() - 1;
        self.buffers[buffer] = at + bytes;
        (buffer, at)
    }
}

/// Division of a model's weights between device and host memory.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct WeightPlacement {
    /// Number of layers.
    pub num_layers: u32,
    /// Layers whose matrices are in host memory, ascending; none if all weights are on the device.
    pub host_layers: Vec<u32>,
    /// Bytes of weights on the device, including slots for the layers on the host.
    pub device_bytes: u64,
    /// Bytes of weights in host memory, all of which every step copies to the device.
    pub host_bytes: u64,
    /// Number of slots on the device: one receives a layer while another layer is computed.
    pub(crate) slots: u32,
    /// Bytes of the buffers of a slot.
    pub(crate) slot_bytes: Vec<u64>,
    /// Bytes of a copied block. Buffers of slots and of layers consist of whole blocks.
    pub(crate) block_bytes: u64,
}

/// Alignment of bindings in bytes: the largest that devices require.
const ALIGN: u64 = 256;

/// Number of slots: one receives a layer while another is computed.
const SLOTS: u32 = 2;

/// Bytes of a block: a workgroup copies it in four rounds, so that reading the block's number hardly costs time.
pub(super) const BLOCK_BYTES: u64 = 64 << 10;

/// Bytes of a block of small layers, so that they are copied in portions too.
const SMALL_BLOCK_BYTES: u64 = 1 << 10;

/// Bytes that each block of a buffer takes in the list of a copy.
const LISTED_BYTES: u64 = size_of::<BlockCopy>() as u64;

/// Minimum number of bytes of a layer's buffer that is divided into large blocks.
const LARGE_BYTES: u64 = 16 << 20;

impl WeightPlacement {
    /// Returns the placement with the fewest layers on the host that takes at most `budget_bytes` of the device. O(layers²).
    ///
    /// # Errors
    /// [`ModelError::WeightBudget`] where none does.
    pub(crate) fn within(outline: &WeightOutline, budget_bytes: u64) -> Result<Self, ModelError> {
        let all = || (0..=outline.layers.len()).map(|count| Self::of(outline, count));
        all().find(|placement| placement.device_bytes <= budget_bytes).ok_or_else(|| {
            let needed_bytes = all().map(|placement| placement.device_bytes).min().unwrap_or(0);
            ModelError::WeightBudget { budget_bytes, needed_bytes, fixed_bytes: outline.fixed_bytes }
        })
    }

    /// Returns the placement with `count` layers on the host. They are spread evenly, so that the same amount of
    /// computation overlaps with each copy. The last layer is always on the host, since no copy could overlap with layers
    /// after it. If gaps differ, the first gap is a long one, since the first copy overlaps with one layer less.
    fn of(outline: &WeightOutline, count: usize) -> Self {
        let layers = &outline.layers;
        let on_host: Vec<usize> = (1..=count).map(|n| (n * layers.len()).div_ceil(count) - 1).collect();
        let buffers = || on_host.iter().flat_map(|layer| &layers[*layer].buffers).copied();
        let large = buffers().max().unwrap_or(0) >= LARGE_BYTES;
        let block_bytes = if large { BLOCK_BYTES } else { SMALL_BLOCK_BYTES };
        let mut slot_bytes: Vec<u64> = Vec::new();
        for layer in &on_host {
            let buffers = &layers[*layer].buffers;
            slot_bytes.resize(slot_bytes.len().max(buffers.len()), 0);
            for (slot, bytes) in slot_bytes.iter_mut().zip(buffers) {
                *slot = (*slot).max(bytes.next_multiple_of(block_bytes));
            }
        }
        let slots = SLOTS.min(u32_of(count));
        let blocks = slot_bytes.iter().max().unwrap_or(&0) / block_bytes;
        let of_list = (blocks * LISTED_BYTES).next_multiple_of(16);
        let of_slots = u64::from(slots) * slot_bytes.iter().sum::<u64>() + of_list;
        let resident = (0..layers.len()).filter(|layer| on_host.binary_search(layer).is_err());
        let resident_bytes: u64 = resident.map(|layer| layers[layer].bytes).sum();
        Self {
            num_layers: u32_of(layers.len()),
            device_bytes: outline.fixed_bytes + resident_bytes + of_slots,
            host_bytes: buffers().map(|bytes| bytes.next_multiple_of(block_bytes)).sum(),
            host_layers: on_host.into_iter().map(u32_of).collect(),
            slots,
            slot_bytes,
            block_bytes,
        }
    }

    /// Returns the position of a layer among those on the host, if it is one.
    pub(crate) fn order(&self, layer: usize) -> Option<usize> {
        self.host_layers.binary_search(&u32_of(layer)).ok()
    }
}

/// Address of a plane in a slot, and in the buffers of its layer on the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlotPlace {
    pub(super) slot: u32,
    /// Index of the buffer in the slot.
    pub(super) buffer: u32,
    /// Offset in units of 16 bytes.
    pub(super) quad: u32,
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use proptest::prelude::*;

    use super::*;

    fn outline(fixed_bytes: u64, layers: &[u64]) -> WeightOutline {
        let layer = |bytes: &u64| LayerOutline { bytes: *bytes, buffers: vec![*bytes] };
        WeightOutline { fixed_bytes, layers: layers.iter().map(layer).collect() }
    }

    const MIB: u64 = 1 << 20;

    /// Draws the layers in order: `#` on the device, `.` on the host.
    fn drawn(outline: &WeightOutline, budget_mib: u64) -> String {
        match WeightPlacement::within(outline, budget_mib * MIB) {
            Ok(placement) => {
                let mark = |layer| if placement.order(layer).is_some() { '.' } else { '#' };
                let layers: String = (0..outline.layers.len()).map(mark).collect();
                let [device, host] = [placement.device_bytes, placement.host_bytes].map(|bytes| bytes / MIB);
                format!("{budget_mib:>5} {layers} {device:>5} on the device {host:>5} on the host")
            }
            Err(error) => format!("{budget_mib:>5} {error}"),
        }
    }

    #[test]
    fn as_few_layers_as_must_go_to_the_host_evenly() {
        let even = outline(1000 * MIB, &[200 * MIB; 16]);
        // A mixture of experts whose first layers are dense.
        let experts = outline(500 * MIB, &[[50 * MIB; 3].as_slice(), &[900 * MIB; 9]].concat());
        let rows = [4200, 4199, 3801, 3001, 2601, 2001, 1401, 1400].map(|budget| drawn(&even, budget));
        let others = [9000, 8000, 5000, 2301, 2300].map(|budget| drawn(&experts, budget));
        assert_snapshot!([&rows[..], &others].concat().join("\n"), @"
         4200 ################  4200 on the device     0 on the host
         4199 #####.####.####.  4000 on the device   600 on the host
         3801 ###.###.###.###.  3800 on the device   800 on the host
         3001 #.#.#.#.#.#.#.#.  3000 on the device  1600 on the host
         2601 #.#..#..#.#..#..  2600 on the device  2000 on the host
         2001 #....#....#.....  2000 on the device  2600 on the host
         1401 ................  1400 on the device  3200 on the host
         1400 1468006400 bytes for weights on the device are too few: 1468032000 are needed, 1048576000 of them for embedding, output head and vectors, the others for two of the largest layers
         9000 ############  8750 on the device     0 on the host
         8000 ###.###.###.  7850 on the device  2700 on the host
         5000 #...#...#...  4150 on the device  6400 on the host
         2301 ............  2300 on the device  8250 on the host
         2300 2411724800 bytes for weights on the device are too few: 2411840000 are needed, 524288000 of them for embedding, output head and vectors, the others for two of the largest layers
        ");
    }

    proptest! {
        /// Planes follow each other at aligned offsets, and a buffer ends if the next plane does not fit.
        #[test]
        fn planes_fill_buffers_one_behind_the_other(planes in prop::collection::vec(1..40_u64, 1..60)) {
            const MAX_BYTES: u64 = 1024;
            let mut layer = LayerOutline::default();
            let mut last = (0, 0..0);
            for (n, bytes) in planes.iter().map(|quads| quads * 16).enumerate() {
                let (buffer, at) = layer.take(bytes, MAX_BYTES);
                prop_assert!(at % ALIGN == 0 && at + bytes <= MAX_BYTES);
                let (before, range): (usize, std::ops::Range<u64>) = last;
                if buffer == before {
                    prop_assert!(at >= range.end && at - range.end < ALIGN);
                } else {
                    prop_assert_eq!((buffer, at), (before + 1, 0), "plane {}", n);
                    prop_assert!(range.end.next_multiple_of(ALIGN) + bytes > MAX_BYTES);
                }
                prop_assert_eq!(layer.buffers[buffer], at + bytes);
                last = (buffer, at..at + bytes);
            }
            prop_assert_eq!(layer.bytes, planes.iter().sum::<u64>() * 16);
        }

        /// Compares with the definition: every count of layers is tried, and none with fewer layers on the host fits.
        #[test]
        fn a_budget_is_kept_wherever_some_placement_keeps_it(
            fixed in 0..1000_u64,
            layers in prop::collection::vec(1..5000_u64, 1..40),
            budget in 0..200_000_u64,
        ) {
            let layers: Vec<u64> = layers.iter().map(|kib| kib * 1024).collect();
            let (outline, budget) = (outline(fixed * 1024, &layers), budget * 1024);
            let total = outline.fixed_bytes + layers.iter().sum::<u64>();
            match WeightPlacement::within(&outline, budget) {
                Ok(placement) => {
                    prop_assert!(placement.device_bytes <= budget);
                    let on_host = |l: usize| placement.host_layers.contains(&u32::try_from(l).unwrap());
                    let (host, device): (Vec<usize>, Vec<usize>) = (0..layers.len()).partition(|l| on_host(*l));
                    let sum = |of: &[usize]| of.iter().map(|l| layers[*l]).sum::<u64>();
                    let largest = host.iter().map(|l| layers[*l]).max().unwrap_or(0);
                    let slots = largest * host.len().min(2) as u64 + (largest / 1024 * 8).next_multiple_of(16);
                    prop_assert_eq!(placement.host_bytes, sum(&host));
                    prop_assert_eq!(placement.device_bytes, outline.fixed_bytes + sum(&device) + slots);
                    prop_assert_eq!(host.is_empty(), total <= budget);
                    // Between two of them lie as many layers, or one more.
                    let gaps: Vec<usize> = host.windows(2).map(|pair| pair[1] - pair[0]).collect();
                    let (least, max) = (gaps.iter().min(), gaps.iter().max());
                    prop_assert!(least.zip(max).is_none_or(|(least, max)| max - least <= 1));
                }
                Err(ModelError::WeightBudget { needed_bytes, .. }) => {
                    prop_assert!(needed_bytes > budget);
                    prop_assert!(WeightPlacement::within(&outline, needed_bytes).is_ok());
                    prop_assert!(WeightPlacement::within(&outline, needed_bytes - 1).is_err());
                }
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }
}
