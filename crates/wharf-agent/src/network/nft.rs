//! The agent's table of nft rules, and the `nft` program.

use std::{process::Stdio, time::Duration};

use tokio::{io::AsyncWriteExt, process::Command, time::timeout};
use wharf_core::install::network::{Masquerade, NFT_TABLE, ObservedTable, render_masquerade};

use super::NetworkError;

/// nft waits for others who change rules at this moment; kube-proxy may take a second.
const NFT_TIMEOUT: Duration = Duration::from_secs(20);

/// What we know of the table. nft prints rules in a form that depends on its version, so the text
/// to compare with is what it printed right after the rules were set.
#[derive(Debug, Default)]
pub struct Table {
    in_force: Option<(Masquerade, String)>,
}

impl Table {
    pub async fn observe(&self) -> Result<ObservedTable, NetworkError> {
        let Some(printed) = list().await? else { return Ok(ObservedTable::Absent) };
        Ok(match &self.in_force {
            Some((rule, known)) if *known == printed => ObservedTable::InForce(rule.clone()),
            _ => ObservedTable::Unknown,
        })
    }

    pub async fn set(&mut self, rule: &Masquerade) -> Result<(), NetworkError> {
        nft(&["-f", "-"], &render_masquerade(rule)).await?;
        self.in_force = list().await?.map(|printed| (rule.clone(), printed));
        Ok(())
    }

    pub async fn remove(&mut self) -> Result<(), NetworkError> {
        self.in_force = None;
        // Adding first makes the removal of a table that has just gone no error.
        let script = format!("add table {NFT_TABLE}\ndelete table {NFT_TABLE}\n");
        nft(&["-f", "-"], &script).await.map(drop)
    }
}

/// The table as nft prints it.
async fn list() -> Result<Option<String>, NetworkError> {
    let tables = nft(&["list", "tables", "ip"], "").await?;
    let line = format!("table {NFT_TABLE}");
    if !tables.lines().any(|table| table.trim() == line) {
        return Ok(None);
    }
    let script = format!("list table {NFT_TABLE}\n");
    nft(&["-s", "-f", "-"], &script).await.map(Some)
}

pub(crate) async fn nft(arguments: &[&str], script: &str) -> Result<String, NetworkError> {
    let mut child = Command::new("nft")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(NetworkError::NftMissing)?;
    let stdin = child.stdin.take();
    let talk = async {
        if let Some(mut stdin) = stdin {
            // nft may end without reading; what it says then counts.
            let _ = stdin.write_all(script.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let output = timeout(NFT_TIMEOUT, talk)
        .await
        .map_err(|_| NetworkError::NftTimedOut(NFT_TIMEOUT))?
        .map_err(NetworkError::NftMissing)?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(NetworkError::Nft { stderr });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
