//! Tier specs: what parses, what is refused and how, and that text and spec agree.

use insta::assert_snapshot;
use prefetch::failure::FailurePolicy;
use prefetch::spec::{Compression, DiskSpec, KeySource, RemoteSpec, TierSpec};
use proptest::prelude::*;

fn error(text: &str) -> String {
    text.parse::<TierSpec>().unwrap_err().to_string()
}

#[test]
fn the_documented_form_parses() {
    let spec: TierSpec = "host=2GiB,disk=/var/kv:20GiB,remote=redis://127.0.0.1:6379/0".parse().unwrap();
    let redis = RemoteSpec::Redis { endpoint: "redis://127.0.0.1:6379".into(), database: 0 };
    assert_eq!(spec.host_bytes, Some(2 << 30));
    assert_eq!(spec.disk, Some(DiskSpec { path: "/var/kv".into(), capacity_bytes: 20 << 30 }));
    assert_eq!(spec.remote, Some(redis));
    assert_eq!("".parse::<TierSpec>().unwrap(), TierSpec::default());
    let windows: TierSpec = r"compress=int8, disk=C:\kv:512".parse().unwrap();
    assert_eq!(windows.disk.unwrap(), DiskSpec { path: r"C:\kv".into(), capacity_bytes: 512 });
}

#[test]
fn errors_list_what_is_valid() {
    assert_snapshot!(error("ram=2GiB"), @"unknown tier key `ram`; keys are host, disk, remote, mac, tenant, compress, failure");
    assert_snapshot!(error("host"), @"tier `host` is not of the form key=value; keys are host, disk, remote, mac, tenant, compress, failure");
    assert_snapshot!(error("host=1GiB,host=2GiB"), @"tier key `host` is given twice");
    assert_snapshot!(error("host=2G"), @"size `2G` of host is not a positive number of bytes with one of the units B, KB, KiB, MB, MiB, GB, GiB, TB, TiB");
    assert_snapshot!(error("failure=retry"), @"unknown failure policy `retry`; known are recompute, fail");
    assert_snapshot!(error("disk=/kv"), @"disk `/kv` is not of the form PATH:SIZE");
    assert_snapshot!(error("disk=/kv:-1MiB"), @"size `-1MiB` of disk is not a positive number of bytes with one of the units B, KB, KiB, MB, MiB, GB, GiB, TB, TiB");
    assert_snapshot!(error("remote=127.0.0.1:6379"), @"remote `127.0.0.1:6379` does not start with one of redis://, rediss://, file://, s3://");
    assert_snapshot!(error("remote=redis://h:1/x"), @"remote `redis://h:1/x` has no valid database number");
    assert_snapshot!(error("remote=redis://h:99999/0"), @"remote `redis://h:99999/0` has no valid port");
    assert_snapshot!(error("remote=redis://:6379/0"), @"remote `redis://:6379/0` has no valid host");
    for text in ["redis://h", "rediss://h:1/2", "redis://[::1]:6379/0", "rediss://[::1]"] {
        assert!(format!("remote={text}").parse::<TierSpec>().is_ok(), "{text}");
    }
    assert_snapshot!(error("remote=s3:///prefix"), @"remote `s3:///prefix` has no valid bucket");
    assert_snapshot!(error("compress=zip"), @"unknown compression `zip`; known are none, fp8, int8");
    for text in ["host=0", "host=+1", "host=", "host=99999999999TiB", "disk=:1GiB", "remote=file://"] {
        assert!(text.parse::<TierSpec>().is_err(), "{text}");
    }
}

#[test]
fn sizes_are_binary_or_decimal_in_any_case() {
    for (text, same) in [
        ("host=2GB", "host=2GB"),
        ("host=2gib", "host=2GiB"),
        ("host=1024 KiB", "host=1MiB"),
        ("host=1000mb", "host=1GB"),
        ("host=7", "host=7B"),
    ] {
        assert_eq!(text.parse::<TierSpec>().unwrap().to_string(), same, "{text}");
    }
}

#[test]
fn a_password_in_a_url_is_refused_and_not_repeated() {
    assert_snapshot!(error("remote=redis://anna:s3cret@h:1/0"), @"the URL of a Redis server holds a user or a password; set REDIS_USERNAME and REDIS_PASSWORD, or REDIS_PASSWORD_FILE, instead");
    for text in [
        "remote=rediss://:s3cret@h",
        "remote=redis://s3cret@h:x/0",
        "remote=redis://anna:s3,cret@h:1/0",
        "host=1GiB,remote=redis:/anna:s3cret@h",
        "remote=rediss:s3cret@h,disk=/kv:1GiB",
    ] {
        assert!(!error(text).contains("s3"), "{text}: {}", error(text));
    }
    let remote = "redis://anna:s3cret@h".parse::<RemoteSpec>().unwrap_err();
    assert!(!remote.to_string().contains("s3cret"), "{remote}");
    assert!("remote=redis://h,disk=/mnt/a@b:1GiB".parse::<TierSpec>().is_ok());
    // A key is not in a spec either.
    let key = "0123456789abcdef".repeat(4);
    assert_eq!(error(&format!("mac={key}")), "mac is not of the form file:PATH or env:NAME");
    assert_eq!(error("tenant="), "tenant has no name");
}

fn remote() -> impl Strategy<Value = RemoteSpec> {
    prop_oneof![
        ("[a-z.]{1,9}:[1-9][0-9]{0,3}", 0u32..16).prop_map(|(address, database)| RemoteSpec::Redis {
            endpoint: format!("redis://{address}"),
            database
        }),
        "/[a-z/:=]{0,9}".prop_map(|path| RemoteSpec::Directory { path: path.into() }),
        ("[a-z]{1,9}", "([a-z]{1,4}(/[a-z]{1,4})?)?")
            .prop_map(|(bucket, prefix)| RemoteSpec::S3 { bucket, prefix }),
    ]
}

fn mac() -> impl Strategy<Value = KeySource> {
    prop_oneof![
        "/[a-z/:=]{0,9}".prop_map(|path| KeySource::File(path.into())),
        "[A-Z_]{1,9}".prop_map(KeySource::Env),
    ]
}

proptest! {
    #[test]
    fn a_spec_survives_its_own_text(
        host_bytes in prop::option::of(1u64..1 << 44),
        disk in prop::option::of(("/[a-z/:=]{0,9}", 1u64..1 << 44)),
        remote in prop::option::of(remote()),
        mac in prop::option::of(mac()),
        tenant in prop::option::of("[a-z =:]{0,6}[a-z]"),
        compression in prop::sample::select(&[Compression::None, Compression::Fp8, Compression::Int8]),
        failure in prop::sample::select(&[FailurePolicy::Fail, FailurePolicy::Recompute]),
    ) {
        let disk = disk.map(|(path, capacity_bytes)| DiskSpec { path: path.into(), capacity_bytes });
        let spec = TierSpec::new().host_bytes(host_bytes).disk(disk).remote(remote).mac(mac).tenant(tenant).compression(compression).failure(failure);
        prop_assert_eq!(spec.to_string().parse::<TierSpec>(), Ok(spec));
    }

    #[test]
    fn no_text_panics(text in "[a-z0-9=:,/GiB.]{0,40}") {
        let _ = text.parse::<TierSpec>();
    }
}
