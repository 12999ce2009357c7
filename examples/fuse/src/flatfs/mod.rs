//! `flatfs`, a filesystem of the files of one directory, without a FUSE library.
//!
//! It has no subdirectories and is small enough to read. It speaks the kernel's protocol (`fuse(4)`, `linux/fuse.h`,
//! version 7.31), one request at a time. The only state in memory is the table of node numbers and names, so it can be
//! killed and started again without losing written data. The numbers are the same in each process, so a process can
//! continue what another one has served.

mod answer;
mod server;
mod store;

use answer::{Answer, Errno, Request};
pub use server::{Wish, ask, receive, serve};
pub use store::Store;

/// The largest request: its data, and a page for its header.
pub const LARGEST: usize = (128 << 10) + 4096;

/// Returns the reply for the kernel's request, or `None` if it expects none.
pub fn reply(request: &[u8], store: &mut Store) -> Option<Vec<u8>> {
    let request = Request::new(request)?;
    answer(&request, store).map(|answer| request.reply(answer))
}

fn answer(request: &Request<'_>, store: &mut Store) -> Option<Result<Answer, Errno>> {
    let node = request.node;
    Some(match request.operation {
        // FORGET, INTERRUPT, BATCH_FORGET: names keep their node numbers.
        2 | 36 | 42 => return None,
        // LOOKUP
        1 => store.look_up(request.name(0)).map(Answer::entry),
        // GETATTR
        3 => store.attributes(node).map(Answer::attributes),
        // SETATTR: only the size is changed.
        4 => {
            let what = request.word(0);
            let size = request.long(16);
            store.resize(node, (what & 8 != 0).then_some(size)).map(Answer::attributes)
        }
        // MKNOD; the kernel uses it in place of CREATE
        8 => store.create(request.name(16), request.is_repeated()).map(Answer::entry),
        // UNLINK
        10 => store.remove(request.name(0), request.is_repeated()).map(|()| Answer::empty()),
        // READ
        15 => store.read(node, request.long(8), request.word(16) as usize).map(Answer::bytes),
        // WRITE
        16 => {
            let written = store.write(node, request.long(8), request.rest(40));
            written.map(Answer::written)
        }
        // STATFS
        17 => store.usage().map(Answer::usage),
        // FSYNC
        20 => store.sync(node).map(|()| Answer::empty()),
        // INIT
        26 => Ok(Answer::init(request.word(4), LARGEST - 4096)),
        // OPENDIR, RELEASEDIR
        27 | 29 => Ok(Answer::opened()),
        // READDIR
        28 => store.list().map(|names| Answer::names(&names, request.long(8), request.word(16) as usize)),
        // This includes OPEN: after ENOSYS the kernel opens files without a request.
        _ => Err(Errno::NOT_THERE),
    })
}
