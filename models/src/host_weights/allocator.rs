//! Allocation of memory for the planes of matrices while a model is loaded.

use std::sync::{Mutex, MutexGuard, PoisonError};

use attn_kernels::Variant;
use attn_kernels::gpu::{Buf, Gpu, Pass, Upload};
use bytemuck::Pod;

use super::placement::BLOCK_BYTES;
use super::{HostWeights, LayerOutline, Plane, SlotPlace, WeightOutline, WeightPlacement};
use crate::cast::u32_of;
use crate::kernel::embed;
use crate::kernel::matmul::{self, Epilogue, Loads, Tiling};
use crate::pack::Format;
use crate::{LoadProgress, ModelError};

/// Bytes per element of a slot's binding.
const QUAD: u64 = size_of::<[u32; 4]>() as u64;

/// Allocator of the planes of a model.
#[derive(Debug)]
pub(crate) struct WeightAllocator<'a> {
    gpu: &'a Gpu,
    policy: AllocationPolicy,
    /// Whether planes are stored as images.
    images: bool,
    /// Counts the packed weights.
    progress: LoadProgress,
    state: Mutex<State>,
}

/// Memory that the matrices of layers are allocated in.
#[derive(Debug)]
enum AllocationPolicy {
    /// All matrices are on the device.
    Device,
    /// No memory is allocated; sizes are added up.
    Outline,
    /// Some layers are on the host, in buffers of these sizes.
    Placed(WeightOutline, WeightPlacement),
}

#[derive(Debug)]
struct State {
    /// The current layer; `None` for matrices outside of layers.
    layer: Option<usize>,
    /// Bytes so far of vectors and of matrices outside of layers.
    other_bytes: u64,
    /// Sizes so far.
    layers: Vec<LayerOutline>,
    /// Buffers on the host, for each layer that has some.
    buffers: Vec<Vec<Buf<[u32; 4]>>>,
}

/// Memory that a plane is packed into.
pub(crate) enum PlaneWriter<'a, T> {
    Device(Upload<'a, T>),
    /// An image, packed in host memory first.
    Image {
        gpu: &'a Gpu,
        name: String,
        data: Vec<T>,
    },
    /// Buffer on the host, packed in other memory first, since few devices map a buffer for both host and device.
    Host {
        gpu: &'a Gpu,
        place: SlotPlace,
        data: Vec<T>,
        buffer: Buf<[u32; 4]>,
    },
    /// Nothing: only the size counts.
    Nowhere(SlotPlace),
}

impl<'a> WeightAllocator<'a> {
    /// Allocates all planes on the device.
    pub(crate) fn device(gpu: &'a Gpu, layers: u32) -> Self {
        Self::new(gpu, layers, AllocationPolicy::Device)
    }

    /// Allocates nothing: [`outline`](Self::outline) returns the sizes.
    pub(crate) fn measuring(gpu: &'a Gpu, layers: u32) -> Self {
        Self::new(gpu, layers, AllocationPolicy::Outline)
    }

    /// Allocates planes according to `placement`.
    pub(crate) fn placed(gpu: &'a Gpu, outline: WeightOutline, placement: WeightPlacement) -> Self {
        Self::new(gpu, placement.num_layers, AllocationPolicy::Placed(outline, placement))
    }

    fn new(gpu: &'a Gpu, layers: u32, policy: AllocationPolicy) -> Self {
        let layers = vec![LayerOutline::default(); layers as usize];
        let buffers = match &policy {
            AllocationPolicy::Placed(_, placement) => vec![Vec::new(); placement.host_layers.len()],
            AllocationPolicy::Device | AllocationPolicy::Outline => Vec::new(),
        };
        let state = State { layer: None, other_bytes: 0, layers, buffers };
        let profile = gpu.profile();
        let images = profile.broadcasts() && with_images().iter().all(|variant| profile.runs(variant));
        Self { gpu, policy, images, progress: LoadProgress::default(), state: Mutex::new(state) }
    }

    /// Allocates planes that can be read back.
    #[cfg(test)]
    pub(crate) fn in_buffers(self) -> Self {
        Self { images: false, ..self }
    }

    /// Counts the packed weights in `progress`.
    pub(crate) fn counting(self, progress: &LoadProgress) -> Self {
        Self { progress: progress.clone(), ..self }
    }

    /// Returns the count of packed weights.
    pub(crate) fn progress(&self) -> &LoadProgress {
        &self.progress
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the layer of the planes that follow; `None` for none.
    pub(crate) fn enter(&self, layer: Option<u32>) {
        self.state().layer = layer.map(|layer| layer as usize);
    }

    /// Whether only sizes are measured, so that nothing has to be packed.
    pub(crate) fn only_measures(&self) -> bool {
        matches!(self.policy, AllocationPolicy::Outline)
    }

    /// Maximum number of bytes of a plane: the size of a binding, in whole blocks.
    pub(crate) fn max_plane_bytes(&self) -> u64 {
        self.gpu.max_binding_bytes() / BLOCK_BYTES * BLOCK_BYTES
    }

    /// Allocates a plane of `len` elements.
    pub(crate) fn begin<T: Pod>(&self, name: &str, len: usize) -> Result<PlaneWriter<'a, T>, ModelError> {
        let quads = ((len * size_of::<T>()) as u64).div_ceil(QUAD).max(1);
        let mut state = self.state();
        let Some(layer) = state.layer else {
            state.other_bytes += quads * QUAD;
            return self.resident(name, len);
        };
        let order = match &self.policy {
            AllocationPolicy::Device => None,
            AllocationPolicy::Outline => Some(0),
            AllocationPolicy::Placed(_, placement) => placement.order(layer),
        };
        let (buffer, at) = state.layers[layer].take(quads * QUAD, self.max_plane_bytes());
        let Some(order) = order else { return self.resident(name, len) };
        let slot = |slots: u32| u32::try_from(order).expect("a model has few layers") % slots.max(1);
        let place = |slots: u32| SlotPlace {
            slot: slot(slots),
            buffer: u32_of(buffer),
            quad: u32::try_from(at / QUAD).expect("a binding has less than 64 GiB"),
        };
        let AllocationPolicy::Placed(outline, placement) = &self.policy else {
            return Ok(PlaneWriter::Nowhere(place(1)));
        };
        let buffers = &mut state.buffers[order];
        if buffer == buffers.len() {
            let bytes = outline.layers[layer].buffers[buffer].next_multiple_of(placement.block_bytes);
            buffers.push(self.host_buffer(usize::try_from(bytes / QUAD).expect("a buffer fits in memory"))?);
        }
        let words = quads * QUAD / size_of::<T>() as u64;
        Ok(PlaneWriter::Host {
            gpu: self.gpu,
            place: place(placement.slots),
            data: vec![T::zeroed(); usize::try_from(words).expect("a plane fits in memory")],
            buffer: buffers[buffer].clone(),
        })
    }

    /// Uploads a vector, which is always on the device.
    pub(crate) fn vector<T: Pod>(&self, name: &str, values: &[T]) -> Result<Buf<T>, ModelError> {
        let quads = (size_of_val(values) as u64).div_ceil(QUAD).max(1);
        self.state().other_bytes += quads * QUAD;
        let values = if self.only_measures() { &[] } else { values };
        Ok(self.gpu.upload(name, values)?)
    }

    fn resident<T: Pod>(&self, name: &str, len: usize) -> Result<PlaneWriter<'a, T>, ModelError> {
        Ok(match self.policy {
            AllocationPolicy::Outline => PlaneWriter::Nowhere(SlotPlace { slot: 0, buffer: 0, quad: 0 }),
            AllocationPolicy::Device if self.images => {
                PlaneWriter::Image { gpu: self.gpu, name: name.into(), data: vec![T::zeroed(); len] }
            }
            AllocationPolicy::Device | AllocationPolicy::Placed(..) => {
                PlaneWriter::Device(self.gpu.begin_upload(name, len)?)
            }
        })
    }

    /// Allocates host memory that kernels read, or that the queue copies from if kernels cannot read it.
    fn host_buffer(&self, quads: usize) -> Result<Buf<[u32; 4]>, ModelError> {
        let label = "host_weights";
        Ok(match self.gpu.has_host_buffers() {
            true => self.gpu.host_buffer(label, quads)?,
            false => self.gpu.upload_buffer(label, quads)?,
        })
    }

    /// Returns the sizes of everything that was allocated.
    pub(crate) fn outline(self) -> WeightOutline {
        let State { other_bytes, layers, .. } =
            self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        WeightOutline { fixed_bytes: other_bytes, layers }
    }

    /// Returns the weights on the host, if there are any.
    pub(crate) fn host_weights(self) -> Option<HostWeights> {
        let State { layers, buffers, .. } = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let AllocationPolicy::Placed(outline, placement) = self.policy else { return None };
        assert_eq!(layers, outline.layers, "what was measured came");
        let layer_bytes = layers.iter().map(|layer| layer.bytes).collect();
        (!placement.host_layers.is_empty()).then_some(HostWeights { placement, layer_bytes, buffers })
    }
}

impl<T: Pod> PlaneWriter<'_, T> {
    /// Writes `data` from element `at` on.
    pub(crate) fn put(&mut self, at: usize, data: &[T]) {
        match self {
            Self::Device(upload) => upload.put(at, data),
            Self::Host { data: plane, .. } | Self::Image { data: plane, .. } => {
                plane[at..at + data.len()].copy_from_slice(data)
            }
            Self::Nowhere(_) => {}
        }
    }

    /// Starts the upload of the plane.
    pub(crate) fn end(self) -> Result<Plane<T>, ModelError> {
        Ok(match self {
            Self::Device(upload) => Plane::Device(upload.end()?),
            Self::Image { gpu, name, data } => Plane::Image(gpu.image(&name, &data)?),
            Self::Nowhere(place) => Plane::Host(place),
            Self::Host { gpu, place, data, buffer } => {
                let (at, quads) = (place.quad as usize, bytemuck::cast_slice::<T, [u32; 4]>(&data));
                if gpu.has_host_buffers() {
                    gpu.write(&buffer, at, quads);
                    // Gives back the memory that the write came from.
                    gpu.submit(Pass::new("weights"))?.wait()?;
                } else {
                    gpu.write_mapped(&[(&buffer, at, quads)])?;
                }
                Plane::Host(place)
            }
        })
    }
}

/// Examples of the kernels that read weights from images: one that copies them, and one that multiplies.
fn with_images() -> [Variant; 2] {
    let (weights, tiling) = (Format::Q4, Tiling::for_cpu(1, 1, true).loads(Loads::Window));
    let windowed = matmul::variant(weights, Epilogue::Store, tiling, 64, None);
    [embed::variant(weights), windowed].map(matmul::from_images)
}
