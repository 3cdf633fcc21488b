//! Text that grows with its tokens: whole characters, and nothing of a stop text.

use std::fs;
use std::sync::Arc;

use pagoda::{Engine, Event, FinishReason, Model, Request, Sampling, Text, TokenMask, Tokenizer};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::{fixture, options, prompt};

/// Tokens of more than one byte, or of a part of a character, beside the printable ASCII characters.
const OTHERS: [&[u8]; 17] = [
    b"\n",
    b"\n\n",
    b"EN",
    b"END",
    b"ND",
    b"ab",
    b"aba",
    "é".as_bytes(),
    b"\xc3",
    b"\xa9",
    b"\xe2",
    b"\x82",
    b"\xac",
    b"\xf0",
    b"\x9f",
    b"\x98",
    b"\x80",
];

/// The character that stands for a byte in the vocabulary of byte-level BPE: itself if it is printable, and the
/// next free one from 256 on if it is not.
fn stands_for(byte: u8) -> char {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(&byte) {
        return char::from(byte);
    }
    let before = u32::try_from((0..byte).filter(|b| !printable(b)).count()).unwrap();
    char::from_u32(256 + before).unwrap()
}

/// `tokenizer.json` of a byte-level vocabulary of 128 tokens, as many as the tiny Llama has.
fn tokenizer_json() -> String {
    let ascii = (b' '..=b'~').map(|byte| vec![byte]);
    let texts: Vec<Vec<u8>> = ascii.chain(OTHERS.map(<[u8]>::to_vec)).collect();
    let word = |text: &Vec<u8>| text.iter().map(|byte| stands_for(*byte)).collect::<String>();
    let words = texts.iter().map(word).chain((texts.len()..128).map(|id| format!("token{id}")));
    let vocab: serde_json::Map<_, _> = words.enumerate().map(|(id, word)| (word, id.into())).collect();
    let level = serde_json::json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false
    });
    serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": level,
        "decoder": level,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    })
    .to_string()
}

fn tokenizer() -> Arc<Tokenizer> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    fs::write(&path, tokenizer_json()).unwrap();
    Arc::new(Tokenizer::from_file(path).unwrap())
}

/// The tiny Llama with that tokenizer.
pub(crate) fn model() -> (TempDir, Model) {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(fixture("tiny-llama").join(name), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("tokenizer.json"), tokenizer_json()).unwrap();
    let model = Model::open(folder.path()).unwrap();
    (folder, model)
}

/// The text that ends before the first stop text, and after how many tokens that is known, by decoding
/// everything again with each token.
fn naive(tokenizer: &Tokenizer, ids: &[u32], stops: &[String]) -> (String, Option<usize>) {
    let decoded = |count: usize| tokenizer.decode(&ids[..count], true).unwrap();
    for count in 1..=ids.len() {
        // The end of the text may be a part of a character.
        let text = decoded(count);
        let certain = text.trim_end_matches('\u{FFFD}');
        if let Some(at) = stops.iter().filter_map(|stop| certain.find(stop)).min() {
            return (certain[..at].to_owned(), Some(count));
        }
    }
    (decoded(ids.len()), None)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn pieces_are_the_text_before_the_stop(
        ids in prop::collection::vec(0_u32..112, 0..60),
        stops in prop::collection::vec("(END|\n\n|ab|aba|é|€|N|[a-e]{1,2})", 0..3),
    ) {
        let tokenizer = tokenizer();
        let (want, stopped) = naive(&tokenizer, &ids, &stops);
        let mut text = Text::new(Arc::clone(&tokenizer), stops.clone(), true);
        let (mut got, mut at) = (String::new(), None);
        for (count, id) in (1..).zip(&ids) {
            let piece = text.push(*id).unwrap();
            got.push_str(&piece.text);
            prop_assert!(want.starts_with(&got), "{got:?} of {want:?}");
            if let Some(stop) = piece.stop {
                prop_assert!(tokenizer.decode(&ids[..count], true).unwrap().contains(&stops[stop]));
                at = Some(count);
                break;
            }
        }
        got.push_str(&text.finish().unwrap());
        prop_assert_eq!((got, at), (want, stopped));
    }
}

/// Text, tokens and reason of one request.
fn served(engine: &mut Engine, request: &Request) -> (String, Vec<u32>, FinishReason) {
    engine.submit(request.clone()).unwrap();
    let mut text = String::new();
    while engine.has_work() {
        for event in engine.step().unwrap() {
            match event {
                Event::Token(token) => text += &token.text,
                Event::Finished(end) => return (text + &end.text, end.output, end.reason),
                _ => {}
            }
        }
    }
    unreachable!("every request ends")
}

/// Allows one token, again and again.
#[derive(Debug, Clone)]
struct Always(u32);

impl TokenMask for Always {
    fn allow(&mut self, allowed: &mut [u32]) {
        allowed[self.0 as usize / 32] |= 1 << (self.0 % 32);
    }

    fn accept(&mut self, _: u32) {}

    fn fork(&self) -> Box<dyn TokenMask> {
        Box::new(self.clone())
    }
}

#[test]
fn a_cut_leaves_no_part_of_a_character() {
    let (_folder, model) = model();
    let mut engine = Engine::open(model, options()).unwrap();
    // The first byte of an emoji, and a byte that begins no character.
    let token =
        |text: &[u8]| 95 + u32::try_from(OTHERS.iter().position(|other| *other == text).unwrap()).unwrap();
    let mut cut = |text: &[u8], tokens| {
        let request = Request::new(prompt(2, 20)).max_tokens(tokens).mask(Box::new(Always(token(text))));
        served(&mut engine, &request)
    };
    assert_eq!(cut(b"\xf0", 1), (String::new(), vec![token(b"\xf0")], FinishReason::Length));
    let (text, ids, _) = cut(b"\x9f", 2);
    assert_eq!((text.chars().all(|c| c == '\u{FFFD}'), ids.len()), (true, 2));
}

#[test]
fn a_stop_text_ends_a_request_where_it_is_complete() {
    let (_folder, model) = model();
    let model = Arc::new(model);
    let mut engine = Engine::open(Arc::clone(&model), options()).unwrap();
    let sampling = Sampling::default().temperature(1.0).seed(9);
    let request = Request::new(prompt(2, 20)).max_tokens(80).ignore_eos().sampling(sampling);
    let (text, ids, reason) = served(&mut engine, &request);
    assert_eq!((ids.len(), reason), (80, FinishReason::Length));
    assert_eq!(text, model.tokenizer().unwrap().decode(&ids, true).unwrap());
    // Three characters from the middle, which no earlier ones equal.
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    let stop = &text[starts[starts.len() / 2]..starts[starts.len() / 2 + 3]];
    let (stopped, fewer, reason) = served(&mut engine, &request.clone().stop("never").stop(stop));
    assert_eq!(stopped, text[..text.find(stop).unwrap()]);
    assert_eq!(reason, FinishReason::StopText(stop.to_owned()));
    assert_eq!(fewer, ids[..fewer.len()]);
    let (_, known) = naive(model.tokenizer().unwrap(), &ids, &[stop.to_owned()]);
    assert_eq!(Some(fewer.len()), known);
}

#[test]
fn a_stop_token_has_no_text() {
    let (_folder, model) = model();
    let model = Arc::new(model);
    let mut engine = Engine::open(Arc::clone(&model), options()).unwrap();
    let request = Request::new(prompt(2, 20)).max_tokens(30).ignore_eos();
    let (_, ids, _) = served(&mut engine, &request);
    let at = ids.iter().position(|id| *id == ids[6]).unwrap();
    let stops = Sampling::default().stop_ids(vec![ids[6]]);
    let (text, output, reason) = served(&mut engine, &request.sampling(stops));
    assert_eq!((&output[..], reason), (&ids[..=at], FinishReason::StopToken(ids[6])));
    assert_eq!(text, model.tokenizer().unwrap().decode(&ids[..at], true).unwrap());
}
