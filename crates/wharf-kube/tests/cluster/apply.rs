//! Applying manifests.

use std::time::Duration;

use serde_json::json;
use wharf_kube::KubeError;

use crate::world;

const WITHIN: Duration = Duration::from_secs(30);

const MANIFESTS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: applied}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: applied}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: 'wharf:applied'}
rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: 'wharf:applied'}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: 'wharf:applied'}
subjects: [{kind: ServiceAccount, name: reader, namespace: applied}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: applied}
data: {colour: green}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: applied}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: applied}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: none, resources: {requests: {cpu: 0.1}}}]}
";

#[tokio::test]
async fn manifests_change_things_once_and_a_second_time_nothing() {
    let world = world();
    let cluster = world.cluster();
    let first = cluster.apply(MANIFESTS, WITHIN).await.unwrap();
    assert_eq!(first.changed.len(), 7, "{first:?}");
    assert_eq!(first.changed[4], "ConfigMap applied/settings");
    let second = cluster.apply(MANIFESTS, WITHIN).await.unwrap();
    assert_eq!((second.changed.as_slice(), second.unchanged), (&[][..], 7));

    let blue = MANIFESTS.replace("green", "blue");
    let third = cluster.apply(&blue, WITHIN).await.unwrap();
    assert_eq!(third.changed, ["ConfigMap applied/settings"]);
    let found = world.read(&["configmap", "settings", "-n", "applied"]);
    assert_eq!(found["data"]["colour"], "blue");

    // What somebody else changed is set right, and said.
    world.kubectl(&["scale", "deployment", "web", "-n", "applied", "--replicas=5"], "");
    let fourth = cluster.apply(&blue, WITHIN).await.unwrap();
    assert_eq!(fourth.changed, ["Deployment applied/web"]);
    let found = world.read(&["deployment", "web", "-n", "applied"]);
    assert_eq!(found["spec"]["replicas"], json!(2));
}

#[tokio::test]
async fn what_was_applied_can_be_deleted_and_a_second_time_nothing_is_there() {
    let world = world();
    let cluster = world.cluster();
    // Without the namespace, whose end needs a controller.
    let manifests = MANIFESTS.replace("applied", "default").replacen("Namespace", "Node", 1);
    assert_eq!(cluster.apply(&manifests, WITHIN).await.unwrap().changed.len(), 7);
    assert_eq!(cluster.delete(&manifests, WITHIN).await.unwrap(), 7);
    let left = ["get", "deployment,service,configmap", "--field-selector=metadata.name=web"];
    assert_eq!(world.kubectl(&left, ""), "");
    assert_eq!(cluster.delete(&manifests, WITHIN).await.unwrap(), 0);
}

#[tokio::test]
async fn a_kind_can_be_defined_and_used_in_the_same_manifests() {
    let world = world();
    let manifests = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ships.test.wharf.dev}
spec:
  group: test.wharf.dev
  scope: Cluster
  names: {plural: ships, singular: ship, kind: Ship}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: test.wharf.dev/v1
kind: Ship
metadata: {name: ketch}
masts: 2
";
    let cluster = world.cluster();
    let applied = cluster.apply(manifests, WITHIN).await.unwrap();
    assert_eq!(applied.changed.len(), 2, "{applied:?}");
    assert_eq!(world.read(&["ship", "ketch"])["masts"], json!(2));
    assert_eq!(cluster.apply(manifests, WITHIN).await.unwrap().unchanged, 2);
}

#[tokio::test]
async fn an_unknown_kind_and_a_refused_object_are_errors_that_name_it() {
    let world = world();
    let unknown = "apiVersion: v1\nkind: Boat\nmetadata: {name: x}\n";
    let error = world.cluster().apply(unknown, Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, KubeError::NotReached { .. }), "{error}");
    assert!(error.to_string().contains("Boat"), "{error}");
    let bad = "apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {ports: []}\n";
    let error = world.cluster().apply(bad, WITHIN).await.unwrap_err();
    assert_eq!(error.code(), Some(422), "{error}");
    assert!(error.to_string().contains("Service bad"), "{error}");
}

#[tokio::test]
async fn a_service_waits_for_its_address_while_another_request_has_it() {
    let world = world();
    // What the API server leaves when it ends between the address and its Service.
    let address = "apiVersion: networking.k8s.io/v1\nkind: IPAddress\nmetadata:\n  name: ADDRESS\n  \
                   labels: {ipaddress.kubernetes.io/ip-family: IPv4, \
                   ipaddress.kubernetes.io/managed-by: ipallocator.k8s.io}\nspec:\n  parentRef: \
                   {resource: services, namespace: default, name: late}\n";
    let kubernetes = world.read(&["service", "kubernetes"]);
    let first = kubernetes["spec"]["clusterIP"].as_str().unwrap();
    let free = format!("{}.77", first.rsplit_once('.').unwrap().0);
    world.kubectl(&["apply", "-f", "-"], &address.replace("ADDRESS", &free));
    let service = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: late, namespace: default}}\n\
         spec: {{clusterIP: {free}, ports: [{{port: 53}}]}}\n"
    );
    let cluster = world.cluster();
    let error = cluster.apply(&service, Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, KubeError::AddressTaken { .. }), "{error}");
    assert!(error.to_string().contains("Service default/late"), "{error}");

    let (applied, ()) = tokio::join!(cluster.apply(&service, WITHIN), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.kubectl(&["delete", "ipaddress", &free], "");
    });
    assert_eq!(applied.unwrap().changed, ["Service default/late"]);
}
