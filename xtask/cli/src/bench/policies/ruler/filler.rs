//! Names, numbers and filler, from a seed.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, distr};

/// The filler of the pass-key task (Mohtashami and Jaggi, arXiv 2305.16300).
pub(super) const NOISE: &str =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

const ADJECTIVES: [&str; 40] = [
    "amber", "ancient", "brave", "bright", "calm", "careful", "clever", "cold", "curious", "distant",
    "eager", "early", "empty", "famous", "gentle", "golden", "grateful", "heavy", "hidden", "hollow",
    "humble", "lively", "lonely", "narrow", "noisy", "patient", "polite", "proud", "quiet", "rapid", "rough",
    "shallow", "silver", "sleepy", "smooth", "steady", "stormy", "tidy", "warm", "wooden",
];

const NOUNS: [&str; 40] = [
    "anchor", "basket", "bridge", "candle", "castle", "cedar", "cellar", "engine", "falcon", "farmer",
    "feather", "garden", "hammer", "harbour", "heron", "island", "kettle", "ladder", "lantern", "letter",
    "market", "meadow", "mirror", "orchard", "painter", "pigeon", "pillow", "potter", "quarry", "river",
    "saddle", "sailor", "tailor", "temple", "thunder", "ticket", "valley", "violin", "wagon", "window",
];

const VERBS: [&str; 16] = [
    "carried",
    "counted",
    "drew",
    "followed",
    "found",
    "kept",
    "left",
    "mended",
    "missed",
    "moved",
    "noticed",
    "passed",
    "remembered",
    "showed",
    "sold",
    "watched",
];

const FIRST: [&str; 24] = [
    "Ada", "Bruno", "Carla", "Dario", "Elena", "Farid", "Greta", "Hugo", "Irene", "Jonas", "Katya", "Luca",
    "Mina", "Nils", "Olga", "Pavel", "Quinn", "Rosa", "Stefan", "Tara", "Ulf", "Vera", "Wim", "Yara",
];

const LAST: [&str; 24] = [
    "Albrek", "Bostan", "Cervin", "Dalmar", "Estrem", "Falgren", "Gorvan", "Halden", "Istrak", "Jorvik",
    "Kalmen", "Lindor", "Marvan", "Norvel", "Ostrand", "Pelkan", "Quilmer", "Rastov", "Selmer", "Tordal",
    "Ulmen", "Varnak", "Westrup", "Zelnik",
];

const PLACES: [&str; 24] = [
    "Arvenholm",
    "Belcastra",
    "Corvale",
    "Dunmere",
    "Eastrova",
    "Fellinge",
    "Gravosk",
    "Harnsey",
    "Ilvermo",
    "Jastrin",
    "Kelvorra",
    "Lormont",
    "Mardale",
    "Nordheim",
    "Ostrava Bay",
    "Pelverin",
    "Quarnby",
    "Rosenthal",
    "Silvane",
    "Torvelle",
    "Umbria Falls",
    "Vestmar",
    "Wendover",
    "Yarrow Hill",
];

const TRADES: [&str; 12] = [
    "baker",
    "carpenter",
    "clockmaker",
    "cooper",
    "dyer",
    "glassblower",
    "mason",
    "printer",
    "saddler",
    "shipwright",
    "tanner",
    "weaver",
];

fn of<'a>(list: &[&'a str], random: &mut StdRng) -> &'a str {
    list.choose(random).expect("a list that is not empty")
}

/// A name of an adjective and a noun.
pub(super) fn key(random: &mut StdRng) -> String {
    format!("{}-{}", of(&ADJECTIVES, random), of(&NOUNS, random))
}

/// A number of seven digits.
pub(super) fn number(random: &mut StdRng) -> String {
    random.random_range(1_000_000..10_000_000_u32).to_string()
}

/// A UUID: 32 hexadecimal digits in five groups.
pub(super) fn uuid(random: &mut StdRng) -> String {
    let hex = format!("{:032x}", random.random::<u128>());
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Five lower-case letters.
pub(super) fn code(random: &mut StdRng) -> String {
    let letter = distr::Uniform::new_inclusive('a', 'z').expect("a range");
    (0..5).map(|_| random.sample(letter)).collect()
}

pub(super) fn person(random: &mut StdRng) -> String {
    format!("{} {}", of(&FIRST, random), of(&LAST, random))
}

pub(super) fn place(random: &mut StdRng) -> String {
    of(&PLACES, random).into()
}

pub(super) fn trade(random: &mut StdRng) -> &'static str {
    of(&TRADES, random)
}

/// A passage about a person.
pub(super) fn passage(name: &str, city: &str, trade: &str) -> String {
    format!(
        "{name} was a {trade} who was born in {city} and travelled a great deal. The workshop was known for careful work."
    )
}

/// A sentence of prose.
pub(super) fn sentence(random: &mut StdRng) -> String {
    let mut thing = || format!("the {} {}", of(&ADJECTIVES, random), of(&NOUNS, random));
    let (a, b, c) = (thing(), thing(), thing());
    let (verb, other) = (of(&VERBS, random), of(&VERBS, random));
    match random.random_range(0..4_u32) {
        0 => format!("In the morning {a} {verb} {b}, and nobody {other} {c}."),
        1 => format!("Before the rain came, {a} {verb} {b} beside {c}."),
        2 => format!("They say that {a} {verb} {b}."),
        _ => format!("After a while {a} {verb} {b}, while {c} {other} nothing at all."),
    }
}

/// Words of four to nine letters, ascending.
pub(super) fn words() -> &'static [&'static str] {
    static WORDS: LazyLock<Vec<&str>> = LazyLock::new(|| {
        let all = super::super::GPL.split_whitespace();
        let plain =
            |word: &&str| (4..=9).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_lowercase());
        all.filter(plain).collect::<BTreeSet<_>>().into_iter().collect()
    });
    &WORDS
}
