//! Host tiers that the engines of a process share.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use prefetch::assemble::{AssembleError, StackConfig};
use prefetch::spec::TierSpec;
use prefetch::tier::HostTier;

/// The open host tiers of one model's engines, each with a description of its contents.
#[derive(Debug, Default)]
pub(crate) struct HostTiers(Mutex<Vec<(Contents, Weak<HostTier>)>>);

/// Description of what a host tier holds. Engines share a host tier if their descriptions are equal.
#[derive(Debug, PartialEq, Eq)]
struct Contents {
    /// Specification of the tiers without the disk tier, because each engine has its own folder. The other tiers
    /// decide which blocks reach the host: the tenant, whether compression rounds them, and whether the store is
    /// trusted.
    spec: TierSpec,
    /// Size and contents of the blocks.
    config: StackConfig,
}

impl HostTiers {
    /// The host tier of `spec`, shared with an earlier engine if that one's tier is still open; `None` if `spec` has
    /// no host tier.
    ///
    /// # Errors
    /// [`AssembleError::TooSmall`].
    pub(crate) fn get(
        &self,
        spec: &TierSpec,
        config: &StackConfig,
    ) -> Result<Option<Arc<HostTier>>, AssembleError> {
        let contents = Contents { spec: spec.clone().disk(None), config: config.clone() };
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, host)| host.strong_count() > 0);
        let shared = open.iter().filter(|(of, _)| *of == contents).find_map(|(_, host)| host.upgrade());
        if shared.is_some() {
            return Ok(shared);
        }
        let host = spec.host(config)?.map(Arc::new);
        if let Some(host) = &host {
            open.push((contents, Arc::downgrade(host)));
        }
        Ok(host)
    }
}

#[cfg(test)]
mod tests {
    use prefetch::tier::BlockLayout;

    use super::*;

    const SPEC: &str = "host=1MiB,disk=/first:1GiB,remote=file:///store,tenant=ann";

    fn config() -> StackConfig {
        StackConfig::new(BlockLayout::new(1, 64).unwrap(), "a model")
    }

    #[test]
    fn engines_share_a_host_tier_if_all_but_the_disk_is_alike() {
        let tiers = HostTiers::default();
        let get = |spec: &str, config: &StackConfig| tiers.get(&spec.parse().unwrap(), config).unwrap();
        let first = get(SPEC, &config()).unwrap();
        let shares = |spec: &str, config: &StackConfig| Arc::ptr_eq(&first, &get(spec, config).unwrap());
        assert!(shares(SPEC, &config()));
        assert!(shares(&SPEC.replace("/first", "/second"), &config()));
        for (had, has) in [("1MiB", "2MiB"), ("store", "other"), ("ann", "bob"), ("ann", "ann,compress=fp8")]
        {
            assert!(!shares(&SPEC.replace(had, has), &config()), "{has}");
        }
        let other = StackConfig::new(config().layout, "another model");
        assert!(!shares(SPEC, &other));
        let other = StackConfig::new(BlockLayout::new(2, 32).unwrap(), "a model");
        assert!(!shares(SPEC, &other));
        assert!(get("disk=/first:1GiB", &config()).is_none());
    }

    #[test]
    fn a_host_tier_lasts_as_long_as_an_engine_that_has_it() {
        let tiers = HostTiers::default();
        let get = || tiers.get(&SPEC.parse().unwrap(), &config()).unwrap().unwrap();
        let first = get();
        let weak = Arc::downgrade(&first);
        let second = get();
        drop(first);
        assert!(weak.ptr_eq(&Arc::downgrade(&second)));
        drop(second);
        assert!(weak.upgrade().is_none());
        drop(get());
        assert_eq!(tiers.0.lock().unwrap().len(), 1, "what has ended takes no room");
    }
}
