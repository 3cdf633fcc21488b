//! Kernels in the forms that compilers read, in files.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Result, ensure};
use attn_kernels::profile::Matrices;
use attn_kernels::reflect::translate_trusted;
use attn_kernels::{Level, NamedVariant};
use tempfile::{NamedTempFile, TempDir};

use super::choice::{Demand, Target};
use crate::kernels::standard_wgsl;

/// A kernel in files.
#[derive(Debug)]
pub(super) struct Text {
    /// Name and level.
    pub(super) kernel: String,
    /// The variant.
    pub(super) named: NamedVariant,
    /// Demands on a device.
    pub(super) demand: Demand,
    /// Entry point in HLSL, if there is HLSL of it.
    pub(super) hlsl_entry: Option<String>,
    stem: PathBuf,
}

impl Text {
    /// File with WGSL as a browser takes it.
    pub(super) fn wgsl(&self) -> PathBuf {
        self.stem.with_extension("wgsl")
    }

    /// File with HLSL.
    pub(super) fn hlsl(&self) -> PathBuf {
        self.stem.with_extension("hlsl")
    }

    /// File with SPIR-V for no device in particular.
    pub(super) fn spirv(&self) -> PathBuf {
        self.stem.with_extension("spv")
    }

    /// File with SPIR-V for a device, made on first use.
    pub(super) fn spirv_for(&self, target: Target) -> Result<PathBuf> {
        let matrices = match self.named.level() {
            Level::Coop => target.matrices,
            // Texts without matrices are the same for all.
            _ => Matrices::NVIDIA,
        };
        let target = Target { matrices, ..target };
        if target == Target::ANY {
            return Ok(self.spirv());
        }
        let Target { length, bytes, .. } = target;
        let path = self.stem.with_extension(format!(
            "{length:?}-{bytes:?}-{}x{}.spv",
            matrices.size(),
            matrices.lanes()
        ));
        if !path.exists() {
            let made = translate_trusted(&self.named.variant, length, matrices, bytes)?;
            // Compilers of other devices may read it already: it comes whole or not at all.
            let mut file = NamedTempFile::new_in(self.stem.parent().unwrap_or(Path::new(".")))?;
            file.write_all(&bytes_of(&made.spirv))?;
            file.persist(&path)?;
        }
        Ok(path)
    }

    fn write(folder: &Path, named: NamedVariant) -> Result<Self> {
        let kernel = format!("{}.{}", named.name, named.level());
        // Not the name, which has a dot in it.
        let stem = folder.join(kernel.replace('.', "-"));
        let Target { length, matrices, bytes } = Target::ANY;
        let full = translate_trusted(&named.variant, length, matrices, bytes)?;
        let demand = Demand {
            f16: full.f16,
            workgroup_bytes: full.workgroup_bytes,
            workgroup_lanes: full.workgroup_lanes,
        };
        let (hlsl_entry, hlsl) = full.hlsl.unzip();
        let text = Self { kernel, demand, hlsl_entry, stem, named };
        fs::write(text.spirv(), bytes_of(&full.spirv))?;
        if let Some(hlsl) = hlsl {
            fs::write(text.hlsl(), hlsl)?;
        }
        fs::write(text.wgsl(), standard_wgsl(&text.named.variant)?)?;
        Ok(text)
    }

    /// Whether standard WGSL can express the kernel, and the engine would choose it in a browser or under DirectX.
    pub(super) fn is_standard(&self) -> bool {
        self.hlsl_entry.is_some() && !self.named.variant.software
    }
}

fn bytes_of(spirv: &[u32]) -> Vec<u8> {
    spirv.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// All kernels, in a folder that is removed when the value is dropped.
#[derive(Debug)]
pub(super) struct Texts {
    /// The kernels, by name.
    pub(super) all: Vec<Text>,
    _folder: TempDir,
}

impl Texts {
    /// Writes every variant of all crates with `filter` in its name; with `quick` one of each kernel and level.
    ///
    /// # Errors
    /// If there is none, or one cannot be translated.
    pub(super) fn write(filter: Option<&str>, quick: bool) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut variants = crate::kernels::variants();
        variants.retain(|named| filter.is_none_or(|filter| named.name.contains(filter)));
        let mut kernels = BTreeSet::new();
        variants.retain(|named| !quick || kernels.insert((named.variant.kernel.name, named.level())));
        ensure!(!variants.is_empty(), "no kernel has {} in its name", filter.unwrap_or_default());
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let parts = variants.chunks(variants.len().div_ceil(threads));
        let write = |part: &[NamedVariant]| -> Result<Vec<Text>> {
            part.iter().map(|named| Text::write(folder.path(), named.clone())).collect()
        };
        let all: Result<Vec<_>> = thread::scope(|scope| {
            let running: Vec<_> = parts.map(|part| scope.spawn(|| write(part))).collect();
            running.into_iter().map(|thread| thread.join().expect("a translation does not panic")).collect()
        });
        Ok(Self { all: all?.into_iter().flatten().collect(), _folder: folder })
    }
}
