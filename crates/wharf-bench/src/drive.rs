//! The load: clients that each write, wait for the answer, and write again.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

/// The driver shares the machine with what it measures, so it takes no more threads than the
/// smallest machine has cores.
const THREADS: usize = 2;

/// Bounds what one client does in one round, whatever the time.
const MAX_STEPS: usize = 1_000_000;

/// One client: does one operation and returns when it is acknowledged.
pub trait Client: Send + 'static {
    fn step(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// What rounds of one kind of load have shown.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Figures {
    pub count: u64,
    /// Operations per second, of each round.
    rates: Vec<f64>,
    nanoseconds: Vec<u64>,
}

impl Figures {
    pub fn add_round(&mut self, elapsed: Duration, latencies: &[Duration]) {
        self.count += latencies.len() as u64;
        self.rates.push(latencies.len() as f64 / elapsed.as_secs_f64());
        self.nanoseconds
            .extend(latencies.iter().map(|l| u64::try_from(l.as_nanos()).unwrap_or(u64::MAX)));
    }

    /// The median of the rounds: one disturbed round does not decide.
    pub fn rate(&self) -> f64 {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        let (upper, lower) = (rates.len() / 2, rates.len().saturating_sub(1) / 2);
        let at = |place: usize| rates.get(place).copied().unwrap_or(0.0);
        f64::midpoint(at(lower), at(upper))
    }

    /// The latency that `share` of all operations did not exceed, in milliseconds.
    pub fn percentile(&self, share: f64) -> f64 {
        let mut sorted = self.nanoseconds.clone();
        sorted.sort_unstable();
        let place = (sorted.len() as f64 * share) as usize;
        let nanoseconds = sorted.get(place.min(sorted.len().saturating_sub(1))).copied();
        nanoseconds.unwrap_or(0) as f64 / 1e6
    }

    pub fn p50(&self) -> f64 {
        self.percentile(0.50)
    }

    pub fn p99(&self) -> f64 {
        self.percentile(0.99)
    }
}

pub fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .context("cannot start threads")
}

/// Lets all clients work for one round, and gives them back for the next.
pub async fn round<C: Client>(
    clients: Vec<C>,
    time: Duration,
    figures: &mut Figures,
) -> Result<Vec<C>> {
    let begin = Instant::now();
    let end = begin + time;
    let mut tasks = JoinSet::new();
    for client in clients {
        tasks.spawn(work(client, end));
    }
    let mut back = Vec::new();
    let mut latencies = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        let (client, own) = ended??;
        back.push(client);
        latencies.extend(own);
    }
    figures.add_round(begin.elapsed(), &latencies);
    Ok(back)
}

async fn work<C: Client>(mut client: C, end: Instant) -> Result<(C, Vec<Duration>)> {
    let mut latencies = Vec::with_capacity(4096);
    let mut before = Instant::now();
    while before < end && latencies.len() < MAX_STEPS {
        client.step().await?;
        let after = Instant::now();
        latencies.push(after - before);
        before = after;
    }
    Ok((client, latencies))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_rounds(rounds: &[(u64, &[u64])]) -> Figures {
        let mut figures = Figures::default();
        for (seconds, milliseconds) in rounds {
            let latencies: Vec<_> =
                milliseconds.iter().map(|ms| Duration::from_millis(*ms)).collect();
            figures.add_round(Duration::from_secs(*seconds), &latencies);
        }
        figures
    }

    #[test]
    fn the_rate_is_the_median_of_the_rounds() {
        let figures = of_rounds(&[(1, &[1, 1]), (1, &[1; 100]), (1, &[1; 4])]);
        assert!((figures.rate() - 4.0).abs() < 1e-9);
        let figures = of_rounds(&[(1, &[1, 1]), (1, &[1; 4])]);
        assert!((figures.rate() - 3.0).abs() < 1e-9);
        assert!(Figures::default().rate().abs() < 1e-9);
    }

    #[test]
    fn percentiles_are_over_all_rounds() {
        let slow: Vec<u64> = (1..=100).collect();
        let figures = of_rounds(&[(1, &slow[..50]), (1, &slow[50..])]);
        assert!((figures.p50() - 51.0).abs() < 1e-9);
        assert!((figures.p99() - 100.0).abs() < 1e-9);
    }
}
