//! The archive that a kernel unpacks before it starts anything: cpio, in the format `newc`.

use std::collections::BTreeSet;
use std::path::Path;

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;
/// Names and contents begin at multiples of this.
const STEP: usize = 4;

/// Files for a guest, with the directories above them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    known: BTreeSet<String>,
}

impl Archive {
    /// Adds a file, unless there is one of that name.
    pub fn add(&mut self, path: &Path, is_program: bool, content: &[u8]) {
        let path = path.to_string_lossy();
        let name = path.trim_start_matches('/');
        for (end, _) in name.match_indices('/') {
            self.entry(name.get(..end).unwrap_or_default(), DIRECTORY, &[]);
        }
        self.entry(name, if is_program { PROGRAM } else { FILE }, content);
    }

    pub fn has(&self, path: &Path) -> bool {
        self.known.contains(path.to_string_lossy().trim_start_matches('/'))
    }

    /// The whole archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        if !self.known.insert(name.to_owned()) {
            return;
        }
        self.entries += 1;
        // Number, mode, owner, group, links, time, size, four of devices, length of the name, check.
        let fields = [
            self.entries as usize,
            mode as usize,
            0,
            0,
            1,
            0,
            content.len(),
            0,
            0,
            0,
            0,
            name.len() + 1,
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes().chain([0]));
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(STEP), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_directory_comes_once_and_before_what_is_in_it() {
        let mut archive = Archive::default();
        archive.add(Path::new("/a/b/one"), true, b"12345");
        archive.add(Path::new("/a/two"), false, b"");
        archive.add(Path::new("/a/two"), false, b"again");
        assert!(archive.has(Path::new("/a/b")) && !archive.has(Path::new("/b")));
        let bytes = archive.finish();
        assert!(bytes.len().is_multiple_of(STEP));
        let text = String::from_utf8(bytes).unwrap();
        let names: Vec<&str> = text
            .split("070701")
            .skip(1)
            .map(|entry| entry[104..].split('\0').next().unwrap())
            .collect();
        assert_eq!(names, ["a", "a/b", "a/b/one", "a/two", "TRAILER!!!"]);
        let one = text.split("070701").nth(3).unwrap();
        // Mode and size of the header, then the name and the content, each padded.
        assert_eq!((&one[8..16], &one[48..56]), ("000081ed", "00000005"));
        assert_eq!(&one[104..], "a/b/one\0\0\x0012345\0\0\0");
    }
}
