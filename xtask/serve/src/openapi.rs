//! `GET /openapi.json`: the routes, their fields and their replies, for people and programs that write clients.
//!
//! Routes and replies are in a file, which tests hold to the router and to what the server replies. The schemas of bodies are
//! those of the types that read them.

use std::sync::OnceLock;

use axum::body::Body as HttpBody;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::anthropic::request::MessagesBody;
use crate::fields::Body;
use crate::generate::{self, GenerateBody};
use crate::openai::chat::ChatBody;
use crate::openai::completions::CompletionBody;
use crate::openai::responses::ResponsesBody;
use crate::tokens::{DetokenizeFields, TokenizeBody};

/// The document without the schemas of bodies.
const ROUTES: &str = include_str!("openapi.json");

/// `GET /openapi.json`.
pub(crate) async fn document() -> Response {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    let text = DOCUMENT.get_or_init(|| whole().to_string());
    let mut response = Response::new(HttpBody::from(text.as_str()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The schema of each body, by the name that routes use, as what its types have in common.
fn bodies(generator: &mut SchemaGenerator) -> Vec<(&'static str, Vec<Schema>)> {
    vec![
        ("ChatRequest", ChatBody::schemas(generator)),
        ("CompletionRequest", CompletionBody::schemas(generator)),
        ("GenerateRequest", GenerateBody::schemas(generator)),
        ("ResponsesRequest", ResponsesBody::schemas(generator)),
        ("MessagesRequest", MessagesBody::schemas(generator)),
        ("TokenizeRequest", TokenizeBody::schemas(generator)),
        ("DetokenizeRequest", <(DetokenizeFields,)>::schemas(generator)),
    ]
}

fn whole() -> Value {
    let mut document: Value = serde_json::from_str(ROUTES).expect("the file is JSON");
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
    });
    let mut generator = settings.into_generator();
    let bodies = bodies(&mut generator);
    let components = document["components"]["schemas"].as_object_mut().expect("is an object");
    let mut add = |name: String, schema: Value| {
        let known = components.insert(name, schema);
        debug_assert!(known.is_none(), "two schemas have one name");
    };
    for (name, schema) in generator.take_definitions(true) {
        add(name, schema);
    }
    for (name, mut schemas) in bodies {
        if name == "GenerateRequest" {
            let inner = json!({ "anyOf": [{ "allOf": schemas }, { "type": "null" }] });
            let properties = Map::from_iter([(generate::PARAMS.to_owned(), inner)]);
            schemas.push(schemars::json_schema!({ "type": "object", "properties": properties }));
        }
        add(name.to_owned(), json!({ "allOf": schemas }));
    }
    document
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::routes;

    #[test]
    fn the_document_has_the_routes_of_the_router() {
        let document = whole();
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

    /// All references of a document.
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn references_lead_to_schemas_and_all_schemas_are_used() {
        let document = whole();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let names = schemas.keys().map(|name| format!("#/components/schemas/{name}"));
        assert_eq!(found, names.collect());
    }

    #[test]
    fn bodies_have_the_fields_of_their_types() {
        let document = whole();
        let schemas = &document["components"]["schemas"];
        let chat = &schemas["ChatRequest"]["allOf"];
        assert_eq!(chat.as_array().unwrap().len(), 4);
        let generation = &schemas["Generation"]["properties"];
        insta::assert_snapshot!(generation["top_p"], @r#"{"type":["number","null"],"format":"float","description":"Draw from the likeliest tokens whose probabilities sum to this; 0.95 without it and a recommendation.","minimum":0.0,"maximum":1.0}"#);
        insta::assert_snapshot!(generation["n"], @r#"{"type":["integer","null"],"format":"uint32","minimum":1,"description":"Number of answers to each prompt, which share its KV blocks."}"#);
        insta::assert_snapshot!(schemas["ChatMessage"]["required"], @r#"["role"]"#);
        insta::assert_snapshot!(schemas["Conversation"]["required"], @r#"["messages"]"#);
    }
}
