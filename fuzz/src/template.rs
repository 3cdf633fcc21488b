//! Chat templates.

use std::sync::LazyLock;

use models::{ChatTemplate, Conversation};
use serde_json::json;

static TALK: LazyLock<Conversation> = LazyLock::new(|| Conversation {
    messages: vec![
        json!({ "role": "system", "content": "be" }),
        json!({ "role": "user", "content": "a text" }),
        json!({ "role": "assistant", "content": "an answer" }),
    ],
    ..Conversation::default()
});

/// Compiles a template, and renders a conversation of three messages.
pub fn run(bytes: &[u8]) -> bool {
    let Ok(template) = ChatTemplate::new(&String::from_utf8_lossy(bytes), "<s>", "</s>") else {
        return false;
    };
    template.render_conversation(&TALK).is_ok()
}
