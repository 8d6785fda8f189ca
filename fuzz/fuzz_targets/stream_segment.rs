#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| leasehold::stream_segment_fuzz(data));
