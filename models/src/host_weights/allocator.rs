//! Places that the planes of matrices go to while a model is loaded.

use std::sync::{Mutex, MutexGuard, PoisonError};

use attn_kernels::gpu::{Buf, Gpu, Pass, Upload};
use bytemuck::Pod;

use super::placement::BLOCK_BYTES;
use super::{LayerOutline, Plane, SlotPlace, WeightOutline, WeightPlacement};
use crate::cast::u32_of;
use crate::kernel::matmul;
use crate::{LoadProgress, ModelError};

/// Bytes of what kernels bind as one element of a slot.
const QUAD: u64 = size_of::<[u32; 4]>() as u64;

/// Places of the planes of a model.
#[derive(Debug)]
pub(crate) struct WeightAllocator<'a> {
    gpu: &'a Gpu,
    policy: AllocationPolicy,
    /// Whether planes go to images.
    images: bool,
    /// Counts what is packed.
    progress: LoadProgress,
    state: Mutex<State>,
}

/// Memory that matrices of layers go to.
#[derive(Debug)]
enum AllocationPolicy {
    /// All to the device.
    Device,
    /// None anywhere: sizes are added up.
    Outline,
    /// Some to the host, in buffers of these sizes.
    Placed(WeightOutline, WeightPlacement),
}

#[derive(Debug)]
struct State {
    /// The layer whose matrices come; `None` for those outside of layers.
    layer: Option<usize>,
    /// Bytes so far of matrices outside of layers, and of vectors.
    other_bytes: u64,
    /// Sizes so far.
    layers: Vec<LayerOutline>,
    /// Buffers on the host of each layer that has some.
    buffers: Vec<Vec<Buf<[u32; 4]>>>,
}

/// Weights in memory of the host, which decoders share.
#[derive(Debug)]
pub(crate) struct HostWeights {
    pub(super) placement: WeightPlacement,
    /// Bytes of the matrices of every layer.
    pub(super) layer_bytes: Vec<u64>,
    /// Buffers of the layers on the host.
    pub(super) buffers: Vec<Vec<Buf<[u32; 4]>>>,
}

impl HostWeights {
    /// Division of the weights between device and host.
    pub(crate) fn placement(&self) -> &WeightPlacement {
        &self.placement
    }
}

/// Memory that a plane is packed into.
pub(crate) enum PlaneWriter<'a, T> {
    Device(Upload<'a, T>),
    /// An image, packed in memory of the process first.
    Image {
        gpu: &'a Gpu,
        name: String,
        data: Vec<T>,
    },
    /// Packed in memory of the process first, as few devices map theirs for both.
    Host {
        gpu: &'a Gpu,
        place: SlotPlace,
        data: Vec<T>,
        buffer: Buf<[u32; 4]>,
    },
    /// Only its size counts.
    Nowhere(SlotPlace),
}

impl<'a> WeightAllocator<'a> {
    /// All planes on the device.
    pub(crate) fn device(gpu: &'a Gpu, layers: u32) -> Self {
        Self::new(gpu, layers, AllocationPolicy::Device)
    }

    /// No plane anywhere: [`outline`](Self::outline) tells their sizes.
    pub(crate) fn measuring(gpu: &'a Gpu, layers: u32) -> Self {
        Self::new(gpu, layers, AllocationPolicy::Outline)
    }

    /// Planes where `placement` wants them.
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
        let images =
            profile.broadcasts() && matmul::with_images().iter().all(|variant| profile.runs(variant));
        Self { gpu, policy, images, progress: LoadProgress::default(), state: Mutex::new(state) }
    }

    /// Planes that can be read back.
    #[cfg(test)]
    pub(crate) fn in_buffers(self) -> Self {
        Self { images: false, ..self }
    }

    /// Counts what is packed in `progress`.
    pub(crate) fn counting(self, progress: &LoadProgress) -> Self {
        Self { progress: progress.clone(), ..self }
    }

    /// Count of the planes that are packed.
    pub(crate) fn progress(&self) -> &LoadProgress {
        &self.progress
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says which layer the planes that follow belong to; `None` for none.
    pub(crate) fn enter(&self, layer: Option<u32>) {
        self.state().layer = layer.map(|layer| layer as usize);
    }

    /// Whether only sizes count: nothing has to be packed.
    pub(crate) fn only_measures(&self) -> bool {
        matches!(self.policy, AllocationPolicy::Outline)
    }

    /// Maximum number of bytes of a plane: what a binding holds, in whole blocks.
    pub(crate) fn max_plane_bytes(&self) -> u64 {
        self.gpu.max_binding_bytes() / BLOCK_BYTES * BLOCK_BYTES
    }

    /// Begins a plane of `len` elements.
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

    /// A vector, which lies on the device in any case.
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

    /// Memory of the host that kernels read, or copies where they cannot.
    fn host_buffer(&self, quads: usize) -> Result<Buf<[u32; 4]>, ModelError> {
        let label = "host_weights";
        Ok(match self.gpu.has_host_buffers() {
            true => self.gpu.host_buffer(label, quads)?,
            false => self.gpu.upload_buffer(label, quads)?,
        })
    }

    /// Sizes of what came.
    pub(crate) fn outline(self) -> WeightOutline {
        let State { other_bytes, layers, .. } =
            self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        WeightOutline { fixed_bytes: other_bytes, layers }
    }

    /// The weights that lie on the host, where there are some.
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

    /// Sends the plane on its way.
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
