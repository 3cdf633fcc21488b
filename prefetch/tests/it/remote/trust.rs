//! Trust in a remote store: passwords, TLS, keys, tenants, and objects that somebody made large.

use std::error::Error;
use std::process::Command;

use prefetch::assemble::StackConfig;
use prefetch::spec::{RemoteSpec, TierSpec};
use prefetch::tier::{Credentials, MacKey, RemoteTier, Stored, Tier as _, TierError};

use super::{Redis, config, free_port, read};
use crate::conformance::{block, key, layout};

fn chain(error: &dyn Error) -> String {
    let source = error.source().map(chain).unwrap_or_default();
    format!("{error}: {source}")
}

fn protected() -> Redis {
    let flags = ["--requirepass", "w0rd-of-all", "--user", "anna", "on", ">s3cret", "~*", "&*", "+@all"];
    (0..5).find_map(|_| Redis::start_with(free_port(), &flags)).expect("redis-server starts on a free port")
}

#[test]
fn a_server_with_a_password_is_used_with_it_and_never_tells_it() {
    let redis = protected();
    let open = |user: Option<&str>, password: Option<&str>| {
        let mut config = config("passwords");
        config.credentials = Some(Credentials::new(user.map(Into::into), password.map(Into::into)));
        RemoteTier::open(&redis.spec(0), config).unwrap()
    };
    open(None, Some("w0rd-of-all")).probe().unwrap();
    let anna = open(Some("anna"), Some("s3cret"));
    assert_eq!(anna.write(key(1), &block(1)).unwrap(), Stored::Written);
    assert_eq!(read(&open(None, Some("w0rd-of-all")), 1).unwrap(), block(1));
    for refused in [open(Some("anna"), Some("wr0ng")), open(None, None)] {
        let error = refused.probe().unwrap_err();
        let told = format!("{} {error:?}", chain(&error));
        for secret in ["s3cret", "wr0ng", "w0rd-of-all"] {
            assert!(!told.contains(secret), "{told}");
        }
    }
}

/// Runs one test of this file again as a process with `variables` in its environment.
fn again(name: &str, variables: &[(&str, &str)]) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([name, "--exact", "--nocapture"]).envs(variables.iter().copied());
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[test]
fn a_spec_finds_password_and_key_in_the_environment() {
    let Ok(text) = std::env::var("PREFETCH_TEST_SPEC") else {
        let redis = protected();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "s3cret\n").unwrap();
        let spec = format!("remote=redis://127.0.0.1:{}/0,mac=env:PREFETCH_TEST_KEY,tenant=anna", redis.port);
        let variables = [
            ("PREFETCH_TEST_SPEC", &*spec),
            ("PREFETCH_TEST_KEY", &"0f".repeat(32)),
            ("REDIS_USERNAME", "anna"),
            ("REDIS_PASSWORD_FILE", file.to_str().unwrap()),
        ];
        return again("trust::a_spec_finds_password_and_key_in_the_environment", &variables);
    };
    let stack_config = StackConfig::new(layout(), "test model");
    let build = |text: &str| text.parse::<TierSpec>().unwrap().build(&stack_config);
    let stack = build(&text).unwrap();
    stack.probe().unwrap();
    stack.store(key(1), &block(1)).unwrap();
    assert!(build(&text).unwrap().lookup(key(1)).is_some());
    let bert = build(&text.replace("anna", "bert")).unwrap();
    assert!(bert.lookup(key(1)).is_none(), "a tenant sees its own blocks");
    let missing = build(&text.replace("PREFETCH_TEST_KEY", "PREFETCH_NO_KEY")).err().unwrap();
    assert_eq!(chain(&missing), "no key in env:PREFETCH_NO_KEY: it is not set: ");
    let wrong = build(&text.replace("PREFETCH_TEST_KEY", "REDIS_USERNAME")).err().unwrap();
    let told = chain(&wrong);
    assert!(told.contains("64 hexadecimal digits") && !told.contains("anna"), "{told}");
}

#[test]
fn without_the_key_nobody_makes_a_block_that_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let open = |mac: Option<u8>| {
        let mut config = config("trust");
        config.mac = mac.map(|byte| MacKey::new([byte; 32]));
        RemoteTier::directories(&[folder.path().into()], None, config).unwrap()
    };
    let ours = open(Some(1));
    (1..4).for_each(|n| assert_eq!(ours.write(key(n), &block(n)).unwrap(), Stored::Written));
    assert_eq!(read(&open(Some(1)), 1).unwrap(), block(1));
    let mut shard = [0; 40];
    ours.read(key(1), 2, &mut shard).unwrap();
    assert_eq!(shard, block(1)[80..]);
    for others in [open(Some(2)), open(None)] {
        assert!(!others.contains(key(1)).unwrap(), "another key is another place");
    }
    // Somebody changes bytes, exchanges blocks, exchanges shards, and puts what another key sealed in place.
    let path = |n: u16| {
        let hex: String = key(n).as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let mut found = std::fs::read_dir(folder.path()).unwrap().map(|space| space.unwrap().path());
        found.find_map(|space| Some(space.join("data").join(&hex)).filter(|path| path.exists())).unwrap()
    };
    let object = std::fs::read(path(1)).unwrap();
    assert_eq!(object.len(), 3 * (32 + 40));
    let mut forgeries = vec![std::fs::read(path(2)).unwrap(), object[72..].to_vec()];
    for at in [0, 31, 32, 71, 100, 215] {
        let mut changed = object.clone();
        changed[at] ^= 1;
        forgeries.push(changed);
    }
    forgeries.push([&object[72..144], &object[..72], &object[144..]].concat());
    let elsewhere = tempfile::tempdir().unwrap();
    let mut config = config("trust");
    config.mac = Some(MacKey::new([2; 32]));
    let theirs = RemoteTier::directories(&[elsewhere.path().into()], None, config).unwrap();
    theirs.write(key(1), &block(7)).unwrap();
    let space = std::fs::read_dir(elsewhere.path()).unwrap().next().unwrap().unwrap().path();
    let file = std::fs::read_dir(space.join("data")).unwrap().next().unwrap().unwrap().path();
    forgeries.push(std::fs::read(file).unwrap());
    for forged in forgeries {
        let at = path(1);
        std::fs::write(&at, &forged).unwrap();
        let error = read(&ours, 1).unwrap_err();
        assert!(matches!(error, TierError::Forged { .. }), "{error}");
        assert!(!at.exists(), "nobody can use it");
        assert_eq!(ours.write(key(1), &block(1)).unwrap(), Stored::Written);
    }
    assert_eq!(read(&ours, 1).unwrap(), block(1));
}

#[test]
fn a_key_is_64_hexadecimal_digits() {
    let text = "00ff".repeat(16);
    assert_eq!(
        MacKey::from_hex(&format!(" {text}\n")).unwrap(),
        MacKey::from_hex(&text.to_uppercase()).unwrap()
    );
    assert_eq!(format!("{:?}", MacKey::from_hex(&text).unwrap()), "MacKey(..)");
    for wrong in ["", "00ff", &"zz".repeat(32), &"0".repeat(65), &"\u{e9}".repeat(64)] {
        let told = MacKey::from_hex(wrong).unwrap_err().to_string();
        assert!(wrong.is_empty() || !told.contains(wrong), "{told}");
    }
}

/// Objects that do not fit in memory: nothing of them is read beyond what a block can be.
#[test]
fn objects_of_any_length_are_not_read_whole() {
    const HUGE: u64 = 1 << 42;
    let folder = tempfile::tempdir().unwrap();
    let spec: RemoteSpec = format!("file://{}", folder.path().display()).parse().unwrap();
    let tier = RemoteTier::open(&spec, config("large")).unwrap();
    tier.write(key(1), &block(1)).unwrap();
    let set_len = |path: &std::path::Path| {
        std::fs::File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .unwrap()
            .set_len(HUGE)
            .unwrap();
    };
    let space = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let object = std::fs::read_dir(space.join("data")).unwrap().next().unwrap().unwrap().path();
    set_len(&object);
    assert_eq!(read(&tier, 1).unwrap(), block(1), "what follows a block is not looked at");
    set_len(&folder.path().join("format"));
    let refused = tier.probe().unwrap_err();
    let said = "a format of 4398046511104 bytes there, KV blocks of format 1 here";
    assert!(refused.to_string().contains(said), "{refused}");
    std::fs::write(folder.path().join("format"), "\u{1b}[2Jgone").unwrap();
    let refused = tier.probe().unwrap_err().to_string();
    assert!(!refused.contains('\u{1b}'), "{refused:?}");

    let redis = Redis::start();
    let tier = redis.tier("large");
    tier.probe().unwrap();
    tier.write(key(1), &block(1)).unwrap();
    let names = redis.command("KEYS *").unwrap();
    for name in names.lines().filter(|line| line.contains('/')) {
        redis.command(&format!("SETRANGE {name} 50000000 x"));
    }
    assert_eq!(read(&tier, 1).unwrap(), block(1));
    let refused = tier.probe().unwrap_err().to_string();
    assert!(refused.contains("a format of 50000001 bytes there, KV blocks of format 1 here"), "{refused}");
}

#[test]
#[cfg(not(feature = "tls"))]
fn a_connection_with_tls_needs_the_feature() {
    let spec: RemoteSpec = "rediss://127.0.0.1:1/0".parse().unwrap();
    let refused = RemoteTier::open(&spec, config("tls")).err().unwrap();
    assert!(chain(&refused).contains("built without the feature `tls`"), "{}", chain(&refused));
    let text = "remote=rediss://127.0.0.1:1/0".parse::<TierSpec>().unwrap();
    let refused = text.build(&StackConfig::new(layout(), "tls")).err().unwrap();
    assert_eq!(refused.to_string(), "the remote tier needs the feature `tls`, which this build lacks");
}

/// Needs `openssl`, which makes the certificates.
#[test]
#[cfg(feature = "tls")]
fn a_connection_with_tls_is_made_to_servers_that_the_system_trusts() {
    let name = "trust::a_connection_with_tls_is_made_to_servers_that_the_system_trusts";
    if let Ok(spec) = std::env::var("PREFETCH_TEST_TLS") {
        let tier = RemoteTier::open(&spec.parse().unwrap(), config("tls")).unwrap();
        let probed = tier.probe();
        if std::env::var_os("PREFETCH_TEST_UNTRUSTED").is_some() {
            assert!(matches!(probed, Err(TierError::Backend { .. })), "{probed:?}");
            return;
        }
        probed.unwrap();
        assert_eq!(tier.write(key(1), &block(1)).unwrap(), Stored::Written);
        assert_eq!(read(&tier, 1).unwrap(), block(1));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let openssl = |args: &[&str]| {
        let made = Command::new("openssl").args(args).output().expect("openssl is installed");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    let [authority, authority_key] = [path("authority.pem"), path("authority.key")];
    let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let of = [
        "req",
        "-x509",
        "-days",
        "2",
        "-subj",
        "/CN=authority",
        "-keyout",
        &authority_key,
        "-out",
        &authority,
    ];
    openssl(&[&of[..], &curve].concat());
    let [request, server_key, server] = [path("server.csr"), path("server.key"), path("server.pem")];
    let of = ["req", "-subj", "/CN=server", "-keyout", &server_key, "-out", &request];
    openssl(&[&of[..], &curve, &["-addext", "subjectAltName=IP:127.0.0.1"]].concat());
    openssl(&[
        "x509",
        "-req",
        "-in",
        &request,
        "-CA",
        &authority,
        "-CAkey",
        &authority_key,
        "-days",
        "2",
        "-copy_extensions",
        "copy",
        "-out",
        &server,
    ]);
    let tls_port = free_port().to_string();
    let flags = [
        "--tls-port",
        &tls_port,
        "--tls-cert-file",
        &server,
        "--tls-key-file",
        &server_key,
        "--tls-ca-cert-file",
        &authority,
        "--tls-auth-clients",
        "no",
    ];
    let _redis = Redis::start_with(free_port(), &flags).expect("redis-server starts with TLS");
    let spec = format!("rediss://127.0.0.1:{tls_port}/0");
    again(name, &[("PREFETCH_TEST_TLS", &spec), ("SSL_CERT_FILE", &authority)]);
    again(name, &[("PREFETCH_TEST_TLS", &spec), ("PREFETCH_TEST_UNTRUSTED", "")]);
}
