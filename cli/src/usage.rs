//! A command line that cannot be understood.

use crate::{
    exit::{self, Failure},
    output::{self, Format},
};
use clap::error::ErrorKind;
use std::{ffi::OsString, process::ExitCode};

/// How errors are to be written, as far as that can be seen before the command line is understood.
pub(crate) fn format_asked_for(arguments: impl Iterator<Item = OsString>) -> Format {
    let mut arguments =
        arguments.map(|argument| argument.to_string_lossy().into_owned()).take_while(|text| text != "--");
    let variable = std::env::var("LEASEHOLD_OUTPUT").unwrap_or_default();
    let mut asked = variable.eq_ignore_ascii_case("json");
    while let Some(argument) = arguments.next() {
        let value = match argument.as_str() {
            "-o" | "--output" => arguments.next(),
            other => other.strip_prefix("--output=").or_else(|| other.strip_prefix("-o")).map(ToOwned::to_owned),
        };
        asked = value.map_or(asked, |value| value.trim_start_matches('=') == "json");
    }
    if asked { Format::Json } else { Format::Table }
}

/// Help goes to stdout; a mistake goes to stderr, as text or as JSON.
pub(crate) fn end(error: &clap::Error) -> ExitCode {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    let is_help = matches!(error.kind(), DisplayHelp | DisplayHelpOnMissingArgumentOrSubcommand | DisplayVersion);
    let json = format_asked_for(std::env::args_os()) == Format::Json;
    if is_help || !json {
        // With nobody to tell, the number is all there is.
        let _ = error.print();
        return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(exit::USAGE));
    }
    let text = error.render().to_string();
    let text = text.split("\n\nUsage:").next().unwrap_or_default().split("\n\nFor more").next().unwrap_or_default();
    let failure = Failure::usage(text.trim_start_matches("error: ").trim());
    output::fail(&failure);
    ExitCode::from(failure.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_asked_for_in_every_way_that_a_flag_can_be_written() {
        let asked = |words: &str| format_asked_for(words.split(' ').map(OsString::from)) == Format::Json;
        for words in ["x -o json get k", "x get k -ojson", "x --output json", "x --output=json", "x -o=json"] {
            assert!(asked(words), "{words}");
        }
        for words in ["x get json", "x -o table", "x lock k -- y -o json", "x --output-file json"] {
            assert!(!asked(words), "{words}");
        }
    }
}
