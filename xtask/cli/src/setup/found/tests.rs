use std::io::ErrorKind;

use tempfile::TempDir;

use super::*;

/// A small file system, its files given as (absolute path, content).
fn machine(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = root.path().join(path.strip_prefix('/').unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
    }
    root
}

fn host(root: &TempDir, variables: &[(&str, &str)]) -> Host {
    let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    Host::new(root.path(), variables)
}

/// One line a finding: the loader, then each driver's manifest and library.
fn drawn(vulkan: &Vulkan) -> String {
    let path =
        |path: &Option<PathBuf>| path.as_ref().map_or("-".to_string(), |path| path.display().to_string());
    let drivers = vulkan
        .drivers
        .iter()
        .map(|driver| format!("{} -> {}", driver.manifest.display(), path(&driver.library)));
    let lines: Vec<_> = [format!("loader {}", path(&vulkan.loader))].into_iter().chain(drivers).collect();
    format!("{}\nusable {}", lines.join("\n"), vulkan.usable())
}

fn manifest(library: &str) -> String {
    format!(
        r#"{{"file_format_version": "1.0.0", "ICD": {{"library_path": "{library}", "api_version": "1.3.0"}}}}"#
    )
}

#[test]
fn an_empty_machine_has_no_vulkan() {
    let vulkan = vulkan(&host(&machine(&[]), &[]));
    insta::assert_snapshot!(drawn(&vulkan), @"
    loader -
    usable false
    ");
}

#[test]
fn loader_and_drivers_are_found_where_the_loaders_look() {
    let files = [
        ("/etc/ld.so.conf.d/own.conf", "# comment\n/opt/lib\n"),
        ("/opt/lib/libvulkan.so.1", ""),
        ("/opt/lib/libvulkan_bare.so", ""),
        ("/usr/share/vulkan/icd.d/bare.json", &manifest("libvulkan_bare.so")),
        ("/usr/share/vulkan/icd.d/absolute.json", &manifest("/usr/lib/vendor/libvendor.so")),
        ("/usr/lib/vendor/libvendor.so", ""),
        ("/etc/vulkan/icd.d/gone.json", &manifest("libGLX_gone.so.0")),
        ("/etc/vulkan/icd.d/broken.json", "{"),
        ("/etc/vulkan/icd.d/README", "not a manifest"),
        ("/people/ada/.local/share/vulkan/icd.d/relative.json", &manifest("../../own/libown.so")),
        ("/people/ada/.local/share/own/libown.so", ""),
    ];
    // The file system resolves `..` only through folders that exist, as the Vulkan loader does.
    let root = machine(&files);
    insta::assert_snapshot!(drawn(&vulkan(&host(&root, &[("HOME", "/people/ada")]))), @"
    loader /opt/lib/libvulkan.so.1
    /etc/vulkan/icd.d/broken.json -> -
    /etc/vulkan/icd.d/gone.json -> -
    /people/ada/.local/share/vulkan/icd.d/relative.json -> /people/ada/.local/share/vulkan/icd.d/../../own/libown.so
    /usr/share/vulkan/icd.d/absolute.json -> /usr/lib/vendor/libvendor.so
    /usr/share/vulkan/icd.d/bare.json -> /opt/lib/libvulkan_bare.so
    usable true
    ");
}

#[test]
fn a_loader_without_a_driver_is_not_usable() {
    let root =
        machine(&[("/usr/lib/libvulkan.so.1", ""), ("/etc/vulkan/icd.d/a.json", &manifest("liba.so"))]);
    insta::assert_snapshot!(drawn(&vulkan(&host(&root, &[]))), @"
    loader /usr/lib/libvulkan.so.1
    /etc/vulkan/icd.d/a.json -> -
    usable false
    ");
}

#[test]
fn variables_redirect_and_add() {
    let files = [
        ("/lib/libvulkan.so.1", ""),
        ("/lib/libone.so", ""),
        ("/etc/vulkan/icd.d/one.json", &*manifest("libone.so")),
        ("/drivers/two.json", &manifest("libone.so")),
        ("/more/three.json", &manifest("libone.so")),
    ];
    let root = machine(&files);
    let manifests = |variables: &[(&str, &str)]| {
        let vulkan = vulkan(&host(&root, variables));
        let names =
            vulkan.drivers.iter().map(|driver| driver.manifest.display().to_string()).collect::<Vec<_>>();
        (vulkan.redirected_by, names.join(" "))
    };
    assert_eq!(manifests(&[]), (None, "/etc/vulkan/icd.d/one.json".into()));
    assert_eq!(
        manifests(&[("VK_DRIVER_FILES", "/drivers")]),
        (Some("VK_DRIVER_FILES"), "/drivers/two.json".into())
    );
    assert_eq!(
        manifests(&[("VK_ICD_FILENAMES", "/more/three.json:/drivers/two.json"), ("VK_DRIVER_FILES", "")]),
        (Some("VK_ICD_FILENAMES"), "/more/three.json /drivers/two.json".into())
    );
    assert_eq!(
        manifests(&[("VK_ADD_DRIVER_FILES", "/more/three.json")]),
        (None, "/etc/vulkan/icd.d/one.json /more/three.json".into())
    );
    assert_eq!(manifests(&[("VK_DRIVER_FILES", "/nowhere.json")]), (Some("VK_DRIVER_FILES"), String::new()));
    assert_eq!(manifests(&[("XDG_DATA_DIRS", "/x")]), (None, "/etc/vulkan/icd.d/one.json".into()));
}

#[cfg(target_os = "linux")]
mod programs {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Adds a shell script to a machine's /bin. A process that another test starts meanwhile holds the script open
    /// for a moment, which makes it "busy": waits until it can run.
    fn script(root: &TempDir, name: &str, body: &str) {
        let path = root.path().join("bin").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        while Command::new(&path).output().is_err_and(|error| error.kind() == ErrorKind::ExecutableFileBusy) {
        }
    }

    const PYTHON: &str = "[ \"$1\" = --version ] && echo Python 3.11.2 && exit";
    const PIP: &str = "[ \"$1 $2 $3\" = '-I -m pip' ] && echo pip 23.0.1 from somewhere && exit\nexit 1";

    fn python_on(root: &TempDir) -> Option<Python> {
        python(&host(root, &[("PATH", "/sbin:/bin")]))
    }

    #[test]
    fn a_python_with_pip_is_preferred() {
        let root = machine(&[]);
        assert_eq!(python_on(&root), None);
        script(&root, "python", "echo Python 2.7.18");
        assert_eq!(python_on(&root), None);
        script(&root, "python3", &format!("{PYTHON}\nexit 1"));
        let bare = Python { command: "python3".into(), version: "Python 3.11.2".into(), pip: None };
        assert_eq!(python_on(&root), Some(bare.clone()));
        script(&root, "python", &format!("{PYTHON}\n{PIP}"));
        let full = Python { command: "python".into(), pip: Some("pip 23.0.1".into()), ..bare };
        assert_eq!(python_on(&root), Some(full));
    }

    #[test]
    fn platforms_are_told_apart() {
        let platform_of = |release: &str, apt: bool, uid: &str| {
            let root = machine(&[("/etc/os-release", release)]);
            script(&root, "id", &format!("[ \"$1\" = -u ] && echo {uid}"));
            if apt {
                script(&root, "apt-get", "exit 1");
            }
            platform(&host(&root, &[("PATH", "/bin")]))
        };
        assert_eq!(platform_of("NAME=x\nID=debian\n", true, "0"), Platform::Debian { root: true });
        assert_eq!(
            platform_of("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", true, "1000"),
            Platform::Debian { root: false }
        );
        assert_eq!(platform_of("ID=debian\n", false, "0"), Platform::OtherLinux);
        assert_eq!(platform_of("ID=fedora\n", true, "0"), Platform::OtherLinux);
    }
}
