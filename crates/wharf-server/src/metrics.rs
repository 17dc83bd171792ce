//! What `/metrics` tells, in Prometheus' text format.

use std::{sync::atomic::AtomicU64, time::Duration};

use jiff::Timestamp;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use wharf_core::operation::OperationState;

use crate::repair::Board;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    pub method: &'static str,
    /// The route's pattern, never the path itself: paths are without number.
    pub route: String,
    pub status: u16,
}

/// Something that was done for a repair, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RepairLabels {
    pub what: &'static str,
    pub outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RouteLabels {
    pub route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StateLabels {
    pub state: &'static str,
}

pub struct Metrics {
    registry: Registry,
    pub requests: Family<RequestLabels, Counter>,
    pub request_seconds: Family<RouteLabels, Histogram>,
    repair_seconds: Family<RepairLabels, Histogram>,
    pub connections: Gauge,
    pub connections_refused: Counter,
    pub agent_renewals_failed: Counter,
    pub event_streams: Gauge,
    pub events_lost: Counter,
    pub logins_refused: Counter,
    pub clusters_owned: Gauge,
    pub is_member: Gauge,
    pub start_time: Gauge<f64, AtomicU64>,
    pub drains_running: Gauge,
    pub drains_ended: Family<StateLabels, Counter>,
    pub drain_seconds: Family<StateLabels, Histogram>,
    pub drain_pods_evicted: Counter,
    pub drain_pods_waiting: Gauge,
}

impl Metrics {
    /// `repairs` is asked at each scrape: there may be thousands of machines in it, which come and go.
    pub fn new(repairs: &Board) -> Self {
        let mut registry = Registry::with_prefix("wharf");
        registry.register_collector(Box::new(repairs.clone()));
        let metrics = Self {
            requests: Family::default(),
            // From a read out of memory to the limit of a request.
            request_seconds: Family::new_with_constructor(|| {
                Histogram::new([0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0])
            }),
            // From a look at a machine to a drain that takes its time.
            repair_seconds: Family::new_with_constructor(|| {
                Histogram::new([0.01, 0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0])
            }),
            connections: Gauge::default(),
            connections_refused: Counter::default(),
            agent_renewals_failed: Counter::default(),
            event_streams: Gauge::default(),
            events_lost: Counter::default(),
            logins_refused: Counter::default(),
            clusters_owned: Gauge::default(),
            is_member: Gauge::default(),
            start_time: Gauge::default(),
            drains_running: Gauge::default(),
            drains_ended: Family::default(),
            // From an empty node to the longest that one may ask for.
            drain_seconds: Family::new_with_constructor(|| {
                Histogram::new([1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0])
            }),
            drain_pods_evicted: Counter::default(),
            drain_pods_waiting: Gauge::default(),
            registry: Registry::default(),
        };
        registry.register("http_requests", "Requests answered", metrics.requests.clone());
        registry.register(
            "http_request_seconds",
            "Time from a request's head to its answer's head",
            metrics.request_seconds.clone(),
        );
        registry.register(
            "repair_seconds",
            "Time of drains and commands of repairs, by how they ended",
            metrics.repair_seconds.clone(),
        );
        registry.register("http_connections", "Open connections", metrics.connections.clone());
        registry.register(
            "http_connections_refused",
            "Connections closed at once because there were too many",
            metrics.connections_refused.clone(),
        );
        registry.register("event_streams", "Open event streams", metrics.event_streams.clone());
        registry.register(
            "events_lost",
            "Times that a listener was too slow and lost events",
            metrics.events_lost.clone(),
        );
        registry.register(
            "logins_refused",
            "Logins with a wrong name or password, or over the rate limit",
            metrics.logins_refused.clone(),
        );
        registry.register(
            "clusters_owned",
            "Clusters that this server works on",
            metrics.clusters_owned.clone(),
        );
        registry.register(
            "member",
            "1 while this server holds its lease as a member",
            metrics.is_member.clone(),
        );
        registry.register(
            "start_time_seconds",
            "When this server started, in seconds since 1970",
            metrics.start_time.clone(),
        );
        registry.register(
            "agent_renewals_failed",
            "Times that it could not be found out whether an agent needs a new certificate",
            metrics.agent_renewals_failed.clone(),
        );
        metrics.register_drains(&mut registry);
        Self { registry, ..metrics }
    }

    fn register_drains(&self, registry: &mut Registry) {
        registry.register(
            "drains_running",
            "Drains of nodes that this server carries out, or that wait for their turn",
            self.drains_running.clone(),
        );
        registry.register(
            "drains_ended",
            "Drains of nodes that ended, by how they did",
            self.drains_ended.clone(),
        );
        registry.register(
            "drain_seconds",
            "Time from the request of a drain to its end",
            self.drain_seconds.clone(),
        );
        registry.register(
            "drain_pods_evicted",
            "Pods that left their node by a drain that succeeded",
            self.drain_pods_evicted.clone(),
        );
        registry.register(
            "drain_pods_waiting",
            "Pods that have to leave their node yet, over all running drains",
            self.drain_pods_waiting.clone(),
        );
    }

    /// Notes the end of a drain.
    pub fn drain_ended(&self, state: OperationState, started_at: Timestamp) {
        let labels = StateLabels { state: state.name() };
        let seconds = Timestamp::now().duration_since(started_at).as_secs_f64().max(0.0);
        self.drains_ended.get_or_create(&labels).inc();
        self.drain_seconds.get_or_create(&labels).observe(seconds);
    }

    /// Counts a drain or a command of a repair that has ended.
    pub fn note_repair(&self, labels: &RepairLabels, took: Duration) {
        self.repair_seconds.get_or_create(labels).observe(took.as_secs_f64());
    }

    pub fn render(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
