//! Prompts of RULER's thirteen tasks (arXiv 2404.06654) and of the pass key (arXiv 2305.16300), from a generator of our own:
//! the forms and the scores are the paper's, names, numbers and filler are made from a seed.

mod facts;
mod filler;

use anyhow::{Context, Result, ensure};
use models::Message;
use pagoda::Model;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

use facts::Facts;

/// A task of RULER, or the pass key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Pass key: find a key of five digits, hidden in repeated sentences.
    PassKey,
    /// RULER's `niah_single_1`: find the number of a name, hidden in repeated sentences.
    #[serde(rename = "niah_single_1")]
    Single1,
    /// RULER's `niah_single_2`: find the number of a name, hidden in prose.
    #[serde(rename = "niah_single_2")]
    Single2,
    /// RULER's `niah_single_3`: find the UUID of a name, hidden in prose.
    #[serde(rename = "niah_single_3")]
    Single3,
    /// RULER's `niah_multikey_1`: find the number of one of four names that are hidden in prose.
    #[serde(rename = "niah_multikey_1")]
    MultiKey1,
    /// RULER's `niah_multikey_2`: find the number of one name in a prompt that consists of numbers of names.
    #[serde(rename = "niah_multikey_2")]
    MultiKey2,
    /// RULER's `niah_multikey_3`: find the UUID of one UUID in a prompt that consists of such pairs.
    #[serde(rename = "niah_multikey_3")]
    MultiKey3,
    /// RULER's `niah_multivalue`: find the four numbers of one name, hidden in prose.
    #[serde(rename = "niah_multivalue")]
    MultiValue,
    /// RULER's `niah_multiquery`: find the numbers of four names, hidden in prose.
    #[serde(rename = "niah_multiquery")]
    MultiQuery,
    /// RULER's `vt`: find the five variables to which a chain of assignments gives one value, hidden in repeated
    /// sentences.
    #[serde(rename = "vt")]
    VariableTracking,
    /// RULER's `cwe`: find the ten words that a list has thirty times, among words that it has three times.
    #[serde(rename = "cwe")]
    CommonWords,
    /// RULER's `fwe`: find the three most frequent words of a text whose words follow Zipf's law.
    #[serde(rename = "fwe")]
    FrequentWords,
    /// RULER's `qa_1`: answer a question with one of many passages.
    #[serde(rename = "qa_1")]
    OneHop,
    /// RULER's `qa_2`: answer a question with two of many passages.
    #[serde(rename = "qa_2")]
    TwoHops,
}

impl Task {
    /// All tasks of RULER, in the paper's order.
    pub const RULER: [Self; 13] = [
        Self::Single1,
        Self::Single2,
        Self::Single3,
        Self::MultiKey1,
        Self::MultiKey2,
        Self::MultiKey3,
        Self::MultiValue,
        Self::MultiQuery,
        Self::VariableTracking,
        Self::CommonWords,
        Self::FrequentWords,
        Self::OneHop,
        Self::TwoHops,
    ];

    /// The paper's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PassKey => "pass-key",
            Self::Single1 => "niah_single_1",
            Self::Single2 => "niah_single_2",
            Self::Single3 => "niah_single_3",
            Self::MultiKey1 => "niah_multikey_1",
            Self::MultiKey2 => "niah_multikey_2",
            Self::MultiKey3 => "niah_multikey_3",
            Self::MultiValue => "niah_multivalue",
            Self::MultiQuery => "niah_multiquery",
            Self::VariableTracking => "vt",
            Self::CommonWords => "cwe",
            Self::FrequentWords => "fwe",
            Self::OneHop => "qa_1",
            Self::TwoHops => "qa_2",
        }
    }

    /// Whether a prompt hides one fact, which stands at a depth.
    #[must_use]
    pub fn has_depth(self) -> bool {
        matches!(self, Self::PassKey | Self::Single1 | Self::Single2 | Self::Single3)
    }

    /// Number of tokens of an answer, as in the paper; fewer for the pass key.
    #[must_use]
    pub fn answer_tokens(self) -> u32 {
        match self {
            Self::PassKey => 24,
            Self::VariableTracking => 30,
            Self::CommonWords => 120,
            Self::FrequentWords => 50,
            Self::OneHop | Self::TwoHops => 32,
            _ => 128,
        }
    }
}

/// A prompt, and the texts that its answer must contain.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskPrompt {
    /// Token ids, with the beginning of the answer.
    pub ids: Vec<u32>,
    /// Texts of the answer.
    pub expected: Vec<String>,
}

/// A prompt of about `length` tokens, never more.
///
/// # Errors
/// If the model has no tokenizer, or the length has no room for the task.
pub fn prompt(model: &Model, task: Task, length: u32, depth: Option<f64>, seed: u64) -> Result<TaskPrompt> {
    // Tasks differ in their facts, whatever the seed.
    let seed = seed ^ (task as u64) << 48;
    let facts = Facts::new(task, &mut StdRng::seed_from_u64(seed));
    let ids = |units| {
        let text = facts.text(units, depth, &mut StdRng::seed_from_u64(seed ^ 1 << 32));
        encode(model, &text, &facts.answer)
    };
    let (length, none) = (length as usize, ids(0)?.len());
    ensure!(none <= length, "{}: {length} tokens are too few, it takes at least {none}", task.name());
    let mut units = 64;
    loop {
        let some = ids(units)?;
        let longer = units * (length - none) / (some.len() - none).max(1);
        if longer <= units + units / 64 {
            break;
        }
        units = longer;
    }
    loop {
        let ids = ids(units)?;
        if ids.len() <= length {
            return Ok(TaskPrompt { ids, expected: facts.expected });
        }
        units = (units * (length - none) / (ids.len() - none)).min(units - 1);
    }
}

/// The prompt in the model's chat format, if it has one, with the beginning of the answer.
fn encode(model: &Model, text: &str, answer: &str) -> Result<Vec<u32>> {
    let tokenizer = model.tokenizer.as_ref().context("the model has no tokenizer: prompts are text")?;
    match &model.chat {
        Some(chat) => {
            let prompt = chat.render(&[Message::new("user", text)], true)?;
            Ok(tokenizer.encode(&format!("{prompt}{answer}"), false)?)
        }
        None => Ok(tokenizer.encode(&format!("{text} {answer}"), true)?),
    }
}

/// Share of the expected texts that an answer contains, whatever the case.
#[must_use]
pub fn found(answer: &str, expected: &[String]) -> f64 {
    let answer = answer.to_lowercase();
    let hits = expected.iter().filter(|text| answer.contains(&text.to_lowercase())).count();
    hits as f64 / expected.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_scored_by_what_they_hold() {
        let expected = ["12345".to_string(), "Arvenholm".to_string()];
        assert_eq!(found("12345 and 9", &expected), 0.5);
        assert_eq!(found("arvenholm, 12345.", &expected), 1.0);
        assert_eq!(found("", &expected), 0.0);
    }

    #[test]
    fn names_are_those_that_plans_have() {
        for task in Task::RULER {
            assert_eq!(ron::to_string(&task).unwrap(), task.name());
            assert_eq!(ron::from_str::<Task>(task.name()).unwrap(), task);
        }
    }
}
