//! A variant as drivers of other systems see it, with the checks that wgpu adds by default.

use super::{Operations, Parsed, ReflectError};
use crate::Variant;
use naga::Module;
use naga::back::{hlsl, msl, spv};
use naga::valid::ModuleInfo;

/// One variant in the languages that wgpu hands to drivers.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Translation {
    /// Metal Shading Language 2.4; `None` for kernels with cooperative matrices, which run on Vulkan only.
    pub msl: Option<String>,
    /// HLSL of shader model 6.2; `None` likewise.
    pub hlsl: Option<String>,
    /// SPIR-V 1.3, in words.
    pub spirv: Vec<u32>,
    /// Counts of operations in the module that all three come from.
    pub operations: Operations,
}

/// Translates a variant, its `override` constants in place.
///
/// # Errors
/// A variant that does not compose, parse or validate, or that a language has no words for.
pub fn translate(variant: &Variant) -> Result<Translation, ReflectError> {
    let parsed = Parsed::new(variant)?;
    let (module, info) = parsed.resolve()?;
    let operations = Operations::count(&module, &info);
    let spirv = spirv(&parsed, &module, &info)?;
    let cooperative = |ty: &naga::Type| matches!(ty.inner, naga::TypeInner::CooperativeMatrix { .. });
    if module.types.iter().any(|(_, ty)| cooperative(ty)) {
        return Ok(Translation { msl: None, hlsl: None, spirv, operations });
    }
    let options = msl::Options {
        lang_version: (2, 4),
        zero_initialize_workgroup_memory: false,
        ..msl::Options::default()
    };
    let (msl, _) = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default())
        .map_err(|e| parsed.error("MSL", e.to_string()))?;

    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_2,
        zero_initialize_workgroup_memory: false,
        ..hlsl::Options::default()
    };
    let mut hlsl = String::new();
    hlsl::Writer::new(&mut hlsl, &options, &hlsl::PipelineOptions::default())
        .write(&module, &info, None)
        .map_err(|e| parsed.error("HLSL", e.to_string()))?;
    Ok(Translation { msl: Some(msl), hlsl: Some(hlsl), spirv, operations })
}

fn spirv(parsed: &Parsed<'_>, module: &Module, info: &ModuleInfo) -> Result<Vec<u32>, ReflectError> {
    let options = spv::Options {
        lang_version: (1, 3),
        flags: spv::WriterFlags::empty(),
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        ..spv::Options::default()
    };
    spv::write_vec(module, info, &options, None).map_err(|e| parsed.error("SPIR-V", e.to_string()))
}
