use std::collections::BTreeSet;

use attn_kernels::profile::Matrices;
use attn_kernels::reflect::Bytes;
use attn_kernels::{NamedVariant, TextLength};

use super::bounds::Bounds;
use super::choice::{self, Demand, Target};
use super::devices::{self, DEVICES};
use super::page;
use super::report::{Answer, Executable, Figures, KernelRow, Offer};
use super::*;

/// A device as its driver tells it.
fn offer(text: &str) -> Offer {
    serde_json::from_str(text).unwrap()
}

const RDNA3: &str = r#"{"device":"AMD Radeon Graphics (RADV NAVI31)","driver":"radv Mesa 26.1.6","vulkan":"1.4","is_cpu":false,
    "vendor":4098,"subgroups":[32,64],"subgroup_operations":true,"f16":true,"int8":true,"matrices":["16x16x16 f16 f16","16x16x16 f16 f32"],
    "workgroup_bytes":65536,"workgroup_lanes":1024}"#;
const AMPERE: &str = r#"{"device":"NVK ","driver":"NVK Mesa 26.1.6","vulkan":"1.4","is_cpu":false,"vendor":4318,"subgroups":[32,32],
    "subgroup_operations":true,"f16":true,"int8":true,"matrices":["16x16x16 f16 f32","16x8x16 f16 f32"],"workgroup_bytes":49152,
    "workgroup_lanes":1024}"#;
const ADRENO: &str = r#"{"device":"Turnip Adreno (TM) 750","driver":"turnip Mesa 26.1.6","vulkan":"1.4","is_cpu":false,
    "vendor":20803,"subgroups":[64,128],"subgroup_operations":true,"f16":false,"int8":true,"matrices":[],"workgroup_bytes":32768,"workgroup_lanes":2048}"#;
const LAVAPIPE: &str = r#"{"device":"llvmpipe","driver":"llvmpipe Mesa 26.1.6","vulkan":"1.4","is_cpu":true,"vendor":65541,"subgroups":[8,8],
    "subgroup_operations":true,"f16":true,"int8":true,"matrices":["8x8x8 f16 f32"],"workgroup_bytes":32768,"workgroup_lanes":1024}"#;
const ALCHEMIST: &str = r#"{"device":"Intel(R) Arc(tm) A770M Graphics (DG2)","driver":"Intel open-source Mesa driver Mesa 26.1.6",
    "vulkan":"1.4","is_cpu":false,"vendor":32902,"subgroups":[8,32],"subgroup_operations":true,"f16":true,"int8":true,
    "matrices":["8x8x16 f16 f32"],"workgroup_bytes":49152,"workgroup_lanes":1024}"#;
const SWIFTSHADER: &str = r#"{"device":"SwiftShader Device (Subzero)","driver":"SwiftShader driver 5.0.0","vulkan":"1.3",
    "is_cpu":true,"vendor":6880,"subgroups":[4,4],"subgroup_operations":true,"f16":false,"int8":false,"matrices":[],"workgroup_bytes":32768,
    "workgroup_lanes":256}"#;

/// Statistics that drivers told of `paged_prefill-f16` and others, shortened.
fn programs(text: &str) -> Vec<Executable> {
    serde_json::from_str(text).unwrap()
}

#[test]
fn figures_of_every_driver() {
    let told = [
        (
            "RADV",
            r#"[{"name":"compute","subgroup":64,"statistics":{"SGPRs":108.0,"VGPRs":256.0,"Spilled SGPRs":7.0,"Spilled VGPRs":28.0,"Subgroups per SIMD":4.0}}]"#,
        ),
        (
            "NVK",
            r#"[{"name":"compute","subgroup":32,"statistics":{"Max warps/SM":8.0,"Spills to memory":347.0,"Spills to reg":33.0,"Number of GPRs":255.0}}]"#,
        ),
        (
            "Turnip",
            r#"[{"name":"CS","subgroup":64,"statistics":{"Max Waves Per Core":4.0,"Registers used":48.0,"STP Count":161.0,"LDP Count":1448.0}}]"#,
        ),
        (
            "Honeykrisp",
            r#"[{"name":"compute","subgroup":32,"statistics":{"GPRs":223.0,"Threads":448.0,"Spills":160.0,"Fills":97.0}}]"#,
        ),
        (
            "ANV",
            r#"[{"name":"compute","subgroup":16,"statistics":{"Spills":58.0,"Fills":133.0,"Max live registers":160.0,"GRF registers":0.0}}]"#,
        ),
        ("lavapipe", "[]"),
    ];
    let line = |(driver, text): (&str, &str)| format!("{driver}: {:?}", Figures::of(&programs(text)));
    insta::assert_snapshot!(told.map(line).join("\n"), @"
    RADV: Figures { subgroup: Some(64), registers: Some(256), spills: Some(28), waves: Some(4) }
    NVK: Figures { subgroup: Some(32), registers: Some(255), spills: Some(347), waves: Some(8) }
    Turnip: Figures { subgroup: Some(64), registers: Some(48), spills: Some(161), waves: Some(4) }
    Honeykrisp: Figures { subgroup: Some(32), registers: Some(223), spills: Some(160), waves: Some(14) }
    ANV: Figures { subgroup: Some(16), registers: Some(160), spills: Some(58), waves: None }
    lavapipe: Figures { subgroup: None, registers: None, spills: None, waves: None }
    ");
}

/// Names of the variants of prefill and decode of f16, and of the widest products, that a device gets.
fn chosen(offer: &Offer) -> Vec<String> {
    let wanted = |named: &NamedVariant| {
        let name = named.name.as_str();
        let attention = ["paged_prefill-f16", "paged_prefill_coop-f16", "paged_prefill-broadcast-f16"];
        let decode = ["paged_decode_subgroup-8-f16", "paged_decode_subgroup-32-f16", "paged_decode-f16"];
        attention.contains(&name) || decode.contains(&name) || name == "top_k-subgroup-list"
    };
    let demand = |named: &NamedVariant| {
        let coop = named.level() == attn_kernels::Level::Coop;
        Demand { f16: coop, workgroup_bytes: 12 << 10, workgroup_lanes: 256 }
    };
    let variants = attn_kernels::variants().into_iter().filter(wanted);
    let chosen = variants.filter(|named| choice::chooses(offer, &named.variant, &demand(named)));
    chosen.map(|named| named.name).collect()
}

#[test]
fn kernels_of_devices() {
    let devices = [
        ("rdna3", RDNA3),
        ("ampere", AMPERE),
        ("adreno", ADRENO),
        ("alchemist", ALCHEMIST),
        ("lavapipe", LAVAPIPE),
        ("swiftshader", SWIFTSHADER),
    ];
    let line = |(id, text): (&str, &str)| format!("{id}: {}", chosen(&offer(text)).join(" "));
    insta::assert_snapshot!(devices.map(line).join("\n"), @"
    rdna3: paged_decode-f16 paged_prefill-f16 paged_prefill_coop-f16 top_k-subgroup-list
    ampere: paged_decode-f16 paged_decode_subgroup-32-f16 paged_prefill-f16 paged_prefill_coop-f16 top_k-subgroup-list
    adreno: paged_decode-f16 paged_prefill-f16 top_k-subgroup-list
    alchemist: paged_decode-f16 paged_prefill-f16 top_k-subgroup-list
    lavapipe: paged_decode-f16 paged_prefill-f16 paged_prefill-broadcast-f16 top_k-subgroup-list
    swiftshader: paged_decode-f16 paged_prefill-f16 top_k-subgroup-list
    ");
}

#[test]
fn texts_of_devices() {
    let [rdna3, ampere, alchemist, lavapipe, swiftshader] =
        [RDNA3, AMPERE, ALCHEMIST, LAVAPIPE, SWIFTSHADER].map(|text| Target::of(&offer(text)));
    assert_eq!(rdna3, Target { matrices: Matrices::new(16, 64).unwrap(), ..Target::ANY });
    assert_eq!(ampere, Target::ANY);
    assert_eq!((alchemist.length, alchemist.bytes), (TextLength::Middle, Bytes::Typed));
    assert_eq!((lavapipe.length, lavapipe.bytes), (TextLength::Short, Bytes::Typed));
    assert_eq!((swiftshader.length, swiftshader.bytes), (TextLength::Short, Bytes::Fields));
}

/// A text for a device without a type of 8 bits has none.
#[test]
fn bytes_by_fields() {
    let texts = Texts::write(Some("dequantise-int8"), false).unwrap();
    let int8 = |bytes: Bytes| {
        let file = texts.all[0].spirv_for(Target { bytes, ..Target::ANY }).unwrap();
        let bytes = std::fs::read(file).unwrap();
        // OpCapability Int8: two words.
        let words = [(2 << 16) + 17, 39_u32].map(u32::to_le_bytes).concat();
        bytes.windows(words.len()).any(|window| window == words)
    };
    assert!(int8(Bytes::Typed) && !int8(Bytes::Fields));
}

#[test]
fn a_kernel_that_asks_for_too_much_is_not_chosen() {
    let adreno = offer(ADRENO);
    let variant = attn_kernels::kernel::copy_blocks::variant();
    let plain = Demand { f16: false, workgroup_bytes: 32 << 10, workgroup_lanes: 2048 };
    assert!(choice::chooses(&adreno, &variant, &plain));
    for more in [
        Demand { f16: true, ..plain },
        Demand { workgroup_bytes: plain.workgroup_bytes + 1, ..plain },
        Demand { workgroup_lanes: plain.workgroup_lanes + 1, ..plain },
    ] {
        assert!(!choice::chooses(&adreno, &variant, &more), "{more:?}");
    }
}

fn outcome(spills: f64, compiler: &str) -> DeviceKernels {
    let program = Executable {
        name: "compute".into(),
        subgroup: 64,
        statistics: [("Spilled VGPRs".to_owned(), spills), ("VGPRs".to_owned(), 256.0)].into(),
    };
    let row = |kernel: &str, answer: Answer| KernelRow::new("rdna3", kernel, 6144, answer);
    DeviceKernels {
        device: devices::named(&["rdna3".into()], false).unwrap()[0],
        offer: Some(offer(RDNA3)),
        compiler: compiler.into(),
        rows: vec![
            row("a.baseline", Ok(vec![program])),
            row("b.subgroup", Err("no such type".into())),
            row("c.baseline", Ok(Vec::new())),
        ],
    }
}

#[test]
fn bounds_hold_what_was_measured() {
    let measured = [outcome(28.0, "radv Mesa 26.1.6")];
    let bounds = Bounds::of(&measured);
    assert_eq!(bounds.faults(&measured), [""; 0]);
    assert_eq!(bounds.faults(&[outcome(27.0, "radv Mesa 26.1.6")]), [""; 0]);
    let text = bounds.to_text().unwrap();
    assert_eq!(ron::from_str::<Bounds>(&text).unwrap(), bounds);
    let faults = [
        bounds.faults(&[outcome(29.0, "radv Mesa 26.1.6")]),
        Bounds::default().faults(&measured),
        bounds.notes(&[outcome(29.0, "radv Mesa 26.1.6")]),
        bounds.notes(&[outcome(29.0, "radv Mesa 26.2.0")]),
    ];
    insta::assert_snapshot!(faults.concat().join("\n"), @r#"
    rdna3: a.baseline spills 29 registers, and at most 28 are allowed
    rdna3: b.subgroup is refused: no such type (the bound is of "", this is "radv Mesa 26.1.6")
    rdna3: a.baseline spills 29 registers, and at most 28 are allowed (the bound is of "radv Mesa 26.1.6", this is "radv Mesa 26.2.0")
    "#);
}

#[test]
fn the_page() {
    let measured = [outcome(28.0, "radv Mesa 26.1.6")];
    let page = page::page(&measured, &Bounds::of(&measured));
    let (_, tables) = page.split_once("\n## Devices\n").unwrap();
    let tables: Vec<_> = tables.lines().filter(|line| line.starts_with('|')).collect();
    insta::assert_snapshot!(tables.join("\n"), @"
    | device | hardware or checker, compiler | version | subgroups | f16 | matrices | workgroup memory | kernels | refused | spill |
    |---|---|---|---|---|---|---|---|---|---|
    | `rdna3` | AMD RDNA 3 (Navi 31), RADV | radv Mesa 26.1.6 | 32 to 64 | yes | 16 x 16, 64 lanes | 64 KiB | 3 | 1 | 1 |
    | kernel | rdna3 |
    |---|---|
    | `a.baseline` | 28 |
    | `b.subgroup` | refused |
    | kernel | memory | rdna3 |
    |---|---|---|
    | `a.baseline` | 6144 | 256/28/? |
    | `b.subgroup` | 6144 | refused |
    | `c.baseline` | 6144 | ok |
    ");
}

/// The page in the tree is of the devices and the bounds in the tree.
#[test]
fn the_committed_page_is_of_the_committed_bounds() {
    let bounds = Bounds::committed().unwrap();
    let page = std::fs::read_to_string(tree::root().join(PAGE)).unwrap();
    for device in DEVICES {
        let row = format!("\n| `{}` | {} |", device.id, device.title);
        assert!(page.contains(&row), "{PAGE} lacks a row of {}", device.id);
        assert!(bounds.devices.contains_key(device.id), "{} lacks {}", bounds::FILE, device.id);
    }
    assert_eq!(bounds.devices.len(), DEVICES.len());
    assert!(page.contains(&page::spilling(&bounds)), "{PAGE} has other spills than {}", bounds::FILE);
}

/// SPIR-V is made of every variant, so that each has a row whatever devices choose.
#[test]
fn the_committed_page_has_every_variant() {
    let page = std::fs::read_to_string(tree::root().join(PAGE)).unwrap();
    let (_, table) = page.split_once("\n## Every kernel\n").unwrap();
    let names = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let listed: BTreeSet<_> = names.map(str::to_owned).collect();
    let variants = crate::kernels::variants();
    let named: BTreeSet<_> = variants.iter().map(|of| format!("{}.{}", of.name, of.level())).collect();
    let lacking: Vec<_> = named.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&named).collect();
    assert!(
        lacking.is_empty() && gone.is_empty(),
        "`cargo xtask portability --write` makes {PAGE} anew: it lacks {lacking:?}, and has {gone:?}"
    );
}

#[test]
fn unknown_devices_are_refused() {
    let told = devices::named(&["rdna9".into()], false).unwrap_err().to_string();
    assert!(told.starts_with("device rdna9: unknown; devices are rdna4, rdna3.5, rdna3, "), "{told}");
    let quick: Vec<_> = devices::named(&[], true).unwrap().iter().map(|device| device.id).collect();
    assert_eq!(quick, ["rdna3", "dx12", "spirv", "webgpu"]);
}
