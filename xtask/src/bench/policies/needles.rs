//! Needles in a haystack: prompts that hide facts in filler and ask for them, made from a seed.

use anyhow::{Context, Result};
use models::Message;
use pagoda::Model;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::plan::Task;

/// The filler of the pass-key task (Mohtashami and Jaggi, arXiv 2305.16300).
const FILLER: &str =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

/// Number of names that a prompt can use.
pub(super) const NAMES: u32 = 24;

const NAME_LIST: [&str; NAMES as usize] = [
    "amber", "basil", "cedar", "delta", "ember", "flint", "grove", "heron", "indigo", "jasper", "kestrel",
    "lagoon", "maple", "nectar", "onyx", "poplar", "quartz", "raven", "saffron", "tulip", "umber", "violet",
    "willow", "zephyr",
];

/// A prompt and what its answer must contain.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Needle {
    pub(super) ids: Vec<u32>,
    pub(super) expected: Vec<String>,
}

/// Hidden facts, and the question for them.
#[derive(Debug, Clone, PartialEq)]
struct Hidden {
    intro: &'static str,
    /// Sentences, in the order in which they appear.
    facts: Vec<String>,
    question: String,
    /// The first words of the answer, which the model continues.
    answer: String,
    expected: Vec<String>,
}

impl Hidden {
    fn new(task: Task, random: &mut StdRng) -> Self {
        let mut names = NAME_LIST;
        names.shuffle(random);
        let mut number = || random.random_range(10_000..100_000u32).to_string();
        let fact = |name: &str, number: &str| format!("The secret number of {name} is {number}.");
        let intro = "Some facts are hidden inside a lot of irrelevant text. Find them and memorize them.";
        let of_name = |facts, expected, plural: bool| {
            let (s, verb) = if plural { ("s", "are") } else { ("", "is") };
            Self {
                intro,
                facts,
                question: format!("What {verb} the secret number{s} of {}?", names[0]),
                answer: format!("The secret number{s} of {} {verb}", names[0]),
                expected,
            }
        };
        match task {
            Task::PassKey => {
                let key = number();
                Self {
                    intro: "There is an important piece of information hidden inside a lot of irrelevant text. Find \
                            it and memorize it.",
                    facts: vec![format!("The pass key is {key}. Remember it. {key} is the pass key.")],
                    question: "What is the pass key?".into(),
                    answer: "The pass key is".into(),
                    expected: vec![key],
                }
            }
            Task::Single => {
                let number = number();
                of_name(vec![fact(names[0], &number)], vec![number], false)
            }
            Task::MultiKey { keys } => {
                let numbers: Vec<String> = (0..keys).map(|_| number()).collect();
                let mut facts: Vec<String> = names.iter().zip(&numbers).map(|(n, v)| fact(n, v)).collect();
                let half = facts.len() / 2;
                facts.rotate_left(half);
                of_name(facts, numbers[..1].to_vec(), false)
            }
            Task::MultiValue { values } => {
                let numbers: Vec<String> = (0..values).map(|_| number()).collect();
                of_name(numbers.iter().map(|v| fact(names[0], v)).collect(), numbers, true)
            }
            Task::VariableTracking { hops } => {
                let value = number();
                let chain: Vec<String> = (0..hops as usize).map(|hop| names[hop].to_uppercase()).collect();
                let link = |pair: &[String]| format!("Variable {} equals variable {}.", pair[1], pair[0]);
                let mut facts = vec![format!("Variable {} equals {value}.", chain[0])];
                facts.extend(chain.windows(2).map(link));
                Self {
                    intro,
                    facts,
                    question: format!("Which variables equal {value}?"),
                    answer: format!("The variables that equal {value} are"),
                    expected: chain,
                }
            }
        }
    }

    /// The text with `copies` copies of the filler. A single fact is placed at `depth`; several are placed at
    /// random, in order.
    fn text(&self, copies: usize, depth: f64, random: &mut StdRng) -> String {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a depth of 0 to 1")]
        let one = (depth * copies as f64).round() as usize;
        let mut places: Vec<usize> = match self.facts.len() {
            1 => vec![one],
            several => (0..several).map(|_| random.random_range(0..=copies)).collect(),
        };
        places.sort_unstable();
        let mut parts = vec![self.intro];
        let mut facts = self.facts.iter().zip(places).peekable();
        for at in 0..=copies {
            while let Some((fact, _)) = facts.next_if(|(_, place)| *place == at) {
                parts.push(fact);
            }
            if at < copies {
                parts.push(FILLER);
            }
        }
        parts.push(&self.question);
        parts.join(" ")
    }
}

/// A prompt of about `length` tokens, never more.
///
/// # Errors
/// If the model has no tokenizer.
pub(super) fn needle(model: &Model, task: Task, length: u32, depth: f64, seed: u64) -> Result<Needle> {
    let hidden = Hidden::new(task, &mut StdRng::seed_from_u64(seed));
    let tokens = |copies| {
        let mut places = StdRng::seed_from_u64(seed ^ 1 << 32);
        encode(model, &hidden.text(copies, depth, &mut places), &hidden.answer)
    };
    // Copies of the filler are equally long.
    let (none, ten) = (tokens(0)?.len(), tokens(10)?.len());
    let copies = (length as usize).saturating_sub(none) * 10 / (ten - none).max(1);
    Ok(Needle { ids: tokens(copies)?, expected: hidden.expected })
}

/// The prompt in the model's chat format, if it has one, with the beginning of the answer.
fn encode(model: &Model, text: &str, answer: &str) -> Result<Vec<u32>> {
    let tokenizer = model.tokenizer.as_ref().context("the model has no tokenizer: needles are text")?;
    match &model.chat {
        Some(chat) => {
            let prompt = chat.render(&[Message::new("user", text)], true)?;
            Ok(tokenizer.encode(&format!("{prompt}{answer}"), false)?)
        }
        None => Ok(tokenizer.encode(&format!("{text} {answer}"), true)?),
    }
}

/// Share of the expected texts that an answer contains.
pub(super) fn found(answer: &str, expected: &[String]) -> f64 {
    let hits = expected.iter().filter(|text| answer.contains(text.as_str())).count();
    hits as f64 / expected.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(task: Task, seed: u64) -> Hidden {
        Hidden::new(task, &mut StdRng::seed_from_u64(seed))
    }

    #[test]
    fn one_fact_stands_at_its_depth() {
        let hidden = hidden(Task::PassKey, 1);
        let at = |depth| {
            let text = hidden.text(10, depth, &mut StdRng::seed_from_u64(2));
            text[..text.find(&hidden.facts[0]).unwrap()].matches("grass").count()
        };
        assert_eq!([0.0, 0.5, 1.0].map(at), [0, 5, 10]);
    }

    #[test]
    fn every_fact_stands_once_and_in_order() {
        for (task, facts, expected) in [
            (Task::Single, 1, 1),
            (Task::MultiKey { keys: 4 }, 4, 1),
            (Task::MultiValue { values: 3 }, 3, 3),
            (Task::VariableTracking { hops: 3 }, 3, 3),
        ] {
            let hidden = hidden(task, 7);
            assert_eq!((hidden.facts.len(), hidden.expected.len()), (facts, expected), "{task:?}");
            let text = hidden.text(20, 0.5, &mut StdRng::seed_from_u64(3));
            let places: Vec<usize> = hidden.facts.iter().map(|fact| text.find(fact).unwrap()).collect();
            assert!(places.is_sorted(), "{task:?}: {places:?}");
            assert!(hidden.facts.iter().all(|fact| text.matches(fact.as_str()).count() == 1), "{task:?}");
            assert!(text.ends_with(&hidden.question));
            assert_eq!(hidden, self::hidden(task, 7));
        }
    }

    #[test]
    fn the_name_asked_for_is_the_one_whose_number_is_expected() {
        let hidden = hidden(Task::MultiKey { keys: 4 }, 5);
        let name = hidden.question.trim_end_matches('?').rsplit(' ').next().unwrap();
        let fact = hidden.facts.iter().find(|fact| fact.contains(name)).unwrap();
        assert!(fact.contains(&hidden.expected[0]), "{fact} {:?}", hidden.expected);
    }

    #[test]
    fn answers_are_scored_by_what_they_hold() {
        let expected = ["12345".to_string(), "67890".to_string()];
        assert_eq!(found("12345 and 9", &expected), 0.5);
        assert_eq!(found("67890, 12345.", &expected), 1.0);
        assert_eq!(found("", &expected), 0.0);
    }
}
