//! Rows of `matmul_coop` and `split_sum` in any company, as trusted modules: cooperative loads cannot be bounds-checked.
//! References of products this large would take longer than the kernels.

use crate::adapter::gpu;
use attn_kernels::Variant;
use attn_kernels::gpu::{Gpu, Pass};
use attn_kernels::self_test::layer::floats;
use dense_kernels::Dtype;
use dense_kernels::kernel::matmul::{Epilogue, MatmulParams};
use dense_kernels::kernel::matmul_coop::{self, Activations, MAX_PARTIALS, TilePlan};
use dense_kernels::kernel::split_sum::{self, SplitSumParams};
use dense_kernels::pack::Packed;
use dense_kernels::self_test::tensors::random;

#[derive(Clone)]
struct Product {
    packed: Packed,
    params: MatmulParams,
    epilogue: Epilogue,
    x: Vec<f32>,
    y: Vec<f32>,
}

impl Product {
    fn new(dtype: Dtype, [rows, cols, width]: [u32; 3], epilogue: Epilogue) -> Self {
        let all = (cols * epilogue.parts()) as usize;
        let mut packed = Packed::new(dtype, width as usize, all);
        packed.fill(&random(dtype, all, width as usize, 11), 0..all, 0);
        // Columns of y on both sides belong to somebody else; a row of x is longer than the product needs.
        let (x_stride, y_stride, y_offset) = (width + 4, cols + 9, 5);
        let params = MatmulParams {
            x_stride: x_stride / 4,
            y_stride,
            y_offset,
            ..MatmulParams::new([rows, cols, width / 32])
        };
        let (x, y) = (floats((rows * x_stride) as usize, 12), floats((rows * y_stride) as usize, 13));
        Self { packed, params, epilogue, x, y }
    }

    fn run(&self, gpu: &Gpu, variant: &Variant) -> Vec<f32> {
        let x = gpu.upload("x", &self.x).unwrap();
        let wq = gpu.upload("wq", &self.packed.quants).unwrap();
        let ws = gpu.upload("ws", &self.packed.scales).unwrap();
        let y = gpu.upload("y", &self.y).unwrap();
        let pipeline = gpu.pipeline(variant).unwrap_or_else(|e| panic!("{e}"));
        let mut pass = Pass::new("matmul");
        let bindings = [(&x).into(), (&wq).into(), (&ws).into(), (&y).into()];
        pass.dispatch_bytes(&pipeline, bytemuck::bytes_of(&self.params), &bindings);
        let read = pass.read(&y, 0..y.len());
        gpu.submit(pass).unwrap().wait().unwrap().get(read)
    }

    /// The product proper, row by row.
    fn inside(&self, y: &[f32]) -> Vec<f32> {
        let MatmulParams { cols, y_stride, y_offset, .. } = self.params;
        let inside = y_offset as usize..(y_offset + cols) as usize;
        y.chunks_exact(y_stride as usize).flat_map(|row| &row[inside.clone()]).copied().collect()
    }

    /// Rows `first` to `first + rows` alone, by the plan whose results do not depend on the number of rows.
    fn invariant(&self, gpu: &Gpu, first: u32, rows: u32) -> Vec<f32> {
        let MatmulParams { cols, blocks, x_stride, y_stride, y_offset, .. } = self.params;
        let plan = TilePlan::invariant(gpu.profile(), [rows, cols, blocks], self.epilogue, MAX_PARTIALS);
        let TilePlan { tile, split_blocks } = plan;
        let splits = plan.splits(blocks);
        let of_rows = |data: &[f32], stride: u32| {
            let (from, len) = ((first * stride) as usize, (rows * stride) as usize);
            data[from..from + len].to_vec()
        };
        let params = MatmulParams { rows, split_blocks, ..self.params };
        let (x, y) = (of_rows(&self.x, x_stride * 4), of_rows(&self.y, y_stride));
        let format = self.packed.format;
        let variant = |epilogue| matmul_coop::variant(format, epilogue, Activations::F32, tile);
        let alone = Self { packed: self.packed.clone(), params, epilogue: self.epilogue, x, y };
        let out = if splits == 1 {
            alone.run(gpu, &variant(self.epilogue))
        } else {
            let params = MatmulParams { y_stride: cols, y_offset: 0, ..params };
            let y = vec![0.0; (splits * rows * cols) as usize];
            let partials = Self { params, epilogue: Epilogue::Store, y, ..alone.clone() };
            let partials = partials.run(gpu, &variant(Epilogue::Store));
            let sum = SplitSumParams { rows, cols, splits, y_stride, y_offset };
            let (partials, y) =
                (gpu.upload("partials", &partials).unwrap(), gpu.upload("y", &alone.y).unwrap());
            let pipeline = gpu.pipeline(&split_sum::variant(self.epilogue)).unwrap();
            let mut pass = Pass::new("split_sum");
            let bindings = [(&partials).into(), (&y).into()];
            pass.dispatch_bytes(&pipeline, bytemuck::bytes_of(&sum), &bindings);
            let read = pass.read(&y, 0..y.len());
            gpu.submit(pass).unwrap().wait().unwrap().get(read)
        };
        alone.inside(&out)
    }
}

#[test]
fn rows_have_the_same_bits_in_any_company() {
    let Some(gpu) = gpu() else { return };
    let shapes = [
        ([300, 4096, 4096], Epilogue::Add),
        ([300, 6144, 2048], Epilogue::Store),
        ([300, 1024, 8192], Epilogue::Add),
        ([300, 5000, 2048], Epilogue::SiluMul),
        ([300, 40_000, 1024], Epilogue::Store),
    ];
    for (shape, epilogue) in shapes {
        let product = Product::new(Dtype::Q4_K, shape, epilogue);
        let [all, cols, _] = shape;
        let want = product.invariant(&gpu, 0, all);
        for (first, rows) in
            [(0, 1), (7, 1), (299, 1), (3, 2), (0, 16), (5, 17), (40, 33), (100, 64), (1, 65), (90, 130)]
        {
            let got = product.invariant(&gpu, first, rows);
            let same = want[(first * cols) as usize..][..(rows * cols) as usize].iter().zip(&got);
            let differing = same.filter(|(want, got)| want.to_bits() != got.to_bits()).count();
            assert_eq!(differing, 0, "{shape:?}, {epilogue:?}: rows {first} to {}", first + rows);
        }
    }
}
