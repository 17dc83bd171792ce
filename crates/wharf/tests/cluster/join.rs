//! What a node does before it joins.

use wharf_testbed::wait_for;

use crate::{
    bed::{Bed, DEADLINE},
    nodes_ready,
};

const OTHER: &str = "ffffffff-4e5f-4071-8293-a4b5c6d7e8f9";
/// That the node has joined, so that it does not wait again.
const MARK: &str = "/persist/kube-status/joined-cluster";

/// The server that the node is to join speaks for another cluster: the kubelet is not started, and its
/// unit says why. It is as soon as its own cluster speaks there.
pub fn a_kubelet_waits_for_its_own_cluster(bed: &Bed, cluster: &str, node: &str, server: &str) {
    let (node, server) = (bed.host(node), bed.host(server));
    let joined = node.run(&["cat", MARK]).unwrap();
    node.run(&["systemctl", "stop", "wharf-kubelet"]).unwrap();
    node.run(&["rm", MARK]).unwrap();
    server.run(&["systemctl", "stop", "wharf-agent"]).unwrap();
    let script = format!(
        "while read -r line; do [ \"$line\" = \"$(printf '\\r')\" ] && break; done\n\
         printf 'HTTP/1.1 200 OK\\r\\nX-Cluster-Id: {OTHER}\\r\\n'\n\
         printf 'Content-Length: 7\\r\\n\\r\\ncluster'\n"
    );
    std::fs::write(server.root().join("root/other"), script).unwrap();
    let listen = format!("TCP-LISTEN:12346,bind={},fork,reuseaddr", server.address());
    let other = ["systemd-run", "--unit=other", "socat", &listen, "EXEC:sh /root/other"];
    server.run(&other).unwrap();

    node.run(&["systemctl", "start", "--no-block", "wharf-kubelet"]).unwrap();
    let reason = format!("the server belongs to another cluster, {OTHER}");
    let log = ["journalctl", "-u", "wharf-kubelet", "--no-pager", "-o", "cat"];
    wait_for("the unit to say why it waits", DEADLINE, || {
        Ok(node.run(&log)?.contains(&reason).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}: {}", node.run(&log).unwrap()));
    let state = ["systemctl", "show", "wharf-kubelet", "-p", "SubState", "--value"];
    assert_eq!(node.run(&state).unwrap(), "start-pre");
    assert!(node.run(&["cat", MARK]).is_err());

    server.run(&["systemctl", "stop", "other"]).unwrap();
    server.run(&["systemctl", "start", "wharf-agent"]).unwrap();
    let all = bed.nodes(cluster).len();
    wait_for("the node to be ready", DEADLINE, || {
        let runs = node.run(&state)? == "running";
        Ok((runs && nodes_ready(bed, cluster) == all).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}: {}", node.run(&log).unwrap()));
    assert_eq!(node.run(&["cat", MARK]).unwrap(), joined);
    bed.wait_for_links(cluster, all);
}
