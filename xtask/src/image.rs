//! The image of the agent, for clusters that Wharf did not install
//! (docs/adr/0008-agent-on-imported-clusters.md).

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use wharf_bundle::{
    catalogue,
    oci::{self, Image, Node},
};

use crate::{needs, release};

/// What it is called in its archive.
const IMAGE: &str = concat!("wharf.dev/agent:", env!("CARGO_PKG_VERSION"));
/// Where `wharf agent launch` looks for them: in the root directory.
const PROGRAMS: [&str; 3] = ["wharf", "wharf-flex", "wharf-block"];

/// Make the agent's image, `wharf-agent.tar`: an OCI archive, without Docker
///
/// It prints the file and the name that the image has in it. On a node of a cluster that was imported,
/// `ctr -n k8s.io images import wharf-agent.tar` loads it.
#[derive(Debug, clap::Args)]
pub struct ImageArgs {
    /// Of programs that are not optimised, for tests: they are built sooner
    #[arg(long)]
    debug: bool,
}

pub fn run(args: &ImageArgs) -> Result<()> {
    needs::ensure_build()?;
    let agent = if args.debug { release::build_node_quickly()? } else { release::build_node()? };
    let archive = make(&agent)?;
    println!("{}\n{IMAGE}", archive.display());
    Ok(())
}

/// Makes an image of the agent and of what lies beside it; answers where it is.
fn make(agent: &Path) -> Result<PathBuf> {
    let tree: BTreeMap<String, Node> = PROGRAMS
        .iter()
        .map(|name| {
            let from = match *name {
                "wharf" => agent.to_owned(),
                name => agent.with_file_name(name),
            };
            ((*name).to_owned(), Node::Program { from })
        })
        .collect();
    let image = Image {
        name: IMAGE,
        arch: catalogue::this_arch(),
        entrypoint: &["/wharf"],
        command: &["agent", "launch"],
        user: "",
        tree,
    };
    let archive = agent.with_file_name("wharf-agent.tar");
    oci::write(&image, &archive).with_context(|| format!("cannot make {}", archive.display()))?;
    Ok(archive)
}
