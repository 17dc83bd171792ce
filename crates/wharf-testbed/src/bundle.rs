//! The default bundle of this machine inside a host, where the upload is not what is tested.

use anyhow::{Context, Result};
use wharf_bundle::Bundle;
use wharf_bundle::cache::Cache;

use crate::bed::Bind;

/// Where an install looks for a bundle that came with the machine's image.
///
/// The same as `wharf_core::install::host::place::PRELOADED`, which this crate must not know: a
/// bed is a machine, and a machine has never heard of clusters.
pub const PRELOADED: &str = "/usr/share/wharf/bundle";

/// The bundle is bound, not copied: a gigabyte for each host would cost more than its boot. One
/// bind suffices, because a bundle holds plain files only.
pub(crate) fn bind() -> Result<Bind> {
    let cache = Cache::from_env().context("set WHARF_CACHE or HOME: there is no bundle")?;
    let source = cache.default_bundle_dir();
    Bundle::open(&source).context("make the bundle with `cargo xtask assets`")?;
    Ok(Bind { source, target: PRELOADED.into(), read_only: true })
}
