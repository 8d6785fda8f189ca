//! Many real processes and few slots: a checker outside of the library sees that there are never more inside than may be, and
//! that everybody gets its turns.

#![allow(clippy::disallowed_methods, reason = "drives real processes")]

use leasehold::{Clock, Settings, Store, SystemClock, clock::Moment};
use std::{
    env, fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

const SLOTS: u32 = 3;

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// One process: takes turns until it is told to stop, and writes down when it was inside, by the host's clock.
#[test]
#[ignore = "started by the test below"]
fn one_of_the_crowd() {
    let Ok(folder) = env::var("LEASEHOLD_CROWD") else { return };
    let folder = Path::new(&folder);
    let me = env::var("LEASEHOLD_CROWD_ME").unwrap();
    let mut log = fs::File::create(folder.join(format!("log-{me}"))).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let clock = SystemClock::new();
        let mut settings = Settings::default();
        settings.poll_interval = Duration::from_millis(20);
        settings.max_poll_interval = Duration::from_millis(200);
        let url = format!("file://{}", folder.join("store").display());
        let store = Store::builder().url(url).settings(settings).open().await.unwrap();
        let semaphore = store.semaphore("crowd", SLOTS).ttl(Duration::from_secs(10)).owner(me.clone());
        while !folder.join("stop").exists() {
            let permit = match semaphore.acquire_within(Duration::from_secs(5)).await {
                Ok(permit) => permit,
                Err(error) if error.is_retryable() => continue,
                Err(error) => panic!("{error}"),
            };
            let inside = clock.monotonic().since(Moment::default());
            clock.sleep(Duration::from_millis(10)).await;
            let outside = clock.monotonic().since(Moment::default());
            if permit.is_valid() {
                let fence = permit.fence();
                writeln!(log, "{} {} {} {fence}", inside.as_micros(), outside.as_micros(), permit.number()).unwrap();
            }
            permit.release().await.ok();
        }
    });
}

struct Turn {
    who: usize,
    inside: u64,
    outside: u64,
    slot: u32,
    fence: u64,
}

fn turns(folder: &Path, processes: usize) -> Vec<Turn> {
    let mut turns = Vec::new();
    for who in 0..processes {
        for line in fs::read_to_string(folder.join(format!("log-{who}"))).unwrap().lines() {
            let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
            let [inside, outside, slot, fence] = numbers[..] else { panic!("{line}") };
            turns.push(Turn { who, inside, outside, slot: u32::try_from(slot).unwrap(), fence });
        }
    }
    turns
}

/// The most that were inside at once.
fn most_at_once(turns: &[Turn]) -> usize {
    let mut edges: Vec<(u64, i32)> = turns.iter().flat_map(|turn| [(turn.inside, 1), (turn.outside, -1)]).collect();
    edges.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, edge) in edges {
        now += edge;
        most = most.max(now);
    }
    usize::try_from(most).unwrap()
}

/// `LEASEHOLD_CROWD_PROCESSES=50 LEASEHOLD_CROWD_SECONDS=30` is the crowd that the promise is about.
#[test]
fn many_processes_take_turns_and_never_too_many_are_inside() {
    let processes = usize::try_from(number("LEASEHOLD_CROWD_PROCESSES", 6)).unwrap();
    let seconds = number("LEASEHOLD_CROWD_SECONDS", 3);
    let least = usize::try_from(number("LEASEHOLD_CROWD_TURNS", 3)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("store")).unwrap();
    let start = |who: usize| {
        Command::new(env::current_exe().unwrap())
            .args(["--ignored", "--exact", "semaphore_crowd::one_of_the_crowd"])
            .env("LEASEHOLD_CROWD", folder.path())
            .env("LEASEHOLD_CROWD_ME", who.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut crowd: Vec<_> = (0..processes).map(start).collect();
    let everybody_is_there = || (0..processes).all(|who| folder.path().join(format!("log-{who}")).exists());
    let begun = Instant::now();
    while !everybody_is_there() {
        assert!(begun.elapsed() < Duration::from_secs(120), "they did not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    let had_enough = || {
        let turns = turns(folder.path(), processes);
        (0..processes).all(|who| turns.iter().filter(|turn| turn.who == who).count() >= least)
    };
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_millis(50));
    }
    // A crowd on a busy machine may need longer; the time is what is promised for the whole one.
    let in_time = had_enough();
    while !had_enough() {
        assert!(begun.elapsed() < Duration::from_secs(20 * seconds), "somebody starves");
        std::thread::sleep(Duration::from_millis(200));
    }
    fs::write(folder.path().join("stop"), "").unwrap();
    for child in &mut crowd {
        assert!(child.wait().unwrap().success());
    }
    let mut turns = turns(folder.path(), processes);
    let count = |who: usize| turns.iter().filter(|turn| turn.who == who).count();
    let (fewest, all) = ((0..processes).map(count).min().unwrap(), turns.len());
    let most = most_at_once(&turns);
    println!("{processes} processes, {all} turns, fewest {fewest}, at most {most} at once, all in time: {in_time}");
    assert!(most <= SLOTS as usize, "{most} inside at once");
    // On each slot fences rise in the order of the turns, and no two of all are equal.
    turns.sort_by_key(|turn| turn.inside);
    for slot in 0..SLOTS {
        let fences: Vec<u64> = turns.iter().filter(|turn| turn.slot == slot).map(|turn| turn.fence).collect();
        assert!(fences.is_sorted() && fences.windows(2).all(|two| two[0] != two[1]), "slot {slot}");
    }
}
