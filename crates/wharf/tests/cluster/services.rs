//! Services as the hosts themselves see them, which have no default route here.

use serde_json::Value;
use wharf_testbed::wait_for;

use crate::bed::{Bed, DEADLINE};

/// Every machine reaches Services, so that what an API server asks of a Service is answered: the use of
/// nodes is measured, and a namespace can go.
pub fn are_reached_from_hosts(bed: &Bed, cluster: &str, hosts: &[&str]) {
    let dns =
        bed.kubectl(cluster, &["get", "-n", "kube-system", "services", "-o", "json"]).unwrap();
    let dns = address_of(&serde_json::from_str(&dns).unwrap(), "dns-tcp");
    for name in hosts {
        let host = bed.host(name);
        assert_eq!(host.run(&["ip", "route", "show", "default"]).unwrap(), "", "{name}");
        let ask = format!("socat -u OPEN:/dev/null TCP:{dns}:53,connect-timeout=5");
        wait_for("the host to reach DNS", DEADLINE, || {
            Ok(host.run(&["sh", "-c", &ask]).is_ok().then_some(()))
        })
        .unwrap_or_else(|error| panic!("{name}: {error}: {:?}", host.run(&["ip", "route"])));
    }
    wait_for("the metrics API", DEADLINE, || {
        let how = "jsonpath={.status.conditions[?(@.type==\"Available\")].status}";
        let is = bed.kubectl(cluster, &["get", "apiservice", "v1beta1.metrics.k8s.io", "-o", how]);
        Ok(is.is_ok_and(|is| is == "True").then_some(()))
    })
    .unwrap();
    wait_for("the use of nodes to be measured", DEADLINE, || {
        Ok((bed.get(cluster)["usageMeasured"] == true).then_some(()))
    })
    .unwrap();
    bed.kubectl(cluster, &["create", "namespace", "passing"]).unwrap();
    bed.kubectl(cluster, &["delete", "namespace", "passing", "--wait=false"]).unwrap();
    wait_for("the namespace to go", DEADLINE, || {
        let left = ["get", "namespace", "passing", "--ignore-not-found", "-o", "name"];
        Ok(bed.kubectl(cluster, &left).is_ok_and(|left| left.is_empty()).then_some(()))
    })
    .unwrap();
}

/// The address of the Service that has a port of this name.
fn address_of(services: &Value, port: &str) -> String {
    let has = |service: &&Value| {
        let ports = service["spec"]["ports"].as_array().unwrap();
        ports.iter().any(|known| known["name"] == port)
    };
    let mut services = services["items"].as_array().unwrap().iter();
    let service = services.find(has).unwrap();
    service["spec"]["clusterIP"].as_str().unwrap().to_owned()
}
