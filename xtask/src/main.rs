//! The workspace's own commands: code generation, tests and the gate, as one program in place of scripts.

mod apt;
mod artifacts;
mod bench;
mod ci;
mod container;
mod coverage;
mod elf;
mod hung;
mod image;
mod kernels;
mod needs;
mod package;
mod sanity;
mod step;
mod systems;
mod target;
mod templates;
mod test;
mod test_programs;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use needs::Install;
pub(crate) use step::Failure;
use step::Step;
use test_programs::Unsteady;

const HELP: &str = "\
The workspace's own commands.

Usage: cargo xtask <command>

  codegen             write csi-proto/src/generated from csi-proto/proto (no protoc needed)
  codegen --check     write nothing; fail and list the files that a new run would change
  test                run all tests of the workspace, each in a process of its own, and doctests; install
                      missing packages first (as root, on a system with apt). A test that fails runs again,
                      alone; if it passes then, it is named as unsteady, and both outputs are kept in the target
                      folder. A test that takes longer than an hour is killed with all that it started, after a
                      report of what its threads wait for; at the end the slowest tests are listed
  test --strict       an unsteady test fails
  test --no-install   install nothing; print the install command
  test --rounds N [--busy M]
                      run all tests N times, beside M threads that compute all the time, and list the tests
                      that failed in a round
  test --kernels      run the tests of csi-mount and the examples that depend on the kernel in an emulated
                      machine, on other kernels: 5.10, 6.1, 6.12 and the newest, from Debian's packages; no
                      root needed
  test --kernels 6.1 [SUITE]
                      run them on one kernel, on `newest` or `all`, or on `ends`: the oldest and the newest,
                      without long tests, as in `ci`; only suites with SUITE in `package/program`, several
                      separated by commas; `short`: some tests of the newest kernel, those of the first ring
  test --systems NAME run tests with other people's programs and servers, which no other command runs; without
                      a name it lists the names. As root on this machine's kernel; a missing program is
                      installed (openssh-server among them, whose service Debian starts)
  ci                  the first ring of checks, as before each merge: missing packages, format, clippy, docs, all
                      tests, csi-sanity on hostpath (if there is a Go toolchain), some tests on the newest
                      kernel. All of them run; the last lines name what failed, and how it is repeated
  ci --all            both rings: also each feature alone, the archives of the published crates, a static
                      build, containers, templates, Helm, csi-sanity on every example, instruction counts,
                      more kills and power cuts, and the oldest and the newest kernel
  ci --since COMMIT   the first ring, and what the folders that have changed since then ask for in the second one
  ci --only TEXT      the checks with this text in their name
  ci … --strict       an unsteady test fails
  sanity [EXAMPLE]    run csi-sanity, Kubernetes' test suite for CSI drivers, against the examples, or against
                      one; it is built by `go`, into the target folder
  helm                check the charts of csi-deploy with Helm, which is built by `go`, into the target folder
  image PACKAGE [--tools]
                      write a container image of a driver as an OCI layout, in the target folder; see
                      `image --help`
  templates           make a driver from each template by `csi new`, build it, and run its tests, the kit and
                      csi-sanity
  container           run the images of the examples with runc, as a kubelet runs them; needs root
  features            check each feature of each package alone, and each package without features
  bench [OPTIONS]     compare the toolkit with system calls, programs and other crates; write
                      docs/benchmarks.md. Options: --quick, --only, --instructions, --document; see
                      `bench --help`
  abuse [OPTIONS]     put abusive loads on a driver's servers, one after the other, and measure a
                      well-behaved client; write docs/abuse.md. With options it writes nothing: --quick,
                      --only, or another driver; see `abuse --help`
  coverage            print the spec's requirements of a plugin, who meets each one, and how often it is
                      cited
  public-api          write docs/public-api/<crate>.txt: the public items of each published crate, read
                      from its source
  package             write the archives of the published crates; build and test each one from its archive
                      alone; check them with the oldest dependencies and the oldest Rust that they declare
  package --check     the same with the compiler's checks only
  needs               list what the tests need on this machine, and what is missing

Root and ordinary users:
  Many tests mount filesystems and attach loop devices. They need root with CAP_SYS_ADMIN. Each test uses
  its own mount namespace and leaves nothing behind. As root, `test` runs all tests. For an ordinary user,
  and if something is missing on the machine, it leaves out the integration tests of csi-mount, and the tests
  in files and modules root_* and needs_root. At the end it prints this and what they need. For root this
  counts as a failure.

Exit status: 0 success; 1 something failed; 2 wrong usage, or something is missing on this machine.
";

/// Runs `abuse`, built like the measured programs. Without options it writes its table into the document.
fn abuse(root: &Path, options: &[&str]) -> Result<(), Failure> {
    let options = if options.is_empty() { &["--write", "docs/abuse.md"] } else { options };
    let cargo = ["run", "--profile", "bench", "--package", "abuse", "--"];
    Step::cargo("abuse", cargo.iter().chain(options).copied()).run(root)
}

fn print_coverage(root: &Path) -> Result<(), Failure> {
    let coverage = coverage::Coverage::read(root)?;
    print!("{}", coverage.table());
    match coverage.problems() {
        problems if problems.is_empty() => Ok(()),
        problems => Err(Failure::new(problems.join("\n"))),
    }
}

/// Runs a command of the package that reads and writes source.
fn source(root: &Path, command: &[&str]) -> Result<(), Failure> {
    let cargo = ["run", "--package", "xtask-source", "--"];
    Step::cargo(command.join(" "), cargo.iter().chain(command).copied()).run(root)
}

/// For root, who should run everything, it is a failure if it was not run.
fn whole(left_out: Result<Vec<String>, Failure>) -> Result<(), Failure> {
    match left_out?.join("\n") {
        nothing if nothing.is_empty() => Ok(()),
        not_run => Err(Failure::usage(not_run)),
    }
}

fn print_left_out(result: Result<Vec<String>, Failure>) -> Result<(), Failure> {
    result?.iter().for_each(|line| println!("{line}"));
    Ok(())
}

fn ci_choice<'a>(options: &[&'a str]) -> Result<ci::Choice<'a>, Failure> {
    match options {
        [] => Ok(ci::Choice::FirstRing),
        ["--all"] => Ok(ci::Choice::All),
        ["--since", commit] => Ok(ci::Choice::Since(commit)),
        ["--only", part] => Ok(ci::Choice::Only(part)),
        other => Err(Failure::usage(format!("unknown options: {}\n\n{HELP}", other.join(" ")))),
    }
}

fn number(text: &str) -> Result<usize, Failure> {
    text.parse().map_err(|error| Failure::usage(format!("{text}: {error}")))
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().map(PathBuf::from).unwrap_or_default();
    let result = match args.as_slice() {
        command @ (["codegen"] | ["codegen", "--check"] | ["public-api"]) => source(&root, command),
        ["test"] => test::run(&root, Install::Missing, Unsteady::IsNamed),
        ["test", "--no-install"] => test::run(&root, Install::Nothing, Unsteady::IsNamed),
        ["test", "--strict"] => test::run(&root, Install::Missing, Unsteady::Fails),
        ["test", "--rounds", rounds] => number(rounds).and_then(|rounds| test::rounds(&root, rounds, 0)),
        ["test", "--rounds", rounds, "--busy", busy] => {
            number(rounds).and_then(|rounds| test::rounds(&root, rounds, number(busy)?))
        }
        ["test", "--kernels", rest @ ..] if rest.len() < 3 => {
            let choice = match rest.first() {
                None | Some(&"all") => kernels::Choice::All,
                Some(&"ends") => kernels::Choice::Ends,
                Some(&"short") => kernels::Choice::Short,
                Some(name) => kernels::Choice::Named(name),
            };
            kernels::run(&root, &choice, rest.get(1).unwrap_or(&""), Install::Missing).map(drop)
        }
        ["test", "--systems", rest @ ..] if rest.len() < 2 => {
            systems::run(&root, rest.first().copied(), Install::Missing)
        }
        ["image", options @ ..] => image::run(&root, options),
        ["container"] => whole(
            needs::provide(&[needs::Work::Containers], Install::Missing).and_then(|()| container::run(&root)),
        ),
        ["templates"] => print_left_out(templates::run(&root)),
        ["helm"] => whole(ci::helm(&root)),
        ["sanity"] => whole(sanity::run(&root, None)),
        ["sanity", driver] => whole(sanity::run(&root, Some(driver))),
        ["ci", options @ ..] => match options.split_last() {
            Some((&"--strict", options)) => {
                ci_choice(options).and_then(|choice| ci::run(&root, choice, Unsteady::Fails))
            }
            _ => ci_choice(options).and_then(|choice| ci::run(&root, choice, Unsteady::IsNamed)),
        },
        ["bench", options @ ..] => bench::run(&root, options),
        ["abuse", options @ ..] => abuse(&root, options),
        ["coverage"] => print_coverage(&root),
        ["features"] => ci::features(&root),
        ["package"] => print_left_out(package::run(&root, package::Depth::Test)),
        ["package", "--check"] => print_left_out(package::run(&root, package::Depth::Check)),
        ["needs"] => needs::report(),
        ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        [] => Err(Failure::usage(HELP)),
        other => Err(Failure::usage(format!("unknown command: {}\n\n{HELP}", other.join(" ")))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            failure.exit_code()
        }
    }
}
