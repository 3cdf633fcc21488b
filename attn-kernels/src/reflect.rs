//! Reads a variant from its WGSL through naga, as drivers do: its interface, and its text in other languages.

mod error;
mod operations;
mod translate;

pub use error::ReflectError;
pub use operations::Operations;
pub use translate::{Bytes, Translation, Trusted, translate, translate_trusted};

use crate::profile::Matrices;
use crate::{Access, TextLength, Variant};
use naga::back::PipelineConstants;
use naga::proc::Layouter;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Module, StorageAccess, TypeInner};
use serde::Serialize;
use std::borrow::Cow;

/// Requirements of a variant on the host and the adapter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Interface {
    /// Name of the entry point.
    pub entry_point: String,
    /// Number of invocations of a workgroup along x, y, z.
    pub workgroup_size: [u32; 3],
    /// Number of bytes of workgroup memory.
    pub workgroup_bytes: u32,
    /// The uniform block at binding 0.
    pub params: Uniform,
    /// Storage buffers of group 0, by binding.
    pub bindings: Vec<StorageBinding>,
    /// `override` constants, with the value that the variant sets.
    pub overrides: Vec<(String, Option<u32>)>,
    /// Capabilities beyond plain WGSL that the variant needs, as naga names them.
    pub capabilities: Vec<String>,
}

/// Layout of a uniform struct.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Uniform {
    /// Name of the struct.
    pub name: String,
    /// Size in bytes.
    pub bytes: u32,
    /// Members with their offsets in bytes.
    pub members: Vec<(String, u32)>,
}

/// A storage buffer binding.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct StorageBinding {
    /// Binding index.
    pub binding: u32,
    /// Name of the variable.
    pub name: String,
    /// Access of the kernel to the binding.
    pub access: Access,
}

/// Reads the interface of a variant.
///
/// # Errors
/// A variant that does not compose, parse or validate.
pub fn interface(variant: &Variant) -> Result<Interface, ReflectError> {
    let parsed = Parsed::new(variant)?;
    let (module, _) = parsed.resolve()?;
    let entry = &module.entry_points[0];
    let workgroup_bytes = workgroup_bytes(&parsed, &module)?;
    // Bindings are those of the module as written: resolving drops what a variant does not use, but the host binds it.
    let mut params = Uniform::default();
    let mut bindings = Vec::new();
    for (_, variable) in parsed.module.global_variables.iter() {
        let binding = variable.binding.map_or(0, |b| b.binding);
        let access = match variable.space {
            AddressSpace::Uniform if binding == 0 => {
                params = uniform(&parsed.module, variable.ty);
                continue;
            }
            AddressSpace::Uniform => Access::Window,
            AddressSpace::Storage { access } if access.contains(StorageAccess::STORE) => Access::Write,
            AddressSpace::Storage { .. } => Access::Read,
            AddressSpace::Handle => Access::Image,
            _ => continue,
        };
        bindings.push(StorageBinding { binding, name: variable.name.clone().unwrap_or_default(), access });
    }
    bindings.sort_by_key(|b| b.binding);
    let value = |name: &str| variant.constants.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
    let overrides = parsed.module.overrides.iter().filter_map(|(_, o)| o.name.clone());
    Ok(Interface {
        entry_point: entry.name.clone(),
        workgroup_size: entry.workgroup_size,
        workgroup_bytes,
        params,
        bindings,
        overrides: overrides.map(|name| (name.clone(), value(&name))).collect(),
        capabilities: parsed.capabilities.iter_names().map(|(name, _)| name.to_owned()).collect(),
    })
}

/// Bytes of workgroup memory of a module whose `override` constants are in place.
fn workgroup_bytes(parsed: &Parsed<'_>, module: &Module) -> Result<u32, ReflectError> {
    let mut layouter = Layouter::default();
    layouter.update(module.to_ctx()).map_err(|e| parsed.error("layout", e.to_string()))?;
    let in_workgroup = |v: &naga::GlobalVariable| v.space == AddressSpace::WorkGroup;
    let workgroup = module.global_variables.iter().filter(|(_, v)| in_workgroup(v));
    Ok(workgroup.map(|(_, v)| layouter[v.ty].size).sum())
}

fn uniform(module: &Module, ty: naga::Handle<naga::Type>) -> Uniform {
    let ty = &module.types[ty];
    let TypeInner::Struct { members, span } = &ty.inner else { return Uniform::default() };
    let member = |m: &naga::StructMember| (m.name.clone().unwrap_or_default(), m.offset);
    Uniform {
        name: ty.name.clone().unwrap_or_default(),
        bytes: *span,
        members: members.iter().map(member).collect(),
    }
}

/// A valid module whose `override` constants are not yet set.
struct Parsed<'a> {
    variant: &'a Variant,
    module: Module,
    info: ModuleInfo,
    capabilities: Capabilities,
}

impl<'a> Parsed<'a> {
    /// Parses the variant with the fewest capabilities with which it is valid.
    fn new(variant: &'a Variant) -> Result<Self, ReflectError> {
        let mut parsed = Self::whole(variant, TextLength::Full, Matrices::NVIDIA)?;
        parsed.drop_unneeded(&Capabilities::all().iter().collect::<Vec<_>>());
        Ok(parsed)
    }

    /// Removes those of `flags` that the module does not need. A kernel needs few of dozens, and each try validates
    /// the module again, so flags that can all go are removed at once, and others by halves.
    fn drop_unneeded(&mut self, flags: &[Capabilities]) {
        let fewer = flags.iter().fold(self.capabilities, |left, flag| left - *flag);
        if let Ok(info) = validate(&self.module, fewer) {
            (self.capabilities, self.info) = (fewer, info);
        } else if flags.len() > 1 {
            let (first, last) = flags.split_at(flags.len() / 2);
            self.drop_unneeded(first);
            self.drop_unneeded(last);
        }
    }

    /// Parses the variant with all capabilities.
    fn whole(variant: &'a Variant, length: TextLength, matrices: Matrices) -> Result<Self, ReflectError> {
        let kernel = variant.kernel.name;
        let wgsl = variant.wgsl_of(length, matrices)?;
        let fail = |stage, message| ReflectError::Naga { kernel, stage, message };
        let module =
            naga::front::wgsl::parse_str(&wgsl).map_err(|e| fail("parsing", e.emit_to_string(&wgsl)))?;
        let capabilities = Capabilities::all();
        let info =
            validate(&module, capabilities).map_err(|e| fail("validation", e.emit_to_string(&wgsl)))?;
        Ok(Self { variant, module, info, capabilities })
    }

    /// Whether the module is not valid without `flag`.
    fn needs(&self, flag: Capabilities) -> bool {
        validate(&self.module, self.capabilities - flag).is_err()
    }

    /// Returns the module with the variant's constants set.
    fn resolve(&self) -> Result<(Cow<'_, Module>, Cow<'_, ModuleInfo>), ReflectError> {
        let constants: PipelineConstants = self
            .variant
            .constants
            .iter()
            .map(|(name, value)| ((*name).to_owned(), f64::from(*value)))
            .collect();
        let entry = Some((naga::ShaderStage::Compute, self.variant.kernel.name));
        naga::back::pipeline_constants::process_overrides(&self.module, &self.info, entry, &constants)
            .map_err(|e| self.error("override constants", e.to_string()))
    }

    fn error(&self, stage: &'static str, message: String) -> ReflectError {
        ReflectError::Naga { kernel: self.variant.kernel.name, stage, message }
    }
}

fn validate(
    module: &Module,
    capabilities: Capabilities,
) -> Result<ModuleInfo, Box<naga::WithSpan<naga::valid::ValidationError>>> {
    Validator::new(ValidationFlags::all(), capabilities).validate(module).map_err(Box::new)
}
