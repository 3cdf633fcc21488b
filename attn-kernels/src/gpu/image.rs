//! Textures that kernels read in place of buffers: software drivers load texels for all lanes at once, but storage
//! buffers lane by lane.

use super::buffer::Counted;
use super::{Gpu, GpuError};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::sync::Arc;

/// Size of a texel, in bytes.
const TEXEL_BYTES: u32 = 16;
/// Number of bytes of a texel, as `usize`.
const TEXEL: usize = TEXEL_BYTES as usize;

/// Number of texels of a full row: texel `at` has the coordinates `(at % 4096, at / 4096)`.
pub const IMAGE_ROW: u32 = 4096;

/// Elements in texels of four words, packed in rows of [`IMAGE_ROW`]. Cloning shares them.
#[derive(Debug)]
pub struct Image<T> {
    raw: RawImage,
    element: PhantomData<fn() -> T>,
}

/// An image without its element type.
#[derive(Clone, Debug)]
pub struct RawImage(Arc<Allocation>);

#[derive(Debug)]
struct Allocation {
    view: wgpu::TextureView,
    id: u64,
    /// Keeps the image's bytes in the device's accounts.
    _counted: Counted,
}

impl RawImage {
    pub(super) fn view(&self) -> &wgpu::TextureView {
        &self.0.view
    }

    /// Number that distinguishes buffers and images of one device.
    pub(super) fn id(&self) -> u64 {
        self.0.id
    }
}

impl<T> Clone for Image<T> {
    fn clone(&self) -> Self {
        Self { raw: self.raw.clone(), element: PhantomData }
    }
}

impl<T> Image<T> {
    pub(super) fn raw(&self) -> &RawImage {
        &self.raw
    }
}

impl Gpu {
    /// Creates an image that holds `data`.
    ///
    /// # Errors
    /// [`GpuError::BufferTooLarge`] for more rows than a texture has, [`GpuError::OutOfMemory`] when memory is short, and what
    /// earlier work left.
    pub fn image<T: Pod>(&self, label: &str, data: &[T]) -> Result<Image<T>, GpuError> {
        self.fault()?;
        let data: &[u8] = bytemuck::cast_slice(data);
        let texels = u32::try_from(data.len().div_ceil(TEXEL).max(1)).unwrap_or(u32::MAX);
        let (width, height) = (texels.min(IMAGE_ROW), texels.div_ceil(IMAGE_ROW));
        let bytes = u64::from(width) * u64::from(height) * TEXEL as u64;
        let rows = self.limits().max_texture_dimension_2d;
        if height > rows {
            let limit = u64::from(rows) * u64::from(IMAGE_ROW) * TEXEL as u64;
            return Err(GpuError::BufferTooLarge { label: label.into(), bytes, limit });
        }
        let size = wgpu::Extent3d { width, height, depth_or_array_layers: 1 };
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let texture = self.device.create_texture(&wgpu::TextureDescriptor {
            label: Some(label),
            size,
            mip_level_count: 1,
            sample_count: 1,
            dimension: wgpu::TextureDimension::D2,
            format: wgpu::TextureFormat::Rgba32Uint,
            usage: wgpu::TextureUsages::STORAGE_BINDING | wgpu::TextureUsages::COPY_DST,
            view_formats: &[],
        });
        if pollster::block_on(scope.pop()).is_some() {
            let allocated = self.allocated_bytes();
            return Err(GpuError::OutOfMemory { label: label.into(), bytes, allocated });
        }
        self.fill(&texture, data, [width, height]);
        let view = texture.create_view(&wgpu::TextureViewDescriptor::default());
        let (id, counted) = self.count(bytes);
        let raw = RawImage(Arc::new(Allocation { view, id, _counted: counted }));
        Ok(Image { raw, element: PhantomData })
    }

    /// Writes `data` to the rows of a texture, and submits the writes to free the memory of their source.
    fn fill(&self, texture: &wgpu::Texture, data: &[u8], [width, height]: [u32; 2]) {
        let row = width as usize * TEXEL;
        let whole = data.len() / row;
        let (rows, rest) = data.split_at(whole * row);
        // The last row may end early, in the middle of a texel too.
        let mut last = rest.to_vec();
        last.resize(rest.len().next_multiple_of(TEXEL), 0);
        let texels = u32::try_from(last.len() / TEXEL).expect("a row has few texels");
        let whole = u32::try_from(whole).expect("a texture has few rows");
        for (data, y, width, rows) in [(rows, 0, width, whole), (&last[..], height - 1, texels, 1)] {
            if data.is_empty() {
                continue;
            }
            let place = wgpu::TexelCopyTextureInfo {
                texture,
                mip_level: 0,
                origin: wgpu::Origin3d { x: 0, y, z: 0 },
                aspect: wgpu::TextureAspect::All,
            };
            let layout = wgpu::TexelCopyBufferLayout {
                offset: 0,
                bytes_per_row: Some(width * TEXEL_BYTES),
                rows_per_image: None,
            };
            let size = wgpu::Extent3d { width, height: rows, depth_or_array_layers: 1 };
            self.queue.write_texture(place, data, layout, size);
        }
        self.queue.submit([]);
        let _ = self.device.poll(wgpu::PollType::Poll);
    }
}
