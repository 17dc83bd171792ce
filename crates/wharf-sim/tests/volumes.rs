//! Many worlds, in all of which nobody writes beside another and nothing is left over; and the same
//! with defects put in, which must be found.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::thread;

use wharf_sim::volumes::{Plant, Tally, Violation, run};

const SEEDS: u64 = 2_000;

/// Each world is of one thread; several of them at a time.
fn run_all(seeds: u64) -> Vec<Result<Tally, Violation>> {
    let workers = 4;
    let work = |worker| (worker..seeds).step_by(workers).map(|seed| run(seed, None)).collect();
    thread::scope(|scope| {
        let tasks: Vec<_> = (0..workers as u64).map(|it| scope.spawn(move || work(it))).collect();
        tasks.into_iter().flat_map(|task| -> Vec<_> { task.join().unwrap() }).collect()
    })
}

#[test]
fn nobody_writes_beside_another_and_nothing_is_left() {
    let mut tally = Tally::default();
    for result in run_all(SEEDS) {
        match result {
            Ok(one) => tally += one,
            Err(violation) => panic!("{violation}"),
        }
    }
    println!("{tally:?}");
    // Worlds in which nothing happens would prove nothing.
    assert!(tally.mounts > 2 * SEEDS && tally.unmounts > SEEDS, "{tally:?}");
    assert!(tally.takeovers > SEEDS / 2 && tally.cuts > SEEDS / 2, "{tally:?}");
    assert!(tally.refused > SEEDS && tally.crashes > SEEDS / 4, "{tally:?}");
    assert!(tally.forced > SEEDS / 10 && tally.late > SEEDS / 50, "{tally:?}");
}

#[test]
fn the_same_seed_makes_the_same_world() {
    assert_eq!(run(7, None), run(7, None));
    assert_ne!(run(7, None), run(8, None));
}

#[test]
fn planted_defects_are_found() {
    for plant in Plant::ALL {
        let found = (0..SEEDS).find_map(|seed| run(seed, Some(plant)).err());
        println!("{plant:?}: {found:?}");
        assert!(found.is_some(), "{plant:?} is not found");
    }
}
