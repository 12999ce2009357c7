//! The archive that the kernel unpacks into its initramfs: cpio in the format `newc`. Linux's
//! Documentation/driver-api/early-userspace/buffer-format.rst describes it.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_755;
const DEVICE: u32 = 0o020_600;

/// Entries are written immediately. The folders above a file are added automatically.
pub(crate) struct Cpio<W> {
    to: W,
    written: BTreeSet<String>,
}

impl<W: Write> Cpio<W> {
    pub(crate) fn new(to: W) -> Self {
        Self { to, written: BTreeSet::new() }
    }

    /// Adds a folder, by its path from the root.
    pub(crate) fn directory(&mut self, path: &str) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path, DIRECTORY, (0, 0), b"")
    }

    /// Adds an executable file, by its path from the root.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path, FILE, (0, 0), content)
    }

    /// Adds a character device.
    pub(crate) fn device(&mut self, path: &str, number: (u32, u32)) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path, DEVICE, number, b"")
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        self.written.contains(path.trim_start_matches('/'))
    }

    /// Ends the archive.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.entry("TRAILER!!!", 0, (0, 0), b"")?;
        self.to.flush()
    }

    fn parents(&mut self, path: &str) -> io::Result<()> {
        match Path::new(path).parent().and_then(Path::to_str) {
            Some("" | "/") | None => Ok(()),
            Some(parent) => self.directory(parent),
        }
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) -> io::Result<()> {
        let path = path.trim_start_matches('/');
        if !self.written.insert(path.to_owned()) {
            return Ok(());
        }
        let number = |count: usize| u32::try_from(count).map_err(io::Error::other);
        let inode = number(self.written.len())?;
        let length = number(content.len())?;
        let name_length = number(path.len() + 1)?;
        let fields = [inode, mode, 0, 0, 1, 0, length, 0, 0, device.0, device.1, name_length, 0];
        self.to.write_all(b"070701")?;
        fields.iter().try_for_each(|field| write!(self.to, "{field:08x}"))?;
        write!(self.to, "{path}\0")?;
        self.align(110 + path.len() + 1)?;
        self.to.write_all(content)?;
        self.align(content.len())
    }

    /// Pads the header with its name, and the content, to a multiple of four bytes.
    fn align(&mut self, length: usize) -> io::Result<()> {
        self.to.write_all(&[0; 3][..length.next_multiple_of(4) - length])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_as_the_kernel_reads_it() {
        let mut bytes = Vec::new();
        let mut cpio = Cpio::new(&mut bytes);
        cpio.file("/a/file", b"12345").expect("write");
        cpio.file("a/file", b"again").expect("write");
        assert!(cpio.has("/a/file") && !cpio.has("/b"));
        cpio.finish().expect("end");
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 3, "the folder, the file, the end");
        assert!(text.starts_with("07070100000001000041ed"), "{text}");
        assert!(text.contains("000081ed"), "{text}");
        assert!(text.contains("a/file\0\0\0\0" /* 110 + 7 → 120 */), "{text:?}");
        assert!(text.contains("12345\x00\x00\x00070701"), "{text:?}");
    }
}
