//! The drain gate on real machines: operations wait until their node is empty, and are really done.

use std::{fs, time::Duration};

use serde_json::{Value, json};
use wharf_testbed::{Host, Power, wait_for};

use crate::{
    CONTROL, WORKER,
    bed::{Bed, DEADLINE},
    cordoned,
    held::Held,
    join, nodes_ready,
};

const NAME: &str = "gate";
const NODES: [(&str, &[&str]); 3] = [("node1", CONTROL), ("node2", WORKER), ("node3", WORKER)];
const NODE: &str = "node3";
const CONFIG: &str = "/etc/wharf/agent/agent.toml";
/// What the update changes on the host.
const BASE: &str = "/etc/base-version";

#[test]
fn a_node_is_emptied_before_it_goes_down_and_goes_down_once() {
    let bed = Bed::start(NAME, 3);
    bed.send(&["create"], &bed.wish(NAME, &NODES)).ok();
    let gate = Gate::prepare(&bed);

    gate.a_held_operation_is_taken_back_or_is_done_once();
    gate.a_blocked_reboot_waits_and_is_then_done();
    gate.a_cordon_that_is_refused_has_failed_and_is_tried_again_without_a_word();
    gate.a_cordon_of_a_person_outlives_the_reboot();
    gate.a_killed_agent_goes_on_in_every_state();
    gate.an_update_and_a_reboot_share_the_first_drain();
    gate.a_cluster_that_is_cut_off_does_not_hold_the_node();
    join::a_kubelet_waits_for_its_own_cluster(&bed, NAME, NODE, "node1");
}

struct Gate<'a> {
    bed: &'a Bed,
    host: &'a Host,
}

impl<'a> Gate<'a> {
    /// Makes one node ready for the trials; its agent is as the installer left it, but quicker.
    fn prepare(bed: &'a Bed) -> Self {
        bed.wait_for_links(NAME, NODES.len());
        let gate = Self { bed, host: bed.host(NODE) };
        // Every boot leaves its id.
        let unit = "[Service]\nType=oneshot\nExecStart=/bin/sh -c \
                    'cat /proc/sys/kernel/random/boot_id >>/persist/boots'\n\
                    [Install]\nWantedBy=multi-user.target\n";
        gate.write("etc/systemd/system/boots.service", unit);
        gate.host.run(&["systemctl", "enable", "--quiet", "--now", "boots"]).unwrap();
        // The log outlives the boots too.
        let keep = "mkdir -p /var/log/journal && systemctl restart systemd-journald";
        gate.host.run(&["sh", "-c", keep]).unwrap();
        gate.configure(600);
        gate
    }

    fn configure(&self, api_skip_seconds: u64) {
        let installed = fs::read_to_string(self.host.root().join(&CONFIG[1..])).unwrap();
        let ours = ["update_command", "drain_retry_seconds", "api_skip_seconds"];
        let kept = installed.lines().filter(|line| !ours.iter().any(|key| line.starts_with(key)));
        let mut config: String = kept.map(|line| format!("{line}\n")).collect();
        config.insert_str(0, &format!(
            "update_command = ['sh', '-c', 'echo run >>/persist/updates; cp \"$1\" {BASE}', 'sh']\n\
             drain_retry_seconds = 3\napi_skip_seconds = {api_skip_seconds}\n"
        ));
        self.write(&CONFIG[1..], &config);
        self.host.run(&["systemctl", "restart", "wharf-agent"]).unwrap();
        self.wait_for_status(2);
    }

    /// From the server, while a budget holds the drain: what is taken back was never begun, what is not
    /// is done when the budget lets go.
    fn a_held_operation_is_taken_back_or_is_done_once(&self) {
        self.run_a_protected_pod();
        let booted = self.boots();
        self.bed.world.local(&["node", "reboot", NAME, NODE]).ok();
        self.wait_for_the_budget();
        assert_eq!(cordoned(self.bed, NAME), [NODE]);
        self.bed.world.local(&["node", "reboot", NAME, NODE, "--cancel"]).ok();
        let ended = self.bed.wait_for_end(NAME);
        assert_eq!(ended["state"], "canceled", "{ended}");
        self.wait_for("the node to be given back", || {
            cordoned(self.bed, NAME).is_empty() && self.cordon_mark().is_empty()
        });
        self.wait_for_status(2);
        assert_eq!((self.boots(), &self.job("reboot")["Phase"]), (booted, &json!("canceled")));

        self.bed.world.local(&["node", "shutdown", NAME, NODE]).ok();
        self.wait_for_the_budget();
        assert_eq!((self.boots(), self.host.power().unwrap()), (booted, Power::On));
        self.bed.kubectl(NAME, &["delete", "pdb", "held"]).unwrap();
        self.wait_for("the machine to be off", || self.host.power().unwrap() == Power::Off);
        let ended = self.bed.wait_for_end(NAME);
        assert_eq!(ended["state"], "succeeded", "{ended}");
        assert_eq!(cordoned(self.bed, NAME), [NODE]);
        self.host.start().unwrap();
        self.wait_until_back("shutdown");
        assert_eq!((self.boots(), self.host.power().unwrap()), (booted + 1, Power::On));
    }

    fn wait_for_the_budget(&self) {
        self.wait_for("the budget to be named", || {
            let blocking = self.status()["Blocking"].to_string();
            blocking.contains("pod default/held is protected by budget held, 0 allowed")
        });
    }

    fn a_blocked_reboot_waits_and_is_then_done(&self) {
        self.run_a_protected_pod();
        let booted = self.boots();
        self.agent(&["reboot"]);
        self.wait_for_the_budget();
        assert_eq!(self.status()["Status"], 5);
        assert_eq!(cordoned(self.bed, NAME), [NODE]);
        let health = self.host.ssh(&["/opt/wharf/bin/wharf", "agent", "status"]).unwrap();
        let shown = String::from_utf8_lossy(&health.stdout).into_owned();
        assert!(shown.contains("budget held") && health.status.code() == Some(1), "{shown}");
        assert_eq!(self.node_agent()["WaitDrainInProgress"], true);
        assert_eq!(self.boots(), booted, "nothing has happened yet");

        self.bed.kubectl(NAME, &["delete", "pdb", "held"]).unwrap();
        self.wait_for_boots(booted + 1);
        self.wait_until_back("reboot");
        assert_eq!(self.boots(), booted + 1);
        let log = self.log();
        for word in [
            "NodeDrainRequest",
            "NodeDrainStatus is COMPLETE",
            "cordonNode",
            "cordonAndDrainNode",
            "scheduleDeviceOperation",
            "nodedrain-step",
            "kubevirt_node_drain_completion_time_seconds:s",
        ] {
            assert!(log.contains(word), "{word} is not in the log:\n{log}");
        }
        // The run directory went with the boot; whoever collects numbers comes later.
        let took = log.rsplit("kubevirt_node_drain_completion_time_seconds:s").next().unwrap();
        let is_number = |letter: &char| letter.is_ascii_digit() || *letter == '.';
        let took: String = took.chars().take_while(is_number).collect();
        let metrics = self.host.run(&["cat", "/run/wharf/metrics.prom"]).unwrap();
        let metric = format!("kubevirt_node_drain_completion_time_seconds {took}");
        assert!(
            took.parse::<f64>().is_ok() && metrics.lines().any(|line| line == metric),
            "{metrics}"
        );
    }

    /// After ten tries, which the agent that is killed then has counted.
    fn a_cordon_that_is_refused_has_failed_and_is_tried_again_without_a_word(&self) {
        let booted = self.boots();
        self.refuse_cordons();
        self.kill_at("6", || self.agent(&["reboot"]));
        assert_eq!((self.boots(), cordoned(self.bed, NAME).len()), (booted, 0));
        let wanted = self.job("reboot")["ID"].clone();
        self.wait_for("another try to be announced", || {
            self.job("reboot")["Reason"].to_string().contains("is asked for again in a while")
        });
        self.allow("cordons");
        self.wait_for_boots(booted + 1);
        self.wait_until_back("reboot");
        assert_eq!(self.boots(), booted + 1, "{}", self.log());
        assert_eq!(self.job("reboot")["ID"], wanted, "nobody asked a second time");
    }

    /// The node is emptied like any other, and comes back as it was found.
    fn a_cordon_of_a_person_outlives_the_reboot(&self) {
        let booted = self.boots();
        self.run_a_protected_pod();
        self.bed.kubectl(NAME, &["delete", "pdb", "held"]).unwrap();
        self.bed.kubectl(NAME, &["cordon", NODE]).unwrap();
        self.bed.world.local(&["node", "reboot", NAME, NODE, "--wait"]).ok();
        assert_eq!(self.boots(), booted + 1);
        self.wait_for("the agent's own mark to be gone", || self.cordon_mark().is_empty());
        assert_eq!(cordoned(self.bed, NAME), [NODE]);
        let pod = self.bed.kubectl(NAME, &["get", "pod", "held"]).unwrap_err();
        assert!(pod.contains("NotFound"), "it was evicted: {pod}");
        assert!(self.log().contains("StillCordoned"), "{}", self.log());
        self.bed.kubectl(NAME, &["uncordon", NODE]).unwrap();
        self.wait_until_back("reboot");
    }

    /// In turn: when it has just asked, while the cluster does not answer, while evictions fail, after
    /// they have failed for good, while a budget blocks, and at the very end. After the failure nobody
    /// asks for anything: it is the same job that is done.
    fn a_killed_agent_goes_on_in_every_state(&self) {
        let booted = self.boots();
        self.run_a_protected_pod();
        self.cut_off(true);
        self.kill_in_requested();
        let wanted = self.job("reboot")["ID"].clone();
        self.kill_at("4", || {});
        self.refuse_evictions(true);
        self.cut_off(false);
        self.kill_at("7", || {});
        self.kill_at("8", || {});
        assert_eq!(self.boots(), booted);
        self.refuse_evictions(false);
        self.kill_at("5", || {});
        self.wait_for_status(5);
        assert_eq!((self.boots(), cordoned(self.bed, NAME)), (booted, vec![NODE.to_owned()]));
        self.hold_the_first_reboot();
        self.kill_when("9", "[[ -d /persist/held ]]", || {
            self.bed.kubectl(NAME, &["delete", "pdb", "held"]).unwrap();
        });
        self.wait_for_boots(booted + 1);
        self.wait_until_back("reboot");
        assert_eq!(self.boots(), booted + 1, "{}", self.log());
        assert_eq!(self.job("reboot")["ID"], wanted, "nobody asked a second time");
    }

    /// REQUESTED lasts only until the next record is written, so that is kept from being written.
    fn kill_in_requested(&self) {
        let record = self.host.root().join("persist/wharf/drain-gate.json");
        let held = Held::at(&record, "requested");
        self.agent(&["reboot"]);
        held.wait(DEADLINE);
        self.wait_for_status(3);
        let kill = "kill -9 $(systemctl show wharf-agent -p MainPID --value)";
        self.host.run(&["sh", "-c", kill]).unwrap();
        assert_eq!(self.status()["Status"], 3);
        let found: Value = serde_json::from_str(&fs::read_to_string(&record).unwrap()).unwrap();
        assert!(found["phase"]["requested"].is_object(), "{found}");
    }

    fn an_update_and_a_reboot_share_the_first_drain(&self) {
        let booted = self.boots();
        self.run_a_protected_pod();
        self.write("root/base.img", "base 2\n");
        let sum = self.host.run(&["sha256sum", "/root/base.img"]).unwrap();
        let sum = sum.split(' ').next().unwrap();
        self.agent(&["update", "--image", "/root/base.img", "--sha256", &"0".repeat(64)]);
        self.wait_for("the bad image to be refused", || self.job("update")["Phase"] == "failed");
        assert_eq!(self.status()["Status"], 2, "no drain was begun for it");
        self.agent(&["update", "--image", "/root/base.img", "--sha256", sum]);
        self.wait_for_status(5);
        self.agent(&["reboot"]);
        self.wait_for("both to ask", || {
            let asks = |agent: &str| {
                !self.read(&format!("run/{agent}/NodeDrainRequest/global.json")).is_null()
            };
            asks("zedagent") && asks("baseosmgr")
        });
        assert!(!self.host.root().join(&BASE[1..]).exists());
        self.bed.kubectl(NAME, &["delete", "pdb", "held"]).unwrap();
        // The update reboots into itself; the other operation then has a drain and a boot of its own.
        self.wait_for_boots(booted + 2);
        self.wait_until_back("reboot");
        self.wait_for("the update to be done", || self.job("update")["Phase"] == "done");
        assert_eq!(self.boots(), booted + 2);
        assert_eq!(fs::read_to_string(self.host.root().join(&BASE[1..])).unwrap(), "base 2\n");
        let runs = fs::read_to_string(self.host.root().join("persist/updates")).unwrap();
        assert_eq!(runs, "run\n");
        let id = self.job("update")["ID"].as_str().unwrap().to_owned();
        let status = self.read(&format!("run/baseosmgr/BaseOsStatus/{id}.json"));
        assert_eq!((&status["State"], &status["Activated"]), (&json!(111), &json!(true)));
        assert!(self.log().contains("baseOsHandleStatusUpdateUUID"), "{}", self.log());
    }

    fn a_cluster_that_is_cut_off_does_not_hold_the_node(&self) {
        self.configure(15);
        let booted = self.boots();
        self.run_a_protected_pod();
        self.cut_off(true);
        self.agent(&["reboot"]);
        self.wait_for_boots(booted + 1);
        self.cut_off(false);
        self.wait_until_back("reboot");
        assert_eq!(self.boots(), booted + 1);
        let log = self.log();
        assert!(log.contains("so the node is not drained"), "{log}");
        self.bed.kubectl(NAME, &["delete", "pdb", "held"]).unwrap();
    }

    /// A pod of this node that may not be evicted.
    fn run_a_protected_pod(&self) {
        let _ = self.bed.kubectl(NAME, &["delete", "pod", "held", "--grace-period=0", "--force"]);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "held", "labels": {"app": "held"}},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": NODE},
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "held", "image": self.bed.image("pause")}],
            },
        });
        self.bed.apply(NAME, &[pod]);
        self.protect();
        self.wait_for("the pod to run", || {
            let pod = self.bed.kubectl(NAME, &["get", "pod", "held", "-o", "json"]).unwrap();
            let pod: Value = serde_json::from_str(&pod).unwrap();
            pod["status"]["phase"] == "Running"
        });
    }

    fn protect(&self) {
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "held"},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "held"}}},
        });
        self.bed.apply(NAME, &[budget]);
    }

    /// Whether evictions end in an error that is no refusal by a budget.
    fn refuse_evictions(&self, refuse: bool) {
        if !refuse {
            self.protect();
            return self.allow("evictions");
        }
        // A budget would be asked first.
        self.bed.kubectl(NAME, &["delete", "pdb", "held"]).unwrap();
        self.refuse("evictions", "CREATE", "pods/eviction", "false");
        let dry = r#"{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"held"},
                      "deleteOptions":{"dryRun":["All"]}}"#;
        let file = self.bed.world.path("eviction.json");
        fs::write(&file, dry).unwrap();
        let path = "/api/v1/namespaces/default/pods/held/eviction";
        let file = file.display().to_string();
        self.wait_for("evictions to fail", || {
            let asked = self.bed.kubectl(NAME, &["create", "--raw", path, "-f", &file]);
            asked.is_err_and(|error| error.contains("no evictions today"))
        });
    }

    fn refuse_cordons(&self) {
        let stays = "!has(object.spec.unschedulable) || !object.spec.unschedulable";
        self.refuse("cordons", "UPDATE", "nodes", stays);
        self.wait_for("cordons to fail", || {
            let cordon = r#"{"spec":{"unschedulable":true}}"#;
            let patch = ["patch", "node", NODE, "--dry-run=server", "-p", cordon];
            let asked = self.bed.kubectl(NAME, &patch);
            asked.is_err_and(|error| error.contains("no cordons today"))
        });
    }

    /// The API server refuses what does not meet the expression.
    fn refuse(&self, what: &str, operation: &str, resource: &str, expression: &str) {
        let message = format!("no {what} today");
        let policy = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": what},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": [operation],
                    "resources": [resource],
                }]},
                "validations": [{"expression": expression, "message": message}],
            },
        });
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": what},
            "spec": {"policyName": what, "validationActions": ["Deny"]},
        });
        self.bed.apply(NAME, &[policy, binding]);
    }

    fn allow(&self, what: &str) {
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
            self.bed.kubectl(NAME, &["delete", kind, what]).unwrap();
        }
    }

    /// Who of ours has cordoned the node.
    fn cordon_mark(&self) -> String {
        let mark = r"jsonpath={.metadata.annotations.wharf\.dev/cordoned-by}";
        self.bed.kubectl(NAME, &["get", "node", NODE, "-o", mark]).unwrap()
    }

    /// The first order to reboot is held until the agent that gave it is dead, and is then lost. So the
    /// kill cannot come too late, and the reboot is the work of the agent that is started after it.
    fn hold_the_first_reboot(&self) {
        let script = "#!/bin/sh\n\
                      if [ \"$1\" = reboot ] && mkdir /persist/held 2>/dev/null; then\n\
                      while kill -0 $PPID 2>/dev/null; do sleep 0.1; done\n\
                      exit 1\n\
                      fi\n\
                      exec /usr/bin/systemctl \"$@\"\n";
        self.write("usr/local/sbin/systemctl", script);
        self.host.run(&["chmod", "+x", "/usr/local/sbin/systemctl"]).unwrap();
    }

    /// Kills the agent as it publishes one of these statuses, after `begin` has led to it.
    fn kill_at(&self, status: &str, begin: impl FnOnce()) {
        self.kill_when(status, "true", begin);
    }

    /// The same, if a condition of the shell holds besides.
    fn kill_when(&self, status: &str, condition: &str, begin: impl FnOnce()) {
        // Nothing is started in the loop: some statuses last only for a moment.
        let script = format!(
            "until [ \"$(systemctl is-active wharf-agent)\" = active ]; do sleep 0.1; done; \
             is() {{ read -r line </run/zedkube/NodeDrainStatus/global.json; \
             [[ $line == *'\"Status\":'{status},* ]]; }}; \
             until is && {condition}; do ((SECONDS < 240)) || {{ echo missed; break; }}; done; \
             kill -9 $(systemctl show wharf-agent -p MainPID --value) && echo killed"
        );
        let mut killer = self.host.ssh_command();
        let killer = killer.args(["bash", "-c", &format!("'{}'", script.replace('\'', "'\\''"))]);
        let killer = killer.stdout(std::process::Stdio::piped()).spawn().unwrap();
        begin();
        let output = killer.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(said.trim(), "killed", "{status}: {}\n{}", self.status(), self.log());
    }

    fn cut_off(&self, cut: bool) {
        let machines = &self.bed.machines;
        if cut {
            machines.cut(self.host, self.bed.host("node1")).unwrap();
        } else {
            machines.heal().unwrap();
        }
    }

    fn agent(&self, arguments: &[&str]) {
        // One that was killed is started again a moment later.
        self.wait_for("the agent to answer", || {
            let health = self.host.ssh(&["/opt/wharf/bin/wharf", "agent", "status"]);
            health.is_ok_and(|health| matches!(health.status.code(), Some(0 | 1)))
        });
        let command = [&["/opt/wharf/bin/wharf", "agent"], arguments].concat();
        self.host.run(&command).unwrap();
    }

    fn wait_for_status(&self, status: u64) {
        self.wait_for(&format!("the status {status}"), || self.status()["Status"] == status);
    }

    fn wait_for_boots(&self, count: usize) {
        self.wait_for(&format!("boot {count}"), || self.boots() == count);
    }

    /// The operation is over, the node is ready and takes pods again.
    fn wait_until_back(&self, kind: &str) {
        self.wait_for("the operation to be done", || self.job(kind)["Phase"] == "done");
        self.wait_for("the node to be in service", || {
            cordoned(self.bed, NAME).is_empty() && nodes_ready(self.bed, NAME) == 3
        });
        self.wait_for_status(2);
    }

    fn wait_for(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let limit = DEADLINE.min(Duration::from_secs(300));
        let waited = wait_for(what, limit, || Ok(is_so().then_some(())));
        waited.unwrap_or_else(|error| panic!("{error}: {}\n{}", self.status(), self.log()));
    }

    fn boots(&self) -> usize {
        let boots = fs::read_to_string(self.host.root().join("persist/boots"));
        boots.unwrap_or_default().lines().count()
    }

    fn status(&self) -> Value {
        self.read("run/zedkube/NodeDrainStatus/global.json")
    }

    fn node_agent(&self) -> Value {
        self.read("run/nodeagent/NodeAgentStatus/nodeagent.json")
    }

    fn job(&self, kind: &str) -> Value {
        let jobs = self.read("run/wharf/NodeJobs/global.json");
        let found = jobs["Jobs"].as_array().and_then(|jobs| {
            let job = jobs.iter().find(|job| job["Kind"] == kind);
            job.cloned()
        });
        found.unwrap_or_default()
    }

    /// `null` while there is no such file, or nobody answers.
    fn read(&self, path: &str) -> Value {
        let text = self.host.run(&["cat", &format!("/{path}")]).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.host.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// What the agents of all boots have said.
    fn log(&self) -> String {
        let lines = ["journalctl", "-u", "wharf-agent", "--no-pager", "-o", "cat"];
        self.host.run(&lines).unwrap_or_default()
    }
}
