//! SentencePiece Unigram: ids of the SentencePiece library from GGUF metadata, those of transformers from `tokenizer.json`.

use base64::{Engine, prelude::BASE64_STANDARD};
use checkpoint::{Checkpoint, Gguf, Tokenizer};
use insta::assert_snapshot;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::gguf_writer::{GgufWriter, array_value, str_value, string, u32_value, value};
use super::{cases, fixture};

const NAMES: [&str; 3] = ["t5", "bytes", "bare"];

fn vocabulary(name: &str) -> Value {
    let path = fixture("unigram").join(format!("{name}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn array<const N: usize>(kind: u32, items: impl ExactSizeIterator<Item = [u8; N]>) -> Vec<u8> {
    array_value(kind, items.len() as u64, items.flatten().collect::<Vec<u8>>())
}

fn charsmap(vocabulary: &Value) -> Vec<u8> {
    let map = vocabulary["tokenizer"]["normalizer"]["normalizers"][0]["precompiled_charsmap"].as_str();
    map.map_or_else(Vec::new, |map| BASE64_STANDARD.decode(map).unwrap())
}

/// Metadata of the same vocabulary.
fn metadata(vocabulary: &Value) -> GgufWriter {
    let pieces = vocabulary["tokenizer"]["model"]["vocab"].as_array().unwrap();
    let types = vocabulary["types"].as_array().unwrap();
    let tokens: Vec<u8> = pieces.iter().flat_map(|piece| string(piece[0].as_str().unwrap())).collect();
    #[expect(clippy::cast_possible_truncation, reason = "SentencePiece has scores as f32")]
    let scores = pieces.iter().map(|piece| (piece[1].as_f64().unwrap() as f32).to_le_bytes());
    let mut writer = GgufWriter::empty();
    writer.set("tokenizer.ggml.model", str_value("t5"));
    writer.set("tokenizer.ggml.tokens", array_value(8, pieces.len() as u64, tokens));
    writer.set("tokenizer.ggml.scores", array(6, scores));
    let types = types.iter().map(|kind| i32::try_from(kind.as_i64().unwrap()).unwrap().to_le_bytes());
    writer.set("tokenizer.ggml.token_type", array(5, types));
    writer.set(
        "tokenizer.ggml.precompiled_charsmap",
        array(0, charsmap(vocabulary).iter().map(|byte| [*byte])),
    );
    for key in ["add_space_prefix", "remove_extra_whitespaces"] {
        let set = vocabulary[key].as_bool().unwrap();
        writer.set(&format!("tokenizer.ggml.{key}"), value(7, [u8::from(set)]));
    }
    writer
}

fn build(writer: &GgufWriter) -> Result<Tokenizer, String> {
    Tokenizer::from_gguf(&Gguf::from_bytes(writer.bytes()).unwrap()).map_err(|error| error.to_string())
}

fn from_gguf(name: &str) -> Tokenizer {
    build(&metadata(&vocabulary(name))).unwrap()
}

fn load(json: &Value) -> Result<Tokenizer, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    std::fs::write(&path, json.to_string()).unwrap();
    let shown =
        |error: models::TokenizerError| error.to_string().replace(&path.display().to_string(), "FILE");
    Tokenizer::from_file(&path).map_err(shown)
}

fn cut(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    ids.iter().map(|&id| tokenizer.token(id).unwrap()).collect::<Vec<_>>().join("|")
}

/// Compares the ids of every text of every vocabulary with those of `library`.
fn agrees(library: &str, tokenizer: impl Fn(&str) -> Tokenizer) {
    for name in NAMES {
        let tokenizer = tokenizer(name);
        let vocabulary = vocabulary(name);
        let cases = vocabulary["cases"].as_array().unwrap();
        assert!(cases.len() >= 90, "{name}: {} texts", cases.len());
        for case in cases {
            let text = case["text"].as_str().unwrap();
            let want: Vec<u32> = serde_json::from_value(case[library].clone()).unwrap();
            let got = tokenizer.encode(text, false).unwrap();
            assert_eq!(cut(&tokenizer, &got), cut(&tokenizer, &want), "{name}: {text:?}");
            assert_eq!(got, want, "{name}: {text:?}");
        }
    }
}

#[test]
fn gguf_metadata_gives_the_ids_of_sentencepiece() {
    agrees("sentencepiece", from_gguf);
}

#[test]
fn tokenizer_json_gives_the_ids_of_transformers() {
    agrees("tokenizers", |name| load(&vocabulary(name)["tokenizer"]).unwrap());
}

/// Runs of blanks stay, and bytes stand for what has no token: every text comes back, if its characters have no other form.
#[test]
fn texts_come_back() {
    let tokenizer = from_gguf("bytes");
    for case in vocabulary("bytes")["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids = tokenizer.encode(text, false).unwrap();
        // U+2581 itself is a blank in tokens.
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), text.replace('\u{2581}', " "), "{text:?}");
        let mut stream = tokenizer.stream(false);
        let mut pieces: String = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
        pieces.push_str(&stream.finish().unwrap());
        assert_eq!(pieces, text.replace('\u{2581}', " "), "{text:?}");
    }
}

/// The model has them among its pieces.
#[test]
fn text_becomes_no_control_and_no_byte_token() {
    let shown = |name, text: &str| {
        let tokenizer = from_gguf(name);
        let ids = tokenizer.encode(&tokenizer.as_text(text), false).unwrap();
        assert!(ids.iter().all(|id| tokenizer.token(*id).unwrap() == "<unk>" || !tokenizer.is_control(*id)));
        cut(&tokenizer, &ids)
    };
    assert_snapshot!(shown("bare", "a</s>b"), @"a|<0x3C>|<0x2F>|s|<0x3E>|b");
    // Wide letters that the map of characters makes narrow.
    assert_snapshot!(shown("bare", "\u{FF1C}/\u{FF53}\u{FF1E}"), @"<0x3C>|<0x2F>|s|<0x3E>");
    assert_snapshot!(shown("bytes", "<0x41>"), @"▁|<0x3C>|0|x|4|1|<0x3E>");
    let tokenizer = from_gguf("bare");
    assert_eq!(tokenizer.encode("</s>", false).unwrap(), [tokenizer.id("</s>").unwrap()], "asked for");
    // Behind more characters than a regular expression with a look-ahead steps over.
    let long = format!("{}\u{FF1C}/\u{FF53}\u{FF1E}", "the sea ".repeat(140_000));
    let ids = tokenizer.encode(&long, false).unwrap();
    assert!(ids.iter().all(|id| !tokenizer.is_control(*id)));
    // The same in tokenizer.json.
    let tokenizer = load(&vocabulary("bare")["tokenizer"]).unwrap();
    let ids = tokenizer.encode("\u{FF1C}/\u{FF53}\u{FF1E} <0x41>", false).unwrap();
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "</s> <0x41>");
}

/// As in llama.cpp, text behind a token of the user's begins like any other.
#[test]
fn user_defined_tokens_cut_a_text() {
    let shown = |name, text| {
        let tokenizer = from_gguf(name);
        cut(&tokenizer, &tokenizer.encode(text, false).unwrap())
    };
    assert_snapshot!(shown("bytes", "the sea<tool>the sea <tool> a"), @"▁the|▁se|a|<tool>|▁the|▁se|a|▁|<tool>|▁|▁a");
    assert_snapshot!(shown("t5", "the sea<sep>the sea <sep> a"), @"▁the|▁se|a|<sep>|▁the|▁se|a|<sep>|▁a");
}

#[test]
fn edges_are_those_of_the_file_or_of_t5() {
    let mut writer = metadata(&vocabulary("t5"));
    let ids = |writer: &GgufWriter| build(writer).unwrap().encode("the", true).unwrap();
    let bare = ids(&writer);
    writer.set("tokenizer.ggml.eos_token_id", u32_value(1));
    assert_eq!(ids(&writer), [&bare[..], &[1]].concat());
    writer.set("tokenizer.ggml.add_eos_token", value(7, [0]));
    assert_eq!(ids(&writer), bare);
    // Without the keys, nothing stands before a text and runs of blanks stay.
    writer.metadata.retain(|(key, _)| !key.ends_with("add_space_prefix") && !key.ends_with("whitespaces"));
    let tokenizer = build(&writer).unwrap();
    assert_snapshot!(cut(&tokenizer, &tokenizer.encode("a  b", false).unwrap()), @"a|▁|▁b");
}

#[test]
fn a_checkpoint_has_its_tokenizer_in_both_formats() {
    let open = |path: &str| {
        let checkpoint = Checkpoint::open(fixture("tiny-llama-unigram").join(path)).unwrap();
        checkpoint.tokenizer().unwrap().unwrap()
    };
    let (folder, file) = (open(""), open("model.gguf"));
    for text in ["She sells sea shells.", "今日は天気がいい。", "a🙂b"] {
        let ids = file.encode(text, true).unwrap();
        assert_eq!(ids, folder.encode(text, true).unwrap(), "{text:?}");
        assert_eq!((ids[0], file.decode(&ids, true).unwrap()), (1, text.to_owned()));
    }
}

#[test]
fn metadata_and_files_that_make_no_tokenizer_are_named() {
    let vocabulary = vocabulary("bare");
    let with = |key: &str, value| build(metadata(&vocabulary).set(key, value)).unwrap_err();
    let long = ["<unk>".to_owned(), "a".repeat(100_000)];
    let tokens = array_value(8, 2, long.iter().flat_map(|token| string(token)).collect::<Vec<_>>());
    let mut few = metadata(&vocabulary);
    few.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.scores", array(6, [[0; 4]; 2].into_iter()));
    few.set("tokenizer.ggml.token_type", array(5, [2_i32.to_le_bytes(), 1_i32.to_le_bytes()].into_iter()));
    assert_snapshot!(build(&few).unwrap_err(), @"token 1 has 100000 bytes, the limit is 2048");
    assert_snapshot!(with("tokenizer.ggml.scores", array(6, [[0; 4]].into_iter())), @"there are 1 token scores for 493 tokens");
    let map = |bytes: &[u8]| {
        with("tokenizer.ggml.precompiled_charsmap", array(0, bytes.iter().map(|byte| [*byte])))
    };
    assert_snapshot!(map(&[0; 3]), @"the precompiled map of characters is damaged: it has no length");
    assert_snapshot!(map(&[8, 0, 0, 0, 0, 0]), @"the precompiled map of characters is damaged: its length is not that of units in it");
    let mut json = vocabulary["tokenizer"].clone();
    json["model"]["vocab"][300][0] = "a".repeat(3000).into();
    let error = load(&json).unwrap_err();
    assert_snapshot!(error.split(" at line").next().unwrap(), @"cannot read the tokenizer FILE: token 300 has 3000 bytes, the limit is 2048");
    let mut json = vocabulary["tokenizer"].clone();
    json["normalizer"] = json!({ "type": "Precompiled", "precompiled_charsmap": "/////w==" });
    assert_snapshot!(load(&json).unwrap_err(), @"cannot read the tokenizer FILE: the precompiled map of characters is damaged: its length is not that of units in it");
}

proptest! {
    #![proptest_config(cases(200))]

    /// Maps of characters changed at random are refused or can be used.
    #[test]
    fn damaged_maps_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        text in "[ -~\u{FF00}-\u{FF60}é\u{301}㍱™…½aeio]{0,40}",
    ) {
        let vocabulary = vocabulary("bare");
        let mut map = charsmap(&vocabulary);
        for (at, byte) in edits {
            let at = at.index(map.len());
            map[at] = byte;
        }
        let mut json = vocabulary["tokenizer"].clone();
        json["normalizer"]["normalizers"][0]["precompiled_charsmap"] = BASE64_STANDARD.encode(map).into();
        if let Ok(tokenizer) = load(&json) {
            let ids = tokenizer.encode(&text, false).unwrap();
            tokenizer.decode(&ids, false).unwrap();
        }
    }
}
