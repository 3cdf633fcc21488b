//! Pages of selected blocks that are copied from memory of the host.

use anyhow::{Result, ensure};
use attn_kernels::gpu::{Bound, Gpu, Pass};
use attn_kernels::kernel::{KvDtype, fetch_pages};
use attn_kernels::self_test::Size;

use super::attention::Heads;
use super::ceiling::random;
use super::work::Work;

/// The fetch of `pages` pages for each KV head, out of four times as many blocks in host memory.
pub(super) fn fetch(gpu: &Gpu, heads: &Heads, pages: u32) -> Result<Work> {
    ensure!(gpu.has_host_buffers(), "the device cannot read memory of the host");
    let shape = &heads.shape;
    ensure!(fetch_pages::serves(shape), "pages of {shape:?} are not whole units of 16 bytes");
    let host = |seed| -> Result<Bound> {
        let host = gpu.host_buffer::<u32>("host", pages as usize * shape.block_bytes())?;
        let data = random(gpu, KvDtype::F32, host.len(), seed)?;
        let mut pass = Pass::new("host");
        pass.copy(&data, 0..data.len(), &host, 0);
        gpu.submit(pass)?.wait()?;
        Ok((&host).into())
    };
    let shared = [("host_k", host(3)?), ("host_v", host(4)?)];
    let size = Size { rows: pages, ..heads.size() };
    let name = format!("{pages} pages a head from the host, {}", heads.name());
    Work::sharing(gpu, "fetch_pages", &fetch_pages::variant(), size, &name, &shared)
}
