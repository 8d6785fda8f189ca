//! Says whom a command waits for: a wait of minutes should not look like a program that hangs.

use crate::{duration, output, target::Target, view::Holder};
use leasehold::{Clock, Key, SystemClock};
use std::{convert::Infallible, time::Duration};

/// A wait that is over by then needs no words.
const FIRST: Duration = Duration::from_secs(1);

/// How often to see whether somebody else holds it now: one read each time.
const AGAIN: Duration = Duration::from_secs(15);

/// What comes of `work`, which waits for a key for as long as `wait`. Meanwhile the user is told who holds it.
pub(crate) async fn told<T>(target: &Target, key: &Key, wait: Option<Duration>, work: impl Future<Output = T>) -> T {
    let Some(wait) = wait.filter(|wait| *wait > FIRST) else { return work.await };
    tokio::select! {
        biased;
        done = work => done,
        never = tell(target, key, wait) => match never {},
    }
}

async fn tell(target: &Target, key: &Key, wait: Duration) -> Infallible {
    let clock = SystemClock::new();
    let (mut known, mut pause) = (None, FIRST);
    loop {
        clock.sleep(pause).await;
        pause = AGAIN;
        // What cannot be read now is told by the request that waits, if it lasts.
        let holder = target.get(key).await.ok().and_then(|status| status.holder);
        if let Some(holder) = holder.filter(|holder| known.as_ref() != Some(&holder.lease_id)) {
            output::say(line(key, &holder, wait));
            known = Some(holder.lease_id);
        }
    }
}

fn line(key: &Key, holder: &Holder, wait: Duration) -> String {
    let note = holder.note.as_deref().map(|note| format!(" ({})", crate::view::printable(note))).unwrap_or_default();
    let limit = match wait {
        duration::FOREVER => "for as long as it takes".to_owned(),
        wait => format!("for {} at most", duration::short(wait)),
    };
    format!("waiting for {key} {limit}: held by {}{note}", holder.who())
}
