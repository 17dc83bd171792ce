//! Following an operation: bars for phases and hosts on a terminal, its log as lines elsewhere.

use std::{collections::BTreeMap, io::IsTerminal};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use wharf_api::{
    client::Client,
    operation::{Operation, Step},
};

use crate::{
    commands::{follow, segment},
    failure::{Exit, Told},
    output,
};

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
    follow::until(client, &path, &format!("operation/{id}"), |operation: &Operation| {
        view.show(operation);
        operation.ended_at.is_some()
    })
    .await
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
