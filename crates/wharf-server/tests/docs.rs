//! Documents that are made from the code.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{TestServer, json_of};

/// Compares a file in `docs/` with what the code makes; with `WHARF_UPDATE` set, writes it.
fn assert_not_outdated(name: &str, made: &str) {
    let path = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("WHARF_UPDATE").is_some() {
        std::fs::write(&path, made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "docs/{name} is outdated: run `cargo xtask update`");
}

#[test]
fn the_diagram_of_the_states_is_not_outdated() {
    let made = format!(
        "# The states of a cluster\n\nMade from the code by `cargo xtask update`; do not edit.\n\n\
         ```mermaid\n{}```\n",
        wharf_core::cluster::life::render_diagram()
    );
    assert_not_outdated("CLUSTER-STATES.md", &made);
}

#[tokio::test]
async fn the_description_of_the_api_is_served_and_not_outdated() {
    let server = TestServer::start().await;
    let served = json_of(server.get("/openapi.json", "").await).await;
    assert!(served["openapi"].as_str().unwrap().starts_with("3.1"), "{}", served["openapi"]);
    let paths = served["paths"].as_object().unwrap();
    let operations: Vec<_> = paths.values().flat_map(|i| i.as_object().unwrap().values()).collect();
    let ids: std::collections::BTreeSet<_> =
        operations.iter().map(|o| o["operationId"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), operations.len(), "{ids:?}");
    let page = server.get("/docs", "").await;
    assert!(page.headers().contains_key("content-security-policy"));
    let page = page.text().await.unwrap();
    for path in paths.keys() {
        assert!(
            page.contains(&path.replace('{', "&#123;").replace('}', "&#125;"))
                || page.contains(path),
            "the page lacks {path}"
        );
    }
    let text = format!(
        "{}
",
        serde_json::to_string_pretty(&served).unwrap()
    );
    assert_not_outdated("openapi.json", &text);
}
