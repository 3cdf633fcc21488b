use std::path::PathBuf;

use insta::{assert_ron_snapshot, assert_snapshot};

use super::*;

/// A machine with everything.
fn complete(platform: Platform) -> Found {
    let driver = Driver { manifest: PathBuf::from("lvp.json"), library: Some(PathBuf::from("liblvp.so")) };
    let vulkan = Vulkan {
        loader: Some(PathBuf::from("libvulkan.so.1")),
        drivers: vec![driver],
        redirected_by: None,
        answers: false,
    };
    let python =
        Python { command: "python3".into(), version: "Python 3.11.2".into(), pip: Some("pip 23.0".into()) };
    let linux = !matches!(platform, Platform::MacOs | Platform::Windows);
    Found {
        platform,
        vulkan: linux.then_some(vulkan),
        python: Some(python),
        redis_server: Some(PathBuf::from("redis-server")),
        node: Some(PathBuf::from("node")),
        npm: Some(PathBuf::from("npm")),
        chromedriver: Some(PathBuf::from("chromedriver")),
    }
}

/// A machine with nothing.
fn bare(platform: Platform) -> Found {
    let vulkan = complete(platform).vulkan.map(|_| Vulkan {
        loader: None,
        drivers: Vec::new(),
        redirected_by: None,
        answers: false,
    });
    Found { platform, vulkan, python: None, redis_server: None, node: None, npm: None, chromedriver: None }
}

#[test]
fn a_complete_machine_needs_nothing() {
    for platform in [
        Platform::Debian { root: true },
        Platform::Debian { root: false },
        Platform::OtherLinux,
        Platform::MacOs,
        Platform::Windows,
    ] {
        let plan = plan(&complete(platform), Need::ALL);
        assert_eq!(plan, SetupPlan { missing: vec![], packages: vec![], remedy: Remedy::Nothing });
    }
}

#[test]
fn what_a_bare_machine_is_told() {
    let told = [
        Platform::Debian { root: true },
        Platform::Debian { root: false },
        Platform::OtherLinux,
        Platform::MacOs,
        Platform::Windows,
    ]
    .map(|platform| {
        let SetupPlan { missing, remedy, .. } = plan(&bare(platform), Need::ALL);
        format!("{platform:?} misses {}\n  {remedy:?}", missing.join(", "))
    });
    assert_snapshot!(told.join("\n"), @r#"
    Debian { root: true } misses Vulkan loader and driver, Python 3 with pip, Redis server, Node.js, npm, Chromium with its driver
      Apt("apt-get update && apt-get install -y --no-install-recommends libvulkan1 mesa-vulkan-drivers python3 python3-pip redis-server nodejs npm chromium chromium-driver")
    Debian { root: false } misses Vulkan loader and driver, Python 3 with pip, Redis server, Node.js, npm, Chromium with its driver
      Print("sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends libvulkan1 mesa-vulkan-drivers python3 python3-pip redis-server nodejs npm chromium chromium-driver'")
    OtherLinux misses Vulkan loader and driver, Python 3 with pip, Redis server, Node.js, npm, Chromium with its driver
      Advise("install what your distribution offers in place of the Debian packages libvulkan1 mesa-vulkan-drivers python3 python3-pip redis-server nodejs npm chromium chromium-driver")
    MacOs misses Python 3 with pip, Redis server, Node.js, npm, Chromium with its driver
      Print("brew install python redis node google-chrome chromedriver")
    Windows misses Python 3 with pip, Redis server, Node.js, npm, Chromium with its driver
      Advise("install Python 3 with pip and Redis server and Node.js and npm and Chromium with its driver")
    "#);
}

#[test]
fn only_what_is_needed_is_installed() {
    let found = bare(Platform::Debian { root: true });
    assert_eq!(plan(&found, &[Need::Gpu]).packages, ["libvulkan1", "mesa-vulkan-drivers"]);
    assert_eq!(plan(&found, &[Need::DefaultModel]).packages, ["python3", "python3-pip"]);
    assert_eq!(plan(&found, &[]).remedy, Remedy::Nothing);
}

#[test]
fn a_part_that_is_missing_brings_its_packages() {
    let complete = complete(Platform::Debian { root: true });
    let vulkan = complete.vulkan.clone().unwrap();
    let python = complete.python.clone().unwrap();
    let no_loader = Found { vulkan: Some(Vulkan { loader: None, ..vulkan.clone() }), ..complete.clone() };
    let no_driver = Found { vulkan: Some(Vulkan { drivers: vec![], ..vulkan.clone() }), ..complete.clone() };
    let dangling = Driver { library: None, ..vulkan.drivers[0].clone() };
    let no_library = Found { vulkan: Some(Vulkan { drivers: vec![dangling], ..vulkan }), ..complete.clone() };
    for found in [no_loader, no_driver, no_library] {
        assert_eq!(plan(&found, Need::ALL).packages, ["libvulkan1", "mesa-vulkan-drivers"], "{found:?}");
    }
    let no_pip = Found { python: Some(Python { pip: None, ..python }), ..complete };
    assert_eq!(plan(&no_pip, Need::ALL).packages, ["python3", "python3-pip"]);
}

#[test]
fn an_adapter_that_answers_needs_no_files() {
    let mut found = bare(Platform::OtherLinux);
    found.vulkan.as_mut().unwrap().answers = true;
    assert_eq!(plan(&found, &[Need::Gpu]).remedy, Remedy::Nothing);
}

#[test]
fn installing_does_not_help_where_a_variable_redirects() {
    let mut found = bare(Platform::Debian { root: true });
    found.vulkan.as_mut().unwrap().redirected_by = Some("VK_DRIVER_FILES");
    assert_ron_snapshot!(plan(&found, &[Need::Gpu]).remedy, @r#"advise("VK_DRIVER_FILES is set and names no usable Vulkan driver: unset it, or name the manifest of a driver")"#);
    assert_eq!(
        plan(&found, &[Need::DefaultModel]).remedy,
        Remedy::Apt(apt_command(&["python3", "python3-pip"]))
    );
}
