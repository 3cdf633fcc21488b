//! An open loop: requests are sent when they are due, even if earlier ones have not been answered.

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::answer::Answer;
use super::client::Client;
use super::prompt::LoadPrompt;
use crate::bench::workload::Arrival;
use crate::cli::PromptForm;

/// A request that was sent, and its answer.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    /// Seconds from the start to the time at which the request was due.
    pub(super) at_s: f64,
    pub(super) answer: Answer,
}

/// Sends a trace and waits for all answers, in the order in which they were due. A conversation that fails ends there.
///
/// # Errors
/// If the client itself fails.
pub(super) async fn run(
    client: &Client,
    trace: Vec<Arrival>,
    form: PromptForm,
    think: Duration,
) -> Result<Vec<Sent>> {
    // Time for the tasks to be there before the first request is due.
    let begin = Instant::now() + Duration::from_millis(20);
    let mut talks = JoinSet::new();
    for arrival in trace {
        let talk = Talk { client: client.clone(), begin, think };
        talks.spawn(talk.run(arrival, form));
    }
    let mut all = Vec::new();
    while let Some(sent) = talks.join_next().await {
        all.extend(sent?);
    }
    all.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    Ok(all)
}

/// A conversation.
struct Talk {
    client: Client,
    begin: Instant,
    think: Duration,
}

impl Talk {
    async fn run(self, arrival: Arrival, form: PromptForm) -> Vec<Sent> {
        let mut prompt = LoadPrompt::new(form, &arrival.prompt);
        let due = self.begin + Duration::from_secs_f64(arrival.at_s);
        let mut sent = vec![self.turn(&prompt, arrival.output, due).await];
        for turn in arrival.turns {
            let last = &sent[sent.len() - 1].answer;
            if last.error.is_some() {
                break;
            }
            prompt.extend(last, &turn.prompt);
            let due = Instant::now() + self.think;
            sent.push(self.turn(&prompt, turn.output, due).await);
        }
        sent
    }

    async fn turn(&self, prompt: &LoadPrompt, output: u32, due: Instant) -> Sent {
        sleep_until(due.into()).await;
        let answer = self.client.ask(prompt, output, due).await;
        Sent { at_s: (due - self.begin).as_secs_f64(), answer }
    }
}
