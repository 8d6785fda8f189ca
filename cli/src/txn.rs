//! txn begin, decide, get, forget.

use crate::{
    config::Config,
    exit::{Failure, LOST, Outcome},
    output,
    target::Target,
};
use clap::{Subcommand, ValueEnum};
use leasehold::decision::{Answer, Decided, Decision, TxnId};
use serde::Serialize;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Begin a transaction: its id says when it began
    Begin,
    /// Decide it, unless that was done already: then the answer is what was decided
    Decide {
        /// The transaction
        id: TxnId,
        /// What to decide
        #[arg(value_enum)]
        decision: Choice,
    },
    /// What was decided
    Get {
        /// The transaction
        id: TxnId,
    },
    /// Forget a decision before its time, when everybody has applied it
    Forget {
        /// The transaction
        id: TxnId,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Choice {
    Commit,
    Abort,
}

#[derive(Debug, Serialize)]
struct Txn {
    txn_id: String,
    decision: &'static str,
}

impl Txn {
    fn show(txn: TxnId, decision: &'static str, config: &Config) -> Result<(), Failure> {
        let shown = Self { txn_id: txn.to_string(), decision };
        let rows = [("txn_id", shown.txn_id.clone()), ("decision", decision.to_owned())];
        output::object(config.output.value, &shown, &rows)
    }
}

impl Command {
    pub(crate) async fn run(&self, config: &Config) -> Outcome {
        match self {
            Self::Begin => {
                let target = Target::open(config).await?;
                Txn::show(target.begin().await?, "undecided", config)?;
                Ok(0)
            }
            Self::Decide { id, decision } => {
                let decision = match decision {
                    Choice::Commit => Decision::Commit,
                    Choice::Abort => Decision::Abort,
                };
                match Target::existing(config).await?.decide(*id, decision, &config.owner.value).await? {
                    Decided::Decision(made) => {
                        Txn::show(*id, word(made.into()), config)?;
                        if made != decision {
                            return Err(Failure::new(
                                LOST,
                                format!("{id} was decided before, the other way: {made}; go by that"),
                            ));
                        }
                        Ok(0)
                    }
                    Decided::TooOld => Err(Failure::failed(format!(
                        "{id} is too old to be decided, and no decision is known; that does not mean aborted: ask those \
                         who took part"
                    ))),
                }
            }
            Self::Get { id } => {
                let answer = Target::existing(config).await?.decision(*id).await?;
                Txn::show(*id, word(answer), config)?;
                if answer == Answer::Forgotten {
                    output::say("forgotten does not mean aborted: stop, and ask those who took part");
                }
                Ok(0)
            }
            Self::Forget { id } => {
                Target::existing(config).await?.forget(*id).await?;
                Txn::show(*id, word(Answer::Forgotten), config)?;
                Ok(0)
            }
        }
    }
}

fn word(answer: Answer) -> &'static str {
    match answer {
        Answer::Undecided => "undecided",
        Answer::Committed => "commit",
        Answer::Aborted => "abort",
        Answer::Forgotten => "forgotten",
    }
}
