//! Pages of selected blocks that come and go: where lists find theirs, and copies from memory of the host.

use anyhow::{Result, ensure};
use attn_kernels::Level;
use attn_kernels::gpu::{Bound, Buf, Gpu, Pass};
use attn_kernels::kernel::fetch_pages::{self, FetchPagesParams};
use attn_kernels::kernel::residency::{self, HEADER, ResidencyParams};

use super::attention::{Heads, Step};
use super::ceiling::random;
use super::lists::{Lists, SELECT_BLOCK};
use super::work::Work;

/// Lists of a share `density` of each sequence's blocks, whose pages are all on the device.
pub(super) fn resident(gpu: &Gpu, step: &Step, density: f64) -> Result<Work> {
    let shape = &step.heads.shape;
    let kv_heads = shape.num_kv_heads;
    let lens = step.cache.rows.iter().flat_map(|row| (0..kv_heads).map(move |_| row[1]));
    let lists = Lists::random(gpu, lens, kv_heads, density)?;
    let num_pages = (lists.stride - 1) * (SELECT_BLOCK / shape.block_size);
    let num_slots = num_pages * step.batch();
    let asks: Vec<[u32; 4]> =
        (0..).zip(&step.cache.rows).map(|(group, [_, len, table, _])| [group, *len, *table, 0]).collect();
    let params = ResidencyParams {
        first_request: 0,
        requests: step.batch(),
        num_kv_heads: kv_heads,
        list_stride: lists.stride,
        block_size: shape.block_size,
        first_page: 0,
        num_pages,
        num_slots,
        // The first run fetches what all others find.
        max_fetches: num_slots,
        write_pages: 1,
    };
    let entries = step.cache.table.len() * kv_heads as usize;
    let asks = gpu.upload("asks", &asks)?;
    let [places, pages] = [gpu.buffer::<u32>("places", entries)?, gpu.buffer::<u32>("pages", entries)?];
    let slots = gpu.buffer::<[u32; 2]>("slots", residency::slots_len(shape, num_slots))?;
    let fetches = gpu.buffer::<u32>("fetches", residency::fetches_len(shape, num_slots))?;
    let binds: [Bound; 7] = [
        (&asks).into(),
        (&lists.buffer).into(),
        (&step.cache.tables).into(),
        (&places).into(),
        (&slots).into(),
        (&fetches).into(),
        (&pages).into(),
    ];
    let listed = f64::from(num_pages * step.batch() * kv_heads);
    let name = format!("{}, {}{}", step.name, step.heads.name(), lists.kind());
    Ok(Work::new("residency", Level::Baseline.name(), name)
        .costs(32.0 * listed + 8.0 * slots.len() as f64, 0.0)
        .dispatch(residency::variant(shape, SELECT_BLOCK), &params, binds, residency::grid(&params)))
}

/// `pages` pages of each KV head out of four times as many blocks in memory of the host.
pub(super) fn fetch(gpu: &Gpu, heads: &Heads, pages: u32) -> Result<Work> {
    ensure!(gpu.has_host_buffers(), "the device cannot read memory of the host");
    let shape = &heads.shape;
    ensure!(fetch_pages::serves(shape), "pages of {shape:?} are not whole units of 16 bytes");
    let blocks = 4 * pages;
    let words = |blocks: u32| blocks as usize * shape.block_bytes() / 4;
    let host = |seed| -> Result<Buf<u32>> {
        let host = gpu.host_buffer::<u32>("host", words(blocks))?;
        let data = random(gpu, shape.dtype, host.len() * 4 / shape.dtype.bytes() as usize, seed)?;
        let mut pass = Pass::new("host");
        pass.copy(&data, 0..data.len(), &host, 0);
        gpu.submit(pass)?.wait()?;
        Ok(host)
    };
    let (host_k, host_v) = (host(3)?, host(4)?);
    let slots = |seed| random(gpu, shape.dtype, words(pages) * 4 / shape.dtype.bytes() as usize, seed);
    let (k, v) = (slots(1)?, slots(2)?);
    let params = FetchPagesParams::new(shape, pages);
    let mut fetches = vec![0; residency::fetches_len(shape, pages)];
    for of_head in fetches.chunks_exact_mut(HEADER + 2 * pages as usize) {
        of_head[0] = pages;
        for (pair, slot) in of_head[HEADER..].chunks_exact_mut(2).zip(0_u32..) {
            pair.copy_from_slice(&[slot * 7919 % blocks, slot]);
        }
    }
    let fetches = gpu.upload("fetches", &fetches)?;
    let places = gpu.buffer::<u32>("places", (blocks * shape.num_kv_heads) as usize)?;
    let touched = gpu.buffer::<[u32; 2]>("touched", 1)?;
    let binds: [Bound; 7] = [
        (&fetches).into(),
        (&host_k).into(),
        (&host_v).into(),
        (&places).into(),
        (&touched).into(),
        (&k).into(),
        (&v).into(),
    ];
    let bytes = 4.0 * f64::from(pages) * shape.block_bytes() as f64;
    Ok(Work::new(
        "fetch_pages",
        Level::Baseline.name(),
        format!("{pages} pages a head from the host, {}", heads.name()),
    )
    .costs(bytes, 0.0)
    .dispatch(fetch_pages::variant(), &params, binds, fetch_pages::grid(&params)))
}
