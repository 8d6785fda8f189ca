//! The Python client against the real service.

use crate::common::Service;
use std::{path::Path, process::Command};

#[test]
fn the_python_client_works_against_the_service() {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/python");
    if !Command::new("python3").arg("--version").output().is_ok_and(|ran| ran.status.success()) {
        eprintln!("SKIPPED: there is no python3");
        return;
    }
    let token = "a-token-for-the-python-client";
    for service in [Service::start(&[]), Service::start_locked(token, &[])] {
        let mut tests = Command::new("python3");
        tests.args(["-W", "error", "-m", "unittest", "discover", "tests"]).current_dir(&python);
        tests
            .env("LEASEHOLD_SERVER", &service.base)
            .env("LEASEHOLD_TOKEN", service.token.as_deref().unwrap_or_default());
        let ran = tests.env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
        let told = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success() && told.contains("Ran 25 tests"), "{told}");
    }
}
