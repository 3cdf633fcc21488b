//! Sizes of subgroups that multiply matrices: drivers with several choose one, and do not say which.

#![expect(unreachable_pub, reason = "params! and bindings! declare public types")]

use super::{Checks, Gpu, GpuError, GpuOptions, Pass, wgpu};
use crate::profile::{Matrices, UNIT};
use crate::{Kernel, KernelRole, Level, Params, Variant};

static KERNEL: Kernel = Kernel {
    name: "matrix_lanes",
    role: KernelRole::Other,
    wgsl: include_str!("matrix_lanes.wgsl"),
    modules: &[crate::MODULES],
    params: MatrixLanesParams::LAYOUT,
    bindings: MatrixLanesBuffers::BINDINGS,
    grid: |_, _| [1, 1, 1],
    declared: None,
};

params! {
    /// Uniform parameters.
    pub struct MatrixLanesParams {
        /// The number zero, as a parameter so that compilers do not know it.
        pub zero: f32,
    }
}

bindings! {
    /// Buffers of `matrix_lanes`.
    pub struct MatrixLanesBuffers(MatrixLanesParams) {
        /// Number of lanes of a subgroup, `[1]`.
        write lanes: u32,
    }
}

/// Returns the number of rows, columns and products of the f16 matrices with f32 sums that kernels use on an adapter;
/// `None` if kernels use none there. Software drivers multiply matrices one number at a time, and cooperative loads
/// cannot be bounds-checked.
pub(super) fn matrix_size(adapter: &wgpu::Adapter, options: &GpuOptions) -> Option<u32> {
    let is_cpu = adapter.get_info().device_type == wgpu::DeviceType::Cpu;
    if options.software.unwrap_or(is_cpu) || options.checks == Checks::On {
        return None;
    }
    let offered = adapter.cooperative_matrix_properties();
    [16, 8].into_iter().find(|size| {
        offered.iter().any(|p| {
            [p.m_size, p.n_size, p.k_size] == [*size; 3]
                && p.ab_type == wgpu::CooperativeScalarType::F16
                && p.cr_type == wgpu::CooperativeScalarType::F32
        })
    })
}

impl Gpu {
    /// Enables cooperative matrices of `size` rows on a device. If the device has several subgroup sizes, a trial
    /// shows which size multiplies matrices. The device gets none if no kernel is written for its matrices.
    ///
    /// # Errors
    /// A device that does not run the trial.
    pub(super) fn with_matrices(mut self, size: Option<u32>) -> Result<Self, GpuError> {
        let Some(size) = size.filter(|_| self.level() == Level::Coop) else { return Ok(self) };
        let [smallest, largest] = self.profile.subgroups;
        let lanes = match smallest == largest {
            true => smallest,
            false => {
                self.profile.matrices = Matrices::new(size, UNIT);
                self.matrix_lanes()?
            }
        };
        self.profile = self.profile.with_matrices(Matrices::new(size, lanes));
        Ok(self)
    }

    fn matrix_lanes(&self) -> Result<u32, GpuError> {
        let pipeline = self.pipeline(&Variant::new(&KERNEL).with_matrices())?;
        let lanes = self.buffer::<u32>("lanes", 1)?;
        let mut pass = Pass::new("lanes of matrices");
        let params = MatrixLanesParams { zero: 0.0 };
        pass.dispatch(&pipeline, &params, MatrixLanesBuffers { lanes: lanes.bind() });
        self.submit(pass)?.wait()?;
        Ok(self.read(&lanes, 0..1)?[0])
    }
}
