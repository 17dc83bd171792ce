//! An owner of beds that comes to a bad end; `tests/hosts.rs` runs it.
//!
//! `bed_owner hold` starts a bed, prints `NAME BRIDGE holding.` and waits to be killed.
//! `bed_owner interrupted` starts a bed and prints why that did not work.

use anyhow::{Result, bail};
use wharf_testbed::TestBed;

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("hold") => {
            let bed = TestBed::start("held", 1)?;
            println!("{} {} holding.", bed.name(), bed.bridge());
            loop {
                std::thread::park();
            }
        }
        Some("interrupted") => {
            wharf_testbed::interrupt_on_signals()?;
            match TestBed::start("interrupted", 2) {
                Ok(_) => bail!("the bed was started"),
                Err(error) => println!("{error:#}"),
            }
            Ok(())
        }
        _ => bail!("usage: bed_owner hold|interrupted"),
    }
}
