//! Paged attention on a wgpu device, and over buffers, that another program opened.
//!
//! `cargo run --release -p attn-kernels --example own_device`

use std::error::Error;

use attn_kernels::gpu::{Checks, Gpu, GpuOptions, Pass, wgpu};
use attn_kernels::kernel::cache_write::{self, CacheWriteBuffers, CacheWriteParams};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use attn_kernels::launch::{Attend, AttendRow};
use attn_kernels::rows::KvWord;

const SHAPE: KvShape =
    KvShape { num_kv_heads: 2, head_dim: 64, block_size: 16, dtype: KvDtype::F32, layout: KvLayout::Native };
const NUM_HEADS: u32 = 8;
const NUM_BLOCKS: u64 = 32;

#[cfg(not(test))]
#[expect(clippy::print_stdout, reason = "the result")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("first elements of the result: {:?}", &attend()?[..4]);
    Ok(())
}

/// Writes the keys and values of 40 tokens into blocks 7, 3 and 9, and lets one query attend to them.
pub(crate) fn attend() -> Result<Vec<f32>, Box<dyn Error>> {
    // The other program's device and its cache: one buffer of keys, one of values.
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapter = pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default()))?;
    let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor::default()))?;
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
    let size = NUM_BLOCKS * SHAPE.block_bytes() as u64;
    let cache = |label| {
        let label = Some(label);
        device.create_buffer(&wgpu::BufferDescriptor { label, size, usage, mapped_at_creation: false })
    };
    let (keys, values) = (cache("keys"), cache("values"));

    // Kernels run on that device. Checks cost half of the speed; `attend` refuses what lies outside of the cache.
    let gpu = Gpu::of(&adapter, device, queue, &GpuOptions::new(Checks::Off))?;
    let (k, v) = (gpu.share::<KvWord>(&keys)?, gpu.share::<KvWord>(&values)?);
    let table = [7_u32, 3, 9];
    let mut pass = Pass::new("one query");
    write(&gpu, &mut pass, &table, (&k, &v))?;

    let width = (NUM_HEADS * SHAPE.head_dim) as usize;
    let (q, out) = (gpu.upload("q", &vec![0.1_f32; width])?, gpu.buffer::<f32>("out", width)?);
    let attend = Attend {
        shape: SHAPE,
        num_heads: NUM_HEADS,
        scale: 1.0 / 8.0,
        q: &q,
        k: &k,
        v: &v,
        tables: &table,
        rows: &[AttendRow { keys: 40, table: 0 }],
        out: &out,
    };
    gpu.attend(&mut pass, &attend)?;
    let read = pass.read(&out, 0..width);
    Ok(gpu.submit(pass)?.wait()?.get(read))
}

/// 40 tokens with equal keys; the value of token `i` is `i` everywhere, so that the result is their mean, 19.5.
fn write(
    gpu: &Gpu,
    pass: &mut Pass,
    table: &[u32],
    (k, v): (&attn_kernels::gpu::Buf<KvWord>, &attn_kernels::gpu::Buf<KvWord>),
) -> Result<(), Box<dyn Error>> {
    let width = (SHAPE.num_kv_heads * SHAPE.head_dim) as usize;
    let kv: Vec<f32> =
        (0..40_u8).flat_map(|token| [vec![0.5; width], vec![f32::from(token); width]].concat()).collect();
    let slot = |token: usize| Ok(i32::try_from(table[token / 16] as usize * 16 + token % 16)?);
    let slots = (0..40).map(slot).collect::<Result<Vec<i32>, Box<dyn Error>>>()?;
    let params = CacheWriteParams {
        rows: 40,
        num_kv_heads: SHAPE.num_kv_heads,
        row_stride: 2 * SHAPE.num_kv_heads * SHAPE.head_dim,
        k_start: 0,
        v_start: SHAPE.num_kv_heads * SHAPE.head_dim,
        k_scale: 1.0,
        v_scale: 1.0,
    };
    let (kv, slots) = (gpu.upload("kv", &kv)?, gpu.upload("slots", &slots)?);
    let pipeline = gpu.pipeline(&cache_write::variant(&SHAPE))?;
    let buffers =
        CacheWriteBuffers { kv: kv.bind(), slots: slots.bind(), k_cache: k.bind(), v_cache: v.bind() };
    pass.dispatch(&pipeline, &params, buffers);
    Ok(())
}
