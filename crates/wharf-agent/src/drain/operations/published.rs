//! What is said of operations: requests, and how far each of them is.

use wharf_api::node_files::{
    BaseOsStatus, DEVICE, GLOBAL, NodeAgentStatus, NodeDrainRequest, NodeFile, NodeJob, NodeJobs,
    NodeWish, Time, UPDATE, UuidAndVersion,
};
use wharf_core::node::{
    gate::{Request, Requests, is_waiting_for_drain},
    requester::{Decision, Image, Job, Journal, Kind, Phase, Wait, base_os_state},
    status::Requester,
};

use super::super::{
    Said,
    inputs::{DEVICE_AGENT, UPDATE_AGENT},
};
use crate::{
    config::Role,
    files::FilesError,
    health::{AGENT, Reporter},
    tasks::Context,
};

const NODE_AGENT: &str = "nodeagent";
/// Why a job is canceled that nobody canceled.
const REPLACED: &str = "another operation took its place on the node";

pub struct Publisher {
    context: Context,
    reporter: Reporter,
    /// As it was last shown.
    waits_for_drain: bool,
    /// The update of which alone something is said.
    base_os: Option<String>,
}

impl Publisher {
    pub fn new(context: &Context, reporter: Reporter) -> Self {
        // Another process may have shown it; it holds until the gate says otherwise.
        let shown = context.files.read::<NodeAgentStatus>(NODE_AGENT, NODE_AGENT).ok().flatten();
        let waits_for_drain = shown.is_some_and(|shown| shown.wait_drain_in_progress);
        Self { context: context.clone(), reporter, waits_for_drain, base_os: None }
    }

    /// Publishes all of it, each only where this agent plays the one who does. Whether all of it is
    /// in its files; what is not is a fault of the files.
    pub fn tell(
        &mut self,
        journal: &Journal,
        decision: &Decision,
        said: &Said,
        image: Option<&Image>,
        wish: Option<&NodeWish>,
    ) -> bool {
        self.report(journal);
        let told = [
            self.tell_requests(&decision.requests),
            self.tell_node_agent(journal, said),
            self.tell_base_os(journal, image, wish),
            self.tell_jobs(journal, &decision.waits, said),
        ];
        told.iter().all(Result::is_ok)
    }

    fn tell_requests(&self, requests: &Requests) -> Result<(), FilesError> {
        self.parts()
            .try_for_each(|(agent, requester)| self.tell_request(requests, agent, requester))
    }

    /// Writes those again that nobody can read. What cannot be written is a fault of the files.
    pub fn mend_requests(&self, requests: &Requests) {
        for (agent, requester) in self.parts() {
            if self.context.files.read::<NodeDrainRequest>(agent, GLOBAL).is_err() {
                let _ = self.tell_request(requests, agent, requester);
            }
        }
    }

    fn tell_request(
        &self,
        requests: &Requests,
        agent: &str,
        requester: Requester,
    ) -> Result<(), FilesError> {
        let request = requests.get(requester).map(|request| to_file(request, requester));
        self.put(agent, GLOBAL, request.as_ref())
    }

    /// In whose names this agent asks.
    fn parts(&self) -> impl Iterator<Item = (&'static str, Requester)> {
        let parts = [
            (Role::Zedagent, DEVICE_AGENT, Requester::DeviceOperation),
            (Role::Baseosmgr, UPDATE_AGENT, Requester::Update),
        ];
        let played = parts.into_iter().filter(|(role, ..)| self.context.config.plays(*role));
        played.map(|(_, agent, requester)| (agent, requester))
    }

    fn tell_node_agent(&mut self, journal: &Journal, said: &Said) -> Result<(), FilesError> {
        if !self.context.config.plays(Role::Nodeagent) {
            return Ok(());
        }
        self.waits_for_drain = is_waiting_for_drain(self.waits_for_drain, said.published);
        let leaves = |kinds: &[Kind]| {
            let mut jobs = [&journal.device_operation, &journal.update].into_iter().flatten();
            jobs.any(|job| kinds.contains(&job.kind) && matches!(job.phase, Phase::Leaving { .. }))
        };
        let status = NodeAgentStatus {
            name: NODE_AGENT.to_owned(),
            update_inprogress: journal.update.as_ref().is_some_and(|job| !job.is_over()),
            device_reboot: leaves(&[Kind::Reboot, Kind::Update]),
            device_shutdown: leaves(&[Kind::Shutdown]),
            wait_drain_in_progress: self.waits_for_drain,
            ..NodeAgentStatus::default()
        };
        self.put(NODE_AGENT, NODE_AGENT, Some(&status))
    }

    fn tell_base_os(
        &mut self,
        journal: &Journal,
        image: Option<&Image>,
        wish: Option<&NodeWish>,
    ) -> Result<(), FilesError> {
        if !self.context.config.plays(Role::Baseosmgr) {
            return Ok(());
        }
        let Some(job) = journal.base_os() else { return Ok(()) };
        let wish = wish.filter(|wish| wish.id == job.id);
        self.drop_older(&job.id)?;
        let Some((state, activated)) = base_os_state(image.unwrap_or(&Image::Fetching), job) else {
            return self.put::<BaseOsStatus>(UPDATE_AGENT, &job.id, None);
        };
        let version = wish.map_or(&job.id, |wish| &wish.sha256).clone();
        let (error, error_time) = match &job.phase {
            Phase::Failed { at, reason } => (reason.clone(), (*at).into()),
            _ => (String::new(), Time::default()),
        };
        let status = BaseOsStatus {
            uuid_and_version: UuidAndVersion {
                uuid: job.id.parse().unwrap_or_default(),
                version: version.clone(),
            },
            base_os_version: version,
            activated,
            reboot: matches!(job.phase, Phase::Leaving { .. }),
            state: state.number(),
            error,
            error_time,
            ..BaseOsStatus::default()
        };
        self.put(UPDATE_AGENT, &job.id, Some(&status))
    }

    /// What is said of updates before this one goes, also what an agent before this one said.
    fn drop_older(&mut self, id: &str) -> Result<(), FilesError> {
        if self.base_os.as_deref() == Some(id) {
            return Ok(());
        }
        let keys = self.context.files.keys::<BaseOsStatus>(UPDATE_AGENT).unwrap_or_default();
        for older in keys.iter().filter(|key| *key != id) {
            self.put::<BaseOsStatus>(UPDATE_AGENT, older, None)?;
        }
        self.base_os = Some(id.to_owned());
        Ok(())
    }

    fn tell_jobs(
        &self,
        journal: &Journal,
        waits: &[(Requester, Wait)],
        said: &Said,
    ) -> Result<(), FilesError> {
        let parts = [
            (Requester::DeviceOperation, &journal.device_operation),
            (Requester::Update, &journal.update),
        ];
        let jobs = parts.into_iter().filter_map(|(requester, job)| {
            let wait = waits.iter().find(|(who, _)| *who == requester).map(|(_, wait)| wait);
            Some(to_job(job.as_ref()?, wait, said))
        });
        let jobs: Vec<NodeJob> = jobs.chain(self.replaced(journal, said)).collect();
        self.put(AGENT, GLOBAL, Some(&NodeJobs { jobs: jobs.into() }))
    }

    /// Whoever sent a wish that lost its place waits for its end, until something else is sent.
    fn replaced(&self, journal: &Journal, said: &Said) -> Vec<NodeJob> {
        let sent = [DEVICE, UPDATE].map(|key| self.context.files.read::<NodeWish>(AGENT, key));
        let sent: Vec<NodeWish> = sent.into_iter().filter_map(|wish| wish.ok().flatten()).collect();
        let replaced = journal.replaced.iter().filter(|job| sent.iter().any(|it| it.id == job.id));
        let jobs = replaced.map(|job| match job.phase {
            Phase::Canceled { .. } => {
                NodeJob { reason: REPLACED.to_owned(), ..to_job(job, None, said) }
            }
            _ => to_job(job, None, said),
        });
        jobs.collect()
    }

    /// An operation that failed is a fault until another takes its place.
    fn report(&self, journal: &Journal) {
        for (subject, job) in
            [("device operation", &journal.device_operation), ("update", &journal.update)]
        {
            match job.as_ref().map(|job| &job.phase) {
                Some(Phase::Failed { reason, .. }) => self.reporter.fault(subject, reason),
                _ => self.reporter.clear(subject),
            }
        }
    }

    fn put<T: NodeFile>(
        &self,
        agent: &str,
        key: &str,
        value: Option<&T>,
    ) -> Result<(), FilesError> {
        match value {
            Some(value) => self.context.files.publish(agent, key, value).map(drop),
            None => self.context.files.unpublish::<T>(agent, key).map(drop),
        }
    }
}

fn to_file(request: &Request, requester: Requester) -> NodeDrainRequest {
    NodeDrainRequest {
        requested_at: Time(request.at),
        requested_by: requester.number(),
        context: request.context.clone(),
    }
}

fn to_job(job: &Job, wait: Option<&Wait>, said: &Said) -> NodeJob {
    let (reason, ended) = match &job.phase {
        Phase::Failed { at, reason } => (reason.clone(), Some(*at)),
        Phase::Done { at } | Phase::Canceled { at } => (String::new(), Some(*at)),
        Phase::Deferred { .. }
        | Phase::Preparing { .. }
        | Phase::Commanding { .. }
        | Phase::Leaving { .. } => (wait.map(|wait| why(wait, said)).unwrap_or_default(), None),
    };
    NodeJob {
        id: job.id.clone(),
        kind: kind(job.kind).to_owned(),
        phase: phase(&job.phase).to_owned(),
        reason,
        ended: Time(ended),
    }
}

/// Who waits for the drain waits for what the drain waits for.
fn why(wait: &Wait, said: &Said) -> String {
    match wait {
        Wait::Drain(_) if !said.reason.is_empty() => format!("{wait}: {}", said.reason),
        wait => wait.to_string(),
    }
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Reboot => "reboot",
        Kind::Shutdown => "shutdown",
        Kind::Update => "update",
    }
}

pub fn phase(phase: &Phase) -> &'static str {
    match phase {
        Phase::Preparing { .. } => "preparing",
        Phase::Deferred { .. } => "deferred",
        Phase::Commanding { .. } => "commanding",
        Phase::Leaving { .. } => "leaving",
        Phase::Done { .. } => "done",
        Phase::Failed { .. } => "failed",
        Phase::Canceled { .. } => "canceled",
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use tokio_util::sync::CancellationToken;
    use wharf_core::node::{gate::Published, status::DrainStatus};

    use super::*;
    use crate::{config::Config, files::Files, health::Health};

    #[tokio::test]
    async fn the_end_of_a_job_that_lost_its_place_is_told_as_long_as_its_wish_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let (health, stop) = (Health::new("n1"), CancellationToken::new());
        let files = Files::open(dir.path(), dir.path(), &health, stop.clone());
        let reporter = health.task("operations");
        let config = Arc::new(Config::default());
        let context = Context { config, files: files.clone(), health, stop };
        let publisher = Publisher::new(&context, reporter);
        let at = jiff::Timestamp::UNIX_EPOCH;
        let job = |id: &str, phase| Job { id: id.to_owned(), kind: Kind::Reboot, phase };
        let journal = Journal {
            device_operation: Some(job("local", Phase::Done { at })),
            replaced: vec![
                job("older", Phase::Canceled { at }),
                job("server", Phase::Canceled { at }),
                job("server-update", Phase::Done { at }),
            ],
            ..Journal::default()
        };
        let published = DrainStatus::NotRequested;
        let published = Published { status: published, requested_by: Requester::Nobody };
        let said = Said { published, requests: Requests::default(), reason: String::new() };
        let told = || {
            publisher.tell_jobs(&journal, &[], &said).unwrap();
            let jobs = files.read::<NodeJobs>(AGENT, GLOBAL).unwrap().unwrap();
            let told = jobs.jobs.0.iter().map(|job| format!("{} {}", job.id, job.phase));
            told.collect::<Vec<_>>().join(", ")
        };
        assert_eq!(told(), "local done");
        for (key, id) in [(DEVICE, "server"), (UPDATE, "server-update")] {
            let wish = NodeWish { id: id.to_owned(), ..NodeWish::default() };
            files.publish(AGENT, key, &wish).unwrap();
        }
        assert_eq!(told(), "local done, server canceled, server-update done");
        let jobs = files.read::<NodeJobs>(AGENT, GLOBAL).unwrap().unwrap().jobs.0;
        let reasons: Vec<&str> = jobs.iter().map(|job| job.reason.as_str()).collect();
        assert_eq!(reasons, ["", REPLACED, ""]);
        files.unpublish::<NodeWish>(AGENT, DEVICE).unwrap();
        assert_eq!(told(), "local done, server-update done");
    }

    fn publisher(dir: &Path, role: Role) -> (Publisher, Files) {
        let (health, stop) = (Health::new("n1"), CancellationToken::new());
        let files = Files::open(dir, dir, &health, stop.clone());
        let config = Arc::new(Config { publish_as: vec![role], ..Config::default() });
        let reporter = health.task("operations");
        let context = Context { config, files: files.clone(), health, stop };
        (Publisher::new(&context, reporter), files)
    }

    #[tokio::test]
    async fn only_of_the_last_update_something_is_said_and_of_a_canceled_one_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (mut publisher, files) = publisher(dir.path(), Role::Baseosmgr);
        // An agent before this one told of another.
        let older = BaseOsStatus { state: 111, ..BaseOsStatus::default() };
        files.publish(UPDATE_AGENT, "os-1", &older).unwrap();
        let mut journal = Journal::default();
        let mut tell = |phase: Phase| {
            journal.update = Some(Job { id: "os-2".to_owned(), kind: Kind::Update, phase });
            publisher.tell_base_os(&journal, Some(&Image::Fetching), None).unwrap();
            let mut keys = files.keys::<BaseOsStatus>(UPDATE_AGENT).unwrap();
            let key = keys.pop()?;
            assert_eq!(keys, [""; 0], "beside {key}");
            let status: BaseOsStatus = files.read(UPDATE_AGENT, &key).unwrap().unwrap();
            Some((key, status.state, status.error))
        };
        let now = jiff::Timestamp::UNIX_EPOCH;
        let failed = Phase::Failed { at: now, reason: "exit 1".to_owned() };
        assert_eq!(tell(failed), Some(("os-2".to_owned(), 124, "exit 1".to_owned())));
        assert_eq!(tell(Phase::Canceled { at: now }), None);
    }

    #[tokio::test]
    async fn what_the_node_was_updated_to_is_told_again_when_the_next_update_is_canceled() {
        let dir = tempfile::tempdir().unwrap();
        let (mut publisher, files) = publisher(dir.path(), Role::Baseosmgr);
        let at = jiff::Timestamp::UNIX_EPOCH;
        let job = |id: &str, phase| Some(Job { id: id.to_owned(), kind: Kind::Update, phase });
        let mut journal = Journal {
            installed: job("os-2", Phase::Done { at }),
            update: job("os-3", Phase::Preparing { request: None }),
            ..Journal::default()
        };
        let wish =
            NodeWish { id: "os-3".to_owned(), sha256: "3".to_owned(), ..NodeWish::default() };
        let mut tell = |journal: &Journal| {
            publisher.tell_base_os(journal, Some(&Image::Fetching), Some(&wish)).unwrap();
            let keys = files.keys::<BaseOsStatus>(UPDATE_AGENT).unwrap();
            let [key] = &keys[..] else { panic!("{keys:?}") };
            let status: BaseOsStatus = files.read(UPDATE_AGENT, key).unwrap().unwrap();
            (key.clone(), status.base_os_version, status.state, status.activated)
        };
        assert_eq!(tell(&journal), ("os-3".to_owned(), "3".to_owned(), 103, false));
        journal.update = job("os-3", Phase::Canceled { at });
        assert_eq!(tell(&journal), ("os-2".to_owned(), "os-2".to_owned(), 111, true));
    }

    #[tokio::test]
    async fn an_own_request_that_cannot_be_read_is_written_again_and_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let (publisher, files) = publisher(dir.path(), Role::Zedagent);
        let path = |agent: &str| dir.path().join(agent).join("NodeDrainRequest/global.json");
        for agent in [DEVICE_AGENT, UPDATE_AGENT] {
            std::fs::create_dir_all(path(agent).parent().unwrap()).unwrap();
            std::fs::write(path(agent), "{").unwrap();
        }
        let request = Request { at: None, context: "reboot".to_owned() };
        let asked = Requests { device_operation: Some(request), update: None };
        publisher.mend_requests(&asked);
        let read = |agent| files.read::<NodeDrainRequest>(agent, GLOBAL);
        assert_eq!(read(DEVICE_AGENT).unwrap().unwrap().context, "reboot");
        assert!(read(UPDATE_AGENT).is_err(), "another agent's word");
        // One that can be read is the business of the first look.
        publisher.mend_requests(&Requests::default());
        assert!(read(DEVICE_AGENT).unwrap().is_some());
    }
}
