use std::time::Duration;

use super::*;
use crate::volume::{lease::SinceBoot, record::Generation};

fn own() -> Own {
    let owned = str::to_owned;
    Own { node: owned("a"), node_uid: owned("n-1"), boot_id: owned("b-1"), tenure: 3 }
}

fn entry() -> Entry {
    let Own { node, node_uid, boot_id, tenure } = own();
    let generation = Generation(4);
    Entry { node, node_uid, boot_id, tenure, generation, self_fence: true, ..Entry::default() }
}

#[test]
fn an_agent_cuts_what_it_may_not_use_and_nothing_else() {
    let held = Held { volume: "pv".to_owned(), key: entry().key(), self_fence: true, tenure: 3 };
    let fine = Standing::Held { renew_at: SinceBoot(Duration::ZERO) };
    let late = Standing::Late { cut_at: SinceBoot(Duration::ZERO) };
    let with = |entries: Vec<Entry>| {
        let record = Record { version: String::new(), entries, ..Record::default() };
        BTreeMap::from([("pv".to_owned(), Some(record))])
    };
    let gone = BTreeMap::from([("pv".to_owned(), None)]);
    let unread = BTreeMap::new();
    let trusting = Held { self_fence: false, ..held.clone() };
    let early = Held { tenure: 2, ..held.clone() };
    let early_trusting = Held { tenure: 2, ..trusting.clone() };
    let doomed = |phase| with(vec![Entry { phase, ..entry() }]);
    let elsewhere = with(vec![Entry { node: "b".to_owned(), ..entry() }]);
    let newer = with(vec![Entry { generation: Generation(5), ..entry() }]);
    let trusted = with(vec![Entry { self_fence: false, tenure: 2, ..entry() }]);
    for (held, standing, records, expected) in [
        (&held, fine, &with(vec![entry()]), None),
        (&held, late, &with(vec![entry()]), None),
        (&held, fine, &unread, None),
        (&held, Standing::Over, &with(vec![entry()]), Some(Cut::LeaseOver)),
        (&held, Standing::Over, &unread, Some(Cut::LeaseOver)),
        (&trusting, Standing::Over, &unread, None),
        (&early, fine, &with(vec![entry()]), Some(Cut::EarlierTenure)),
        (&early_trusting, fine, &trusted, None),
        (&held, fine, &gone, Some(Cut::RightLost)),
        (&held, fine, &elsewhere, Some(Cut::RightLost)),
        (&held, fine, &newer, Some(Cut::RightLost)),
        (&held, fine, &doomed(Phase::Fencing), Some(Cut::RightLost)),
        (&held, fine, &doomed(Phase::Released), Some(Cut::RightLost)),
        (&held, fine, &doomed(Phase::Attached), None),
    ] {
        let cuts = decide_cuts(std::slice::from_ref(held), &standing, &own(), records);
        let cut = cuts.first().map(|(_, cut)| *cut);
        assert_eq!(cut, expected, "{held:?} {standing:?} {records:?}");
    }
}
