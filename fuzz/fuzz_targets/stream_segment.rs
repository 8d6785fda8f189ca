#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| leasehold::internals::fuzz::stream_segment(data));
