//! Typed device buffers.

use super::{Gpu, GpuError, HOST_BUFFERS};
use crate::WINDOW_BYTES;
use bytemuck::Pod;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

/// A storage buffer of `T`s. Cloning shares it.
#[derive(Debug)]
pub struct Buf<T> {
    raw: Raw,
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<T> Clone for Buf<T> {
    fn clone(&self) -> Self {
        Self { raw: self.raw.clone(), len: self.len, element: PhantomData }
    }
}

/// A device buffer without its element type, as dispatches bind it. Clones share the buffer through a single
/// reference count, because recording makes one clone for each binding.
#[derive(Clone, Debug)]
pub struct Raw(Arc<Allocation>);

#[derive(Debug)]
struct Allocation {
    buffer: wgpu::Buffer,
    id: u64,
    /// Keeps the buffer's bytes in the device's accounts.
    _counted: Counted,
}

/// Bytes that count as allocated in a device's accounts until this is dropped.
#[derive(Debug)]
pub(super) struct Counted {
    bytes: u64,
    accounts: Arc<Accounts>,
    memory: Memory,
}

/// Numbers of bytes in live buffers: of all buffers, and of those in host memory.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    all: AtomicU64,
    host: AtomicU64,
}

/// Kind of memory of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Memory {
    Device,
    Host,
}

impl Accounts {
    /// Returns the accounts that include a buffer in memory of this kind.
    fn of(&self, memory: Memory) -> impl Iterator<Item = &AtomicU64> {
        [&self.all].into_iter().chain((memory == Memory::Host).then_some(&self.host))
    }
}

impl Raw {
    /// The wgpu buffer, for work outside this crate.
    #[must_use]
    pub fn wgpu(&self) -> &wgpu::Buffer {
        &self.0.buffer
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.buffer.size()
    }

    /// Number that distinguishes buffers of one device.
    pub(super) fn id(&self) -> u64 {
        self.0.id
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.accounts.of(self.memory).for_each(|account| {
            account.fetch_sub(self.bytes, Ordering::Relaxed);
        });
    }
}

impl<T> Buf<T> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the untyped buffer, to bind it.
    #[must_use]
    pub fn raw(&self) -> &Raw {
        &self.raw
    }
}

/// A storage buffer whose data are being written: see [`Gpu::begin_upload`].
#[derive(Debug)]
pub struct Upload<'a, T> {
    gpu: &'a Gpu,
    buf: Buf<T>,
    /// View for writing; `None` for a buffer without elements.
    view: Option<wgpu::QueueWriteBufferView>,
}

impl<T: Pod> Upload<'_, T> {
    /// Writes `data` from element `at` on.
    ///
    /// # Panics
    /// When `data` does not fit.
    pub fn put(&mut self, at: usize, data: &[T]) {
        if let Some(view) = &mut self.view {
            let bytes = bytemuck::cast_slice(data);
            let start = at * size_of::<T>();
            view.slice(start..start + bytes.len()).copy_from_slice(bytes);
        }
    }

    /// Submits the writes so far, and frees the memory of earlier ones. Elements that were not written are arbitrary.
    ///
    /// # Errors
    /// [`GpuError::Lost`] and what earlier work left.
    pub fn end(self) -> Result<Buf<T>, GpuError> {
        drop(self.view);
        self.gpu.fault()?;
        self.gpu.queue.submit([]);
        // Says at once what is done; what comes of it is the next wait's matter.
        let _ = self.gpu.device.poll(wgpu::PollType::Poll);
        Ok(self.buf)
    }
}

/// Usages that kernels and copies require of a buffer.
const STORAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

impl Gpu {
    /// A zeroed storage buffer of `len` elements (at least one is allocated).
    ///
    /// # Errors
    /// [`GpuError::BufferTooLarge`] over the device's limits, [`GpuError::OutOfMemory`] when memory is short.
    pub fn buffer<T: Pod>(&self, label: &str, len: usize) -> Result<Buf<T>, GpuError> {
        self.typed(label, len, STORAGE | self.uniform_usage())
    }

    /// Returns the usage that lets kernels bind a buffer as a window: `UNIFORM` on software drivers, where a load
    /// from a window is made once for all lanes, and none on other devices.
    fn uniform_usage(&self) -> wgpu::BufferUsages {
        if self.profile.software { wgpu::BufferUsages::UNIFORM } else { wgpu::BufferUsages::empty() }
    }

    /// Whether kernels and copies can use buffers in memory of the host.
    #[must_use]
    pub fn has_host_buffers(&self) -> bool {
        self.device.features().contains(HOST_BUFFERS)
    }

    /// A zeroed storage buffer in memory of the host, which the device reaches over its bus.
    ///
    /// # Errors
    /// As [`Gpu::buffer`].
    ///
    /// # Panics
    /// When the device [cannot use one](Self::has_host_buffers).
    pub fn host_buffer<T: Pod>(&self, label: &str, len: usize) -> Result<Buf<T>, GpuError> {
        assert!(self.has_host_buffers(), "{label} of {len} elements on a device without mappable storage");
        // Memory that is mapped for reading is cached memory of the host.
        self.typed(label, len, STORAGE | wgpu::BufferUsages::MAP_READ)
    }

    /// Creates a zeroed buffer in the memory that this device's driver keeps for uploads, which every device has. The
    /// host writes the buffer by [`write_mapped`](Self::write_mapped), copies and readbacks read it, and no kernel
    /// can bind it.
    ///
    /// # Errors
    /// As [`Gpu::buffer`].
    pub fn upload_buffer<T: Pod>(&self, label: &str, len: usize) -> Result<Buf<T>, GpuError> {
        self.typed(label, len, wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC)
    }

    fn typed<T: Pod>(&self, label: &str, len: usize, usage: wgpu::BufferUsages) -> Result<Buf<T>, GpuError> {
        let bytes = (len.max(1) * size_of::<T>()).next_multiple_of(16) as u64;
        Ok(Buf { raw: self.raw_buffer(label, bytes, usage)?, len, element: PhantomData })
    }

    /// A storage buffer that holds `data`.
    ///
    /// # Errors
    /// As [`Gpu::buffer`].
    pub fn upload<T: Pod>(&self, label: &str, data: &[T]) -> Result<Buf<T>, GpuError> {
        let buf = self.buffer(label, data.len())?;
        self.write(&buf, 0, data);
        Ok(buf)
    }

    /// Creates a buffer that holds `data`, on any device, with enough room after the data for a window that begins at
    /// the last element.
    ///
    /// # Errors
    /// As [`Gpu::buffer`].
    pub fn upload_windowed<T: Pod>(&self, label: &str, data: &[T]) -> Result<Buf<T>, GpuError> {
        let room = usize::try_from(WINDOW_BYTES).expect("it is small") / size_of::<T>();
        let buf = self.typed(label, data.len() + room, STORAGE | wgpu::BufferUsages::UNIFORM)?;
        self.write(&buf, 0, data);
        Ok(buf)
    }

    /// Begins a storage buffer of `len` elements whose data are written piece by piece, in any order, to memory that the
    /// device copies from.
    ///
    /// # Errors
    /// As [`Gpu::buffer`].
    pub fn begin_upload<T: Pod>(&self, label: &str, len: usize) -> Result<Upload<'_, T>, GpuError> {
        let buf = self.buffer(label, len)?;
        let bytes = wgpu::BufferSize::new((len * size_of::<T>()) as u64);
        let view = bytes.map(|bytes| self.queue.write_buffer_with(buf.raw.wgpu(), 0, bytes));
        match view {
            Some(None) => {
                let (bytes, allocated) = (buf.raw.bytes(), self.allocated_bytes());
                Err(GpuError::OutOfMemory { label: format!("{label}, on its way"), bytes, allocated })
            }
            view => Ok(Upload { gpu: self, buf, view: view.flatten() }),
        }
    }

    /// Writes `data` at element `at`, ordered before the next submission.
    ///
    /// # Panics
    /// When `data` does not fit, or `at` and the length are not multiples of 4 bytes.
    pub fn write<T: Pod>(&self, buf: &Buf<T>, at: usize, data: &[T]) {
        self.write_bytes(buf, at, bytemuck::cast_slice(data));
    }

    /// Writes the bytes of elements at element `at`, ordered before the next submission.
    ///
    /// # Panics
    /// When the bytes do not fit, or position and length are not multiples of 4 bytes.
    pub fn write_bytes<T: Pod>(&self, buf: &Buf<T>, at: usize, bytes: &[u8]) {
        let (start, all) = (at * size_of::<T>(), buf.len * size_of::<T>());
        assert!(start + bytes.len() <= all, "write of {} bytes at {start} into {all} bytes", bytes.len());
        if !bytes.is_empty() {
            self.queue.write_buffer(buf.raw.wgpu(), start as u64, bytes);
        }
    }

    /// Writes each `data` at its element of an [upload buffer](Self::upload_buffer), once the device has finished all earlier
    /// submissions. Writes to one buffer come one after the other, and are cheap if they are near each other.
    ///
    /// # Errors
    /// [`GpuError::Lost`] and what earlier work left.
    ///
    /// # Panics
    /// When `data` does not fit, or the bytes before it and of it are not multiples of 8 and of 4.
    pub fn write_mapped<T: Pod>(&self, writes: &[(&Buf<T>, usize, &[T])]) -> Result<(), GpuError> {
        let bytes = |(buf, at, data): &(&Buf<T>, usize, &[T])| {
            assert!(at + data.len() <= buf.len, "write of {} at {at} into {} elements", data.len(), buf.len);
            (at * size_of::<T>()) as u64..((at + data.len()) * size_of::<T>()) as u64
        };
        // One mapping a buffer, over everything that is written to it.
        let of_buffer: Vec<_> = writes.chunk_by(|a, b| a.0.raw.id() == b.0.raw.id()).collect();
        let hulls: Vec<Range<u64>> = of_buffer
            .iter()
            .map(|writes| {
                let ranges = || writes.iter().map(bytes);
                ranges().map(|range| range.start).min().unwrap_or(0)
                    ..ranges().map(|range| range.end).max().unwrap_or(0)
            })
            .collect();
        for (writes, hull) in of_buffer.iter().zip(&hulls) {
            // What fails is told below, where the range is taken.
            writes[0].0.raw.wgpu().map_async(wgpu::MapMode::Write, hull.clone(), |_| {});
        }
        self.poll(None)?;
        for (writes, hull) in of_buffer.iter().zip(&hulls) {
            let buffer = writes[0].0.raw.wgpu();
            let view = buffer.get_mapped_range_mut(hull.clone());
            let mut view = view.map_err(|e| GpuError::Lost { message: e.to_string() })?;
            for write in *writes {
                let range = bytes(write);
                let [start, end] = [range.start, range.end]
                    .map(|at| usize::try_from(at - hull.start).expect("a buffer fits in memory"));
                view.slice(start..end).copy_from_slice(bytemuck::cast_slice(write.2));
            }
            drop(view);
            buffer.unmap();
        }
        Ok(())
    }

    /// A buffer of any usage, counted in [`Gpu::allocated_bytes`].
    pub(super) fn raw_buffer(
        &self,
        label: &str,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<Raw, GpuError> {
        let limits = self.device.limits();
        let limit = limits.max_buffer_size.min(limits.max_storage_buffer_binding_size);
        if bytes > limit {
            return Err(GpuError::BufferTooLarge { label: label.into(), bytes, limit });
        }
        let short =
            || GpuError::OutOfMemory { label: label.into(), bytes, allocated: self.allocated_bytes() };
        if self.refuses() {
            return Err(short());
        }
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let descriptor =
            wgpu::BufferDescriptor { label: Some(label), size: bytes, usage, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&descriptor);
        if pollster::block_on(scope.pop()).is_some() {
            return Err(short());
        }
        self.made.fetch_add(1, Ordering::Relaxed);
        let maps = usage.intersects(wgpu::BufferUsages::MAP_READ.union(wgpu::BufferUsages::MAP_WRITE));
        Ok(self.raw_of(buffer, bytes, if maps { Memory::Host } else { Memory::Device }))
    }

    /// Refuses those of the next buffers whose numbers, counted from 0 from this call on, are in `which`, as if
    /// memory were short. Tests of code that creates buffers use this. An empty range refuses none. Returns the rest
    /// of the previous range.
    pub fn refuse_buffers(&self, which: Range<u64>) -> Range<u64> {
        std::mem::replace(&mut self.refused.lock().unwrap_or_else(PoisonError::into_inner), which)
    }

    /// Whether the next buffer is one that is refused.
    fn refuses(&self) -> bool {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let now = !refused.is_empty() && refused.start == 0;
        *refused = refused.start.saturating_sub(1)..refused.end.saturating_sub(1);
        now
    }

    /// Makes a handle for a buffer, with `counted` bytes that count as allocated by this device.
    fn raw_of(&self, buffer: wgpu::Buffer, counted: u64, memory: Memory) -> Raw {
        let (id, counted) = self.counted(counted, memory);
        Raw(Arc::new(Allocation { buffer, id, _counted: counted }))
    }

    /// Returns an id for memory of the device, and counts its bytes in the accounts.
    pub(super) fn count(&self, bytes: u64) -> (u64, Counted) {
        self.made.fetch_add(1, Ordering::Relaxed);
        self.counted(bytes, Memory::Device)
    }

    fn counted(&self, bytes: u64, memory: Memory) -> (u64, Counted) {
        let accounts = Arc::clone(&self.allocated);
        accounts.of(memory).for_each(|account| {
            account.fetch_add(bytes, Ordering::Relaxed);
        });
        (self.next_id.fetch_add(1, Ordering::Relaxed), Counted { bytes, accounts, memory })
    }

    /// A view of a buffer that was made elsewhere, in whole elements.
    pub(super) fn buf_of<T: Pod>(&self, buffer: wgpu::Buffer) -> Buf<T> {
        let raw = self.raw_of(buffer, 0, Memory::Device);
        let len = usize::try_from(raw.bytes()).expect("a buffer fits in memory") / size_of::<T>();
        Buf { raw, len, element: PhantomData }
    }

    /// Number of bytes in live buffers made through this device, including buffers in host memory.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated.all.load(Ordering::Relaxed)
    }

    /// Number of bytes in live buffers that the host can map, which are in host memory.
    #[must_use]
    pub fn host_allocated_bytes(&self) -> u64 {
        self.allocated.host.load(Ordering::Relaxed)
    }
}
