//! `wharf-sim volumes [SEEDS [FIRST]]`: tries many worlds and names the seeds that fail.

use std::process::ExitCode;

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
    let mut tally = Tally::default();
    let mut failed = 0_u64;
    for seed in first..first.saturating_add(seeds) {
        match volumes::run(seed, None) {
            Ok(one) => tally += one,
            Err(violation) => {
                failed += 1;
                println!("{violation}");
            }
        }
    }
    println!("{seeds} worlds, {failed} failed; {tally:?}");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
