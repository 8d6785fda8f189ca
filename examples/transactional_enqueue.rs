//! A row in a database and a job in a queue, or neither: both hang on one decision. The "database" is a map with a table of
//! transactions that are prepared, as any database with two-phase commit has. Ends by itself.
//!
//! ```sh
//! cargo run --example transactional_enqueue
//! ```

#![allow(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use leasehold::{
    Decisions, Queue, Store,
    decision::{Answer, Decision, TxnId},
};
use std::{collections::BTreeMap, time::Duration};

#[derive(Default)]
struct Database {
    rows: BTreeMap<String, u32>,
    prepared: BTreeMap<TxnId, (String, u32)>,
}

impl Database {
    /// Makes a row durable without showing it.
    fn prepare(&mut self, txn: TxnId, name: &str, amount: u32) -> bool {
        amount > 0 && self.prepared.insert(txn, (name.to_owned(), amount)).is_none()
    }

    /// What a database does when it starts again, or a coordinator after it has decided: it asks, and goes by the answer.
    async fn resolve(&mut self, decisions: &Decisions) -> leasehold::Result<()> {
        for (txn, row) in std::mem::take(&mut self.prepared) {
            match decisions.get(txn).await? {
                Answer::Committed => drop(self.rows.insert(row.0, row.1)),
                Answer::Aborted => {}
                // Nobody has decided: not for this to do.
                Answer::Undecided | Answer::Forgotten => drop(self.prepared.insert(txn, row)),
            }
        }
        Ok(())
    }
}

/// Books an order and enqueues its confirmation: both or neither, wherever this is cut off.
async fn book(
    db: &mut Database,
    queue: &Queue,
    decisions: &Decisions,
    name: &str,
    amount: u32,
) -> leasehold::Result<()> {
    let txn = decisions.begin();
    let prepared = db.prepare(txn, name, amount);
    let confirmation = queue.enqueue(format!("confirm {name}")).in_transaction(txn).await?;
    let decision = if prepared { Decision::Commit } else { Decision::Abort };
    let decided = decisions.decide_with(txn, decision, confirmation.segments).await?;
    println!("{name}: {decided:?}");
    db.resolve(decisions).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Store::open("memory://").await?;
    let (queue, decisions) = (store.queue("mails")?, store.decisions());
    let mut db = Database::default();

    book(&mut db, &queue, &decisions, "ann", 7).await?;
    book(&mut db, &queue, &decisions, "bob", 0).await?; // refused by the database

    let mut confirmed = Vec::new();
    for job in queue.claim(10).within(Duration::from_secs(5)).await? {
        confirmed.push(String::from_utf8(job.args().to_vec())?);
        let _ = job.finish().await?;
    }
    println!("rows {:?}, jobs {confirmed:?}", db.rows);
    assert_eq!((db.rows.len(), confirmed), (1, vec!["confirm ann".to_owned()]));
    assert!(queue.claim(10).await?.is_empty());
    Ok(())
}
