//! The form for a new cluster.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use askama::Template;
use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
};
use wharf_api::error::{ErrorCode, FieldFault};
use wharf_core::cluster::{ClusterSpec, NetworkPlugin, NodeRole};

use super::{
    Page, PageResult, Session,
    clusters::to_cluster,
    field::{Field, Kind, faults_of, id_of, is_in},
    guard::Posted,
    wish::{Row, Wish},
};
use crate::{access::Caller, app::App, clusters, error::ApiError, http::session::host_of};

#[derive(Template)]
#[template(path = "console/form.html")]
struct Body<'a> {
    summary: Vec<Said>,
    hint: Option<String>,
    basics: Vec<Field>,
    access: Vec<Field>,
    advanced: Vec<Field>,
    /// Something in the advanced part was typed or is wrong, so it is open.
    is_open: bool,
    rows: Vec<NodeRow>,
    /// What the script copies for one row more.
    blank: NodeRow,
    row_faults: Vec<String>,
    has_versions: bool,
    form_token: &'a str,
}

/// A fault, with where it is in the page.
struct Said {
    id: Option<String>,
    text: String,
}

struct NodeRow {
    index: String,
    name: Field,
    address: Field,
    roles: Vec<(&'static str, bool)>,
    faults: Vec<String>,
}

/// `GET /console/new-cluster`
pub async fn show(
    State(app): State<App>,
    caller: Caller,
    session: Session,
    headers: HeaderMap,
    uri: Uri,
) -> PageResult {
    let server = server_address(host_of(&headers, &uri), app.config.listen);
    let wish = Wish::new(&server.unwrap_or_default(), "");
    page(&app, &caller, &session, &wish, None)
}

/// `POST /console/new-cluster`
pub async fn send(
    State(app): State<App>,
    caller: Caller,
    session: Session,
    Posted(fields): Posted,
) -> PageResult {
    let wish = Wish::read(&fields);
    let draft = wish.draft(fields.get("sshKey"), fields.get("sshKeyPassphrase"));
    match clusters::create(&app, &caller, &draft).await {
        Ok(made) => Ok(to_cluster(&made.id)),
        Err(error) if error.body.status == 422 => {
            page(&app, &caller, &session, &wish, Some(&error))
        }
        Err(error) => Err(error.into()),
    }
}

fn page(
    app: &App,
    caller: &Caller,
    session: &Session,
    wish: &Wish,
    error: Option<&ApiError>,
) -> PageResult {
    let versions = clusters::kubernetes_versions(&app.config);
    let faults = error.map(faults).unwrap_or_default();
    let body = Body {
        hint: error.and_then(|error| error.body.hint.clone()),
        ..body(wish, &versions, &faults, &session.form_token)
    };
    let status = match error {
        Some(_) => StatusCode::UNPROCESSABLE_ENTITY,
        None => StatusCode::OK,
    };
    let page = Page { title: "New cluster", session: Some((caller, session)), busy: false };
    page.show(status, &body)
}

/// A name that is taken is told without its field, since it is told before anything else.
fn faults(error: &ApiError) -> Vec<FieldFault> {
    if !error.body.details.is_empty() {
        return error.body.details.clone();
    }
    let field = match error.body.code {
        ErrorCode::DuplicateResource => "name",
        _ => "",
    };
    let message = error.body.message.clone();
    vec![FieldFault { field: field.to_owned(), code: error.body.code, message }]
}

fn body<'a>(
    wish: &Wish,
    versions: &[String],
    faults: &[FieldFault],
    form_token: &'a str,
) -> Body<'a> {
    let basics = basics(wish, versions, faults);
    let access = access(wish, faults);
    let advanced = advanced(wish, faults);
    let shown = wish.rows();
    let rows: Vec<NodeRow> =
        shown.iter().enumerate().map(|(i, row)| node_row(&i.to_string(), row, faults)).collect();
    let is_open = advanced.iter().any(|f| !f.faults.is_empty() || !f.value.is_empty());
    let mut places: Vec<String> =
        [&basics, &access, &advanced].into_iter().flatten().map(|f| f.path.clone()).collect();
    for row in &rows {
        places.extend([row.name.path.clone(), row.address.path.clone()]);
        places.push(format!("nodes[{}].roles", row.index));
    }
    places.push("nodes".to_owned());
    let said = |fault: &FieldFault| Said {
        id: places.iter().find(|path| is_in(&fault.field, path)).map(|path| id_of(path)),
        text: fault.message.clone(),
    };
    let worker = Row { roles: vec![NodeRole::Worker.name().to_owned()], ..Row::default() };
    Body {
        summary: faults.iter().map(said).collect(),
        hint: None,
        basics,
        access,
        advanced,
        is_open,
        rows,
        blank: node_row("ROW", &worker, &[]),
        row_faults: faults
            .iter()
            .filter(|f| f.field == "nodes")
            .map(|f| f.message.clone())
            .collect(),
        has_versions: !versions.is_empty(),
        form_token,
    }
}

fn basics(wish: &Wish, versions: &[String], faults: &[FieldFault]) -> Vec<Field> {
    let text = |path: &'static str, label| Field::text(path, label, wish.text(path));
    let newest = |i: usize| if i == 0 { " (newest)" } else { "" };
    let versions = versions.iter().enumerate();
    let versions = versions.map(|(i, v)| (v.clone(), format!("{v}{}", newest(i)))).collect();
    let plugins = [
        (NetworkPlugin::Routed, "routed: routes, VXLAN where a router is in between"),
        (NetworkPlugin::Vxlan, "vxlan: VXLAN between all nodes"),
        (NetworkPlugin::None, "none: bring your own"),
    ];
    let plugins = plugins.map(|(plugin, text)| (plugin.name().to_owned(), text.to_owned()));
    let fields = [
        text("name", "Name")
            .required()
            .placeholder("demo")
            .help("Small letters, digits, hyphens and dots."),
        text("singleCloudAddress", "Address of this server")
            .required()
            .placeholder("192.0.2.1:8443")
            .help("Address and port under which the machines find this server."),
        Field { kind: Kind::Choice(versions), ..text("kubernetesVersion", "Kubernetes version") },
        Field { kind: Kind::Choice(plugins.to_vec()), ..text("network.plugin", "Pod network") },
    ];
    fields.map(|field| field.judged(faults)).into()
}

fn access(wish: &Wish, faults: &[FieldFault]) -> Vec<Field> {
    let text = |path: &'static str, label| Field::text(path, label, wish.text(path));
    let fields = [
        text("sshUser", "SSH user")
            .required()
            .placeholder("root")
            .help("root, or a user who may use sudo without a password."),
        text("sshPort", "SSH port").placeholder("22"),
        Field::secret("sshKey", "Private key", Kind::Key)
            .required()
            .help("OpenSSH or PEM. It is stored sealed and never shown again."),
        Field::secret("sshKeyPassphrase", "Passphrase of the key", Kind::Password)
            .help("Only if the key is encrypted."),
        text("sshJumpHost", "Jump host")
            .placeholder("user@host:port")
            .help("Only if the machines are reached through another host."),
    ];
    fields.map(|field| field.judged(faults)).into()
}

fn advanced(wish: &Wish, faults: &[FieldFault]) -> Vec<Field> {
    let nowhere = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
    let default = ClusterSpec::new("", nowhere, "");
    let servers: Vec<String> =
        default.cluster_upstream_dns.iter().map(ToString::to_string).collect();
    let text = |path: &'static str, label, default: String| {
        Field::text(path, label, wish.text(path)).placeholder(default)
    };
    let fields = [
        text("clusterCidr", "Addresses of pods", default.cluster_cidr.to_string()),
        text("serviceCidr", "Addresses of Services", default.service_cidr.to_string()),
        text("clusterDNSServiceIP", "Address of DNS", default.cluster_dns_service_ip.to_string())
            .help("Within the addresses of Services."),
        text("clusterDomain", "Domain of the cluster", default.cluster_domain),
        text("clusterUpstreamDNS", "DNS servers outside", servers.join(", "))
            .help("For names that are not the cluster's own."),
    ];
    fields.map(|field| field.judged(faults)).into()
}

fn node_row(index: &str, row: &Row, faults: &[FieldFault]) -> NodeRow {
    let path = format!("nodes[{index}]");
    let has = |role: NodeRole| row.roles.iter().any(|given| given == role.name());
    NodeRow {
        index: index.to_owned(),
        name: Field::text(format!("{path}.name"), "Name", &row.name)
            .placeholder("node-1")
            .judged(faults),
        address: Field::text(format!("{path}.address"), "Address", &row.address)
            .placeholder("192.0.2.11")
            .judged(faults),
        roles: NodeRole::ALL.map(|role| (role.name(), has(role))).to_vec(),
        faults: faults_of(faults, &format!("{path}.roles")),
    }
}

/// Where machines find this server, as far as it can be guessed: under the address by which the
/// browser found it, or on which it listens. A loopback address is of no use to another machine.
fn server_address(host: Option<&str>, listen: SocketAddr) -> Option<String> {
    let with_port = host.and_then(|host| host.parse::<SocketAddrV4>().ok());
    let alone = host.and_then(|host| host.parse::<Ipv4Addr>().ok());
    let asked = with_port.or(alone.map(|ip| SocketAddrV4::new(ip, listen.port())));
    let listened = match listen.ip() {
        IpAddr::V4(ip) => Some(SocketAddrV4::new(ip, listen.port())),
        IpAddr::V6(_) => None,
    };
    let is_useful = |a: &SocketAddrV4| !a.ip().is_loopback() && !a.ip().is_unspecified();
    asked.into_iter().chain(listened).find(is_useful).map(|address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_proposed_under_an_address_that_machines_can_use() {
        let listen = |text: &str| text.parse().unwrap();
        for (host, at, expected) in [
            (Some("192.0.2.1:9443"), "0.0.0.0:8443", Some("192.0.2.1:9443")),
            (Some("192.0.2.1"), "0.0.0.0:443", Some("192.0.2.1:443")),
            (Some("127.0.0.1:8443"), "0.0.0.0:8443", None),
            (Some("wharf.example:8443"), "192.0.2.7:8443", Some("192.0.2.7:8443")),
            (None, "[::]:8443", None),
        ] {
            let found = server_address(host, listen(at));
            assert_eq!(found.as_deref(), expected, "{host:?}");
        }
    }
}
