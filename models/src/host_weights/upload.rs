//! Packing on all processors, directly into memory that the device copies from if the matrix is on the device.

use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;

use bytemuck::Pod;

use super::allocator::{PlaneWriter, WeightAllocator};
use super::plane::Plane;
use crate::pack::{BLOCK, Format, Packed};
use crate::{Dtype, ModelError, Size};

/// Bytes of a matrix below which packing is faster than starting threads.
const SMALL: usize = 4 << 20;

/// A matrix to be packed: several parts of `cols` columns each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    /// Number of input features.
    pub(crate) width: usize,
    pub(crate) parts: usize,
    pub(crate) cols: usize,
    /// Number of columns of a part that are packed at a time.
    pub(crate) group: usize,
}

/// A packed matrix.
#[derive(Debug)]
pub(crate) struct Planes {
    pub(crate) quants: Plane<[u32; 4]>,
    pub(crate) scales: Plane<u32>,
}

impl Columns<'_> {
    /// Packs the matrix. `fill` writes a range of columns of every part to a matrix of only these columns; it runs on
    /// several threads. Host memory holds the packed matrix once, and one group per processor.
    pub(crate) fn upload(
        &self,
        allocator: &WeightAllocator<'_>,
        fill: impl Fn(&mut Packed, Range<usize>) -> Result<(), ModelError> + Sync,
    ) -> Result<Planes, ModelError> {
        let Self { name, dtype, width, parts, cols, group } = *self;
        let (format, blocks) = (Format::from(dtype), width.div_ceil(BLOCK));
        let mut quants = allocator.begin(name, format.quads(blocks) * cols * parts)?;
        let mut scales = allocator.begin(name, format.scale_words(blocks) * cols * parts)?;
        if allocator.only_measures() {
            return Ok(Planes { quants: quants.end()?, scales: scales.end()? });
        }
        let mut put = |range: &Range<usize>, packed: &Packed| {
            self.put(&mut quants, &packed.quants, range);
            self.put(&mut scales, &packed.scales, range);
            allocator.progress().add(self.size(range.len()));
        };
        let pack = |index: usize| {
            let range = index * group..((index + 1) * group).min(cols);
            let mut packed = Packed::new(dtype, width, range.len() * parts);
            fill(&mut packed, range.clone()).map(|()| (range, packed))
        };
        let groups = cols.div_ceil(group);
        let small = format.column_bytes(blocks) * cols * parts < SMALL;
        let threads =
            if small { 1 } else { thread::available_parallelism().map_or(1, NonZero::get).min(groups) };
        if threads == 1 {
            for index in 0..groups {
                let (range, packed) = pack(index)?;
                put(&range, &packed);
            }
        } else {
            let next = AtomicUsize::new(0);
            thread::scope(|scope| {
                let (sender, packed) = sync_channel(threads);
                for _ in 0..threads {
                    let (sender, next, pack) = (sender.clone(), &next, &pack);
                    scope.spawn(move || {
                        loop {
                            let index = next.fetch_add(1, Ordering::Relaxed);
                            // Nobody listens any more once a group could not be packed.
                            if index >= groups || sender.send(pack(index)).is_err() {
                                return;
                            }
                        }
                    });
                }
                drop(sender);
                packed.into_iter().try_for_each(|group| {
                    let (range, packed) = group?;
                    put(&range, &packed);
                    Ok::<_, ModelError>(())
                })
            })?;
        }
        Ok(Planes { quants: quants.end()?, scales: scales.end()? })
    }

    /// Returns the size of `cols` columns of all parts, as tensors store them.
    pub(crate) fn size(&self, cols: usize) -> Size {
        let cols = (cols * self.parts) as u64;
        let bytes = self.dtype.bytes_for(self.width).expect("rows of a tensor are whole blocks") as u64;
        Size { bytes: bytes * cols, elements: self.width as u64 * cols }
    }

    /// Writes a plane of the columns in `range`.
    fn put<T: Pod>(&self, to: &mut PlaneWriter<'_, T>, plane: &[T], range: &Range<usize>) {
        for (row, words) in plane.chunks_exact(range.len() * self.parts).enumerate() {
            for (part, words) in words.chunks_exact(range.len()).enumerate() {
                to.put((row * self.parts + part) * self.cols + range.start, words);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::sync::Mutex;

    use attn_kernels::gpu::{Buf, Checks, Gpu, GpuOptions};
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::{LoadProgress, Tensor};

    fn on_device<T: std::fmt::Debug>(plane: Plane<T>) -> Buf<T> {
        match plane {
            Plane::Device(buf) => buf,
            other => panic!("{other:?}"),
        }
    }

    /// Tests shapes on both sides of [`SMALL`], with and without a partial group at the end.
    #[test]
    fn packed_by_threads_is_packed_at_once() {
        let gpu = Gpu::open(&GpuOptions::new(Checks::On)).unwrap();
        let mut rng = StdRng::seed_from_u64(1);
        for (dtype, width, cols, parts) in [
            (Dtype::Q4_K, 1024, 5003, 2),
            (Dtype::Q8_0, 96, 70, 1),
            (Dtype::Q6_K, 2048, 3008, 1),
            (Dtype::F16, 1000, 1100, 2),
        ] {
            let tensors: Vec<_> = (0..parts)
                .map(|_| {
                    let mut data = vec![0; cols * dtype.bytes_for(width).unwrap()];
                    rng.fill_bytes(&mut data);
                    let (name, shape) = (Cow::Borrowed("w"), vec![cols, width]);
                    Tensor { name, dtype, shape, data: data.into() }
                })
                .collect();
            let fill = |packed: &mut Packed, range: Range<usize>| {
                for (part, tensor) in tensors.iter().enumerate() {
                    packed.fill(tensor, range.clone(), part * range.len());
                }
                Ok(())
            };
            let mut want = Packed::new(dtype, width, cols * parts);
            fill(&mut want, 0..cols).unwrap();
            let columns = Columns { name: "w", dtype, width, parts, cols, group: 64 };
            let Planes { quants, scales } =
                columns.upload(&WeightAllocator::device(&gpu, 0).in_buffers(), fill).unwrap();
            let (quants, scales) = (on_device(quants), on_device(scales));
            assert!(gpu.read(&quants, 0..want.quants.len()).unwrap() == want.quants, "quants of {dtype}");
            assert!(gpu.read(&scales, 0..want.scales.len()).unwrap() == want.scales, "scales of {dtype}");
        }
    }

    #[test]
    fn groups_count_when_they_are_packed() {
        let gpu = Gpu::open(&GpuOptions::new(Checks::On)).unwrap();
        let progress = LoadProgress::default();
        let columns = Columns { name: "w", dtype: Dtype::F32, width: 32, parts: 2, cols: 200, group: 64 };
        let whole = columns.size(200);
        assert_eq!((whole.elements, whole.bytes), (2 * 32 * 200, 4 * 2 * 32 * 200));
        progress.begin_tensor(whole, Size::default());
        let allocator = WeightAllocator::device(&gpu, 0).counting(&progress);
        let seen = Mutex::new(Vec::new());
        // A small matrix, which this thread packs.
        let fill = |_: &mut Packed, _| {
            seen.lock().unwrap().push(progress.loaded().elements / (2 * 32));
            Ok(())
        };
        columns.upload(&allocator, fill).unwrap();
        assert_eq!(*seen.lock().unwrap(), [0, 64, 128, 192]);
        assert_eq!(progress.loaded().bytes, whole.bytes);
    }

    #[test]
    fn a_group_that_fails_ends_the_upload() {
        let gpu = Gpu::open(&GpuOptions::new(Checks::On)).unwrap();
        let columns = Columns { name: "w", dtype: Dtype::F32, width: 1024, parts: 1, cols: 4096, group: 64 };
        let failed = columns.upload(&WeightAllocator::device(&gpu, 0), |_, range| match range.start {
            1280.. => Err(ModelError::Unsupported { feature: "column 1280" }),
            _ => Ok(()),
        });
        assert!(matches!(failed, Err(ModelError::Unsupported { .. })), "{failed:?}");
    }
}
