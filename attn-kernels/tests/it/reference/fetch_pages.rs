//! `fetch_pages` against its reference.

use super::by_hand::dispatch;
use super::device::{cases, gpu};
use attn_kernels::cpu;
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::kernel::fetch_pages::{self, FetchPagesParams};
use attn_kernels::kernel::residency::{self, HEADER};
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

const BLOCKS: u32 = 24;
const SLOTS: u32 = 10;

/// Contents of host and device, and the pages that are asked for.
struct Fetch {
    params: FetchPagesParams,
    fetches: Vec<u32>,
    places: Vec<u32>,
    touched: Vec<[u32; 2]>,
    host: [Vec<[u32; 4]>; 2],
    device: [Vec<[u32; 4]>; 2],
}

impl Fetch {
    /// Each head fetches up to `most` pages; some of the touched blocks are on the device, in slots of their own.
    fn new(shape: &KvShape, most: usize, touched: usize, workgroups: u32, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let heads = shape.num_kv_heads as usize;
        let mut fetches = vec![0; residency::fetches_len(shape, SLOTS)];
        let mut places = vec![0; BLOCKS as usize * heads];
        let mut blocks: Vec<u32> = (0..BLOCKS).collect();
        blocks.shuffle(&mut rng);
        for (head, of_head) in fetches.chunks_exact_mut(HEADER + 2 * SLOTS as usize).enumerate() {
            let mut slots: Vec<u32> = (0..SLOTS).collect();
            slots.shuffle(&mut rng);
            let count = rng.random_range(0..=most);
            of_head[0] = u32::try_from(count).unwrap();
            for (pair, slot) in of_head[HEADER..].chunks_exact_mut(2).zip(&slots).take(count) {
                pair.copy_from_slice(&[rng.random_range(0..BLOCKS), *slot]);
            }
            // 1 is a page that waits for a slot.
            for (block, slot) in blocks.iter().zip(&slots[count..]) {
                let place = if rng.random() { slot + 2 } else { rng.random_range(0..2) };
                places[*block as usize * heads + head] = place;
            }
        }
        let touched: Vec<[u32; 2]> =
            blocks.iter().take(touched).map(|block| [*block, rng.random_range(0..BLOCKS)]).collect();
        // All blocks are on the host, or some in the middle.
        let (first_block, num_blocks, held) = match rng.random_range(0..BLOCKS) {
            first if rng.random() => (first, BLOCKS - first, BLOCKS - first),
            _ => (0, u32::MAX, BLOCKS),
        };
        let params = FetchPagesParams {
            workgroups,
            fetch: u32::from(rng.random_bool(0.8)),
            touched: u32::try_from(touched.len()).unwrap(),
            first_block,
            num_blocks,
            ..FetchPagesParams::new(shape, SLOTS)
        };
        let mut pages = |blocks: u32| -> Vec<[u32; 4]> {
            (0..blocks * shape.num_kv_heads * params.page_quads).map(|_| rng.random()).collect()
        };
        let [host, device] = [held, SLOTS].map(|blocks| [pages(blocks), pages(blocks)]);
        Self { params, fetches, places, touched, host, device }
    }

    fn check(&self, gpu: &Gpu) {
        let [fetches, places] = [&self.fetches, &self.places].map(|list| gpu.upload("list", list).unwrap());
        let [host_k, host_v] = self.host.each_ref().map(|pages| gpu.upload("host", pages).unwrap());
        let [k, v] = self.device.each_ref().map(|pages| gpu.upload("device", pages).unwrap());
        let touched = gpu.upload("touched", &self.touched).unwrap();
        let mut pass = Pass::new("fetch");
        let bindings = [
            (&fetches).into(),
            (&host_k).into(),
            (&host_v).into(),
            (&places).into(),
            (&touched).into(),
            (&k).into(),
            (&v).into(),
        ];
        dispatch(gpu, &mut pass, &fetch_pages::variant(), &self.params, &bindings);
        let reads = [&k, &v].map(|pages| pass.read(pages, 0..pages.len()));
        let outcome = gpu.submit(pass).unwrap().wait().unwrap();
        for ((read, host), before) in reads.into_iter().zip(&self.host).zip(&self.device) {
            let mut want = before.clone();
            let on_device = (&self.places[..], &self.touched[..]);
            cpu::fetch_pages::fetch_pages(&self.params, &self.fetches, host, on_device, &mut want);
            assert!(outcome.get(read) == want, "{:?}, {:?}, {:?}", self.params, self.fetches, self.touched);
        }
    }
}

proptest! {
    #![proptest_config(cases(16))]
    #[test]
    fn pages_are_where_they_were_asked_for(
        kv_heads in 1u32..5,
        (eighths, log_block) in (1u32..6, 2u32..5),
        dtype in prop::sample::select(&[KvDtype::F16, KvDtype::F32, KvDtype::Fp8, KvDtype::Int8][..]),
        (most, touched) in (0usize..SLOTS as usize, 0usize..SLOTS as usize),
        workgroups in 1u32..9,
        seed: u64,
    ) {
        let shape = KvShape { num_kv_heads: kv_heads, head_dim: 8 * eighths, block_size: 1 << log_block, dtype, layout: KvLayout::Native };
        if let (Some(gpu), true) = (gpu(), fetch_pages::serves(&shape)) {
            Fetch::new(&shape, most, touched, workgroups, seed).check(gpu);
        }
    }
}
