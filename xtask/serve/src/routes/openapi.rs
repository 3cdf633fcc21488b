//! `GET /openapi.json`: the routes, their fields and their replies, for people and programs that write clients. It is made from
//! the table of routes and from the types that read bodies and are written as replies.

use std::sync::OnceLock;

use axum::body::Body as HttpBody;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::{Route, routes};
use crate::error::ErrorBody;
use crate::fields::Body;

/// Description of the API as a whole.
const DESCRIPTION: &str = "The APIs of OpenAI and Anthropic, on one engine. A call may have fields that are not listed here if they \
    change nothing: the reply names them. Other fields get a 400 that names them. With API keys, all routes but /health ask for one.";

/// Makes the schema of a type.
type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// Description of a route.
pub(crate) struct Doc {
    id: &'static str,
    summary: &'static str,
    body: Option<BodyDoc>,
    /// Type of the media, and the schema of the reply.
    reply: (&'static str, SchemaOf),
    /// The schema of the events of a stream.
    event: Option<SchemaOf>,
    error: SchemaOf,
}

/// Description of the body of a call.
struct BodyDoc {
    name: &'static str,
    /// The schema of each type that reads the body.
    schemas: fn(&mut SchemaGenerator) -> Vec<Schema>,
    /// A field that may hold the other fields.
    nested: Option<&'static str>,
}

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

impl Doc {
    /// A route that replies with a `T` in JSON.
    pub(crate) fn new<T: JsonSchema>(id: &'static str, summary: &'static str) -> Self {
        let reply = ("application/json", schema_of::<T> as SchemaOf);
        Self { id, summary, body: None, reply, event: None, error: schema_of::<ErrorBody> }
    }

    /// A route that replies with a text.
    pub(crate) fn text(id: &'static str, summary: &'static str) -> Self {
        Self { reply: ("text/plain", schema_of::<String>), ..Self::new::<String>(id, summary) }
    }

    /// Sets the body, which the types of `B` read together. Its schema is called `name`.
    pub(crate) fn body<B: Body>(self, name: &'static str) -> Self {
        Self { body: Some(BodyDoc { name, schemas: B::schemas, nested: None }), ..self }
    }

    /// Names a field that may hold the other fields of the body.
    pub(crate) fn nested(self, field: &'static str) -> Self {
        Self { body: self.body.map(|body| BodyDoc { nested: Some(field), ..body }), ..self }
    }

    /// Streams of `E`.
    pub(crate) fn events<E: JsonSchema>(self) -> Self {
        Self { event: Some(schema_of::<E>), ..self }
    }

    /// Sets the form of errors; without it, errors have OpenAI's form.
    pub(crate) fn errors<E: JsonSchema>(self) -> Self {
        Self { error: schema_of::<E>, ..self }
    }
}

/// `GET /openapi.json`.
pub(crate) async fn document() -> Response {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    let text = DOCUMENT.get_or_init(|| whole().to_string());
    let mut response = Response::new(HttpBody::from(text.as_str()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Closes objects: a reply has no fields but those that its schema lists.
#[derive(Debug, Clone)]
struct Closed;

impl Transform for Closed {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        if schema.get("properties").is_some() && schema.get("additionalProperties").is_none() {
            schema.insert("additionalProperties".to_owned(), false.into());
        }
    }
}

/// The schemas that routes refer to. Types that are read and types that are written have separate schemas, because
/// different fields may be absent.
struct Schemas {
    read: SchemaGenerator,
    written: SchemaGenerator,
    bodies: Map<String, Value>,
}

impl Schemas {
    fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12()
                .with(|settings| settings.definitions_path = "/components/schemas".into())
        };
        Self {
            read: settings().into_generator(),
            written: settings().with_transform(Closed).for_serialize().into_generator(),
            bodies: Map::new(),
        }
    }

    fn content(&mut self, media: &str, schema: SchemaOf) -> (String, Value) {
        let mut schema = schema(&mut self.written);
        Closed.transform(&mut schema);
        (media.to_owned(), json!({ "schema": schema }))
    }

    fn body(&mut self, body: &BodyDoc) -> Value {
        let BodyDoc { name, schemas, nested } = *body;
        let mut schemas = schemas(&mut self.read);
        if let Some(nested) = nested {
            let inner = json!({ "anyOf": [{ "allOf": schemas }, { "type": "null" }] });
            let properties = Map::from_iter([(nested.to_owned(), inner)]);
            schemas.push(schemars::json_schema!({ "type": "object", "properties": properties }));
        }
        self.bodies.insert(name.to_owned(), json!({ "allOf": schemas }));
        let schema = json!({ "$ref": format!("#/components/schemas/{name}") });
        json!({ "required": true, "content": { "application/json": { "schema": schema } } })
    }

    fn operation(&mut self, Route { path, doc, .. }: &Route) -> Value {
        let mut operation = json!({ "operationId": doc.id, "summary": doc.summary });
        if let Some(body) = &doc.body {
            operation["requestBody"] = self.body(body);
        }
        if let Some((_, name)) = path.split_once("{*") {
            let name = name.trim_end_matches('}');
            operation["parameters"] =
                json!([{ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }]);
        }
        let (media, reply) = doc.reply;
        let mut content = Map::from_iter([self.content(media, reply)]);
        content.extend(doc.event.map(|event| self.content("text/event-stream", event)));
        let error = Map::from_iter([self.content("application/json", doc.error)]);
        operation["responses"] = json!({
            "200": { "description": "The answer.", "content": content },
            "default": { "description": "A refusal or a failure.", "content": error },
        });
        operation
    }

    /// All schemas by name.
    fn all(mut self) -> Map<String, Value> {
        let mut all = self.bodies;
        for (name, schema) in
            self.read.take_definitions(true).into_iter().chain(self.written.take_definitions(true))
        {
            let known = all.insert(name, schema);
            debug_assert!(known.is_none(), "two schemas have one name: {known:?}");
        }
        all
    }
}

fn whole() -> Value {
    let mut schemas = Schemas::new();
    let mut paths: Map<String, Value> = Map::new();
    for route in routes() {
        // Names of models may contain slashes, which a template of a path cannot say.
        let path = paths.entry(route.path.replace("{*", "{")).or_insert_with(|| json!({}));
        path[route.method.as_str().to_lowercase()] = schemas.operation(&route);
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Pagoda", "version": env!("CARGO_PKG_VERSION"), "description": DESCRIPTION },
        "paths": paths,
        "components": {
            "schemas": schemas.all(),
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "x-api-key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
            },
        },
        "security": [{}, { "bearer": [] }, { "x-api-key": [] }],
    })
}
