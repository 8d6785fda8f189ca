//! Jobs through the service: workers in any language, and what becomes of their jobs.

use crate::common::{Answer, Service, until};
use reqwest::Method;
use serde_json::{Value, json};
use std::{
    io::Read,
    time::{Duration, Instant},
};

impl Service {
    pub(crate) async fn enqueue(&self, queue: &str, args: &str) -> String {
        let answer = self.post(&format!("/v1/queues/{queue}/jobs"), json!({ "args": args })).await.granted();
        answer.body["ids"][0].as_str().unwrap().to_owned()
    }

    async fn enqueue_lines(&self, queue: &str, lines: &str, key: Option<&str>) -> Answer {
        let request = self.request(Method::POST, &format!("/v1/queues/{queue}/jobs"));
        let request = request.header("content-type", "application/x-ndjson").body(lines.to_owned());
        self.send(match key {
            Some(key) => request.header("idempotency-key", key),
            None => request,
        })
        .await
    }

    pub(crate) async fn worker(&self, name: &str, ttl_ms: u64) -> String {
        self.post("/v1/workers", json!({ "name": name, "ttl_ms": ttl_ms })).await.granted().text("worker")
    }

    pub(crate) async fn claim(&self, queue: &str, worker: &str, most: u32, wait_ms: u64) -> Vec<Value> {
        let body = json!({ "worker": worker, "most": most, "wait_ms": wait_ms });
        let answer = self.post(&format!("/v1/queues/{queue}/claim"), body).await.granted();
        answer.body["jobs"].as_array().unwrap().clone()
    }

    pub(crate) async fn end(&self, how: &str, queue: &str, worker: &str, jobs: &[Value]) -> Answer {
        let jobs: Vec<Value> = jobs.iter().map(|job| json!({ "id": job["id"], "fence": job["fence"] })).collect();
        let mut body = json!({ "worker": worker, "jobs": jobs });
        match how {
            "fail" => body["error"] = json!("no luck"),
            "snooze" => body["snooze_ms"] = json!(60_000),
            _ => {}
        }
        self.post(&format!("/v1/queues/{queue}/{how}"), body).await
    }

    async fn state(&self, queue: &str, id: &str) -> Value {
        self.get(&format!("/v1/queues/{queue}/jobs/{id}")).await.body
    }
}

#[tokio::test]
async fn a_job_is_enqueued_claimed_by_long_poll_and_finished() {
    let service = Service::start(&[]);
    let id = service.enqueue("mail", "to ann").await;
    let depth = service.get("/v1/queues/mail").await.granted();
    assert_eq!((&depth.body["available"], &depth.body["running"]), (&json!(1), &json!(0)), "{depth:?}");
    let worker = service.worker("mailer", 30_000).await;
    let jobs = service.claim("mail", &worker, 10, 5000).await;
    assert_eq!(jobs.len(), 1);
    let (job, fence) = (&jobs[0], jobs[0]["fence"].as_u64().unwrap());
    assert_eq!((&job["id"], &job["args"], &job["attempt"]), (&json!(id), &json!("to ann"), &json!(1)));
    let seen = service.state("mail", &id).await;
    assert_eq!((&seen["state"], &seen["worker"], &seen["fence"]), (&json!("running"), &json!("mailer"), &json!(fence)));
    let held = service.post(&format!("/v1/workers/{worker}/renew"), json!({})).await.granted();
    assert_eq!((&held.body["jobs"][0]["id"], &held.body["jobs"][0]["lost"]), (&json!(id), &json!(false)));
    let ended = service.end("finish", "mail", &worker, &jobs).await.granted();
    assert_eq!(ended.body["results"][0]["end"], "finished");
    // An answer that was lost on its way can be asked for again, and says the same.
    let again = service.end("finish", "mail", &worker, &jobs).await.granted();
    assert_eq!(again.body, ended.body);
    assert!(service.claim("mail", &worker, 10, 0).await.is_empty());
    // Another worker has nothing to say about it.
    let other = service.worker("other", 30_000).await;
    let refused = service.end("finish", "mail", &other, &jobs).await;
    assert_eq!((refused.status, refused.code()), (409, "stale_attempt"), "{refused:?}");
    assert_eq!(refused.body["results"][0]["state"], "gone");
}

#[tokio::test]
async fn many_jobs_come_line_by_line_and_a_repeat_enqueues_nothing_twice() {
    let service = Service::start(&[]);
    let lines: String = (0..2500).map(|n| format!("{{\"args\":\"{n}\",\"kind\":\"k\"}}\n")).collect();
    let first = service.enqueue_lines("bulk", &lines, Some("call-1")).await.granted();
    let again = service.enqueue_lines("bulk", &lines, Some("call-1")).await.granted();
    assert_eq!(first.body["ids"].as_array().unwrap().len(), 2500);
    assert_eq!(first.body, again.body);
    let worker = service.worker("w", 30_000).await;
    let mut args = Vec::new();
    loop {
        let jobs = service.claim("bulk", &worker, 1000, 0).await;
        if jobs.is_empty() {
            break;
        }
        args.extend(jobs.iter().map(|job| job["args"].as_str().unwrap().parse::<u32>().unwrap()));
        service.end("finish", "bulk", &worker, &jobs).await.granted();
    }
    args.sort_unstable();
    assert_eq!(args, (0..2500).collect::<Vec<u32>>());
    let wrong = service.enqueue_lines("bulk", "{\"args\":\"a\"}\n{\"argh\":1}\n", None).await;
    assert_eq!((wrong.status, wrong.code()), (400, "invalid_request"));
    assert!(wrong.text("detail").starts_with("line 2: "), "{wrong:?}");
    assert_eq!(service.get("/v1/queues/bulk").await.body["available"], 0, "nothing of a wrong request is taken");
}

#[tokio::test]
async fn one_who_waits_here_is_woken_by_an_enqueue_and_not_by_a_poll() {
    let service = Service::start(&[]);
    let worker = service.worker("w", 60_000).await;
    service.enqueue("q", "first").await;
    let first = service.claim("q", &worker, 1, 5000).await;
    service.end("finish", "q", &worker, &first).await.granted();
    let came = async {
        let jobs = service.claim("q", &worker, 1, 30_000).await;
        (jobs, Instant::now())
    };
    let sent = async {
        until("somebody waits", async || service.get("/v1/queues/q").await.body["waiting"] == 1).await;
        // By now the next poll of the store is seconds away.
        tokio::time::sleep(Duration::from_millis(3300)).await;
        let began = Instant::now();
        service.enqueue("q", "second").await;
        began
    };
    let ((jobs, came), sent) = tokio::join!(came, sent);
    assert_eq!(jobs[0]["args"], "second");
    assert!(came.duration_since(sent) < Duration::from_millis(1500), "{:?}", came.duration_since(sent));
}

#[tokio::test]
async fn failed_snoozed_and_released_jobs_run_again_as_their_queue_says() {
    let service = Service::start(&[]);
    let worker = service.worker("w", 30_000).await;
    for (how, end, state, attempts) in
        [("fail", "waits", "retrying", 1), ("snooze", "waits", "scheduled", 0), ("release", "waits", "available", 0)]
    {
        let id = service.enqueue(how, "x").await;
        let jobs = service.claim(how, &worker, 1, 5000).await;
        let ended = service.end(how, how, &worker, &jobs).await.granted();
        assert_eq!(ended.body["results"][0]["end"], end, "{how}: {ended:?}");
        let seen = service.state(how, &id).await;
        assert_eq!((&seen["state"], &seen["attempts"]), (&json!(state), &json!(attempts)), "{how}: {seen}");
    }
    let id = service.enqueue("hopeless", "x").await;
    let jobs = service.claim("hopeless", &worker, 1, 5000).await;
    let name = json!({ "id": id, "fence": jobs[0]["fence"] });
    let body = json!({ "worker": worker, "jobs": [name], "error": "never", "for_good": true });
    let dead = service.post("/v1/queues/hopeless/fail", body).await.granted();
    assert_eq!(dead.body["results"][0]["end"], "dead");
    // A job that waits is cancelled at once.
    let id = service.enqueue("gone", "x").await;
    let path = format!("/v1/queues/gone/jobs/{id}/cancel");
    let cancelled = service.post(&path, json!({})).await.granted();
    assert!(["done", "asked"].contains(&cancelled.body["cancelled"].as_str().unwrap()), "{cancelled:?}");
    assert!(service.claim("gone", &worker, 1, 0).await.is_empty());
}

#[tokio::test]
async fn a_worker_that_falls_silent_loses_its_jobs_and_its_late_finish_is_refused() {
    let service = Service::start(&[]);
    let (silent, other) = (service.worker("silent", 1000).await, service.worker("other", 60_000).await);
    let id = service.enqueue("q", "x").await;
    let jobs = service.claim("q", &silent, 1, 5000).await;
    until("its job has failed", async || service.state("q", &id).await["state"] != "running").await;
    let seen = service.state("q", &id).await;
    assert!(seen["last_error"].as_str().unwrap().contains("silent"), "{seen}");
    let gone = service.post(&format!("/v1/workers/{silent}/renew"), json!({})).await;
    assert_eq!((gone.status, gone.code()), (404, "unknown_worker"));
    let mut again = Vec::new();
    until("another one is given it", async || {
        again = service.claim("q", &other, 1, 2000).await;
        !again.is_empty()
    })
    .await;
    assert_eq!((&again[0]["id"], &again[0]["attempt"]), (&json!(id), &json!(2)));
    assert!(again[0]["fence"].as_u64() > jobs[0]["fence"].as_u64());
    let late = service.end("finish", "q", &silent, &jobs).await;
    assert_eq!((late.status, late.code()), (409, "stale_attempt"), "{late:?}");
    let told = &late.body["results"][0];
    assert_eq!((&told["state"], &told["by_fence"]), (&json!("running"), &again[0]["fence"]), "{told}");
    assert!(told["since_ms"].is_i64() && told["owner"].is_string(), "{told}");
    service.end("finish", "q", &other, &again).await.granted();
}

#[tokio::test]
async fn jobs_of_a_claim_that_its_worker_never_heard_of_go_back() {
    let service = Service::start(&[]);
    let worker = service.worker("w", 60_000).await;
    // The connection breaks while it waits.
    let body = json!({ "worker": worker, "most": 1, "wait_ms": 20_000 }).to_string();
    let head = format!("POST /v1/queues/q/claim HTTP/1.1\r\nhost: {}\r\n", service.address());
    let head = format!("{head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let mut gone = service.raw(&head);
    until("it waits", async || service.get("/v1/queues/q").await.body["waiting"] == 1).await;
    gone.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    drop(gone.read(&mut [0; 10]));
    drop(gone);
    let id = service.enqueue("q", "x").await;
    let mut jobs = Vec::new();
    until("it can be claimed", async || {
        jobs = service.claim("q", &worker, 1, 2000).await;
        !jobs.is_empty()
    })
    .await;
    assert_eq!((&jobs[0]["id"], &jobs[0]["attempt"]), (&json!(id), &json!(1)));
    // The answer is lost in the network: the worker's second renewal does not name the job.
    let renew = format!("/v1/workers/{worker}/renew");
    let has = json!({ "jobs": [] });
    assert_eq!(service.post(&renew, has.clone()).await.granted().body["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(service.post(&renew, has).await.granted().body["jobs"], json!([]));
    let again = service.claim("q", &worker, 1, 5000).await;
    assert_eq!((&again[0]["id"], &again[0]["attempt"]), (&json!(id), &json!(1)), "it used no attempt");
}

#[tokio::test]
async fn two_services_side_by_side_share_a_queue_and_a_restart_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = Service::start_on(folder.path(), &[]);
    let second = Service::start_on(folder.path(), &[]);
    let worker = first.worker("w", 30_000).await;
    let id = second.enqueue("q", "x").await;
    let jobs = first.claim("q", &worker, 1, 10_000).await;
    assert_eq!(jobs[0]["id"], json!(id));
    // The other one knows whose it is, and takes no answer for it.
    let strange = second.end("finish", "q", &worker, &jobs).await;
    assert_eq!((strange.status, strange.code()), (409, "stale_attempt"));
    assert_eq!(strange.body["results"][0]["state"], "running");
    first.kill();
    let anew = Service::start_on(folder.path(), &[]);
    let late = anew.end("finish", "q", &worker, &jobs).await;
    assert_eq!((late.status, late.code()), (409, "stale_attempt"));
    assert_eq!(late.body["results"][0]["by_fence"], jobs[0]["fence"], "nobody has taken it over yet");
    assert_eq!(anew.post(&format!("/v1/workers/{worker}/renew"), json!({})).await.code(), "unknown_worker");
}

#[tokio::test]
async fn stopping_lets_workers_answer_for_what_they_have() {
    let mut service = Service::start(&[]);
    let worker = service.worker("w", 30_000).await;
    service.enqueue("q", "x").await;
    let jobs = service.claim("q", &worker, 1, 5000).await;
    service.terminate();
    until("it drains", async || service.get("/readyz").await.status == 503).await;
    let body = json!({ "worker": worker, "wait_ms": 1000 });
    assert_eq!(service.post("/v1/queues/q/claim", body).await.code(), "draining");
    service.end("finish", "q", &worker, &jobs).await.granted();
    assert_eq!(service.exit_code(), Some(0));
}

#[tokio::test]
async fn wrong_requests_about_jobs_are_told_apart() {
    let service = Service::start(&[]);
    let worker = service.worker("w", 30_000).await;
    let long = "x".repeat(129);
    let id = "01890000-0000-7000-8000-000000000000";
    for (path, body, status, code) in [
        ("/v1/queues/q/jobs", json!({ "args": "a", "args_b64": "YQ==" }), 400, "invalid_request"),
        ("/v1/queues/q/jobs", json!({ "args_b64": "?" }), 400, "invalid_request"),
        ("/v1/queues/q/jobs", json!({ "kind": long }), 400, "invalid_request"),
        ("/v1/queues/q/jobs", json!({ "kind": "" }), 400, "invalid_request"),
        ("/v1/queues/q/jobs", json!({ "due_ms": 1, "due_in_ms": 1 }), 400, "invalid_request"),
        ("/v1/queues/q/jobs", json!({ "priority": 40_000 }), 400, "invalid_request"),
        ("/v1/queues/q/jobs", json!({ "max_attempts": 0 }), 400, "invalid_request"),
        ("/v1/queues/.q/jobs", json!({}), 400, "invalid_request"),
        ("/v1/queues/a%2Fb/jobs", json!({}), 400, "invalid_request"),
        ("/v1/queues/q/jobs?namespace=NO", json!({}), 400, "invalid_request"),
        ("/v1/queues/q/jobs?color=red", json!({}), 400, "invalid_request"),
        ("/v1/workers", json!({ "ttl_ms": 10 }), 400, "invalid_request"),
        ("/v1/queues/q/claim", json!({}), 400, "invalid_request"),
        ("/v1/queues/q/claim", json!({ "worker": worker, "most": 0 }), 400, "invalid_request"),
        ("/v1/queues/q/claim", json!({ "worker": worker, "most": 1001 }), 400, "invalid_request"),
        ("/v1/queues/q/claim", json!({ "worker": "nobody" }), 404, "unknown_worker"),
        ("/v1/queues/q/finish", json!({ "worker": worker, "jobs": [] }), 400, "invalid_request"),
        (
            "/v1/queues/q/finish",
            json!({ "worker": worker, "jobs": [{ "id": "x", "fence": 1 }] }),
            400,
            "invalid_request",
        ),
        (
            "/v1/queues/q/finish",
            json!({ "worker": worker, "jobs": [{ "id": id, "fence": 1.5 }] }),
            400,
            "invalid_request",
        ),
        (
            "/v1/queues/q/snooze",
            json!({ "worker": worker, "jobs": [{ "id": id, "fence": 1 }] }),
            400,
            "invalid_request",
        ),
        ("/v1/workers/nobody/renew", json!({}), 404, "unknown_worker"),
    ] {
        let answer = service.post(path, body.clone()).await;
        assert_eq!((answer.status, answer.code()), (status, code), "{path} {body}: {answer:?}");
    }
    let request = service.request(Method::POST, "/v1/queues/q/jobs").header("content-type", "text/plain");
    assert_eq!(service.send(request.body("x")).await.code(), "unsupported_media_type");
    let huge = service.request(Method::POST, "/v1/queues/q/jobs").header("content-type", "application/json");
    let huge = service.send(huge.body(format!("{{\"args\":\"{}\"}}", "x".repeat(17 << 20)))).await;
    assert_eq!((huge.status, huge.code()), (413, "body_too_large"));
    assert_eq!(service.get(&format!("/v1/queues/q/jobs/{id}")).await.status, 404);
}
