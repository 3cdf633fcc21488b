//! Mesa's shim for Intel, which no package of Debian has: built from the source package of Mesa.
//!
//! It speaks as the kernel's driver i915 does, which no release of Mesa changes, so that it serves drivers of other releases too.
//! That of Debian's stable suite keeps its list of files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Apt, Types, folder, packages, program, run, with_ending};
use crate::setup::{self, Need};

/// Packages in addition to the source: a header, and what Mesa's generators import.
const PACKAGES: [&str; 4] =
    ["download", "libdrm-dev/trixie", "python3-mako/trixie", "python3-markupsafe/trixie"];
const SOURCE: [&str; 2] = ["source", "mesa/trixie"];
/// Folder of the generators, where their results go too.
const GENERATORS: &str = "src/intel/dev";
/// Generators, with a file that they read, if any, and those that they write.
const GENERATED: [&[&str]; 3] = [
    &["gen_wa_helpers.py", "mesa_defs.json", "intel_wa.h", "intel_wa.c"],
    &["intel_device_info_gen_h.py", "intel_device_info_gen.h"],
    &["intel_device_info_serialize_gen_c.py", "intel_device_info_serialize_gen.c"],
];
const FILES: [&str; 22] = [
    "src/drm-shim/device.c",
    "src/drm-shim/drm_shim.c",
    "src/intel/dev/i915/intel_device_info.c",
    "src/intel/dev/intel_device_info.c",
    "src/intel/dev/intel_device_info_serialize_gen.c",
    "src/intel/dev/intel_hwconfig.c",
    "src/intel/dev/intel_kmd.c",
    "src/intel/dev/intel_wa.c",
    "src/intel/dev/xe/intel_device_info.c",
    "src/intel/tools/intel_noop_drm_shim.c",
    "src/util/anon_file.c",
    "src/util/hash_table.c",
    "src/util/log.c",
    "src/util/os_misc.c",
    "src/util/parson.c",
    "src/util/ralloc.c",
    "src/util/set.c",
    "src/util/simple_mtx.c",
    "src/util/u_call_once.c",
    "src/util/u_debug.c",
    "src/util/u_process.c",
    "src/util/vma.c",
];
/// Flags of the C compiler: the definitions that Mesa's own build makes on any current Linux on x86-64. Unused
/// functions are removed, together with what they would need.
const FLAGS: &str = "-O1 -w -fPIC -shared -fvisibility=hidden -ffunction-sections -Wl,--gc-sections -Wl,-z,defs -pthread \
    -D_GNU_SOURCE -DNDEBUG -DHAVE_PTHREAD -DHAVE_MEMFD_CREATE -DHAVE_STRUCT_TIMESPEC -DHAVE_SECURE_GETENV \
    -DUTIL_ARCH_LITTLE_ENDIAN=1 -DUTIL_ARCH_BIG_ENDIAN=0 \
    -Iinclude -Iinclude/drm-uapi -Isrc -Isrc/intel -Isrc/intel/dev";

/// Path of the shim, built if it is not there.
///
/// # Errors
/// If this is no x86-64 Linux, or a C compiler, Python, tar, Mesa's source or a package cannot be had, or the source does not
/// compile.
pub(in crate::portability) fn shim() -> Result<PathBuf> {
    ensure!(
        cfg!(all(target_os = "linux", target_arch = "x86_64")),
        "Mesa's shim for Intel is built on x86-64 Linux alone"
    );
    let folder = folder()?;
    let library = folder.join("intel").join("libintel_noop_drm_shim.so");
    if library.is_file() {
        return Ok(library);
    }
    let [cc, tar, _] = [program("cc")?, program("tar")?, program("xz")?];
    let python = setup::ensure(&[Need::DefaultModel])?.python.context("no Python 3")?;
    eprintln!("building the shim for Intel from Debian's source of Mesa, to {}", library.display());
    let apt = Apt::open(&folder, Types::PackagesAndSources)?;
    let scratch = tempfile::Builder::new().prefix(".fetch-").tempdir_in(&folder)?;
    let (archives, root, source) =
        (scratch.path().join("archives"), scratch.path().join("root"), scratch.path().join("source"));
    for folder in [&archives, &source] {
        fs::create_dir_all(folder)?;
    }
    apt.run(&archives, &archives, &SOURCE)?;
    apt.run(&archives, &archives, &PACKAGES)?;
    for package in packages(&archives)? {
        run(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&root))?;
    }
    let archive =
        with_ending(&archives, ".orig.tar.xz")?.pop().context("apt-get downloaded no source of Mesa")?;
    run(Command::new(tar)
        .args(["--extract", "--strip-components=1", "--file"])
        .arg(archive)
        .current_dir(&source))?;
    generate(Path::new(&python.command), &root, &source)?;
    let built = source.join("shim.so");
    let headers = format!("-I{}", root.join("usr/include").display());
    let mut compile = Command::new(cc);
    compile.args(FLAGS.split_whitespace()).arg(headers).args(FILES).arg("-o").arg(&built);
    run(compile.current_dir(&source)).context("Mesa's shim for Intel cannot be built")?;
    fs::create_dir_all(folder.join("intel"))?;
    fs::rename(&built, &library)?;
    Ok(library)
}

/// Runs the programs that generate a part of Mesa's source.
fn generate(python: &Path, root: &Path, source: &Path) -> Result<()> {
    let modules = root.join("usr/lib/python3/dist-packages");
    for command in GENERATED {
        let mut generator = Command::new(python);
        generator.args(command).env("PYTHONPATH", &modules).current_dir(source.join(GENERATORS));
        run(&mut generator).with_context(|| format!("{}: Mesa's source is incomplete", command[0]))?;
    }
    Ok(())
}
