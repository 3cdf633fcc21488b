//! The remote tier on an S3-compatible service: a server of this test, or the one that the environment names by
//! `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `PREFETCH_S3_BUCKET`, a bucket
//! that exists.

#[path = "services/s3.rs"]
mod service;

use std::process::Command;
use std::time::Duration;

use crate::conformance::{cases, check_ops, check_refusals, check_threads, layout, ops};
use prefetch::spec::TierSpec;
use prefetch::tier::{RemoteConfig, RemoteTier, Tier as _};
use proptest::prelude::*;
use service::S3;

/// Names the bucket of a run that has a service.
const BUCKET: &str = "PREFETCH_S3_BUCKET";

/// Runs `check` with the service of the environment. Without one, starts a server and runs the test `name` again as a
/// process that has it in its environment.
fn with_service(name: &str, check: impl FnOnce(&str)) {
    if let Ok(bucket) = std::env::var(BUCKET) {
        return check(&bucket);
    }
    let server = S3::start();
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args([name, "--exact", "--nocapture"]).envs(server.environment()).env(BUCKET, service::BUCKET);
    assert!(again.status().unwrap().success(), "{name} failed with a server of its own");
    let blocks = std::fs::read_dir(server.folder.path().join(service::BUCKET)).unwrap();
    assert!(blocks.count() > 0, "{name} kept nothing in the bucket");
}

fn open(bucket: &str, namespace: &str) -> RemoteTier {
    let spec: TierSpec = format!("remote=s3://{bucket}/pagoda/tests").parse().unwrap();
    // Runs that share the bucket must not see one another's blocks.
    let namespace = format!("{namespace}, {}, {:?}", std::process::id(), std::time::SystemTime::now());
    let mut config = RemoteConfig::new(layout(), namespace);
    config.timeout = Duration::from_secs(20);
    RemoteTier::open(&spec.remote.unwrap(), config).unwrap()
}

#[test]
fn a_bucket_keeps_the_rules_of_tiers() {
    with_service("s3::a_bucket_keeps_the_rules_of_tiers", |bucket| {
        let missing = open("no-such-bucket-of-pagoda", "missing").probe().unwrap_err();
        assert_eq!(missing.to_string(), "remote tier: there is no bucket \"no-such-bucket-of-pagoda\"");
        // The first finds a new place, or one of this format.
        (0..2).for_each(|_| open(bucket, "format").probe().unwrap());
        proptest!(cases(3), |(ops in ops())| {
            check_ops(&open(bucket, "rules"), &ops)?;
        });
        check_refusals(&open(bucket, "refusals"));
        check_threads(&open(bucket, "threads"));
    });
}
