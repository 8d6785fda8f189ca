#![no_main]

#[path = "../bodies.rs"]
mod bodies;
#[allow(dead_code, unused_imports, reason = "the answers are not for reading")]
#[path = "../../cli/src/wire.rs"]
mod wire;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::hold(data));
