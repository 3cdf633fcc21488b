//! Tokenizers other than the default model's, incremental decoding, and metadata that makes no tokenizer.

use checkpoint::{Gguf, Tokenizer};
use insta::assert_snapshot;
use proptest::prelude::*;

use super::{
    cases,
    gguf_writer::{GgufWriter, array_value, str_value, string, u32_value, value},
    smollm2::tokenizer,
};

fn strings(list: &[impl AsRef<str>]) -> Vec<u8> {
    array_value(8, list.len() as u64, list.iter().flat_map(|s| string(s.as_ref())).collect::<Vec<_>>())
}

/// The characters that byte-level BPE writes for the 256 bytes, in byte order.
fn byte_chars() -> Vec<char> {
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    (0..256)
        .map(|b| {
            if printable(b) {
                return char::from_u32(b).unwrap();
            }
            next += 1;
            char::from_u32(next - 1).unwrap()
        })
        .collect()
}

/// Ids 0 to 255 are bytes, then come merges, then control and user-defined tokens.
fn metadata(pre: &str, merges: &[&str], words: &[&str]) -> GgufWriter {
    let mut tokens: Vec<String> = byte_chars().iter().map(char::to_string).collect();
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    tokens.extend(words.iter().map(ToString::to_string));
    let mut types = vec![1_i32; tokens.len()];
    tokens.extend(["<s>".to_owned(), "<tool>".to_owned()]);
    types.extend([3, 4]);
    let mut writer = GgufWriter::empty();
    writer.set("tokenizer.ggml.model", str_value("gpt2"));
    writer.set("tokenizer.ggml.pre", str_value(pre));
    writer.set("tokenizer.ggml.tokens", strings(&tokens));
    writer.set("tokenizer.ggml.merges", strings(merges));
    let types: Vec<u8> = types.iter().flat_map(|n| n.to_le_bytes()).collect();
    writer.set("tokenizer.ggml.token_type", array_value(5, tokens.len() as u64, types));
    writer.set("tokenizer.ggml.bos_token_id", u32_value(u32::try_from(tokens.len() - 2).unwrap()));
    writer
}

fn build(writer: &GgufWriter) -> Result<Tokenizer, String> {
    Tokenizer::from_gguf(&Gguf::from_bytes(writer.bytes()).unwrap()).map_err(|error| error.to_string())
}

/// Draws the tokens of a text, with `|` between them.
fn cut(tokenizer: &Tokenizer, text: &str) -> String {
    let ids = tokenizer.encode(text, false).unwrap();
    ids.iter().map(|&id| tokenizer.token(id).unwrap()).collect::<Vec<_>>().join("|")
}

#[test]
fn pre_tokenizers_differ_in_digits_and_spaces() {
    let merges = ["1 2", "12 3", "123 4", "a b", "Ġ ab", "' S", "Ġ Ġ", "Ċ Ċ"];
    let cuts = |pre| {
        let tokenizer = build(&metadata(pre, &merges, &[])).unwrap();
        ["1234", "ab ab", "ab  ab", "x'S", "a\n\nb"].map(|text| cut(&tokenizer, text)).join("   ")
    };
    assert_snapshot!(cuts("gpt-2"), @"1234   ab|Ġab   ab|Ġ|Ġab   x|'|S   a|Ċ|Ċ|b");
    assert_snapshot!(cuts("smollm"), @"1|2|3|4   ab|Ġab   ab|Ġ|Ġab   x|'|S   a|Ċ|Ċ|b");
    assert_snapshot!(cuts("llama-bpe"), @"123|4   ab|Ġab   ab|Ġ|Ġab   x|'S   a|ĊĊ|b");
    assert_snapshot!(cuts("qwen2"), @"1|2|3|4   ab|Ġab   ab|Ġ|Ġab   x|'S   a|ĊĊ|b");
    // Names that llama.cpp gives to the same cuts.
    for (name, same) in [("refact", "smollm"), ("dbrx", "llama-bpe"), ("glm4", "llama-bpe")] {
        assert_eq!(cuts(name), cuts(same), "{name}");
    }
}

/// Bytes, then words with scores, a user-defined token and control tokens.
fn sentencepiece(words: &[(&str, f32)], prefix: bool) -> GgufWriter {
    let mut tokens: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut types = vec![6_i32; 256];
    let mut scores = vec![0.0_f32; 256];
    for (token, kind, score) in [("<unk>", 2, 0.0), ("<s>", 3, 0.0), ("  ", 4, -1000.0)] {
        tokens.push(token.into());
        types.push(kind);
        scores.push(score);
    }
    for (word, score) in words {
        tokens.push((*word).into());
        types.push(1);
        scores.push(*score);
    }
    let mut writer = GgufWriter::empty();
    writer.set("tokenizer.ggml.model", str_value("llama"));
    writer.set("tokenizer.ggml.tokens", strings(&tokens));
    let count = tokens.len() as u64;
    let types: Vec<u8> = types.iter().flat_map(|n| n.to_le_bytes()).collect();
    writer.set("tokenizer.ggml.token_type", array_value(5, count, types));
    let scores: Vec<u8> = scores.iter().flat_map(|n| n.to_le_bytes()).collect();
    writer.set("tokenizer.ggml.scores", array_value(6, count, scores));
    writer.set("tokenizer.ggml.bos_token_id", u32_value(257));
    writer.set("tokenizer.ggml.add_space_prefix", value(7, [u8::from(prefix)]));
    writer
}

#[test]
fn sentencepiece_merges_by_score_and_falls_back_to_bytes() {
    let words = [
        ("\u{2581}", -9.0),
        ("a", -8.0),
        ("b", -7.0),
        ("c", -6.0),
        ("ab", -2.0),
        ("bc", -1.0),
        ("\u{2581}a", -3.0),
    ];
    let tokenizer = build(&sentencepiece(&words, false)).unwrap();
    // `bc` has the higher score, so `ab` never forms before it.
    assert_snapshot!(cut(&tokenizer, "abc ab a  cé"), @"a|bc|▁|ab|▁a|  |c|<0xC3>|<0xA9>");
    let prefixed = build(&sentencepiece(&words, true)).unwrap();
    assert_snapshot!(cut(&prefixed, "abc a"), @"▁a|bc|▁a");
    // As in transformers and llama.cpp, text behind an added token begins with a blank like any other.
    assert_snapshot!(cut(&prefixed, "a  b"), @"▁a|  |▁|b");
    for (tokenizer, text) in [(&tokenizer, "abc  ab é\u{1F600}x"), (&prefixed, "abc ab é\u{1F600}x")] {
        let ids = tokenizer.encode(text, true).unwrap();
        assert_eq!(ids[0], 257);
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), text);
    }
    let mut short = sentencepiece(&words, false);
    short.set("tokenizer.ggml.scores", array_value(6, 1, 0.0_f32.to_le_bytes()));
    assert_snapshot!(build(&short).unwrap_err(), @"there are 1 token scores for 266 tokens");
}

#[test]
fn gpt_4o_cuts_where_words_begin_and_keeps_contractions() {
    let cuts = |pre| {
        let tokenizer = build(&metadata(pre, &["a B", "B a", "x '", "1 2", "12 3", "123 4"], &[])).unwrap();
        ["aB", "Ba", "x's", "1234"].map(|text| cut(&tokenizer, text)).join("   ")
    };
    assert_snapshot!(cuts("llama-bpe"), @"aB   Ba   x|'|s   123|4");
    assert_snapshot!(cuts("gpt-4o"), @"a|B   Ba   x'|s   123|4");
}

/// Cuts of Mistral and DeepSeek at digits, marks, lines and letters; those of the Python package `tokenizers` are the same.
#[test]
fn tekken_and_deepseek_cut_each_in_their_way() {
    let merges = [
        "1 2", "12 3", "123 4", "a B", "B a", "' s", "x 's", "( a", "Ġ a", "Ġ (", "Ċ Ċ", "a Ċ", ") Ċ", "! !",
    ];
    let cuts = |pre| {
        let tokenizer = build(&metadata(pre, &merges, &[])).unwrap();
        ["1234", "aB", "Ba", "x's", "(a", " (a", "a\n\nb", "a)\n", " a!!"]
            .map(|text| cut(&tokenizer, text))
            .join("   ")
    };
    assert_snapshot!(cuts("gpt-4o"), @"123|4   a|B   Ba   x's   (a   Ġ(|a   a|ĊĊ|b   a|)Ċ   Ġa|!!");
    assert_snapshot!(cuts("tekken"), @"1|2|3|4   a|B   Ba   x|'s   (a   Ġ(|a   a|ĊĊ|b   a|)Ċ   Ġa|!!");
    assert_snapshot!(cuts("deepseek-v3"), @"123|4   aB   Ba   x|'s   (a   Ġ(|a   a|ĊĊ|b   a|)Ċ   Ġa|!!");
    assert_snapshot!(cuts("deepseek-llm"), @"1|2|3|4   aB   Ba   x|'|s   (|a   Ġ(|a   a|Ċ|Ċ|b   a|)|Ċ   Ġa|!!");
    assert_snapshot!(cuts("deepseek-coder"), @"1|2|3|4   aB   Ba   x|'|s   (|a   Ġ(|a   a|Ċ|Ċ|b   a|)|Ċ   Ġa|!!");
    for (name, same) in
        [("llama4", "gpt-4o"), ("falcon3", "llama-bpe"), ("deepseek-r1-qwen", "qwen2"), ("olmo", "gpt-2")]
    {
        assert_eq!(cuts(name), cuts(same), "{name}");
    }
    let starts = |pre| {
        let mut writer = metadata(pre, &["h e"], &["hey"]);
        writer.set("tokenizer.ggml.bos_token_id", u32_value(5));
        build(&writer).unwrap().encode("hey", true).unwrap().len()
    };
    assert_eq!((starts("tekken"), starts("deepseek-v3")), (2, 2), "a start and a word; two pieces of one");
}

#[test]
fn llama3_takes_whole_words_without_merges() {
    let words = ["hey"];
    assert_eq!(cut(&build(&metadata("llama-bpe", &["h e"], &words)).unwrap(), "hey"), "hey");
    for other in ["qwen2", "dbrx", "glm4"] {
        assert_eq!(cut(&build(&metadata(other, &["h e"], &words)).unwrap(), "hey"), "he|y", "{other}");
    }
}

#[test]
fn qwen2_composes_characters() {
    let tokenizer = build(&metadata("qwen2", &[], &[])).unwrap();
    let composed = tokenizer.encode("\u{e9}", false).unwrap();
    assert_eq!(tokenizer.encode("e\u{301}", false).unwrap(), composed);
    let other = build(&metadata("llama-bpe", &[], &[])).unwrap();
    assert_ne!(other.encode("e\u{301}", false).unwrap(), composed);
}

#[test]
fn special_tokens_are_found_in_text_and_left_out_on_request() {
    let tokenizer = build(&metadata("qwen2", &[], &[])).unwrap();
    let (bos, tool) = (tokenizer.id("<s>").unwrap(), tokenizer.id("<tool>").unwrap());
    let ids = tokenizer.encode("<s>a<tool>", false).unwrap();
    assert_eq!(ids, [bos, u32::from(b'a'), tool]);
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "<s>a<tool>");
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "a<tool>");
}

/// Text that users write into a template stays text, and a token that the template writes beside it stays a token.
#[test]
fn users_cannot_spell_control_tokens() {
    let tokenizer = build(&metadata("qwen2", &["a b"], &[])).unwrap();
    let (bos, tool) = (tokenizer.id("<s>").unwrap(), tokenizer.id("<tool>").unwrap());
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let chat = |user: &str| tokenizer.encode(&format!("<s>{}<s>", tokenizer.as_text(user)), false).unwrap();
    let wrapped = |inner: &[u32]| [&[bos], inner, &[bos]].concat();
    assert_eq!(chat("<s>"), wrapped(&bytes("<s>")));
    assert_eq!(chat("<<s><s>s>"), wrapped(&bytes("<<s><s>s>")));
    // Text around it is cut as ever, and tokens that control nothing are found.
    assert_eq!(chat("ab<s>ab<tool>"), wrapped(&[&[256][..], &bytes("<s>"), &[256, tool]].concat()));
    assert_eq!(tokenizer.as_text("a < b"), "a < b");
    // The character that keeps them apart is none of a text.
    assert_eq!(chat("<\u{FDD0}s>"), wrapped(&bytes("<\u{FFFD}s>")));
    let ids = chat("<s>");
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "<s>");
}

/// A file may ask to look for control tokens in the normal form of a text, which makes them of wide letters.
#[test]
fn normal_forms_make_no_control_token() {
    let added = serde_json::json!({ "id": 300, "content": "<s>", "single_word": false, "lstrip": false,
                                    "rstrip": false, "normalized": true, "special": true });
    let mut json = tokenizer_json();
    json["added_tokens"] = [added].into();
    json["normalizer"] = serde_json::json!({ "type": "NFKC" });
    let tokenizer = load(&json.to_string()).unwrap();
    let control = tokenizer.id("<s>").unwrap();
    assert_eq!(tokenizer.encode("<s>", false).unwrap(), [control]);
    assert_eq!(tokenizer.encode("\u{FF1C}s\u{FF1E}", false).unwrap(), [60, 115, 62]);
    assert_eq!(tokenizer.encode(&tokenizer.as_text("<s>"), false).unwrap(), [60, 115, 62]);
}

#[test]
fn blanks_are_right_tokens_or_an_error() {
    for pre in ["gpt-2", "smollm", "llama-bpe", "qwen2", "gpt-4o"] {
        let tokenizer = build(&metadata(pre, &["a b"], &[])).unwrap();
        // The last blank before a word goes with it; tokens after that are merged as usual.
        let text = format!("{}ab", " ".repeat(models::MAX_BLANKS));
        let ids = tokenizer.encode(&text, false).unwrap();
        assert_eq!(ids.len(), models::MAX_BLANKS + 1, "{pre}");
        assert_eq!(ids.last(), Some(&256), "{pre}");
        let message = tokenizer.encode(&format!(" {text}"), false).unwrap_err().to_string();
        assert_eq!(message, "the text has 900001 blanks in a row, the limit is 900000");
    }
}

#[test]
fn a_start_token_is_added_where_the_model_expects_one() {
    let encode = |writer: &GgufWriter, special| build(writer).unwrap().encode("a", special).unwrap();
    let mut llama = metadata("llama-bpe", &[], &[]);
    assert_eq!(encode(&llama, true), [256, 97]);
    assert_eq!(encode(&llama, false), [97]);
    llama.set("tokenizer.ggml.add_bos_token", value(7, [0]));
    assert_eq!(encode(&llama, true), [97]);
    let mut qwen = metadata("qwen2", &[], &[]);
    assert_eq!(encode(&qwen, true), [97]);
    qwen.set("tokenizer.ggml.add_eos_token", value(7, [1]))
        .set("tokenizer.ggml.eos_token_id", u32_value(257));
    assert_eq!(encode(&qwen, true), [97, 257]);
}

#[test]
fn metadata_that_makes_no_tokenizer_is_named() {
    let with = |key: &str, value| build(metadata("qwen2", &["a b"], &[]).set(key, value)).unwrap_err();
    assert_snapshot!(with("tokenizer.ggml.model", str_value("bert")), @r#"tokenizer.ggml.model "bert" is not implemented (implemented: gpt2, llama, t5)"#);
    assert_snapshot!(with("tokenizer.ggml.pre", str_value("viking")), @r#"tokenizer.ggml.pre "viking" is not implemented (implemented: gpt-2, olmo, smollm, refact, llama-bpe, falcon3, dbrx, smaug-bpe, glm4, chatglm-bpe, qwen2, deepseek-r1-qwen, megrez, gpt-4o, llama4, tekken, deepseek-llm, deepseek-coder, deepseek-v3)"#);
    assert_snapshot!(with("tokenizer.ggml.tokens", strings(&["a", "b", "a"])), @r#"tokens 0 and 2 are both "a""#);
    assert_snapshot!(with("tokenizer.ggml.token_type", array_value(5, 1, [0; 4])), @"there are 1 token types for 259 tokens");
    assert_snapshot!(with("tokenizer.ggml.merges", strings(&["a b", "ab"])), @r#"merge 1 is "ab", not two tokens with a space between"#);
    assert_snapshot!(with("tokenizer.ggml.merges", strings(&["a b", "b a"])), @"vocabulary and merges do not make a tokenizer: Token `ba` out of vocabulary");
    assert_snapshot!(with("tokenizer.ggml.merges", u32_value(1)), @"metadata tokenizer.ggml.merges is 1, not a value of type array of strings");
    assert_snapshot!(build(&GgufWriter::empty()).unwrap_err(), @"metadata tokenizer.ggml.model is missing");
    let mut bos = metadata("llama-bpe", &[], &[]);
    assert_snapshot!(build(bos.set("tokenizer.ggml.bos_token_id", u32_value(999))).unwrap_err(), @"tokenizer.ggml.bos_token_id is 999, but there are 258 tokens");
}

/// Bytes alone.
fn tokenizer_json() -> serde_json::Value {
    let vocab: serde_json::Map<_, _> =
        byte_chars().iter().enumerate().map(|(id, c)| (c.to_string(), id.into())).collect();
    serde_json::json!({
        "version": "1.0",
        "truncation": { "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0 },
        "padding": { "strategy": { "Fixed": 9 }, "direction": "Right", "pad_to_multiple_of": null,
                     "pad_id": 0, "pad_type_id": 0, "pad_token": "!" },
        "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                   "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                   "vocab": vocab, "merges": [] },
    })
}

/// The tokenizer of a file with this text.
fn load(json: &str) -> Result<Tokenizer, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    std::fs::write(&path, json).unwrap();
    let shown =
        |error: models::TokenizerError| error.to_string().replace(&path.display().to_string(), "FILE");
    Tokenizer::from_file(&path).map_err(shown)
}

#[test]
fn tokenizer_json_is_read_and_its_truncation_ignored() {
    let tokenizer = load(&tokenizer_json().to_string()).unwrap();
    assert_eq!(tokenizer.encode("abcd", true).unwrap(), [97, 98, 99, 100]);
}

#[test]
fn broken_tokenizer_json_is_an_error() {
    let whole = tokenizer_json().to_string();
    for end in (0..whole.len()).step_by(7).filter(|end| whole.is_char_boundary(*end)) {
        assert!(load(&whole[..end]).is_err(), "cut at {end} of {}", whole.len());
    }
    assert_snapshot!(load("{").unwrap_err(), @"cannot read the tokenizer FILE: EOF while parsing an object at line 1 column 1");
    let mut json = tokenizer_json();
    let template = |name: &str| {
        serde_json::json!({
            "type": "TemplateProcessing", "pair": [], "special_tokens": { "<a>": { "id": "<a>", "ids": [1], "tokens": ["<a>"] } },
            "single": [{ "SpecialToken": { "id": name, "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
        })
    };
    json["post_processor"] = template("<a>");
    assert_eq!(load(&json.to_string()).unwrap().encode("b", true).unwrap(), [1, 98]);
    json["post_processor"] = template("<b>");
    assert_snapshot!(load(&json.to_string()).unwrap_err(), @r#"cannot read the tokenizer FILE: its template "single" names token "<b>", which it does not define"#);
    json["post_processor"] = serde_json::json!({ "type": "Sequence", "processors": [template("<b>")] });
    assert!(load(&json.to_string()).is_err());
}

/// The pieces of a stream.
fn stream(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> Vec<String> {
    let mut stream = tokenizer.stream(skip_special);
    let mut pieces: Vec<_> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    pieces.push(stream.finish().unwrap());
    pieces
}

#[test]
fn a_stream_holds_back_half_characters() {
    let tokenizer = build(&metadata("qwen2", &[], &[])).unwrap();
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    assert_eq!(stream(&tokenizer, &bytes("é🚀"), false), ["", "é", "", "", "", "🚀", ""]);
    assert_eq!(stream(&tokenizer, &[0xf0, 0x9f], false), ["", "", "\u{FFFD}"]);
    assert_eq!(stream(&tokenizer, &[0xff, 0x61], false), ["", "\u{FFFD}a", ""]);
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn any_text_comes_back(text in "\\PC{0,60}|[ \\t\\n0-9a-zA-Z'é]{0,60}") {
        let ids = tokenizer().encode(&text, false).unwrap();
        prop_assert_eq!(tokenizer().decode(&ids, false).unwrap(), text);
    }

    #[test]
    fn stream_pieces_join_to_the_whole_text(
        ids in prop::collection::vec(prop_oneof![0_u32..49152, 17_u32..300], 0..40), skip_special: bool
    ) {
        let pieces = stream(tokenizer(), &ids, skip_special);
        prop_assert_eq!(pieces.concat(), tokenizer().decode(&ids, skip_special).unwrap());
    }

    #[test]
    fn streams_of_text_never_show_a_replacement(text in "\\PC{0,30}") {
        prop_assume!(!text.contains('\u{FFFD}'));
        let ids: Vec<_> = text.bytes().map(u32::from).collect();
        let tokenizer = build(&metadata("qwen2", &[], &[])).unwrap();
        let pieces = stream(&tokenizer, &ids, false);
        prop_assert!(pieces.iter().all(|piece| !piece.contains('\u{FFFD}')), "{pieces:?}");
        prop_assert_eq!(pieces.concat(), text);
    }
    #[test]
    fn mutated_metadata_never_panics(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)
    ) {
        let mut bytes = metadata("llama-bpe", &["a b", "ab c"], &["word"]).bytes();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(file) = Gguf::from_bytes(bytes)
            && let Ok(tokenizer) = Tokenizer::from_gguf(&file)
        {
            let ids = tokenizer.encode("<s>abc word 12", true).unwrap();
            tokenizer.decode(&ids, false).unwrap();
        }
    }
}
