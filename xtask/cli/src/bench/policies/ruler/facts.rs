//! Facts that prompts hide, and the text around them.

use std::fmt::Write as _;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};

use super::Task;
use super::filler::{self, NOISE, code, key, number, person, place, sentence, uuid, words};

/// A task with its facts, for prompts of any length.
pub(super) struct Facts {
    intro: &'static str,
    /// Parts that stand once each, in their order, among the filler.
    facts: Vec<String>,
    filler: Filler,
    question: String,
    /// First words of the answer, which the model continues.
    pub(super) answer: String,
    pub(super) expected: Vec<String>,
}

/// Parts that a prompt repeats up to its length.
enum Filler {
    Noise,
    Prose,
    /// Numbers of other names, or UUIDs of other UUIDs.
    Numbers,
    Uuids,
    /// Passages about other people.
    Passages,
    /// A list of words, three times each, among which the facts stand thirty times each.
    Words,
    /// The text of Zipf's law over these words.
    Zipf(Vec<String>),
}

const HIDDEN: &str =
    "Some facts are hidden in the text below. Read it and remember them, you will be asked for them.";

fn number_of(name: &str, value: &str) -> String {
    format!("The secret number of {name} is {value}.")
}

/// Items as they are listed in a sentence: "a", "a and b", "a, b and c".
fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Distinct values of a generator.
fn distinct<const N: usize>(random: &mut StdRng, make: fn(&mut StdRng) -> String) -> [String; N] {
    let mut all: Vec<String> = Vec::new();
    while all.len() < N {
        let one = make(random);
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all.try_into().expect("as many as were asked for")
}

impl Facts {
    pub(super) fn new(task: Task, random: &mut StdRng) -> Self {
        match task {
            Task::PassKey => Self::pass_key(random),
            Task::Single1 => Self::numbers::<1, 1>(random, Filler::Noise, number),
            Task::Single2 => Self::numbers::<1, 1>(random, Filler::Prose, number),
            Task::Single3 => Self::numbers::<1, 1>(random, Filler::Prose, uuid),
            Task::MultiKey1 => Self::numbers::<4, 1>(random, Filler::Prose, number),
            Task::MultiKey2 => Self::numbers::<1, 1>(random, Filler::Numbers, number),
            Task::MultiKey3 => {
                let [name, value] = distinct(random, uuid);
                Self::of_names(vec![number_of(&name, &value)], &[name], vec![value], Filler::Uuids)
            }
            Task::MultiValue => {
                let name = key(random);
                let values: [String; 4] = distinct(random, number);
                let facts = values.iter().map(|value| number_of(&name, value)).collect();
                Self::of_names(facts, &[name], values.into(), Filler::Prose)
            }
            Task::MultiQuery => Self::numbers::<4, 4>(random, Filler::Prose, number),
            Task::VariableTracking => Self::variables(random),
            Task::CommonWords => Self::common_words(random),
            Task::FrequentWords => Self::frequent_words(random),
            Task::OneHop => Self::one_hop(random),
            Task::TwoHops => Self::two_hops(random),
        }
    }

    fn pass_key(random: &mut StdRng) -> Self {
        let value = random.random_range(10_000..100_000_u32).to_string();
        Self {
            intro: "An important fact is hidden in the text below. Read it and remember the fact.",
            facts: vec![format!("The pass key is {value}. Remember it. {value} is the pass key.")],
            filler: Filler::Noise,
            question: "What is the pass key?".into(),
            answer: "The pass key is".into(),
            expected: vec![value],
        }
    }

    fn variables(random: &mut StdRng) -> Self {
        let value = random.random_range(10_000..100_000_u32).to_string();
        let chain: [String; 5] = distinct(random, |random| code(random).to_uppercase());
        let mut facts = vec![format!("VAR {} = {value}.", chain[0])];
        facts.extend(chain.windows(2).map(|pair| format!("VAR {} = VAR {}.", pair[1], pair[0])));
        Self {
            intro: "The text below assigns values to variables. Follow the assignments.",
            facts,
            filler: Filler::Noise,
            question: format!("Which variables have the value {value}? There are five."),
            answer: format!("The variables that have the value {value} are"),
            expected: chain.into(),
        }
    }

    fn common_words(random: &mut StdRng) -> Self {
        let mut common: Vec<String> = Vec::new();
        while common.len() < 10 {
            let word = words().choose(random).expect("words");
            // An answer is looked through for each of them.
            if !common.iter().any(|other| other.contains(word) || word.contains(other.as_str())) {
                common.push((*word).into());
            }
        }
        Self {
            intro: "Below is a numbered list of words, of which some come far more often than others.",
            facts: common.clone(),
            filler: Filler::Words,
            question: "Which are the ten most common words of the list?".into(),
            answer: "The ten most common words are:".into(),
            expected: common,
        }
    }

    fn frequent_words(random: &mut StdRng) -> Self {
        let coded: [String; 40] = distinct(random, code);
        Self {
            intro: "Read the coded text below and count how often each word comes. Leave out the dots.",
            facts: Vec::new(),
            question: "Which are the three most frequent words of the coded text?".into(),
            answer: "The three most frequent words are:".into(),
            expected: coded[..3].to_vec(),
            filler: Filler::Zipf(coded.into()),
        }
    }

    fn one_hop(random: &mut StdRng) -> Self {
        let (name, city, trade) = (person(random), place(random), filler::trade(random));
        Self {
            intro: "Answer the question by the passages below, with the answer alone.",
            facts: vec![filler::passage(&name, &city, trade)],
            filler: Filler::Passages,
            question: format!("In which city was {name} born?"),
            answer: "Answer:".into(),
            expected: vec![city],
        }
    }

    fn two_hops(random: &mut StdRng) -> Self {
        let [teacher, pupil] = distinct(random, person);
        let [city, other] = distinct(random, place);
        let (trade, of_pupil) = (filler::trade(random), filler::trade(random));
        let taught = format!("{pupil} learned the trade from {teacher}.");
        let mut facts = vec![
            filler::passage(&teacher, &city, trade),
            format!("{} {taught}", filler::passage(&pupil, &other, of_pupil)),
        ];
        facts.shuffle(random);
        Self {
            intro: "Answer the question by the passages below, with the answer alone.",
            facts,
            filler: Filler::Passages,
            question: format!("In which city was the person born from whom {pupil} learned the trade?"),
            answer: "Answer:".into(),
            expected: vec![city],
        }
    }

    /// `NAMES` names with a value each; the prompt asks for the first `ASKED`.
    fn numbers<const NAMES: usize, const ASKED: usize>(
        random: &mut StdRng,
        filler: Filler,
        value: fn(&mut StdRng) -> String,
    ) -> Self {
        let (names, values): ([String; NAMES], [String; NAMES]) =
            (distinct(random, key), distinct(random, value));
        let mut facts: Vec<String> = names.iter().zip(&values).map(|(n, v)| number_of(n, v)).collect();
        facts.shuffle(random);
        Self::of_names(facts, &names[..ASKED], values[..ASKED].to_vec(), filler)
    }

    fn of_names(facts: Vec<String>, asked: &[String], expected: Vec<String>, filler: Filler) -> Self {
        let (s, verb) = if expected.len() > 1 { ("s", "are") } else { ("", "is") };
        let names = listed(asked);
        Self {
            intro: HIDDEN,
            facts,
            filler,
            question: format!("What {verb} the secret number{s} of {names}?"),
            answer: format!("The secret number{s} of {names} {verb}"),
            expected,
        }
    }

    /// The text with `units` units of filler. A single fact stands at `depth`, several at random, in order.
    pub(super) fn text(&self, units: usize, depth: Option<f64>, random: &mut StdRng) -> String {
        let body = match &self.filler {
            Filler::Words => word_list(&self.facts, units, random),
            Filler::Zipf(words) => zipf(words, units, random),
            filler => self.with_facts(filler, units, depth, random),
        };
        format!("{}\n{body}\n{}", self.intro, self.question)
    }

    fn with_facts(&self, filler: &Filler, units: usize, depth: Option<f64>, random: &mut StdRng) -> String {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a depth of 0 to 1")]
        let one = depth.map(|depth| (depth * units as f64).round() as usize);
        let mut places: Vec<usize> = match (&self.facts[..], one) {
            ([_], Some(one)) => vec![one],
            (facts, _) => facts.iter().map(|_| random.random_range(0..=units)).collect(),
        };
        places.sort_unstable();
        let mut facts = self.facts.iter().zip(places).peekable();
        let mut parts: Vec<String> = Vec::new();
        for at in 0..=units {
            while let Some((fact, _)) = facts.next_if(|(_, place)| *place == at) {
                parts.push(fact.clone());
            }
            if at < units {
                parts.push(self.unit(filler, random));
            }
        }
        parts.join(if matches!(filler, Filler::Passages) { "\n\n" } else { " " })
    }

    /// A unit of filler, which says nothing about the people of the facts.
    fn unit(&self, filler: &Filler, random: &mut StdRng) -> String {
        let mut other = |make| another(random, &self.facts, make);
        match filler {
            Filler::Noise => NOISE.into(),
            Filler::Numbers => number_of(&other(key), &other(number)),
            Filler::Uuids => number_of(&other(uuid), &other(uuid)),
            Filler::Passages => {
                let (name, city) = (other(person), place(random));
                filler::passage(&name, &city, filler::trade(random))
            }
            Filler::Prose | Filler::Words | Filler::Zipf(_) => sentence(random),
        }
    }
}

/// A value that is none of those in `taken`.
fn another(random: &mut StdRng, taken: &[String], make: fn(&mut StdRng) -> String) -> String {
    loop {
        let one = make(random);
        if !taken.iter().any(|text| text.contains(&one)) {
            return one;
        }
    }
}

/// A numbered list that has the words `common` thirty times each, and `others` more three times each.
fn word_list(common: &[String], others: usize, random: &mut StdRng) -> String {
    let others = (0..others).map(|_| {
        loop {
            let word = format!(
                "{}{}",
                words().choose(random).expect("words"),
                words().choose(random).expect("words")
            );
            if !common.iter().any(|common| word.contains(common.as_str())) {
                break word;
            }
        }
    });
    let others: Vec<String> = others.collect();
    let repeated =
        |words: &[String], times| words.iter().flat_map(move |w| vec![w.clone(); times]).collect::<Vec<_>>();
    let mut list = [repeated(common, 30), repeated(&others, 3)].concat();
    list.shuffle(random);
    let mut text = String::new();
    for (number, word) in (1..).zip(list) {
        let _ = write!(text, "{number}. {word} ");
    }
    text
}

/// About `len` words in random order, with dots between some. The `k`-th word occurs `1 / k^2` times as often as the
/// first.
fn zipf(words: &[String], len: usize, random: &mut StdRng) -> String {
    let shares: Vec<f64> = (1..=words.len()).map(|k| 1.0 / (k * k) as f64).collect();
    let all: f64 = shares.iter().sum();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of the length")]
    let times = |share: &f64| (share / all * len as f64).ceil() as usize;
    let mut text: Vec<&str> =
        words.iter().zip(&shares).flat_map(|(word, share)| vec![word.as_str(); times(share)]).collect();
    text.extend(vec!["..."; len / 10]);
    text.shuffle(random);
    text.join(" ")
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn facts(task: Task, seed: u64) -> Facts {
        Facts::new(task, &mut StdRng::seed_from_u64(seed))
    }

    fn text(task: Task, units: usize, depth: Option<f64>) -> String {
        facts(task, 7).text(units, depth, &mut StdRng::seed_from_u64(3))
    }

    #[test]
    fn one_fact_stands_at_its_depth() {
        let fact = &facts(Task::PassKey, 7).facts[0];
        let at = |depth| {
            let text = text(Task::PassKey, 10, Some(depth));
            text[..text.find(fact).unwrap()].matches("grass").count()
        };
        assert_eq!([0.0, 0.5, 1.0].map(at), [0, 5, 10]);
    }

    #[test]
    fn facts_stand_once_and_what_is_asked_for_is_there() {
        for (task, stated, expected) in [
            (Task::Single1, 1, 1),
            (Task::Single2, 1, 1),
            (Task::Single3, 1, 1),
            (Task::MultiKey1, 4, 1),
            (Task::MultiKey2, 1, 1),
            (Task::MultiKey3, 1, 1),
            (Task::MultiValue, 4, 4),
            (Task::MultiQuery, 4, 4),
            (Task::VariableTracking, 5, 5),
            (Task::OneHop, 1, 1),
            (Task::TwoHops, 2, 1),
        ] {
            let (facts, text) = (facts(task, 7), text(task, 400, None));
            assert_eq!((facts.facts.len(), facts.expected.len()), (stated, expected), "{task:?}");
            let places: Vec<usize> = facts.facts.iter().map(|fact| text.find(fact).unwrap()).collect();
            assert!(places.is_sorted(), "{task:?}: {places:?}");
            assert!(facts.facts.iter().all(|fact| text.matches(fact.as_str()).count() == 1), "{task:?}");
            assert!(facts.expected.iter().all(|value| facts.facts.concat().contains(value)), "{task:?}");
            assert!(text.ends_with(&facts.question), "{task:?}");
            assert_eq!(text, self::text(task, 400, None), "{task:?}");
        }
    }

    /// Whoever the question names, no filler says anything of.
    #[test]
    fn filler_answers_no_question() {
        let names = facts(Task::MultiKey2, 7).answer;
        let name = names.trim_start_matches("The secret number of ").trim_end_matches(" is");
        assert_eq!(text(Task::MultiKey2, 3000, None).matches(&format!(" {name} is")).count(), 1);
        let question = facts(Task::OneHop, 7).question;
        let name = question.trim_start_matches("In which city was ").trim_end_matches(" born?");
        assert_eq!(text(Task::OneHop, 3000, None).matches(&format!("{name} was")).count(), 1);
    }

    fn counts(text: &str) -> Vec<(usize, String)> {
        let mut counts = std::collections::BTreeMap::<&str, usize>::new();
        for word in text.split_whitespace().filter(|word| !word.contains('.')) {
            *counts.entry(word).or_default() += 1;
        }
        let mut counts: Vec<(usize, String)> = counts.into_iter().map(|(word, n)| (n, word.into())).collect();
        counts.sort_by(|a, b| b.cmp(a));
        counts
    }

    #[test]
    fn common_words_come_thirty_times_and_others_three() {
        let facts = facts(Task::CommonWords, 7);
        let counts = counts(&word_list(&facts.facts, 500, &mut StdRng::seed_from_u64(3)));
        assert!(counts[..10].iter().all(|(_, word)| facts.expected.contains(word)), "{counts:?}");
        assert!(counts[..10].iter().all(|(times, _)| *times == 30));
        assert!(counts[10..].iter().all(|(times, _)| times % 3 == 0 && *times <= 9), "{counts:?}");
    }

    #[test]
    fn frequent_words_follow_the_square_of_their_rank() {
        let facts = facts(Task::FrequentWords, 7);
        let Filler::Zipf(words) = &facts.filler else { panic!("a text of coded words") };
        let counts = counts(&zipf(words, 2000, &mut StdRng::seed_from_u64(3)));
        let most: Vec<&str> = counts[..3].iter().map(|(_, word)| word.as_str()).collect();
        assert_eq!(most, facts.expected);
        let ratio = |k: usize| counts[0].0 as f64 / counts[k].0 as f64;
        assert!((ratio(1) - 4.0).abs() < 0.1 && (ratio(2) - 9.0).abs() < 0.2, "{counts:?}");
    }
}
