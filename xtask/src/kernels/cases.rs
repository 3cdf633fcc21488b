//! The cases of the self-test in files, with a page that runs them in a browser.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use attn_kernels::cpu::Tolerance;
use attn_kernels::kernel::KvDtype;
use attn_kernels::reflect::{Interface, interface};
use attn_kernels::self_test::hostile::Indices;
use attn_kernels::self_test::{Case, FloatLayout, Values};
use attn_kernels::{Access, Level, NamedVariant, ParamsLayout, Variant};
use bytemuck::NoUninit;
use serde::Serialize;

use super::standard_wgsl;

/// Files of the page.
const PAGE: [(&str, &str); 4] = [
    ("index.html", include_str!("../../kernels/index.html")),
    ("page.mjs", include_str!("../../kernels/page.mjs")),
    ("device.mjs", include_str!("../../kernels/device.mjs")),
    ("compare.mjs", include_str!("../../kernels/compare.mjs")),
];

/// `cases.json`: all variants by name.
#[derive(Debug, Serialize)]
pub(super) struct Cases {
    version: &'static str,
    variants: Vec<Exported>,
    #[serde(skip)]
    blob: Blob,
}

/// One variant with its cases.
#[derive(Debug, Serialize)]
struct Exported {
    /// Name and level.
    name: String,
    /// Name of the file with the variant's text.
    wgsl: String,
    entry_point: &'static str,
    /// Values of `override` constants.
    constants: BTreeMap<&'static str, u32>,
    /// Bytes of the uniform block at binding 0.
    params_bytes: usize,
    /// Bindings 1, 2, ... in order.
    bindings: Vec<Binding>,
    needs: Needs,
    cases: Vec<ExportedCase>,
    #[serde(skip)]
    text: String,
}

#[derive(Debug, Serialize)]
struct Binding {
    name: &'static str,
    access: &'static str,
}

/// Demands of a variant beyond WebGPU's defaults.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Needs {
    /// Features of a device.
    features: Vec<&'static str>,
    /// Features of WGSL that an implementation may lack.
    language: Vec<&'static str>,
    /// Limits above the default ones.
    limits: BTreeMap<&'static str, u32>,
    /// Smallest and largest number of lanes that subgroups may have.
    subgroups: Option<[u32; 2]>,
    /// Demand that no browser meets.
    beyond: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct ExportedCase {
    what: &'static str,
    dispatches: Vec<Dispatch>,
    /// Contents of bindings 1, 2, ... before the dispatches.
    buffers: Vec<ByteRange>,
    wants: Vec<Want>,
}

#[derive(Debug, Serialize)]
struct Dispatch {
    params: ByteRange,
    grid: [u32; 3],
}

/// First byte in `cases.bin`, and number of bytes.
type ByteRange = [usize; 2];

/// Expected contents of a binding, counted from 0 in `buffers`.
#[derive(Debug, Serialize)]
struct Want {
    binding: usize,
    #[serde(flatten)]
    contents: Contents,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Contents {
    /// Words, which must be equal.
    Words { want: ByteRange },
    /// Floats within `abs + rel * |want|`; with `finite`, anything where `want` is not finite.
    Floats { want: ByteRange, layout: FloatLayout, abs: f64, rel: f64, finite: bool },
    /// Any indices that later kernels may use.
    Indices(Indices),
}

/// Contents of `cases.bin`. Equal data are stored once, and all data begin at multiples of four bytes.
#[derive(Debug, Default)]
struct Blob {
    bytes: Vec<u8>,
    places: HashMap<Vec<u8>, ByteRange>,
}

impl Blob {
    fn add<T: NoUninit>(&mut self, data: &[T]) -> ByteRange {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        if let Some(place) = self.places.get(bytes) {
            return *place;
        }
        let place = [self.bytes.len(), bytes.len()];
        self.bytes.extend_from_slice(bytes);
        self.places.insert(bytes.into(), place);
        place
    }
}

impl Cases {
    /// The file of cases of these variants.
    ///
    /// # Errors
    /// If a variant cannot be composed.
    pub(super) fn new(variants: Vec<(NamedVariant, Vec<Case>)>) -> Result<Self> {
        let mut blob = Blob::default();
        let variants = variants.into_iter().map(|(named, cases)| Exported::new(&named, cases, &mut blob));
        Ok(Self { version: env!("CARGO_PKG_VERSION"), variants: variants.collect::<Result<_>>()?, blob })
    }

    /// Writes the page, the cases and the texts of the variants into `dir`.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("{}: cannot be created", dir.display()))?;
        let json = serde_json::to_vec(self)?;
        let page = PAGE.map(|(file, text)| (file, text.as_bytes()));
        let data = [("cases.json", &json[..]), ("cases.bin", &self.blob.bytes)];
        let texts = self.variants.iter().map(|variant| (&*variant.wgsl, variant.text.as_bytes()));
        for (file, bytes) in page.into_iter().chain(data).chain(texts) {
            let path = dir.join(file);
            fs::write(&path, bytes).with_context(|| format!("{}: cannot be written", path.display()))?;
        }
        Ok(())
    }
}

impl Exported {
    fn new(named: &NamedVariant, cases: Vec<Case>, blob: &mut Blob) -> Result<Self> {
        let variant = &named.variant;
        let name = format!("{}.{}", named.name, named.level());
        let text = standard_wgsl(variant)?;
        let binding = |of: &attn_kernels::Binding| Binding { name: of.name, access: access(of.access) };
        let needs = Needs::of(variant, &interface(variant)?, &text);
        // What no browser runs has no cases there.
        let cases = if needs.beyond.is_some() { Vec::new() } else { cases };
        Ok(Self {
            wgsl: format!("{name}.wgsl"),
            entry_point: variant.kernel.name,
            constants: variant.constants.iter().copied().collect(),
            params_bytes: variant.kernel.params.bytes,
            bindings: variant.bindings.iter().map(binding).collect(),
            needs,
            cases: cases.into_iter().map(|case| ExportedCase::new(case, blob)).collect(),
            text,
            name,
        })
    }
}

fn access(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::Write => "write",
        Access::Window => "window",
        Access::Image => "image",
    }
}

impl Needs {
    fn of(variant: &Variant, interface: &Interface, text: &str) -> Self {
        if variant.level == Level::Coop {
            return Self {
                beyond: Some("cooperative matrices, which WebGPU does not have"),
                ..Self::default()
            };
        }
        let has = |access| variant.bindings.iter().filter(|binding| binding.access == access).count();
        let enabled = |what: &str| text.contains(&format!("enable {what};"));
        let kept = |named: &[(bool, &'static str)]| {
            named.iter().filter(|(needed, _)| *needed).map(|(_, name)| *name).collect::<Vec<_>>()
        };
        let [x, y, z] = interface.workgroup_size;
        let buffers = u32::try_from(has(Access::Read) + has(Access::Write)).expect("they are few");
        let limits = [
            ("maxComputeInvocationsPerWorkgroup", x * y * z, 256),
            ("maxComputeWorkgroupSizeX", x, 256),
            ("maxComputeWorkgroupStorageSize", interface.workgroup_bytes, 16 << 10),
            ("maxStorageBuffersPerShaderStage", buffers, 8),
        ];
        let lanes = [*variant.subgroups.start(), *variant.subgroups.end()];
        Self {
            features: kept(&[(enabled("subgroups"), "subgroups"), (enabled("f16"), "shader-f16")]),
            language: kept(&[
                (text.contains("dot4I8Packed"), "packed_4x8_integer_dot_product"),
                (has(Access::Image) > 0, "readonly_and_readwrite_storage_textures"),
                (["subgroup_id", "num_subgroups"].iter().any(|name| text.contains(name)), "subgroup_id"),
            ]),
            limits: limits
                .iter()
                .filter(|(_, is, most)| is > most)
                .map(|(name, is, _)| (*name, *is))
                .collect(),
            subgroups: (lanes != [1, u32::MAX]).then_some(lanes),
            beyond: None,
        }
    }
}

impl ExportedCase {
    fn new(case: Case, blob: &mut Blob) -> Self {
        let mut dispatches = Vec::new();
        for mut params in case.dispatches {
            let grid = case.variant.grid_of(&params);
            params.resize(params.len().next_multiple_of(ParamsLayout::ALIGN), 0);
            dispatches.push(Dispatch { params: blob.add(&params), grid });
        }
        let buffers = case.buffers.iter().map(|words| blob.add(words)).collect();
        let wants = case.wants.into_iter();
        let wants = wants.map(|(binding, values)| Want { binding, contents: Contents::new(values, blob) });
        Self { what: case.what, dispatches, buffers, wants: wants.collect() }
    }
}

impl Contents {
    fn new(values: Values, blob: &mut Blob) -> Self {
        let mut floats = |layout, Tolerance { abs, rel }: Tolerance, want: &[f32], finite| Self::Floats {
            want: blob.add(want),
            layout,
            abs,
            rel,
            finite,
        };
        match values {
            Values::Words(want) => Self::Words { want: blob.add(&want) },
            Values::Floats(layout, tolerance, want) => floats(layout, tolerance, &want, false),
            Values::Finite(tolerance, want) => floats(FloatLayout::of(KvDtype::F32), tolerance, &want, true),
            Values::LogSums(..) => unreachable!("only kernels of matrices leave sums to another maximum"),
            Values::Indices(indices) => Self::Indices(indices),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_beyond_the_defaults() {
        let named = ["matmul_int8-q4", "matmul_coop-q4", "paged_decode-f16", "top_k-subgroup-list"];
        let all = crate::kernels::variants();
        let of = |name: &&str| {
            let variant = &all.iter().find(|named| named.name == **name).unwrap().variant;
            let needs = Needs::of(variant, &interface(variant).unwrap(), &standard_wgsl(variant).unwrap());
            format!("{name} {}", serde_json::to_string(&needs).unwrap())
        };
        insta::assert_snapshot!(named.iter().map(of).collect::<Vec<_>>().join("\n"), @r#"
        matmul_int8-q4 {"features":[],"language":["packed_4x8_integer_dot_product"],"limits":{},"subgroups":null,"beyond":null}
        matmul_coop-q4 {"features":[],"language":[],"limits":{},"subgroups":null,"beyond":"cooperative matrices, which WebGPU does not have"}
        paged_decode-f16 {"features":[],"language":[],"limits":{},"subgroups":null,"beyond":null}
        top_k-subgroup-list {"features":["subgroups"],"language":["subgroup_id"],"limits":{"maxComputeInvocationsPerWorkgroup":512,"maxComputeWorkgroupSizeX":512},"subgroups":null,"beyond":null}
        "#);
    }
}
