//! `wharf-sim volumes [SEEDS [FIRST]]`: tries many worlds and names the seeds that fail.

use std::{
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use wharf_sim::volumes::{self, Tally};

const SEEDS: u64 = 2_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().ok();
    let range = match arguments.as_slice() {
        ["volumes"] => Some((SEEDS, 0)),
        ["volumes", seeds] => number(seeds).map(|seeds| (seeds, 0)),
        ["volumes", seeds, first] => number(seeds).zip(number(first)),
        _ => None,
    };
    let Some((seeds, first)) = range else {
        eprintln!("usage: wharf-sim volumes [SEEDS [FIRST]]");
        return ExitCode::from(2);
    };
    let (tally, failed) = run_all(first, first.saturating_add(seeds));
    println!("{seeds} worlds, {failed} failed; {tally:?}");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Every world by itself, on all processors.
fn run_all(first: u64, end: u64) -> (Tally, u64) {
    let next = AtomicU64::new(first);
    let work = || {
        let (mut tally, mut failed) = (Tally::default(), 0_u64);
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return (tally, failed);
            }
            match volumes::run(seed, None) {
                Ok(one) => tally += one,
                Err(violation) => {
                    failed += 1;
                    println!("{violation}");
                }
            }
        }
    };
    let workers = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    thread::scope(|scope| {
        let all: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        all.into_iter().fold((Tally::default(), 0), |(mut tally, failed), worker| {
            // A panic in a world is a failure of it.
            let (more, worse) = worker.join().unwrap_or((Tally::default(), 1));
            tally += more;
            (tally, failed + worse)
        })
    })
}
