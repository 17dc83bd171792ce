//! The parts of the benchmark that need no machines, run for real.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::process::Command;

#[test]
fn certificates_are_measured_beside_kubeadm() {
    wharf_testbed::debian::ensure("the benchmarks", &[("openssl", "openssl")]).unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_wharf-bench"))
        .args(["install", "--only", "certificates", "--json", "--out"])
        .arg(dir.path().join("out"))
        .env("TMPDIR", dir.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2);
    for row in &rows {
        assert_eq!(row["peer_name"], "kubeadm, 1 machine");
        assert!(row["ours"].as_f64().unwrap() > 0.0 && row["peer"].as_f64().unwrap() > 0.0);
    }
    assert!(dir.path().join("out/install.json").is_file());
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 1, "only the results stay");
}
