//! A real Kubernetes API server for tests, on an etcd of its own: no kubelets, and just those
//! controllers that a test asks for.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use tempfile::TempDir;

use crate::etcd::Etcd;
use crate::process::{Process, free_port};
use crate::wait::wait_for;

const READY: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_secs(5);
const TOKEN: &str = "token-of-a-test";

/// What it is started with besides its addresses.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Controllers to run, as `--controllers` takes them; none, no controller-manager.
    pub controllers: Vec<String>,
    /// Whether pods are put on nodes.
    pub scheduler: bool,
    /// Further flags, as kube-apiserver takes them.
    pub flags: Vec<String>,
}

/// Dropping it ends all its processes and deletes their data.
#[derive(Debug)]
pub struct ApiServer {
    /// Whatever works through it.
    clients: Vec<Process>,
    process: Process,
    flags: Vec<String>,
    etcd: Etcd,
    port: u16,
    identities: Identities,
    dir: TempDir,
}

impl ApiServer {
    pub fn start() -> Result<Self> {
        Self::start_with(&Options::default())
    }

    pub fn start_with(options: &Options) -> Result<Self> {
        let etcd = Etcd::start()?;
        let dir = tempfile::Builder::new().prefix("wharf-apiserver-").tempdir()?;
        let identities = Identities::make(dir.path())?;
        let port = free_port()?;
        let flags = options.flags.clone();
        let process = Process::spawn(apiserver(dir.path(), port, &etcd, &flags)?)?;
        let clients = Vec::new();
        let mut server = Self { clients, process, flags, etcd, port, identities, dir };
        server.wait_until_ready()?;
        let kubeconfig = server.kubeconfig_file();
        std::fs::write(&kubeconfig, server.kubeconfig())?;
        if !options.controllers.is_empty() {
            let command = controller_manager(&kubeconfig, &options.controllers)?;
            server.clients.push(Process::spawn(command)?);
        }
        if options.scheduler {
            let mut command = Command::new(find("kube-scheduler")?);
            command.arg(format!("--kubeconfig={}", kubeconfig.display()));
            command.args(["--leader-elect=false", "--secure-port=0"]);
            server.clients.push(Process::spawn(command)?);
        }
        Ok(server)
    }

    /// Starts it anew, as the same server on the same data. It may have been killed before.
    pub fn restart(&mut self) -> Result<()> {
        self.process.kill()?;
        let command = apiserver(self.dir.path(), self.port, &self.etcd, &self.flags)?;
        self.process = Process::spawn(command)?;
        self.wait_until_ready()
    }

    /// Where its kubeconfig lies.
    pub fn kubeconfig_file(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    /// `https://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// A kubeconfig of an administrator with a client certificate.
    pub fn kubeconfig(&self) -> String {
        let Identities { certificate, key, .. } = &self.identities;
        let (certificate, key) = (STANDARD.encode(certificate), STANDARD.encode(key));
        let user = format!("{{client-certificate-data: {certificate}, client-key-data: {key}}}");
        self.kubeconfig_of(&user)
    }

    /// The same with a bearer token.
    pub fn kubeconfig_with_token(&self) -> String {
        self.kubeconfig_of(&format!("{{token: {TOKEN}}}"))
    }

    pub fn token(&self) -> &'static str {
        TOKEN
    }

    /// The authority that signed its certificate, as PEM.
    pub fn authority(&self) -> &str {
        &self.identities.authority
    }

    fn kubeconfig_of(&self, user: &str) -> String {
        let authority = STANDARD.encode(&self.identities.authority);
        format!(
            "apiVersion: v1\n\
             kind: Config\n\
             current-context: test\n\
             clusters:\n\
             - name: test\n  \
               cluster: {{server: '{}', certificate-authority-data: {authority}}}\n\
             users:\n\
             - name: admin\n  user: {user}\n\
             contexts:\n\
             - name: test\n  context: {{cluster: test, user: admin}}\n",
            self.url()
        )
    }

    /// To stop, continue or kill it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    pub fn etcd(&mut self) -> &mut Etcd {
        &mut self.etcd
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let tls = trust(&self.identities.authority)?;
        let (port, process) = (self.port, &mut self.process);
        wait_for("kube-apiserver to be ready", READY, || {
            let ended = process.status()?;
            ensure!(ended.is_none(), "kube-apiserver ended at once:\n{}", process.output());
            Ok(is_ready(port, &tls).unwrap_or_default().then_some(()))
        })
        .with_context(|| format!("it printed:\n{}", process.output()))
    }
}

/// The certificates of the server and of its administrator.
#[derive(Debug)]
struct Identities {
    authority: String,
    certificate: String,
    key: String,
}

impl Identities {
    fn make(dir: &Path) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let key = KeyPair::generate()?;
        let authority = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);

        let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
        let server_key = KeyPair::generate()?;
        let server = CertificateParams::new(names)?.signed_by(&server_key, &issuer)?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, "admin");
        params.distinguished_name.push(DnType::OrganizationName, "system:masters");
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?.pem();

        let accounts = KeyPair::generate()?;
        let files = [
            ("ca.crt", authority.clone()),
            ("server.crt", server.pem()),
            ("server.key", server_key.serialize_pem()),
            ("accounts.pub", accounts.public_key_pem()),
            ("accounts.key", accounts.serialize_pem()),
            ("tokens.csv", format!("{TOKEN},admin,admin,\"system:masters\"\n")),
        ];
        for (name, text) in files {
            std::fs::write(dir.join(name), text)?;
        }
        Ok(Self { authority, certificate, key: key.serialize_pem() })
    }
}

fn apiserver(dir: &Path, port: u16, etcd: &Etcd, flags: &[String]) -> Result<Command> {
    let mut command = Command::new(find("kube-apiserver")?);
    let file = |flag: &str, name: &str| format!("--{flag}={}", dir.join(name).display());
    command
        .arg(format!("--etcd-servers={}", etcd.endpoint()))
        .arg(format!("--secure-port={port}"))
        .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
        .args(["--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16"])
        .args(["--authorization-mode=RBAC", "--service-account-issuer=https://test.invalid"])
        // Without its controller there are no accounts, and no pod could be made.
        .arg("--disable-admission-plugins=ServiceAccount")
        .arg(file("client-ca-file", "ca.crt"))
        .arg(file("tls-cert-file", "server.crt"))
        .arg(file("tls-private-key-file", "server.key"))
        .arg(file("service-account-key-file", "accounts.pub"))
        .arg(file("service-account-signing-key-file", "accounts.key"))
        .arg(file("token-auth-file", "tokens.csv"))
        .args(flags);
    Ok(command)
}

fn controller_manager(kubeconfig: &Path, controllers: &[String]) -> Result<Command> {
    let mut command = Command::new(find("kube-controller-manager")?);
    command
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--controllers={}", controllers.join(",")))
        .args(["--leader-elect=false", "--secure-port=0"]);
    Ok(command)
}

pub(crate) fn find(program: &str) -> Result<PathBuf> {
    wharf_bundle::cache::find(program)
        .with_context(|| format!("there is no {program}: run `cargo xtask assets`"))
}

fn trust(authority: &str) -> Result<Arc<rustls::ClientConfig>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes())?)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn is_ready(port: u16, tls: &Arc<rustls::ClientConfig>) -> Result<bool> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&address, LOOK)?;
    stream.set_read_timeout(Some(LOOK))?;
    let name = ServerName::try_from("localhost")?;
    let session = rustls::ClientConnection::new(tls.clone(), name)?;
    let mut stream = rustls::StreamOwned::new(session, stream);
    let request = format!("GET /readyz HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    // The end of the stream may come without a farewell; what came before it counts.
    let _ = stream.read_to_end(&mut answer);
    Ok(answer.starts_with(b"HTTP/1.0 200"))
}
