//! Faults by script and by seed.

use crate::{Answer, Fault, Faults, Op, Rates, Rule, SeededGenerator};

#[test]
fn a_rule_acts_on_its_requests_only_and_as_often_as_it_says() {
    let faults = Faults::none();
    let drop = Fault::Refuse(Answer::Drop);
    faults.script(Rule::once(Op::Put, drop).on("meta/").after(1).times(2));
    assert_eq!(faults.next(Op::Get, "a/meta/x"), None);
    assert_eq!(faults.next(Op::Put, "a/index/x"), None);
    assert_eq!(faults.next(Op::Put, "a/meta/x"), None);
    assert_eq!(faults.next(Op::Put, "a/meta/x"), Some(drop));
    assert_eq!(faults.next(Op::Put, "a/meta/y"), Some(drop));
    assert_eq!(faults.next(Op::Put, "a/meta/x"), None);
    assert_eq!(faults.injected().get("refuse"), Some(&2));
}

#[test]
fn the_same_seed_rolls_the_same_faults_at_about_the_rates_asked_for() {
    let roll = || {
        let faults = Faults::none();
        let rates = Rates::none().with(Fault::Lose(Answer::Drop), 100).with(Fault::Corrupt, 500);
        faults.roll(SeededGenerator::new(7), rates);
        (0..1000).map(|_| faults.next(Op::Put, "x")).collect::<Vec<_>>()
    };
    let rolled = roll();
    assert_eq!(rolled, roll());
    let lost = rolled.iter().flatten().count();
    assert!((60..140).contains(&lost), "{lost}");
    assert!(!rolled.contains(&Some(Fault::Corrupt)), "a write cannot have a corrupt body");
}
