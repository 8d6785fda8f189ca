//! What the exit code of a command means for its job.

/// Done.
const DONE: u8 = 0;
/// `EX_DATAERR` of `sysexits.h`: what the job carries is wrong, and always will be.
const BAD_DATA: u8 = 65;
/// `EX_TEMPFAIL`: not now.
const NOT_NOW: u8 = 75;

/// What becomes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// It has ended.
    Done,
    /// It runs again after a while, and no attempt is used.
    Again,
    /// It goes to the dead letters.
    Dead,
    /// The attempt has failed: the queue decides when it runs again, or that it is dead.
    Failed,
}

/// Which codes mean what.
#[derive(Debug)]
pub(super) struct Codes {
    dead: Vec<u8>,
}

/// A code that can mean that a job is dead.
pub(super) fn for_good(text: &str) -> Result<u8, String> {
    match text.parse() {
        Ok(DONE) => Err("0 means that the job is done".to_owned()),
        Ok(NOT_NOW) => Err("75 means that the job runs again".to_owned()),
        Ok(code) => Ok(code),
        Err(_) => Err("write exit codes from 1 to 255, such as 64,65".to_owned()),
    }
}

impl Codes {
    pub(super) fn new(dead_on: &[u8]) -> Self {
        Self { dead: [&[BAD_DATA], dead_on].concat() }
    }

    pub(super) fn meaning(&self, code: u8) -> Meaning {
        match code {
            DONE => Meaning::Done,
            NOT_NOW => Meaning::Again,
            code if self.dead.contains(&code) => Meaning::Dead,
            _ => Meaning::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_one_meaning() {
        let codes = Codes::new(&[64, 99]);
        for (code, meaning) in [
            (0, Meaning::Done),
            (75, Meaning::Again),
            (65, Meaning::Dead),
            (64, Meaning::Dead),
            (99, Meaning::Dead),
            (1, Meaning::Failed),
            (127, Meaning::Failed),
            (137, Meaning::Failed),
        ] {
            assert_eq!(codes.meaning(code), meaning, "{code}");
        }
        assert_eq!(Codes::new(&[]).meaning(64), Meaning::Failed);
    }

    #[test]
    fn codes_that_mean_something_else_cannot_mean_dead() {
        assert!(
            for_good("0").is_err() && for_good("75").is_err() && for_good("256").is_err() && for_good("x").is_err()
        );
        assert_eq!(for_good("64"), Ok(64));
    }
}
