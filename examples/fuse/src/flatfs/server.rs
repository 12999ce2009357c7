//! Files on another machine: a server of volumes, and what it is asked.
//!
//! A connection begins with a line, the word of a [`Wish`] and the name of a volume. The answer is a line too: `ok`, or why
//! not. A connection that serves a volume then carries the kernel's requests and their replies, as they are.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::path::{Component, Path};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt;

use super::{LARGEST, Store, reply};

/// What a client wants of a volume.
#[derive(Debug, Clone, Copy)]
pub enum Wish {
    /// That it exists.
    Make,
    /// That it no longer exists.
    Remove,
    /// To know whether it exists.
    Find,
    /// Its files, for a filesystem that is new.
    Serve,
    /// Its files, for a filesystem that another process has served.
    Continue,
}

impl Wish {
    const ALL: [Self; 5] = [Self::Make, Self::Remove, Self::Find, Self::Serve, Self::Continue];

    fn word(self) -> &'static str {
        match self {
            Self::Make => "make",
            Self::Remove => "remove",
            Self::Find => "find",
            Self::Serve => "serve",
            Self::Continue => "continue",
        }
    }
}

/// How long to wait for a line, and for a machine that has gone.
const LIMIT: Duration = Duration::from_secs(10);
const LONGEST_LINE: u64 = 300;
const MISSING: &str = "there is no volume ";

/// Serves the volumes below a directory to all who connect.
///
/// # Errors
/// No connection can be accepted any more.
pub fn serve(listener: &TcpListener, directory: &Path) -> io::Result<()> {
    loop {
        let (connection, client) = listener.accept()?;
        let directory = directory.to_owned();
        thread::spawn(move || {
            if let Err(error) = serve_one(connection, &directory) {
                eprintln!("flat-store: {client}: {error}");
            }
        });
    }
}

fn serve_one(mut connection: TcpStream, directory: &Path) -> io::Result<()> {
    prepare(&connection)?;
    let line = receive_line(&connection)?;
    let (answer, store) = match grant(&line, directory) {
        Ok(store) => ("ok".to_owned(), store),
        Err(refusal) => (refusal, None),
    };
    connection.write_all(format!("{answer}\n").as_bytes())?;
    let Some(mut store) = store else { return Ok(()) };
    connection.set_read_timeout(None)?;
    let mut buffer = vec![0; LARGEST];
    while let Some(request) = receive(&mut connection, &mut buffer)? {
        if let Some(reply) = reply(request, &mut store) {
            connection.write_all(&reply)?;
        }
    }
    Ok(())
}

/// Does what a line wishes, and returns the files to serve, if it wishes that. A refusal is for the client.
fn grant(line: &str, directory: &Path) -> Result<Option<Store>, String> {
    let (word, name) = line.split_once(' ').unwrap_or((line, ""));
    let Some(wish) = Wish::ALL.into_iter().find(|wish| wish.word() == word) else {
        return Err(format!("{word:?} is no wish"));
    };
    let mut parts = Path::new(name).components();
    let (Some(Component::Normal(_)), None) = (parts.next(), parts.next()) else {
        return Err(format!("{name:?} is no name of a volume"));
    };
    let volume = directory.join(name);
    let done = match wish {
        Wish::Make => fs::create_dir(&volume).or_else(only_if(io::ErrorKind::AlreadyExists)),
        Wish::Remove => fs::remove_dir_all(&volume).or_else(only_if(io::ErrorKind::NotFound)),
        Wish::Find | Wish::Serve | Wish::Continue if !volume.is_dir() => {
            return Err(format!("{MISSING}{name}"));
        }
        Wish::Find => Ok(()),
        Wish::Serve => return Ok(Some(Store::new(volume))),
        Wish::Continue => return Store::continued(volume).map(Some).map_err(|error| error.to_string()),
    };
    done.map(|()| None).map_err(|error| format!("{word} {name}: {error}"))
}

fn only_if(kind: io::ErrorKind) -> impl FnOnce(io::Error) -> io::Result<()> {
    move |error| if error.kind() == kind { Ok(()) } else { Err(error) }
}

/// Asks a server for a volume, and returns the connection.
///
/// # Errors
/// [`io::ErrorKind::NotFound`]: there is no such volume.
pub fn ask(server: &str, wish: Wish, volume: &str) -> io::Result<TcpStream> {
    let refuse = |kind, reason: &str| Err(io::Error::new(kind, format!("the store at {server}: {reason}")));
    let mut connected = refuse(io::ErrorKind::AddrNotAvailable, "it has no address");
    for address in server.to_socket_addrs()? {
        connected = TcpStream::connect_timeout(&address, LIMIT);
        if connected.is_ok() {
            break;
        }
    }
    let mut connection = connected?;
    prepare(&connection)?;
    // No volume has a slash in its name.
    connection.write_all(format!("{} {}\n", wish.word(), volume.replace('\n', "/")).as_bytes())?;
    match receive_line(&connection)?.as_str() {
        "ok" => {}
        missing if missing.starts_with(MISSING) => return refuse(io::ErrorKind::NotFound, missing),
        other => return refuse(io::ErrorKind::Other, other),
    }
    connection.set_read_timeout(None)?;
    Ok(connection)
}

/// A machine that has gone sends nothing that ends a connection.
fn prepare(connection: &TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(LIMIT))?;
    sockopt::set_socket_keepalive(connection, true)?;
    sockopt::set_tcp_keepidle(connection, LIMIT)?;
    sockopt::set_tcp_keepintvl(connection, LIMIT)?;
    sockopt::set_tcp_user_timeout(connection, LIMIT.as_millis() as u32)?;
    Ok(())
}

/// The other side sends nothing after a line before it has an answer.
fn receive_line(connection: &TcpStream) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(connection.take(LONGEST_LINE)).read_line(&mut line)?;
    match line.strip_suffix('\n') {
        Some(line) => Ok(line.to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The next request or reply, which begins with its length, or `None` if the connection has ended.
///
/// # Errors
/// It does not end as a request or reply, or the other side has gone.
pub fn receive<'b>(connection: &mut TcpStream, buffer: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
    let mut length = [0; 4];
    match connection.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let whole = u32::from_ne_bytes(length) as usize;
    let Some(message) = buffer.get_mut(..whole).filter(|_| whole > length.len()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {whole} bytes")));
    };
    message[..length.len()].copy_from_slice(&length);
    connection.read_exact(&mut message[length.len()..])?;
    Ok(Some(message))
}
