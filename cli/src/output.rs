//! Data goes to stdout, as a table or as JSON; everything else goes to stderr. Nothing else in the program prints.

use crate::{exit::Failure, view::Holder};
use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use std::{
    fmt::Display,
    io::{IsTerminal, Write, stderr, stdout},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// How data is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// For people
    #[default]
    Table,
    /// For programs: one object, or one array, or one object a line where it goes on
    Json,
}

/// Writes data. A reader that has gone away (`| head`) ends the program quietly.
pub(crate) fn print(text: impl Display) -> Result<(), Failure> {
    let mut stdout = stdout().lock();
    writeln!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        _ => Failure::failed(format!("cannot write to stdout: {error}")),
    })
}

/// One object: its JSON, or the lines of a small table of names and values.
pub(crate) fn object<T: Serialize>(format: Format, value: &T, rows: &[(&str, String)]) -> Result<(), Failure> {
    match format {
        Format::Json => json(value),
        Format::Table => {
            let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
            let lines: Vec<String> = rows.iter().map(|(name, value)| format!("{name:width$}  {value}")).collect();
            print(lines.join("\n"))
        }
    }
}

/// One JSON object, on a line of its own.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string(value);
    print(text.map_err(|error| Failure::failed(format!("cannot be written as JSON: {error}")))?)
}

/// A table without a frame, as wide as its content or the terminal.
pub(crate) fn table<const COLUMNS: usize>(
    header: [&str; COLUMNS],
    rows: impl IntoIterator<Item = [String; COLUMNS]>,
) -> Result<(), Failure> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header).add_rows(rows);
    if stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let text = table.to_string();
    print(text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n"))
}

/// Whether only errors are wanted on stderr.
static QUIET: AtomicBool = AtomicBool::new(false);

pub(crate) fn be_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Tells the user something that is not data.
pub(crate) fn say(text: impl Display) {
    if !QUIET.load(Ordering::Relaxed) {
        // With no stderr there is nobody to tell.
        let _ = writeln!(stderr(), "{text}");
    }
}

/// Whether errors are JSON as well.
static JSON_ERRORS: AtomicBool = AtomicBool::new(false);

pub(crate) fn write_errors_as(format: Format) {
    JSON_ERRORS.store(format == Format::Json, Ordering::Relaxed);
}

/// What went wrong, for programs: one object on a line of stderr.
#[derive(Serialize)]
struct Told<'a> {
    error: &'a str,
    /// Of the error that ends the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<u8>,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<&'a Holder>,
}

fn tell(told: &Told<'_>) {
    // With no stderr there is nobody to tell.
    let _ = match (JSON_ERRORS.load(Ordering::Relaxed), serde_json::to_string(told)) {
        (true, Ok(json)) => writeln!(stderr(), "{json}"),
        _ => writeln!(stderr(), "error: {}", told.message),
    };
}

/// Tells the user what went wrong.
pub(crate) fn complain(text: impl Display) {
    tell(&Told { error: "failed", exit_code: None, message: &text.to_string(), holder: None });
}

/// Tells the user why the program ends.
pub(crate) fn fail(failure: &Failure) {
    let Failure { code, kind, message, holder } = failure;
    tell(&Told { error: kind, exit_code: Some(*code), message, holder: holder.as_deref() });
}

/// A spinner with a message, on a terminal only.
pub(crate) fn spinner() -> ProgressBar {
    let bar = match stderr().is_terminal() && !QUIET.load(Ordering::Relaxed) {
        true => ProgressBar::new_spinner(),
        false => ProgressBar::hidden(),
    };
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}
