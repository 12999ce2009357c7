//! A filesystem in memory for the NFS server in this process: directories, files and symbolic links.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use nfs3_server::nfs3_types::nfs3::{
    createverf3, fattr3, filename3, ftype3, nfspath3, nfsstat3, nfstime3, sattr3, set_atime, set_gid3,
    set_mode3, set_mtime, set_size3, set_uid3, specdata3, stable_how,
};
use nfs3_server::vfs::{
    DirEntryPlus, FileHandleU64, NextResult, NfsFileSystem, NfsReadFileSystem, ReadDirPlusIterator,
};
use tokio::sync::watch;

use crate::share_workers::locked;

type Status<T> = Result<T, nfsstat3>;

/// The largest file, in bytes.
const LARGEST: u64 = 1 << 30;

/// The file id of the root directory.
const ROOT: u64 = 1;

/// The filesystem. While its gate is closed no request is answered, as with a server that is down.
#[derive(Debug)]
pub(super) struct Memory {
    nodes: Mutex<Nodes>,
    gate: Arc<Gate>,
}

/// Where a request waits while the server is silent.
#[derive(Debug)]
pub(super) struct Gate {
    is_open: watch::Sender<bool>,
    /// How many requests pass before the gate closes; at 0 or less all pass.
    left: AtomicI64,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self { is_open: watch::Sender::new(true), left: AtomicI64::new(0) }
    }

    pub(super) fn open(&self) {
        self.is_open.send_replace(true);
    }

    pub(super) fn close(&self) {
        self.is_open.send_replace(false);
    }

    pub(super) fn close_after(&self, questions: u32) {
        self.left.store(questions.into(), Ordering::Relaxed);
    }

    async fn pass(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.close();
        }
        // It can't fail, because this gate owns the sender.
        let _ = self.is_open.subscribe().wait_for(|is_open| *is_open).await;
    }
}

#[derive(Debug)]
struct Nodes {
    nodes: HashMap<u64, Node>,
    next: u64,
}

#[derive(Debug)]
struct Node {
    kind: Kind,
    mode: u32,
    uid: u32,
    gid: u32,
    accessed: nfstime3,
    modified: nfstime3,
    changed: nfstime3,
    /// The verifier of an exclusive create, by which a repeated request is recognized.
    verifier: Option<createverf3>,
}

#[derive(Debug)]
enum Kind {
    Directory { parent: u64, entries: BTreeMap<Vec<u8>, u64> },
    File(Vec<u8>),
    Link(Vec<u8>),
}

impl Kind {
    fn file_type(&self) -> ftype3 {
        match self {
            Self::Directory { .. } => ftype3::NF3DIR,
            Self::File(_) => ftype3::NF3REG,
            Self::Link(_) => ftype3::NF3LNK,
        }
    }

    fn size(&self) -> u64 {
        let size = match self {
            Self::Directory { .. } => 4096,
            Self::File(data) | Self::Link(data) => data.len(),
        };
        size.try_into().unwrap_or(u64::MAX)
    }
}

fn now() -> nfstime3 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    nfstime3 { seconds: time.as_secs().try_into().unwrap_or(u32::MAX), nseconds: time.subsec_nanos() }
}

impl Node {
    fn new(kind: Kind, mode: u32) -> Self {
        let now = now();
        Self { kind, mode, uid: 0, gid: 0, accessed: now, modified: now, changed: now, verifier: None }
    }

    fn attributes(&self, id: u64) -> fattr3 {
        let size = self.kind.size();
        fattr3 {
            type_: self.kind.file_type(),
            mode: self.mode,
            nlink: if matches!(self.kind, Kind::Directory { .. }) { 2 } else { 1 },
            uid: self.uid,
            gid: self.gid,
            size,
            used: size,
            rdev: specdata3::default(),
            fsid: 0,
            fileid: id,
            atime: self.accessed,
            mtime: self.modified,
            ctime: self.changed,
        }
    }

    fn touch(&mut self) {
        self.modified = now();
        self.changed = self.modified;
    }

    fn set(&mut self, wanted: &sattr3) -> Status<()> {
        if let set_size3::Some(size) = wanted.size {
            let Kind::File(data) = &mut self.kind else { return Err(nfsstat3::NFS3ERR_ISDIR) };
            data.resize(length(size)?, 0);
            self.touch();
        }
        if let set_mode3::Some(mode) = wanted.mode {
            self.mode = mode & 0o7777;
        }
        if let set_uid3::Some(uid) = wanted.uid {
            self.uid = uid;
        }
        if let set_gid3::Some(gid) = wanted.gid {
            self.gid = gid;
        }
        match wanted.atime {
            set_atime::SET_TO_CLIENT_TIME(time) => self.accessed = time,
            set_atime::SET_TO_SERVER_TIME => self.accessed = now(),
            set_atime::DONT_CHANGE => {}
        }
        match wanted.mtime {
            set_mtime::SET_TO_CLIENT_TIME(time) => self.modified = time,
            set_mtime::SET_TO_SERVER_TIME => self.modified = now(),
            set_mtime::DONT_CHANGE => {}
        }
        self.changed = now();
        Ok(())
    }
}

fn length(size: u64) -> Status<usize> {
    if size > LARGEST {
        return Err(nfsstat3::NFS3ERR_FBIG);
    }
    usize::try_from(size).map_err(|_| nfsstat3::NFS3ERR_FBIG)
}

impl Nodes {
    fn node(&self, id: u64) -> Status<&Node> {
        self.nodes.get(&id).ok_or(nfsstat3::NFS3ERR_STALE)
    }

    fn node_mut(&mut self, id: u64) -> Status<&mut Node> {
        self.nodes.get_mut(&id).ok_or(nfsstat3::NFS3ERR_STALE)
    }

    fn entries(&self, id: u64) -> Status<&BTreeMap<Vec<u8>, u64>> {
        match &self.node(id)?.kind {
            Kind::Directory { entries, .. } => Ok(entries),
            _ => Err(nfsstat3::NFS3ERR_NOTDIR),
        }
    }

    fn entries_mut(&mut self, id: u64) -> Status<&mut BTreeMap<Vec<u8>, u64>> {
        let node = self.node_mut(id)?;
        node.touch();
        match &mut node.kind {
            Kind::Directory { entries, .. } => Ok(entries),
            _ => Err(nfsstat3::NFS3ERR_NOTDIR),
        }
    }

    fn find(&self, directory: u64, name: &[u8]) -> Status<u64> {
        match (name, &self.node(directory)?.kind) {
            (b".", _) => Ok(directory),
            (b"..", Kind::Directory { parent, .. }) => Ok(*parent),
            _ => self.entries(directory)?.get(name).copied().ok_or(nfsstat3::NFS3ERR_NOENT),
        }
    }

    fn add(&mut self, directory: u64, name: &[u8], node: Node) -> Status<u64> {
        if self.find(directory, name).is_ok() {
            return Err(nfsstat3::NFS3ERR_EXIST);
        }
        let id = self.next;
        self.entries_mut(directory)?.insert(name.to_vec(), id);
        self.nodes.insert(id, node);
        self.next += 1;
        Ok(id)
    }

    fn remove(&mut self, directory: u64, name: &[u8]) -> Status<()> {
        let id = *self.entries(directory)?.get(name).ok_or(nfsstat3::NFS3ERR_NOENT)?;
        if self.entries(id).is_ok_and(|entries| !entries.is_empty()) {
            return Err(nfsstat3::NFS3ERR_NOTEMPTY);
        }
        self.entries_mut(directory)?.remove(name);
        self.nodes.remove(&id);
        Ok(())
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8])) -> Status<()> {
        let id = *self.entries(from.0)?.get(from.1).ok_or(nfsstat3::NFS3ERR_NOENT)?;
        let mut above = to.0;
        while above != ROOT {
            if above == id {
                return Err(nfsstat3::NFS3ERR_INVAL);
            }
            above = self.find(above, b"..")?;
        }
        match self.find(to.0, to.1) {
            Ok(replaced) if replaced == id => return Ok(()),
            Ok(replaced) => {
                if self.entries(replaced).is_ok() != self.entries(id).is_ok() {
                    return Err(nfsstat3::NFS3ERR_EXIST);
                }
                self.remove(to.0, to.1)?;
            }
            Err(nfsstat3::NFS3ERR_NOENT) => {}
            Err(error) => return Err(error),
        }
        self.entries_mut(from.0)?.remove(from.1);
        self.entries_mut(to.0)?.insert(to.1.to_vec(), id);
        let node = self.node_mut(id)?;
        node.changed = now();
        if let Kind::Directory { parent, .. } = &mut node.kind {
            *parent = to.0;
        }
        Ok(())
    }
}

impl Memory {
    /// An empty filesystem behind this gate.
    pub(super) fn new(gate: Arc<Gate>) -> Self {
        let root = Node::new(Kind::Directory { parent: ROOT, entries: BTreeMap::new() }, 0o755);
        let nodes = Nodes { nodes: HashMap::from([(ROOT, root)]), next: ROOT + 1 };
        Self { nodes: Mutex::new(nodes), gate }
    }

    async fn open(&self) -> MutexGuard<'_, Nodes> {
        self.gate.pass().await;
        locked(&self.nodes)
    }

    fn answer(nodes: &Nodes, id: u64) -> Status<(FileHandleU64, fattr3)> {
        Ok((id.into(), nodes.node(id)?.attributes(id)))
    }
}

impl NfsReadFileSystem for Memory {
    type Handle = FileHandleU64;

    fn root_dir(&self) -> FileHandleU64 {
        ROOT.into()
    }

    async fn lookup(&self, directory: &FileHandleU64, name: &filename3<'_>) -> Status<FileHandleU64> {
        self.open().await.find(directory.as_u64(), &name.0).map(Into::into)
    }

    async fn getattr(&self, id: &FileHandleU64) -> Status<fattr3> {
        let id = id.as_u64();
        Ok(self.open().await.node(id)?.attributes(id))
    }

    async fn read(&self, id: &FileHandleU64, offset: u64, count: u32) -> Status<(Vec<u8>, bool)> {
        let nodes = self.open().await;
        let Kind::File(data) = &nodes.node(id.as_u64())?.kind else { return Err(nfsstat3::NFS3ERR_INVAL) };
        let end = offset.saturating_add(count.into()).min(nodes.node(id.as_u64())?.kind.size());
        let (from, to) = (length(offset.min(end))?, length(end)?);
        Ok((data[from..to].to_vec(), to == data.len()))
    }

    async fn readdirplus(
        &self,
        directory: &FileHandleU64,
        cookie: u64,
    ) -> Status<impl ReadDirPlusIterator<FileHandleU64>> {
        let nodes = self.open().await;
        // Sorted by file id, which is also the cookie: a removal between two reads leaves no gap.
        let mut found: Vec<(u64, Vec<u8>)> =
            nodes.entries(directory.as_u64())?.iter().map(|(name, id)| (*id, name.clone())).collect();
        found.retain(|(id, _)| *id > cookie);
        found.sort_unstable();
        let entries = found.into_iter().map(|(id, name)| {
            let attributes = nodes.node(id).ok().map(|node| node.attributes(id));
            DirEntryPlus {
                fileid: id,
                name: name.into(),
                cookie: id,
                name_attributes: attributes,
                name_handle: Some(id.into()),
            }
        });
        Ok(Listing(entries.collect::<Vec<_>>().into_iter()))
    }

    async fn readlink(&self, id: &FileHandleU64) -> Status<nfspath3<'_>> {
        match &self.open().await.node(id.as_u64())?.kind {
            Kind::Link(path) => Ok(path.clone().into()),
            _ => Err(nfsstat3::NFS3ERR_INVAL),
        }
    }
}

struct Listing(std::vec::IntoIter<DirEntryPlus<FileHandleU64>>);

impl ReadDirPlusIterator<FileHandleU64> for Listing {
    async fn next(&mut self) -> NextResult<DirEntryPlus<FileHandleU64>> {
        self.0.next().map_or(NextResult::Eof, NextResult::Ok)
    }
}

impl NfsFileSystem for Memory {
    async fn setattr(&self, id: &FileHandleU64, wanted: sattr3) -> Status<fattr3> {
        let mut nodes = self.open().await;
        let id = id.as_u64();
        nodes.node_mut(id)?.set(&wanted)?;
        Ok(nodes.node(id)?.attributes(id))
    }

    async fn write(
        &self,
        id: &FileHandleU64,
        offset: u64,
        data: &[u8],
        _: stable_how,
    ) -> Status<(fattr3, stable_how)> {
        let mut nodes = self.open().await;
        let id = id.as_u64();
        let node = nodes.node_mut(id)?;
        let Kind::File(content) = &mut node.kind else { return Err(nfsstat3::NFS3ERR_INVAL) };
        let start = length(offset)?;
        let end = start + data.len();
        length(end.try_into().unwrap_or(u64::MAX))?;
        content.resize(content.len().max(end), 0);
        content[start..end].copy_from_slice(data);
        node.touch();
        Ok((node.attributes(id), stable_how::FILE_SYNC))
    }

    async fn create(
        &self,
        directory: &FileHandleU64,
        name: &filename3<'_>,
        wanted: sattr3,
    ) -> Status<(FileHandleU64, fattr3)> {
        let mut nodes = self.open().await;
        // Without GUARDED, an existing file is used as it is.
        let id = match nodes.find(directory.as_u64(), &name.0) {
            Ok(id) => id,
            Err(_) => nodes.add(directory.as_u64(), &name.0, Node::new(Kind::File(Vec::new()), 0o644))?,
        };
        nodes.node_mut(id)?.set(&wanted)?;
        Self::answer(&nodes, id)
    }

    async fn create_exclusive(
        &self,
        directory: &FileHandleU64,
        name: &filename3<'_>,
        verifier: createverf3,
    ) -> Status<FileHandleU64> {
        let mut nodes = self.open().await;
        if let Ok(id) = nodes.find(directory.as_u64(), &name.0) {
            let is_retry = nodes.node(id)?.verifier == Some(verifier);
            return if is_retry { Ok(id.into()) } else { Err(nfsstat3::NFS3ERR_EXIST) };
        }
        let node = Node { verifier: Some(verifier), ..Node::new(Kind::File(Vec::new()), 0o600) };
        nodes.add(directory.as_u64(), &name.0, node).map(Into::into)
    }

    async fn mkdir(
        &self,
        directory: &FileHandleU64,
        name: &filename3<'_>,
    ) -> Status<(FileHandleU64, fattr3)> {
        let mut nodes = self.open().await;
        let parent = directory.as_u64();
        let node = Node::new(Kind::Directory { parent, entries: BTreeMap::new() }, 0o755);
        let id = nodes.add(parent, &name.0, node)?;
        Self::answer(&nodes, id)
    }

    async fn remove(&self, directory: &FileHandleU64, name: &filename3<'_>) -> Status<()> {
        self.open().await.remove(directory.as_u64(), &name.0)
    }

    async fn rename<'a>(
        &self,
        from: &FileHandleU64,
        from_name: &filename3<'a>,
        to: &FileHandleU64,
        to_name: &filename3<'a>,
    ) -> Status<()> {
        self.open().await.rename((from.as_u64(), &from_name.0), (to.as_u64(), &to_name.0))
    }

    async fn symlink<'a>(
        &self,
        directory: &FileHandleU64,
        name: &filename3<'a>,
        path: &nfspath3<'a>,
        wanted: &sattr3,
    ) -> Status<(FileHandleU64, fattr3)> {
        let mut nodes = self.open().await;
        let id = nodes.add(directory.as_u64(), &name.0, Node::new(Kind::Link(path.0.to_vec()), 0o777))?;
        nodes.node_mut(id)?.set(wanted)?;
        Self::answer(&nodes, id)
    }

    async fn commit(&self, id: &FileHandleU64, _: u64, _: u32) -> Status<()> {
        self.open().await.node(id.as_u64()).map(drop)
    }
}
