//! What is applied to a cluster once its API answers, as YAML of several documents.
//!
//! The texts lie beside this file and read as what they are; `{{name}}` in them stands for a value,
//! which is put there in quotes, and `{{=name}}` for one that is YAML already.

use sha2::{Digest, Sha256};

use crate::cluster::ClusterSpec;

use super::{
    components::quoted,
    pod_agent::{AgentPods, GRACE},
};

/// Where everything of ours in the cluster lives.
pub const NAMESPACE: &str = "kube-system";
/// The Deployments that an installation waits for.
pub const COREDNS: &str = "coredns";
pub const METRICS_SERVER: &str = "metrics-server";

/// CoreDNS at the cluster's DNS address.
///
/// `forward` says whether names outside the cluster can be asked for: if no host resolves names
/// outside, forwarding (and its check for loops) would only break what works.
pub fn render_coredns(spec: &ClusterSpec, image: &str, forward: bool) -> String {
    let corefile = corefile(spec, forward);
    fill(
        include_str!("manifests/coredns.yaml"),
        &[
            ("image", image),
            ("corefile", &corefile),
            ("configuration", &short_digest(&corefile)),
            ("dns_service", &spec.cluster_dns_service_ip.to_string()),
        ],
    )
}

fn corefile(spec: &ClusterSpec, forward: bool) -> String {
    let domain = &spec.cluster_domain;
    let mut text = format!(
        ".:53 {{
    errors
    health {{
        lameduck 5s
    }}
    ready
    kubernetes {domain} in-addr.arpa ip6.arpa {{
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }}
    prometheus :9153
"
    );
    if forward && !spec.cluster_upstream_dns.is_empty() {
        let servers = spec.cluster_upstream_dns.iter().map(ToString::to_string);
        let servers = servers.collect::<Vec<_>>().join(" ");
        text.push_str(&format!("    forward . {servers}\n    loop\n"));
    }
    // Names of the cluster are in memory as it is; an answer kept would only be an old one.
    text.push_str(&format!(
        "    cache 30 {{
        disable success {domain}
        disable denial {domain}
    }}
    reload
    loadbalance
}}
"
    ));
    text
}

/// metrics-server, which trusts kubelets by the cluster's authority (`ca_pem`).
pub fn render_metrics_server(image: &str, ca_pem: &str) -> String {
    fill(include_str!("manifests/metrics_server.yaml"), &[("image", image), ("ca", ca_pem)])
}

/// The rights that no default grants: the API server's identity may use kubelets, agents may read what
/// they report; and the namespace of applications.
pub fn render_rbac() -> String {
    [include_str!("manifests/rbac.yaml"), include_str!("manifests/agents.yaml")].join("---\n")
}

/// The kinds that volumes need, and what agents may do with them.
pub fn render_volumes() -> String {
    include_str!("manifests/volumes.yaml").to_owned()
}

/// For the time of a verification: one pod on each of these nodes, a Service before them, and one
/// that names them all.
///
/// Each pod has a container that answers over HTTP and one ([`VERIFY_CLIENT`]) that asks for names,
/// for all pods and for the Service, and ends: well, or with a log that says what did not work.
pub fn render_verification(spec: &ClusterSpec, image: &str, nodes: &[String]) -> String {
    let pods = nodes.len().to_string();
    let pod = |node: &String| {
        let values = [
            ("name", &*verify_pod(node)),
            ("node", node),
            ("image", image),
            ("script", include_str!("manifests/verify.sh")),
            ("domain", &spec.cluster_domain),
            ("pods", &pods),
        ];
        fill(include_str!("manifests/verify_pod.yaml"), &values)
    };
    let ground = include_str!("manifests/verify_ground.yaml").to_owned();
    std::iter::once(ground).chain(nodes.iter().map(pod)).collect::<Vec<_>>().join("\n---\n")
}

/// The container whose end is the verdict.
pub const VERIFY_CLIENT: &str = "client";

/// The name of the verifying pod on a node.
pub fn verify_pod(node: &str) -> String {
    format!("wharf-verify-on-{node}")
}

/// The agent as a DaemonSet, with all that it needs in the cluster.
///
/// Its pods have a ServiceAccount in the place of the group that agents of ours are in, and rights
/// under names of their own: those of an installer's agents may be there too.
pub fn render_agent_pods(wish: &AgentPods) -> String {
    let config = wish.config();
    let [selector, tolerations] = [wish.selector_json(), wish.tolerations_json()];
    let values = [
        ("image", wish.image.as_str()),
        ("config", &config),
        ("configuration", &short_digest(&config)),
        ("node_selector", &selector),
        ("tolerations", &tolerations),
        ("grace", &GRACE.as_secs().to_string()),
    ];
    let rights = [include_str!("manifests/volumes.yaml"), include_str!("manifests/agents.yaml")];
    let rights = rights.map(|text| {
        let text = text.replace(AGENTS_GROUP, AGENTS_ACCOUNT);
        POD_RIGHTS.iter().fold(text, |text, (theirs, own)| text.replace(theirs, own))
    });
    let pods = fill(include_str!("manifests/agent_pods.yaml"), &values);
    [rights.join("---\n"), pods].join("---\n")
}

/// What is deleted with the DaemonSet: everything of [`render_agent_pods`] but the namespace of
/// applications. `keep_records` leaves the kinds of volumes, and what is in them.
pub fn render_agent_removal(keep_records: bool) -> String {
    let all = render_agent_pods(&AgentPods::default());
    let has = |document: &str, text: &str| document.lines().any(|line| line == text);
    let is_of_records = |document: &str| {
        let kinds = ["Namespace", "CustomResourceDefinition", "CSIDriver"];
        kinds.iter().any(|kind| has(document, &format!("kind: {kind}")))
    };
    let stays = |document: &str| {
        has(document, "  name: eve-kube-app") || keep_records && is_of_records(document)
    };
    all.split("---\n").filter(|document| !stays(document)).collect::<Vec<_>>().join("---\n")
}

/// The group of the agents that an installer put on hosts, and the ClusterRoleBinding that gives it
/// rights.
pub const AGENTS: &str = "wharf:agents";

/// The rights of those agents, and what the same rights are called for agents in pods.
const POD_RIGHTS: [(&str, &str); 2] = [
    ("  name: wharf:agents\n", "  name: wharf:pod-agents\n"),
    ("  name: wharf:volumes\n", "  name: wharf:pod-volumes\n"),
];

/// Who agents of ours are for the API server, and who those in pods are.
const AGENTS_GROUP: &str = "\
- apiGroup: rbac.authorization.k8s.io
  kind: Group
  name: wharf:agents
";
const AGENTS_ACCOUNT: &str = "\
- kind: ServiceAccount
  name: wharf-agent
  namespace: wharf-system
";

/// Changes with the text; enough of it to tell texts of one kind apart.
fn short_digest(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Puts values where a text names them: in quotes, or as they are where it says `{{=name}}`.
fn fill(text: &str, values: &[(&str, &str)]) -> String {
    let mut pieces = text.split("{{");
    let mut filled = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = piece.split_once("}}").unwrap_or((piece, ""));
        let (name, is_bare) = name.strip_prefix('=').map_or((name, false), |name| (name, true));
        let value = values.iter().find(|(of, _)| *of == name).map(|(_, value)| *value);
        let value = value.unwrap_or_default();
        filled.push_str(&if is_bare { value.to_owned() } else { quoted(value) });
        filled.push_str(rest);
    }
    filled
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use serde_json::Value;

    use super::*;

    fn spec() -> ClusterSpec {
        ClusterSpec::new("demo", SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1), "1.36.3")
    }

    fn documents(text: &str) -> Vec<Value> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
        for document in &documents {
            for field in ["apiVersion", "kind"] {
                assert!(document[field].is_string(), "{document}");
            }
            assert!(document["metadata"]["name"].is_string(), "{document}");
        }
        documents
    }

    fn find<'a>(documents: &'a [Value], kind: &str) -> &'a Value {
        documents.iter().find(|document| document["kind"] == kind).unwrap()
    }

    #[test]
    fn coredns_answers_at_the_clusters_dns_address() {
        let documents = documents(&render_coredns(&spec(), "wharf.dev/coredns:1", true));
        let service = find(&documents, "Service");
        assert_eq!(service["spec"]["clusterIP"], "10.43.0.10");
        let pod = &find(&documents, "Deployment")["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["image"], "wharf.dev/coredns:1");
        let corefile = find(&documents, "ConfigMap")["data"]["Corefile"].as_str().unwrap();
        assert!(corefile.contains("kubernetes cluster.local in-addr.arpa"), "{corefile}");
        assert!(corefile.contains("forward . 223.5.5.5 114.114.114.114\n    loop\n"), "{corefile}");
        assert_eq!(corefile.matches('{').count(), corefile.matches('}').count());
    }

    #[test]
    fn without_a_way_outside_coredns_neither_forwards_nor_looks_for_loops() {
        let mut none = spec();
        none.cluster_upstream_dns.clear();
        let texts = [render_coredns(&spec(), "i", false), render_coredns(&none, "i", true)];
        for text in &texts {
            let documents = documents(text);
            let corefile = find(&documents, "ConfigMap")["data"]["Corefile"].as_str().unwrap();
            assert!(!corefile.contains("forward") && !corefile.contains("loop\n"), "{corefile}");
        }
    }

    #[test]
    fn another_corefile_means_another_pod() {
        let annotation = |forward| {
            let documents = documents(&render_coredns(&spec(), "i", forward));
            let template = &find(&documents, "Deployment")["spec"]["template"];
            template["metadata"]["annotations"]["wharf.dev/configuration"].clone()
        };
        assert_ne!(annotation(true), annotation(false));
        assert_eq!(annotation(true), annotation(true));
    }

    #[test]
    fn metrics_server_trusts_kubelets_by_the_clusters_authority() {
        let pem = "-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----\n";
        let documents = documents(&render_metrics_server("wharf.dev/metrics-server:1", pem));
        assert_eq!(find(&documents, "ConfigMap")["data"]["ca.crt"], pem);
        assert_eq!(find(&documents, "APIService")["metadata"]["name"], "v1beta1.metrics.k8s.io");
        let pod = &find(&documents, "Deployment")["spec"]["template"]["spec"];
        let arguments = pod["containers"][0]["args"].to_string();
        assert!(arguments.contains("--kubelet-preferred-address-types=InternalIP"), "{arguments}");
    }

    #[test]
    fn the_api_servers_identity_may_use_kubelets() {
        let documents = documents(&render_rbac());
        assert_eq!(documents[0]["roleRef"]["name"], "system:kubelet-api-admin");
        assert_eq!(documents[0]["subjects"][0]["name"], "kube-apiserver-kubelet-client");
    }

    #[test]
    fn the_verifying_pod_has_its_script_and_its_node() {
        let nodes = ["n1".to_owned(), "n2".to_owned()];
        let rendered = render_verification(&spec(), "wharf.dev/busybox:1", &nodes);
        let documents = documents(&rendered);
        let pods: Vec<&Value> = documents.iter().filter(|d| d["kind"] == "Pod").collect();
        let on: Vec<&str> = pods.iter().map(|p| p["spec"]["nodeName"].as_str().unwrap()).collect();
        assert_eq!(on, nodes);
        assert_eq!(documents.iter().filter(|d| d["kind"] == "Service").count(), 2);
        assert_eq!(pods[0]["metadata"]["name"], verify_pod("n1"));
        let client = &pods[0]["spec"]["containers"][1];
        assert_eq!(client["name"], VERIFY_CLIENT);
        let command = &client["command"];
        assert_eq!(command[2], include_str!("manifests/verify.sh"));
        assert_eq!((&command[4], &command[5]), (&"cluster.local".into(), &"2".into()));
    }

    #[test]
    fn a_value_stays_a_value_whatever_is_in_it() {
        let nasty = "a\": b\n- {{image}} # 'x'";
        let text = fill("name: {{name}}\nkind: {{other}}\n", &[("name", nasty)]);
        let value: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(value["name"], nasty);
        assert_eq!(value["kind"], "");
    }

    #[test]
    fn every_name_in_a_text_has_its_value() {
        let spec = spec();
        for text in [
            render_coredns(&spec, "image", true),
            render_metrics_server("image", "pem"),
            render_verification(&spec, "image", &["n1".to_owned()]),
            render_agent_pods(&AgentPods { image: "image".to_owned(), ..AgentPods::default() }),
        ] {
            assert!(!text.contains("{{") && !text.contains("\"\"\n"), "{text}");
        }
    }
}
