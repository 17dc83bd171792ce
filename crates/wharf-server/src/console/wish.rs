//! What was typed into the form for a new cluster.

use std::collections::BTreeMap;

use wharf_core::cluster::{
    NodeRole,
    validate::{Draft, MAX_NODES, NetworkDraft, NodeDraft},
};

use super::guard::Fields;

/// So many rows a new form has; more come by script, or after sending these.
const ROWS: usize = 5;

/// Everything that was typed but the secrets, which are used once and not kept.
#[derive(Default)]
pub struct Wish {
    texts: BTreeMap<String, String>,
    pub nodes: Vec<Row>,
}

#[derive(Default, Clone)]
pub struct Row {
    pub name: String,
    pub address: String,
    pub roles: Vec<String>,
}

impl Row {
    fn with_role(role: NodeRole) -> Self {
        Self { roles: vec![role.name().to_owned()], ..Self::default() }
    }

    /// A role alone is none: it is there before anything is typed.
    fn is_blank(&self) -> bool {
        self.name.trim().is_empty() && self.address.trim().is_empty()
    }
}

impl Wish {
    /// An empty form.
    pub fn new(server: &str, version: &str) -> Self {
        let texts = [("singleCloudAddress", server), ("kubernetesVersion", version)];
        let texts = texts.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self { texts: BTreeMap::from(texts), nodes: Vec::new() }
    }

    /// What came back. Blank rows are left out, so that the first that is wrong is the first shown.
    pub fn read(fields: &Fields) -> Self {
        let mut wish = Self::default();
        let mut rows: BTreeMap<usize, Row> = BTreeMap::new();
        for (name, value) in fields.iter() {
            match row_field(name) {
                Some((index, "name")) => rows.entry(index).or_default().name = value.to_owned(),
                Some((index, "address")) => {
                    rows.entry(index).or_default().address = value.to_owned();
                }
                Some((index, "roles")) => {
                    rows.entry(index).or_default().roles.push(value.to_owned());
                }
                Some(_) => {}
                None if matches!(name, "sshKey" | "sshKeyPassphrase" | "form_token") => {}
                None => {
                    wish.texts.insert(name.to_owned(), value.to_owned());
                }
            }
        }
        let rows = rows.into_values().filter(|row| !row.is_blank());
        // One more than there may be, so that the checks say that these are too many.
        wish.nodes = rows.take(MAX_NODES + 1).collect();
        wish
    }

    pub fn text(&self, name: &str) -> &str {
        self.texts.get(name).map_or("", String::as_str)
    }

    /// The rows to show: those that were filled, and blank ones to go on with.
    pub fn rows(&self) -> Vec<Row> {
        let first = if self.nodes.is_empty() { NodeRole::Controlplane } else { NodeRole::Worker };
        let blank = [Row::with_role(first)]
            .into_iter()
            .chain(std::iter::repeat_with(|| Row::with_role(NodeRole::Worker)));
        let wanted = ROWS.saturating_sub(self.nodes.len()).max(1);
        self.nodes.iter().cloned().chain(blank.take(wanted)).collect()
    }

    /// The wish as the checks take it. What was left blank is as if it was not there.
    pub fn draft(&self, ssh_key: &str, passphrase: &str) -> Draft {
        let text = |name: &str| given(self.text(name));
        let node = |row: &Row| NodeDraft {
            name: given(&row.name),
            address: given(&row.address),
            roles: Some(row.roles.clone()).filter(|roles| !roles.is_empty()),
            host_key: None,
        };
        let servers = self.text("clusterUpstreamDNS");
        let servers = servers.split([',', ' ']).filter_map(given).collect::<Vec<_>>();
        Draft {
            name: text("name"),
            nodes: Some(self.nodes.iter().map(node).collect()),
            network: text("network.plugin")
                .map(|plugin| NetworkDraft { plugin: Some(plugin), iface: None }),
            single_cloud_address: text("singleCloudAddress"),
            ssh_user: text("sshUser"),
            // Browsers send line ends as two characters, which keys do not have.
            ssh_key: given(&ssh_key.replace("\r\n", "\n")).map(|key| format!("{key}\n")),
            ssh_key_passphrase: given(passphrase),
            ssh_port: text("sshPort"),
            ssh_jump_host: text("sshJumpHost"),
            cluster_cidr: text("clusterCidr"),
            service_cidr: text("serviceCidr"),
            cluster_domain: text("clusterDomain"),
            cluster_dns_service_ip: text("clusterDNSServiceIP"),
            cluster_upstream_dns: Some(servers).filter(|servers| !servers.is_empty()),
            kubernetes_version: text("kubernetesVersion"),
            ..Draft::default()
        }
    }
}

fn given(text: &str) -> Option<String> {
    Some(text.trim()).filter(|text| !text.is_empty()).map(str::to_owned)
}

/// `nodes[3].address` is the address in row 3.
fn row_field(name: &str) -> Option<(usize, &str)> {
    let (index, field) = name.strip_prefix("nodes[")?.split_once("].")?;
    Some((index.parse().ok()?, field))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_their_number() {
        assert_eq!(row_field("nodes[3].address"), Some((3, "address")));
        for name in ["nodes", "nodes[x].name", "nodes[-1].name", "nodes[1]name", "name"] {
            assert_eq!(row_field(name), None, "{name}");
        }
    }

    #[test]
    fn a_new_form_has_rows_for_a_small_cluster() {
        let rows = Wish::new("", "").rows();
        assert_eq!(rows.len(), ROWS);
        let roles: Vec<&str> = rows.iter().flat_map(|r| &r.roles).map(String::as_str).collect();
        assert_eq!(roles, ["controlplane", "worker", "worker", "worker", "worker"]);
        assert!(rows.iter().all(Row::is_blank));
    }
}
