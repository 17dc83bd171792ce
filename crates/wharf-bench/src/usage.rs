//! What a process has used, from `/proc`.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time since the process began.
    pub cpu: Duration,
    /// The most memory that was resident at once.
    pub peak_mebibytes: f64,
}

impl Usage {
    pub fn of(pid: u32) -> Result<Usage> {
        Self::read(&PathBuf::from("/proc").join(pid.to_string()))
    }

    pub fn own() -> Result<Usage> {
        Self::read(&PathBuf::from("/proc/self"))
    }

    fn read(dir: &std::path::Path) -> Result<Usage> {
        let read = |name: &str| {
            let path = dir.join(name);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let ticks = cpu_ticks(&read("stat")?).context("/proc shows no processor time")?;
        let peak = peak_kibibytes(&read("status")?).context("/proc shows no peak of memory")?;
        let ticks_per_second = rustix::param::clock_ticks_per_second();
        Ok(Usage {
            cpu: Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64),
            peak_mebibytes: peak as f64 / 1024.0,
        })
    }

    /// What was used since an earlier look; the peak stays that of the whole life.
    pub fn since(self, earlier: Usage) -> Usage {
        Usage { cpu: self.cpu.saturating_sub(earlier.cpu), ..self }
    }
}

impl std::ops::Add for Usage {
    type Output = Usage;

    fn add(self, other: Usage) -> Usage {
        Usage {
            cpu: self.cpu + other.cpu,
            peak_mebibytes: self.peak_mebibytes + other.peak_mebibytes,
        }
    }
}

/// User and system time, the 14th and 15th field; the command before them may hold any character.
pub fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

fn peak_kibibytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_read_behind_a_strange_command_name() {
        let stat = "7 (a) 1 (b) S 3 7 7 0 -1 0 1 2 3 4 120 45 0 0 20 0 1 0 99 0\n";
        assert_eq!(cpu_ticks(stat), Some(165));
    }

    #[test]
    fn the_peak_is_read() {
        assert_eq!(peak_kibibytes("VmPeak:\t  99 kB\nVmHWM:\t   2048 kB\n"), Some(2048));
        assert_eq!(peak_kibibytes("VmPeak:\t  99 kB\n"), None);
    }
}
