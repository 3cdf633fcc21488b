//! A model that answers by scripts, so that agents have a real engine that calls their tools: its weights are a table of the
//! token that follows each token.
//!
//! Attention and MLP are zero, so a hidden state is the embedding of the last token, and the head names the next one with a
//! margin that no temperature in use overcomes. The chat template ends a prompt with the token that begins one of the scripts.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use pagoda::Model;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};

use crate::tiny::{added_token, byte_char, byte_level};

/// An answer, and when it is given: the first script that fits is the answer.
pub(crate) struct Script {
    /// Expression of Jinja of `names` (of the tools), `results` (texts of the tools' results) and `said` (the texts of all
    /// messages).
    pub(crate) when: String,
    pub(crate) answer: String,
}

/// Minimum number of bytes of a token of a script. Characters of several bytes are cut where it happens.
const PIECE: usize = 8;

/// Logit of the next token of a script, if those of all others are 0.
const MARGIN: f32 = 60.0;

const HEAD_DIM: usize = 16;
const INNER: usize = 64;

/// Tokens 0 to 255 are bytes.
const BYTES: usize = 256;
const CONTROL: [&str; 2] = ["<|im_end|>", "<|im_start|>"];
const END: usize = BYTES;

/// The conversation as ChatML, with tools first, so that a conversation that grows keeps its prefix.
const TEMPLATE: &str = r#"
{%- set said = messages | map(attribute="content") | join("\n") %}
{%- set results = messages | selectattr("role", "equalto", "tool") | map(attribute="content") | list %}
{%- set names = (tools or []) | map(attribute="function.name") | list %}
{%- if tools %}<|im_start|>tools
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
"#;

/// A model that answers by `scripts`, with room for `context` tokens.
pub(crate) fn scripted_model(scripts: &[Script], context: u32) -> Model {
    let folder = tempfile::tempdir().unwrap();
    Tokens::new(scripts).write(folder.path(), scripts, context);
    Model::open(folder.path()).unwrap()
}

/// The vocabulary: bytes, control tokens, the begin of each script, and the pieces of all.
struct Tokens {
    pieces: Vec<Vec<u8>>,
    /// The token after each one that is neither a byte nor of [`CONTROL`].
    next: Vec<usize>,
}

impl Tokens {
    /// The token that begins the first script.
    const FIRST: usize = BYTES + CONTROL.len();

    fn new(scripts: &[Script]) -> Self {
        let (mut known, mut pieces) = (HashSet::new(), Vec::new());
        let mut next = Vec::new();
        for script in scripts {
            next.push(Self::FIRST + scripts.len() + pieces.len());
            let cut = cut(script.answer.as_bytes(), &mut known);
            pieces.extend(cut.into_iter().map(|piece| (next.len() - 1, piece)));
        }
        let after = |(at, (script, _)): (usize, &(usize, Vec<u8>))| match pieces.get(at + 1) {
            Some((same, _)) if same == script => Self::FIRST + scripts.len() + at + 1,
            _ => END,
        };
        next.extend(pieces.iter().enumerate().map(after));
        Self { pieces: pieces.into_iter().map(|(_, piece)| piece).collect(), next }
    }

    fn write(&self, folder: &Path, scripts: &[Script], context: u32) {
        let write = |name: &str, value: Value| fs::write(folder.join(name), value.to_string()).unwrap();
        let (vocab, hidden) = (self.vocab(), self.hidden());
        write(
            "config.json",
            json!({
                "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
                "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": INNER, "num_hidden_layers": 1,
                "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": HEAD_DIM, "rms_norm_eps": 1e-6,
                "max_position_embeddings": context, "rope_theta": 1e4, "tie_word_embeddings": false, "eos_token_id": END,
            }),
        );
        let control: Vec<String> =
            CONTROL.map(str::to_owned).into_iter().chain((0..scripts.len()).map(begin)).collect();
        let text = |bytes: &[u8]| bytes.iter().copied().map(byte_char).collect::<String>();
        let bytes = (0..=u8::MAX).map(|byte| text(&[byte]));
        let pieces = self.pieces.iter().map(|piece| text(piece));
        let words: serde_json::Map<String, Value> =
            bytes.chain(control.iter().cloned()).chain(pieces).zip((0..vocab).map(Value::from)).collect();
        assert_eq!(words.len(), vocab, "a piece has one successor");
        let added = control.iter().zip(BYTES..).map(|(content, id)| added_token(id, content));
        write(
            "tokenizer.json",
            json!({
                "version": "1.0", "added_tokens": added.collect::<Vec<_>>(), "pre_tokenizer": byte_level(),
                "decoder": byte_level(), "model": { "type": "BPE", "vocab": words, "merges": [] },
            }),
        );
        let choice = |(at, script): (usize, &Script)| {
            format!("{{% {} {} %}}{}", if at == 0 { "if" } else { "elif" }, script.when, begin(at))
        };
        let choices: String = scripts.iter().enumerate().map(choice).collect();
        let template = format!(
            "{TEMPLATE}{choices}{{% else %}}{{{{ raise_exception(\"no script\") }}}}{{% endif %}}{{% endif %}}"
        );
        write("tokenizer_config.json", json!({ "eos_token": CONTROL[0], "chat_template": template }));
        self.write_weights(folder);
    }

    /// Number of tokens.
    fn vocab(&self) -> usize {
        Self::FIRST + self.next.len()
    }

    /// Width of the hidden state: an element for each token of a script, and the first one for all others.
    fn hidden(&self) -> usize {
        (1 + self.next.len()).next_multiple_of(64)
    }

    fn write_weights(&self, folder: &Path) {
        let (vocab, hidden) = (self.vocab(), self.hidden());
        let (mut embed, mut head) = (vec![0.0_f32; vocab * hidden], vec![0.0_f32; vocab * hidden]);
        // The norm before the head makes the one element that is not 0 the root of the width.
        let weight = MARGIN / f32::from(u16::try_from(hidden).unwrap()).sqrt();
        for token in 0..vocab {
            let element = (token + 1).saturating_sub(Self::FIRST);
            let next = token.checked_sub(Self::FIRST).map_or(END, |at| self.next[at]);
            embed[token * hidden + element] = 1.0;
            head[next * hidden + element] = weight;
        }
        let zeros = |rows: usize, columns: usize| (vec![rows, columns], vec![0.0; rows * columns]);
        let ones = || (vec![hidden], vec![1.0; hidden]);
        let layer = |name: &str| format!("model.layers.0.{name}.weight");
        let tensors = HashMap::from([
            ("model.embed_tokens.weight".to_owned(), (vec![vocab, hidden], embed)),
            ("lm_head.weight".to_owned(), (vec![vocab, hidden], head)),
            ("model.norm.weight".to_owned(), ones()),
            (layer("input_layernorm"), ones()),
            (layer("post_attention_layernorm"), ones()),
            (layer("self_attn.q_proj"), zeros(HEAD_DIM, hidden)),
            (layer("self_attn.k_proj"), zeros(HEAD_DIM, hidden)),
            (layer("self_attn.v_proj"), zeros(HEAD_DIM, hidden)),
            (layer("self_attn.o_proj"), zeros(hidden, HEAD_DIM)),
            (layer("mlp.gate_proj"), zeros(INNER, hidden)),
            (layer("mlp.up_proj"), zeros(INNER, hidden)),
            (layer("mlp.down_proj"), zeros(hidden, INNER)),
        ]);
        let bytes: HashMap<_, (_, Vec<u8>)> = tensors
            .into_iter()
            .map(|(name, (shape, values))| {
                (name, (shape, values.into_iter().flat_map(f32::to_le_bytes).collect()))
            })
            .collect();
        let views = bytes
            .iter()
            .map(|(name, (shape, bytes))| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
        fs::write(folder.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    }
}

/// The token that begins a script.
fn begin(script: usize) -> String {
    format!("<|script {script}|>")
}

/// Cuts an answer into pieces that no script has yet: a piece has one successor.
fn cut(answer: &[u8], known: &mut HashSet<Vec<u8>>) -> Vec<Vec<u8>> {
    let (mut pieces, mut piece) = (Vec::new(), Vec::new());
    for byte in answer {
        piece.push(*byte);
        if piece.len() >= PIECE && known.insert(piece.clone()) {
            pieces.push(std::mem::take(&mut piece));
        }
    }
    // The rest belongs to the last piece.
    while !piece.is_empty() {
        let rest = std::mem::replace(&mut piece, pieces.pop().unwrap_or_default());
        let is_whole = piece.is_empty();
        piece.extend(rest);
        if known.insert(piece.clone()) || is_whole {
            pieces.push(std::mem::take(&mut piece));
        }
    }
    pieces
}
