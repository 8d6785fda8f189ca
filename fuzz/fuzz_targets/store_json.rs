#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| leasehold::testkit::fuzz::store_json(data));
