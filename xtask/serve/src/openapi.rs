//! `GET /openapi.json`: the routes, their fields and their replies, for people and programs that write clients.
//!
//! The document is a file, because fields are taken from a body one by one and no type has them all. The tests here
//! hold it to the router and to what the calls take, those in `tests/http/openapi.rs` to the replies.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;

const DOCUMENT: &str = include_str!("openapi.json");

/// `GET /openapi.json`.
pub(crate) async fn document() -> Response {
    let mut response = Response::new(Body::from(DOCUMENT));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;
    use crate::anthropic::request::Messages;
    use crate::error::ApiError;
    use crate::fields::tests::KNOWN;
    use crate::openai::{chat::Chat, completions::Completion, responses};
    use crate::tokens::{Detokenize, Tokenize};
    use crate::{generate, routes};

    fn document() -> Value {
        serde_json::from_str(DOCUMENT).unwrap()
    }

    #[test]
    fn the_document_has_the_routes_of_the_router() {
        let document = document();
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        let methods = |(path, methods): (&String, &Value)| {
            let methods: Vec<String> = methods.as_object().unwrap().keys().cloned().collect();
            methods.into_iter().map(|method| format!("{method} {path}")).collect::<Vec<_>>()
        };
        let documented: BTreeSet<String> =
            document["paths"].as_object().unwrap().iter().flat_map(methods).collect();
        let served = routes().into_iter().map(|route| {
            // Names of models may contain slashes, which a template of a path cannot say.
            format!("{} {}", route.method.as_str().to_lowercase(), route.path.replace("{*", "{"))
        });
        assert_eq!(documented, served.collect());
    }

    /// The schema that a reference names, or the schema itself.
    fn resolve<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
        match schema["$ref"].as_str() {
            Some(name) => document.pointer(name.trim_start_matches('#')).expect(name),
            None => schema,
        }
    }

    /// The fields of a schema, and of all that it consists of.
    fn fields(document: &Value, schema: &Value) -> BTreeSet<String> {
        let schema = resolve(document, schema);
        let own = schema["properties"].as_object().into_iter().flat_map(|own| own.keys().cloned());
        let parts = schema["allOf"].as_array().into_iter().flatten();
        own.chain(parts.flat_map(|part| fields(document, part))).collect()
    }

    type Read = fn(&[u8]) -> Result<(), ApiError>;

    /// Returns the ways in which routes read their bodies, and bodies with all fields that they accept.
    fn readers() -> Vec<(&'static str, Read, Vec<Value>)> {
        let chat = || json!({ "messages": [{ "role": "user", "content": "a" }] });
        let message = || json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 1 });
        vec![
            ("/v1/chat/completions", |body| Chat::read(body).map(drop), vec![chat()]),
            ("/v1/chat/completions/render", |body| Chat::read(body).map(drop), vec![chat()]),
            ("/v1/completions", |body| Completion::read(body).map(drop), vec![json!({ "prompt": "a" })]),
            (
                "/v1/completions/render",
                |body| Completion::read(body).map(drop),
                vec![json!({ "prompt": "a" })],
            ),
            ("/v1/responses", |body| responses::Asked::read(body).map(drop), vec![json!({ "input": "a" })]),
            ("/v1/messages", |body| Messages::read(body, true).map(drop), vec![message()]),
            ("/v1/messages/count_tokens", |body| Messages::read(body, false).map(drop), vec![message()]),
            (
                "/inference/v1/generate",
                |body| generate::Asked::read(body).map(drop),
                vec![json!({ "token_ids": [1] })],
            ),
            ("/tokenize", |body| Tokenize::read(body).map(drop), vec![json!({ "prompt": "a" }), chat()]),
            ("/detokenize", |body| Detokenize::read(body).map(drop), vec![json!({ "tokens": [] })]),
        ]
    }

    #[test]
    fn the_document_has_the_fields_that_calls_take() {
        let document = document();
        for (path, read, bodies) in readers() {
            KNOWN.with_borrow_mut(BTreeSet::clear);
            bodies.iter().for_each(|body| read(body.to_string().as_bytes()).expect(path));
            let schema =
                &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
            assert_eq!(fields(&document, schema), KNOWN.with_borrow(Clone::clone), "{path}");
        }
        let with_body = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .filter(|(_, path)| !path["post"]["requestBody"].is_null());
        assert_eq!(with_body.count(), readers().len());
    }

    /// The fields that an object inside of a body may have, which the refusal of another one lists.
    fn inner_fields(read: Read, body: &Value) -> BTreeSet<String> {
        let error = read(body.to_string().as_bytes()).unwrap_err();
        let listed = error.message.split_once("expected ").expect(&error.message).1;
        listed.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_document_has_the_fields_of_inner_objects() {
        let document = document();
        let readers = readers();
        let check = |path: &str, name: &str, schema: &str, value: Value| {
            let (_, read, bodies) = readers.iter().find(|reader| reader.0 == path).unwrap();
            let mut body = bodies[0].clone();
            body[name] = value;
            let schema = document.pointer(&format!("/components/schemas/{schema}")).unwrap();
            assert_eq!(fields(&document, schema), inner_fields(*read, &body), "{name} of {path}");
        };
        let unknown = || json!({ "?": 1 });
        let chat = "/v1/chat/completions";
        check(chat, "messages", "ChatMessage", json!([unknown()]));
        check(chat, "messages", "TextPart", json!([{ "role": "user", "content": [unknown()] }]));
        check(chat, "stream_options", "StreamOptions", unknown());
        check(chat, "structured_outputs", "StructuredOutputs", unknown());
        check(chat, "tools", "Function", json!([{ "type": "function", "function": unknown() }]));
        let format = json!({ "type": "json_schema", "json_schema": unknown() });
        check(chat, "response_format", "NamedSchema", format);
        let calls = json!([{ "role": "assistant", "tool_calls": [unknown()] }]);
        check(chat, "messages", "ToolCall", calls);
        check("/v1/responses", "tools", "ResponsesTool", json!([unknown()]));
        check("/v1/messages", "messages", "AnthropicMessage", json!([unknown()]));
        check("/v1/messages", "tools", "AnthropicTool", json!([unknown()]));
    }
}
