//! Counts of the events of a simulated machine.

use std::ops::AddAssign;

/// Counts of events.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Counts {
    pub(super) stores: u64,
    pub(super) failed_flushes: u64,
    pub(super) loads: u64,
    pub(super) failed_loads: u64,
    pub(super) tasks: u64,
    pub(super) cancelled: u64,
    pub(super) kills: u64,
    pub(super) power_losses: u64,
    pub(super) failed_opens: u64,
    pub(super) forgeries: u64,
}

impl Counts {
    pub(super) fn everything_happened(&self) -> bool {
        let Self {
            stores, failed_flushes, loads, failed_loads, tasks, cancelled, kills, power_losses, ..
        } = *self;
        let all = [
            stores,
            failed_flushes,
            loads,
            failed_loads,
            tasks,
            cancelled,
            kills,
            power_losses,
            self.forgeries,
        ];
        all.iter().all(|count| *count > 0)
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.stores += other.stores;
        self.failed_flushes += other.failed_flushes;
        self.loads += other.loads;
        self.failed_loads += other.failed_loads;
        self.tasks += other.tasks;
        self.cancelled += other.cancelled;
        self.kills += other.kills;
        self.power_losses += other.power_losses;
        self.failed_opens += other.failed_opens;
        self.forgeries += other.forgeries;
    }
}
