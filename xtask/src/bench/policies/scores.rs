//! Scores in RULER's tasks, by policy and length.

use std::fmt;

use super::cell::Cell;
use pagoda_cli::bench::policies::ruler::Task;

/// Scores of one policy in RULER's tasks at one length.
#[derive(Debug, PartialEq)]
pub(super) struct Scores {
    pub(super) policy: String,
    length: u32,
    /// Scores by task, from 0 to 1; `None` for tasks that were not run.
    scores: [Option<f64>; Task::RULER.len()],
}

impl Scores {
    /// The row's cells in a table.
    pub(super) fn cells(&self) -> Vec<String> {
        [self.length.to_string()].into_iter().chain(self.values()).collect()
    }

    /// The mean of all tasks, as the paper reports it, and the score of each, in percent.
    fn values(&self) -> impl Iterator<Item = String> {
        let known: Vec<f64> = self.scores.iter().flatten().copied().collect();
        let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
        let shown = |score: Option<f64>| score.map_or("-".into(), |score| format!("{:.1}", score * 100.0));
        [Some(mean)].into_iter().chain(self.scores).map(shown)
    }
}

impl fmt::Display for Scores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:44} RULER {:>6}", self.policy, self.length)?;
        self.values()
            .zip(["mean"].into_iter().chain(Task::RULER.map(Task::name)))
            .try_for_each(|(score, name)| write!(f, "  {name} {score}"))
    }
}

/// Scores in RULER's tasks: one row for each policy and length that have scores.
pub(super) fn scores(rows: &[Cell], policies: &[String]) -> Vec<Scores> {
    let mut lengths: Vec<u32> = rows.iter().filter_map(|cell| cell.length).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let score = |policy: &str, length: u32, task: Task| {
        let of_task =
            |cell: &&Cell| cell.policy == policy && cell.length == Some(length) && cell.kind == task.name();
        let found: Vec<f64> = rows.iter().filter(of_task).filter_map(|cell| cell.found).collect();
        (!found.is_empty()).then(|| found.iter().sum::<f64>() / found.len() as f64)
    };
    let row = |policy: &String, length| Scores {
        policy: policy.clone(),
        length,
        scores: Task::RULER.map(|task| score(policy, length, task)),
    };
    let all = policies.iter().flat_map(|policy| lengths.iter().map(move |length| row(policy, *length)));
    all.filter(|row| row.scores.iter().any(Option::is_some)).collect()
}

/// Heads of the cells of a row.
pub(super) fn heads() -> Vec<&'static str> {
    ["tokens", "RULER, mean, %"].into_iter().chain(Task::RULER.map(Task::name)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::cell::example;
    use super::*;

    #[test]
    fn scores_of_ruler_are_by_length_and_task() {
        let cell = |task: Task, length, found| Cell {
            policy: "full".into(),
            kind: task.name().into(),
            length: Some(length),
            found: Some(found),
            ..example("full", "a task")
        };
        let rows = [
            cell(Task::Single2, 4000, 1.0),
            cell(Task::Single2, 4000, 0.0),
            cell(Task::TwoHops, 4000, 1.0),
            cell(Task::Single2, 8000, 0.25),
        ];
        let [short, long] = &scores(&rows, &["full".into(), "quest".into()])[..] else {
            panic!("two lengths")
        };
        assert_eq!((short.length, long.length), (4000, 8000));
        insta::assert_snapshot!(short, @"full                                         RULER   4000  mean 75.0  niah_single_1 -  niah_single_2 50.0  niah_single_3 -  niah_multikey_1 -  niah_multikey_2 -  niah_multikey_3 -  niah_multivalue -  niah_multiquery -  vt -  cwe -  fwe -  qa_1 -  qa_2 100.0");
        assert_eq!(short.cells().len(), heads().len());
        assert_eq!(short.cells()[..2], ["4000", "75.0"]);
    }
}
