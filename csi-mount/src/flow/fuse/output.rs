//! What a daemon prints: kept in a file in memory, copied into the log of this process, and found again by a
//! later process.
//!
//! A pipe would tie the daemon to this process: when its reader is gone, a write kills the daemon; when its
//! reader is slow, a write blocks. A write to a file in memory (`memfd_create(2)`) does neither, and the
//! daemon itself keeps the file. One process at a time copies it, which a lock on the file ensures, and gives
//! back the memory of what it has copied. While no process copies it, the file grows.
//!
//! The file also proves whose daemon a process is: see [`is_proof_held_by`].

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{
    FallocateFlags, FlockOperation, MemfdFlags, OFlags, SeekFrom, XattrFlags, fallocate, fcntl_setfl,
    fgetxattr, flock, fsetxattr, getxattr, memfd_create, seek,
};
use rustix::io::Errno;

use super::credentials;
use super::secrets::Secrets;
use crate::sys::descriptor::reopen_file;

const NAME: &str = "csi-mount-fuse-output";
/// The attribute of the file that has the daemon's place. Only a process with CAP_SYS_ADMIN in the initial user
/// namespace can set or read it.
const PROOF: &str = "trusted.csi-mount.daemon-at";
/// The attribute of the file of a daemon whose mount has answered.
const SERVED: &str = "trusted.csi-mount.has-served";
/// The longest line that is copied, in bytes. The end of a longer line is left out.
const MAX_LINE: usize = 4 * 1024;
/// If this many bytes are not copied yet, all but the last ones are left out.
const MAX_BACKLOG: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// How many of the last lines an error contains, and how many letters of each.
const LAST_LINES: usize = 5;
const LAST_LETTERS: usize = 300;

/// The file that a daemon writes to.
pub(super) struct Output {
    file: File,
}

impl Output {
    /// The file of a daemon for this place.
    pub(super) fn new(place: &Path) -> io::Result<Self> {
        let file = match memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL) {
            // Before Linux 6.3.
            Err(Errno::INVAL) => memfd_create(NAME, MemfdFlags::CLOEXEC),
            made => made,
        }?;
        // Standard output and standard error share this open file, and its end moves when one is punched.
        fcntl_setfl(&file, OFlags::APPEND)?;
        match fsetxattr(&file, PROOF, place.as_os_str().as_bytes(), XattrFlags::empty()) {
            // Without privileges, the owner of the file is the proof.
            Ok(()) | Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Self { file: file.into() })
    }

    /// The file of a running daemon; none if its output goes elsewhere, or its process is not visible.
    pub(super) fn of_process(pid: i32) -> Option<Self> {
        Some(Self { file: File::options().read(true).open(output_file(pid)?).ok()? })
    }

    /// Notes that the mount of the daemon has answered, for later processes.
    pub(super) fn set_served(&self) {
        if let Err(error) = fsetxattr(&self.file, SERVED, b"", XattrFlags::empty()) {
            tracing::debug!(%error, "a later process does not know whether a FUSE daemon has served");
        }
    }

    /// Whether the mount of the daemon has answered. Without the right to know, it can have.
    pub(super) fn has_served(&self) -> bool {
        match fgetxattr(&self.file, SERVED, &mut [0_u8; 0][..]) {
            Ok(_) => true,
            Err(_) => !can_prove(),
        }
    }

    pub(super) fn stdio(&self) -> io::Result<Stdio> {
        Ok(self.file.try_clone()?.into())
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Whether a process holds the file that was made for a daemon at this place: as its output, or as a descriptor
/// that a launcher passed on. A process that is in the middle of an `exec` holds it too.
///
/// No other process can make such a file. It is checked by its attribute, not by its name.
pub(super) fn is_proof_held_by(pid: i32, place: &Path) -> bool {
    let ours = format!("/memfd:{NAME}");
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.map(|file| file.path()).any(|path| {
        fs::read_link(&path).is_ok_and(|link| link.as_os_str().as_bytes().starts_with(ours.as_bytes()))
            && is_proof(&path, place)
    })
}

/// Whether a process prints into such a file, as a daemon does. A driver that copies the file has it too. Without privileges
/// the file does not tell the place.
pub(super) fn is_output_of(pid: i32, place: &Path) -> bool {
    can_prove() && output_file(pid).is_some_and(|path| is_proof(&path, place))
}

/// The standard output or standard error of a process that is such a file.
fn output_file(pid: i32) -> Option<PathBuf> {
    let ours = format!("/memfd:{NAME}");
    let paths = [2, 1].map(|number| PathBuf::from(format!("/proc/{pid}/fd/{number}")));
    let is_ours =
        |path: &PathBuf| fs::read_link(path).is_ok_and(|link| link.to_string_lossy().starts_with(&ours));
    paths.into_iter().find(is_ours)
}

fn is_proof(file: &Path, place: &Path) -> bool {
    let place = place.as_os_str().as_bytes();
    let mut found = vec![0; place.len() + 1];
    match getxattr(file, PROOF, &mut found[..]) {
        Ok(length) => &found[..length] == place,
        Err(Errno::NODATA | Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) if !can_prove() => {
            fs::metadata(file).is_ok_and(|file| file.uid() == rustix::process::geteuid().as_raw())
        }
        Err(_) => false,
    }
}

/// Whether this process can set and read the attribute.
fn can_prove() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    let is_set = |output: Output| fgetxattr(&output.file, PROOF, &mut [0_u8; 8][..]).is_ok();
    *CAN.get_or_init(|| Output::new(Path::new("/")).is_ok_and(is_set))
}

/// The outputs that this process copies, or waits to copy, by their inode numbers, and what is hidden in each.
static COPIED: Mutex<BTreeMap<u64, Secrets>> = Mutex::new(BTreeMap::new());

/// Copies the output of one daemon into the log, from the moment when no other process does.
pub(super) struct Copier {
    file: File,
    inode: u64,
    /// Whether this process has the lock of the file.
    has_turn: bool,
    /// Everything before it is copied.
    position: u64,
    /// The start of a line whose end is not written yet.
    partial: Vec<u8>,
    /// The start of the current line is not known, and its rest could be a part of a secret.
    is_cut: bool,
    last: LastLines,
    secrets: Secrets,
    /// The content of its credentials at the last look.
    credentials: Vec<Vec<u8>>,
    place: PathBuf,
    at: String,
}

/// The last lines that a daemon has printed, for an error.
#[derive(Clone, Default)]
pub(super) struct LastLines(Arc<Mutex<VecDeque<String>>>);

impl LastLines {
    fn push(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LAST_LINES {
            lines.pop_front();
        }
        lines.push_back(line.chars().take(LAST_LETTERS).collect());
    }

    /// `: line | line`, or nothing.
    pub(super) fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = lines.iter().map(String::as_str).collect::<Vec<_>>().join(" | ");
        if lines.is_empty() { lines } else { format!(": {lines}") }
    }
}

impl Copier {
    /// None if another thread of this process has one for this output. That one hides these secrets too.
    pub(super) fn new(
        output: &Output,
        secrets: Secrets,
        place: &Path,
        at: String,
    ) -> io::Result<Option<Self>> {
        // An open file of its own: the lock must not belong to the daemon.
        let file = File::from(reopen_file(&output.file, OFlags::RDWR)?);
        let inode = file.metadata()?.ino();
        match copied().entry(inode) {
            Entry::Occupied(known) => {
                known.get().add(&secrets);
                return Ok(None);
            }
            Entry::Vacant(free) => free.insert(secrets.clone()),
        };
        Ok(Some(Self {
            file,
            inode,
            has_turn: false,
            position: 0,
            partial: Vec::new(),
            is_cut: false,
            last: LastLines::default(),
            secrets,
            credentials: Vec::new(),
            place: place.to_owned(),
            at,
        }))
    }

    /// Takes the turn, if no other process has it.
    fn take_turn(&mut self) -> io::Result<bool> {
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(false),
            locked => locked?,
        }
        self.has_turn = true;
        // What another process has copied is a hole, except for the last page. Without data all of it is.
        let start = seek(&self.file, SeekFrom::Data(0)).or_else(|_| seek(&self.file, SeekFrom::End(0)))?;
        self.position = start;
        self.is_cut = start > 0;
        Ok(true)
    }

    pub(super) fn last_lines(&self) -> LastLines {
        self.last.clone()
    }

    /// Copies what was written since the last time.
    pub(super) fn copy(&mut self) {
        if let Err(error) = self.copy_new() {
            tracing::debug!(%error, at = self.at, "the output of a FUSE daemon could not be read");
        }
    }

    /// Copies the rest, also a last line without an end.
    pub(super) fn finish(&mut self) {
        self.copy();
        if !self.partial.is_empty() {
            self.end_line();
        }
    }

    fn copy_new(&mut self) -> io::Result<()> {
        if !self.has_turn && !self.take_turn()? {
            return Ok(());
        }
        let end = self.file.metadata()?.len();
        if end < self.position {
            self.position = 0;
        }
        if end - self.position > MAX_BACKLOG {
            let start = end - MAX_BACKLOG / 16;
            tracing::warn!(
                bytes = start - self.position,
                at = self.at,
                "a FUSE daemon prints too much; a \
                part of its output is left out"
            );
            self.position = start;
            self.is_cut = true;
        }
        if self.position < end {
            // After the look at the length: what is printed before it was a credential before it.
            self.hide_credentials();
        }
        let mut buffer = vec![0; 16 * 1024];
        while self.position < end {
            let most = buffer.len().min(usize::try_from(end - self.position).unwrap_or(usize::MAX));
            let length = self.file.read_at(&mut buffer[..most], self.position)?;
            if length == 0 {
                break;
            }
            self.position += length as u64;
            for byte in &buffer[..length] {
                match byte {
                    b'\n' => self.end_line(),
                    // Twice the limit is read, so that a secret at the limit is read whole.
                    _ if self.partial.len() < 2 * MAX_LINE => self.partial.push(*byte),
                    _ => {}
                }
            }
        }
        let copied = self.position / PAGE * PAGE;
        if copied > 0 {
            fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, copied)?;
        }
        Ok(())
    }

    /// Hides the credentials that another process has brought by a later stage. The daemon can still print those before.
    fn hide_credentials(&mut self) {
        let now = credentials::contents(&self.place);
        if now != self.credentials {
            self.secrets.add(&Secrets::new(now.iter().map(Vec::as_slice), [].into_iter()));
            self.credentials = now;
        }
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&self.partial).into_owned();
        self.partial.clear();
        if std::mem::take(&mut self.is_cut) {
            return;
        }
        // A secret can have control characters, and is hidden before they are replaced.
        let line = self.secrets.hide(line.trim_end());
        // Other control characters could change a terminal.
        let shown = line.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
        let line: String = shown.take(MAX_LINE).collect();
        if !line.is_empty() {
            tracing::info!(target: "csi_mount::fuse_daemon", at = self.at, "{line}");
            self.last.push(&line);
        }
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        if self.has_turn {
            // Closing the file is not enough: a child that another thread is forking has a copy of it for a moment.
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
        copied().remove(&self.inode);
    }
}

fn copied() -> MutexGuard<'static, BTreeMap<u64, Secrets>> {
    COPIED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsRawFd as _;

    use super::*;

    fn copier(output: &Output) -> Copier {
        Copier::new(output, Secrets::default(), Path::new("/staging"), String::new()).unwrap().unwrap()
    }

    #[test]
    fn lines_are_copied_once_and_their_memory_is_given_back() {
        let output = Output::new(Path::new("/staging")).unwrap();
        let mut copier = copier(&output);
        let mut daemon = output.file.try_clone().unwrap();
        let line = "x".repeat(99);
        for _ in 0..200 {
            writeln!(daemon, "{line}").unwrap();
        }
        writeln!(daemon, "one\n\ntwo\u{1b}[0m").unwrap();
        write!(daemon, "no end").unwrap();
        copier.copy();
        assert!(copier.last_lines().text().ends_with(" | one | two [0m"), "{}", copier.last_lines().text());
        assert_eq!(seek(&copier.file, SeekFrom::Data(0)).unwrap(), 4 * PAGE, "20,020 bytes are copied");
        copier.finish();
        assert!(copier.last_lines().text().ends_with(" | no end"));
        writeln!(daemon, "{}", "flood\n".repeat(1 << 18)).unwrap();
        copier.copy();
        assert!(copier.last_lines().text().starts_with(": flood"), "{}", copier.last_lines().text());
    }

    #[test]
    fn one_thread_of_a_process_copies_and_the_next_one_continues() {
        let output = Output::new(Path::new("/staging")).unwrap();
        writeln!(&output.file, "{}", "early\n".repeat(2000)).unwrap();
        let mut first = copier(&output);
        assert!(
            Copier::new(&output, Secrets::default(), Path::new("/staging"), String::new()).unwrap().is_none()
        );
        first.copy();
        drop(first);
        writeln!(&output.file, "late").unwrap();
        let mut next = copier(&output);
        assert!(next.take_turn().unwrap() && next.position > 0, "it does not start from the beginning");
        next.copy();
        assert!(next.last_lines().text().ends_with(" | late"));
    }

    /// As while a plugin is replaced: the old process ends when the new one watches the daemon already.
    #[test]
    fn a_process_copies_when_the_one_before_it_has_ended() {
        let output = Output::new(Path::new("/staging")).unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), output.file.as_raw_fd());
        let mut flock = std::process::Command::new("flock");
        let flock = flock.arg(path).args(["sh", "-c", "echo locked; exec cat"]);
        let mut before = flock.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        before.stdout.take().unwrap().read_exact(&mut [0; 6]).unwrap();
        let mut copier = copier(&output);
        writeln!(&output.file, "said").unwrap();
        copier.copy();
        assert_eq!(copier.last_lines().text(), "", "the other process copies it");
        // What it holds ends with its standard input.
        drop(before.stdin.take());
        before.wait().unwrap();
        copier.copy();
        assert_eq!(copier.last_lines().text(), ": said");
    }

    /// The whole file is a hole then.
    #[test]
    fn the_rest_of_a_line_whose_beginning_was_copied_by_another_process_is_left_out() {
        let output = Output::new(Path::new("/staging")).unwrap();
        let beginning = "x".repeat(usize::try_from(PAGE).unwrap());
        write!(&output.file, "{beginning}").unwrap();
        copier(&output).copy();
        let mut last = copier(&output);
        writeln!(&output.file, "rest\nnext").unwrap();
        last.copy();
        assert_eq!(last.last_lines().text(), ": next");
    }

    #[test]
    fn the_output_of_a_process_is_found() {
        let output = Output::new(Path::new("/staging")).unwrap();
        let mut sleep = std::process::Command::new("sleep");
        let mut child = sleep.arg("60").stderr(output.stdio().unwrap()).spawn().unwrap();
        writeln!(&output.file, "known").unwrap();
        let found = Output::of_process(child.id().cast_signed());
        child.kill().unwrap();
        child.wait().unwrap();
        let mut copier = copier(&found.unwrap());
        copier.copy();
        assert_eq!(copier.last_lines().text(), ": known");
        assert!(Output::of_process(std::process::id().cast_signed()).is_none());
    }

    #[test]
    fn a_credential_that_is_replaced_while_the_daemon_runs_is_hidden() {
        let place = Path::new("/no/such/place/of/an/output");
        let renew =
            |token: &str| credentials::write(place, [("token", token.as_bytes())].into_iter()).unwrap();
        let output = Output::new(place).unwrap();
        let first = Secrets::new([&b"first"[..]].into_iter(), [].into_iter());
        let mut copier = Copier::new(&output, first, place, String::new()).unwrap().unwrap();
        for token in ["first", "first-and-second", "third"] {
            renew(token);
            writeln!(&output.file, "login {token} failed").unwrap();
            copier.copy();
        }
        // The thread of a later stage has no output to copy, and its secrets are hidden all the same.
        let renewed = Secrets::new([&b"fourth"[..]].into_iter(), [].into_iter());
        assert!(Copier::new(&output, renewed, place, String::new()).unwrap().is_none());
        writeln!(&output.file, "no longer first-and-second or third, but fourth").unwrap();
        copier.copy();
        credentials::remove(place);
        let lines =
            ": login *** failed | login *** failed | login *** failed | no longer *** or ***, but ***";
        assert_eq!(copier.last_lines().text(), lines);
    }

    #[test]
    fn a_secret_with_control_characters_is_hidden_as_a_whole() {
        let output = Output::new(Path::new("/staging")).unwrap();
        let secrets = Secrets::new([&b"hunter2\tx\x01more"[..]].into_iter(), [].into_iter());
        let mut copier =
            Copier::new(&output, secrets, Path::new("/staging"), String::new()).unwrap().unwrap();
        writeln!(&output.file, "login hunter2\tx\x01more failed").unwrap();
        copier.copy();
        assert_eq!(copier.last_lines().text(), ": login *** failed");
    }

    #[test]
    fn a_secret_at_the_end_of_a_long_line_is_hidden() {
        let output = Output::new(Path::new("/staging")).unwrap();
        let secrets = Secrets::new([&b"hunter2-and-more"[..]].into_iter(), [].into_iter());
        let mut copier =
            Copier::new(&output, secrets, Path::new("/staging"), String::new()).unwrap().unwrap();
        let line = format!("{}hunter2-and-more and on", "a".repeat(MAX_LINE - 4));
        writeln!(&output.file, "{line}").unwrap();
        copier.copy();
        assert_eq!(copier.partial.len(), 0);
        assert!(!copier.last_lines().text().contains("hunt"));
    }
}
