//! The components that run on a host, one file each: flags, configuration, unit.
