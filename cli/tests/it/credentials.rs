//! Credentials as the AWS command line keeps them: a profile's keys, and a program that prints some.

use crate::home::{Home, Ran};
use leasehold::SystemClock;
use leasehold_testkit::S3Server;
use std::{fs, process::Command, sync::Arc};

/// A server that knows one access key, and a user without any in the environment.
struct Office {
    runtime: tokio::runtime::Runtime,
    server: S3Server,
    home: Home,
}

impl Office {
    fn new(config: &str, credentials: &str) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let server = runtime.block_on(S3Server::start(Arc::new(SystemClock::new()))).unwrap();
        let home = Home::new();
        fs::create_dir(home.path(".aws")).unwrap();
        let filled = |text: &str| text.replace("KEY", S3Server::ACCESS_KEY_ID).replace("ENDPOINT", &server.endpoint());
        fs::write(home.path(".aws/config"), filled(config)).unwrap();
        fs::write(home.path(".aws/credentials"), filled(credentials)).unwrap();
        Self { runtime, server, home }
    }

    fn run(&self, url: &str, variables: &[(&str, &str)]) -> Ran {
        let _running = self.runtime.enter();
        let mut command = self.home.leasehold(&["--store", url, "lock", "x", "--", "echo", "mine"]);
        command.env("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "false").envs(variables.iter().copied());
        Ran::from(command.output().unwrap())
    }
}

const PLACE: &str = "region = us-east-1\nendpoint_url = ENDPOINT\n";

fn is_mine(ran: &Ran) {
    assert_eq!((ran.code, ran.out.as_str()), (0, "mine\n"), "{ran:?}");
}

#[test]
fn the_keys_of_a_profile_are_used() {
    let keys = "aws_access_key_id = KEY\naws_secret_access_key = not verified\n";
    let office = Office::new(
        &format!("# mine\n[default]\n{PLACE}\n[profile work]\n{PLACE}s3 =\n  region = none\n[profile other]\n{PLACE}"),
        &format!("[default]\n{keys}[work]\n{keys}[other]\naws_access_key_id = stranger\naws_secret_access_key = x\n"),
    );
    is_mine(&office.run("s3://bucket/p", &[]));
    is_mine(&office.run("s3://bucket/p", &[("AWS_PROFILE", "work")]));
    is_mine(&office.run("s3://bucket/p?profile=work", &[("AWS_PROFILE", "other")]));
    let stranger = office.run("s3://bucket/p", &[("AWS_PROFILE", "other")]);
    assert!(stranger.code == 125 && stranger.err.contains("InvalidAccessKeyId"), "{stranger:?}");
    // What the environment names goes before a profile, as everywhere.
    let named =
        [("AWS_PROFILE", "other"), ("AWS_ACCESS_KEY_ID", S3Server::ACCESS_KEY_ID), ("AWS_SECRET_ACCESS_KEY", "x")];
    let endpoint = office.server.endpoint();
    is_mine(&office.run("s3://bucket/p?region=us-east-1", &[&named[..], &[("AWS_ENDPOINT", &endpoint)]].concat()));
}

#[test]
fn a_program_that_prints_credentials_is_asked_once_for_as_long_as_they_last() {
    let office = Office::new(&format!("[profile sso]\n{PLACE}credential_process = sh ~/print\n"), "");
    let print = |expiration: &str| {
        let printed = format!(
            r#"{{"Version": 1, "AccessKeyId": "{}", "SecretAccessKey": "x", "SessionToken": "t"{expiration}}}"#,
            S3Server::ACCESS_KEY_ID
        );
        fs::write(office.home.path("print"), format!("echo asked >> asked\necho '{printed}'\n")).unwrap();
        let _ = fs::remove_file(office.home.path("asked"));
        is_mine(&office.run("s3://bucket/p", &[("AWS_PROFILE", "sso")]));
        fs::read_to_string(office.home.path("asked")).unwrap().lines().count()
    };
    // One for each of two clients would be two; every request needs some.
    assert_eq!(print(""), 1);
    assert_eq!(print(r#", "Expiration": "2999-01-01T00:00:00Z""#), 1);
    assert!(print(r#", "Expiration": "2001-01-01T00:00:00Z""#) > 1, "what has expired is asked for again");
}

#[test]
fn what_is_wrong_with_a_profile_is_said() {
    let office = Office::new(
        "[profile sso]\nsso_start_url = https://x\n[profile broken]\nregion = r\ncredential_process = echo no keys >&2; exit 3\n\
         [profile silent]\nregion = r\ncredential_process = echo hunter2\n",
        "",
    );
    for (profile, words) in [
        ("nobody", &["\"nobody\" is neither in", ".aws/config", "check AWS_PROFILE"][..]),
        ("sso", &["[profile sso-leasehold]", "aws configure export-credentials --profile sso --format process"]),
        ("broken", &["credential_process of the AWS profile \"broken\" failed", "no keys"]),
        ("silent", &["did not print credentials"]),
    ] {
        let ran = office.run("s3://bucket/p", &[("AWS_PROFILE", profile)]);
        assert_eq!(ran.code, 125, "{ran:?}");
        assert!(
            words.iter().all(|word| ran.err.contains(word)) && !ran.err.contains("hunter2"),
            "{profile}: {}",
            ran.err
        );
    }
}

/// A certificate authority of one's own, and a service with a certificate of it.
#[test]
fn a_service_with_a_private_certificate_is_trusted_by_name() {
    let home = Home::new();
    let openssl = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=ca \
                   -keyout ca.key -out ca.pem -addext basicConstraints=critical,CA:TRUE && \
                   openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=s -keyout s.key -out s.csr && \
                   printf 'subjectAltName=IP:127.0.0.1' > ext && \
                   openssl x509 -req -in s.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out s.pem";
    let made = home.shell(openssl).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let mut serve = home.leasehold(&["serve", "--listen", "127.0.0.1:0", "--tls-cert", "s.pem", "--tls-key", "s.key"]);
    let mut serve = serve.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = std::io::BufReader::new(serve.stdout.take().unwrap());
    let url = loop {
        let mut line = String::new();
        assert!(std::io::BufRead::read_line(&mut said, &mut line).unwrap() > 0, "it ended");
        if let Some(at) = line.find("https://127.0.0.1:") {
            let rest = &line[at..];
            break rest[..rest.find(|c: char| c.is_whitespace() || c == ',').unwrap_or(rest.len())]
                .trim_end_matches('/')
                .to_owned();
        }
    };
    let get = |more: &[&str]| home.run(&[&["--server", &url, "get", "x"], more].concat());
    let trusted = get(&["--ca", "ca.pem"]);
    let stranger = get(&[]);
    let missing = get(&["--ca", "nowhere.pem"]);
    fs::write(home.path("empty.pem"), "").unwrap();
    let empty = get(&["--ca", "empty.pem"]);
    assert!(Command::new("kill").arg(serve.id().to_string()).status().unwrap().success());
    serve.wait().unwrap();
    assert_eq!(trusted.code, 0, "{trusted:?}");
    assert_eq!(stranger.code, 5, "{stranger:?}");
    assert!(missing.code == 2 && missing.err.contains("nowhere.pem"), "{missing:?}");
    assert!(empty.code == 2 && empty.err.contains("no certificate"), "{empty:?}");
}
