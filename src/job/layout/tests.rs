//! Names come back as what they were made of, and nothing else is taken for one of ours.

use super::*;
use proptest::prelude::*;

fn layout() -> Layout {
    Layout::new("default", "emails").unwrap()
}

fn segment() -> SegmentId {
    SegmentId::of_request("emails", "r", 0, 3, Class::Urgent)
}

#[test]
fn every_object_has_the_name_of_the_documented_layout() {
    let layout = layout();
    let id = segment();
    let minute = Minute::of(Timestamp::from_millis(1_767_227_459_999));
    let name = |place| layout.segment(&SegmentName { id, place, jobs: 12 });
    assert_eq!(layout.settings(), "default/queue/emails/queue.json");
    assert_eq!(layout.ledger(3), "default/queue/emails/ledger/3.pb");
    assert_eq!(name(Place::Inbox), Some(format!("default/queue/emails/in/3/0/{id}-12")));
    assert_eq!(name(Place::At(minute)), Some(format!("default/queue/emails/at/3/202601010030/0-{id}-12")));
    assert_eq!(name(Place::Seg), Some(format!("default/queue/emails/seg/3/{id}")));
    assert_eq!(name(Place::Inline), None);
    let dead = layout.dead_letters(hour_of(minute.start()), 3, [7; 16].into(), 5);
    assert_eq!(dead, format!("default/queue/emails/dead/2026010100/3-{}-5", "07".repeat(16)));
}

#[test]
fn a_nasty_name_of_a_queue_makes_one_safe_folder_of_its_own() {
    let mut seen = HashSet::new();
    for queue in ["a", "A", "a/b", "a//b", "..", ".", "ü", "a b", "%2f", "!h", &"x".repeat(64), &"/".repeat(64)] {
        let root = Layout::new("default", queue).unwrap().root;
        assert_eq!(root.matches('/').count(), 2, "{root}");
        assert!(root.is_ascii() && !root.contains(".."), "{root}");
        assert!(seen.insert(root.to_lowercase()), "{root}");
    }
    for refused in ["", &"x".repeat(65)] {
        assert!(Layout::new("default", refused).is_err());
    }
}

#[test]
fn foreign_names_are_told_apart() {
    let id = segment();
    let good = format!("default/queue/emails/in/3/0/{id}-12");
    assert!(matches!(layout().parse(&good), Listed::Segment(_)));
    let upper = id.to_string().to_uppercase();
    for foreign in [
        String::new(),
        "default/queue/emails/in/".to_owned(),
        "default/queue/emails/in/3/0/.DS_Store".to_owned(),
        "default/queue/emails/queue.json".to_owned(),
        format!("default/queue/others/in/3/0/{id}-12"),
        format!("default/queue/emails/in/4/0/{id}-12"),
        format!("default/queue/emails/in/3/1/{id}-12"),
        format!("default/queue/emails/in/03/0/{id}-12"),
        format!("default/queue/emails/in/3/0/{upper}-12"),
        format!("default/queue/emails/in/3/0/{id}-0"),
        format!("default/queue/emails/in/3/0/{id}-012"),
        format!("default/queue/emails/in/3/0/{id}-+12"),
        format!("default/queue/emails/in/3/0/{id}-65536"),
        format!("default/queue/emails/in/3/0/{id}"),
        format!("default/queue/emails/in/3/0/{id}-12/x"),
        format!("default/queue/emails/in/3/0/{id}-12.tmp"),
        format!("default/queue/emails/seg/3/{id}"),
        format!("default/queue/emails/at/3/202613010030/0-{id}-12"),
        format!("default/queue/emails/at/3/20260101003/0-{id}-12"),
        format!("default/queue/emails/at/3/202601010030/1-{id}-12"),
        format!("default/queue/emails/at/3/202601010030/{id}-12"),
    ] {
        assert_eq!(layout().parse(&foreign), Listed::Foreign, "{foreign}");
    }
}

#[test]
fn names_in_seg_are_parsed_apart_from_those_that_are_absorbed() {
    let id = segment();
    assert_eq!(layout().parse_seg(&format!("default/queue/emails/seg/3/{id}")), Some(id));
    for foreign in [format!("default/queue/emails/seg/2/{id}"), format!("default/queue/emails/seg/3/{id}-1")] {
        assert_eq!(layout().parse_seg(&foreign), None, "{foreign}");
    }
}

#[test]
fn one_prefix_finds_a_job_that_is_due_and_one_that_is_due_later() {
    let layout = layout();
    let due = Timestamp::from_millis(1_767_227_459_999);
    let id = SegmentId::delayed(due, 3, Class::Normal, &crate::OsGenerator::new());
    let [now, later] = layout.look_up(id);
    let name = |place| layout.segment(&SegmentName { id, place, jobs: 9 }).unwrap();
    assert!(name(Place::Inbox).starts_with(&now));
    assert!(name(Place::At(Minute::of(due))).starts_with(&later));
}

#[test]
fn a_minute_is_written_so_that_names_sort_by_time() {
    let minutes = [0, 1_767_227_459_999, 1_767_227_460_000, 253_402_300_799_999];
    let names: Vec<_> = minutes.map(|at| Minute::of(Timestamp::from_millis(at)).to_string()).into();
    assert_eq!(names, ["197001010000", "202601010030", "202601010031", "999912312359"]);
    assert_eq!(Minute::of(Timestamp::from_millis(i64::MAX / 1000)).to_string(), "999912312359");
    assert_eq!(Minute::of(Timestamp::from_millis(-1)).to_string(), "197001010000");
    assert!(Minute::from_number(u32::MAX).is_none());
}

#[test]
fn a_listing_speaks_only_of_what_it_has_come_past() {
    let name = |name: &str| format!("q/in/0/0/{name}");
    let mut listing = Listing {
        prefix: "q/in/0/".into(),
        from_start: true,
        cut_off_after: Some(name("m")),
        shown: [name("a"), name("m")].into(),
    };
    assert!(!listing.rules_out(&name("a")) && listing.rules_out(&name("b")));
    assert!(!listing.rules_out(&name("n")), "it was cut off before");
    assert!(!listing.rules_out("q/in/1/0/b"), "another shard");
    listing.cut_off_after = None;
    assert!(listing.rules_out(&name("n")));
    listing.from_start = false;
    assert!(!listing.rules_out(&name("b")), "it may have begun after it");
}

proptest! {
    #[test]
    fn a_name_is_parsed_as_it_was_made(
        random: u128, shard: u8, urgent: bool, jobs in 1u16.., minute in proptest::option::of(0..=Minute::LAST),
    ) {
        let class = if urgent { Class::Urgent } else { Class::Normal };
        let id = SegmentId::of_request("q", &random.to_string(), 0, shard, class);
        let place = minute.map_or(Place::Inbox, |minute| Place::At(Minute::from_number(minute).unwrap()));
        let name = SegmentName { id, place, jobs };
        prop_assert_eq!(layout().parse(&layout().segment(&name).unwrap()), Listed::Segment(name));
    }

    #[test]
    fn any_text_is_foreign_or_exactly_a_name_of_ours(text in "(default/queue/emails/(in|at)/[0-9]{1,3}/)?[ -~]{0,60}") {
        if let Listed::Segment(name) = layout().parse(&text) {
            prop_assert_eq!(layout().segment(&name), Some(text));
        }
    }
}
