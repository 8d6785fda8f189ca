//! Everything that can happen to the store and to a process, one step each.

use super::{super::*, *};

impl World {
    pub(in crate::job::apply::tests) fn enqueue(&mut self, arg: u32) {
        let number = self.number();
        let count = 1 + (arg % 5) as u16;
        let place = if arg & 0x100 == 0 { Place::Inbox } else { Place::At(later(i64::from(arg % 3))) };
        let class = if arg & 0x200 == 0 { Class::Normal } else { Class::Urgent };
        let segment = SegmentId::of_request("q", &number.to_string(), 0, 0, class);
        let mut runs: Vec<Run> = Vec::new();
        for index in 0..count {
            let group = index / (1 + (arg >> 10 & 3) as u16);
            let traits = Traits {
                due: self.now + if arg & 0x100 == 0 { 0 } else { i64::from(group) * 70_000 },
                tenant: (arg >> 12 & 1) * u32::from(group % 2),
                key: u64::from(arg >> 13 & 1) * u64::from(1 + group % 2),
                ..Traits::default()
            };
            match runs.last_mut() {
                Some(run) if run.traits == traits => run.to += 1,
                _ => runs.push(Run { from: index, to: index + 1, traits }),
            }
        }
        let unique = (0..count).filter(|index| arg >> 14 & 1 == 1 && index % 2 == 0);
        let facts = Facts {
            segment,
            jobs: count,
            runs,
            unique: unique.map(|index| (index, [(arg >> 16 & 1) as u8 + index as u8; 16])).collect(),
            fence: None,
            request: arg & 0x8000 != 0,
            span: None,
        };
        let ids: Vec<JobId> = (0..count).map(|index| segment.job(index)).collect();
        self.enqueued.extend(&ids);
        self.tables.insert(segment, (Arc::new(facts), ids));
        let name = SegmentName { id: segment, place, jobs: count };
        self.inbox.insert(name, self.now);
        self.sent.push((name, self.now));
    }

    /// The producer's create lands once more: it sends one name for a minute, a request for as long as its window.
    pub(in crate::job::apply::tests) fn duplicate(&mut self, arg: u32) {
        if self.sent.is_empty() {
            return;
        }
        let mut chosen = arg as usize % self.sent.len();
        // Those that were deleted are the ones that matter.
        if arg & 0x10000 == 0
            && let Some(entry) = self.ledger.finished.iter().rev().find(|entry| entry.confirmed.is_some())
        {
            chosen = self.sent.iter().position(|(name, _)| *name == entry.name).unwrap_or(chosen);
        }
        let (name, sent) = self.sent[chosen];
        let request = self.tables[&name.id].0.request;
        let entry = self.ledger.finished.iter().find(|entry| entry.name.id == name.id);
        let in_window = request
            && entry.is_some_and(|entry| entry.confirmed.is_none_or(|confirmed| self.now < confirmed + 600_000));
        if self.now - sent <= 60_000 || in_window {
            self.inbox.insert(name, sent);
        }
    }

    pub(in crate::job::apply::tests) fn list(&mut self, process: usize) {
        self.processes[process].listing = Some((self.now, self.inbox.keys().copied().collect()));
        self.processes[process].seen = Some(self.ledger.clone());
    }

    pub(in crate::job::apply::tests) fn absorb(&mut self, process: usize, arg: u32) {
        let Some((at, names)) = &self.processes[process].listing else { return };
        if self.now - at > 30_000 || names.is_empty() {
            self.processes[process].listing = None;
            return;
        }
        let mut operations = Vec::new();
        for name in names.iter().skip(arg as usize % names.len()).take(3) {
            // One that is not there any more is passed over; damage is seen by two reads.
            if !self.inbox.contains_key(name)
                || matches!(name.place, Place::At(minute) if minute.start().as_millis() > self.now)
            {
                continue;
            }
            let facts = Arc::clone(&self.tables[&name.id].0);
            operations.push(if arg & 0xf00 == 0x100 && facts.unique.is_empty() && !facts.request {
                Op::BuryRaw { name: *name, reason: Reason::Damaged }
            } else {
                Op::Absorb { name: *name, facts }
            });
        }
        let names: Vec<SegmentId> = names.iter().map(|name| name.id).collect();
        let outcomes = self.commit(process, operations.clone(), arg & 0x1000 == 0, arg >> 16);
        for (operation, outcome) in operations.iter().zip(outcomes) {
            if let (Op::Absorb { name, .. }, Outcome::Known { confirmed: true }) = (operation, outcome)
                && names.contains(&name.id)
            {
                self.commit(process, vec![Op::Unconfirm { segment: name.id }], false, 0);
            }
        }
    }

    pub(in crate::job::apply::tests) fn open(&mut self, process: usize) {
        let segments = self.ledger.to_open(self.now, &self.caps);
        let open = |segment: &SegmentId| Op::Open { facts: Arc::clone(&self.tables[segment].0) };
        let operations = segments.iter().map(open).collect();
        self.commit(process, operations, false, 0);
    }

    pub(in crate::job::apply::tests) fn claim(&mut self, process: usize, arg: u32) {
        let claim = claim_id(u64::from(self.number()));
        let operation = Op::Claim { claim, want: arg % 7, idle_elsewhere: arg & 0x100 == 0 };
        self.commit(process, vec![operation], true, arg >> 16);
    }

    /// Answers for up to three jobs, in one commit.
    pub(in crate::job::apply::tests) fn answer(&mut self, process: usize, arg: u32) {
        let known = &self.processes[process];
        let old = arg & 0x800 != 0 && !known.old.is_empty();
        let handles = if old { &known.old } else { &known.in_hand };
        if handles.is_empty() {
            return;
        }
        let mut operations = Vec::new();
        for step in 0..1 + (arg >> 8 & 3) {
            let handle = handles[(arg + step) as usize % handles.len()];
            let into = known.homes.filter(|(other, _)| other.claim == handle.claim && other.job == handle.job);
            let into = into.map(|(_, home)| home);
            let what = match (arg >> 4) % 8 {
                0 | 1 => Answered::Finished,
                2 | 3 => failed(),
                4 => Answered::Snoozed { until: Timestamp::from_millis(self.now + i64::from(arg % 200) * 1000) },
                5 => Answered::Released { ran: arg & 0x200 == 0 },
                6 => Answered::Failed { for_good: true, error: None, kind: None, max_attempts: None },
                _ => match arg & 0x400 {
                    0 => Answered::Cancelled,
                    _ => Answered::Moved {
                        queue: "other".into(),
                        target: SegmentName {
                            id: SegmentId::of_move(handle.id, 0, Class::Normal),
                            place: Place::Inbox,
                            jobs: 1,
                        },
                        priority: 0,
                        due: Timestamp::from_millis(self.now),
                    },
                },
            };
            operations.push(Op::Answer(Answer { claim: handle.claim, job: handle.job, what, into }));
        }
        self.processes[process].homes = None;
        self.commit(process, operations, true, arg >> 16);
    }

    /// Writes an object for a job whose parts have changed; the commit comes later.
    pub(in crate::job::apply::tests) fn rewrite(&mut self, process: usize, arg: u32) {
        let known = &self.processes[process].in_hand;
        if known.is_empty() {
            return;
        }
        let handle = known[arg as usize % known.len()];
        let Some(run) = self.ledger.claims.iter().flat_map(|claim| &claim.items).find(|item| {
            self.ledger.row(item.row).is_some_and(|row| row.name.id == handle.job.segment)
                && item.run.range().contains(handle.job.index)
        }) else {
            return;
        };
        let traits = Traits { why: Why::New, claim: None, ..run.run.traits.clone() };
        let number = self.number();
        let segment = SegmentId::of_request("home", &number.to_string(), 0, 0, Class::Normal);
        self.put_seg(segment, vec![Run { from: 0, to: 1, traits }], vec![handle.id]);
        let home = Home { segment, jobs: 1, index: 0, epoch: self.ledger.gc_epoch, id: handle.id };
        self.processes[process].homes = Some((handle, home));
    }

    fn put_seg(&mut self, segment: SegmentId, runs: Vec<Run>, ids: Vec<JobId>) {
        let jobs = u16::try_from(ids.len()).unwrap();
        let span = ids.iter().min().copied().zip(ids.iter().max().copied());
        let facts =
            Facts { segment, jobs, runs, unique: Vec::new(), fence: self.ledger.fence_last, request: false, span };
        self.tables.insert(segment, (Arc::new(facts), ids));
        self.seg.insert(segment);
    }

    /// Writes the object of a spill; the commit comes later.
    pub(in crate::job::apply::tests) fn prepare_spill(&mut self, process: usize) {
        let mut jobs = self.ledger.to_spill(self.now, &self.caps);
        if jobs.is_empty() || self.processes[process].prepared.is_some() {
            return;
        }
        jobs.sort_by_key(|job| (job.priority, job.due));
        let number = self.number();
        let segment = SegmentId::of_request("spill", &number.to_string(), 0, 0, Class::Normal);
        let ids: Vec<JobId> = jobs.iter().map(|job| self.id_of(job.job)).collect();
        let key = |job: JobRef| {
            let row = self.ledger.row_of(job.segment).unwrap();
            row.runs.iter().find(|run| run.range().contains(job.index)).unwrap().traits.clone()
        };
        let runs = (0u16..).zip(&jobs).map(|(index, job)| {
            let traits = Traits { why: Why::New, claim: None, error: None, ..key(job.job) };
            Run { from: index, to: index + 1, traits }
        });
        let runs = runs.collect();
        let moving = (0u16..).zip(&jobs);
        let moving = moving.map(|(index, job)| Moving { job: job.job, attempts: job.attempts, due: job.due, index });
        let spill = Spill {
            segment,
            epoch: self.ledger.gc_epoch,
            jobs: u16::try_from(jobs.len()).unwrap(),
            moving: moving.collect(),
            span: (*ids.iter().min().unwrap(), *ids.iter().max().unwrap()),
        };
        self.put_seg(segment, runs, ids);
        self.processes[process].prepared = Some(Arc::new(spill));
    }

    pub(in crate::job::apply::tests) fn commit_spill(&mut self, process: usize, arg: u32) {
        if let Some(spill) = self.processes[process].prepared.take() {
            self.commit(process, vec![Op::Spill(spill)], true, arg >> 16);
        }
    }

    /// A session ends; its process may not know, and keeps what it has in hand. Then it makes a new one.
    pub(in crate::job::apply::tests) fn die(&mut self, process: usize) {
        let session = self.new_session();
        let known = &mut self.processes[process];
        self.ended.insert(known.session);
        known.old.append(&mut known.in_hand);
        let excess = known.old.len().saturating_sub(12);
        known.old.drain(..excess);
        known.session = session;
        known.has_row = false;
        known.prepared = None;
        known.homes = None;
        // What was in doubt stays unknown for ever.
        known.doubt = None;
    }

    pub(in crate::job::apply::tests) fn recover(&mut self, process: usize, arg: u32) {
        let ended = |known: &&crate::job::ledger::Session| self.ended.contains(&known.id.0[0]);
        let sessions: Vec<SessionId> = self.ledger.sessions.iter().filter(ended).map(|known| known.id).collect();
        let operations = sessions.into_iter().map(|session| Op::Recover { session }).collect();
        self.commit(process, operations, arg & 1 == 0, arg >> 16);
    }

    /// A process looks at what has become of a commit whose answer it never got.
    pub(in crate::job::apply::tests) fn find_out(&mut self, process: usize) {
        let Some(doubt) = self.processes[process].doubt.take() else { return };
        let own = session(self.processes[process].session);
        // Nobody asks so late: by then a row with nothing in hand may have gone.
        let in_time = self.now - doubt.at < 30_000;
        match verdict(&self.ledger, Some(own), &[doubt.attempt], doubt.has_row, in_time) {
            Verdict::Landed(_) => {
                let applied = doubt.applied.expect("only what landed is found");
                self.told(process, &doubt.operations, applied, true);
            }
            Verdict::NotLanded => {
                assert!(doubt.applied.is_none(), "a commit that landed was taken for lost");
                self.commit(process, doubt.operations, true, 0);
            }
            Verdict::Pending => {
                assert!(doubt.applied.is_none());
                self.commit(process, doubt.operations, true, 0);
            }
            // Its own session has closed its row by this very commit, or it asks too late.
            Verdict::Unknowable => {
                let closed = doubt.operations.iter().any(|operation| matches!(operation, Op::Close));
                assert!(closed || !in_time);
                self.die(process);
            }
        }
    }

    /// Gives back what it does not know; only when none of its commits is in doubt.
    pub(in crate::job::apply::tests) fn give_back(&mut self, process: usize) {
        if self.processes[process].doubt.is_some() {
            return;
        }
        let known = &self.processes[process];
        let hand: HashSet<(ClaimId, JobRef)> = known.in_hand.iter().map(|handle| (handle.claim, handle.job)).collect();
        let own = session(known.session);
        let operations = self.ledger.to_give_back(own, |claim, job| hand.contains(&(claim, job)));
        assert!(operations.is_empty(), "a process that was told everything knows everything");
    }

    /// A delete: `fate` 0 is answered, 1 lands without an answer, 2 is lost.
    pub(in crate::job::apply::tests) fn delete(&mut self, process: usize, fate: u32) {
        let late = self.ledger.to_delete(self.now);
        let Some((name, since)) = self.processes[process].deletes.pop().or(late.first().copied()) else { return };
        if self.ledger.unconfirmed_since(name.id) != Some(since) {
            return;
        }
        assert!(self.ledger.row_of(name.id).is_none(), "a live segment would be deleted");
        if fate != 2 {
            self.inbox.remove(&name);
        }
        if fate == 0 || fate == 3 {
            self.processes[process].confirms.push((name.id, since));
        }
    }

    pub(in crate::job::apply::tests) fn confirm(&mut self, process: usize, arg: u32) {
        let confirms = self.processes[process].confirms.clone();
        let operations = confirms.into_iter().map(|(segment, since)| Op::Confirm { segment, since }).collect();
        self.commit(process, operations, false, arg >> 16);
    }

    pub(in crate::job::apply::tests) fn forget(&mut self, process: usize) {
        let shown: HashSet<String> = self.inbox.keys().filter_map(|name| self.layout.segment(name)).collect();
        let listing = Listing { prefix: "default/queue/q/".into(), from_start: true, cut_off_after: None, shown };
        let segments = self.ledger.to_forget(&self.layout, &listing, self.now);
        self.commit(process, vec![Op::Forget { segments }], false, 0);
    }

    /// Lists `seg/` and raises the epoch; the delete comes later.
    pub(in crate::job::apply::tests) fn collect(&mut self, process: usize) {
        let candidates = self.seg.iter().copied().collect();
        self.commit(process, vec![Op::RaiseEpoch { candidates }], false, 0);
    }

    pub(in crate::job::apply::tests) fn delete_orphans(&mut self, process: usize) {
        for orphan in std::mem::take(&mut self.processes[process].orphans) {
            assert!(self.ledger.row_of(orphan).is_none(), "an orphan is named");
            self.seg.remove(&orphan);
        }
    }

    pub(in crate::job::apply::tests) fn carry_out_plans(&mut self, process: usize, arg: u32) {
        let dead = self.ledger.dead.iter().map(|plan| {
            // Its payload must be there: the rows are live.
            assert!(plan.jobs.iter().all(|job| self.ledger.row(job.row).is_some()), "a payload is gone");
            Op::DeadWritten { plan: plan.id }
        });
        let moves = self.ledger.moves.iter().map(|plan| {
            let segment = self.ledger.row(plan.row).expect("a payload is gone").name.id;
            Op::MoveWritten { job: JobRef { segment, index: plan.index }, target: plan.target.id }
        });
        let operations = dead.chain(moves).collect();
        self.commit(process, operations, false, arg >> 16);
    }

    /// Cancels or pauses a job wherever it is.
    pub(in crate::job::apply::tests) fn touch(&mut self, process: usize, arg: u32) {
        let mut all: Vec<JobId> = self.enqueued.iter().copied().collect();
        all.sort_unstable();
        if all.is_empty() {
            return;
        }
        let id = all[arg as usize % all.len()];
        let mut job = JobRef::from(id);
        if let Found::Elsewhere(segments) = self.ledger.find(job) {
            let in_it = |segment: &&SegmentId| self.tables[*segment].1.contains(&id);
            let Some(segment) = segments.iter().find(in_it) else { return };
            let index = self.tables[segment].1.iter().position(|known| *known == id).unwrap();
            job = JobRef { segment: *segment, index: u16::try_from(index).unwrap() };
        }
        let in_inbox = self.inbox.keys().any(|name| name.id == job.segment);
        let operation = match arg >> 8 & 3 {
            0 => Op::Pause { job, paused: true },
            1 => Op::Pause { job, paused: false },
            _ => Op::Cancel { job, in_inbox },
        };
        self.commit(process, vec![operation], false, arg >> 16);
    }

    pub(in crate::job::apply::tests) fn change_settings(&mut self, process: usize, arg: u32) {
        self.settings += 1;
        self.policy = Arc::new(Policy {
            key_limit: (arg & 1 == 1).then_some(1),
            paused: arg & 14 == 14,
            paused_until: (arg & 256 == 0).then_some(self.now + 60_000),
            skip_waiting: arg & 16 == 16,
            rate_milli: (arg & 96 == 96).then_some(2000),
            unique_period: Duration::from_secs(u64::from(arg >> 7 & 1) * 30),
            ..test_policy(2 + arg % 4)
        });
        self.processes[process].settings = self.settings;
        self.commit(process, Vec::new(), false, 0);
    }

    pub(in crate::job::apply::tests) fn close(&mut self, process: usize, arg: u32) {
        let own = session(self.processes[process].session);
        if self.ledger.session(own).is_some() {
            self.commit(process, vec![Op::Close], true, arg >> 16);
        }
    }

    /// Everything goes well from here on: every job must end.
    pub(in crate::job::apply::tests) fn drain(&mut self) {
        let settings = self.settings + 1;
        self.settings = settings;
        self.policy = Arc::new(test_policy(3));
        for process in 0..self.processes.len() {
            self.die(process);
            self.processes[process].settings = settings;
        }
        for round in 0..400 {
            if self.enqueued.len() == self.over.len() && self.ledger.finished.is_empty() && self.seg.is_empty() {
                return;
            }
            self.now += 20_000;
            self.recover(0, 0);
            self.list(0);
            let count = self.inbox.len().max(1);
            for skip in (0..count).step_by(3) {
                self.absorb(0, u32::try_from(skip).unwrap());
            }
            self.open(0);
            self.resume_all();
            self.claim(0, 6);
            for handle in self.processes[0].in_hand.clone() {
                let what = Answered::Finished;
                self.commit(
                    0,
                    vec![Op::Answer(Answer { claim: handle.claim, job: handle.job, what, into: None })],
                    true,
                    0,
                );
            }
            self.carry_out_plans(0, 0);
            while !self.ledger.to_delete(self.now).is_empty() || !self.processes[0].deletes.is_empty() {
                let before = (self.processes[0].deletes.len(), self.processes[0].confirms.len());
                self.delete(0, 0);
                self.confirm(0, 0);
                if before == (self.processes[0].deletes.len(), self.processes[0].confirms.len()) {
                    break;
                }
            }
            self.forget(0);
            if round % 5 == 0 {
                self.collect(0);
            }
            self.delete_orphans(0);
            self.settle();
        }
        let left = self.enqueued.len() - self.over.len();
        panic!("{left} jobs never end; ledger {:#?}, inbox {:?}", self.ledger, self.inbox);
    }

    fn resume_all(&mut self) {
        let mut paused = Vec::new();
        for row in &self.ledger.rows {
            for run in row.runs.iter().filter(|run| run.traits.paused) {
                let job = |index| JobRef { segment: row.name.id, index };
                paused.extend((run.from..run.to).map(job));
            }
        }
        let operations = paused.into_iter().map(|job| Op::Pause { job, paused: false }).collect();
        self.commit(0, operations, false, 0);
    }
}
