//! Following an operation: bars for phases and hosts on a terminal, its log as lines elsewhere.

use std::{
    collections::BTreeMap,
    io::IsTerminal,
    pin::pin,
    time::{Duration, Instant},
};

use futures_util::StreamExt;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use wharf_api::{
    client::{Client, ClientError, EventItem},
    operation::{Operation, Step},
};

use crate::{
    commands::segment,
    failure::{Exit, Told},
    output,
};

/// Events tell when to look again; this is for those that are lost.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A server that restarts is back by then.
const PATIENCE: Duration = Duration::from_secs(60);

/// Shows the operation until it is over; an error if it did not succeed.
pub async fn follow(client: &Client, operation: &str) -> anyhow::Result<Operation> {
    let mut view: Box<dyn View> = match std::io::stderr().is_terminal() {
        true => Box::new(Bars::default()),
        false => Box::new(Lines::default()),
    };
    let ended = watch(client, operation, view.as_mut()).await;
    view.close();
    let ended = ended?;
    match ended.state.as_str() {
        "succeeded" => Ok(ended),
        state => {
            let error = ended.error.unwrap_or_default();
            let message = format!("{} of {}: {state}. {error}", ended.kind, ended.cluster);
            let told = Told::new(Exit::Failed, message.trim_end().to_owned());
            Err(match ended.hint {
                Some(hint) => told.hint(hint).into(),
                None => told.into(),
            })
        }
    }
}

async fn watch(client: &Client, id: &str, view: &mut dyn View) -> anyhow::Result<Operation> {
    let path = format!("/operations/{}", segment(id)?);
    let resource = format!("operation/{id}");
    let mut away_since = None;
    loop {
        // First the stream, then the look: nothing happens between them unseen.
        let events = client.events(None).await;
        match client.get::<Operation>(&path).await {
            Ok(operation) => {
                away_since = None;
                view.show(&operation);
                if operation.ended_at.is_some() {
                    return Ok(operation);
                }
            }
            Err(error) if is_away(&error) => {
                let since = *away_since.get_or_insert_with(Instant::now);
                if since.elapsed() > PATIENCE {
                    return Err(error.into());
                }
            }
            Err(error) => return Err(error.into()),
        }
        let Ok(events) = events else {
            tokio::time::sleep(LOOK_EVERY).await;
            continue;
        };
        let mut events = pin!(events);
        // Until the stream breaks.
        loop {
            let next = tokio::time::timeout(LOOK_EVERY, events.next()).await;
            match next {
                Ok(Some(Ok(EventItem::Event(event)))) if event.resource != resource => continue,
                Ok(Some(Ok(_))) | Err(_) => {}
                Ok(Some(Err(_)) | None) => break,
            }
            let Ok(operation) = client.get::<Operation>(&path).await else { break };
            view.show(&operation);
            if operation.ended_at.is_some() {
                return Ok(operation);
            }
        }
    }
}

fn is_away(error: &ClientError) -> bool {
    match error {
        ClientError::Unreachable { .. } | ClientError::TimedOut { .. } => true,
        ClientError::Api(body) => body.status >= 500,
        ClientError::StreamBroken { .. }
        | ClientError::BadAnswer { .. }
        | ClientError::BadCa(_) => false,
    }
}

trait View {
    fn show(&mut self, operation: &Operation);
    fn close(&mut self);
}

/// The log, each line once.
#[derive(Default)]
struct Lines {
    /// The number of the next line to print.
    next: u64,
}

impl View for Lines {
    fn show(&mut self, operation: &Operation) {
        let start = operation.log_start.unwrap_or_default();
        let lines = operation.log.iter().flatten();
        for (number, line) in (start..).zip(lines) {
            if number >= self.next {
                output::note(&format!("{}  {}", output::time(line.at), line.text));
                self.next = number + 1;
            }
        }
    }

    fn close(&mut self) {}
}

/// A bar for each phase and, below, one for each host.
#[derive(Default)]
struct Bars {
    all: MultiProgress,
    phases: BTreeMap<String, ProgressBar>,
    hosts: BTreeMap<String, ProgressBar>,
}

impl View for Bars {
    fn show(&mut self, operation: &Operation) {
        for phase in &operation.phases {
            let bar = self.phases.entry(phase.name.clone()).or_insert_with(|| {
                let bar = self.all.add(bar());
                bar.set_prefix(phase.name.clone());
                bar
            });
            let steps = || operation.steps.iter().filter(|step| step.phase == phase.name);
            let over = steps().filter(|step| is_over(&step.state)).count() as u64;
            let total = steps().count().max(1) as u64;
            bar.set_length(total);
            bar.set_position(if is_over(&phase.state) { total } else { over.min(total - 1) });
            bar.set_message(phase.state.clone());
        }
        for (host, steps) in by_host(operation) {
            let bar = self.hosts.entry(host.to_owned()).or_insert_with(|| {
                let bar = self.all.add(bar());
                bar.set_prefix(host.to_owned());
                bar
            });
            bar.set_length(steps.len() as u64);
            bar.set_position(steps.iter().filter(|step| is_over(&step.state)).count() as u64);
            let last = steps.last().map(|step| format!("{}: {}", step.name, step.state));
            bar.set_message(last.unwrap_or_default());
        }
    }

    fn close(&mut self) {
        for bar in self.phases.values().chain(self.hosts.values()) {
            bar.abandon();
        }
    }
}

fn by_host(operation: &Operation) -> BTreeMap<&str, Vec<&Step>> {
    let mut hosts: BTreeMap<&str, Vec<&Step>> = BTreeMap::new();
    for step in operation.steps.iter().filter(|step| !step.host.is_empty()) {
        hosts.entry(&step.host).or_default().push(step);
    }
    hosts
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:>16} {bar:24} {pos:>3}/{len:3} {msg}");
    let bar = ProgressBar::new(1);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn is_over(state: &str) -> bool {
    matches!(state, "done" | "failed" | "skipped")
}
