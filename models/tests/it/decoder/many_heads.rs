//! Latents under the 128 heads of DeepSeek V3, whose partitions are large: a row leaves 256 KiB of each.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use attn_kernels::gpu::wgpu::Limits;
use attn_kernels::gpu::{Gpu, GpuOptions};
use attn_kernels::kernel::KvDtype;
use attn_kernels::split::{SplitCache, SplitPlanner};
use kvblock::BlockId;
use models::batch::{Phase, Slice};
use models::{Checkpoint, Decoder, DecoderConfig, DecoderOptions, HostMemory, Offload, RandomSpec};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::golden::relative_l2;
use super::invariance::assert_same;
use super::options;
use super::served::{Request, serve, serve_behind};
use super::tiny::checks;

/// One layer in the shape of DeepSeek V3, but for a narrow residual stream and few token ids.
struct Model {
    checkpoint: Checkpoint,
    config: DecoderConfig,
}

impl Model {
    fn new(context_length: u32) -> Self {
        let mut config = RandomSpec::parse("deepseek-v3-small").unwrap().config;
        config.num_layers = 1;
        config.layers.truncate(1);
        (config.num_heads, config.num_kv_heads) = (128, 128);
        (config.hidden_size, config.intermediate_size, config.vocab_size) = (128, 128, 256);
        config.context_length = context_length;
        Self { checkpoint: Checkpoint::random(RandomSpec::new("many heads", config.clone())), config }
    }

    fn decoder(&self, options: &DecoderOptions) -> Decoder {
        static GPU: LazyLock<Arc<Gpu>> = LazyLock::new(|| {
            let gpu = GpuOptions::new(checks()).limits(Limits::default());
            Arc::new(Gpu::open(&gpu).expect("GPU tests need an adapter"))
        });
        Decoder::load(&GPU, &self.config, self.checkpoint.weights(), options).unwrap()
    }
}

/// Within the bindings that every device has, a ring of blocks on the host is no larger than its partitions: some thousands of
/// keys, for any context.
#[test]
fn contexts_of_a_million_tokens_start_within_webgpus_bindings() {
    let model = Model::new(1_000_064);
    let beyond = |device, host| {
        let offload = Some(Offload::new(host, 2, HostMemory::Mapped));
        options(KvDtype::F16).max_rows(64).num_blocks(device).offload(offload)
    };
    let ids: Vec<u32> = (0..40).collect();
    let requests = [Request { prefill: 36, ..Request::new(&ids, 2) }];
    let decoder = || model.decoder(&beyond(600, 100));
    let want = serve(&mut decoder(), &requests, 64);
    // The 88 blocks of the device beside the ring are another sequence's.
    let got = serve_behind(&mut decoder(), &requests, 64, 90 * 16);
    assert_same("behind", &got[0], &want[0]);
}

/// Rows whose partitions are too many for one dispatch take turns.
#[test]
fn rows_that_take_turns_have_the_logits_of_rows_alone() {
    const KEYS: u32 = 300;
    const ROWS: u32 = 18;
    let model = Model::new(8_192);
    let mut decoder = model.decoder(&options(KvDtype::F16).max_rows(64).num_blocks(400).max_seqs(32));
    let planner = SplitPlanner::new(decoder.gpu().profile(), SplitCache::Latents(512), 128, 8_192);
    let together = planner.rows_together(KEYS.div_ceil(256));
    assert!(together < ROWS as usize, "{together} rows at a time");

    // Each sequence has a last block of its own, for its own key.
    let shared = 1..KEYS.div_ceil(16);
    let table = |row: u32| shared.clone().chain([shared.end + row]).map(BlockId::new).collect::<Vec<_>>();
    let mut rng = StdRng::seed_from_u64(5);
    let words = decoder.read_blocks(&[BlockId::new(1)]).unwrap()[0].len();
    for block in (shared.start..shared.end + ROWS).map(BlockId::new) {
        // Pairs of f16 from 0.5 to 1, of either sign.
        let contents: Vec<u32> =
            (0..words).map(|_| 0x3800_3800 | rng.random::<u32>() & 0x83ff_83ff).collect();
        decoder.write_block(block, &contents).unwrap();
    }
    let ids: Vec<u32> = (0..ROWS).collect();
    let mut logits = |rows: Range<u32>| {
        let tables: Vec<Vec<BlockId>> = rows.clone().map(table).collect();
        let tables: Vec<[&[BlockId]; 1]> = tables.iter().map(|table| [&table[..]]).collect();
        let slices = rows.zip(&tables).map(|(row, tables)| {
            let slice = Slice::new(&ids[row as usize..][..1], KEYS - 1, tables, Phase::Decode);
            Slice { logits: 1, ..slice }
        });
        decoder.step(&slices.collect::<Vec<_>>(), &[]).unwrap().logits
    };
    let all = logits(0..ROWS);
    let vocab = model.config.vocab_size as usize;
    for row in [3, 17] {
        let error = relative_l2(&all[row as usize * vocab..][..vocab], &logits(row..row + 1));
        assert!(error < 1e-5, "row {row} is off by {error:.2e}");
    }
}
