//! Texts that others read: the configuration of the CNI plugins, and rules for nft.

use super::{ADDRESSES, BRIDGE, Masquerade, NFT_TABLE, NetworkFile};

/// What containerd hands to the CNI plugins for each pod: a bridge with the node's pod addresses,
/// and ports of the host for pods that ask for them.
///
/// The bridge plugin's own masquerading stays off: it makes rules for each pod, where the agent
/// needs one for all. `hairpinMode` lets a pod reach itself through a Service.
pub fn render_conflist(file: &NetworkFile, mtu: u32) -> String {
    // Only names of ours, addresses and numbers: nothing here needs escaping.
    format!(
        r#"{{
  "cniVersion": "1.0.0",
  "name": "wharf",
  "plugins": [
    {{
      "type": "bridge",
      "bridge": "{BRIDGE}",
      "isGateway": true,
      "ipMasq": false,
      "hairpinMode": true,
      "mtu": {mtu},
      "ipam": {{
        "type": "host-local",
        "dataDir": "{ADDRESSES}",
        "ranges": [[{{ "subnet": "{pod_cidr}" }}]],
        "routes": [{{ "dst": "0.0.0.0/0" }}]
      }}
    }},
    {{
      "type": "portmap",
      "backend": "nftables",
      "capabilities": {{ "portMappings": true }}
    }}
  ]
}}
"#,
        pod_cidr = file.node.pod_cidr.trunc(),
    )
}

/// A script for `nft -f`: one transaction that replaces the agent's table, whatever it held.
pub fn render_masquerade(masquerade: &Masquerade) -> String {
    let Masquerade { pod_cidr, cluster_cidr, service_cidr } = masquerade;
    format!(
        "add table {NFT_TABLE}
delete table {NFT_TABLE}
table {NFT_TABLE} {{
\tchain postrouting {{
\t\ttype nat hook postrouting priority srcnat; policy accept;
\t\tip saddr {pod_cidr} ip daddr != {cluster_cidr} ip daddr != {service_cidr} masquerade fully-random
\t}}
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::super::{Balancer, NetworkMode, NetworkNode};
    use super::*;

    fn file() -> NetworkFile {
        NetworkFile {
            node: NetworkNode {
                name: "a".to_owned(),
                address: "10.0.0.1".parse().unwrap(),
                // As someone may write it: an address with a prefix.
                pod_cidr: "10.42.1.7/24".parse().unwrap(),
            },
            cluster_cidr: "10.42.0.0/16".parse().unwrap(),
            service_cidr: "10.43.0.0/16".parse().unwrap(),
            mode: NetworkMode::Routed,
            interface: None,
            peers: Vec::new(),
            balancer: Balancer {
                listen: super::super::BALANCER,
                servers: Vec::new(),
                authority_file: String::new(),
            },
        }
    }

    #[test]
    fn the_plugins_configuration_is_json_with_the_nodes_pod_addresses() {
        let list: serde_json::Value =
            serde_json::from_str(&render_conflist(&file(), 1450)).unwrap();
        let bridge = &list["plugins"][0];
        assert_eq!(bridge["type"], "bridge");
        assert_eq!(bridge["mtu"], 1450);
        assert_eq!(bridge["ipMasq"], false);
        assert_eq!(bridge["ipam"]["ranges"][0][0]["subnet"], "10.42.1.0/24");
        assert_eq!(list["plugins"][1]["capabilities"]["portMappings"], true);
    }

    #[test]
    fn the_rules_replace_the_table_in_one_transaction() {
        let rules = render_masquerade(&Masquerade::of(&file()));
        assert!(rules.starts_with("add table ip wharf\ndelete table ip wharf\ntable ip wharf {"));
        assert!(rules.contains(
            "ip saddr 10.42.1.0/24 ip daddr != 10.42.0.0/16 ip daddr != 10.43.0.0/16 masquerade"
        ));
    }
}
