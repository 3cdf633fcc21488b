//! Prefill as the engine does it, over cases of the self-test: rows in tiles of any size, keys in segments and in parts.

use attn_kernels::Variant;
use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::paged_prefill::{PagedPrefillParams, Tile};
use attn_kernels::kernel::prefill_reduce::{self, PrefillReduceParams};
use attn_kernels::self_test::{self, Case, Spec, Values};

use super::by_hand::assert_close;
use super::device::described;
use super::layer::cut;
use super::properties::{after, assert_same_bits, dispatched, params};

/// The buffers of tiles, of outputs, and of log-sum-exps.
const TILES: usize = 4;
const OUT: usize = 5;
const LSE: usize = 6;

/// A kernel of prefill.
pub(crate) struct Prefill {
    pub(crate) variant: Variant,
    /// Whether dispatches go on where the last one ended.
    pub(crate) goes_on: bool,
}

impl Prefill {
    fn case(&self, spec: &Spec) -> Case {
        self_test::cases(&self.variant, spec).remove(0)
    }

    fn tiles(case: &Case) -> &[Tile] {
        bytemuck::cast_slice(&case.buffers[TILES])
    }

    /// The case with other tiles.
    fn with_tiles(case: &Case, list: &[Tile]) -> Case {
        let tiles = u32::try_from(list.len()).unwrap();
        let params = |bytes: &Vec<u8>| PagedPrefillParams { tiles, ..bytemuck::pod_read_unaligned(bytes) };
        let mut case = dispatched(case, case.dispatches.iter().map(params));
        case.buffers[TILES] = bytemuck::cast_slice(list).to_vec();
        case
    }

    /// Fails unless the chunks of `seed` have the same bits in smaller tiles and without half of these, and are what the
    /// reference makes of them with their keys in segments and in parts that `prefill_reduce` puts together.
    pub(crate) fn check(&self, gpu: &Gpu, seed: u64) {
        let case = self.case(&Spec::random(seed));
        let small = cut(Self::tiles(&case), [1, 7, 33][(seed % 3) as usize]);
        let small_case = Self::with_tiles(&case, &small);
        assert_same_bits(gpu, &small_case, &case);
        self.check_alone(gpu, &small_case, &small);
        let step = 16 * u32::try_from(1 + seed % 6).unwrap();
        let longest = small.iter().map(|tile| tile.position + tile.rows).max().unwrap();
        if self.goes_on {
            let params = params::<PagedPrefillParams>(&case);
            let segment = |first_key| PagedPrefillParams { first_key, num_keys: step, ..params };
            let segments = (0..longest).step_by(step as usize).map(segment);
            let what = format!("segments of {step} keys, {}, seed {seed}", described(&self.variant));
            dispatched(&case, segments).run(gpu).unwrap_or_else(|fault| panic!("{what}: {fault}"));
        }
        self.check_parts(gpu, &case, (step, longest.div_ceil(step)), seed);
    }

    /// Fails unless every other tile of a case has the same bits without those between.
    fn check_alone(&self, gpu: &Gpu, case: &Case, tiles: &[Tile]) {
        let some: Vec<Tile> = tiles.iter().copied().step_by(2).collect();
        let [all, alone] = [case, &Self::with_tiles(case, &some)].map(|case| after(gpu, case));
        let rows: u32 = some.iter().map(|tile| tile.rows).sum();
        for buffer in [OUT, LSE] {
            let written: Vec<usize> =
                (0..all[buffer].len()).filter(|at| alone[buffer][*at] != f32::NAN.to_bits()).collect();
            let of_row = all[buffer].len() / tiles.iter().map(|tile| tile.rows as usize).sum::<usize>();
            assert_eq!(written.len(), rows as usize * of_row, "{}", described(&self.variant));
            let differs = written.iter().find(|at| alone[buffer][**at] != all[buffer][**at]);
            assert_eq!(differs, None, "{}: buffer {buffer} depends on other tiles", described(&self.variant));
        }
    }

    /// Fails unless parts of the keys put together are what the reference makes of all.
    fn check_parts(&self, gpu: &Gpu, case: &Case, (part_keys, parts): (u32, u32), seed: u64) {
        let [out, lse] = [OUT, LSE].map(|buffer| case.buffers[buffer].len());
        let rows = u32::try_from(lse).unwrap();
        let all = PagedPrefillParams { first_key: 0, num_keys: u32::MAX, part_keys, parts, ..params(case) };
        let mut cut = dispatched(case, [all]);
        for buffer in [OUT, LSE] {
            cut.buffers[buffer] = case.buffers[buffer].repeat(parts as usize);
        }
        let of_parts = after(gpu, &cut);
        let neg_inf = f32::NEG_INFINITY;
        let params = PrefillReduceParams { rows, first_row: 0, parts, part_rows: rows, neg_inf };
        let dim = u32::try_from(out / lse).unwrap();
        let variant = prefill_reduce::variant(dim);
        let reduce = Case::new("reduce pass", &variant, &params)
            .binding(&of_parts[OUT])
            .binding(&of_parts[LSE])
            .binding(&case.buffers[OUT])
            .binding(&case.buffers[LSE]);
        let what = format!("parts of {part_keys} keys, {}, seed {seed}", described(&self.variant));
        for ((_, want), got) in case.wants.iter().zip(&after(gpu, &reduce)[2..]) {
            let Values::Floats(_, tolerance, want) = want else { panic!("outputs are floats") };
            assert_close(&what, *tolerance, bytemuck::cast_slice(got), want);
        }
    }

    /// Fails unless the same chunks in blocks of another size have the same bits.
    pub(crate) fn check_blocks(&self, gpu: &Gpu, other: &Self, block: u32, seed: u64) {
        let [case, other] = [self, other].map(|of| of.case(&Spec::random(seed).at_edges_of(block)));
        assert_same_bits(gpu, &case, &other);
    }
}
