//! Restart after the blocks of all sequences were lost, as with a lost device.

use kvblock::SeqId;

use crate::scheduler::{Enqueue, Scheduler};
use crate::sequence::Status;

impl Scheduler {
    /// Takes all blocks from all sequences, as if the device had lost them: the step in flight is dropped, running
    /// sequences are preempted, loads are given back, and the prefix cache is empty. No token is lost: every
    /// sequence computes, or loads, the KV of its tokens again. The order of service stays.
    ///
    /// # Complexity
    /// O(sequences + blocks).
    pub fn restart_all(&mut self) {
        self.in_flight = None;
        let order: Vec<SeqId> = self.running.iter().copied().chain(self.waiting.iter()).collect();
        let removed: Vec<_> = order.into_iter().filter_map(|seq| self.remove(seq)).collect();
        for mut seq in removed {
            match seq.status {
                Status::Running => {
                    seq.status = Status::Preempted;
                    seq.preemptions += 1;
                    self.num_preemptions += 1;
                }
                Status::WaitingForRemoteKv => seq.status = seq.before_load,
                Status::Waiting | Status::Preempted => {}
            }
            seq.saved = None;
            seq.drop_drafts();
            seq.restart();
            // What never ran may still be loaded.
            if seq.status == Status::Waiting {
                seq.loadable = u32::MAX;
            }
            self.enqueue(seq, Enqueue::Back);
        }
        assert!(self.cache.reset_prefix_cache(), "no sequence holds blocks");
    }
}

#[cfg(test)]
mod tests {
    use kvblock::{
        AttentionKind, BlockSize, KvCacheConfig, KvCacheGroup, KvCacheSpec, KvDtype, LengthLimits,
    };

    use super::*;
    use crate::{Concurrency, Finished, Phase, Request, SchedulerConfig};

    fn scheduler() -> Scheduler {
        let size = BlockSize::new(4).unwrap();
        let spec = KvCacheSpec::new(AttentionKind::FULL, size, 1, 4, KvDtype::F16);
        let limits = LengthLimits::new(128).max_batched_tokens(16);
        let group = KvCacheGroup::new(spec, vec![0]);
        let cache = KvCacheConfig::uniform(64, spec, 1, limits).groups(vec![group]);
        Scheduler::new(SchedulerConfig::new(16, 3), cache).unwrap()
    }

    /// Runs steps whose tokens are all 7; returns the ends.
    fn run(scheduler: &mut Scheduler, steps: usize) -> Vec<Finished> {
        let mut ends = Vec::new();
        for _ in 0..steps {
            let plan = scheduler.step();
            ends.extend(scheduler.complete(&plan, &vec![7; plan.sample_rows.len()]));
        }
        ends
    }

    #[test]
    fn sequences_go_on_after_all_blocks_were_lost() {
        for steps in 0..8 {
            let mut scheduler = scheduler();
            let prompts = [vec![1; 10], vec![2; 20], vec![1; 10], vec![3; 5]];
            let samples = |prompt: &Vec<_>| if prompt.len() == 5 { 2 } else { 1 };
            for prompt in &prompts {
                let request = Request::new(prompt.clone(), 6);
                scheduler.add(request.num_samples(samples(prompt))).unwrap();
            }
            let mut ends = run(&mut scheduler, steps);
            // A step is planned, and its device lost.
            let lost = scheduler.step();
            assert!(!lost.slices.is_empty() || steps > 0);
            scheduler.restart_all();
            assert_eq!(scheduler.cache().pool().num_used(), 0);
            ends.extend(run(&mut scheduler, 60));
            assert!(!scheduler.has_work(), "work is left after {steps} steps");
            assert_eq!(scheduler.cache().pool().num_used(), 0);
            ends.sort_by_key(|end| end.seq);
            let expected = prompts.iter().flat_map(|prompt| vec![prompt.clone(); samples(prompt) as usize]);
            let expected: Vec<Vec<u32>> = expected.map(|prompt| [prompt, vec![7; 6]].concat()).collect();
            assert_eq!(ends.into_iter().map(|end| end.tokens).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn a_limit_for_prompts_leaves_decodes_alone() {
        let mut scheduler = scheduler();
        scheduler.add(Request::new(vec![1; 8], 20)).unwrap();
        run(&mut scheduler, 1);
        scheduler.add(Request::new(vec![2; 40], 4)).unwrap();
        scheduler.add(Request::new(vec![3; 40], 4)).unwrap();
        let mut lengths = |limit| {
            scheduler.limit_prefill(limit);
            let plan = scheduler.step();
            scheduler.complete(&plan, &vec![7; plan.sample_rows.len()]);
            let prefill = plan.slices.iter().filter(|slice| slice.phase == Phase::Prefill);
            (scheduler.concurrency(), prefill.map(|slice| slice.len).collect::<Vec<_>>())
        };
        let load = |decoding, prefilling| Concurrency { decoding, prefilling };
        assert_eq!(lengths(0), (load(1, 2), vec![]));
        assert_eq!(lengths(6), (load(1, 2), vec![6]));
        assert_eq!(lengths(0), (load(1, 2), vec![]));
        assert_eq!(lengths(9), (load(1, 2), vec![9]));
        // One token of the budget of 16 is for the decode.
        assert_eq!(lengths(u32::MAX), (load(1, 2), vec![15]));
        assert_eq!(lengths(12), (load(2, 1), vec![10, 2]));
    }

    #[test]
    fn what_a_sequence_computed_can_be_forgotten() {
        let mut scheduler = scheduler();
        let bad = scheduler.add(Request::new(vec![1; 12], 6)).unwrap();
        let good = scheduler.add(Request::new(vec![2; 12], 6)).unwrap();
        run(&mut scheduler, 3);
        scheduler.uncache(bad);
        let ended = scheduler.finish(bad, crate::Ending::Failed);
        assert_eq!(ended.len(), 1);
        run(&mut scheduler, 10);
        let again = [1, 2].map(|token| scheduler.add(Request::new(vec![token; 12], 6)).unwrap());
        let plan = scheduler.step();
        let cached: Vec<u32> = plan.admitted.iter().map(|admitted| admitted.cached_tokens).collect();
        assert_eq!((cached, good < again[0]), (vec![0, 8], true));
    }
}
