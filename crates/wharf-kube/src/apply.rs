//! Server-side apply of manifests.

use std::{collections::BTreeMap, time::Duration};

use http::Request;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    cluster::Cluster,
    error::{KubeError, Result},
};

mod missing;

pub use missing::{Missing, Seen};

/// Our name among those who own fields.
const MANAGER: &str = "wharf";

/// What came of applying manifests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applied {
    /// What is new or different now, as `Kind namespace/name`, in the order of the manifests.
    pub changed: Vec<String>,
    pub unchanged: usize,
}

impl Cluster {
    /// Makes the cluster contain these objects (YAML documents), taking over fields that others
    /// own. Applying the same twice changes nothing the second time.
    ///
    /// Flow: each document in turn, its kind looked up once; what fails for a passing reason is
    /// tried again within the time. What comes before the failing one stays applied.
    ///
    /// # Errors
    /// A document that is none, or that the API server refuses.
    pub async fn apply(&self, manifests: &str, within: Duration) -> Result<Applied> {
        self.apply_all(parse(manifests)?, within).await
    }

    /// As [`Self::apply`], all of it in one namespace: what names none gets it, and what names
    /// another, or belongs to no namespace at all, is refused.
    pub async fn apply_in(
        &self,
        namespace: &str,
        manifests: &str,
        within: Duration,
    ) -> Result<Applied> {
        self.apply_all(confined(namespace, manifests)?, within).await
    }

    async fn apply_all(&self, objects: Vec<Object>, within: Duration) -> Result<Applied> {
        let end = Instant::now() + within;
        let mut kinds = Kinds::default();
        let mut applied = Applied::default();
        for object in objects {
            let left = end.saturating_duration_since(Instant::now());
            let path = self.path_of(&object, &mut kinds, left).await?;
            let left = end.saturating_duration_since(Instant::now());
            let change = || self.apply_one(&object, &path);
            if self.persist(left, change).await? {
                applied.changed.push(object.to_string());
            } else {
                applied.unchanged += 1;
            }
        }
        Ok(applied)
    }

    /// Deletes these objects (YAML documents), the last one first, and waits until they are gone.
    /// What is not there is no fault. Says how many were there.
    ///
    /// # Errors
    /// A document that is none, or whose object is not gone in time.
    pub async fn delete(&self, manifests: &str, within: Duration) -> Result<usize> {
        self.delete_all(parse(manifests)?, within).await
    }

    /// Deletes what [`Self::apply_in`] made of `manifests`, but for what `kept` has too.
    pub async fn delete_in(
        &self,
        namespace: &str,
        manifests: &str,
        kept: &str,
        within: Duration,
    ) -> Result<usize> {
        let kept = confined(namespace, kept)?;
        let mut objects = confined(namespace, manifests)?;
        objects.retain(|object| !kept.iter().any(|kept| kept.is_same(object)));
        self.delete_all(objects, within).await
    }

    async fn delete_all(&self, objects: Vec<Object>, within: Duration) -> Result<usize> {
        let end = Instant::now() + within;
        let mut kinds = Kinds::default();
        let mut paths = Vec::new();
        for object in objects.into_iter().rev() {
            let left = end.saturating_duration_since(Instant::now());
            paths.push((self.path_of(&object, &mut kinds, left).await?, object));
        }
        let mut there = 0;
        for (path, object) in &paths {
            let left = end.saturating_duration_since(Instant::now());
            let found = self.persist(left, || self.delete_one(object, path)).await?;
            there += usize::from(found);
        }
        let left = end.saturating_duration_since(Instant::now());
        self.wait_until("the end of what was deleted", left, || async {
            let mut still = Vec::new();
            for (path, object) in &paths {
                if self.get::<Value>(path).await?.is_some() {
                    still.push(format!("{object} is still there"));
                }
            }
            Ok(if still.is_empty() { Ok(()) } else { Err(still) })
        })
        .await?;
        Ok(there)
    }

    /// Says whether it was there.
    async fn delete_one(&self, object: &Object, path: &str) -> Result<bool> {
        let what = format!("delete {object}");
        let mut request = Request::new(Vec::new());
        *request.method_mut() = http::Method::DELETE;
        // What belongs to it goes with it, in the background.
        *request.uri_mut() = format!("{path}?propagationPolicy=Background")
            .parse()
            .map_err(|_| object.fault("its name is bad"))?;
        match self.call(what, self.client.request::<Value>(request)).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Says whether it changed anything.
    async fn apply_one(&self, object: &Object, path: &str) -> Result<bool> {
        let before: Option<Value> = self.get(path).await?;
        let query = format!("{path}?fieldManager={MANAGER}&force=true");
        let what = format!("apply {object}");
        let bad =
            |error: http::Error| KubeError::Answer { what: what.clone(), source: Box::new(error) };
        let request = Request::patch(query)
            .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
            .body(object.value.to_string().into_bytes())
            .map_err(bad)?;
        let answer = self.call(what.clone(), self.client.request(request)).await;
        let after: Value = answer.map_err(|error| object.refused(error, before.is_some()))?;
        // The version alone would count the work of controllers in between as ours.
        Ok(before.is_none_or(|before| essence(before) != essence(after)))
    }

    /// Where the object lives; asks the API server for the kinds of its group once.
    async fn path_of(&self, object: &Object, kinds: &mut Kinds, left: Duration) -> Result<String> {
        let group = &object.api_version;
        let mut kind = kinds.find(group, &object.kind);
        if kind.is_none() {
            // A kind that was defined a moment ago takes a moment to be served.
            let what = format!("kind {group} {} being known", object.kind);
            self.wait_until(what, left, || async {
                let known = self.get::<Served>(&prefix(group)).await?;
                let resources = known.map(|known| known.resources).unwrap_or_default();
                let found = resources.iter().any(|one| one.is(&object.kind));
                Ok(if found { Ok(()) } else { Err(vec!["it is not".to_owned()]) })
            })
            .await?;
            self.learn(group, kinds).await?;
            kind = kinds.find(group, &object.kind);
        }
        let place = object.place(kind)?;
        Ok(format!("{place}/{}", object.name))
    }

    /// Asks the API server for the kinds of a group.
    async fn learn(&self, group: &str, kinds: &mut Kinds) -> Result<()> {
        let known = self.get::<Served>(&prefix(group)).await?;
        let resources = known.map(|known| known.resources).unwrap_or_default();
        kinds.0.insert(group.to_owned(), resources);
        Ok(())
    }
}

fn prefix(api_version: &str) -> String {
    let root = if api_version.contains('/') { "/apis" } else { "/api" };
    format!("{root}/{api_version}")
}

/// The kinds that the API server has, by group and version.
#[derive(Default)]
struct Kinds(BTreeMap<String, Vec<Resource>>);

impl Kinds {
    fn find(&self, group: &str, kind: &str) -> Option<Resource> {
        self.0.get(group)?.iter().find(|one| one.is(kind)).cloned()
    }
}

#[derive(Deserialize)]
struct Served {
    resources: Vec<Resource>,
}

#[derive(Deserialize, Clone)]
struct Resource {
    /// The plural, in the path.
    name: String,
    kind: String,
    namespaced: bool,
}

impl Resource {
    /// Sub-resources are listed too, with a slash in their name.
    fn is(&self, kind: &str) -> bool {
        self.kind == kind && !self.name.contains('/')
    }
}

/// A document of the manifests.
#[derive(Debug)]
struct Object {
    number: usize,
    api_version: String,
    kind: String,
    namespace: Option<String>,
    name: String,
    value: Value,
    /// It must belong to its namespace.
    confined: bool,
}

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", self.kind)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

impl Object {
    fn new(number: usize, value: Value) -> Result<Self> {
        let text = |path: &str| value.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let need = |path: &str| {
            let text = text(path).filter(|text| is_segment(text));
            let field = path.trim_start_matches('/').replace('/', ".");
            text.ok_or(KubeError::Manifest { number, reason: format!("{field} is missing or bad") })
        };
        let api_version = text("/apiVersion").filter(|version| {
            let mut parts = version.split('/');
            parts.all(is_segment) && version.split('/').count() <= 2
        });
        let reason = "apiVersion is missing or bad".to_owned();
        Ok(Self {
            number,
            api_version: api_version.ok_or(KubeError::Manifest { number, reason })?,
            kind: need("/kind")?,
            namespace: text("/metadata/namespace")
                .map(|_| need("/metadata/namespace"))
                .transpose()?,
            name: need("/metadata/name")?,
            value,
            confined: false,
        })
    }

    fn is_same(&self, other: &Self) -> bool {
        let group =
            |object: &Self| object.api_version.rsplit_once('/').map(|(group, _)| group.to_owned());
        group(self) == group(other)
            && (&self.kind, &self.namespace, &self.name)
                == (&other.kind, &other.namespace, &other.name)
    }

    fn confine(&mut self, namespace: &str) -> Result<()> {
        match self.namespace.as_deref() {
            None => {
                if let Some(metadata) =
                    self.value.get_mut("metadata").and_then(Value::as_object_mut)
                {
                    metadata.insert("namespace".to_owned(), namespace.into());
                }
                self.namespace = Some(namespace.to_owned());
            }
            Some(known) if known == namespace => {}
            Some(_) => return Err(self.fault(&format!("it must be in namespace {namespace}"))),
        }
        self.confined = true;
        Ok(())
    }

    /// Where objects of its kind live.
    fn place(&self, kind: Option<Resource>) -> Result<String> {
        let Some(kind) = kind else { return Err(self.fault("its kind is not known")) };
        let (prefix, plural) = (prefix(&self.api_version), &kind.name);
        if self.confined && !kind.namespaced {
            return Err(self.fault("its kind belongs to no namespace"));
        }
        Ok(if kind.namespaced {
            let namespace = self.namespace.as_deref().unwrap_or("default");
            format!("{prefix}/namespaces/{namespace}/{plural}")
        } else {
            format!("{prefix}/{plural}")
        })
    }

    /// The API server gives a new Service its address before it stores the Service. So the same
    /// request of somebody who was killed over it takes the address from ours, for a moment; or for
    /// a minute, if the API server ended as well and has to look for addresses without a Service.
    fn refused(&self, error: KubeError, was_there: bool) -> KubeError {
        let address = self.value.pointer("/spec/clusterIP").and_then(Value::as_str);
        let asks = self.kind == "Service" && address.is_some_and(|address| address != "None");
        match error {
            KubeError::Status { what, code: 422, message, .. } if asks && !was_there => {
                KubeError::AddressTaken { what, message }
            }
            error => error,
        }
    }

    fn fault(&self, reason: &str) -> KubeError {
        KubeError::Manifest { number: self.number, reason: format!("{self}: {reason}") }
    }
}

/// Whether a text can stand in a path as it is; names of RBAC objects have colons.
fn is_segment(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    !text.is_empty() && text.chars().all(allowed) && text != "." && text != ".."
}

fn parse(manifests: &str) -> Result<Vec<Object>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(manifests).map_err(|error| {
        let line = error.location().map(|place| format!(" (line {})", place.line()));
        let reason = format!("it is not YAML{}", line.unwrap_or_default());
        KubeError::Manifest { number: 0, reason }
    })?;
    let numbered = documents.into_iter().enumerate();
    let there = numbered.filter(|(_, value)| !value.is_null());
    there.map(|(index, value)| Object::new(index + 1, value)).collect()
}

/// Whether these are objects that [`Cluster::apply_in`] may take, as far as that can be told without
/// a cluster.
///
/// # Errors
/// A document that is none, or that names another namespace.
pub fn check_confined(namespace: &str, manifests: &str) -> Result<()> {
    confined(namespace, manifests).map(drop)
}

fn confined(namespace: &str, manifests: &str) -> Result<Vec<Object>> {
    let mut objects = parse(manifests)?;
    objects.iter_mut().try_for_each(|object| object.confine(namespace))?;
    Ok(objects)
}

/// The object without what the server and controllers keep in it.
fn essence(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|key, _| key != "managedFields" && key != "resourceVersion");
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_told_apart_and_named() {
        let objects = parse(
            "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\n---\n\
             apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\n\
             metadata: {name: 'system:x', namespace: a}\n",
        )
        .unwrap();
        let names: Vec<String> = objects.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["Namespace a", "Role a/system:x"]);
    }

    #[test]
    fn what_is_confined_gets_its_namespace_and_nothing_of_another() {
        let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n---\n\
                    apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: apps}\n";
        let objects = confined("apps", text).unwrap();
        let names: Vec<String> = objects.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["Deployment apps/a", "Service apps/a"]);
        let namespace = objects.first().unwrap().value.pointer("/metadata/namespace");
        assert_eq!(namespace.unwrap(), "apps", "the API server is told, too");
        let error = check_confined("other", text).unwrap_err().to_string();
        assert!(error.contains("Service apps/a"), "{error}");
    }

    #[test]
    fn what_is_no_object_is_refused_by_its_number() {
        let rows = [
            "kind: Namespace\nmetadata: {name: a}",
            "apiVersion: v1\nmetadata: {name: a}",
            "apiVersion: v1\nkind: Namespace",
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: ../../secrets}",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: 'b/c'}",
            "apiVersion: a/b/c\nkind: Pod\nmetadata: {name: a}",
            "- a list",
        ];
        for text in rows {
            let error = parse(text).unwrap_err();
            assert!(matches!(error, KubeError::Manifest { number: 1, .. }), "{text}: {error}");
        }
    }
}
