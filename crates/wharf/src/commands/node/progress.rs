//! Following a drain: a bar with the pods that are left on a terminal, lines elsewhere.

use std::{collections::BTreeMap, io::IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};
use wharf_api::{
    client::Client,
    drain::{Drain, PodLeft},
};

use crate::{
    commands::{follow, segment},
    output,
};

/// So many pods are shown below the bar; the rest is counted.
const SHOWN: usize = 10;

/// Shows the drain until it is over.
pub async fn follow(client: &Client, cluster: &str, node: &str) -> anyhow::Result<Drain> {
    let path = format!("/clusters/{}/nodes/{}/drain", segment(cluster)?, segment(node)?);
    let resource = format!("drain/{cluster}/{node}");
    let mut view: Box<dyn View> = match std::io::stderr().is_terminal() {
        true => Box::new(Bar(bar())),
        false => Box::new(Lines::default()),
    };
    let ended = follow::until(client, &path, &resource, |drain: &Drain| {
        view.show(drain);
        drain.ended_at.is_some()
    });
    let ended = ended.await;
    view.close();
    ended
}

trait View {
    fn show(&mut self, drain: &Drain);
    fn close(&mut self);
}

/// What is new, each once.
#[derive(Default)]
struct Lines {
    head: String,
    pods: BTreeMap<String, String>,
}

impl View for Lines {
    fn show(&mut self, drain: &Drain) {
        for line in self.news(drain) {
            output::note(&line);
        }
    }

    fn close(&mut self) {}
}

impl Lines {
    fn news(&mut self, drain: &Drain) -> Vec<String> {
        let mut lines = Vec::new();
        let head = head(drain);
        if self.head != head {
            lines.push(head.clone());
            self.head = head;
        }
        let mut pods = BTreeMap::new();
        for pod in &drain.pods {
            let name = format!("{}/{}", pod.namespace, pod.name);
            // That its turn has not come is no news.
            if pod.blocks && self.pods.get(&name) != Some(&pod.reason) {
                lines.push(format!("  {}", line(pod)));
            }
            pods.insert(name, pod.reason.clone());
        }
        self.pods = pods;
        lines
    }
}

struct Bar(ProgressBar);

impl View for Bar {
    fn show(&mut self, drain: &Drain) {
        let mut text = head(drain);
        for pod in drain.pods.iter().take(SHOWN) {
            text.push_str(&format!("\n  {}", line(pod)));
        }
        let more = drain.left.saturating_sub(SHOWN);
        if more > 0 && !drain.pods.is_empty() {
            text.push_str(&format!("\n  and {more} more"));
        }
        self.0.set_length(drain.total.max(1) as u64);
        self.0.set_position(drain.total.saturating_sub(drain.left) as u64);
        self.0.set_message(text);
    }

    fn close(&mut self) {
        self.0.finish_and_clear();
    }
}

fn head(drain: &Drain) -> String {
    let Drain { node, stage, left, total, reason, .. } = drain;
    let what = match stage.as_str() {
        "waiting" => format!("{node} waits"),
        "rehearsing" => format!("{node}: {left} pods have to leave; asking whether they may"),
        "detaching" => format!("{node}: all pods have left; waiting for their volumes"),
        "gone" => format!("there is no node {node}"),
        _ => format!("{node}: {left} of {total} pods have to leave yet"),
    };
    // What holds a pod is said with the pod.
    match reason {
        Some(reason) if !reason.starts_with("pod ") => format!("{what}: {reason}"),
        Some(_) | None => what,
    }
}

fn line(pod: &PodLeft) -> String {
    format!("{}/{} {} ({})", pod.namespace, pod.name, pod.reason, age(pod.age_seconds))
}

fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(1);
    match ProgressStyle::with_template("{bar:24} {pos:>3}/{len:3} {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(stage: &str, reason: Option<&str>, pods: &[(&str, &str, bool)]) -> Drain {
        let pods: Vec<_> = pods
            .iter()
            .map(|(name, reason, blocks)| {
                serde_json::json!({
                    "namespace": "default", "name": name, "reason": reason, "blocks": blocks,
                    "since": "2026-01-01T00:00:00Z", "ageSeconds": 75,
                })
            })
            .collect();
        serde_json::from_value(serde_json::json!({
            "id": "1", "type": "drain", "links": {}, "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": null, "cluster": "demo", "node": "n1", "state": "running",
            "canceled": false, "timedOut": false, "cordonLeft": false, "requestedBy": "admin",
            "options": {}, "startedAt": "2026-01-01T00:00:00Z", "endedAt": null, "reason": reason,
            "stage": stage, "total": 3, "left": pods.len(), "givenUp": 0, "pods": pods,
        }))
        .unwrap()
    }

    #[test]
    fn lines_tell_what_is_new_and_nothing_twice() {
        let mut lines = Lines::default();
        let waits = "the machine is out of service already, by repair";
        let first = lines.news(&drain("waiting", Some(waits), &[]));
        assert_eq!(first, [format!("n1 waits: {waits}")]);
        let budget = "is protected by budget db, 0 allowed";
        let blocked = drain(
            "evicting",
            Some("pod default/db-0 is protected"),
            &[("db-0", budget, true), ("web", "has not been evicted yet", false)],
        );
        let told = lines.news(&blocked);
        assert_eq!(
            told,
            [
                "n1: 2 of 3 pods have to leave yet".to_owned(),
                format!("  default/db-0 {budget} (1 min)")
            ]
        );
        assert_eq!(lines.news(&blocked), Vec::<String>::new());
    }
}
