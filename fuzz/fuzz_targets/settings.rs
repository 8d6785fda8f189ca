#![no_main]

use leasehold::internals::fuzz;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fuzz::settings(data);
    if let Some(settings) = std::str::from_utf8(data).ok().and_then(|text| toml::from_str(text).ok()) {
        fuzz::settings_hold(&settings);
    }
});
