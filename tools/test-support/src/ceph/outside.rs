//! A Ceph cluster outside an emulated machine, on the machine that emulates it: the manager is slow under emulation.
//!
//! [`serve`] is the process next to the emulator, in a network namespace of its own. The guest reaches it and the
//! cluster at [`ADDRESS`] through the emulator's user network. Requests are one per connection.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio, exit};
use std::{fs, thread};

use super::{Ceph, Cluster, Daemon};

/// The address of the cluster, for the guest too. It is reserved for documentation, so no machine has it.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// The programs that the guest lacks: they run outside.
const PROGRAMS: [&str; 2] = ["ceph", "rbd"];

const PORT: u16 = 7700;

/// A directory that Ceph's packages have. A tmpfs is mounted over it, in a mount namespace.
const FILES: &str = "/var/lib/ceph";

/// The parts of a message: a number, and each part with its length.
fn send(to: &mut impl Write, parts: &[impl AsRef<[u8]>]) -> io::Result<()> {
    let mut message = Vec::from((parts.len() as u32).to_be_bytes());
    for part in parts.iter().map(AsRef::as_ref) {
        message.extend((part.len() as u32).to_be_bytes());
        message.extend(part);
    }
    to.write_all(&message)
}

fn receive(from: &mut impl Read) -> io::Result<Vec<Vec<u8>>> {
    let mut number = [0; 4];
    from.read_exact(&mut number)?;
    let parts = (0..u32::from_be_bytes(number)).map(|_| {
        from.read_exact(&mut number)?;
        let mut part = vec![0; u32::from_be_bytes(number) as usize];
        from.read_exact(&mut part).map(|()| part)
    });
    parts.collect()
}

fn text(parts: &[Vec<u8>]) -> Vec<String> {
    parts.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect()
}

/// Runs the emulator and serves its guest until the emulator ends. Needs network, mount and process namespaces of
/// its own: whatever it started ends with the last one.
pub fn serve(machine: &mut Command) -> ExitCode {
    for command in [
        &["ip", "link", "set", "lo", "up"][..],
        &["ip", "address", "add", &format!("{ADDRESS}/32"), "dev", "lo"],
        &["mount", "-t", "tmpfs", "ceph", FILES],
    ] {
        super::done(Command::new(command[0]).args(&command[1..]));
    }
    let listener = TcpListener::bind((ADDRESS, PORT)).unwrap();
    let mut machine = machine.spawn().unwrap();
    thread::spawn(move || {
        let status = machine.wait().unwrap();
        exit(status.code().unwrap_or(1));
    });
    // A daemon ends with the thread that started it: this one.
    let mut cluster = None;
    for connection in listener.incoming() {
        // A guest that is killed ends its connections.
        let Ok(mut connection) = connection else { continue };
        let Ok(parts) = receive(&mut connection) else { continue };
        let words = text(&parts);
        if words[0] == "call" {
            // Several at once: one of them can wait for a daemon that a request lets go on.
            thread::spawn(move || send(&mut connection, &call(&words[1], &parts[2], &words[3..])));
            continue;
        }
        let _ = send(&mut connection, &answer(&mut cluster, &words));
    }
    ExitCode::FAILURE
}

/// Runs a program. Returns its status, output and errors.
fn call(program: &str, input: &[u8], arguments: &[String]) -> [Vec<u8>; 3] {
    assert!(PROGRAMS.contains(&program), "{program}");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that has ended already says why.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    [output.status.code().unwrap_or(1).to_string().into_bytes(), output.stdout, output.stderr]
}

fn answer(cluster: &mut Option<Ceph>, words: &[String]) -> Vec<String> {
    if words[0] == "start" {
        drop(cluster.take());
        let files = Path::new(FILES).join("cluster");
        // In the tmpfs that `serve` mounted, in which nothing else is mounted.
        let _ = fs::remove_dir_all(&files);
        fs::create_dir(&files).unwrap();
        let ceph = Ceph::start_at(ADDRESS, &files);
        let monitor = ceph.monitor().to_string();
        *cluster = Some(ceph);
        return vec![monitor];
    }
    let ceph = cluster.as_ref().expect("start comes first");
    let daemon = || Daemon::named(&words[1]).expect("a daemon");
    match &*words[0] {
        "run" => {
            let arguments: Vec<&str> = words[2..].iter().map(String::as_str).collect();
            return ceph.run(&words[1], &arguments).into_iter().collect();
        }
        "stop" => ceph.stop(daemon()),
        "go-on" => ceph.go_on(daemon()),
        "kill" => ceph.kill(daemon()),
        "start-again" => ceph.start_again(daemon()),
        other => panic!("{other}"),
    }
    Vec::new()
}

fn ask<P: AsRef<[u8]>>(parts: &[P]) -> io::Result<Vec<Vec<u8>>> {
    let mut connection = TcpStream::connect((ADDRESS, PORT))?;
    send(&mut connection, parts)?;
    receive(&mut connection)
}

/// In the guest, the programs `ceph` and `rbd`: they run outside, with this process's arguments and input.
pub fn forward(program: &str, arguments: &[String]) -> ExitCode {
    let mut input = Vec::new();
    io::stdin().read_to_end(&mut input).unwrap();
    let mut parts: Vec<&[u8]> = vec![b"call", program.as_bytes(), &input];
    parts.extend(arguments.iter().map(String::as_bytes));
    let answer = ask(&parts).unwrap();
    io::stdout().write_all(&answer[1]).unwrap();
    io::stderr().write_all(&answer[2]).unwrap();
    ExitCode::from(String::from_utf8_lossy(&answer[0]).parse::<u8>().unwrap_or(1))
}

/// Whether this program's name is that of one which runs outside.
pub fn is_forwarded(program: &str) -> bool {
    PROGRAMS.contains(&program)
}

/// The cluster outside, as a guest uses it.
#[derive(Debug)]
pub struct Outside {
    monitor: SocketAddr,
}

impl Outside {
    /// Joins the network of the emulator, and starts a cluster. It ends an earlier one.
    pub fn start() -> Self {
        for command in [
            &["link", "set", "lo", "up"][..],
            &["link", "set", "eth0", "up"],
            &["address", "replace", "10.0.2.15/24", "dev", "eth0"],
            &["route", "replace", "default", "via", "10.0.2.2"],
        ] {
            super::done(Command::new("ip").args(command));
        }
        let answer = text(&ask(&["start"]).unwrap());
        Self { monitor: answer[0].parse().unwrap() }
    }

    fn order(&self, verb: &str, daemon: Daemon) {
        ask(&[verb, daemon.name()]).unwrap();
    }
}

impl Cluster for Outside {
    fn monitor(&self) -> SocketAddr {
        self.monitor
    }

    fn run(&self, program: &str, words: &[&str]) -> Option<String> {
        text(&ask(&[&["run", program], words].concat()).unwrap()).pop()
    }

    fn stop(&self, daemon: Daemon) {
        self.order("stop", daemon);
    }

    fn go_on(&self, daemon: Daemon) {
        self.order("go-on", daemon);
    }

    fn kill(&self, daemon: Daemon) {
        self.order("kill", daemon);
    }

    fn start_again(&self, daemon: Daemon) {
        self.order("start-again", daemon);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_as_it_was_sent() {
        let parts = [b"call".to_vec(), Vec::new(), vec![0, 10, 255]];
        let mut message = Vec::new();
        send(&mut message, &parts).unwrap();
        assert_eq!(receive(&mut &*message).unwrap(), parts);
        assert!(receive(&mut &message[..message.len() - 1]).is_err());
    }
}
