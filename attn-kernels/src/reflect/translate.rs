//! Translations of a variant for drivers of other systems, with the checks that wgpu adds by default.

use super::{Operations, Parsed, ReflectError, workgroup_bytes};
use crate::profile::Matrices;
use crate::{TextLength, Variant};
use naga::Module;
use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ModuleInfo};

/// One variant in the languages that wgpu hands to drivers.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Translation {
    /// Metal Shading Language 2.4; `None` for kernels with cooperative matrices, which run on Vulkan only.
    pub msl: Option<String>,
    /// HLSL of shader model 6.2; `None` if the variant has no such text.
    pub hlsl: Option<String>,
    /// SPIR-V 1.3, in words.
    pub spirv: Vec<u32>,
    /// Counts of operations in the module from which all three texts are made.
    pub operations: Operations,
}

/// Translates a variant, with its `override` constants set.
///
/// # Errors
/// A variant that does not compose, parse or validate, or that a language has no words for.
pub fn translate(variant: &Variant) -> Result<Translation, ReflectError> {
    let parsed = Parsed::new(variant)?;
    let (module, info) = parsed.resolve()?;
    let operations = Operations::count(&module, &info);
    let spirv = spirv(&parsed, &module, &info, &spirv_options())?;
    if has_matrices(&module) {
        return Ok(Translation { msl: None, hlsl: None, spirv, operations });
    }
    let options = msl::Options {
        lang_version: (2, 4),
        zero_initialize_workgroup_memory: false,
        ..msl::Options::default()
    };
    let (msl, _) = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default())
        .map_err(|e| parsed.error("MSL", e.to_string()))?;

    let options = hlsl::Options { shader_model: hlsl::ShaderModel::V6_2, ..hlsl_options() };
    let (_, hlsl) = hlsl(&parsed, &module, &info, &options)?;
    Ok(Translation { msl: Some(msl), hlsl: Some(hlsl), spirv, operations })
}

/// Way in which SPIR-V extracts bytes from words and inserts them: wgpu requires the 8-bit type if the device has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Bytes {
    /// Through the type of 8 bits.
    Typed,
    /// Through bit fields.
    Fields,
}

/// Capabilities that kernels need, except the type of 8 bits.
const WITHOUT_BYTES: [spv::Capability; 17] = {
    use spv::Capability as C;
    [
        C::CooperativeMatrixKHR,
        C::DotProduct,
        C::DotProductInput4x8BitPacked,
        C::Float16,
        C::GroupNonUniform,
        C::GroupNonUniformArithmetic,
        C::GroupNonUniformBallot,
        C::GroupNonUniformQuad,
        C::GroupNonUniformShuffle,
        C::GroupNonUniformShuffleRelative,
        C::GroupNonUniformVote,
        C::ImageQuery,
        C::Shader,
        C::StorageBuffer16BitAccess,
        C::StorageImageExtendedFormats,
        C::UniformAndStorageBuffer16BitAccess,
        C::VulkanMemoryModel,
    ]
};

/// Translations of one variant without run-time checks, as the engine gives it to drivers.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Trusted {
    /// Entry point and text in HLSL of shader model 6.2; `None` for kernels with cooperative matrices.
    pub hlsl: Option<(String, String)>,
    /// SPIR-V 1.6, in words.
    pub spirv: Vec<u32>,
    /// Whether the variant needs the type f16 in shaders.
    pub f16: bool,
    /// Bytes of workgroup memory.
    pub workgroup_bytes: u32,
    /// Number of invocations of a workgroup.
    pub workgroup_lanes: u32,
}

/// Translates a variant without run-time checks, with its `override` constants set, for a device's `matrices` and
/// `bytes`.
///
/// # Errors
/// As [`translate`].
pub fn translate_trusted(
    variant: &Variant,
    length: TextLength,
    matrices: Matrices,
    bytes: Bytes,
) -> Result<Trusted, ReflectError> {
    let parsed = Parsed::whole(variant, length, matrices)?;
    let (module, info) = parsed.resolve()?;
    let capabilities = match bytes {
        Bytes::Typed => None,
        Bytes::Fields => Some(WITHOUT_BYTES.into_iter().collect()),
    };
    let options = spv::Options {
        lang_version: (1, 6),
        capabilities,
        bounds_check_policies: naga::proc::BoundsCheckPolicies::default(),
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..spirv_options()
    };
    let spirv = spirv(&parsed, &module, &info, &options)?;
    let options = hlsl::Options {
        // From 6.4 on, naga sums products of bytes by an intrinsic that compilers of DirectX before May 2025 get wrong.
        shader_model: hlsl::ShaderModel::V6_2,
        restrict_indexing: false,
        force_loop_bounding: false,
        ..hlsl_options()
    };
    let hlsl = match has_matrices(&module) {
        true => None,
        false => Some(hlsl(&parsed, &module, &info, &options)?),
    };
    Ok(Trusted {
        hlsl,
        spirv,
        f16: parsed.needs(Capabilities::SHADER_FLOAT16),
        workgroup_bytes: workgroup_bytes(&parsed, &module)?,
        workgroup_lanes: module.entry_points[0].workgroup_size.iter().product(),
    })
}

fn has_matrices(module: &Module) -> bool {
    module.types.iter().any(|(_, ty)| matches!(ty.inner, naga::TypeInner::CooperativeMatrix { .. }))
}

fn hlsl_options() -> hlsl::Options {
    hlsl::Options { zero_initialize_workgroup_memory: false, ..hlsl::Options::default() }
}

/// Returns the entry point, which may have another name in HLSL than in WGSL, and the text.
fn hlsl(
    parsed: &Parsed<'_>,
    module: &Module,
    info: &ModuleInfo,
    options: &hlsl::Options,
) -> Result<(String, String), ReflectError> {
    let mut text = String::new();
    let written = hlsl::Writer::new(&mut text, options, &hlsl::PipelineOptions::default())
        .write(module, info, None)
        .map_err(|e| parsed.error("HLSL", e.to_string()))?;
    let entry = written.entry_point_names.into_iter().next().expect("a kernel has an entry point");
    Ok((entry.map_err(|e| parsed.error("HLSL", e.to_string()))?, text))
}

fn spirv_options() -> spv::Options<'static> {
    spv::Options {
        lang_version: (1, 3),
        flags: spv::WriterFlags::empty(),
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        ..spv::Options::default()
    }
}

fn spirv(
    parsed: &Parsed<'_>,
    module: &Module,
    info: &ModuleInfo,
    options: &spv::Options<'_>,
) -> Result<Vec<u32>, ReflectError> {
    spv::write_vec(module, info, options, None).map_err(|e| parsed.error("SPIR-V", e.to_string()))
}
