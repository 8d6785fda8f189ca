//! What shells and `man` want to know of the program.

use crate::{exit::Failure, output};
use clap::{Args, Command};
use clap_complete::Shell;

/// A word as a shell takes it for itself, whatever is in it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    if !word.chars().any(char::is_control) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    // What a terminal would act on, rather than show, is written by its number.
    let byte = |byte: u8| match byte {
        b' '..=b'~' if !matches!(byte, b'\'' | b'\\' | b'%') => char::from(byte).to_string(),
        _ => format!(r"\{byte:03o}"),
    };
    format!("\"$(printf '{}')\"", word.bytes().map(byte).collect::<String>())
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// For which shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self, mut program: Command) -> Result<u8, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program, "leasehold", &mut script);
        output::print(String::from_utf8_lossy(&script).trim_end())?;
        Ok(0)
    }
}

/// One page, with a section for every command.
pub(crate) fn man(program: Command) -> Result<u8, Failure> {
    let mut page = Vec::new();
    let written = (|| {
        let man = clap_mangen::Man::new(program.clone());
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
        for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
            commands(command, "leasehold", &mut page)?;
        }
        man.render_extra_section(&mut page)
    })();
    written.map_err(|error: std::io::Error| Failure::failed(format!("the manual cannot be written: {error}")))?;
    output::print(String::from_utf8_lossy(&page).trim_end())?;
    Ok(0)
}

fn commands(command: &Command, above: &str, page: &mut Vec<u8>) -> std::io::Result<()> {
    use std::io::Write;
    let name = format!("{above} {}", command.get_name());
    writeln!(page, ".SH \"{}\"", name.to_uppercase())?;
    let man = clap_mangen::Man::new(command.clone().bin_name(name.clone()));
    man.render_description_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_options_section(page)?;
    man.render_extra_section(page)?;
    for below in command.get_subcommands() {
        commands(below, &name, page)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_where_a_shell_would_see_more_in_it() {
        for (word, quote) in [
            ("orders/42", "orders/42"),
            ("", "''"),
            ("a b; rm", "'a b; rm'"),
            ("it's", r"'it'\''s'"),
            ("$HOME", "'$HOME'"),
            ("naïve", "'naïve'"),
            ("~", "'~'"),
            ("a\nb%'", "\"$(printf 'a\\012b\\045\\047')\""),
        ] {
            assert_eq!(quoted(word), quote);
        }
    }
}
