//! The description of the service, for programs: made from the handlers, with what they have in common added once.

use super::{App, decisions, events, health, jobs, leases, overview, semaphores, sweeps};
use crate::wire::{Problem, millis};
use axum::{Json, extract::State};
use serde_json::{Value, json};
use utoipa::OpenApi;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "leasehold",
        description = "Leases, elections, transaction decisions and jobs on nothing but an object store"
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
        leases::force,
        semaphores::acquire,
        semaphores::renew,
        semaphores::release,
        semaphores::resize,
        semaphores::status,
        decisions::begin,
        decisions::read,
        decisions::decide,
        decisions::forget,
        jobs::enqueue,
        jobs::register,
        jobs::renew,
        jobs::leave,
        jobs::claim,
        jobs::finish,
        jobs::fail,
        jobs::snooze,
        jobs::give_up,
        jobs::status,
        jobs::job,
        jobs::cancel,
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

/// The description of this service, which says whether it asks for a token and how long leases may last in its store.
pub(super) async fn document(State(app): State<App>) -> Json<Value> {
    let mut document = describe(app.tokens.are_required());
    let (shortest, longest) = app.store.ttl_limits();
    for name in ["Acquire", "Renew", "Campaign", "AcquireSlot", "RenewSlot"] {
        let ttl = &mut document["components"]["schemas"][name]["properties"]["ttl_ms"];
        ttl["minimum"] = json!(millis(shortest));
        ttl["maximum"] = json!(millis(longest));
    }
    Json(document)
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
            if path.starts_with("/v1/") || path == "/metrics" {
                operation["security"] = match with_token {
                    true => json!([{ "token": [] }]),
                    // A client is made once, and may be used with a service that asks for one.
                    false => json!([{}, { "token": [] }]),
                };
            }
        }
    }
    // A key is named in one of two ways.
    for name in ["Acquire", "Renew", "Release", "Check", "ForceRelease"] {
        document["components"]["schemas"][name]["oneOf"] =
            json!([{ "required": ["key"] }, { "required": ["key_b64"] }]);
    }
    for path in ["/v1/sweep", "/v1/workers", "/v1/workers/{worker}/renew"] {
        document["paths"][path]["post"]["requestBody"]["required"] = json!(false);
    }
    for name in ["EndJobs", "FailJobs", "SnoozeJobs"] {
        document["components"]["schemas"][name]["properties"]["jobs"]["uniqueItems"] = json!(true);
    }
    let token =
        "One of the tokens in the file that the service was started with, which also says what each of them may do";
    document["components"]["securitySchemes"] =
        json!({ "token": { "type": "http", "scheme": "bearer", "description": token } });
    document
}

#[cfg(test)]
mod tests {
    use super::{super::rights, *};

    #[test]
    fn every_operation_says_how_it_fails_and_what_it_needs() {
        let document = describe(true);
        let paths = document["paths"].as_object().unwrap();
        assert_eq!(paths.len(), 37, "{:?}", paths.keys());
        for (path, item) in paths {
            for (method, operation) in item.as_object().unwrap() {
                assert!(operation["responses"]["default"].is_object(), "{method} {path}");
                for (status, response) in operation["responses"].as_object().unwrap() {
                    let described = response["description"].as_str().is_some_and(|text| !text.is_empty());
                    assert!(described, "{method} {path} {status}");
                }
                assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{method} {path}");
                assert_eq!(operation["security"].is_array(), path.starts_with("/v1/") || path == "/metrics");
            }
        }
    }

    #[test]
    fn every_operation_has_a_right_and_every_right_an_operation() {
        let document = describe(true);
        let (mut described, mut ids) = (Vec::new(), std::collections::HashSet::new());
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                assert!(
                    ids.insert(operation["operationId"].to_string()),
                    "{method} {path}: {}",
                    operation["operationId"]
                );
                if path.starts_with("/v1/") || path == "/metrics" {
                    described.push((method.to_uppercase(), path.clone()));
                }
            }
        }
        let mut known: Vec<(String, String)> =
            rights::NEEDS.iter().map(|(method, path, ..)| ((*method).to_owned(), (*path).to_owned())).collect();
        described.sort();
        known.sort();
        assert_eq!(described, known);
    }

    #[test]
    fn a_client_has_a_place_for_a_token_whether_or_not_it_is_needed() {
        for (with_token, security) in [(true, json!([{ "token": [] }])), (false, json!([{}, { "token": [] }]))] {
            let document = describe(with_token);
            let scheme = &document["components"]["securitySchemes"]["token"];
            assert_eq!((&scheme["type"], &scheme["scheme"]), (&json!("http"), &json!("bearer")));
            assert_eq!(document["paths"]["/v1/acquire"]["post"]["security"], security);
            assert!(document["paths"]["/livez"]["get"]["security"].is_null());
        }
    }

    #[test]
    fn a_request_with_a_field_too_many_is_no_request() {
        for name in ["Acquire", "Renew", "Release", "Check", "Campaign", "Decide", "Sweep"] {
            assert_eq!(describe(false)["components"]["schemas"][name]["additionalProperties"], json!(false), "{name}");
        }
    }
}
