//! Block tables over time, drawn.

use core::fmt::Write;

use insta::assert_snapshot;
use kvblock::v0::{
    BlockMove, BlockSpaceConfig, BlockSpaceManager, Device, Ending, GroupQueues, PreemptionMode, SeqState,
    Sequence, SequenceGroup, StepOps,
};
use kvblock::{BlockId, SeqId};

use super::vectors::{group, q, size};

/// One row an operation, one column a sequence: the block table, `'` for a block on the CPU, `*n` for a block
/// that n tables name.
struct Trace {
    space: BlockSpaceManager,
    seqs: Vec<SeqId>,
    drawing: String,
}

impl Trace {
    fn new(config: BlockSpaceConfig, seqs: core::ops::Range<u64>) -> Self {
        let seqs: Vec<_> = seqs.map(q).collect();
        let mut drawing = format!("{:<24}", "");
        seqs.iter().for_each(|seq| write!(drawing, "| {:<20}", format!("{seq:?}")).unwrap());
        drawing.push_str("| free\n");
        Self { space: BlockSpaceManager::new(config).unwrap(), seqs, drawing }
    }

    fn row(&mut self, label: &str) {
        write!(self.drawing, "{label:<24}").unwrap();
        for &seq in &self.seqs {
            let cells = self.space.get_block_table(seq).map_or("-".into(), |table| {
                let cell = |block: BlockId| {
                    let users = self.space.allocator(table.device()).block(block).unwrap().ref_count;
                    let device = if table.device() == Device::Cpu { "'" } else { "" };
                    let shared = if users > 1 { format!("*{users}") } else { String::new() };
                    format!("{}{device}{shared}", block.get())
                };
                table.iter().map(cell).collect::<Vec<_>>().join(" ")
            });
            write!(self.drawing, "| {cells:<20}").unwrap();
        }
        let (gpu, cpu) = (self.space.allocator(Device::Gpu), self.space.allocator(Device::Cpu));
        writeln!(self.drawing, "| {} {}'", gpu.num_free_blocks(), cpu.num_free_blocks()).unwrap();
    }

    fn append(&mut self, group: &mut SequenceGroup, seq: SeqId, tokens: u32) {
        for _ in 0..tokens {
            let sequence = group.get_mut(seq).unwrap();
            sequence.append_token(0);
            let copy = self.space.append_slot(sequence).unwrap();
            self.row(&format!("append {seq:?}{}", arrows(copy.as_slice())));
        }
    }

    fn fork(&mut self, group: &mut SequenceGroup, parent: SeqId, child: SeqId) {
        self.space.fork(parent, child).unwrap();
        group.add(group.get(parent).unwrap().fork(child)).unwrap();
        self.row(&format!("fork {parent:?} {child:?}"));
    }
}

fn arrows(moves: &[BlockMove]) -> String {
    moves.iter().map(|m| format!(" {}>{}", m.src.get(), m.dst.get())).collect()
}

#[test]
fn samples_of_a_prompt_part_when_they_write() {
    let mut trace = Trace::new(BlockSpaceConfig::new(size(4), 9, 4), 1..4);
    let mut g = group(1..3, 6, 4);
    trace.space.allocate(&g).unwrap();
    g.transition(SeqState::Waiting, SeqState::Running).unwrap();
    trace.row("prompt of 6");
    trace.append(&mut g, q(1), 1);
    trace.append(&mut g, q(2), 1);
    trace.fork(&mut g, q(2), q(3));
    trace.append(&mut g, q(3), 2);
    trace.append(&mut g, q(2), 2);
    trace.space.free(q(2));
    trace.row("free q2");
    trace.space.reset();
    trace.row("reset");
    assert_snapshot!(trace.drawing, @r"
                            | q1                  | q2                  | q3                  | free
    prompt of 6             | 8*2 7*2             | 8*2 7*2             | -                   | 7 4'
    append q1 7>6           | 8*2 6               | 8*2 7               | -                   | 6 4'
    append q2               | 8*2 6               | 8*2 7               | -                   | 6 4'
    fork q2 q3              | 8*3 6               | 8*3 7*2             | 8*3 7*2             | 6 4'
    append q3 7>5           | 8*3 6               | 8*3 7               | 8*3 5               | 5 4'
    append q3               | 8*3 6               | 8*3 7               | 8*3 5 4             | 4 4'
    append q2               | 8*3 6               | 8*3 7               | 8*3 5 4             | 4 4'
    append q2               | 8*3 6               | 8*3 7 3             | 8*3 5 4             | 3 4'
    free q2                 | 8*2 6               | -                   | 8*2 5 4             | 5 4'
    reset                   | -                   | -                   | -                   | 9 4'
    ");
}

#[test]
fn swapped_group_comes_back_with_its_sharing() {
    let mut trace = Trace::new(BlockSpaceConfig::new(size(4), 8, 5), 1..4);
    let mut g = group(1..3, 10, 4);
    trace.space.allocate(&g).unwrap();
    g.transition(SeqState::Waiting, SeqState::Running).unwrap();
    trace.row("prompt of 10");
    trace.append(&mut g, q(2), 1);
    let moves = trace.space.swap_out(&g).unwrap();
    g.transition(SeqState::Running, SeqState::Swapped).unwrap();
    trace.row(&format!("out{}", arrows(&moves)));
    let mut other = group(3..4, 5, 4);
    trace.space.allocate(&other).unwrap();
    other.transition(SeqState::Waiting, SeqState::Running).unwrap();
    trace.row("prompt of 5");
    let moves = trace.space.swap_in(&g).unwrap();
    g.transition(SeqState::Swapped, SeqState::Running).unwrap();
    trace.row(&format!("in{}", arrows(&moves)));
    trace.append(&mut g, q(1), 1);
    assert_snapshot!(trace.drawing, @r"
                            | q1                  | q2                  | q3                  | free
    prompt of 10            | 7*2 6*2 5*2         | 7*2 6*2 5*2         | -                   | 5 5'
    append q2 5>4           | 7*2 6*2 5           | 7*2 6*2 4           | -                   | 4 5'
    out 7>4 6>3 5>2 4>1     | 4'*2 3'*2 2'        | 4'*2 3'*2 1'        | -                   | 8 1'
    prompt of 5             | 4'*2 3'*2 2'        | 4'*2 3'*2 1'        | 4 6                 | 6 1'
    in 4>7 3>5 2>3 1>2      | 7*2 5*2 3           | 7*2 5*2 2           | 4 6                 | 2 5'
    append q1               | 7*2 5*2 3           | 7*2 5*2 2           | 4 6                 | 2 5'
    ");
}

#[test]
fn window_of_two_blocks_with_a_fork() {
    let config = BlockSpaceConfig::new(size(2), 6, 4).sliding_window(Some(4));
    let mut trace = Trace::new(config, 1..3);
    let mut g = group(1..2, 5, 2);
    trace.space.allocate(&g).unwrap();
    g.transition(SeqState::Waiting, SeqState::Running).unwrap();
    trace.row("prompt of 5");
    trace.fork(&mut g, q(1), q(2));
    trace.append(&mut g, q(1), 4);
    trace.append(&mut g, q(2), 3);
    let moves = trace.space.swap_out(&g).unwrap();
    trace.row(&format!("out{}", arrows(&moves)));
    assert_snapshot!(trace.drawing, @r"
                            | q1                  | q2                  | free
    prompt of 5             | 5 4 5               | -                   | 4 4'
    fork q1 q2              | 5*2 4*2 5*2         | 5*2 4*2 5*2         | 4 4'
    append q1 5>3           | 3 4*2 3             | 5 4*2 5             | 3 4'
    append q1 4>2           | 3 2 3 2             | 5 4 5               | 2 4'
    append q1               | 3 2 3 2             | 5 4 5               | 2 4'
    append q1               | 3 2 3 2 3           | 5 4 5               | 2 4'
    append q2               | 3 2 3 2 3           | 5 4 5               | 2 4'
    append q2               | 3 2 3 2 3           | 5 4 5 4             | 2 4'
    append q2               | 3 2 3 2 3           | 5 4 5 4             | 2 4'
    out 3>3 2>2 5>1 4>0     | 3' 2' 3' 2' 3'      | 1' 0' 1' 0'         | 6 0'
    ");
}

/// A column a step: `P` prefill, `d` decode, `r` preempted by recomputation, `s` swapped out, `D` swapped in
/// and decoded, `.` idle, blank after the end.
#[test]
fn latest_arrival_gives_way_and_swapped_groups_return_first() {
    let mut space = BlockSpaceManager::new(BlockSpaceConfig::new(size(2), 8, 8)).unwrap();
    let mut queues = GroupQueues::new();
    let output_lens = [8, 6, 6, 2];
    let groups = [group(0..1, 3, 2), group(1..3, 4, 2), group(3..4, 2, 2), group(4..5, 4, 2)];
    let ids: Vec<_> = groups.iter().map(SequenceGroup::id).collect();
    groups.into_iter().for_each(|g| queues.submit(g));

    let (mut rows, mut ops) = (vec![String::new(); ids.len()], StepOps::default());
    let mut alive = [true; 4];
    for step in 0.. {
        assert!(step < 100, "{queues:?}");
        if queues.is_empty() {
            break;
        }
        queues.step(&mut space, &mut ops).unwrap();
        for ((row, id), alive) in rows.iter_mut().zip(&ids).zip(&mut alive) {
            *alive &= !ops.done.iter().any(|g| g.id() == *id);
            row.push(match ops.preempted.iter().find(|(preempted, _)| preempted == id) {
                Some((_, PreemptionMode::Recompute)) => 'r',
                Some((_, PreemptionMode::Swap)) => 's',
                None if ops.resumed.contains(id) => 'D',
                None if ops.prefill.contains(id) => 'P',
                None if ops.decode.contains(id) => 'd',
                None if *alive => '.',
                None => ' ',
            });
        }
        let ran = [&ops.prefill[..], &ops.decode[..]].concat();
        for g in queues.running_mut().iter_mut().filter(|g| ran.contains(&g.id())) {
            let output_len = output_lens[ids.iter().position(|id| *id == g.id()).unwrap()];
            let seqs: Vec<_> = g.in_state(SeqState::Running).map(Sequence::id).collect();
            for seq in seqs {
                let sequence = g.get_mut(seq).unwrap();
                sequence.append_token(0);
                if sequence.num_tokens() - sequence.prompt_len() == output_len {
                    let reason = Ending::LengthCapped;
                    sequence.set_state(SeqState::Finished(reason)).unwrap();
                }
            }
        }
    }
    let drawing: String =
        rows.iter().zip(&ids).map(|(row, id)| format!("{id:?} {}\n", row.trim_end())).collect();
    assert_snapshot!(drawing, @r"
    r0 Pddddddd
    r1 Pds.....D.ddd
    r3 Pdr......Pr..Pdd
    r4 Pr...........P
    ");
}
