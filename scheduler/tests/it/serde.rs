//! Configurations as RON.
#![cfg(feature = "serde")]

use scheduler::{Policy, Preemption, SchedulerConfig};

#[test]
fn a_configuration_survives_a_round_trip() {
    let config = SchedulerConfig::new(2048, 128)
        .policy(Policy::Priority { ageing_steps: 100 })
        .preemption(Preemption::Swap { num_host_blocks: 7 });
    let text = ron::to_string(&config).unwrap();
    assert_eq!(ron::from_str::<SchedulerConfig>(&text).unwrap(), config);
    assert!(ron::from_str::<SchedulerConfig>(&text.replace("policy", "polcy")).is_err());
}
