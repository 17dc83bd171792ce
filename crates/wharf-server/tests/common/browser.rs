//! A real browser, driven through its debugging socket: just what the console's tests need.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use base64::Engine;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async, tungstenite::Message};

/// Test machines are noisy; whatever takes this long has failed.
const DEADLINE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(30);

/// Nothing that calls home, nothing that asks; a container has no sandbox to offer.
const FLAGS: [&str; 11] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
];

/// Collects what the browser complains about.
const WATCH: &str = r#"
    window.complaints = [];
    document.addEventListener("securitypolicyviolation", (event) =>
        window.complaints.push(`${event.violatedDirective} ${event.blockedURI}`));
    window.addEventListener("error", (event) => window.complaints.push(event.message));
    window.addEventListener("unhandledrejection", (event) =>
        window.complaints.push(String(event.reason)));
"#;

pub struct Browser {
    process: Child,
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    next: u64,
    _dir: TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl Browser {
    /// Starts a browser with one empty page.
    pub async fn start() -> Self {
        wharf_testbed::debian::ensure("the console's test", &[("chromium", "chromium")]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("chromium");
        command.args(FLAGS).arg(format!("--user-data-dir={}", dir.path().display()));
        command.arg("about:blank").stdin(Stdio::null());
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let port = port_in(&dir.path().join("DevToolsActivePort")).await;
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let list = format!("http://127.0.0.1:{port}/json/list");
        let pages: Value = http.get(list).send().await.unwrap().json().await.unwrap();
        let page = pages.as_array().unwrap().iter().find(|page| page["type"] == "page").unwrap();
        let address = page["webSocketDebuggerUrl"].as_str().unwrap();
        let (socket, _) = connect_async(address).await.unwrap();
        let mut browser = Self { process, socket, next: 0, _dir: dir };
        browser.call("Page.enable", json!({})).await;
        browser.call("Page.addScriptToEvaluateOnNewDocument", json!({ "source": WATCH })).await;
        browser
    }

    /// Takes the certificate of any server: a test's own is not known to the browser.
    pub async fn trust_all(&mut self) {
        self.call("Security.setIgnoreCertificateErrors", json!({ "ignore": true })).await;
    }

    /// Fails if the page tried what its policy forbids, or if its script broke.
    pub async fn assert_harmless(&mut self) {
        assert_eq!(self.value("window.complaints.join()").await, "");
    }

    /// Calls a method of the debugging protocol and waits for its answer.
    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        let answer = self.ask(method, params).await;
        answer.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    async fn ask(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.next += 1;
        let request = json!({"id": self.next, "method": method, "params": params});
        self.socket.send(Message::text(request.to_string())).await.unwrap();
        loop {
            let said = tokio::time::timeout(DEADLINE, self.socket.next()).await.unwrap();
            let Message::Text(text) = said.unwrap().unwrap() else { continue };
            let answer: Value = serde_json::from_str(&text).unwrap();
            if answer["id"] == self.next {
                let error = &answer["error"];
                return if error.is_null() {
                    Ok(answer["result"].clone())
                } else {
                    Err(error.clone())
                };
            }
        }
    }

    pub async fn open(&mut self, url: &str) {
        let answer = self.call("Page.navigate", json!({ "url": url })).await;
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
        self.until("document.readyState === 'complete'").await;
    }

    /// The value of an expression in the page.
    pub async fn value(&mut self, expression: &str) -> Value {
        let answer = self.evaluate(expression).await;
        answer.unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    async fn evaluate(&mut self, expression: &str) -> Result<Value, Value> {
        let params = json!({"expression": expression, "returnByValue": true});
        let answer = self.ask("Runtime.evaluate", params).await?;
        match &answer["exceptionDetails"] {
            Value::Null => Ok(answer["result"]["value"].clone()),
            exception => Err(exception.clone()),
        }
    }

    /// Waits until an expression holds in the page; a page that is being left holds nothing.
    pub async fn until(&mut self, expression: &str) {
        self.until_within(DEADLINE, expression).await;
    }

    /// The same for what takes longer than a page.
    pub async fn until_within(&mut self, deadline: Duration, expression: &str) {
        let guarded =
            format!("(() => {{ try {{ return !!({expression}) }} catch {{ return false }} }})()");
        let wait = async {
            while self.evaluate(&guarded).await != Ok(Value::Bool(true)) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        if tokio::time::timeout(deadline, wait).await.is_err() {
            let page = self.value("document.body.innerText").await;
            panic!("never held: {expression}\n{page}");
        }
    }

    /// Types into a field as a person does.
    pub async fn fill(&mut self, id: &str, text: &str) {
        self.value(&format!("document.getElementById({id:?}).focus()")).await;
        self.call("Input.insertText", json!({ "text": text })).await;
    }

    pub async fn click(&mut self, selector: &str) {
        self.value(&format!("document.querySelector({selector:?}).click()")).await;
    }

    /// The page has this size when it returns, not some time later.
    pub async fn resize(&mut self, width: u32, height: u32) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size).await;
        self.until(&format!("innerWidth === {width} && innerHeight === {height}")).await;
    }

    /// Fails if the page is wider than its window.
    pub async fn assert_fits(&mut self) {
        let overflow =
            "document.documentElement.scrollWidth - document.documentElement.clientWidth";
        assert_eq!(self.value(overflow).await, 0, "it would scroll sideways");
    }

    pub async fn dark(&mut self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": value}]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    /// Writes a picture of the whole page, if the environment says where pictures go.
    pub async fn picture(&mut self, name: &str) {
        let Some(dir) = std::env::var_os("WHARF_PICTURES") else { return };
        let params = json!({"format": "png", "captureBeyondViewport": true});
        let answer = self.call("Page.captureScreenshot", params).await;
        let data = answer["data"].as_str().unwrap();
        let bytes = base64::engine::general_purpose::STANDARD.decode(data).unwrap();
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(Path::new(&dir).join(format!("console-{name}.png")), bytes).unwrap();
    }
}

/// The browser writes the port that it chose into a file.
async fn port_in(file: &Path) -> u16 {
    let wait = async {
        loop {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            match text.lines().next().and_then(|line| line.parse().ok()) {
                Some(port) => return port,
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.unwrap()
}
