//! The description of the service, for programs: made from the handlers, with what they have in common added once.

use super::{App, decisions, events, health, leases, overview, sweeps};
use crate::wire::Problem;
use axum::{Json, extract::State};
use serde_json::{Value, json};
use utoipa::OpenApi;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "leasehold",
        description = "Leases, elections and transaction decisions on nothing but an object store"
    ),
    paths(
        leases::acquire,
        leases::renew,
        leases::release,
        leases::get,
        leases::list,
        leases::check,
        events::watch,
        leases::campaign,
        leases::resign,
        leases::leader,
        events::observe,
        decisions::begin,
        decisions::read,
        decisions::decide,
        decisions::forget,
        sweeps::status,
        sweeps::run,
        overview::overview,
        health::live,
        health::ready,
        health::metrics,
    ),
    components(schemas(Problem, crate::wire::TxnDecision))
)]
struct Description;

/// The description of this service: with a token if it has one.
pub(super) async fn document(State(app): State<App>) -> Json<Value> {
    Json(describe(app.tokens.are_required()))
}

fn describe(with_token: bool) -> Value {
    let mut document = serde_json::to_value(Description::openapi()).unwrap_or_default();
    let problem = json!({
        "description": "What went wrong; decide by its code",
        "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
    });
    let operations = document["paths"].as_object_mut().into_iter().flat_map(|paths| paths.iter_mut());
    for (path, item) in operations {
        for operation in item.as_object_mut().into_iter().flat_map(|item| item.values_mut()) {
            operation["responses"]["default"] = problem.clone();
            // What may be left out of a query is not `null` if it is there.
            let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
            for parameter in parameters.into_iter().flatten() {
                if let Some(kind) = parameter["schema"]["type"].as_array().and_then(|kinds| kinds.first()).cloned() {
                    parameter["schema"]["type"] = kind;
                }
            }
            if with_token && (path.starts_with("/v1/") || path == "/metrics") {
                operation["security"] = json!([{ "token": [] }]);
            }
        }
    }
    // A key is named in one of two ways.
    for name in ["Acquire", "Renew", "Release", "Check"] {
        document["components"]["schemas"][name]["oneOf"] =
            json!([{ "required": ["key"] }, { "required": ["key_b64"] }]);
    }
    document["paths"]["/v1/sweep"]["post"]["requestBody"]["required"] = json!(false);
    if with_token {
        document["components"]["securitySchemes"] = json!({ "token": { "type": "http", "scheme": "bearer" } });
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_says_how_it_fails_and_what_it_needs() {
        let document = describe(true);
        let paths = document["paths"].as_object().unwrap();
        assert_eq!(paths.len(), 19, "{:?}", paths.keys());
        for (path, item) in paths {
            for (method, operation) in item.as_object().unwrap() {
                assert!(operation["responses"]["default"].is_object(), "{method} {path}");
                assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{method} {path}");
                assert_eq!(operation["security"].is_array(), path.starts_with("/v1/") || path == "/metrics");
            }
        }
        assert!(describe(false)["components"]["securitySchemes"].is_null());
    }

    #[test]
    fn a_request_with_a_field_too_many_is_no_request() {
        for name in ["Acquire", "Renew", "Release", "Check", "Campaign", "Decide", "Sweep"] {
            assert_eq!(describe(false)["components"]["schemas"][name]["additionalProperties"], json!(false), "{name}");
        }
    }
}
