//! Money moves between two accounts, whoever dies on the way: `cargo run --example two_phase_commit`.
//!
//! A coordinator takes the leases of both accounts, has each of them stage its part, and decides. The decision is the
//! one moment at which it happens, for both: before it nothing is final, and after it nothing can stop it. An account
//! that has staged something and hears no more does not wait for the coordinator: it decides to abort. Either that is
//! the answer, or the coordinator was faster and the money moves.

#![allow(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use leasehold::{
    Fence, Key, Leases, Store,
    decision::{Answer, Decision, Decisions, TxnId},
    lease::{Acquired, Grant, Request},
};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// What goes wrong in here. Dying is not among it: see [`Ended`].
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Where somebody dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Death {
    /// The coordinator, with one lease.
    OneLease,
    /// The coordinator, with both leases.
    BothLeases,
    /// The coordinator, when the first account has staged its part.
    OneStaged,
    /// The coordinator, when both have, just before it decides.
    BothStaged,
    /// The coordinator, as soon as it has decided.
    Decided,
    /// The coordinator, when the first account has heard the decision.
    OneApplied,
    /// The coordinator, when both have, with the leases still held.
    BothApplied,
    /// The second account, before it stages anything.
    ParticipantBeforeStaging,
    /// The second account, when it has staged its part and has not said so.
    ParticipantAfterStaging,
    /// The second account, when it should apply the decision.
    ParticipantBeforeApplying,
}

impl Death {
    /// All of them.
    #[allow(dead_code, reason = "for tests")]
    pub(crate) const ALL: [Self; 10] = [
        Self::OneLease,
        Self::BothLeases,
        Self::OneStaged,
        Self::BothStaged,
        Self::Decided,
        Self::OneApplied,
        Self::BothApplied,
        Self::ParticipantBeforeStaging,
        Self::ParticipantAfterStaging,
        Self::ParticipantBeforeApplying,
    ];
}

/// How a transfer ended for whoever asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It was decided, and both accounts were told.
    Decided(Decision),
    /// The coordinator died, and nobody was told anything.
    CoordinatorDied,
}

/// What an account has promised to do if the transaction commits.
#[derive(Debug, Clone, Copy)]
struct Staged {
    txn: TxnId,
    change: i64,
}

/// What an account keeps on its disk: it is there after a crash. In real life rows of a database.
#[derive(Debug, Default)]
struct Ledger {
    balance: i64,
    staged: Option<Staged>,
    /// The highest fence that it has seen: lower ones are refused.
    highest: Option<Fence>,
    /// What it has done, for whoever checks.
    history: Vec<(TxnId, Decision)>,
}

/// A participant.
#[derive(Debug)]
pub(crate) struct Account {
    key: Key,
    ledger: Mutex<Ledger>,
}

impl Account {
    pub(crate) fn new(name: &str, balance: i64) -> Result<Self> {
        Ok(Self { key: Key::new(name)?, ledger: Mutex::new(Ledger { balance, ..Ledger::default() }) })
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn balance(&self) -> i64 {
        self.ledger().balance
    }

    /// What this account holds to be the end of a transaction; `None` if it never had a part in it.
    #[allow(dead_code, reason = "for tests")]
    pub(crate) fn end_of(&self, txn: TxnId) -> Option<Decision> {
        self.ledger().history.iter().find(|(known, _)| *known == txn).map(|(_, decision)| *decision)
    }

    /// Whether it waits for a decision.
    #[allow(dead_code, reason = "for tests")]
    pub(crate) fn is_waiting(&self) -> bool {
        self.ledger().staged.is_some()
    }

    /// Votes: promises to make the change if the transaction commits, or refuses.
    fn stage(&self, txn: TxnId, change: i64, fence: Fence) -> std::result::Result<(), String> {
        let mut ledger = self.ledger();
        if let Some(highest) = ledger.highest.filter(|highest| fence < *highest) {
            return Err(format!("{}: fence {fence} is older than {highest}", self.key));
        }
        ledger.highest = Some(fence);
        if let Some(staged) = ledger.staged {
            return Err(format!("{}: {} is not settled yet", self.key, staged.txn));
        }
        if ledger.balance + change < 0 {
            return Err(format!("{}: {} is not enough", self.key, ledger.balance));
        }
        ledger.staged = Some(Staged { txn, change });
        Ok(())
    }

    /// Does what was decided, in one write, however often it is told.
    fn apply(&self, txn: TxnId, decision: Decision) {
        let mut ledger = self.ledger();
        if let Some(staged) = ledger.staged.take_if(|staged| staged.txn == txn) {
            if decision == Decision::Commit {
                ledger.balance += staged.change;
            }
            ledger.history.push((txn, decision));
        }
    }

    /// Settles what it finds staged, without the coordinator: what nobody has decided is aborted.
    pub(crate) async fn recover(&self, decisions: &Decisions) -> Result<()> {
        let Some(Staged { txn, .. }) = self.ledger().staged else { return Ok(()) };
        let decided = match decisions.get(txn).await? {
            Answer::Undecided => decisions.decide(txn, Decision::Abort).await?.decision(),
            answer => answer.decision(),
        };
        match decided {
            Some(decision) => self.apply(txn, decision),
            // Neither committed nor aborted as far as anybody can tell: guessing would make money or destroy it.
            None => return Err(format!("{}: nobody remembers {txn}: ask an operator", self.key).into()),
        }
        Ok(())
    }
}

/// A coordinator in the middle of a transfer.
#[derive(Debug)]
pub(crate) struct Transfer<'a> {
    leases: Leases,
    decisions: Decisions,
    from: &'a Account,
    to: &'a Account,
    amount: i64,
    grants: Vec<Grant>,
    /// The transaction; its id says when it began.
    pub(crate) txn: TxnId,
}

impl<'a> Transfer<'a> {
    /// Takes the leases of both accounts, in the order of their keys so that no two coordinators wait for each other.
    /// Whoever meets something staged with the lease in its hand settles it: its coordinator is dead or too slow.
    #[allow(dead_code, reason = "for tests")]
    pub(crate) async fn begin(store: &Store, from: &'a Account, to: &'a Account, amount: i64) -> Result<Self> {
        let mut transfer = Self::new(store, from, to, amount)?;
        transfer.take_leases(2).await?;
        Ok(transfer)
    }

    fn new(store: &Store, from: &'a Account, to: &'a Account, amount: i64) -> Result<Self> {
        let (leases, decisions) = (store.leases("default")?, store.decisions().by("coordinator"));
        let txn = decisions.begin();
        Ok(Self { leases, decisions, from, to, amount, grants: Vec::new(), txn })
    }

    async fn take_leases(&mut self, count: usize) -> Result<()> {
        let mut accounts = [self.from, self.to];
        accounts.sort_by(|one, other| one.key.as_bytes().cmp(other.key.as_bytes()));
        let request = Request::new(Duration::from_secs(2)).owner("coordinator");
        for account in accounts.iter().take(count) {
            match self.leases.acquire_within(&account.key, &request, Duration::from_secs(30)).await? {
                Acquired::Granted(grant) => self.grants.push(grant),
                Acquired::Held(_) => return Err(format!("{} is busy", account.key).into()),
            }
            account.recover(&self.decisions).await?;
        }
        Ok(())
    }

    fn fence(&self, account: &Account) -> Result<Fence> {
        let grant = self.grants.iter().find(|grant| *grant.key() == account.key);
        Ok(grant.ok_or("staging needs the lease")?.fence())
    }

    /// The first account's part.
    pub(crate) fn stage_from(&self) -> Result<()> {
        Ok(self.from.stage(self.txn, -self.amount, self.fence(self.from)?)?)
    }

    /// The second account's part.
    pub(crate) fn stage_to(&self) -> Result<()> {
        Ok(self.to.stage(self.txn, self.amount, self.fence(self.to)?)?)
    }

    /// The moment at which it happens, or does not. The answer need not be what was asked for.
    pub(crate) async fn decide(&self, decision: Decision) -> Result<Decision> {
        let decided = self.decisions.decide(self.txn, decision).await?.decision();
        decided.ok_or_else(|| format!("{} took too long", self.txn).into())
    }

    /// Gives the leases back.
    pub(crate) async fn end(self) -> Result<()> {
        for grant in &self.grants {
            self.leases.release(grant).await?;
        }
        Ok(())
    }
}

/// A whole transfer, in which somebody may die. Returns the transaction as well, for whoever checks.
pub(crate) async fn transfer(
    store: &Store,
    from: &Account,
    to: &Account,
    amount: i64,
    death: Option<Death>,
) -> Result<(TxnId, Ended)> {
    let mut work = Transfer::new(store, from, to, amount)?;
    let txn = work.txn;
    let died = Ok((txn, Ended::CoordinatorDied));
    work.take_leases(if death == Some(Death::OneLease) { 1 } else { 2 }).await?;
    if matches!(death, Some(Death::OneLease | Death::BothLeases)) {
        return died;
    }
    // All must have promised before anything is decided. No answer, for whatever reason, is a no.
    let mut all = work.stage_from().is_ok();
    if death == Some(Death::OneStaged) {
        return died;
    }
    all &= match death {
        Some(Death::ParticipantBeforeStaging) => false,
        Some(Death::ParticipantAfterStaging) => {
            work.stage_to()?;
            false
        }
        _ => work.stage_to().is_ok(),
    };
    if death == Some(Death::BothStaged) {
        return died;
    }
    let decision = work.decide(if all { Decision::Commit } else { Decision::Abort }).await?;
    if death == Some(Death::Decided) {
        return died;
    }
    from.apply(txn, decision);
    if death == Some(Death::OneApplied) {
        return died;
    }
    // An account that is dead hears nothing.
    if !matches!(death, Some(Death::ParticipantAfterStaging | Death::ParticipantBeforeApplying)) {
        to.apply(txn, decision);
    }
    if death == Some(Death::BothApplied) {
        return died;
    }
    work.end().await?;
    Ok((txn, Ended::Decided(decision)))
}

#[tokio::main]
#[allow(dead_code, reason = "tests use the rest of this file")]
async fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let store = Store::open(format!("file://{}", folder.path().display())).await?;
    let (alice, bob) = (Account::new("account/alice", 100)?, Account::new("account/bob", 0)?);
    for (story, death) in [
        ("nobody dies", None),
        ("the coordinator dies before it decides", Some(Death::BothStaged)),
        ("the coordinator dies right after it has decided", Some(Death::Decided)),
        ("an account dies before it hears the decision", Some(Death::ParticipantBeforeApplying)),
    ] {
        let (txn, ended) = transfer(&store, &alice, &bob, 10, death).await?;
        println!("{story}: {ended:?}");
        // Both start again, and need no coordinator. Any other store object will do: the decision is in the store.
        for account in [&alice, &bob] {
            account.recover(&store.decisions().by("participant")).await?;
        }
        let answer = store.decisions().get(txn).await?;
        println!("  {answer:?}: alice has {}, bob has {}", alice.balance(), bob.balance());
        if alice.balance() + bob.balance() != 100 {
            return Err("money was made or destroyed".into());
        }
    }
    Ok(())
}
