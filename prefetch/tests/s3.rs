//! The remote tier on an S3-compatible service.
//!
//! Needs one: set `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and
//! `PREFETCH_S3_BUCKET` (an existing bucket). `PREFETCH_S3=skip` says that there is none.
#![cfg(all(feature = "s3", not(loom)))]

mod conformance;

use std::time::Duration;

use conformance::{cases, check_ops, check_refusals, check_threads, layout, ops};
use prefetch::spec::TierSpec;
use prefetch::tier::{RemoteConfig, RemoteTier};
use proptest::prelude::*;

fn open(namespace: &str) -> RemoteTier {
    let bucket =
        std::env::var("PREFETCH_S3_BUCKET").expect("PREFETCH_S3_BUCKET names a bucket, or PREFETCH_S3=skip");
    let spec: TierSpec = format!("remote=s3://{bucket}/pagoda/tests").parse().unwrap();
    // Runs that share the bucket must not see one another's blocks.
    let namespace = format!("{namespace}, {}, {:?}", std::process::id(), std::time::SystemTime::now());
    let (timeout, retry_after) = (Duration::from_secs(20), Duration::from_secs(1));
    RemoteTier::open(
        &spec.remote.unwrap(),
        RemoteConfig { layout: layout(), namespace, timeout, retry_after },
    )
    .unwrap()
}

#[test]
fn a_bucket_keeps_the_rules_of_tiers() {
    if std::env::var("PREFETCH_S3").is_ok_and(|value| value == "skip") {
        return;
    }
    proptest!(cases(3), |(ops in ops())| {
        check_ops(&open("rules"), &ops)?;
    });
    check_refusals(&open("refusals"));
    check_threads(&open("threads"));
}
