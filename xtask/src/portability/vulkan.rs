//! A Vulkan driver without a loader and without hardware: what its device offers, and what its compiler says of a module.

use std::ffi::{CStr, CString};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use ash::{khr, vk};
use libloading::Library;

use super::report::{Executable, Offer};

/// Extensions that are enabled if the driver has them. wgpu enables the same, but for the first.
const WANTED: [&CStr; 3] =
    [khr::pipeline_executable_properties::NAME, khr::cooperative_matrix::NAME, ash::ext::robustness2::NAME];

/// An open device of a driver.
pub(super) struct Device {
    /// Properties of the device.
    pub(super) offer: Offer,
    device: ash::Device,
    /// Statistics of pipelines, if the driver gives any.
    executables: Option<khr::pipeline_executable_properties::Device>,
    _instance: ash::Instance,
    _entry: ash::Entry,
    _library: Library,
}

impl Device {
    /// Opens the first device of the driver in `library`.
    ///
    /// # Errors
    /// If the library does not load, has no device, or a device of a Vulkan older than 1.3.
    #[expect(unsafe_code, reason = "a driver is loaded and called")]
    pub(super) fn open(library: &Path) -> Result<Self> {
        let name = library.display();
        // SAFETY: the library is a driver that the package manager verified. Its functions have the types that Vulkan gives them,
        // every structure outlives the call that it is given to, and handles are those that the driver returned. The library
        // is the last field, so that it outlives what came from it.
        unsafe {
            let library = Library::new(library).with_context(|| format!("{name} does not load"))?;
            if let Ok(negotiate) = library.get::<unsafe extern "system" fn(*mut u32) -> vk::Result>(
                b"vk_icdNegotiateLoaderICDInterfaceVersion",
            ) {
                let mut version = 5;
                negotiate(&mut version).result().with_context(|| format!("{name}: no interface of 5"))?;
            }
            let get =
                *library.get(b"vk_icdGetInstanceProcAddr").with_context(|| format!("{name} is no driver"))?;
            let entry = ash::Entry::from_static_fn(ash::StaticFn { get_instance_proc_addr: get });
            let app = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
            let instance = entry
                .create_instance(&vk::InstanceCreateInfo::default().application_info(&app), None)
                .with_context(|| format!("{name}: no instance"))?;
            let devices =
                instance.enumerate_physical_devices().with_context(|| format!("{name}: no devices"))?;
            let physical = *devices.first().with_context(|| format!("{name} has no device"))?;
            let (offer, extensions) = offer(&entry, &instance, physical)?;
            let device =
                create(&instance, physical, &extensions).with_context(|| format!("{name}: no device"))?;
            let told = extensions.contains(&WANTED[0]);
            let executables =
                told.then(|| khr::pipeline_executable_properties::Device::new(&instance, &device));
            Ok(Self { offer, device, executables, _instance: instance, _entry: entry, _library: library })
        }
    }

    /// Compiles a module with one uniform and `storage` storage buffers, and returns what the driver says of the result.
    ///
    /// # Errors
    /// If the driver refuses it.
    #[expect(unsafe_code, reason = "a driver is called")]
    pub(super) fn compile(&self, spirv: &[u32], entry: &str, storage: u32) -> Result<Vec<Executable>> {
        let device = &self.device;
        let entry = CString::new(entry)?;
        let binding = |at: u32| {
            let ty = match at {
                0 => vk::DescriptorType::UNIFORM_BUFFER_DYNAMIC,
                _ => vk::DescriptorType::STORAGE_BUFFER,
            };
            let stages = vk::ShaderStageFlags::COMPUTE;
            vk::DescriptorSetLayoutBinding::default()
                .binding(at)
                .descriptor_type(ty)
                .descriptor_count(1)
                .stage_flags(stages)
        };
        let bindings: Vec<_> = (0..=storage).map(binding).collect();
        let set = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        let flags = match self.executables {
            Some(_) => vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR,
            None => vk::PipelineCreateFlags::empty(),
        };
        // SAFETY: every structure outlives the call that it is given to, the module is what naga wrote of a kernel, and handles
        // are destroyed once, after what was made of them.
        unsafe {
            let sets = [device.create_descriptor_set_layout(&set, None)?];
            let layout = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
            let layout = device.create_pipeline_layout(&layout, None)?;
            let module =
                device.create_shader_module(&vk::ShaderModuleCreateInfo::default().code(spirv), None)?;
            // As wgpu asks for it.
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .flags(vk::PipelineShaderStageCreateFlags::ALLOW_VARYING_SUBGROUP_SIZE)
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(&entry);
            let info = vk::ComputePipelineCreateInfo::default().flags(flags).stage(stage).layout(layout);
            let made = device.create_compute_pipelines(vk::PipelineCache::null(), &[info], None);
            let told = match &made {
                Ok(pipelines) => self.executables(pipelines[0]),
                Err((_, error)) => Err(anyhow::anyhow!("the driver answers {error}")),
            };
            made.unwrap_or_else(|(pipelines, _)| pipelines)
                .into_iter()
                .for_each(|pipeline| device.destroy_pipeline(pipeline, None));
            device.destroy_shader_module(module, None);
            device.destroy_pipeline_layout(layout, None);
            device.destroy_descriptor_set_layout(sets[0], None);
            told
        }
    }

    #[expect(unsafe_code, reason = "a driver is called")]
    fn executables(&self, pipeline: vk::Pipeline) -> Result<Vec<Executable>> {
        let Some(functions) = &self.executables else { return Ok(Vec::new()) };
        // SAFETY: the pipeline was made with the flag for statistics; a value has the type that its format names.
        unsafe {
            let info = vk::PipelineInfoKHR::default().pipeline(pipeline);
            let made = functions.get_pipeline_executable_properties(&info)?;
            let executable = |(at, properties): (u32, &vk::PipelineExecutablePropertiesKHR<'_>)| {
                let info = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline).executable_index(at);
                let statistics = functions.get_pipeline_executable_statistics(&info)?;
                let statistics = statistics.iter().map(|statistic| {
                    let value = match statistic.format {
                        vk::PipelineExecutableStatisticFormatKHR::FLOAT64 => statistic.value.f64,
                        vk::PipelineExecutableStatisticFormatKHR::INT64 => statistic.value.i64 as f64,
                        vk::PipelineExecutableStatisticFormatKHR::UINT64 => statistic.value.u64 as f64,
                        _ => f64::from(statistic.value.b32),
                    };
                    (text(statistic.name_as_c_str()), value)
                });
                let name = text(properties.name_as_c_str());
                Ok(Executable { name, subgroup: properties.subgroup_size, statistics: statistics.collect() })
            };
            (0..).zip(&made).map(executable).collect()
        }
    }
}

fn text(name: Result<&CStr, impl Sized>) -> String {
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Name and version of a driver. SwiftShader tells the version as a number alone.
fn driver(properties: &vk::PhysicalDeviceVulkan12Properties<'_>, version: u32) -> String {
    let [name, told] = [properties.driver_name_as_c_str(), properties.driver_info_as_c_str()].map(text);
    match told.is_empty() {
        true => {
            let [major, minor, patch] = [vk::api_version_major, vk::api_version_minor, vk::api_version_patch]
                .map(|part| part(version));
            format!("{name} {major}.{minor}.{patch}")
        }
        false => format!("{name} {told}"),
    }
}

/// Properties of the device by the rules of wgpu, and the requested extensions that it has.
#[expect(unsafe_code, reason = "a driver is called")]
fn offer(
    entry: &ash::Entry,
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
) -> Result<(Offer, Vec<&'static CStr>)> {
    // SAFETY: the chained structures outlive the calls.
    unsafe {
        let listed = instance.enumerate_device_extension_properties(physical)?;
        let has = |name: &&CStr| listed.iter().any(|one| one.extension_name_as_c_str() == Ok(*name));
        let extensions: Vec<_> = WANTED.into_iter().filter(has).collect();
        let api = instance.get_physical_device_properties(physical).api_version;
        let version = format!("{}.{}", vk::api_version_major(api), vk::api_version_minor(api));
        ensure!(api >= vk::API_VERSION_1_3, "the device has Vulkan {version}; 1.3 is needed");
        let (mut first, mut third) = (
            vk::PhysicalDeviceVulkan11Properties::default(),
            vk::PhysicalDeviceVulkan13Properties::default(),
        );
        let mut second = vk::PhysicalDeviceVulkan12Properties::default();
        let mut properties = vk::PhysicalDeviceProperties2::default()
            .push_next(&mut first)
            .push_next(&mut second)
            .push_next(&mut third);
        instance.get_physical_device_properties2(physical, &mut properties);
        let properties = properties.properties;
        let mut halves = vk::PhysicalDevice16BitStorageFeatures::default();
        let mut vulkan12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut features =
            vk::PhysicalDeviceFeatures2::default().push_next(&mut halves).push_next(&mut vulkan12);
        instance.get_physical_device_features2(physical, &mut features);
        let operations = vk::SubgroupFeatureFlags::BASIC
            | vk::SubgroupFeatureFlags::VOTE
            | vk::SubgroupFeatureFlags::ARITHMETIC
            | vk::SubgroupFeatureFlags::BALLOT
            | vk::SubgroupFeatureFlags::SHUFFLE
            | vk::SubgroupFeatureFlags::SHUFFLE_RELATIVE
            | vk::SubgroupFeatureFlags::QUAD;
        let model = vulkan12.vulkan_memory_model != 0 && vulkan12.vulkan_memory_model_device_scope != 0;
        let functions = khr::cooperative_matrix::Instance::new(entry, instance);
        let matrices = match extensions.contains(&khr::cooperative_matrix::NAME) && model {
            true => functions.get_physical_device_cooperative_matrix_properties(physical)?,
            false => Vec::new(),
        };
        let offer = Offer {
            device: text(properties.device_name_as_c_str()),
            driver: driver(&second, properties.driver_version),
            vulkan: version,
            vendor: properties.vendor_id,
            is_cpu: properties.device_type == vk::PhysicalDeviceType::CPU,
            subgroups: (third.min_subgroup_size, third.max_subgroup_size),
            subgroup_operations: first.subgroup_supported_operations.contains(operations)
                && first.subgroup_supported_stages.contains(vk::ShaderStageFlags::COMPUTE),
            f16: vulkan12.shader_float16 != 0
                && halves.storage_buffer16_bit_access != 0
                && halves.uniform_and_storage_buffer16_bit_access != 0,
            int8: vulkan12.shader_int8 != 0,
            matrices: matrices.iter().filter_map(shape).collect(),
            workgroup_bytes: properties.limits.max_compute_shared_memory_size,
            workgroup_lanes: properties.limits.max_compute_work_group_invocations,
        };
        Ok((offer, extensions))
    }
}

/// The shape of a cooperative matrix of a subgroup, as `16x16x16 f16 f32`, if wgpu knows its types.
fn shape(properties: &vk::CooperativeMatrixPropertiesKHR<'_>) -> Option<String> {
    let name = |ty| match ty {
        vk::ComponentTypeKHR::FLOAT16 => Some("f16"),
        vk::ComponentTypeKHR::FLOAT32 => Some("f32"),
        _ => None,
    };
    let p = properties;
    let plain = p.scope == vk::ScopeKHR::SUBGROUP && p.a_type == p.b_type && p.c_type == p.result_type;
    let (inner, outer) = (name(p.a_type)?, name(p.c_type)?);
    plain.then(|| format!("{}x{}x{} {inner} {outer}", p.m_size, p.n_size, p.k_size))
}

/// A device with every feature of Vulkan 1.3 that it has, and with the features of `extensions`.
#[expect(unsafe_code, reason = "a driver is called")]
fn create(
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    extensions: &[&'static CStr],
) -> Result<ash::Device> {
    let mut executables = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default();
    let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
    let mut robustness = vk::PhysicalDeviceRobustness2FeaturesEXT::default();
    let (mut vulkan11, mut vulkan12, mut vulkan13) = (
        vk::PhysicalDeviceVulkan11Features::default(),
        vk::PhysicalDeviceVulkan12Features::default(),
        vk::PhysicalDeviceVulkan13Features::default(),
    );
    let mut features = vk::PhysicalDeviceFeatures2::default()
        .push_next(&mut vulkan11)
        .push_next(&mut vulkan12)
        .push_next(&mut vulkan13);
    let [told, matrix, robust] = WANTED.map(|name| extensions.contains(&name));
    if told {
        features = features.push_next(&mut executables);
    }
    if matrix {
        features = features.push_next(&mut matrices);
    }
    if robust {
        features = features.push_next(&mut robustness);
    }
    // SAFETY: as in `offer`.
    unsafe {
        instance.get_physical_device_features2(physical, &mut features);
        let priorities = [1.0];
        let queue = [vk::DeviceQueueCreateInfo::default().queue_priorities(&priorities)];
        let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
        let info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queue)
            .enabled_extension_names(&names)
            .push_next(&mut features);
        match instance.create_device(physical, &info, None) {
            Ok(device) => Ok(device),
            Err(error) => bail!("the driver answers {error}"),
        }
    }
}
