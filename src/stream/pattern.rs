//! Patterns over dotted names: `*` is one word, `>` is the rest. Which settings a stream has goes by them.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A pattern such as `events.audit.*` or `jobs.>`.
///
/// Words are separated by dots. `*` stands for exactly one word, `>` for one or more words and only at the end.
///
/// ```
/// use leasehold::stream::Pattern;
///
/// let audit: Pattern = "events.audit.*".parse()?;
/// assert!(audit.matches("events.audit.login"));
/// assert!(!audit.matches("events.audit"));
/// assert!(!audit.matches("events.audit.login.failed"));
/// assert!("events.>".parse::<Pattern>()?.matches("events.audit.login.failed"));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern {
    words: Vec<Word>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Word {
    Literal(String),
    Any,
    Rest,
}

impl Pattern {
    /// Whether a name fits.
    pub fn matches(&self, name: &str) -> bool {
        let mut names = name.split('.');
        for word in &self.words {
            match (word, names.next()) {
                (_, None) => return false,
                (Word::Rest, Some(_)) => return true,
                (Word::Literal(literal), Some(name)) if literal != name => return false,
                (Word::Literal(_) | Word::Any, Some(_)) => {}
            }
        }
        names.next().is_none()
    }

    /// More literal words win, then more words that are fixed in number.
    fn rank(&self) -> (usize, usize) {
        let literals = self.words.iter().filter(|word| matches!(word, Word::Literal(_))).count();
        let rests = self.words.iter().filter(|word| **word == Word::Rest).count();
        (literals, self.words.len() - rests)
    }

    /// Whether some name fits both.
    fn overlaps(&self, other: &Self) -> bool {
        let (mut ours, mut theirs) = (self.words.iter(), other.words.iter());
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) | (Some(Word::Rest), Some(_)) | (Some(_), Some(Word::Rest)) => return true,
                (None, Some(_)) | (Some(_), None) => return false,
                (Some(Word::Literal(one)), Some(Word::Literal(other))) if one != other => return false,
                (Some(_), Some(_)) => {}
            }
        }
    }
}

impl FromStr for Pattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::invalid(format!(
                "{text:?} is no pattern: {why}; words are separated by dots, * is one word, > the rest"
            ))
        };
        let count = text.split('.').count();
        let mut words = Vec::with_capacity(count);
        for (at, word) in text.split('.').enumerate() {
            words.push(match word {
                "" => return Err(wrong("a word is empty")),
                "*" => Word::Any,
                ">" if at + 1 == count => Word::Rest,
                ">" => return Err(wrong("> is only allowed at the end")),
                literal if literal.contains(['*', '>']) => return Err(wrong("* and > stand for whole words")),
                literal => Word::Literal(literal.to_owned()),
            });
        }
        Ok(Self { words })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, word) in self.words.iter().enumerate() {
            f.write_str(if at > 0 { "." } else { "" })?;
            f.write_str(match word {
                Word::Literal(literal) => literal,
                Word::Any => "*",
                Word::Rest => ">",
            })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for Pattern {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.to_string()
    }
}

/// Values by pattern, of which at most one is the best for any name.
///
/// The pattern with more literal words wins, then the one with more words; two that would tie for some name are refused.
///
/// ```
/// use leasehold::stream::Patterns;
///
/// let days = Patterns::new([("events.>".parse()?, 30), ("events.audit.*".parse()?, 7)])?;
/// assert_eq!(days.best("events.audit.login"), Some(&7));
/// assert_eq!(days.best("events.task"), Some(&30));
/// assert_eq!(days.best("jobs"), None);
/// let tie = Patterns::new([("events.*.login".parse()?, 1), ("events.audit.*".parse()?, 2)]);
/// assert!(tie.is_err(), "events.audit.login would fit both equally well");
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Patterns<T> {
    /// The better ones first.
    by_rank: Vec<(Pattern, T)>,
}

impl<T> Patterns<T> {
    /// Refuses two patterns that are equally good for a name.
    pub fn new(patterns: impl IntoIterator<Item = (Pattern, T)>) -> Result<Self> {
        let mut by_rank: Vec<(Pattern, T)> = patterns.into_iter().collect();
        by_rank.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.rank()));
        for (at, (one, _)) in by_rank.iter().enumerate() {
            let tie = by_rank[at + 1..].iter().find(|(other, _)| one.rank() == other.rank() && one.overlaps(other));
            if let Some((other, _)) = tie {
                return Err(Error::config(format!(
                    "the patterns {one} and {other} are equally good for some name: make one of them more exact"
                )));
            }
        }
        Ok(Self { by_rank })
    }

    /// The value of the best pattern that a name fits.
    pub fn best(&self, name: &str) -> Option<&T> {
        self.by_rank.iter().find_map(|(pattern, value)| pattern.matches(name).then_some(value))
    }

    /// All of them, the better ones first.
    pub fn iter(&self) -> impl Iterator<Item = (&Pattern, &T)> {
        self.by_rank.iter().map(|(pattern, value)| (pattern, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap()
    }

    #[test]
    fn a_star_is_one_word_and_an_arrow_one_or_more() {
        for (text, name, fits) in [
            ("a", "a", true),
            ("a", "a.b", false),
            ("a.*", "a", false),
            ("a.*", "a.b", true),
            ("a.*", "a.b.c", false),
            ("*.b", "a.b", true),
            ("a.>", "a", false),
            ("a.>", "a.b", true),
            ("a.>", "a.b.c", true),
            (">", "a", true),
        ] {
            assert_eq!(pattern(text).matches(name), fits, "{text} {name}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for text in ["", ".", "a..b", "a.>.b", "a*", "a.b>", "a."] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn nine_patterns_of_one_system_have_one_best_each() {
        let texts = [
            "gbe.tasks.*.queue",
            "gbe.tasks.*.progress",
            "gbe.tasks.*.terminal",
            "gbe.state.*",
            "gbe.events.audit.*",
            "gbe.events.system.error",
            "gbe.events.system.*",
            "gbe.events.archive.*",
            "gbe.>",
        ];
        let patterns = Patterns::new(texts.iter().map(|text| (pattern(text), *text))).unwrap();
        for (name, best) in [
            ("gbe.tasks.mail.queue", "gbe.tasks.*.queue"),
            ("gbe.events.audit.login", "gbe.events.audit.*"),
            ("gbe.events.system.error", "gbe.events.system.error"),
            ("gbe.events.system.sweep", "gbe.events.system.*"),
            ("gbe.other", "gbe.>"),
        ] {
            assert_eq!(patterns.best(name), Some(&best), "{name}");
        }
    }

    #[test]
    fn a_tie_is_refused_and_names_both() {
        let tie = Patterns::new([(pattern("a.*.c"), 1), (pattern("*.b.c"), 2)]).unwrap_err().to_string();
        assert!(tie.contains("a.*.c") && tie.contains("*.b.c"), "{tie}");
        assert!(Patterns::new([(pattern("a.*"), 1), (pattern("a.>"), 2)]).is_ok(), "the longer one wins");
        assert!(Patterns::new([(pattern("a.*"), 1), (pattern("b.*"), 2)]).is_ok(), "no name fits both");
        assert!(Patterns::new([(pattern("a"), 1), (pattern("a"), 2)]).is_err());
    }

    proptest! {
        #[test]
        fn patterns_that_are_taken_never_tie(
            texts in prop::collection::vec("[ab*](\\.[ab*]){0,2}(\\.>)?", 1..6),
            name in "[ab](\\.[ab]){0,4}",
        ) {
            let given: Vec<Pattern> = texts.iter().map(|text| pattern(text)).collect();
            if let Ok(patterns) = Patterns::new(given.iter().cloned().enumerate().map(|(at, pattern)| (pattern, at))) {
                let fits: Vec<&Pattern> = given.iter().filter(|pattern| pattern.matches(&name)).collect();
                let best = fits.iter().map(|pattern| pattern.rank()).max();
                let winners = fits.iter().filter(|pattern| Some(pattern.rank()) == best).count();
                prop_assert!(winners <= 1);
                prop_assert_eq!(patterns.best(&name).map(|at| given[*at].rank()), best);
            }
        }
    }
}
